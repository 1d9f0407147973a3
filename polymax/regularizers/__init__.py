"""Omega on the simplex: each regularizer is a mapping, a smoothed max and a penalty."""

from polymax.regularizers.base import Regularizer
from polymax.regularizers.bounded import Bounded
from polymax.regularizers.custom import Custom
from polymax.regularizers.divergences import AlphaDivergence
from polymax.regularizers.entropies import Gini, Shannon, Tsallis, Zero
from polymax.regularizers.fused import Fused, Oscar
from polymax.regularizers.grouped import Grouped
from polymax.regularizers.norms import Norm, SquaredPNorm

__all__ = [
    "AlphaDivergence",
    "Bounded",
    "Custom",
    "Fused",
    "Gini",
    "Grouped",
    "Norm",
    "Oscar",
    "Regularizer",
    "Shannon",
    "SquaredPNorm",
    "Tsallis",
    "Zero",
]
