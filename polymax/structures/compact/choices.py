"""Compact forms of choices: classes, places in a list, the items of a subset, and ranks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact, refuse_repeats


def one_hot(index: Tensor, count: int) -> Tensor:
    """A bool tensor (*batch, count), True at the index (*batch,); all False for a negative index."""
    return index.unsqueeze(-1) == torch.arange(count, device=index.device)


def one_hot_or_unknown(index: Tensor, count: int) -> Tensor:
    """A bool tensor (*batch, count), True at the index (*batch,); all True for -2, an unknown index."""
    return one_hot(index, count) | (index == -2).unsqueeze(-1)


def used_index(y: Tensor) -> Tensor:
    """The place (*batch,) that indicators (*batch, count) use along the last dimension; -1 for none."""
    if y.shape[-1] == 0:
        return y.new_full(y.shape[:-1], -1, dtype=torch.long)
    return torch.where((y == 0).all(-1), -1, y.argmax(-1))


@dataclass(frozen=True, eq=False)
class Classes(Compact):
    """The class (*batch,), -1 for none; `encode` takes the number of classes."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        (count,) = faults.sizes(shape, "the number of classes")
        _check_choice("class", index, count, none=True)
        return one_hot(index, count).float()

    def decode(self, y: Any) -> Tensor:
        return used_index(y)

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        return index.unsqueeze(-1)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        faults.check_shape(index, scores[0].shape[:-1], "classes (*batch,)")
        return _check_choice("class", index, scores[0].shape[-1])

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        self.check(torch.where(index == -2, 0, index), *scores)
        return one_hot_or_unknown(index, scores[0].shape[-1])


@dataclass(frozen=True, eq=False)
class Places(Compact):
    """The place (*batch,) in the list of an `Explicit` set, -1 for vectors that are not in the list."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        listed = self.structure.listed
        _check_choice("vertex", index, len(listed), none=True)
        return torch.where((index < 0).unsqueeze(-1), 0, listed.to(index.device)[index.clamp(min=0)])

    def decode(self, y: Any) -> Tensor:
        same = (y.unsqueeze(-2) == self.structure.listed.to(y)).all(-1)
        return torch.where(same.any(-1), same.long().argmax(-1), -1)

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        y = self.encode(index).to(scores[0].device).double()
        return torch.where(y == 0, 0, y * scores[0].double())

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        faults.check_shape(index, scores[0].shape[:-1], "places (*batch,) in the list")
        return _check_choice("vertex", index, len(self.structure.listed))

    def whole(self, y: Any) -> bool:
        return bool((self.decode(y) >= 0).all())

    def hamming(self, first: Tensor) -> Tensor:
        raise ValueError("cost must be given: vertices are not indicators, for which Hamming's cost is defined")


@dataclass(frozen=True, eq=False)
class Items(Compact):
    """The items (*batch, used) of a subset, -1 after the last; `encode` takes the number of items there are."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        y = super().encode(index, *faults.sizes(shape, "the number of items"))
        if _check.readable(index):
            self._check_size((index >= 0).sum(-1, keepdim=True), none=True)
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        super().check(index, *scores)
        if _check.readable(index):
            refuse_repeats("subset", index.unsqueeze(-1), index)
            self._check_size((index >= 0).sum(-1, keepdim=True), none=False)
        return index

    def _check_size(self, count: Tensor, none: bool) -> None:
        """Refuse subsets with a wrong number of items, `count` (*batch, 1); `none` allows 0 items for any k."""
        k, at_most = self.structure.k, self.structure.at_most
        right = (count <= k if at_most else count == k) | ((count == 0) & none)
        size = f"at most {k}" if at_most else f"{k}"
        faults.refuse("subset", ~right, lambda i, _: f"{int(count[i])} parts{faults.of(i)} are used, not {size}")


@dataclass(frozen=True, eq=False)
class Ranks(Compact):
    """The rank (*batch, n) of each entry, from 1 to n; an instance without a ranking is -1 everywhere."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        faults.check_integers(index)
        if index.dim() < 1:
            raise ValueError(f"index must be ranks (*batch, n); got {tuple(index.shape)}")
        none = (index == -1).all(-1, keepdim=True)
        _check_ranks(torch.where(none, torch.arange(1, index.shape[-1] + 1, device=index.device), index))
        return torch.where(none, 0, index).float()

    def decode(self, y: Any) -> Tensor:
        return y.round().long()

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        # in float64: float32 would round these products
        return index * scores[0].double()

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        faults.check_shape(index, scores[0].shape, "ranks (*batch, n)")
        _check_ranks(index)
        return index

    def whole(self, y: Any) -> bool:
        return bool((y == y.round()).all())

    def hamming(self, first: Tensor) -> Tensor:
        raise ValueError("cost must be given: ranks are not indicators, for which Hamming's cost is defined")


def _check_choice(what: str, index: Tensor, count: int, none: bool = False) -> Tensor:
    """Refuse an index that is not in [0, count); with `none`, -1 is allowed."""
    faults.check_integers(index)
    if _check.readable(index):
        bad = ((index < -int(none)) | (index >= count)).unsqueeze(-1)

        def explain(instance: tuple[int, ...], _: int) -> str:
            return f"{int(index[instance])}{faults.of(instance)} is not one in [0, {count})"

        faults.refuse(what, bad, explain)
    return index


def _check_ranks(index: Tensor) -> None:
    """Refuse ranks (*batch, n) unless each rank is given exactly once."""
    if _check.readable(index):
        n = index.shape[-1]

        def explain(instance: tuple[int, ...], place: int) -> str:
            return f"rank {place + 1}{faults.of(instance)} is not given once; ranks are 1 to {n}"

        faults.refuse("ranking", index.sort(-1).values != torch.arange(1, n + 1, device="cpu"), explain)
