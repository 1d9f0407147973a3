"""Structured inference once more: plain recursions for float64 and autograd, without any kernel of polymax."""

from collections.abc import Sequence

import torch
from torch import Tensor


def chain(unary: Tensor, transition: Tensor) -> Tensor:
    """The log-sum-exp of the scores of all tag sequences."""
    value = unary[:, 0]
    for now in unary.unbind(1)[1:]:
        value = torch.logsumexp(value[:, :, None] + transition, 1) + now
    return torch.logsumexp(value, -1)


def chain_means(unary: Tensor, transition: Tensor) -> Tensor:
    """The probability of each tag at each position: the gradient of the log-sum-exp."""
    (means,) = torch.autograd.grad(chain(unary, transition).sum(), unary, create_graph=True)
    return means


def best_tags(unary: Tensor, transition: Tensor) -> Tensor:
    """The best tag sequence, by Viterbi."""
    value, before = unary[:, 0], []
    for now in unary.unbind(1)[1:]:
        best = (value[:, :, None] + transition).max(1)
        value = best.values + now
        before.append(best.indices)
    tags = [value.argmax(-1, keepdim=True)]
    for back in reversed(before):
        tags.append(back.gather(1, tags[-1]))
    return torch.cat(tags[::-1], 1)


def span_tree(scores: Tensor) -> Tensor:
    """The log-sum-exp of the scores of all binary bracketings: inside[w][:, i] is that of the span i, ..., i + w."""
    n = scores.shape[-1]
    inside = [scores.diagonal(0, 1, 2)]
    for w in range(1, n):
        inside.append(scores.diagonal(w, 1, 2) + _cuts(inside, inside, 1, n - w))
    return inside[-1][:, 0]


def projective_tree(scores: Tensor) -> Tensor:
    """The log-sum-exp of the scores of all projective dependency trees with a single root.

    A span of words is headed by its last word (`left`) or its first (`right`); in an open span, the word at the
    other end still lacks its dependents on the outside.

    See: Eisner 2000, Bilexical grammars and their cubic-time parsing algorithms, Section 4.
    """
    words = scores[:, 1:, 1:]
    n = words.shape[-1]
    left, right = [torch.zeros_like(words[:, 0])], [torch.zeros_like(words[:, 0])]
    open_left: list[Tensor] = []
    open_right: list[Tensor] = []
    for w in range(1, n):
        joined = _cuts(right, left, 1, n - w)
        open_left.append(joined + words.diagonal(-w, 1, 2))
        open_right.append(joined + words.diagonal(w, 1, 2))
        left.append(_cuts(left, open_left, 0, n - w))
        right.append(_cuts(open_right, right, 1, n - w))
    around = [left[root][:, 0] + right[n - 1 - root][:, root] for root in range(n)]
    return torch.logsumexp(scores[:, 0, 1:] + torch.stack(around, 1), -1)


def soft_dtw(cost: Tensor) -> Tensor:
    """Minus the log-sum-exp of minus the costs of all monotone alignments, by diagonals i + j = d."""
    n, m = cost.shape[1:]
    # one column more than the rows need shifts each by one against the row above: diagonals become columns
    skewed = torch.nn.functional.pad(cost, (0, n)).flatten(1)[:, : n * (n + m - 1)].unflatten(1, (n, n + m - 1))

    def part(values: Tensor, d: int, first: int, end: int) -> Tensor:
        # rows of the diagonal d; the rows before and after it hold no cell
        start = max(0, d - m + 1) - 1
        return torch.nn.functional.pad(values, (1, 1), value=-torch.inf)[:, first - start : end - start]

    before, last = cost[:, :0, 0], -cost[:, :1, 0]
    for d, column in enumerate(skewed.unbind(2)[1:], 1):
        first, end = max(0, d - m + 1), min(d, n - 1) + 1
        steps = [
            part(last, d - 1, first - 1, end - 1),
            part(last, d - 1, first, end),
            part(before, d - 2, first - 1, end - 1),
        ]
        before, last = last, torch.logsumexp(torch.stack(steps), 0) - column[:, first:end]
    return -last[:, 0]


def _cuts(first: Sequence[Tensor], second: Sequence[Tensor], gap: int, count: int) -> Tensor:
    """The log-sum-exp over ways to make `count` spans of two, the second `gap` words after the end of the first."""
    pairs = enumerate(zip(first, reversed(second), strict=True))
    return torch.logsumexp(torch.stack([a[:, :count] + b[:, k + gap :][:, :count] for k, (a, b) in pairs]), 0)
