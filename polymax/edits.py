"""Edit distances and scores of alignments with gaps, by the names that people look for."""

import torch
from torch import Tensor

from polymax import _check
from polymax.smoothing import HardMax, Marginals, Smoothing
from polymax.structures import GappedAlignment
from polymax.structures.base import checked_lengths

Pair = tuple[Tensor, Tensor]
Number = float | Tensor


def needleman_wunsch(scores: Tensor, extend: Number, open: Number | None = None, lengths: Pair | None = None) -> Tensor:
    """Return the score of the best global alignment; its gradient in the scores is the pairs.

    A gap of length L scores open + (L - 1) extend, or L extend without `open`: for penalties, these are negative.
    `pm.GappedAlignment` is the set, for marginals, SparseMAP, draws and the k best.

    Shapes: scores (*batch, n, m) of pairs; lengths a pair of (*batch,), rows and columns; result (*batch,)

    Example:
        >>> needleman_wunsch(torch.tensor([[2.0, -1.0, -1.0], [-1.0, -1.0, 2.0]]), extend=-1.0)
        tensor(3.)

    See: Needleman and Wunsch 1970; Gotoh 1982.
    """
    return _aligned(HardMax(_set("global", open, lengths)), scores, extend, open, lengths)


def smith_waterman(scores: Tensor, extend: Number, open: Number | None = None, lengths: Pair | None = None) -> Tensor:
    """Return the score of the best local alignment, at least 0; its gradient in the scores is the pairs.

    A gap of length L scores open + (L - 1) extend, or L extend without `open`: for penalties, these are negative.
    `pm.GappedAlignment("local")` is the set, for marginals, SparseMAP, draws and the k best.

    Shapes: scores (*batch, n, m) of pairs; lengths a pair of (*batch,), rows and columns; result (*batch,)

    Example:
        >>> smith_waterman(torch.tensor([[2.0, -1.0, -1.0], [-1.0, -1.0, 1.5]]), extend=-1.0)
        tensor(2.5000)

    See: Smith and Waterman 1981; Gotoh 1982.
    """
    _check.floating(scores, "scores")
    local = _set("local", open, lengths)
    return HardMax(local).max(scores, *_gaps(scores, extend, open))


def edit_distance(first: Tensor, second: Tensor, lengths: Pair | None = None) -> Tensor:
    """Return the least number of insertions, deletions and substitutions between two sequences.

    Shapes: first (*batch, n) and second (*batch, m), tokens; lengths a pair of (*batch,); result (*batch,) int64

    Example:
        >>> kitten, sitting = (torch.tensor([ord(c) for c in word]) for word in ("kitten", "sitting"))
        >>> edit_distance(kitten, sitting)
        tensor(3)

    See: Levenshtein 1966.
    """
    differ = (~_same(first, second)).double()
    return -needleman_wunsch(-differ, -1.0, lengths=lengths).round().long()


def soft_edit_distance(cost: Tensor, gamma: float = 1.0, gap: Number = 1.0, lengths: Pair | None = None) -> Tensor:
    """Return the edit distance smoothed by the entropy over alignments; its gradient in the cost is the expected pairs.

        - gamma log sum over alignments A of exp(-cost(A) / gamma)

    The cost of a pair is its entry of `cost`; a token without a partner costs `gap`. Alignments with the same pairs
    count once, whatever the order of deletions and insertions between two pairs.

    Shapes: cost (*batch, n, m) of pairs; lengths a pair of (*batch,), rows and columns; result (*batch,)

    Example:
        >>> soft_edit_distance(torch.zeros(2, 2))
        tensor(-0.4445)
    """
    _check.floating(cost, "cost")
    _check.number(gap, "gap", "a number", _check.defined)
    return -_aligned(Marginals(_set("global", None, lengths), gamma), -cost, -gap, None, lengths)


def lcs_length(first: Tensor, second: Tensor, lengths: Pair | None = None) -> Tensor:
    """Return the length of the longest common subsequence of two sequences.

    Shapes: first (*batch, n) and second (*batch, m), tokens; lengths a pair of (*batch,); result (*batch,) int64

    Example:
        >>> lcs_length(torch.tensor([3, 1, 4, 1, 5]), torch.tensor([1, 4, 5, 9]))
        tensor(3)
    """
    return needleman_wunsch(_same(first, second).double(), 0.0, lengths=lengths).round().long()


def _same(first: Tensor, second: Tensor) -> Tensor:
    """True for pairs of equal tokens, (*batch, n, m)."""
    for x, name in ((first, "first"), (second, "second")):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor of tokens, such as torch.tensor([3, 1]); got {type(x).__name__}")
    if first.dim() < 1 or second.dim() < 1 or first.shape[:-1] != second.shape[:-1]:
        came = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"first and second must be (*batch, n) and (*batch, m); got {came}")
    return first.unsqueeze(-1) == second.unsqueeze(-2)


def _set(mode: str, open: Number | None, lengths: Pair | None) -> GappedAlignment:
    return GappedAlignment(mode, "linear" if open is None else "affine", lengths)


def _gaps(scores: Tensor, extend: Number, open: Number | None) -> tuple[Tensor, ...]:
    """The scores of gaps in the order of the set's arguments."""
    for x, name in ((extend, "extend"), (0.0 if open is None else open, "open")):
        _check.number(x, name, "a number", _check.defined)
        if isinstance(x, Tensor) and x.dim():
            raise ValueError(
                f"{name} must be a single number; got {tuple(x.shape)}; pm.GappedAlignment takes a score for each place"
            )
    given = (extend,) if open is None else (open, extend)
    return tuple(x if isinstance(x, Tensor) else scores.new_full((), x) for x in given)


def _aligned(smooth: Smoothing, scores: Tensor, extend: Number, open: Number | None, lengths: Pair | None) -> Tensor:
    """The value of global alignments; if a sequence is empty, the score of the other as a single gap."""
    _check.floating(scores, "scores")
    value = smooth.max(scores, *_gaps(scores, extend, open))
    rows, columns = (
        checked_lengths(t, value.shape, size, value.device, f"lengths[{k}]").reshape(value.shape)
        for k, (t, size) in enumerate(zip(lengths or (None, None), scores.shape[-2:], strict=True))
    )
    rest = (rows + columns).to(value.dtype)
    gap = rest * extend if open is None else open + (rest - 1) * extend
    return torch.where(torch.minimum(rows, columns) > 0, value, torch.where(rest > 0, gap, 0))
