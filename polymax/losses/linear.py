"""Losses of a linear layer over a large vocabulary, without all logits in memory."""

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import apply_function, autocasts, functional
from polymax.backend.widen import wide
from polymax.kernels.linear_loss import linear_loss, linear_loss_backward
from polymax.kernels.linear_loss.reference import capped_logits, logits, shift
from polymax.losses import sharded
from polymax.losses.simplex import check_normalizer, entmax_loss, normalizer_of, with_penalty
from polymax.regularizers import Tsallis
from polymax.sharding.placements import any_sharded


@overload
def linear_entmax_loss(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *, alpha: float | Tensor = 1.5,
    class_weights: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    softcap: float | None = None, reduction: str = "mean", z_loss: float = 0.0,
    return_normalizer: Literal[False] = False, dtype: torch.dtype | None = None,
) -> Tensor: ...  # fmt: skip


@overload
def linear_entmax_loss(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *, alpha: float | Tensor = 1.5,
    class_weights: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    softcap: float | None = None, reduction: str = "mean", z_loss: float = 0.0,
    return_normalizer: Literal[True], dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float | Tensor = 1.5,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
    z_loss: float = 0.0,
    return_normalizer: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """entmax_loss(linear(hidden, weight, bias), target), with logits in blocks that are not stored.

    Above alpha = 1 the gradient of most words is exactly 0, so that one product of matrices is enough: the candidates
    of each row are kept, by a bound that is proven, and forward and backward are finished on them. Rows with many words
    of positive weight, and alpha outside of (1, 2], are computed in blocks. `softcap` bounds logits by
    softcap tanh(logits / softcap); alpha may be a tensor of one number, and be learned. The loss has the dtype of
    hidden, as that of torch's linear_cross_entropy, or `dtype`: float32 keeps the digits of a mean over many rows in
    half precision. `z_loss` and `return_normalizer` are those of `entmax_loss`, for alpha = 1; the normalizer of a row
    is the logsumexp of its logits.

    Shapes: hidden (*batch, d); weight (words, d); bias and class_weights (words,); target and normalizer (*batch,)

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 0.0]])
        >>> linear_entmax_loss(hidden, weight, torch.tensor([1]))
        tensor(1.0617)
        >>> pm.entmax_loss(hidden @ weight.T, torch.tensor([1]))
        tensor(1.0617)

    See: Peters, Niculae and Martins 2019, Sparse sequence-to-sequence models, Section 3.2.
    """
    check_head(hidden, weight, bias, alpha)
    among = any_sharded((hidden, weight, target, bias, class_weights, alpha))
    check_normalizer(alpha, z_loss, return_normalizer, among)
    if among:
        found = sharded.of_words(
            hidden, weight, target, bias, alpha, class_weights, ignore_index, label_smoothing,
            checked_softcap(softcap), reduction,
        )  # fmt: skip
        return found.to(hidden.dtype if dtype is None else dtype)
    _check_target(target, hidden, weight, ignore_index)
    _check.number(label_smoothing, "label_smoothing", "in [0, 1]", lambda e: (e >= 0) & (e <= 1))
    cap = checked_softcap(softcap)
    words = len(weight)
    if class_weights is not None and class_weights.shape != (words,):
        raise ValueError(f"class_weights must be ({words},), one for each word; got {tuple(class_weights.shape)}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {reduction!r}")
    rows, matrix = autocast(hidden, weight)
    kept = hidden.dtype if dtype is None else dtype
    ignored = target == ignore_index
    if not _check.readable(target) or bool(ignored.any()):
        # rows that are left out may hold any values, and have no gradient
        rows = torch.where(ignored.unsqueeze(-1), 0, rows)
    if functional():
        # torch.func looks at every operation: the logits are there as a whole
        x = capped_logits(torch.nn.functional.linear(rows, matrix, None if bias is None else bias.to(rows.dtype)), cap)
        loss = entmax_loss(
            x, target, alpha, reduction, weight=class_weights, ignore_index=ignore_index,
            label_smoothing=label_smoothing, dtype=wide(rows[..., :0]).dtype if z_loss else kept,
        )  # fmt: skip
        if z_loss == 0 and not return_normalizer:
            return loss
        normalizer = normalizer_of(wide(x), ~ignored)
        loss = with_penalty(loss, normalizer, ~ignored, z_loss, reduction).to(kept)
        return (loss, normalizer) if return_normalizer else loss
    y = target.reshape(-1).long()
    valid = y != ignore_index
    real = wide(rows[..., :0]).dtype
    of_classes = None if class_weights is None else class_weights.detach().to(real)
    each = torch.ones_like(y, dtype=real) if of_classes is None else of_classes[torch.where(valid, y, 0)]
    each = torch.where(valid, each, 0)
    spread: Tensor | None = None
    mass: float | Tensor = 1.0
    if label_smoothing:
        spread = matrix.new_full((words,), 1.0, dtype=real) if of_classes is None else of_classes
        spread = spread / words
        mass = spread.sum()
    value, chosen, mean, top = smoothed_max(
        rows.reshape(-1, rows.shape[-1]), matrix, bias, torch.where(valid, y, -1), spread, alpha, cap
    )
    # a row of -inf that is left out must not leave a NaN
    loss = torch.where(valid, each * (value - chosen), 0)
    if label_smoothing:
        spread_loss = torch.where(valid, mass * value - mean, 0)
        loss = (1 - label_smoothing) * loss + label_smoothing * spread_loss
    if reduction == "mean":
        loss = loss.sum() / each.sum()
    else:
        loss = loss.sum() if reduction == "sum" else loss.reshape(target.shape)
    if z_loss == 0 and not return_normalizer:
        return loss.to(kept)
    normalizer = torch.where(valid, value + top, 0).reshape(target.shape)
    loss = with_penalty(loss, normalizer, ~ignored, z_loss, reduction).to(kept)
    return (loss, normalizer) if return_normalizer else loss


def linear_sparsemax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """sparsemax_loss(linear(hidden, weight, bias), target) as `linear_entmax_loss` computes it.

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 0.0]])
        >>> linear_sparsemax_loss(hidden, weight, torch.tensor([1]))
        tensor(1.)
    """
    return linear_entmax_loss(
        hidden,
        weight,
        target,
        bias,
        alpha=2.0,
        class_weights=class_weights,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        softcap=softcap,
        reduction=reduction,
        dtype=dtype,
    )


def smoothed_max(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    spread: Tensor | None,
    alpha: float | Tensor,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The smoothed maximum of each row's logits, the logit of its target, their sum by `spread`, and the largest logit.

    The largest logit of the row is subtracted from all others, as a constant, which changes no loss.
    """
    learned = alpha.reshape(()) if isinstance(alpha, Tensor) else None
    # a number of 0 is no alpha: the tensor of alphas counts
    number = 0.0 if isinstance(alpha, Tensor) else float(alpha)
    return apply_function(LinearLoss, hidden, weight, bias, learned, target, spread, number, softcap)[:4]


class LinearLoss(Function):
    """The operator and its gradient; second derivatives go through the matrix of all logits."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        alphas: Tensor | None,
        target: Tensor | None,
        spread: Tensor | None,
        alpha: float,
        softcap: float,
    ) -> tuple[Tensor, ...]:
        return linear_loss(hidden, weight, bias, target, spread, alpha, alphas, softcap)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        tensors, (ctx.alpha, ctx.softcap) = inputs[:6], inputs[6:]
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[1], *output[3:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, alphas, target, spread, chosen, top, tau, slope, *lists = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        given = [torch.zeros_like(top) if g is None else g for g in grads[:3]]
        if torch.is_grad_enabled():
            found = _recorded(given, (hidden, weight, bias, alphas), wanted, target, spread, ctx.alpha, ctx.softcap)
            return (*found, None, None, None, None)
        dh, dw, db = linear_loss_backward(
            *given, hidden, weight, bias, target, spread, ctx.alpha, alphas, ctx.softcap, chosen, top, tau, *lists,
            wanted[0], wanted[1] or wanted[2],
        )  # fmt: skip
        return (
            dh if wanted[0] else None,
            dw if wanted[1] else None,
            db.to(bias.dtype) if bias is not None and wanted[2] else None,
            (given[0] * slope).sum().to(alphas.dtype) if alphas is not None and wanted[3] else None,
            None,
            None,
            None,
            None,
        )


def _recorded(
    grads: list[Tensor],
    inputs: tuple[Tensor | None, ...],
    wanted: tuple[bool, ...],
    target: Tensor | None,
    spread: Tensor | None,
    alpha: float,
    softcap: float,
) -> list[Tensor | None]:
    """The gradients, computed in torch so that autograd can differentiate them again."""
    hidden, weight, bias, alphas = inputs
    assert hidden is not None
    assert weight is not None
    x = logits(hidden, weight, bias, softcap)
    x = x - shift(x.detach()).unsqueeze(-1)
    outputs = [Tsallis(alpha if alphas is None else alphas).max(x)]
    if target is not None:
        outputs.append(x.gather(1, target.clamp(min=0).unsqueeze(1)).squeeze(1))
    if spread is not None:
        outputs.append(x @ spread.to(x.dtype))
    given = [grads[0], *([] if target is None else [grads[1]]), *([] if spread is None else [grads[2]])]
    chosen = [t for t, wants in zip(inputs, wanted) if wants and t is not None]
    # gradients that depend on the inputs, as those of a squared loss, are constants here
    slopes = iter(torch.autograd.grad(outputs, chosen, given, create_graph=True))
    return [next(slopes) if wants and t is not None else None for t, wants in zip(inputs, wanted)]


def autocast(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden vectors and the weight in the dtype in which autocast hands them to torch's own linear."""
    if autocasts(hidden.device) and hidden.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(hidden.device.type)
        return hidden.to(dtype), weight.to(dtype)
    return hidden, weight


def checked_softcap(softcap: float | None) -> float:
    """The softcap as a number; 0 for None."""
    if softcap is None:
        return 0.0
    _check.number(softcap, "softcap", "positive and finite", lambda c: 0 < c < torch.inf)
    return float(softcap)


def check_head(hidden: Tensor, weight: Tensor, bias: Tensor | None, alpha: float | Tensor) -> None:
    _check.floating(hidden, "hidden")
    _check.floating(weight, "weight")
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden must be (*batch, d) and weight (words, d); got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if hidden.dtype != weight.dtype and not autocasts(hidden.device):
        raise TypeError(f"hidden and weight must have one dtype; got {hidden.dtype} and {weight.dtype}")
    if len(weight) == 0:
        raise ValueError("weight must have at least one word; got none")
    if bias is not None:
        _check.floating(bias, "bias")
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must be ({len(weight)},), one for each word; got {tuple(bias.shape)}")
    if isinstance(alpha, Tensor) and alpha.numel() != 1:
        raise ValueError(f"alpha must be a number or a tensor of one; got {tuple(alpha.shape)}")
    _check.number(alpha, "alpha", "positive and finite", lambda v: (v > 0) & (v < torch.inf))


def _check_target(target: Tensor, hidden: Tensor, weight: Tensor, ignore_index: int) -> None:
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor of words; got {type(target).__name__}")
    if target.is_floating_point():
        raise TypeError(
            "target must be words (*batch,): a distribution for each row would take as much memory as the logits; "
            "entmax_loss(linear(hidden, weight, bias), target) takes distributions"
        )
    if target.shape != hidden.shape[:-1]:
        raise ValueError(f"target must be {tuple(hidden.shape[:-1])}, a word for each row; got {tuple(target.shape)}")
    if _check.readable(target):
        wrong = ((target < 0) | (target >= len(weight))) & (target != ignore_index)
        if bool(wrong.any()):
            came = int(target[wrong][0])
            raise ValueError(f"target must hold words in [0, {len(weight)}) or ignore_index; got {came}")
