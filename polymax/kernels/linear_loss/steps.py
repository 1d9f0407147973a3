"""The interface of a device's steps on blocks of logits and lists of words, and the types of these."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.linear_loss import FLAT
from polymax.kernels.linear_loss.problem import Grads, LossProblem, Saved


class Cap(NamedTuple):
    """The function from logits to scores: scale softcap tanh(logits / softcap), or scale logits if softcap is 0."""

    softcap: float
    scale: float


@dataclass(frozen=True)
class Steps:
    """The steps of a device on blocks of logits, and on lists.

    `rows` and `entries` bound a block: the rows of a product, and its logits; `flat` bounds the logits of rows that are
    computed as a whole, or the gradients of these logits. `half` is True if products of half precision are summed in
    float32; otherwise wider copies are multiplied. `ahead` is True if the device works while the host waits for it.
    """

    rows: int
    entries: int
    flat: int
    half: bool
    ahead: bool
    keeping: "RowKeeping | ColumnKeeping"
    # a (n, d), b (m, d) -> a b^T (n, m), at least in float32
    product: Callable[[Tensor, Tensor], Tensor]
    # sum (n, d) += a (n, m) b (m, d)
    add_product: Callable[[Tensor, Tensor, Tensor], None]
    # logits (n, m) of words from `first` on, their bias, named words (n, k), their scores (n, k), which are written
    pick: Callable[[Tensor, Tensor | None, Tensor, int, Tensor, Cap], None]
    # logits (n, m) of words from `first` on, their bias, lists, alpha, softcap
    scan: Callable[[Tensor, Tensor | None, int, "Lists", float, float], None]
    # lists after the last block, True for rows that count, the problem
    finish: Callable[["Lists", Tensor, LossProblem], "Listed"]
    # logits (n, m), their bias, sums of exponentials
    accumulate: Callable[[Tensor, Tensor | None, "Exponentials", Cap], None]
    # hidden, weight, bias, named words -> sums of exponentials of a product that does not reach memory, and scores of
    # named words; None if the device has no such product
    tiled: Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Cap], "tuple[Exponentials, Tensor] | None"] | None
    # logits of all words, bias, alpha, True if the slope is needed -> top, value, tau, slope
    solve: Callable[[Tensor, Tensor | None, float, Cap, bool], tuple[Tensor, Tensor, Tensor, Tensor]]
    # logits, bias, spread, rows, alpha, dtype -> the gradient of logits
    slopes: Callable[[Tensor, Tensor | None, Tensor | None, "FlatRows", float, Cap, torch.dtype], Tensor]
    # logits (n, m), bias, reference (n,), memory (n, m) or None -> scores less the reference
    keep: Callable[[Tensor, Tensor | None, Tensor | None, Tensor | None, Cap], Tensor]
    # logits (n, m) of words at even distances, the problem of their rows, places of a list -> rows that seem to have
    # more words with weight, and rows that count, (2, n)
    crowded: Callable[[Tensor, LossProblem, int], Tensor]
    # gradients, results, the length of the longest list -> words and coefficients (n, k), their numbers, sort keys
    listed: Callable[[Grads, LossProblem, Saved, int], tuple[Tensor, Tensor, Tensor, Tensor]]
    # words and coefficients (n, k), their numbers (n,), weight -> sums (n, d)
    row_sums: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    # the first entry of each word (words + 1,), places of entries by word in (n, longest), their coefficients (n, k),
    # longest <= k, hidden, gradients of weight and bias, True to add to these gradients
    column_sums: Callable[[Tensor, Tensor, Tensor, int, Tensor, Tensor, Tensor, bool], None]


class Lists(NamedTuple):
    """The words of each row that can have weight, with their logits; the largest logit; the bound of the threshold.

    The bound is in units of (alpha - 1) x.
    """

    count: Tensor
    ids: Tensor
    values: Tensor
    top: Tensor
    bound: Tensor

    @classmethod
    def empty(cls, counted: Tensor, size: int, like: Tensor) -> "Lists":
        """Return empty lists, which have the length FLAT, -1, for rows that do not count: these are not scanned."""
        n, real = len(counted), wide(like[:0]).dtype
        count = counted.to(torch.int32) + FLAT
        lowest = torch.full((2, n), -torch.inf, dtype=real, device=like.device)
        ids = torch.empty((n, size), dtype=torch.int32, device=like.device)
        values = torch.empty((n, size), dtype=real, device=like.device)
        return cls(count, ids, values, *lowest.unbind(0))

    def part(self, rows: slice) -> "Lists":
        return Lists(*(t[rows] for t in self))


class Listed(NamedTuple):
    """The results of rows with lists; of other rows, numbers without a meaning.

    `count` is FLAT for rows that must be computed as a whole, and 0 for rows that do not count; `extent`, on the
    device, is the number of FLAT rows, and the length of the longest list.
    """

    value: Tensor
    top: Tensor
    tau: Tensor
    slope: Tensor
    probs: Tensor
    count: Tensor
    extent: Tensor


class Exponentials(NamedTuple):
    """The largest score of each row so far, and sums of exp u and u exp u, with u the score less the largest."""

    top: Tensor
    total: Tensor
    moment: Tensor

    @classmethod
    def empty(cls, n: int, like: Tensor) -> "Exponentials":
        real = wide(like[:0]).dtype
        lowest = torch.full((n,), -torch.inf, dtype=real, device=like.device)
        return cls(lowest, *torch.zeros((2, n), dtype=real, device=like.device).unbind(0))

    def part(self, rows: slice) -> "Exponentials":
        return Exponentials(*(t[rows] for t in self))


class FlatRows(NamedTuple):
    """Rows whose weights are computed from their threshold, with the gradients of their values and means.

    The weights of a row are multiplied by grad_value + grad_moment (x - top).
    """

    top: Tensor
    tau: Tensor
    grad_value: Tensor
    grad_mean: Tensor
    grad_moment: Tensor | None = None

    def part(self, rows: slice) -> "FlatRows":
        return FlatRows(*(None if t is None else t[rows] for t in self))


class RowKeeping(NamedTuple):
    """The steps of a device that keeps logits of flat rows one row after another.

    At most `entries` logits are kept at once. Of these, `near` become gradients at once, in a cache.
    """

    entries: int
    near: int
    # scores, which may be overwritten, alpha -> weights, top, value, tau
    solve: Callable[[Tensor, float], tuple[Tensor, Tensor, Tensor, Tensor]]
    # weights, spread, rows, the gradient of logits, which is written
    slopes: Callable[[Tensor, Tensor | None, FlatRows, Cap, Tensor], None]


class KeptLogits(NamedTuple):
    """Logits (words, rows) less a reference of each row (rows,), without the bias of words (words,)."""

    x: Tensor
    reference: Tensor
    bias: Tensor | None


class Named(NamedTuple):
    """Named words of rows (n, k), below 0 for no word, their scores, and gradients of these beside those of weights."""

    words: Tensor
    scores: Tensor
    slope: Tensor


class ColumnKeeping(NamedTuple):
    """The steps of a device that keeps logits of flat rows as columns.

    The gradient of weight is computed for `words` words at once, and has room for as many behind it.
    """

    words: int
    # hidden, weight, bias, named words -> numbers near the largest logit of each row that the dtype of weight can hold,
    # at least in float32, and less these numbers, in this dtype
    refer: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]
    # alpha -> top, value, tau
    solve: Callable[[KeptLogits, float, Cap], tuple[Tensor, Tensor, Tensor]]
    # named words (n, k) -> their scores
    pick: Callable[[KeptLogits, Tensor, Cap], Tensor]
    # spread, rows, alpha; logits are overwritten by their gradients
    slopes: Callable[[KeptLogits, Tensor | None, FlatRows, float, Cap], None]
    # the same for named words, after the others
    name: Callable[[KeptLogits, Tensor | None, FlatRows, Named, float, Cap], None]


def pieces(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover 0 to n."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
