"""Likelihoods of sequence models: connectionist temporal classification and hidden Markov models.

    log p(x) = log of the sum over hidden paths z of p(x, z)

See: Graves et al. 2006, Connectionist temporal classification; Rabiner 1989, A tutorial on hidden Markov models.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.widen import wide
from polymax.hypergraphs.passes import SHANNON
from polymax.kernels.ctc import ctc_search
from polymax.smoothing import HardMax, Marginals
from polymax.structures import Chain
from polymax.structures.base import checked_lengths
from polymax.structures.chain import ChainParts
from polymax.structures.ctc import checked_targets, lattice

Lengths = Tensor | Sequence[int]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """CTC: minus the log-probability that the frames read as the targets, with the arguments of torch's ctc_loss.

        - log sum over labellings that read as the target of exp(sum_t log_probs[t, label_t])

    Repeated labels of neighbouring frames are read as one, blanks are left out. "mean" divides by the target lengths
    first. A target that does not fit into its frames has an infinite loss, 0 with `zero_infinity`, and no gradient.
    Gradients are those of the formula; torch's assume that log_probs come from log_softmax.

    Shapes: log_probs (T, N, C) or (T, C); targets (N, S), or the targets one after the other; lengths (N,)

    Example:
        >>> ctc_loss(torch.full((2, 1, 2), 0.5).log(), torch.tensor([[1]]), [2], [1], reduction="sum")
        tensor(0.2877)
    """
    _check.reduction(reduction)
    x, rows, counts, frames = _ctc(log_probs, targets, input_lengths, target_lengths, blank)
    losses = -lattice(x, rows, counts, frames, blank).problem().value(SHANNON)
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0, losses)
    if reduction == "mean":
        losses = losses / counts.clamp(min=1)
    losses = losses.to(log_probs.dtype)
    if log_probs.dim() == 2:
        return losses[0]
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def ctc_alignment(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0
) -> Tensor:
    """The most probable labelling of frames that reads as the targets, (N, T); -1 at padding, and in instances without
    a labelling.

    Example:
        >>> ctc_alignment(torch.tensor([[0.1, 0.9], [0.8, 0.2]]).log(), torch.tensor([1]), [2], [1])
        tensor([1, 0])
    """
    labels, _ = ctc_search(*_ctc(log_probs.detach(), targets, input_lengths, target_lengths, blank), blank)
    return labels[0] if log_probs.dim() == 2 else labels


def hmm_log_likelihood(initial: Tensor, transition: Tensor, emission: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(x_1, ..., x_n) of a hidden Markov model, (*batch,): the forward algorithm.

        log sum over z of p(z_1) p(x_1 | z_1) p(z_2 | z_1) p(x_2 | z_2) ...

    Shapes:
        all are log-probabilities: initial (*batch, s) or (s,); transition [previous, next] (s, s), or as `Chain` has
        it; emission (*batch, n, s), log p(x_t | z_t); lengths (*batch,)

    Example:
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> hmm_log_likelihood(half, half.expand(2, 2), torch.tensor([[0.4, 0.2], [0.1, 0.1]]).log()).exp()
        tensor(0.0300)
    """
    return Marginals(Chain(lengths)).max(*_hmm(initial, transition, emission))


def hmm_posterior(initial: Tensor, transition: Tensor, emission: Tensor, lengths: Tensor | None = None) -> ChainParts:
    """p(z_t | x) as `.unary` (*batch, n, s) and p(z_t, z_(t+1) | x) as `.transition` (*batch, n - 1, s, s).

    Example:
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> hmm_posterior(half, half.expand(2, 2), torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()).unary
        tensor([[0.9000, 0.1000],
                [0.5000, 0.5000]])
    """
    return Marginals(Chain(lengths)).argmax(*_hmm(initial, transition, emission))


