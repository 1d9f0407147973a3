"""Derivatives of chains on a GPU in the fewest launches and tensors, for calls that nothing looks at.

A small call costs the host more than the device: each operation of torch takes longer than a walk along ten steps.
So NaN of values, slopes of 1 and tangents of 0 are told to the walks of cuda_whole.py, not written to memory first.

Shapes: as chain/__init__.py has them, and transitions (s, s), which all instances and steps share. What is None is left
to the passes: chains of many states, or scores that are shared in other ways.
"""

from torch import Tensor

from polymax.kernels.chain import chain_inside
from polymax.kernels.chain import cuda_whole as whole


def slope(
    unary: Tensor, transition: Tensor, lengths: Tensor, v: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor] | None:
    """The derivative of g v in the scores."""
    shape = whole.shape_of(unary, transition, alpha)
    if shape is None or not whole.fused(shape):
        return None
    return whole.outside(shape, transition, lengths, chart, g, v)


def mean(
    unary: Tensor, transition: Tensor, lengths: Tensor, full: object, alpha: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Chart and value, and the derivative of the value in the scores; if `full`, in those of each instance and step."""
    shape = whole.shape_of(unary, transition, alpha)
    if shape is None:
        return None
    each = shape.full() if full else shape
    if not whole.fused(each):
        return None
    v, chart = chain_inside.cuda(unary, transition, lengths, alpha)
    return (chart, v), whole.outside(each, transition, lengths, chart, None, v)


def mean_slope(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    v: Tensor,
    d_unary: Tensor | None,
    d_transition: Tensor | None,
    alpha: float,
) -> tuple[Tensor, Tensor] | None:
    """The derivative of `mean` along tangents, summed over what the scores share."""
    shape = whole.shape_of(unary, transition, alpha)
    if shape is None or not whole.fused(shape):
        return None
    return whole.change(shape, transition, lengths, chart, v, d_unary, d_transition)
