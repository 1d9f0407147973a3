"""The mappings that the demo shows and the benchmark measures, with their parameters."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

import polymax as pm

# strengths are those at which groups show on scores that are log probabilities
MAPPINGS: tuple[Callable[[Tensor], Tensor], ...] = (
    partial(pm.softmax),
    partial(pm.entmax, alpha=1.5),
    partial(pm.sparsemax),
    partial(pm.normmax, alpha=2.0),
    partial(pm.sq_pnorm_max, p=1.5),
    partial(pm.fusedmax, strength=0.5),
    partial(pm.oscarmax, strength=0.15),
    partial(pm.csoftmax, upper=0.3),
    partial(pm.csparsemax, upper=0.3),
    partial(pm.budgetmax, k=2),
    partial(pm.hardmax),
)


def name(mapping: Callable[[Tensor], Tensor]) -> str:
    """The name of a mapping.

    Example:
        >>> name(MAPPINGS[1])
        'entmax'
    """
    return getattr(mapping, "func", mapping).__name__


def call(mapping: Callable[[Tensor], Tensor]) -> str:
    """The code that one types to call a mapping.

    Example:
        >>> call(MAPPINGS[1])
        'pm.entmax(x, alpha=1.5)'
    """
    keywords = getattr(mapping, "keywords", {})
    return f"pm.{name(mapping)}({', '.join(['x', *(f'{k}={v}' for k, v in keywords.items())])})"
