"""The table of losses over structures: every set with every smoothing it has."""

import pytest
import torch
from sets import TABLE as ROWS

import polymax as pm

SMOOTHINGS = {
    "hard": (pm.Structure, pm.HardMax),
    "marginals": (pm.Counted, lambda structure: pm.Marginals(structure, 0.7)),
    "sparse": (pm.Structure, lambda structure: pm.SparseMap(structure, gamma=0.8)),
    "local": (pm.DynamicProgram, lambda structure: pm.LocalMax(structure, pm.Gini())),
}
CASES = [
    pytest.param(row, make, id=f"{row.name}-{name}")
    for row in ROWS
    for name, (kind, make) in SMOOTHINGS.items()
    if isinstance(row.structure, kind)
]
all_cases = pytest.mark.parametrize(("row", "make"), CASES)
INDICATORS = [row for row in ROWS if row.indicators]
LENGTHS = [row for row in ROWS if row.cut is not None]


def problem(row, batch=(3,), shape=None, device="cpu", scale=1.0, seed=0):
    """Scores, and structures that are best for others."""
    scores = row.scores(shape, batch, device=device, scale=scale, seed=seed)
    return scores, row.structure.map(*row.scores(shape, batch, device=device, seed=seed + 9))


def grad(loss, scores):
    return torch.autograd.grad(loss, scores, materialize_grads=True)
