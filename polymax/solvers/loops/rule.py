"""The part of a solver that the loops read."""

from typing import ClassVar, Protocol

from torch import Tensor


class Rule(Protocol):
    """A step rule by its name, and when it stops.

    exact          the weights of all structures found so far are solved for after each new one
    frank_wolfe    a step towards the new structure
    away           such a step, or one away from the worst structure, whichever promises more
    pairwise       weight moves from the worst structure to the new one

    A rule without a name, "", has its steps from `direction`.
    """

    step: ClassVar[str]

    @property
    def max_iter(self) -> int: ...

    @property
    def tol(self) -> float: ...

    def direction(self, weights: Tensor, gains: Tensor, new: Tensor) -> tuple[Tensor, Tensor]: ...
