"""Smoothings of the maximum over a set: each gives the smoothed maximum and its gradient, the expected structure.

base         the interface of smoothings.
hard_max     the maximum without smoothing.
marginals    the Gibbs distribution.
local_max    every maximum of a recursion smoothed by itself.
sparse_map   the projection onto the hull of the structures.
top_k        the best k structures, weighted by sparsemax.
perturbed    the mean of the best structures of noisy scores.
"""

from polymax.smoothing.base import Smoothing
from polymax.smoothing.hard_max import HardMax
from polymax.smoothing.local_max import LocalMax
from polymax.smoothing.marginals import Marginals
from polymax.smoothing.perturbed import Perturbed
from polymax.smoothing.sparse_map import SparseMap
from polymax.smoothing.top_k import TopKSparsemax

__all__ = ["HardMax", "LocalMax", "Marginals", "Perturbed", "Smoothing", "SparseMap", "TopKSparsemax"]
