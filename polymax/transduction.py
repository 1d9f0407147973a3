"""Losses of transducers: minus the log of the probability that all alignments of frames and tokens have together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import apply_function, mapped_over, recording
from polymax.backend.widen import wide
from polymax.kernels.two_classes import two_classes, two_classes_backward
from polymax.smoothing import Marginals
from polymax.structures import Transducer
from polymax.structures.base import checked_lengths
from polymax.structures.ctc import at_labels

Lengths = Tensor | Sequence[int]
# sums of products below this may have lost terms to underflow, and are added up in the logarithm
SMALL = 1e-25
# entries (cell, class) of such sums that are in memory at a time
TOGETHER = 1 << 22


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
    the logits. "mean" is that of the batch. Packed logits have the rows (t, u) of all instances one after the other,
    without padding. Twice differentiable; `pm.Transducer` is the set of alignments.

    Shapes:
        logits (N, T, U + 1, V), or packed (sum over instances of T (U + 1), V); targets (N, U), or where logits are
        packed also one after the other; lengths (N,)

    Example:
        >>> rnnt_loss(torch.zeros(1, 2, 2, 2), torch.tensor([[0]]), [2], [1])  # 2 alignments of 3 steps
        tensor(1.3863)
        >>> rnnt_loss(torch.zeros(4, 2), torch.tensor([0]), [2], [1])
        tensor(1.3863)

    See: Graves 2012, Sequence transduction with recurrent neural networks.
    """
    _check_reduction(reduction)
    _check.floating(logits, "logits")
    if logits.dim() == 2:
        sizes = _packed_sizes(logits, targets, logit_lengths, target_lengths, blank)
    elif logits.dim() == 4 and logits.shape[2]:
        sizes = _sizes(logits.shape[-1], targets, logit_lengths, target_lengths, blank, logits, tuple(logits.shape[:3]))
    else:
        raise ValueError(f"logits must be (N, T, U + 1, V), or packed (rows, V); got {tuple(logits.shape)}")
    x = _Clamped.apply(logits, clamp) if clamp > 0 else logits
    if logits.dim() == 2:
        ends, labels = _unpacked(x, sizes, fused_log_softmax)
    else:
        # what is emitted after the last token is not read: any class will do
        at = sizes.ahead[:, None, :].expand(x.shape[:3])
        ends, labels = _chosen(x, at, sizes.blank, fused_log_softmax)
        labels = labels[:, :, :-1]
    return _reduced(ends, labels, sizes, reduction, logits.dtype)


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
    _check_reduction(reduction)
    for t, name in ((encoder, "encoder"), (predictor, "predictor")):
        _check.floating(t, name)
        if t.dim() != 3:
            raise ValueError(f"{name} must be {'(N, T, V)' if t is encoder else '(N, U + 1, V)'}; got {tuple(t.shape)}")
    fits = predictor.shape[0] == encoder.shape[0] and predictor.shape[2] == encoder.shape[2] and predictor.shape[1]
    if not fits or predictor.dtype != encoder.dtype or predictor.device != encoder.device:
        expected = f"({encoder.shape[0]}, U + 1, {encoder.shape[2]}) {encoder.dtype} on {encoder.device}"
        came = f"{tuple(predictor.shape)} {predictor.dtype} on {predictor.device}"
        raise ValueError(f"predictor must be {expected}, as the encoder; got {came}")
    shape = (*encoder.shape[:2], predictor.shape[1])
    sizes = _sizes(encoder.shape[-1], targets, logit_lengths, target_lengths, blank, encoder, shape)
    # padding may hold anything: a sum over all frames or tokens would make it NaN in the gradient of others
    e = _kept(wide(encoder), sizes.frames)
    p = _kept(wide(predictor), sizes.counts + 1)
    total = _log_product(e, p)
    ends = e[..., sizes.blank].unsqueeze(2) + p[..., sizes.blank].unsqueeze(1) - total
    by_frame = at_labels(e, sizes.targets)
    by_token = p[:, :-1].gather(2, sizes.targets.unsqueeze(2)).mT
    return _reduced(ends, by_frame + by_token - total[:, :, :-1], sizes, reduction, encoder.dtype)


class _Sizes(NamedTuple):
    """Targets, 0 at padding, (N, U) and with one more after them (N, U + 1), which the frames and the tokens of each
    instance (N,) follow, and the number of the blank.
    """

    targets: Tensor
    ahead: Tensor
    frames: Tensor
    counts: Tensor
    blank: int


def _sizes(
    classes: int,
    targets: Tensor,
    frames: Lengths,
    counts: Lengths,
    blank: int,
    like: Tensor,
    shape: tuple[int, ...],
) -> _Sizes:
    """The checked targets, lengths and blank of padded logits."""
    batch, n, states = shape
    _check_integers(targets)
    if targets.shape != (batch, states - 1):
        raise ValueError(f"targets must be {(batch, states - 1)}, as the logits have it; got {tuple(targets.shape)}")
    n_of = _lengths(frames, batch, n, like.device, "logit_lengths")
    m_of = _lengths(counts, batch, states - 1, like.device, "target_lengths")
    return _checked(targets, n_of, m_of, classes, blank)


def _packed_sizes(logits: Tensor, targets: Tensor, frames: Lengths, counts: Lengths, blank: int) -> _Sizes:
    """The checked targets, lengths and blank of packed logits."""
    _check_integers(targets)
    n_of, m_of = (torch.as_tensor(t, dtype=torch.long, device=logits.device).reshape(-1) for t in (frames, counts))
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


