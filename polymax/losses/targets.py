"""Targets of losses: a whole structure, a part of a structure, or a mean of several structures."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution

from polymax import _check
from polymax.hypergraphs.entropy import UnknownOmega
from polymax.smoothing import Marginals, Smoothing
from polymax.structures.base import Parts, Structure, tensors


class Compared(NamedTuple):
    """The scores whose smoothed maximum a loss takes, and the number that it subtracts.

    `scores` are shifted alike for all structures. `gold` (*batch,) is the target's score less its Omega, -inf if the
    target is forbidden. `size` (*batch,) is the size of the terms added up: a loss below their rounding is 0.
    """

    scores: tuple[Tensor, ...]
    gold: Tensor
    size: Tensor


class Target(Protocol):
    """A target of a loss."""

    def two_sides(self, smooth: Smoothing, scores: tuple[Tensor, ...]) -> Compared:
        """The two sides of the loss."""

    def hamming(self, structure: Structure, scores: tuple[Tensor, ...]) -> Tensor:
        """The Hamming costs of the first tensor's parts; a structure's cost is its number of wrong parts."""


@dataclass(frozen=True)
class Whole:
    """A target with a structure for each instance, in compact form."""

    index: Tensor

    def two_sides(self, smooth: Smoothing, scores: tuple[Tensor, ...]) -> Compared:
        terms = smooth.structure.compact.terms(self.index, *scores)
        omega = smooth.omega_at(self.index, *scores)
        if isinstance(omega, Tensor) or scores[0].device.type != "cpu":
            # in float64: Omega is another large term to subtract, and other devices sum chains in another order
            scores, terms = tuple(x.double() for x in scores), terms.double()
        shifted, gold = smooth.structure.compact.shift_to_target(terms, *scores)
        gold = torch.where((terms == -torch.inf).any(-1), -torch.inf, gold - omega)
        return Compared(shifted, gold, terms.detach().double().abs().sum(-1) + omega)

    def hamming(self, structure: Structure, scores: tuple[Tensor, ...]) -> Tensor:
        return structure.compact.hamming(structure.compact.first(self.index, *scores))


@dataclass(frozen=True)
class Between:
    """A point of the hull for each instance, such as the expectations of a teacher; or a teacher itself.

    If Omega is not known at the point, it is left out: a constant, which has no gradient in the scores. A distribution
    has an entropy, from which follows the Omega of `Marginals`.
    """

    mu: Parts
    teacher: Any = None

    def two_sides(self, smooth: Smoothing, scores: tuple[Tensor, ...]) -> Compared:
        exact = tuple(x.double() for x in scores)
        mu = tuple(m.double() for m in tensors(self.mu))
        point = smooth.structure.named(*mu)
        omega = self._omega(smooth, point)
        gold = smooth.structure.score(point, *exact) - omega
        size = smooth.structure.score(point, *(x.detach().abs() for x in exact)) + torch.as_tensor(omega).detach().abs()
        return Compared(exact, gold, size)

    def _omega(self, smooth: Smoothing, point: Parts) -> Tensor | float:
        if self.teacher is not None and isinstance(smooth, Marginals):
            return -smooth.gamma * self.teacher.entropy().double()
        try:
            return smooth.omega(point)
        except UnknownOmega as error:
            if any(m.requires_grad for m in tensors(point)):
                raise ValueError(f"y must not require a gradient, which is not known: {error}") from error
            return 0.0

    def hamming(self, structure: Structure, scores: tuple[Tensor, ...]) -> Tensor:
        return structure.compact.hamming(tensors(self.mu)[0])


@dataclass(frozen=True, eq=False)
class Partial:
    """A target with some known parts: the loss is that of all structures that agree with them.

        loss = max(scores) - max(scores of allowed structures)

    Marginals sums over the structures that agree, LocalMax takes their smoothed maximum, and with other smoothings the
    best of them is the target. `known` is bool, True for allowed parts of the first score tensor; or integers as
    `encode` takes them, with -2 for unknown entries: tags, heads, columns, a class.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
        >>> pm.fenchel_young(pm.Marginals(pm.Chain()), scores, Partial(torch.tensor([0, -2])))  # the first tag is 0
        tensor(0.1269)

    See: Tsuboi et al. 2008, Training conditional random fields using incomplete annotations.
    """

    known: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.known, Tensor) or self.known.is_floating_point():
            came = self.known.dtype if isinstance(self.known, Tensor) else type(self.known).__name__
            raise TypeError(f"known must be a tensor of bool or integers; got {came}")

    def two_sides(self, smooth: Smoothing, scores: tuple[Tensor, ...]) -> Compared:
        exact = tuple(x.double() for x in scores)
        forbidden = ~self.allowed(smooth.structure, scores)
        gold = smooth.best_of(exact[0].masked_fill(forbidden, -torch.inf), *exact[1:])
        return Compared(exact, gold, gold.detach().abs())

    def hamming(self, structure: Structure, scores: tuple[Tensor, ...]) -> Tensor:
        return structure.compact.hamming(self.allowed(structure, scores).to(scores[0].dtype))

    def allowed(self, structure: Structure, scores: tuple[Tensor, ...]) -> Tensor:
        """The parts that agree with the known parts, bool, which broadcasts to the first score tensor."""
        if self.known.dtype != torch.bool:
            return structure.compact.allowed(self.known.long(), *scores)
        _check.broadcasts(self.known, scores[0], "known")
        return self.known


def target_of(structure: Structure, scores: tuple[Tensor, ...], y: Any) -> Target:
    """The target that y describes, checked."""
    if isinstance(y, Partial):
        return y
    if isinstance(y, Distribution):
        return Between(_parts(structure, scores, y.mean), y)
    if isinstance(y, Tensor) and y.dtype == torch.bool:
        raise TypeError("y is bool: Partial(y) if it says which parts are allowed, y.float() if which are used")
    if isinstance(y, Tensor) and not y.is_floating_point():
        return Whole(structure.compact.check(y.long(), *scores))
    mu = _parts(structure, scores, y)
    # compiled code cannot test if y holds structures, and treats them as points between structures
    if torch.compiler.is_compiling() or not structure.compact.whole(mu):
        if isinstance(y, Tensor) and len(scores) > 1:
            raise ValueError(f"y must have {len(scores)} tensors, like the scores: it is between structures")
        return Between(mu)
    structure.compact.check_parts(mu, *scores)
    return Whole(structure.compact.check(structure.decode(mu), *scores))


def _parts(structure: Structure, scores: tuple[Tensor, ...], y: Any) -> Parts:
    """Indicators of structures, completed if only the first tensor is given."""
    given = (y,) if isinstance(y, Tensor) else y
    if not isinstance(given, tuple) or not all(isinstance(t, Tensor) and t.is_floating_point() for t in given):
        raise TypeError(
            "y must be a tensor of integers, indicators (a floating-point tensor, or a tuple of them), a distribution"
            " over structures, or a Partial;"
            f" got {type(y).__name__}"
        )
    shapes = [x.shape for x in structure.full(*scores)]
    if len(given) not in (1, len(shapes)):
        raise ValueError(f"y must have {len(shapes)} tensors, like the scores; got {len(given)}")
    for t, shape in zip(given, shapes, strict=False):
        if t.shape != shape:
            raise ValueError(f"y must be indicators {tuple(shape)}, shaped like the scores; got {tuple(t.shape)}")
    return structure.complete(given[0]) if len(given) == 1 else structure.named(*given)
