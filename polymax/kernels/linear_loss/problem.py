"""The arguments of the linear loss and of its gradient, in the order of the operators."""

from typing import Any, NamedTuple

from torch import Tensor

SCHEMA = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor? target, Tensor? spread, "
    "float alpha, Tensor? alphas, float softcap"
)
GRADS = "Tensor grad_value, Tensor grad_chosen, Tensor grad_mean"
SAVED = "Tensor chosen, Tensor top, Tensor tau, Tensor ids, Tensor probs, Tensor count, Tensor extent"


class LossProblem(NamedTuple):
    """The arguments of the operator; the package's docstring explains them."""

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
        """Return True if the derivative in alpha is needed."""
        return self.alphas is not None

    @property
    def has_lists(self) -> bool:
        """Return True if rows may have few words with a gradient: with a cap, the gradient of the mean involves all
        words.
        """
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


def problem_of(given: tuple[Any, ...]) -> LossProblem:
    """Return the arguments by name, with alpha as a number."""
    problem = LossProblem(*given)
    return problem if problem.alphas is None else problem._replace(alpha=float(problem.alphas))


def backward_of(given: tuple[Any, ...]) -> tuple[Grads, LossProblem, Saved, bool, bool]:
    """Return the arguments of the gradient by name, then True if hidden needs a gradient, and if weight and bias do."""
    return Grads(*given[:3]), problem_of(given[3:11]), Saved(*given[11:18]), given[18], given[19]
