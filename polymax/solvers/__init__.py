"""Solvers of SparseMAP: one loop, four step rules."""

from polymax.solvers.base import ActiveSet as ActiveSet
from polymax.solvers.base import AwayStep as AwayStep
from polymax.solvers.base import FrankWolfe as FrankWolfe
from polymax.solvers.base import Pairwise as Pairwise
from polymax.solvers.base import Solution as Solution
from polymax.solvers.base import Solver as Solver
