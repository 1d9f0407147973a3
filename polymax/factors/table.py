"""All settings of a few variables, with a score for each setting."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.structures.base import Structure


class TableParts(NamedTuple):
    """Indicators of the variables that are on, (*batch, k), and of the setting, (*batch, 2^k)."""

    variables: Tensor
    settings: Tensor


@dataclass(frozen=True, eq=False)
class Table(Structure):
    """All settings of k variables; the second tensor scores settings as wholes.

    Shapes: variables (*batch, k), settings (*batch, 2^k) in the order of itertools.product
    """

    k: int

    def map(self, *scores: Tensor) -> TableParts:
        variables, settings = self.full(*scores)
        total = _times(self._listed.to(variables), variables.unsqueeze(-2)).sum(-1) + settings
        best = total.argmax(-1, keepdim=True)
        some = total.gather(-1, best) > -torch.inf
        chosen = torch.zeros_like(total).scatter(-1, best, some.to(total.dtype))
        return TableParts(torch.where(some, self._listed.to(variables)[best.squeeze(-1)], 0), chosen)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        if len(scores) != 2:
            raise TypeError(f"a table has two score tensors, variables and settings; got {len(scores)}")
        variables, settings = scores
        if variables.shape[-1:] != (self.k,) or settings.shape[-1:] != (2**self.k,):
            raise ValueError(
                f"scores must be (*batch, {self.k}) and (*batch, {2**self.k}); "
                f"got {tuple(variables.shape)} and {tuple(settings.shape)}"
            )
        return variables, settings.expand(*variables.shape[:-1], 2**self.k)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return 1, 1

    def vertices(self, event_shape: tuple[int, ...] = ()) -> TableParts:
        return TableParts(self._listed, torch.eye(2**self.k, device="cpu"))

    def complete(self, first: Tensor) -> TableParts:
        powers = 2 ** torch.arange(self.k - 1, -1, -1, device=first.device)
        number = (first.round().long() * powers).sum(-1)
        return TableParts(first, torch.nn.functional.one_hot(number, 2**self.k).to(first.dtype))

    def named(self, *parts: Tensor) -> TableParts:
        return TableParts(*parts)

    @cached_property
    def _listed(self) -> Tensor:
        return torch.tensor(list(product((0.0, 1.0), repeat=self.k)), device="cpu")


def _times(y: Tensor, x: Tensor) -> Tensor:
    """y x, with 0 for parts that are not used, even if their score is -inf."""
    return torch.where(y == 0, 0, y * x)
