"""The mathematics of SparseMAP, and its loops.

rules       the solvers: one loop, four step rules.
loops       the loop in torch for any set, and the hosts of the compiled loops of kernels/active_set.
solution    structures and their weights.
mixture     weights and mean as differentiable functions of the scores.
reduced     large scores, reduced by potentials that shift all structures alike.
undefined   instances with NaN or +inf among their scores.
warm_start  a memory of the structures found for each example of a data set.
finite      the solution as a distribution over a list of structures.
traced      SparseMAP as operators of torch, for torch.compile.
packed      structures and solvers as lists of numbers and tensors, for operators.
"""

from polymax.kernels.active_set.problem import Search as Search
from polymax.solvers.rules import ActiveSet as ActiveSet
from polymax.solvers.rules import AwayStep as AwayStep
from polymax.solvers.rules import FrankWolfe as FrankWolfe
from polymax.solvers.rules import Pairwise as Pairwise
from polymax.solvers.rules import Solver as Solver
from polymax.solvers.solution import Solution as Solution
from polymax.solvers.warm_start import WarmStart as WarmStart
