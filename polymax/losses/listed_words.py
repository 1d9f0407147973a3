"""The words with weight in each row of a linear layer, as lists whose probabilities are differentiable."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function
from polymax.kernels.linear_loss import linear_loss, linear_loss_backward
from polymax.kernels.linear_loss.reference import logits
from polymax.regularizers import Tsallis

# logits of rows that are computed in whole at once
ENTRIES = 2**22


class ListedRows(NamedTuple):
    """The words of each row and their probabilities, in no order; -1 and 0 behind the last word.

    `value` is NaN for rows whose logits have a NaN. Shapes: ids and probs (n, k); value (n,)
    """

    ids: Tensor
    probs: Tensor
    value: Tensor


def listed_rows(hidden: Tensor, weight: Tensor, bias: Tensor | None, alpha: float, softcap: float) -> ListedRows:
    """The words with weight in each row (n, d) of hidden, with a first derivative; dense rows are computed in whole."""
    found = apply_function(ListedWords, hidden, weight, bias, alpha, softcap)
    probs, ids, count, value, extent = found[:5]
    longest = max(int(extent[1]), 1)
    ids, probs = ids[:, :longest].long(), probs[:, :longest]
    at = (count < 0).nonzero().squeeze(1)
    if len(at):
        ids, probs = _with_whole_rows(ids, probs, at, hidden, weight, bias, alpha, softcap)
    return ListedRows(ids, probs, value)


class ListedWords(Function):
    """The lists of `kernels.linear_loss`; the gradient of a list's probabilities lies on the list."""

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, alpha: float, softcap: float
    ) -> tuple[Tensor, ...]:
        found = linear_loss(hidden, weight, bias, None, None, alpha, None, softcap, 1.0)
        value, _, _, _, top, tau, _, ids, probs, count, extent = found
        inside = torch.arange(probs.shape[1], device=probs.device) < count.unsqueeze(1)
        probs = torch.where(inside, probs, 0)
        return probs, torch.where(probs > 0, ids, -1), count, value, extent, top, tau

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.head = inputs[3:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:3], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, probs, ids, count, _, extent, top, tau = ctx.saved_tensors
        alpha, softcap = ctx.head
        if grad is None:
            return None, None, None, None, None
        wanted = ctx.needs_input_grad
        inside = probs > 0
        s = torch.where(inside, torch.where(inside, probs, 1) ** (2 - alpha), 0)
        g = torch.where(inside, grad, 0)
        mean = (s * g).sum(1, keepdim=True) / s.sum(1, keepdim=True).clamp(min=torch.finfo(s.dtype).tiny)
        if torch.is_grad_enabled():
            return *_recorded((hidden, weight, bias), ids, s * (g - mean), softcap, wanted[:3]), None, None
        # scores less the largest one, from their weights
        x = (probs ** (alpha - 1) + tau.unsqueeze(1)) / (alpha - 1) if alpha != 1 else probs
        nothing, none = torch.zeros_like(top), probs[:, :0]
        dh, dw, db = linear_loss_backward(
            nothing, s * (g - mean), nothing, None, hidden, weight, bias, ids.long(), None, alpha, None, softcap, 1.0,
            x, nothing, top, tau, ids[:, :0], none, torch.zeros_like(count), torch.zeros_like(extent), wanted[0],
            wanted[1] or wanted[2],
        )  # fmt: skip
        of_bias = db.to(bias.dtype) if bias is not None and wanted[2] else None
        return dh if wanted[0] else None, dw if wanted[1] else None, of_bias, None, None


def _recorded(
    given: tuple[Tensor, Tensor, Tensor | None],
    ids: Tensor,
    slopes: Tensor,
    softcap: float,
    wanted: tuple[bool, ...],
) -> list[Tensor | None]:
    """The derivative of listed scores, times slopes (n, k), in hidden, weight and bias, recorded by autograd."""
    # slopes past the end of a list are 0
    at = ids.long().clamp(min=0)
    with torch.enable_grad():
        hidden, weight, bias = given
        x = (hidden.to(slopes.dtype).unsqueeze(1) @ weight[at].to(slopes.dtype).mT).squeeze(1)
        if bias is not None:
            x = x + bias[at].to(slopes.dtype)
        if softcap:
            x = softcap * torch.tanh(x / softcap)
        leaves = [t for t, w in zip(given, wanted, strict=True) if w and t is not None]
        found = iter(torch.autograd.grad(x, leaves, slopes, create_graph=True))
    return [next(found) if w and t is not None else None for t, w in zip(given, wanted, strict=True)]


def _with_whole_rows(
    ids: Tensor,
    probs: Tensor,
    at: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Lists in which rows `at` have words from all of their logits."""
    for rows in at.split(max(ENTRIES // len(weight), 1)):
        p = Tsallis(alpha).argmax(logits(hidden[rows], weight, bias, softcap))
        longest = int((p > 0).sum(-1).amax())
        missing = (0, max(longest - ids.shape[1], 0))
        ids, probs = torch.nn.functional.pad(ids, missing, value=-1), torch.nn.functional.pad(probs, missing)
        sizes = (p > 0).sum(-1, keepdim=True)
        # positive weights first, in the order of words
        order = torch.sort((p > 0).to(torch.uint8), dim=-1, descending=True, stable=True).indices[:, :longest]
        inside = torch.arange(longest, device=p.device) < sizes
        padded = (0, ids.shape[1] - longest)
        of_rows = torch.nn.functional.pad(torch.where(inside, p.gather(1, order), 0), padded)
        ids = ids.index_copy(0, rows, torch.nn.functional.pad(torch.where(inside, order, -1), padded, value=-1))
        probs = probs.index_copy(0, rows, of_rows.to(probs.dtype))
    return ids, probs
