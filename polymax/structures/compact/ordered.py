"""Choices of one of s for each frame, in an order that the set prescribes: alignments of speech."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from polymax import _check
from polymax._parts import Parts, tensors
from polymax.structures.compact.tags import OneEach


@dataclass(frozen=True, eq=False)
class Ordered(OneEach, ABC):
    """A number below s for each frame, (*batch, frames), -1 at padding; a subclass checks their order."""

    @abstractmethod
    def check_order(self, index: Tensor, like: Tensor) -> None:
        """Refuse an index that is not a structure of any length; `like` has the shape of the indicators."""

    def check_end(self, index: Tensor, *scores: Tensor) -> None:
        """Refuse an index that does not end with these scores; by default nothing is refused."""
        return

    def encode(self, index: Tensor, *shape: int) -> Parts:
        y = super().encode(index, *shape)
        if _check.readable(index):
            self.check_order(index, tensors(y)[0])
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        index = super().check(index, *scores)
        if _check.readable(index):
            self.check_order(index, scores[0])
            self.check_end(index, *scores)
        return index
