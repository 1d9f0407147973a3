"""Derivatives of chains on a GPU in the fewest launches and tensors, for calls that neither autograd nor torch.func
traces.

A small call costs the host more than the device: each torch operation takes longer than a walk along ten steps. So NaN
values, slopes of 1 and tangents of 0 are passed to the walks of cuda_whole.py as flags, without tensors.

Shapes: as in chain/__init__.py, and transitions (s, s) shared by all instances and steps. A function returns None if
the passes must handle the call: chains of many states, or scores that are shared in other ways.
"""

from torch import Tensor

from polymax.kernels.chain import chain_inside
from polymax.kernels.chain import cuda_whole as whole


def slope(
    unary: Tensor, transition: Tensor, lengths: Tensor, v: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor] | None:
    """Return the derivative of g v in the scores."""
    shape = whole.shape_of(unary, transition, alpha)
    if shape is None or not whole.fused(shape):
        return None
    return whole.outside(shape, transition, lengths, chart, g, v)


def mean(
    unary: Tensor, transition: Tensor, lengths: Tensor, full: object, alpha: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return (chart, value) and the derivative of the value in the scores; if `full`, for each instance and step."""
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
    """Return the derivative of `mean` along tangents, summed over what the scores share."""
    shape = whole.shape_of(unary, transition, alpha)
    if shape is None or not whole.fused(shape):
        return None
    return whole.change(shape, transition, lengths, chart, v, d_unary, d_transition)
