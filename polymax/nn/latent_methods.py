"""Ways to learn through latent dependency trees, by name and as objects."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polymax.estimators import (
    Estimator,
    PerturbAndMap,
    Relaxed,
    ScoreFunction,
    SelfCritical,
    SparseExpectation,
    Spigot,
    StraightThrough,
)
from polymax.smoothing import HardMax, Marginals, Smoothing
from polymax.smoothing.perturbed import Perturbed
from polymax.smoothing.sparse_map import SparseMap
from polymax.structures.projective_tree import ProjectiveTree
from polymax.structures.spanning_tree import SpanningTree

Trees = SpanningTree | ProjectiveTree


@dataclass(frozen=True, eq=False)
class Given:
    """Trees that are not learned: the trees of `rule`, or trees given with the sentences, as heads.

        heads = rule(lengths (B,), n)

    Example:
        >>> chains = pm.nn.LatentDependency(3, 8, Given(pm.SpanningTree(), left_chain))
        >>> chains.trees(torch.zeros(1, 4, 3))
        tensor([[0, 1, 2, 3]])
    """

    structure: Trees
    rule: Callable[[Tensor, int], Tensor] | None = None

    def heads(self, lengths: Tensor, n: int) -> Tensor:
        """The heads (B, n) of sentences of these lengths; a ValueError if they are not trees."""
        if self.rule is None:
            raise ValueError(f"heads must be {(len(lengths), n)}, the trees that are given; got None")
        # only the shape of these scores is used
        scores = torch.zeros((), device=lengths.device).expand(len(lengths), n + 1, n + 1)
        return self.structure.with_lengths(lengths).compact.check(self.rule(lengths, n), scores)


Method = Smoothing | Relaxed | Estimator | SparseExpectation | ScoreFunction | Given


def left_chain(lengths: Tensor, n: int) -> Tensor:
    """Heads (B, n) of trees in which each token hangs from its left neighbour, the first from the root symbol.

    Example:
        >>> left_chain(torch.tensor([3, 1]), 3)
        tensor([[ 0,  1,  2],
                [ 0, -1, -1]])
    """
    place = torch.arange(n, device=lengths.device)
    return torch.where(place < lengths.unsqueeze(-1), place, -1)


def right_chain(lengths: Tensor, n: int) -> Tensor:
    """Heads (B, n) of trees in which each token hangs from its right neighbour, the last from the root symbol.

    Example:
        >>> right_chain(torch.tensor([3, 1]), 3)
        tensor([[ 2,  3,  0],
                [ 0, -1, -1]])
    """
    place, size = torch.arange(n, device=lengths.device), lengths.unsqueeze(-1)
    return torch.where(place < size, torch.where(place == size - 1, 0, place + 2), -1)


# the methods with names, for command lines
METHODS: dict[str, Callable[[Trees], Method]] = {
    "structured-attention": Marginals,
    "sparsemap": SparseMap,
    "sparse-expectation": SparseExpectation,
    "perturb": lambda trees: PerturbAndMap(trees, through=Marginals(trees)),
    "straight-through": StraightThrough,
    "spigot": Spigot,
    "score-function": lambda trees: ScoreFunction(trees, SelfCritical()),
    "best": HardMax,
    "given": Given,
    "left-chain": lambda trees: Given(trees, left_chain),
    "right-chain": lambda trees: Given(trees, right_chain),
}


def method_of(method: str | Method, projective: bool) -> Method:
    """The method of this name; a method object is returned unchanged."""
    kind = ProjectiveTree if projective else SpanningTree
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
        return METHODS[method](kind())
    if not isinstance(method, Method) or isinstance(method, Perturbed):
        raise TypeError(f"method must be a name, a smoothing, an estimator or Given; got {type(method).__name__}")
    found = trees_of(method)
    if not isinstance(found, Trees):
        raise TypeError(f"method must range over SpanningTree or ProjectiveTree; got {type(found).__name__}")
    if projective and not isinstance(found, ProjectiveTree):
        raise ValueError("projective must be False for a method over SpanningTree, or left out")
    return method


def trees_of(method: Method) -> Any:
    """The set of trees that a method ranges over."""
    match method:
        case ScoreFunction():
            return method.policy.structure
        case SparseExpectation():
            return method.smooth.structure
        case Relaxed():
            return method.smooth.structure
    return method.structure


def soft(method: Method) -> bool:
    """True if a method gives expected arcs, and not a tree."""
    return isinstance(method, Smoothing | Relaxed) and not isinstance(method, HardMax)


def method_for_batch(method: Method, lengths: Tensor) -> Method:
    """The method for a batch of these lengths; expected losses are returned for each instance."""
    match method:
        case Given():
            return method
        case ScoreFunction():
            return ScoreFunction(method.policy.with_lengths(lengths), method.baseline, method.samples, "none")
        case SparseExpectation():
            return replace(method.with_lengths(lengths), reduction="none")
    return method.with_lengths(lengths)
