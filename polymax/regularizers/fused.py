"""Structured sparsity: neighbours (Fused) or any entries (Oscar) that share one weight."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.dispatch import bare
from polymax.backend.function import apply_function
from polymax.backend.widen import constant, wide
from polymax.kernels.oscarmax import oscarmax
from polymax.kernels.segment_mean import segment_mean
from polymax.kernels.threshold import TSALLIS, threshold
from polymax.kernels.tv_prox import tv_prox
from polymax.regularizers.base import Regularizer
from polymax.regularizers.entropies import Gini, positive
from polymax.regularizers.fused_weights import step, weights

# the alpha of Tsallis entropies that is sparsemax
SPARSEMAX = 2.0


@dataclass(frozen=True)
class Fused(Regularizer):
    """Gini plus total variation: contiguous segments get one weight, bit-equal. The mapping is fusedmax.

        Omega(p) = (sum p^2 - 1) / 2 + strength sum |p_{i+1} - p_i|

    Masked entries are deleted: their neighbours become adjacent.

    Example:
        >>> Fused(strength=0.2).argmax(torch.tensor([1.0, 1.1, 0.0, -1.0]))
        tensor([0.5000, 0.5000, 0.0000, 0.0000])

    See: Niculae and Blondel 2017, Proposition 2: sparsemax of the total-variation prox.
    """

    strength: float | Tensor = 0.1
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _check.number(self.strength, "strength", "at least 0", lambda s: s >= 0)
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        if bare(x) and type(self.strength) is float and x.dtype.itemsize >= 4:
            strength = constant.kept(self.strength, x.dim() - 1, x.dtype, x.device)
            return threshold.cpu(tv_prox.cpu(x, strength, True), SPARSEMAX, TSALLIS)
        if x.is_cuda:
            return weights(x, _per_row(self.strength, x), ordered=False)
        y = apply_function(Fusedmax, wide(x), _per_row(self.strength, x))[0]
        return y if y.dtype == x.dtype else y.to(x.dtype)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        variation = step(p, keep).abs().sum(-1)
        return Gini().omega_rows(p) + _per_row(self.strength, p) * variation


@dataclass(frozen=True)
class Oscar(Regularizer):
    """Gini plus pairwise maxima: entries anywhere in the row share one weight, bit-equal. The mapping is oscarmax.

        Omega(p) = (sum p^2 - 1) / 2 + strength sum_{i<j} max(p_i, p_j)

    Example:
        >>> Oscar(strength=0.1).argmax(torch.tensor([1.0, -1.0, 1.05]))
        tensor([0.5000, 0.0000, 0.5000])

    See: Niculae and Blondel 2017, Proposition 3; Zeng and Figueiredo 2014 for the prox.
    """

    strength: float | Tensor = 0.01
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _check.number(self.strength, "strength", "at least 0", lambda s: s >= 0)
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        if bare(x) and type(self.strength) is float and x.dtype.itemsize >= 4:
            strength = constant.kept(self.strength, x.dim() - 1, x.dtype, x.device)
            return oscarmax.cpu(x, strength)[0]
        return weights(x, _per_row(self.strength, x), ordered=True)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        present = torch.full(p.shape[:-1], p.shape[-1], device=p.device) if keep is None else keep.sum(-1)
        # in decreasing order, the i-th entry is the larger one of m - i pairs; absent entries are 0 and come last
        ordered = p.sort(-1, descending=True).values
        pairs = (present.unsqueeze(-1) - 1 - torch.arange(p.shape[-1], device=p.device)).clamp(min=0)
        return Gini().omega_rows(p) + _per_row(self.strength, p) * (ordered * pairs).sum(-1)


class Fusedmax(Function):
    """y = sparsemax(z) of z = argmin |z - x|^2 / 2 + strength sum |z_{i+1} - z_i|; piecewise linear.

    One function: in a decoder, which calls it for every word, each node of the graph costs more than its kernels.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
        z = tv_prox(x, strength, True)
        return threshold(z, SPARSEMAX, TSALLIS), z

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None]:
        if v is None:
            return None, None
        y, z = ctx.saved_tensors
        dx = _projected(z, v, None, y)
        dstrength = None
        if ctx.needs_input_grad[1]:
            # x - z = strength D^T sign(D z), so strength moves x by -D^T sign(D z)
            keep = z > -torch.inf
            dstrength = -(step(dx, keep) * torch.sign(step(z.detach(), keep))).sum(-1)
        return dx, dstrength


class SegmentMean(Function):
    """v averaged over runs of equal z, in an order, and centred on the support of weights y where they are given.

    A symmetric projection, constant in z and y almost everywhere.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, v: Tensor, order: Tensor | None, y: Tensor | None) -> Tensor:
        return segment_mean(z, v, order, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        z, _, order, y = inputs
        ctx.save_for_backward(z, order, y)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[None, Tensor, None, None]:
        z, order, y = ctx.saved_tensors
        return None, _projected(z, u, order, y), None, None


def _projected(z: Tensor, v: Tensor, order: Tensor | None, y: Tensor | None) -> Tensor:
    return apply_function(SegmentMean, z, v, order, y)


def _per_row(strength: float | Tensor, x: Tensor) -> Tensor:
    if not isinstance(strength, Tensor):
        return constant(float(strength), x.dim() - 1, wide(x).dtype, x.device)
    return strength.to(wide(x).dtype).expand(*x.shape[:-1], 1).squeeze(-1)
