"""The loss of a transducer whose joint network, and the softmax over it, are computed in blocks of cells."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint

from polymax import _check
from polymax.backend.dispatch import plain
from polymax.backend.function import functional, recording
from polymax.transduction import Lengths, Sizes, chosen, reduced, sizes_of_terms

# entries (cell, class) of a block: a SHARE of all entries, between LEAST and MOST
LEAST, MOST, SHARE = 1 << 20, 1 << 27, 1 / 48


def joint_rnnt_loss(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    bias: Tensor | None = None,
    blank: int = -1,
    activation: Callable[[Tensor], Tensor] = torch.tanh,
    reduction: str = "mean",
) -> Tensor:
    """`rnnt_loss` of the logits of a joint network; the logits of all cells are never in memory together.

        logits[t, u] = activation(encoder[t] + predictor[u]) @ weight^T + bias

    Logits are computed for a block of cells at a time, and again in the backward pass. The log-probabilities of the
    blank and of one token are kept for each cell. The result and its derivatives, also the second, are those of
    `rnnt_loss`. An `activation` maps a tensor to one of its shape, entry by entry; if it draws random numbers, the
    backward pass draws the same. Under torch.func all logits are in memory.

    Shapes:
        encoder (N, T, H); predictor (N, U + 1, H); weight (V, H); bias (V,); targets (N, U); lengths (N,)

    Example:
        >>> weight = torch.zeros(2, 3)
        >>> joint_rnnt_loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), weight, torch.tensor([[0]]), [2], [1])
        tensor(1.3863)

    See: Graves 2012, Sequence transduction with recurrent neural networks; Chen et al. 2016, Training deep nets with
    sublinear memory cost.
    """
    _check.reduction(reduction)
    _check.function(activation, "activation")
    _check.floating(weight, "weight")
    if weight.dim() != 2:
        raise ValueError(f"weight must be (V, H); got {tuple(weight.shape)}")
    if bias is not None and (not isinstance(bias, Tensor) or bias.shape != weight.shape[:1]):
        raise ValueError(
            f"bias must be ({weight.shape[0]},), a number for each class of the weight; got {_check.shape(bias)}"
        )
    sizes = sizes_of_terms(encoder, predictor, weight.shape[0], targets, logit_lengths, target_lengths, blank, "H")
    if encoder.shape[2] != weight.shape[1]:
        raise ValueError(f"encoder must be (N, T, {weight.shape[1]}), as the weight has it; got {tuple(encoder.shape)}")
    for t, name in ((weight, "weight"), (bias, "bias")):
        # autocast converts both
        if t is not None and t.dtype != encoder.dtype and not torch.is_autocast_enabled(encoder.device.type):
            raise TypeError(f"{name} must be {encoder.dtype}, as the encoder; got {t.dtype}")
    ends, labels = _by_blocks(encoder, predictor, weight, bias, sizes, activation)
    return reduced(ends, labels[:, :, :-1], sizes, reduction, encoder.dtype)


def _by_blocks(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: Sizes,
    activation: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the blank and of the next token of each cell, (N, T, U + 1); 0 at padding."""
    shape = (*encoder.shape[:2], predictor.shape[1])
    e, p = kept(encoder, sizes.frames), kept(predictor, sizes.counts + 1)
    known = plain(sizes.frames, sizes.counts) and not recording(sizes.frames)
    frames = sizes.frames.tolist() if known else [shape[1]] * shape[0]
    states = (sizes.counts + 1).tolist() if known else [shape[2]] * shape[0]
    most = int(min(max(LEAST, SHARE * shape[0] * shape[1] * shape[2] * weight.shape[0]), MOST))
    given = (t for t in (e, p, weight, bias) if t is not None)
    again = torch.is_grad_enabled() and any(t.requires_grad for t in given) and not functional()

    def block(e: Tensor, p: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        terms = e.unsqueeze(2) + p.unsqueeze(1)
        hidden = activation(terms)
        if hidden.shape != terms.shape:
            came = f"{tuple(hidden.shape)} for {tuple(terms.shape)}"
            raise ValueError(f"activation must return a tensor of the shape of its argument; got {came}")
        logits = linear(hidden, weight, bias)
        return chosen(logits, at.unsqueeze(1).expand(logits.shape[:3]), sizes.blank, True)

    def cells(group: slice, t: slice, u: slice) -> tuple[Tensor, Tensor]:
        args = e[group, t], p[group, u], sizes.ahead[group, u]
        if not again:
            return block(*args)
        return checkpoint(block, *args, use_reentrant=False, preserve_rng_state=known)

    ends: list[Tensor] = []
    labels: list[Tensor] = []
    for group, n, k in _groups(frames, states, most // max(weight.shape[0], 1)):
        few_u = min(k, max(1, most // max(weight.shape[0], 1)))
        few_t = max(1, most // max((group.stop - group.start) * few_u * weight.shape[0], 1))
        rows = [
            [cells(group, slice(t, min(t + few_t, n)), slice(u, min(u + few_u, k))) for u in range(0, k, few_u)]
            for t in range(0, n, few_t)
        ]
        for found, which in ((ends, 0), (labels, 1)):
            joined = [torch.cat([part[which] for part in row], 2) for row in rows]
            whole = torch.cat(joined, 1) if joined else e.new_zeros((group.stop - group.start, 0, k))
            found.append(pad(whole, (0, shape[2] - k, 0, shape[1] - n)))
    return (torch.cat(ends), torch.cat(labels)) if ends else (e.new_zeros(shape), e.new_zeros(shape))


def _groups(frames: Sequence[int], states: Sequence[int], most: int) -> Iterator[tuple[slice, int, int]]:
    """Yield instances in a row that have at most `most` cells together, and their largest numbers of frames and states.

    An instance with more cells is a group of its own.
    """
    first = n = k = 0
    for b in range(len(frames)):
        wider, longer = max(n, frames[b]), max(k, states[b])
        if b > first and (b + 1 - first) * wider * longer > most:
            yield slice(first, b), n, k
            first, wider, longer = b, frames[b], states[b]
        n, k = wider, longer
    if len(frames):
        yield slice(first, len(frames)), n, k


def kept(x: Tensor, lengths: Tensor) -> Tensor:
    """Rows (N, rows, H) that the length of their instance counts, and zeros in the place of others."""
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.where(inside.unsqueeze(-1), x, 0)
