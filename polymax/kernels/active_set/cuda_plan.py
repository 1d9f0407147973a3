"""The plan of a kind of search on a GPU: a function for Triton, its tensors and its sizes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.backend.triton_memory import Array


class Plan(NamedTuple):
    """The plan of a search: a function for Triton, its tensors, the memory it needs, and constants.

    The event is (height, width), the shape of the first tensor; a structure has `slots`, and a program `warps`.
    Sequences of `states` have steps, which are listed after the states; `others` are the scores of other tensors. If a
    slot is a row, `columns` is the largest number of its columns, a power of two; else 0. Places for `likely`
    structures will probably suffice. If `quick` is 1, `best` also takes scores in float32, and slots are rows.
    """

    best: Any
    problem: tuple[Any, ...]
    sizes: tuple[int, ...]
    event: tuple[int, int]
    slots: int
    warps: int
    states: int = 0
    others: Tensor | None = None
    columns: int = 0
    likely: int = 0
    quick: int = 0


def own(like: Tensor, *shape: int, dtype: torch.dtype = torch.float64) -> Array:
    """Return an array (B, ...) of workspace, one part for each of the instances (B, ...) of a tensor."""
    return Array(dtype, (len(like), *shape))


def places_of(vertices: Tensor, dims: int) -> Tensor:
    """Return for each part the offset in the flat first tensor, of `dims` dims, if the structure uses it; else -1."""
    event = vertices.shape[vertices.dim() - dims :]
    return torch.where(vertices != 0, torch.arange(event.numel(), device=vertices.device).reshape(event), -1)
