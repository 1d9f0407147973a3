"""The arguments of the linear loss and of its gradient, in the order of the operators."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

SCHEMA = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor? named, Tensor? spread, "
    "float alpha, Tensor? alphas, float softcap, float scale"
)
GRADS = "Tensor grad_value, Tensor grad_chosen, Tensor grad_mean"
SAVED = "Tensor chosen, Tensor moment, Tensor top, Tensor tau, Tensor ids, Tensor probs, Tensor count, Tensor extent"


class LossProblem(NamedTuple):
    """The arguments of the operator; the package's docstring explains them."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    named: Tensor | None
    spread: Tensor | None
    alpha: float
    alphas: Tensor | None
    softcap: float
    scale: float

    @property
    def sloped(self) -> bool:
        """Return True if the derivative in alpha is needed."""
        return self.alphas is not None

    @property
    def linear(self) -> bool:
        """Return True if the mean is linear in hidden: one spread for all rows, and logits as they are."""
        return self.spread is not None and self.spread.dim() == 1 and not self.softcap and self.scale == 1

    @property
    def curved(self) -> Tensor | None:
        """The spread, if the mean is no linear function of hidden: then all words have a gradient."""
        return None if self.linear else self.spread

    @property
    def has_lists(self) -> bool:
        """Return True if rows may have few words with a gradient."""
        return 1 < self.alpha <= 2 and self.curved is None and self.scale == 1

    @property
    def counted(self) -> Tensor:
        """Return True for rows that count, (n,)."""
        if self.named is None:
            return torch.ones(len(self.hidden), dtype=torch.bool, device=self.hidden.device)
        inside = self.named >= 0
        return inside.squeeze(1) if inside.shape[1] == 1 else inside.any(1)


class Grads(NamedTuple):
    """The gradients of value, chosen, mean and moment; None for a moment that is not needed."""

    value: Tensor
    chosen: Tensor
    mean: Tensor
    moment: Tensor | None = None


class Saved(NamedTuple):
    """Results of the operator that its gradient needs."""

    chosen: Tensor
    moment: Tensor
    top: Tensor
    tau: Tensor
    ids: Tensor
    probs: Tensor
    count: Tensor
    extent: Tensor


class Parts(NamedTuple):
    """The results of the operator."""

    value: Tensor
    chosen: Tensor
    mean: Tensor
    moment: Tensor
    top: Tensor
    tau: Tensor
    slope: Tensor
    ids: Tensor
    probs: Tensor
    count: Tensor
    extent: Tensor

    @property
    def saved(self) -> Saved:
        return Saved(self.chosen, self.moment, self.top, self.tau, *self[7:])


def problem_of(given: tuple[Any, ...]) -> LossProblem:
    """Return the arguments by name, with alpha as a number."""
    problem = LossProblem(*given)
    return problem if problem.alphas is None else problem._replace(alpha=float(problem.alphas))


def backward_of(given: tuple[Any, ...]) -> tuple[Grads, LossProblem, Saved, bool, bool]:
    """Return the arguments of the gradient by name, then True if hidden needs a gradient, and if weight and bias do."""
    return Grads(*given[:4]), problem_of(given[4:13]), Saved(*given[13:21]), given[21], given[22]


def slopes_of(given: tuple[Any, ...]) -> tuple[Grads, LossProblem, bool, bool]:
    """Return the arguments of values with gradients by name, then True if hidden needs a gradient, and if weight and
    bias do.
    """
    return Grads(*given[:3]), problem_of(given[3:12]), given[12], given[13]
