"""The interface of a device's steps on blocks of logits and lists of words, and the types of these."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.backend.widen import wide


@dataclass(frozen=True)
class Steps:
    """The steps of a device on blocks of logits, and on lists.

    `rows` and `entries` bound a block: the rows of a product, and its logits; `flat` bounds the logits of rows that are
    computed as a whole, or the gradients of these logits. `half` is True if products of half precision are summed in
    float32; otherwise wider copies are multiplied.
    """

    rows: int
    entries: int
    flat: int
    half: bool
    # a (n, d), b (m, d) -> a b^T (n, m), at least in float32
    product: Callable[[Tensor, Tensor], Tensor]
    # sum (n, d) += a (n, m) b (m, d)
    add_product: Callable[[Tensor, Tensor, Tensor], None]
    # logits (n, m) of words from `first` on, their bias, targets, lists, alpha, softcap
    scan: Callable[[Tensor, Tensor | None, Tensor | None, int, "Lists", float, float], None]
    # logits of all words, bias, alpha, softcap, True if the slope is needed -> top, value, tau, slope
    solve: Callable[[Tensor, Tensor | None, float, float, bool], tuple[Tensor, Tensor, Tensor, Tensor]]
    # logits, bias, spread, rows, alpha, softcap, dtype -> the gradient of logits
    slopes: Callable[[Tensor, Tensor | None, Tensor | None, "FlatRows", float, float, torch.dtype], Tensor]
    # words and coefficients (n, k), their numbers (n,), weight -> sums (n, d)
    row_sums: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    # the first entry of each word (words + 1,), rows and coefficients of entries by word, hidden, gradients of weight
    # and bias, True to add to these gradients
    column_sums: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], None]


class Lists(NamedTuple):
    """The words of each row that can have weight, with their logits; the largest logit; the bound of the threshold.

    The bound is in units of (alpha - 1) x. `chosen` are the logits of targets.
    """

    count: Tensor
    ids: Tensor
    values: Tensor
    top: Tensor
    bound: Tensor
    chosen: Tensor

    @classmethod
    def empty(cls, n: int, size: int, like: Tensor) -> "Lists":
        real = wide(like[:0]).dtype
        count = torch.zeros(n, dtype=torch.int32, device=like.device)
        lowest = torch.full((2, n), -torch.inf, dtype=real, device=like.device)
        ids = torch.empty((n, size), dtype=torch.int32, device=like.device)
        values = torch.empty((n, size), dtype=real, device=like.device)
        return cls(count, ids, values, *lowest.unbind(0), torch.zeros(n, dtype=real, device=like.device))

    def part(self, rows: slice) -> "Lists":
        return Lists(*(t[rows] for t in self))


class FlatRows(NamedTuple):
    """Rows whose weights are computed from their threshold, with the gradients of their values and means."""

    top: Tensor
    tau: Tensor
    grad_value: Tensor
    grad_mean: Tensor

    def part(self, rows: slice) -> "FlatRows":
        return FlatRows(*(t[rows] for t in self))


def pieces(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover 0 to n."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