def hmm_viterbi(initial: Tensor, transition: Tensor, emission: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The most probable states given x, (*batch, n); -1 at padding.

    Example:
        >>> stay = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
        >>> hmm_viterbi(torch.zeros(2), stay, torch.tensor([[0.6, 0.4], [0.1, 0.9], [0.6, 0.4]]).log())
        tensor([1, 1, 1])
    """
    chain = Chain(lengths)
    return chain.decode(chain.map(*_hmm(initial, transition, emission)))


def viterbi_decode(score: Tensor, transition_params: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The best tags of a linear chain, (*batch, n), -1 at padding, and their score, (*batch,): the Viterbi algorithm.

    Name and arguments are those of TensorFlow's CRF. It is `pm.Chain(lengths)` under other names: the
    tags are `decode(map(...))`, and the gradient of the score is 1 at the parts of the best tags.

    Shapes:
        score (*batch, n, tags); transition_params [previous, next] (tags, tags), or as `Chain` has it; lengths
        (*batch,)

    Example:
        >>> viterbi_decode(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        (tensor([0, 0]), tensor(2.))

    See: Viterbi 1967, Error bounds for convolutional codes and an asymptotically optimum decoding algorithm.
    """
    chain = Chain(lengths)
    return chain.decode(chain.map(score, transition_params)), HardMax(chain).max(score, transition_params)


def _hmm(initial: Tensor, transition: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """The model as a chain: the initial probabilities belong to the first position."""
    for t, name in ((initial, "initial"), (transition, "transition"), (emission, "emission")):
        _check.floating(t, name)
    if emission.dim() < 2:
        raise ValueError(f"emission must be (*batch, n, s); got {tuple(emission.shape)}")
    *batch, _, s = emission.shape
    if initial.shape not in ((s,), (*batch, s)):
        raise ValueError(f"initial must be ({s},) or {(*batch, s)}; got {tuple(initial.shape)}")
    first = emission[..., :1, :] + initial.unsqueeze(-2)
    return torch.cat([first, emission[..., 1:, :]], -2), transition


def _ctc(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities (N, T, C), targets (N, S), and the numbers of targets and of frames of each instance (N,)."""
    _check.floating(log_probs, "log_probs")
    if log_probs.dim() not in (2, 3) or not log_probs.shape[0]:
        raise ValueError(f"log_probs must be (T, N, C) or (T, C), T > 0; got {tuple(log_probs.shape)}")
    x = wide(log_probs.unsqueeze(1) if log_probs.dim() == 2 else log_probs).movedim(1, 0)
    batch, n, classes = x.shape
    if not 0 <= blank < classes:
        raise ValueError(f"blank must be one of {classes} classes; got {blank}")
    frames = _lengths(input_lengths, batch, n, x.device, "input_lengths")
    rows, counts = _rows(targets, target_lengths, batch, x.device, single=log_probs.dim() == 2)
    return x, checked_targets(rows, counts, classes, blank), counts, frames


def _lengths(lengths: Lengths, batch: int, size: int, device: torch.device, name: str) -> Tensor:
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths, dtype=torch.long)
    return checked_lengths(lengths.reshape(-1), torch.Size([batch]), size, device, name)


def _rows(targets: Tensor, lengths: Lengths, batch: int, device: torch.device, single: bool) -> tuple[Tensor, Tensor]:
    """Targets, also those given one after the other, as rows (N, S), and their lengths."""
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        raise TypeError(f"targets must be a tensor of integers; got {_check.kind(targets)}")
    targets = targets.to(device=device, dtype=torch.long)
    if single and targets.dim() == 1:
        targets = targets.unsqueeze(0)
    if targets.dim() == 2 and targets.shape[0] == batch:
        return targets, _lengths(lengths, batch, targets.shape[1], device, "target_lengths")
    if targets.dim() != 1:
        raise ValueError(f"targets must be ({batch}, S), or all targets in one dim; got {tuple(targets.shape)}")
    counts = _lengths(lengths, batch, targets.shape[0], device, "target_lengths")
    if _check.readable(counts) and int(counts.sum()) != targets.shape[0]:
        raise ValueError(f"target_lengths must sum to {targets.shape[0]}, the targets given; got {int(counts.sum())}")
    columns = torch.arange(int(counts.max()) if batch else 0, device=device)
    index = (counts.cumsum(0) - counts)[:, None] + columns
    return targets[index.clamp(max=max(targets.shape[0] - 1, 0))] if targets.shape[0] else index[:, :0], counts
