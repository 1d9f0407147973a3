"""A factor: a structure, or a rule of logic, over some of a graph's variables."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.structures.base import Structure

# entries of `at`: a part that is private to its factor; a part or input that an instance does not have
PRIVATE, ABSENT = -1, -2


@dataclass(frozen=True, eq=False)
class Factor:
    """A structure some of whose parts are variables of a graph.

    `at` gives, for each part of the structure's first score tensor, the number of its variable; -1 for a part that is
    private to the factor, with a score of its own; -2 for a part that no structure uses, such as padding.

    Shapes: at: integers, in the shape of the first score tensor of an instance, or (*batch, ...) if instances differ

    Example:
        >>> tags = Factor(pm.Chain(), torch.arange(6).reshape(3, 2))
    """

    structure: Structure
    at: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(f"structure must be a Structure; got {type(self.structure).__name__}")
        object.__setattr__(self, "at", numbers(self.at, "at", ABSENT))
        if self.at.dim() < self.dims[0]:
            raise ValueError(
                f"at must have the {self.dims[0]} dims of the first score tensor of {self}; got {tuple(self.at.shape)}"
            )

    def __str__(self) -> str:
        return type(self.structure).__name__

    @property
    def dims(self) -> tuple[int, ...]:
        """The number of dims of each score tensor of the structure."""
        return self.structure.event_dims(torch.zeros(self.at.shape))

    @property
    def event(self) -> torch.Size:
        """The shape of the first score tensor of one instance."""
        return self.at.shape[self.at.dim() - self.dims[0] :]

    @property
    def lead(self) -> torch.Size:
        """The batch shape of `at`; () if all instances have the same `at`."""
        return self.at.shape[: self.at.dim() - self.dims[0]]

    @property
    def mixed(self) -> bool:
        """True if parts of the first score tensor are private."""
        return bool((self.at == PRIVATE).any())

    @property
    def private(self) -> tuple[int, ...]:
        """The dims of the private score tensors, in the order in which the graph takes them."""
        return self.dims if self.mixed else self.dims[1:]


@dataclass(frozen=True, eq=False)
class Logic:
    """A rule that holds for variables of a graph: rows of linear constraints, whose vertices are 0 and 1.

    `rows` (R, k) are coefficients of the literals: mu, or 1 - mu if an entry is `negated`. `kind` is "=", "<=" or ">="
    for each row. `bound`, plus `counts` times the number of inputs, is its right side. A row holds in the instances
    that have all entries marked in `needed`.

    Shapes: at (k,) or (*batch, k), -1 for an input that an instance does not have; negated (k,); needed (R, k) bool
    """

    name: str
    at: Tensor
    negated: Tensor
    rows: Tensor
    kind: tuple[str, ...]
    bound: Tensor
    counts: Tensor
    needed: Tensor

    def __str__(self) -> str:
        return self.name

    @property
    def lead(self) -> torch.Size:
        return self.at.shape[:-1]

    @property
    def private(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Pair:
    """A private score that counts if both literals are on. Shapes: at (2,) or (*batch, 2), negated (2,)."""

    at: Tensor
    negated: Tensor

    def __str__(self) -> str:
        return "pair"

    @property
    def lead(self) -> torch.Size:
        return self.at.shape[:-1]

    @property
    def private(self) -> tuple[int, ...]:
        return (0,)


def numbers(at: Any, name: str, least: int = PRIVATE) -> Tensor:
    """The numbers of variables as a tensor on the CPU; an error if they are not integers of at least `least`."""
    found = torch.as_tensor(at)
    if found.numel() == 0:
        found = found.long()
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, the numbers of variables; got {found.dtype}")
    found = found.long().cpu()
    if found.numel() and int(found.min()) < least:
        raise ValueError(f"{name} must be at least {least}; got {int(found.min())}")
    return found
