"""Trials of assignments of any shape: pairs and costs are SciPy's.

    python -m tests.campaign --only linear-sum-assignment --rounds 500

matches 10,000 problems.
"""

import math

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import polymax as pm
from tests.campaign.hostile import Draw

PROBLEMS = 20
SIZES = [0, 1, 2, 3, 5, 8, 13, 21, 34, 60]
# costs whose best assignment is unique, but for accidents, and costs with ties
UNIQUE = ["normal", "float32", "large numbers", "tiny", "huge", "forbidden"]
TIED = ["small numbers", "float16", "products", "equal"]


def _costs(draw: Draw, kind: str, *shape: int) -> Tensor:
    x = draw.normal(*shape)
    if kind == "float32":
        return x.float()
    if kind == "float16":
        return x.half()
    if kind == "large numbers":
        return draw.integers(-(2**40), 2**40, *shape)
    if kind == "small numbers":
        return draw.integers(-2, 3, *shape)
    if kind == "products":
        return x.amax(-1, keepdim=True) * x.amax(-2, keepdim=True) if x.numel() else x
    if kind == "equal":
        return torch.ones_like(x)
    if kind == "forbidden":
        return x.masked_fill(draw.normal(*shape) > 1, torch.inf)
    return x * {"normal": 1.0, "tiny": 1e-300, "huge": 1e300}[kind]


def trial(draw: Draw) -> tuple[int, list[str]]:
    """Match a batch of problems, ragged or not, and each of them by SciPy."""
    n, m = draw.choice(SIZES), draw.choice(SIZES)
    # few wide problems take another way on a GPU
    count = draw.choice([1, 3]) if draw.chance(0.03) else PROBLEMS
    if count < PROBLEMS:
        n, m = 260 + n, 260 + m
    shape = (n, n if draw.chance(0.3) else m)
    kind = draw.choice(UNIQUE + TIED)
    maximize, ragged = draw.chance(0.5), draw.chance(0.5)
    draw.note(f"{count} of {shape}, {kind}" + (", maximize" if maximize else "") + (", ragged" if ragged else ""))
    cost = _costs(draw, kind, count, *shape)
    if maximize:
        cost = -cost
    sizes = [draw.integers(0, k + 1, count) if ragged else torch.full((count,), k) for k in shape]
    placed = [t.to(draw.device) for t in sizes]
    rows, columns = pm.linear_sum_assignment(
        cost.to(draw.device), maximize, tuple(placed) if ragged else None, infeasible="skip"
    )
    faults = []
    for b in range(count):
        known = cost[b, : sizes[0][b], : sizes[1][b]].double().numpy()
        found = [t[b].cpu().numpy() for t in (rows, columns)]
        faults += [f"problem {b}: {fault}" for fault in _faults(known, maximize, found, kind in UNIQUE)]
    return count, faults


def _faults(cost: np.ndarray, maximize: bool, found: list[np.ndarray], unique: bool) -> list[str]:
    """Compare the pairs of a problem, which -1 follows, with SciPy's."""
    try:
        expected = linear_sum_assignment(cost, maximize)
    except ValueError:
        return [] if all((t == -1).all() for t in found) else ["is infeasible, and has pairs"]
    count = min(cost.shape)
    if any((t[count:] != -1).any() or (t[:count] < 0).any() for t in found):
        return [f"has not {count} pairs: {found[0].tolist()}, {found[1].tolist()}"]
    pairs = tuple(t[:count] for t in found)
    if (np.diff(pairs[0]) <= 0).any() or len(set(pairs[1].tolist())) < count:
        return ["rows do not ascend, or a column is taken twice"]
    total, best = math.fsum(cost[pairs]), math.fsum(cost[expected])
    if not abs(total - best) <= 1e-12 * math.fsum(abs(cost[expected])):
        return [f"costs {total!r}, the best assignment {best!r}"]
    if unique and any((a != b).any() for a, b in zip(pairs, expected, strict=True)):
        return [f"costs the same, and has other pairs than SciPy: {pairs[1].tolist()}, {expected[1].tolist()}"]
    return []


TRIALS = {"linear-sum-assignment": trial}
