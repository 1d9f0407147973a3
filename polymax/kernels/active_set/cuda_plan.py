"""How a kind of search is planned for the programs of a GPU: a function for Triton, its tensors and its sizes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.backend.triton_memory import Array


class Plan(NamedTuple):
    """How structures are found: a function for Triton, its tensors, what memory it needs, and constants.

    The event is (height, width), the shape of the first tensor; a structure has `slots`, and a program `warps`.
    Sequences of `states` have steps, which are listed after them; `others` are the scores of other tensors. Where a
    slot is a row, it has `columns` at most, a power of two; 0 elsewhere. Places for `likely` structures may suffice.
    If `quick` is 1, `best` takes scores in float32, too, and slots are rows.
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
    """Memory of a program for each of the instances (B, ...) of a tensor, which a call asks for."""
    return Array(dtype, (len(like), *shape))


def places_of(vertices: Tensor, dims: int) -> Tensor:
    """The place in a flat first tensor, of `dims` dims, of each part that structures use; -1 for the others."""
    event = vertices.shape[vertices.dim() - dims :]
    return torch.where(vertices != 0, torch.arange(event.numel(), device=vertices.device).reshape(event), -1)
