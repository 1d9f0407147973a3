"""The solution of a SparseMAP problem in one piece of memory, as the loop of a GPU leaves it."""

from typing import Any

import torch
from torch import Tensor

from polymax.kernels.active_set.problem import UsedParts
from polymax.solvers.solution import Solution


class KeptSolution(Solution):
    """A solution whose tensors are made when someone asks for one: mu and its derivatives need the memory alone.

    `rooms` tell where they are: lists of parts, probs, overlaps, value, iterations and gap. There is no memory where
    one of them was replaced by another tensor. `ready` has mu where it is known, for the first who asks.
    """

    memory: Tensor | None = None
    rooms: Any
    ready: list[tuple[Tensor, ...]]
    batch: torch.Size
    events: tuple[torch.Size, ...]

    @classmethod
    def of(
        cls, memory: Tensor, rooms: Any, batch: torch.Size, events: tuple[torch.Size, ...], mean: tuple[Tensor, ...]
    ) -> "KeptSolution":
        self = object.__new__(cls)
        ready = [mean] if mean else []
        self.__dict__.update(memory=memory, rooms=rooms, batch=batch, events=events, ready=ready)
        return self

    def take(self, dtype: torch.dtype) -> tuple[Tensor, ...] | None:
        """mu, for the first who asks for it in the dtype of the scores."""
        try:
            return self.ready.pop() if self.ready[0][0].dtype == dtype else None
        except IndexError:
            return None

    def __getattr__(self, name: str) -> Any:
        # only for what is not there yet
        if name not in ("found", "probs", "overlaps", "value", "iterations", "gap"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        lists, probs, overlaps, value, iterations, gap = self.rooms.tensors(self.memory)
        made = {"probs": probs, "overlaps": overlaps, "value": value, "iterations": iterations, "gap": gap}
        self.__dict__.update(found=UsedParts(lists, self.events), **made)
        return self.__dict__[name]