def _checked(targets: Tensor, frames: Tensor, counts: Tensor, classes: int, blank: int) -> _Sizes:
    if not -classes <= blank < classes:
        raise ValueError(f"blank must be one of {classes} classes; got {blank}")
    targets = targets.to(device=frames.device, dtype=torch.long)
    inside = torch.arange(targets.shape[1] + 1, device=frames.device) < counts[:, None]
    # one that is not read stands at the end
    ahead = torch.where(inside, torch.nn.functional.pad(targets, (0, 1)), 0)
    targets = ahead[:, :-1]
    if _check.readable(targets) and bool(((targets < 0) | (targets >= classes)).any()):
        raise ValueError(f"targets must be in [0, {classes}); got values in [{targets.min()}, {targets.max()}]")
    return _Sizes(targets, ahead, frames, counts, blank % classes)


def _unpacked(x: Tensor, sizes: _Sizes, normalize: bool) -> tuple[Tensor, Tensor]:
    """Scores of blanks (N, T, U + 1) and of emissions (N, T, U) from packed logits; 0 at padding."""
    batch, states = sizes.targets.shape[0], sizes.targets.shape[1] + 1
    n = int(sizes.frames.max()) if batch else 0
    t, u = torch.arange(n, device=x.device)[:, None], torch.arange(states, device=x.device)
    inside = (t < sizes.frames[:, None, None]) & (u <= sizes.counts[:, None, None])
    ends, labels = _chosen(x, sizes.ahead[:, None].expand(inside.shape)[inside], sizes.blank, normalize)
    zeros = ends.new_zeros(inside.shape)
    ends, labels = zeros.masked_scatter(inside, ends), zeros.masked_scatter(inside, labels)
    return ends, labels[:, :, :-1]


def _chosen(x: Tensor, at: Tensor, blank: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Logits (*any, V) of the blank, and of the classes `at` (*any), as log-probabilities if they are to be made so."""
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
        # the derivative is derived once more: p depends on x
        # a row of padding may hold anything, and moves nothing
        padding = (g_end == 0) & (g_label == 0) & ~(total < torch.inf)
        logits = torch.where(padding.unsqueeze(-1), 0, wide(x))
        p = torch.where(total.unsqueeze(-1) == -torch.inf, 0, logits).log_softmax(-1).exp()
        p = torch.where(logits == -torch.inf, 0, p)
        blank = torch.full_like(at, ctx.blank).unsqueeze(-1)
        g = torch.zeros_like(logits).scatter_add(-1, blank, g_end.unsqueeze(-1))
        g = g.scatter_add(-1, at.unsqueeze(-1), g_label.unsqueeze(-1))
        return (g - (g_end + g_label).unsqueeze(-1) * p).to(x.dtype), None, None


def _log_product(e: Tensor, p: Tensor) -> Tensor:
    """log sum over v of exp(e[n, t, v] + p[n, u, v]), (N, T, U), by a product of matrices.

    Factors are divided by the largest of their rows. A sum that is so small that terms of its size could have been lost
    to underflow is added up in the logarithm, a few at a time; where values cannot be read, while code is compiled or
    mapped, all are, and it is the compiler that does not form them.
    """
    if torch.compiler.is_compiling() or recording(e) or mapped_over(e) or mapped_over(p):
        return (e.unsqueeze(2) + p.unsqueeze(1)).logsumexp(-1)
    most_e, most_p = (_finite_max(x.detach()) for x in (e, p))
    sums = torch.bmm((e - most_e).exp(), (p - most_p).exp().mT)
    fine = sums.detach() >= SMALL
    total = torch.where(fine, sums, 1).log() + most_e + most_p.mT
    cells = (~fine).nonzero()
    return total.index_put(cells.unbind(1), _CellSums.apply(e, p, cells)) if len(cells) else total


def _kept(x: Tensor, lengths: Tensor) -> Tensor:
    """The rows (N, rows, V) of each instance that its length counts; zeros in the place of others."""
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.where(inside.unsqueeze(-1), x, 0)


def _finite_max(x: Tensor) -> Tensor:
    most = x.amax(-1, keepdim=True)
    return torch.where(most.isfinite(), most, 0)


class _CellSums(Function):
    """log sum over v of exp(e[n, t, v] + p[n, u, v]) at some cells (k, 3) of n, t and u; terms are not kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(e: Tensor, p: Tensor, cells: Tensor) -> Tensor:
        few = max(1, TOGETHER // max(1, e.shape[-1]))
        return torch.cat([_terms(e, p, part).logsumexp(-1) for part in cells.split(few)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        e, p, cells = ctx.saved_tensors
        g_e, g_p = torch.zeros_like(e), torch.zeros_like(p)
        few = max(1, TOGETHER // max(1, e.shape[-1]))
        for part, own in zip(cells.split(few), g.split(few), strict=True):
            n, t, u = part.unbind(1)
            weights = _terms(e, p, part).softmax(-1) * own.unsqueeze(-1)
            g_e = g_e.index_put((n, t), weights, accumulate=True)
            g_p = g_p.index_put((n, u), weights, accumulate=True)
        return g_e, g_p, None


def _terms(e: Tensor, p: Tensor, cells: Tensor) -> Tensor:
    n, t, u = cells.unbind(1)
    return e[n, t] + p[n, u]


def _reduced(ends: Tensor, labels: Tensor, sizes: _Sizes, reduction: str, dtype: torch.dtype) -> Tensor:
    losses = -Marginals(Transducer((sizes.frames, sizes.counts))).max(ends, labels).to(dtype)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {reduction!r}")


def _check_integers(targets: Tensor) -> None:
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        came = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(f"targets must be a tensor of integers; got {came}")


def _lengths(lengths: Lengths, batch: int, size: int, device: torch.device, name: str) -> Tensor:
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths, dtype=torch.long)
    return checked_lengths(lengths.reshape(-1), torch.Size([batch]), size, device, name)


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
