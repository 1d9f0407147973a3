"""Two series: reading them, their expected alignment and best path, and files of the alignment."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import polymax as pm
from polymax_recipes.outputs import atomic_write
from polymax_recipes.readers.series import read_series, read_steps
from polymax_recipes.series.warp import discrepancy

MATRICES = (".csv", ".npy")


class Aligned(NamedTuple):
    """Shapes: value (); expected and path (n, m); cells (k, 2), from the first to the last."""

    value: Tensor
    expected: Tensor
    path: Tensor
    cells: Tensor


def two_series(files: Sequence[Path], index: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """The series of two files with a time step a line, or two series of one file, given by their places from 0."""
    if len(files) == 2 and index is None:
        x, y = map(read_steps, files)
    elif len(files) == 1 and index is not None:
        found = [series.values for series in read_series(files[0], complete=True)]
        for place in index:
            if not 0 <= place < len(found):
                raise ValueError(f"--index must be from 0 to {len(found) - 1}, the series of {files[0]}; got {place}")
        x, y = (found[place] for place in index)
    else:
        raise ValueError("give two files with a time step a line, or one file of many series and --index I J")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"series must have one number of dimensions; got {x.shape[1]} and {y.shape[1]}")
    return x, y


def aligned(x: Tensor, y: Tensor, smoothing: str, gamma: float, band: int | None = None) -> Aligned:
    """The discrepancy of two series, its expected alignment, and the path of least cost.

    Shapes: x (n, d), y (m, d)

    Example:
        >>> found = aligned(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [0.0], [1.0]]), "hard", 1.0)
        >>> found.cells.tolist()
        [[0, 0], [0, 1], [1, 2]]
    """
    cost = pm.squared_euclidean(x, y).requires_grad_()
    value = discrepancy(smoothing, cost, gamma, band=band)
    (expected,) = torch.autograd.grad(value, cost)
    (path,) = torch.autograd.grad(discrepancy("hard", cost, gamma, band=band), cost)
    # in path order: every step increases row + column, and rows do not fall
    cells = path.nonzero()
    return Aligned(value.detach(), expected, path, cells[cells.sum(1).argsort()])


def write_matrix(file: Path, matrix: Tensor) -> None:
    """An expected alignment as text with commas (.csv) or as numpy's own format (.npy)."""
    with atomic_write(file) as temporary, temporary.open("wb") as opened:
        if file.suffix == ".npy":
            np.save(opened, matrix.numpy())
        else:
            np.savetxt(opened, matrix.numpy(), fmt="%.9g", delimiter=",")
