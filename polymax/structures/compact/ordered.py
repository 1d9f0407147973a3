"""One of s for each frame, in an order that the set prescribes: alignments of speech."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from polymax import _check
from polymax._parts import Parts, tensors
from polymax.structures.compact.tags import OneEach


@dataclass(frozen=True, eq=False)
class Ordered(OneEach, ABC):
    """One of s for each frame, (*batch, frames), -1 at padding; a subclass says which orders are structures."""

    @abstractmethod
    def check_order(self, index: Tensor, like: Tensor) -> None:
        """Refuse what is no structure of whatever length; `like` is shaped as the indicators are."""

    def check_end(self, index: Tensor, *scores: Tensor) -> None:
        """Refuse what does not end where these scores do; a set whose order says it all has nothing to refuse."""
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
