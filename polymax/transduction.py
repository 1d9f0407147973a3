"""Losses of transducers: minus the log of the sum of the probabilities of all alignments of frames and tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import apply_function
from polymax.backend.widen import wide
from polymax.kernels.additive_classes import additive_classes, additive_classes_backward
from polymax.kernels.two_classes import two_classes, two_classes_backward
from polymax.smoothing import Marginals
from polymax.structures import Transducer
from polymax.structures.base import checked_lengths

Lengths = Tensor | Sequence[int]


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = -1,
    clamp: float = -1,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
) -> Tensor:
    """RNN-T: minus the log-probability of targets over all alignments, with the arguments of torchaudio's rnnt_loss.

    Without `fused_log_softmax`, logits are log-probabilities. A positive `clamp` bounds the entries of the gradient in
    the logits. "mean" is the mean over the batch. Packed logits have the rows (t, u) of all instances one after the
    other, without padding. Twice differentiable; `pm.Transducer` is the set of alignments.

    Shapes:
        logits (N, T, U + 1, V), or packed (sum over instances of T (U + 1), V); targets (N, U), or, with packed logits,
        also one after the other; lengths (N,)

    Example:
        >>> rnnt_loss(torch.zeros(1, 2, 2, 2), torch.tensor([[0]]), [2], [1])  # 2 alignments of 3 steps
        tensor(1.3863)
        >>> rnnt_loss(torch.zeros(4, 2), torch.tensor([0]), [2], [1])
        tensor(1.3863)

    See: Graves 2012, Sequence transduction with recurrent neural networks.
    """
    _check.reduction(reduction)
    _check.floating(logits, "logits")
    if logits.dim() == 2:
        sizes = _packed_sizes(logits, targets, logit_lengths, target_lengths, blank)
    elif logits.dim() == 4 and logits.shape[2]:
        sizes = padded_sizes(
            logits.shape[-1], targets, logit_lengths, target_lengths, blank, logits, tuple(logits.shape[:3])
        )
    else:
        raise ValueError(f"logits must be (N, T, U + 1, V), or packed (rows, V); got {tuple(logits.shape)}")
    x = clamped(logits, clamp)
    if logits.dim() == 2:
        ends, labels = _unpacked(x, sizes, fused_log_softmax)
    else:
        # the class after the last token is not used, and may be any
        at = sizes.ahead[:, None, :].expand(x.shape[:3])
        ends, labels = chosen(x, at, sizes.blank, fused_log_softmax)
        labels = labels[:, :, :-1]
    return reduced(ends, labels, sizes, reduction, logits.dtype)


def additive_rnnt_loss(
    encoder: Tensor,
    predictor: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = -1,
    reduction: str = "mean",
) -> Tensor:
    """`rnnt_loss` of logits that are sums of two terms; the sums are never formed.

        logits[t, u, v] = encoder[t, v] + predictor[u, v]
        log sum over v of exp(logits[t, u, v]) = log of the product of exp(encoder) and exp(predictor)

    The result and its derivatives are those of `rnnt_loss`, the memory is that of (N, T, U + 1) and of both terms.

    Shapes: encoder (N, T, V); predictor (N, U + 1, V); targets (N, U); lengths (N,)

    Example:
        >>> additive_rnnt_loss(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), torch.tensor([[0]]), [2], [1])
        tensor(1.3863)

    See: Kuang et al. 2022, Pruned RNN-T for fast, memory-efficient ASR training, section 2.2.
    """
    _check.reduction(reduction)
    sizes = sizes_of_terms(encoder, predictor, None, targets, logit_lengths, target_lengths, blank, "V")
    terms = encoder, predictor, sizes.ahead, sizes.frames, sizes.counts + 1
    ends, labels, _ = apply_function(_AdditiveLogProbabilities, *terms, sizes.blank)
    return reduced(ends, labels[:, :, :-1], sizes, reduction, encoder.dtype)


class Sizes(NamedTuple):
    """Targets (N, U), 0 at padding; the same with a column of 0 at the end (N, U + 1); the numbers of frames and of
    tokens of each instance (N,); and the index of the blank.
    """

    targets: Tensor
    ahead: Tensor
    frames: Tensor
    counts: Tensor
    blank: int


def padded_sizes(
    classes: int,
    targets: Tensor,
    frames: Lengths,
    counts: Lengths,
    blank: int,
    like: Tensor,
    shape: tuple[int, ...],
) -> Sizes:
    """The checked targets, lengths and blank of padded logits."""
    batch, n, states = shape
    _check_integers(targets)
    if targets.shape != (batch, states - 1):
        raise ValueError(f"targets must be {(batch, states - 1)}, as the logits have it; got {tuple(targets.shape)}")
    n_of = _lengths(frames, batch, n, like.device, "logit_lengths")
    m_of = _lengths(counts, batch, states - 1, like.device, "target_lengths")
    return _checked(targets, n_of, m_of, classes, blank)


def sizes_of_terms(
    encoder: Tensor,
    predictor: Tensor,
    classes: int | None,
    targets: Tensor,
    frames: Lengths,
    counts: Lengths,
    blank: int,
    last: str,
) -> Sizes:
    """The checked targets, lengths and blank of logits that are made of a term for frames and a term for tokens.

    `last` names the last dimension of the terms in errors. If `classes` is None, that dimension has the classes.
    """
    for t, name in ((encoder, "encoder"), (predictor, "predictor")):
        _check.floating(t, name)
        if t.dim() != 3:
            expected = f"(N, {'T' if t is encoder else 'U + 1'}, {last})"
            raise ValueError(f"{name} must be {expected}; got {tuple(t.shape)}")
    fits = predictor.shape[0] == encoder.shape[0] and predictor.shape[2] == encoder.shape[2] and predictor.shape[1]
    if not fits or predictor.dtype != encoder.dtype or predictor.device != encoder.device:
        expected = f"({encoder.shape[0]}, U + 1, {encoder.shape[2]}) {encoder.dtype} on {encoder.device}"
        came = f"{tuple(predictor.shape)} {predictor.dtype} on {predictor.device}"
        raise ValueError(f"predictor must be {expected}, as the encoder; got {came}")
    shape = (*encoder.shape[:2], predictor.shape[1])
    count = encoder.shape[2] if classes is None else classes
    return padded_sizes(count, targets, frames, counts, blank, encoder, shape)


def _packed_sizes(logits: Tensor, targets: Tensor, frames: Lengths, counts: Lengths, blank: int) -> Sizes:
    """The checked targets, lengths and blank of packed logits."""
    _check_integers(targets)
    both = ((frames, "logit_lengths"), (counts, "target_lengths"))
    n_of, m_of = (_numbers(t, name).to(device=logits.device, dtype=torch.long) for t, name in both)
    if n_of.shape != m_of.shape or bool((torch.cat([n_of, m_of]) < 0).any()):
        raise ValueError(f"logit_lengths and target_lengths must be (N,) and not negative; got {n_of} and {m_of}")
    rows, tokens = int((n_of * (m_of + 1)).sum()), int(m_of.sum())
    if logits.shape[0] != rows:
        raise ValueError(f"packed logits must have {rows} rows, T (U + 1) of each instance; got {logits.shape[0]}")
    longest = int(m_of.max()) if len(m_of) else 0
    if targets.dim() == 1:
        if targets.shape[0] != tokens:
            raise ValueError(f"targets must be {tokens}, one after the other; got {targets.shape[0]}")
        targets = torch.nn.utils.rnn.pad_sequence(list(targets.split(m_of.tolist())) or [targets], batch_first=True)
    if targets.dim() != 2 or targets.shape[0] != len(m_of) or targets.shape[1] < longest:
        expected = f"({tokens},), or ({len(m_of)}, U) with U >= {longest}"
        raise ValueError(f"targets must be {expected}; got {tuple(targets.shape)}")
    return _checked(targets[:, :longest], n_of, m_of, logits.shape[1], blank)


def _checked(targets: Tensor, frames: Tensor, counts: Tensor, classes: int, blank: int) -> Sizes:
    blank = _check.integer(blank, "blank")
    if not -classes <= blank < classes:
        raise ValueError(f"blank must be one of {classes} classes; got {blank}")
    targets = targets.to(device=frames.device, dtype=torch.long)
    inside = torch.arange(targets.shape[1] + 1, device=frames.device) < counts[:, None]
    # pad by one: kernels may address the entry after the last target, but ignore its value
    ahead = torch.where(inside, torch.nn.functional.pad(targets, (0, 1)), 0)
    targets = ahead[:, :-1]
    if _check.readable(targets) and bool(((targets < 0) | (targets >= classes)).any()):
        raise ValueError(f"targets must be in [0, {classes}); got values in [{targets.min()}, {targets.max()}]")
    return Sizes(targets, ahead, frames, counts, blank % classes)


def _unpacked(x: Tensor, sizes: Sizes, normalize: bool) -> tuple[Tensor, Tensor]:
    """Scores of blanks (N, T, U + 1) and of emissions (N, T, U) from packed logits; 0 at padding."""
    batch, states = sizes.targets.shape[0], sizes.targets.shape[1] + 1
    n = int(sizes.frames.max()) if batch else 0
    t, u = torch.arange(n, device=x.device)[:, None], torch.arange(states, device=x.device)
    inside = (t < sizes.frames[:, None, None]) & (u <= sizes.counts[:, None, None])
    ends, labels = chosen(x, sizes.ahead[:, None].expand(inside.shape)[inside], sizes.blank, normalize)
    zeros = ends.new_zeros(inside.shape)
    ends, labels = zeros.masked_scatter(inside, ends), zeros.masked_scatter(inside, labels)
    return ends, labels[:, :, :-1]


def chosen(x: Tensor, at: Tensor, blank: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Logits (*any, V) of the blank, and of the classes `at` (*any), as log-probabilities if requested."""
    if normalize:
        return apply_function(_LogProbabilities, x, at, blank)[:2]
    return wide(x[..., blank]), wide(x.gather(-1, at.unsqueeze(-1)).squeeze(-1))


