"""The chain of the tokens of a batch whose positions may be left out, with scores of starting and ending."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.derived import derived
from polymax.backend.widen import wide
from polymax.kernels import tokens
from polymax.structures import Chain


class Scored(NamedTuple):
    """The scores of a chain with its tokens first, the chain, its lengths (B,), and the dtype of results.

    `order` (B, n) is the original position of each token; None if no token has moved.
    """

    unary: Tensor
    transition: Tensor
    chain: Chain
    lengths: Tensor
    dtype: torch.dtype
    order: Tensor | None

    @property
    def kept(self) -> Tensor:
        """True for the tokens, (B, n)."""
        return torch.arange(self.unary.shape[1], device=self.unary.device) < self.lengths[:, None]

    def aligned(self, t: Tensor) -> Tensor:
        """A tensor (B, n, ...) in the order of the tokens."""
        return t if self.order is None else t.gather(1, _wide_index(self.order, t))

    def restored(self, t: Tensor, empty: float) -> Tensor:
        """The tensor t (B, n, ...) with each token at its original position, and `empty` at positions left out."""
        if self.order is None:
            return t
        kept = self.kept.reshape(*t.shape[:2], *[1] * (t.dim() - 2))
        return torch.zeros_like(t).scatter(1, _wide_index(self.order, t), torch.where(kept, t, empty))


def tokens_first(emissions: Tensor, kept: Tensor, start: Tensor, transition: Tensor, end: Tensor) -> Scored:
    """The chain of the positions of emissions (B, n, s) that are kept, (B, n).

    Scores of starting and ending (s,) belong to the first and the last token.
    """
    if not _check.readable(kept) or bool((kept[:, 1:] & ~kept[:, :-1]).any()):
        order, lengths = tokens.token_order(kept)
    else:
        order, lengths = None, kept.sum(1)
    dtype = torch.promote_types(emissions.dtype, transition.dtype)
    x, first, last = (wide(t.to(dtype)) for t in (emissions, start, end))
    ends = (t.expand(x.shape[0], -1) for t in (first, last))
    unary = _first(x, *ends, order, lengths)
    return Scored(unary, wide(transition.to(dtype)), Chain(lengths), lengths, dtype, order)


class _First(Function):
    """Tokens first, with the scores of starting and ending: linear in all three."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, start: Tensor, end: Tensor, order: Tensor | None, lengths: Tensor) -> Tensor:
        return tokens.tokens_first(x, start, end, order, lengths)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.shapes = [t.shape for t in inputs[:3]]
        _keep(ctx, *inputs[3:])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return *_back(g, *_kept(ctx)), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        like = next(t for t in tangents[:3] if t is not None)
        pairs = zip(tangents[:3], ctx.shapes, strict=True)
        return _first(*(like.new_zeros(shape) if t is None else t for t, shape in pairs), *_kept(ctx))


class _Back(Function):
    """The transpose of `_First`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, order: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return tokens.tokens_back(g, order, lengths)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _keep(ctx, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        return _first(*g, *_kept(ctx)), None, None

    @staticmethod
    def jvp(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _back(g, *_kept(ctx))


_first, _back = derived(_First), derived(_Back)


def _keep(ctx: Any, order: Tensor | None, lengths: Tensor) -> None:
    ctx.save_for_backward(order, lengths)
    ctx.save_for_forward(order, lengths)


def _kept(ctx: Any) -> tuple[Tensor | None, Tensor]:
    return ctx.saved_tensors


def _wide_index(order: Tensor, t: Tensor) -> Tensor:
    """Positions (B, n) as an index of gather along the second dim of t (B, n, ...)."""
    return order.reshape(*order.shape, *[1] * (t.dim() - 2)).expand(*order.shape, *t.shape[2:])
