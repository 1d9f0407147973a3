"""Solvers of SparseMAP: one loop, four step rules."""

from polymax.solvers.rules import ActiveSet as ActiveSet
from polymax.solvers.rules import AwayStep as AwayStep
from polymax.solvers.rules import FrankWolfe as FrankWolfe
from polymax.solvers.rules import Pairwise as Pairwise
from polymax.solvers.rules import Solution as Solution
from polymax.solvers.rules import Solver as Solver