class _LogProbabilities(Function):
    """log softmax at the blank and at one more class of each row; its derivative is one tensor like the logits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, at: Tensor, blank: int) -> tuple[Tensor, Tensor, Tensor]:
        return two_classes(x, at, blank)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, ...]) -> None:
        x, at, ctx.blank = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(x, output[2], at)

    @staticmethod
    def backward(ctx: Any, g_end: Tensor, g_label: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        x, total, at = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return two_classes_backward(x, at, total, g_end, g_label, ctx.blank), None, None
        # if the derivative is differentiated again, p depends on x; entries of padding rows do not matter
        padding = (g_end == 0) & (g_label == 0) & ~(total < torch.inf)
        logits = torch.where(padding.unsqueeze(-1), 0, wide(x))
        return _log_probabilities_slope(logits, at, total, g_end, g_label, ctx.blank).to(x.dtype), None, None


def _log_probabilities_slope(
    logits: Tensor, at: Tensor, total: Tensor, g_end: Tensor, g_label: Tensor, blank: int
) -> Tensor:
    """The derivative in the logits (*any, V) of log-probabilities of the blank and of classes `at`, in torch."""
    p = torch.where(total.unsqueeze(-1) == -torch.inf, 0, logits).log_softmax(-1).exp()
    p = torch.where(logits == -torch.inf, 0, p)
    blanks = torch.full_like(at, blank).unsqueeze(-1)
    g = torch.zeros_like(logits).scatter_add(-1, blanks, g_end.unsqueeze(-1))
    g = g.scatter_add(-1, at.unsqueeze(-1), g_label.unsqueeze(-1))
    return g - (g_end + g_label).unsqueeze(-1) * p


class _AdditiveLogProbabilities(Function):
    """log softmax at the blank and at one more class of each sum of rows; its derivatives are like the rows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        e: Tensor, p: Tensor, at: Tensor, frames: Tensor, states: Tensor, blank: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return additive_classes(e, p, at, frames, states, blank)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.blank = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, output[2])

    @staticmethod
    def backward(ctx: Any, g_end: Tensor, g_label: Tensor, _: Tensor) -> tuple[Any, ...]:
        e, p, at, frames, states, total = ctx.saved_tensors
        if not torch.is_grad_enabled():
            given = e, p, at, frames, states, total, g_end, g_label
            return *additive_classes_backward(*given, ctx.blank), None, None, None, None
        # if the derivative is differentiated again, the sums are formed
        rows, columns = (torch.arange(x.shape[1], device=x.device) < n[:, None] for x, n in ((e, frames), (p, states)))
        inside = (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(-1)
        logits = torch.where(inside, wide(e).unsqueeze(2) + wide(p).unsqueeze(1), 0)
        index = at.unsqueeze(1).expand(total.shape)
        g = _log_probabilities_slope(logits, index, total, g_end, g_label, ctx.blank)
        g = torch.where(inside, g, 0)
        return g.sum(2).to(e.dtype), g.sum(1).to(p.dtype), None, None, None, None


def reduced(ends: Tensor, labels: Tensor, sizes: Sizes, reduction: str, dtype: torch.dtype) -> Tensor:
    losses = -Marginals(Transducer((sizes.frames, sizes.counts))).max(ends, labels).to(dtype)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _check_integers(targets: Tensor) -> None:
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        raise TypeError(f"targets must be a tensor of integers; got {_check.kind(targets)}")


def _lengths(lengths: Lengths, batch: int, size: int, device: torch.device, name: str) -> Tensor:
    return checked_lengths(_numbers(lengths, name), torch.Size([batch]), size, device, name)


def _numbers(lengths: Lengths, name: str) -> Tensor:
    """Lengths as a tensor of integers (N,)."""
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths, dtype=None if len(lengths) else torch.long)
    if lengths.is_floating_point():
        raise TypeError(f"{name} must be integers; got {lengths.dtype}")
    return lengths.reshape(-1)


def clamped(logits: Tensor, bound: float) -> Tensor:
    """The logits themselves; if the bound is positive, it bounds the entries of their gradient."""
    _check.number(bound, "clamp", "a number", _check.defined)
    return _Clamped.apply(logits, bound) if bound > 0 else logits


class _Clamped(Function):
    """The logits themselves; the entries of their gradient are clamped."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bound: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.bound = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.clamp(-ctx.bound, ctx.bound), None
