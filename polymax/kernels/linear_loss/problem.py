"""What a call of the linear loss is given, and what its gradient is given, in the order of the operators."""

from typing import Any, NamedTuple

from torch import Tensor

SCHEMA = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor? target, Tensor? spread, "
    "float alpha, Tensor? alphas, float softcap"
)
GRADS = "Tensor grad_value, Tensor grad_chosen, Tensor grad_mean"
SAVED = "Tensor chosen, Tensor top, Tensor tau, Tensor ids, Tensor probs, Tensor count, Tensor extent"


class Problem(NamedTuple):
    """The arguments of the operator; see the package for what they mean."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    target: Tensor | None
    spread: Tensor | None
    alpha: float
    alphas: Tensor | None
    softcap: float

    @property
    def sloped(self) -> bool:
        """True if the derivative in alpha is asked for."""
        return self.alphas is not None

    @property
    def has_lists(self) -> bool:
        """True if rows may have few words with a gradient: under a cap, all have a part in that of their mean."""
        return 1 < self.alpha <= 2 and not (self.softcap and self.spread is not None)


class Grads(NamedTuple):
    """The gradients of value, chosen and mean."""

    value: Tensor
    chosen: Tensor
    mean: Tensor


class Saved(NamedTuple):
    """Results of the operator that its gradient needs."""

    chosen: Tensor
    top: Tensor
    tau: Tensor
    ids: Tensor
    probs: Tensor
    count: Tensor
    extent: Tensor


def problem_of(given: tuple[Any, ...]) -> Problem:
    """Arguments by name, with alpha as a number."""
    problem = Problem(*given)
    return problem if problem.alphas is None else problem._replace(alpha=float(problem.alphas))


def backward_of(given: tuple[Any, ...]) -> tuple[Grads, Problem, Saved, bool, bool]:
    """Arguments of the gradient by name; and whether that of hidden, and that of weight and bias, is asked for."""
    return Grads(*given[:3]), problem_of(given[3:11]), Saved(*given[11:18]), given[18], given[19]
