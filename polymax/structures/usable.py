"""Masks of the parts that structures can use, by the lengths of instances, for the method `usable` of sets."""

import torch
from torch import Tensor


def places(device: torch.device, *shape: int) -> tuple[Tensor, ...]:
    """The index of each entry along each dimension."""
    return torch.meshgrid(*(torch.arange(n, device=device) for n in shape), indexing="ij")


def before_end(lengths: Tensor | None, size: int, place: Tensor, dims: int) -> Tensor:
    """True for places before the end of an instance, (*batch, ...) of `dims` dims."""
    if lengths is None:
        inside = place < size
    else:
        inside = place < lengths.to(place.device).reshape(*lengths.shape, *[1] * place.dim())
    return inside.reshape(*inside.shape, *[1] * (dims - place.dim()))


def usable_cells(lengths: tuple[Tensor, Tensor] | None, cells: Tensor) -> tuple[Tensor, ...]:
    """The cells (*batch, n, m) of instances with these numbers of rows and columns."""
    n, m = cells.shape[-2:]
    row, column = places(cells.device, n, m)
    rows, columns = lengths or (None, None)
    return (before_end(rows, n, row, 2) & before_end(columns, m, column, 2),)


def usable_arcs(lengths: Tensor | None, arcs: Tensor, labelled: bool) -> Tensor:
    """The arcs (*batch, n + 1, n + 1), [head, modifier], of trees over these numbers of tokens; labels come after."""
    nodes = arcs.shape[-2]
    head, modifier = places(arcs.device, nodes, nodes)
    # lengths count tokens, and the root symbol comes before them
    inside = before_end(lengths, nodes, torch.maximum(head, modifier) - 1, 2)
    inside = inside & (head != modifier) & (modifier > 0)
    return inside.unsqueeze(-1) if labelled else inside
