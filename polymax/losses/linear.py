"""Losses and log-probabilities of a linear layer over a large vocabulary, without all logits in memory."""

from typing import Literal, overload

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.function import autocasts, functional
from polymax.backend.widen import wide
from polymax.distributions.words import WordDistribution
from polymax.losses import sharded
from polymax.losses.linear_operator import WordHead, smoothed_max, total_loss
from polymax.losses.linear_reference import WordPenalty, checked_reference, relative_max
from polymax.losses.linear_targets import WeightedParts, Weighting, check_target, of_target
from polymax.losses.simplex import check_normalizer, with_penalty
from polymax.sharding.placements import any_sharded


@overload
def linear_entmax_loss(
    hidden: Tensor, weight: Tensor, target: Tensor | WordDistribution, bias: Tensor | None = None, *,
    alpha: float | Tensor = 1.5,
    class_weights: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    softcap: float | None = None, reference: Tensor | None = None, reduction: str = "mean", z_loss: float = 0.0,
    return_normalizer: Literal[False] = False, dtype: torch.dtype | None = None,
) -> Tensor: ...  # fmt: skip


@overload
def linear_entmax_loss(
    hidden: Tensor, weight: Tensor, target: Tensor | WordDistribution, bias: Tensor | None = None, *,
    alpha: float | Tensor = 1.5,
    class_weights: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    softcap: float | None = None, reference: Tensor | None = None, reduction: str = "mean", z_loss: float = 0.0,
    return_normalizer: Literal[True], dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor | WordDistribution,
    bias: Tensor | None = None,
    *,
    alpha: float | Tensor = 1.5,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    reference: Tensor | None = None,
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

    `reference` has a positive weight for each word, a prior: the loss is then that of `AlphaDivergence`, whose
    divergence from the reference takes the place of the entropy, and a word with weight 0 is left out. At alpha = 1 the
    logarithm of the reference is added to logits, after a softcap. For other alphas all logits of a row are computed,
    2^22 numbers at a time, with thresholds in float64.

    The target is a word for each row, or a distribution q of words: a `WordDistribution`, which lists a few words of
    each row, or the probabilities of all words. With a distribution the loss is max(x) + Omega(q) - <x, q>, which is 0
    at q; a row whose list is empty (ids of -1) is left out.

    Shapes: hidden (*batch, d); weight (words, d); bias and class_weights (words,); target (*batch,), a list for each
    row, or (*batch, words); reference (words,) or (*batch, words); normalizer (*batch,)

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 0.0]])
        >>> linear_entmax_loss(hidden, weight, torch.tensor([1]))
        tensor(1.0617)
        >>> pm.entmax_loss(hidden @ weight.T, torch.tensor([1]))
        tensor(1.0617)

    See: Peters, Niculae and Martins 2019, Sparse sequence-to-sequence models, Section 3.2.
    """
    check_head(hidden, weight, bias, alpha)
    given = (target.ids, target.probs) if isinstance(target, WordDistribution) else (target,)
    among = any_sharded((hidden, weight, *given, bias, class_weights, alpha, reference))
    check_normalizer(alpha, z_loss, return_normalizer, among)
    if among:
        if reference is not None:
            raise TypeError("reference must be None if a tensor of the call is a DTensor")
        if isinstance(target, WordDistribution) or target.is_floating_point():
            raise TypeError(
                "target must be class numbers (*batch,) if a tensor of the call is a DTensor; got a distribution"
            )
        found = sharded.of_words(
            hidden, weight, target, bias, alpha, class_weights, ignore_index, label_smoothing,
            checked_softcap(softcap), reduction,
        )  # fmt: skip
        return found.to(hidden.dtype if dtype is None else dtype)
    check_target(target, hidden, weight, ignore_index)
    _check.number(label_smoothing, "label_smoothing", "in [0, 1]", lambda e: (e >= 0) & (e <= 1))
    words = len(weight)
    if class_weights is not None and class_weights.shape != (words,):
        raise ValueError(f"class_weights must be ({words},), one for each word; got {tuple(class_weights.shape)}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {reduction!r}")
    rows, matrix = autocast(hidden, weight)
    real = wide(rows[..., :0]).dtype
    weighting = Weighting(class_weights, ignore_index, label_smoothing)
    cap = checked_softcap(softcap)
    if reference is not None:
        reference = checked_reference(reference, tuple(hidden.shape[:-1]), words, alpha)
        # class weights of a distribution would weight the logarithm, too
        alike = class_weights is None or (isinstance(target, Tensor) and not target.is_floating_point())
        if alpha == 1 and not cap and reference.dim() == 1 and alike:
            log = torch.log(reference.to(real))
            reference, bias = None, log if bias is None else bias.to(real) + log
    parts = of_target(target, words, WordPenalty(alpha, reference), weighting, real)
    head = WordHead(matrix, bias, alpha, cap, reference=reference)
    flat = rows.reshape(-1, rows.shape[-1])
    kept = hidden.dtype if dtype is None else dtype
    if reference is not None:
        # rows that are left out may hold any values, and have no gradient
        flat = torch.where(parts.counted.unsqueeze(-1), flat, 0)
    if _at_once(head, flat, reduction, bool(z_loss or return_normalizer)):
        return _total(flat, head, parts, reduction == "mean").to(kept)
    row = (smoothed_max if reference is None else relative_max)(flat, head, parts.named, parts.spread)
    losses = parts.of_value * row.value + (parts.of_chosen * row.chosen).sum(-1)
    for part in (None if parts.spread is None else parts.of_mean * row.mean, parts.constant):
        losses = losses if part is None else losses + part
    # a row of -inf that is left out must not leave a NaN
    losses = torch.where(parts.counted, losses, 0)
    batch = hidden.shape[:-1]
    if reduction == "mean":
        loss = losses.sum() / parts.size
    else:
        loss = losses.sum() if reduction == "sum" else losses.reshape(batch)
    if z_loss == 0 and not return_normalizer:
        return loss.to(kept)
    normalizer = torch.where(parts.counted, row.value + row.top, 0).reshape(batch)
    loss = with_penalty(loss, normalizer, parts.counted.reshape(batch), z_loss, reduction).to(kept)
    return (loss, normalizer) if return_normalizer else loss


def _at_once(head: WordHead, hidden: Tensor, reduction: str, by_rows: bool) -> bool:
    """True if the gradients of a loss are worth computing with its value: their factors are known up to a number."""
    if reduction == "none" or by_rows or functional() or not torch.is_grad_enabled() or head.reference is not None:
        return False
    derived = hidden.requires_grad or head.weight.requires_grad
    # float16 loses small gradients that the factor of a scaled loss would keep
    narrow = hidden.dtype == torch.float16
    return derived and not narrow and not isinstance(head.alpha, Tensor) and hidden.numel() > 0


def _total(hidden: Tensor, head: WordHead, parts: WeightedParts, mean: bool) -> Tensor:
    """The sum or the mean over rows, whose gradients are computed with it."""
    # no tensor may be given twice to a function that is compiled
    slopes = [parts.of_value, parts.of_chosen, parts.of_mean.detach()]
    constant = None if parts.constant is None else parts.constant.sum()
    if mean:
        slopes[:2] = (t / parts.size for t in slopes[:2])
        slopes[2] = slopes[2] if parts.spread is None else slopes[2] / parts.size
        constant = None if constant is None else constant / parts.size
    total = total_loss(hidden, head, parts.named, parts.spread, slopes)
    return total if constant is None else total + constant


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor | WordDistribution,
    bias: Tensor | None = None,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    reference: Tensor | None = None,
    reduction: str = "mean",
    z_loss: float = 0.0,
    return_normalizer: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """cross_entropy(linear(hidden, weight, bias), target), with logits in blocks that are not stored.

    It is `linear_entmax_loss` with alpha = 1. With a distribution q as target it is the Kullback-Leibler divergence
    from q to the softmax of the logits: cross_entropy less the entropy of q. `reference`, a prior over words, adds its
    logarithm to the logits.

    Shapes: hidden (*batch, d); weight (words, d); target (*batch,), a `WordDistribution` or (*batch, words)

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 0.0]])
        >>> linear_cross_entropy(hidden, weight, torch.tensor([1]))
        tensor(1.3266)
        >>> teacher = pm.WordDistribution(torch.tensor([[0, 1]]), torch.tensor([[0.75, 0.25]]), words=3)
        >>> linear_cross_entropy(hidden, weight, teacher)
        tensor(0.0142)

    See: Wijmans et al. 2024, Cut your losses in large-vocabulary language models.
    """
    return linear_entmax_loss(  # type: ignore[call-overload, misc]
        hidden,
        weight,
        target,
        bias,
        alpha=1.0,
        class_weights=class_weights,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        softcap=softcap,
        reference=reference,
        reduction=reduction,
        z_loss=z_loss,
        return_normalizer=return_normalizer,
        dtype=dtype,
    )


def linear_log_prob(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """log_softmax(linear(hidden, weight, bias) / temperature) at the words `ids`, with logits that are not stored.

    With `entropy=True` the result is a pair: the log-probabilities, and the entropy of each row in nats. Both are
    differentiable, twice, and have at least float32, as ratios of probabilities need. `softcap` is applied before the
    temperature.

    Shapes: hidden (*batch, d); weight (words, d); ids (*batch,) or (*batch, k); log-probabilities like ids; entropy
    (*batch,)

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 0.0]])
        >>> linear_log_prob(hidden, weight, torch.tensor([1]))
        tensor([-1.3266])
        >>> linear_log_prob(hidden, weight, torch.tensor([[0, 1]]), temperature=2.0, entropy=True)
        (tensor([[-0.5550, -1.0550]]), tensor([0.8845]))

    See: Wijmans et al. 2024, Cut your losses in large-vocabulary language models.
    """
    check_head(hidden, weight, bias, 1.0)
    if isinstance(temperature, Tensor):
        raise TypeError("temperature must be a number; got a tensor: give float(temperature), it gets no gradient")
    _check.number(temperature, "temperature", "positive and finite", lambda t: 0 < t < torch.inf)
    cap = checked_softcap(softcap)
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
        came = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"ids must be a tensor of words, which are integers; got {came}")
    batch = tuple(hidden.shape[:-1])
    if tuple(ids.shape) != batch and tuple(ids.shape[:-1]) != batch:
        raise ValueError(f"ids must be {batch}, or {batch} with one more dim; got {tuple(ids.shape)}")
    if any_sharded((hidden, weight, ids, bias)):
        return sharded.log_prob(hidden, weight, ids, bias, 1 / temperature, cap, entropy)
    if _check.readable(ids) and bool(((ids < 0) | (ids >= len(weight))).any()):
        wrong = ids[(ids < 0) | (ids >= len(weight))]
        raise ValueError(f"ids must be words in [0, {len(weight)}); got {int(wrong[0])}")
    rows, matrix = autocast(hidden, weight)
    named = ids.unsqueeze(-1) if tuple(ids.shape) == batch else ids
    named = named.reshape(-1, named.shape[-1]).long()
    head = WordHead(matrix, bias, 1.0, cap, 1 / temperature)
    row = smoothed_max(rows.reshape(-1, rows.shape[-1]), head, named, None)
    found = (row.chosen - row.value.unsqueeze(-1)).reshape(ids.shape)
    return (found, (row.value - row.moment).reshape(batch)) if entropy else found


def linear_sparsemax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor | WordDistribution,
    bias: Tensor | None = None,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    reference: Tensor | None = None,
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
        reference=reference,
        reduction=reduction,
        dtype=dtype,
    )


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
