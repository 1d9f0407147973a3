"""The smoothed maximum of a linear layer over words as a differentiable function: `kernels.linear_loss` and torch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function, functional
from polymax.kernels.linear_loss import (
    linear_loss,
    linear_loss_backward,
    linear_loss_scale,
    linear_loss_slopes,
)
from polymax.kernels.linear_loss.reference import first_moment, logits, shift, spread_mean
from polymax.regularizers import AlphaDivergence, Regularizer, Tsallis


class WordHead(NamedTuple):
    """A linear layer and how its logits become scores: scale softcap tanh(logits / softcap)."""

    weight: Tensor
    bias: Tensor | None
    alpha: float | Tensor
    softcap: float
    scale: float = 1.0
    # weights of words, (words,) or (n, words), that losses are relative to
    reference: Tensor | None = None

    @property
    def learned(self) -> Tensor | None:
        return self.alpha.reshape(()) if isinstance(self.alpha, Tensor) else None

    @property
    def number(self) -> float:
        # a number of 0 is no alpha: the tensor of alphas counts
        return 0.0 if isinstance(self.alpha, Tensor) else float(self.alpha)

    @property
    def regularizer(self) -> Regularizer:
        return Tsallis(self.alpha) if self.reference is None else AlphaDivergence(self.reference, self.alpha)


class Row(NamedTuple):
    """Parts of the losses of rows; `kernels.linear_loss` explains them."""

    value: Tensor
    chosen: Tensor
    mean: Tensor
    moment: Tensor
    top: Tensor


def smoothed_max(hidden: Tensor, head: WordHead, named: Tensor | None, spread: Tensor | None) -> Row:
    """The smoothed maximum of each row's scores, the scores of named words, their mean by `spread`, and the largest
    score.

    The largest score of the row is subtracted from all others, as a constant, which changes no loss.
    """
    if functional():
        # torch.func looks at every operation: the logits are there as a whole
        return dense(hidden, head, named, spread)
    found = apply_function(
        LinearLoss, hidden, head.weight, head.bias, head.learned, named, spread, head.number, head.softcap, head.scale
    )
    return Row(*found[:5])


def total_loss(
    hidden: Tensor, head: WordHead, named: Tensor | None, spread: Tensor | None, slopes: list[Tensor]
) -> Tensor:
    """The sum over rows of slopes[0] value + <slopes[1], chosen> + slopes[2] mean, with its gradients computed at once.

    Scores of rows with many words are computed once in this way; alpha must be a number.
    """
    of_words = head.weight.requires_grad or (head.bias is not None and head.bias.requires_grad)
    # the gradients to compute, as one number
    wanted = hidden.requires_grad + 2 * of_words
    return apply_function(
        LinearTotal, hidden, head.weight, head.bias, *slopes, named, spread, head.number, head.softcap, head.scale,
        wanted,
    )[0]  # fmt: skip


def dense(hidden: Tensor, head: WordHead, named: Tensor | None, spread: Tensor | None) -> Row:
    """The parts from the matrix of all scores, in operations that torch can differentiate."""
    counted = torch.ones_like(hidden[..., 0], dtype=torch.bool) if named is None else (named >= 0).any(-1)
    # rows that do not count may hold anything, and have no gradient
    hidden = torch.where(counted.unsqueeze(-1), hidden, 0)
    x = torch.where(counted.unsqueeze(-1), logits(hidden, head.weight, head.bias, head.softcap, head.scale), 0)
    top = shift(x.detach())
    z = x - top.unsqueeze(-1)
    value = torch.where(counted, head.regularizer.max(z), 0)
    chosen = z[..., :0] if named is None else torch.where(named < 0, 0, z.gather(-1, named.clamp(min=0)))
    mean = moment = torch.zeros_like(value)
    if spread is not None:
        mean = torch.where(counted, spread_mean(z, spread), 0)
    if head.number == 1:
        moment = torch.where(counted, first_moment(z, torch.softmax(z, -1)), 0)
    return Row(value, chosen, mean, moment, top)


class LinearLoss(Function):
    """The operator and its gradient; second derivatives go through the matrix of all logits."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        alphas: Tensor | None,
        named: Tensor | None,
        spread: Tensor | None,
        alpha: float,
        softcap: float,
        scale: float,
    ) -> tuple[Tensor, ...]:
        return linear_loss(hidden, weight, bias, named, spread, alpha, alphas, softcap, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.head = inputs[6:]
        ctx.mark_non_differentiable(*output[4:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:6], output[1], output[3], *output[4:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, alphas, named, spread, chosen, moment, top, tau, slope, *lists = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        zeros = torch.zeros_like(top), torch.zeros_like(chosen), torch.zeros_like(top)
        given = [z if g is None else g for z, g in zip(zeros, grads)]
        if torch.is_grad_enabled():
            alpha, softcap, scale = ctx.head
            head = WordHead(weight, bias, alpha if alphas is None else alphas, softcap, scale)
            outputs = (*given, torch.zeros_like(top) if grads[3] is None else grads[3])
            return (*recorded(hidden, head, named, spread, outputs, wanted[:4]), *(None,) * 5)
        alpha, softcap, scale = ctx.head
        dh, dw, db = linear_loss_backward(
            *given, grads[3], hidden, weight, bias, named, spread, alpha, alphas, softcap, scale, chosen, moment, top,
            tau, *lists, wanted[0], wanted[1] or wanted[2],
        )  # fmt: skip
        return (
            dh if wanted[0] else None,
            dw if wanted[1] else None,
            db.to(bias.dtype) if bias is not None and wanted[2] else None,
            (given[0] * slope).sum().to(alphas.dtype) if alphas is not None and wanted[3] else None,
            *(None,) * 5,
        )


class LinearTotal(Function):
    """A weighted sum of all parts, with gradients that are computed with its value.

    The first backward pass takes these gradients, and frees them; another one computes them again.
    """

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        of_value: Tensor,
        of_chosen: Tensor,
        of_mean: Tensor,
        named: Tensor | None,
        spread: Tensor | None,
        alpha: float,
        softcap: float,
        scale: float,
        wanted: int,
    ) -> tuple[Tensor, ...]:
        value, chosen, mean, *found = linear_loss_slopes(
            of_value, of_chosen, of_mean, hidden, weight, bias, named, spread, alpha, None, softcap, scale,
            bool(wanted & 1), bool(wanted & 2),
        )  # fmt: skip
        rows = of_value * value + (of_chosen * chosen).sum(-1)
        return (rows if spread is None else rows + of_mean * mean).sum(), value, chosen, mean, *found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.head = inputs[8:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.compiled = torch.compiler.is_compiling()
        # tensors of a compiled graph belong to it
        ctx.save_for_backward(*inputs[:8], *output[1:4], *(output[4:] if ctx.compiled else ()))
        ctx.found = None if ctx.compiled else list(output[4:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 12
        hidden, weight, bias, of_value, of_chosen, of_mean, named, spread, *parts = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        alpha, softcap, scale, wanted_first = ctx.head
        slopes = [grad * part if wants else None for part, wants in zip(parts[:3], wanted[3:6])]
        if torch.is_grad_enabled():
            head = WordHead(weight, bias, alpha, softcap, scale)
            given = [grad * t for t in (of_value, of_chosen, of_mean)]
            outputs = (*given, torch.zeros_like(of_value))
            row = dense(hidden, head, named, spread)
            slopes = [grad * t if wants else None for t, wants in zip(row, wanted[3:6])]
            found = recorded(hidden, head, named, spread, outputs, (*wanted[:3], False))
            return (*found[:3], *slopes, *(None,) * 6)
        if ctx.compiled:
            dh, dw, db = (grad.to(t.dtype) * t for t in parts[3:])
        else:
            found, ctx.found = ctx.found, None
            if found is None:
                found = linear_loss_slopes(
                    of_value, of_chosen, of_mean, hidden, weight, bias, named, spread, alpha, None, softcap, scale,
                    bool(wanted_first & 1), bool(wanted_first & 2),
                )[3:]  # fmt: skip
            for t in found:
                linear_loss_scale(t, grad)
            dh, dw, db = found
        return (
            dh if wanted[0] else None,
            dw if wanted[1] else None,
            db.to(bias.dtype) if bias is not None and wanted[2] else None,
            *slopes,
            *(None,) * 6,
        )


def recorded(
    hidden: Tensor,
    head: WordHead,
    named: Tensor | None,
    spread: Tensor | None,
    grads: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradients of hidden, weight, bias and alpha, computed in torch so that autograd can differentiate them
    again.
    """
    inputs = hidden, head.weight, head.bias, head.alpha if isinstance(head.alpha, Tensor) else None
    chosen = [t for t, wants in zip(inputs, wanted) if wants and t is not None]
    row = dense(hidden, head, named, spread)
    # parts that are constants have no gradient
    outputs = [(part, g) for part, g in zip(row[:4], grads) if part.requires_grad]
    # gradients that depend on the inputs, as those of a squared loss, are constants here
    slopes = iter(
        torch.autograd.grad([part for part, _ in outputs], chosen, [g for _, g in outputs], create_graph=True)
    )
    return [next(slopes) if wants and t is not None else None for t, wants in zip(inputs, wanted)]
