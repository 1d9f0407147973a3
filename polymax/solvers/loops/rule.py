"""The part of a solver that the loops read."""

from typing import ClassVar, Protocol

from torch import Tensor


class Rule(Protocol):
    """The name of a step rule, and its limits.

    exact          solve for the weights of all structures after each new structure.
    frank_wolfe    step towards the new structure.
    away           step towards the new structure, or away from the worst, whichever has the larger slope.
    pairwise       move weight from the worst structure to the new structure.

    A rule named "" takes its steps from `direction`.
    """

    step: ClassVar[str]

    @property
    def max_iter(self) -> int: ...

    @property
    def tol(self) -> float: ...

    def direction(self, weights: Tensor, gains: Tensor, new: Tensor) -> tuple[Tensor, Tensor]: ...
