"""Attention small enough to be drawn at once: a picture of a matrix of weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.explore.numbers import round_digits
from polymax_recipes.explore.picture import Picture

MOST = 400


def attention(
    weights: Any, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None, *, title: str = "attention"
) -> Picture:
    """A picture of weights (queries, keys): only nonzero weights are kept and drawn. For a whole model use
    `save_attention`.

    Example:
        >>> attention(pm.sparsemax(torch.tensor([[1.0, 0.5, -1.0]])), ["a"], ["x", "y", "z"]).data["cells"]
        [0, 0, 0.75, 0, 1, 0.25]
    """
    found = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if found.ndim != 2 or not 1 <= max(found.shape) <= MOST or 0 in found.shape:
        raise ValueError(f"weights must be (queries, keys), each from 1 to {MOST}; got {tuple(found.shape)}")
    names = []
    for which, given, size in zip(("rows", "columns"), (rows, columns), found.shape):
        texts = [str(k + 1) for k in range(size)] if given is None else [str(one) for one in given]
        if len(texts) != size:
            raise ValueError(f"{which} must be {size}, one for each; got {len(texts)}")
        names.append(texts)
    return Picture(matrix_data(found, names[0], names[1], title))


def matrix_data(weights: Tensor, rows: list[str], columns: list[str], title: str) -> dict[str, Any]:
    """The data of a picture of weights: cells that are not zero, as i, j, p one after the other."""
    places = (weights > 0).nonzero()
    values = weights[tuple(places.T)].tolist()
    cells = [number for (i, j), p in zip(places.tolist(), values) for number in (i, j, round_digits(p, 4))]
    return {"kind": "matrix", "title": title, "rows": rows, "columns": columns, "cells": cells}
