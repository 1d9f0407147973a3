"""Losses over a vocabulary relative to a reference: `kernels.relative_loss` with derivatives, and Omega of targets."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import apply_function, functional
from polymax.kernels.relative_loss import relative_loss, relative_loss_backward
from polymax.losses.linear_operator import Row, WordHead, dense, recorded
from polymax.regularizers import Tsallis
from polymax.regularizers.divergences import relative_terms


class WordPenalty(NamedTuple):
    """Omega of targets: the Tsallis entropy of alpha, or the divergence from a reference (words,) or (n, words)."""

    alpha: float | Tensor
    reference: Tensor | None = None

    def of_lists(self, ids: Tensor, q: Tensor) -> Tensor:
        """The penalty of listed probabilities q (n, k), as if other words had none, (n,)."""
        return Tsallis(self.alpha).omega(q) if self.reference is None else self._at(ids, q).sum(-1)

    def of_rest(self, ids: Tensor, rest: float, words: int, like: Tensor) -> Tensor:
        """The penalty of the probability `rest` of each word that is not listed, (n,)."""
        if self.reference is None:
            one = like.new_zeros(2)
            each = Tsallis(self.alpha).omega(one + one.new_tensor([rest, 0.0])) - Tsallis(self.alpha).omega(one)
            return (words - (ids >= 0).sum(1)) * each
        reference = self.reference.to(like.dtype)
        whole = relative_terms(torch.full_like(reference, rest), reference, self.alpha).sum(-1)
        listed = torch.where(ids < 0, 0, torch.full_like(ids, 1, dtype=like.dtype) * rest)
        return whole - self._at(ids, listed).sum(-1)

    def of_rows(self, q: Tensor) -> Tensor:
        """The penalty of probabilities (n, words), (n,)."""
        if self.reference is None:
            return Tsallis(self.alpha).omega(q)
        return relative_terms(q, self.reference.to(q.dtype).expand(q.shape), self.alpha).sum(-1)

    def of_words(self, y: Tensor, spread: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor | float]:
        """The penalties of words y (n,), and their means over all words by `spread`, relative to a reference."""
        assert self.reference is not None
        ones = torch.ones_like(like)
        of_y = self._at(y.unsqueeze(1), ones.unsqueeze(1)).squeeze(1)
        if spread is None:
            return of_y, 0.0
        reference = self.reference.to(like.dtype)
        each = relative_terms(torch.ones_like(reference), reference, self.alpha)
        return of_y, torch.where(spread == 0, 0, spread * each).sum(-1)

    def _at(self, ids: Tensor, q: Tensor) -> Tensor:
        assert self.reference is not None
        places = ids.clamp(min=0)
        reference = self.reference.to(q.dtype)
        found = reference[places] if reference.dim() == 1 else reference.gather(1, places)
        return relative_terms(q, torch.where(ids < 0, 1, found), self.alpha)


def checked_reference(reference: Tensor, batch: tuple[int, ...], words: int, alpha: float | Tensor) -> Tensor:
    """Return the reference, (words,) or with flat rows; raise if it cannot be the reference of this loss."""
    if not isinstance(reference, Tensor):
        raise TypeError(f"reference must be a tensor of weights of words; got {type(reference).__name__}")
    _check.number(reference, "reference", "at least 0 and finite", lambda q: (q >= 0) & (q < math.inf))
    if tuple(reference.shape) not in ((words,), (*batch, words)):
        raise ValueError(f"reference must be ({words},) or {(*batch, words)}; got {tuple(reference.shape)}")
    if reference.requires_grad:
        raise ValueError("reference must not require a gradient: detach() it")
    if isinstance(alpha, Tensor):
        raise TypeError("alpha must be a number beside a reference; got a tensor: give float(alpha)")
    return reference if reference.dim() == 1 else reference.reshape(-1, words)


def relative_max(hidden: Tensor, head: WordHead, named: Tensor | None, spread: Tensor | None) -> Row:
    """`smoothed_max` of a head with a reference."""
    if functional():
        return dense(hidden, head, named, spread)
    value, chosen, mean, top, _ = apply_function(
        RelativeLoss,
        hidden,
        head.weight,
        head.bias,
        head.reference,
        named,
        spread,
        head.number,
        head.softcap,
        head.scale,
    )
    return Row(value, chosen, mean, torch.zeros_like(mean), top)


class RelativeLoss(Function):
    """The operator and its gradient; second derivatives go through the matrix of all logits."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        reference: Tensor,
        named: Tensor | None,
        spread: Tensor | None,
        alpha: float,
        softcap: float,
        scale: float,
    ) -> tuple[Tensor, ...]:
        return relative_loss(hidden, weight, bias, reference, named, spread, alpha, softcap, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.head = inputs[6:]
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:6], output[1], *output[3:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, reference, named, spread, chosen, top, root = ctx.saved_tensors
        zeros = torch.zeros_like(top), torch.zeros_like(chosen), torch.zeros_like(top)
        given = [z if g is None else g for z, g in zip(zeros, grads)]
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():
            alpha, softcap, scale = ctx.head
            head = WordHead(weight, bias, alpha, softcap, scale, reference)
            found = recorded(hidden, head, named, spread, (*given, zeros[0]), (*wanted[:3], False))
            return (*found[:3], *(None,) * 6)
        dh, dw, db = relative_loss_backward(
            *given, hidden, weight, bias, reference, named, spread, *ctx.head, top, root
        )
        return (
            dh if wanted[0] else None,
            dw if wanted[1] else None,
            db.to(bias.dtype) if bias is not None and wanted[2] else None,
            *(None,) * 6,
        )
