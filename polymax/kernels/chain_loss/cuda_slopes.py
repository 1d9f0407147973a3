"""The derivative of a chain's loss on a GPU in two launches, for calls that neither autograd nor torch.func traces."""

from torch import Tensor

from polymax.kernels.chain import cuda_whole as whole


def slope(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    tags: Tensor,
    v: Tensor,
    chart: Tensor,
    g: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor] | None:
    """Return the derivative of g v in the scores, NaN if v is NaN and 0 if v is infinite; None if the passes must
    handle the call.
    """
    shape = whole.shape_of(unary, transition, alpha)
    if shape is None or not whole.fused(shape):
        return None
    return whole.outside(shape, transition, lengths, chart, g, v, tags)
