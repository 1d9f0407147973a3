"""Bands: which cells an alignment of n rows and m columns may use."""

import torch
from torch import Tensor

from polymax import _check

Pair = tuple[Tensor, Tensor]


def sakoe_chiba(
    n: int, m: int, radius: int, lengths: Pair | None = None, device: torch.device | str | None = None
) -> Tensor:
    """The cells at most `radius` rows or columns from a cell on the diagonal of the rectangle, (*batch, n, m).

    For n = m these are the cells with |i - j| <= radius. Every radius leaves a path. With lengths, each instance has
    its own diagonal and band.

    Example:
        >>> sakoe_chiba(2, 4, 0).int()
        tensor([[1, 1, 0, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    See: Sakoe and Chiba 1978, Dynamic programming algorithm optimization for spoken word recognition.
    """
    if isinstance(radius, bool) or not isinstance(radius, int):
        raise TypeError(f"radius must be an integer; got {type(radius).__name__}")
    if radius < 0:
        raise ValueError(f"radius must not be negative; got {radius}")
    if lengths is None:
        lengths = (torch.tensor(n, device=device), torch.tensor(m, device=device))
    rows, columns = (t.to(device=device, dtype=torch.long)[..., None, None] for t in lengths)
    i = torch.arange(n, device=rows.device)[:, None]
    j = torch.arange(m, device=rows.device)
    # row i of the rectangle spans [i / rows, (i + 1) / rows] of the diagonal, column j [j / columns, (j + 1) / columns]
    along_columns = (i * columns < (j + radius + 1) * rows) & ((j - radius) * rows < (i + 1) * columns)
    along_rows = ((i - radius) * columns < (j + 1) * rows) & (j * rows < (i + radius + 1) * columns)
    return (along_columns | along_rows) & (i < rows) & (j < columns)


def itakura(
    n: int, m: int, slope: float = 2.0, lengths: Pair | None = None, device: torch.device | str | None = None
) -> Tensor:
    """The cells of a parallelogram around the diagonal of the rectangle, narrow at both ends, (*batch, n, m).

    In coordinates that go from 0 to 1 along rows and columns, a line from either end of the diagonal to the cell has a
    slope between 1 / slope and slope. The cells on the diagonal always belong to it, so that a path is left. With
    lengths, each instance has its own parallelogram.

    Example:
        >>> itakura(4, 4).int()
        tensor([[1, 0, 0, 0],
                [0, 1, 1, 0],
                [0, 1, 1, 0],
                [0, 0, 0, 1]], dtype=torch.int32)

    See: Itakura 1975, Minimum prediction residual principle applied to speech recognition.
    """
    _check.number(slope, "slope", "at least 1", lambda s: s >= 1)
    if isinstance(slope, Tensor):
        raise TypeError("slope must be a number; got a tensor")
    diagonal = sakoe_chiba(n, m, 0, lengths, device)
    if lengths is None:
        lengths = (torch.tensor(n, device=diagonal.device), torch.tensor(m, device=diagonal.device))
    rows, columns = (t.to(device=diagonal.device, dtype=torch.long)[..., None, None] for t in lengths)
    i = torch.arange(n, device=diagonal.device)[:, None]
    j = torch.arange(m, device=diagonal.device)
    # i / (rows - 1), j / (columns - 1) and their distances from 1, multiplied by both denominators
    down, right = (i * (columns - 1)).double(), (j * (rows - 1)).double()
    whole = ((rows - 1) * (columns - 1)).double()
    inside = (i < rows) & (j < columns)
    for a, b in ((down, right), (right, down), (whole - down, whole - right), (whole - right, whole - down)):
        inside = inside & (a <= slope * b)
    return inside | diagonal
