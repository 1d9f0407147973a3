"""The recursion in blocks of instances, for Numba: all arithmetic in float64, so one compilation serves both dtypes."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array, memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import kernel
from polymax.kernels.hypergraph import chart_of, chart_shape, cpu_lanes
from polymax.kernels.hypergraph.cpu_kbest import hypergraph_kbest
from polymax.kernels.hypergraph.cpu_walk import hypergraph_count, hypergraph_sample, hypergraph_visits
from polymax.kernels.local_max.numba_lanes import LANES, transpose
from polymax.kernels.local_max.numba_max import smoothing

__all__ = [
    "hypergraph_count",
    "hypergraph_inside",
    "hypergraph_kbest",
    "hypergraph_outside",
    "hypergraph_sample",
    "hypergraph_tangent",
    "hypergraph_visits",
    "hypergraph_weights",
]

_COLUMNS = np.arange(LANES)


def hypergraph_inside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    value = scores.new_empty(scores.shape[:1])
    chart = scores.new_empty(chart_shape(scores.shape[0], first.shape[0] - 1, alpha), dtype=torch.float64)
    x, planes, out, omega = array(scores), memory(chart), memory(value), smoothing(alpha)

    def block(start, graph, root):
        # -1 is the threshold of an argument that is alone
        values, taus = (np.full((planes.shape[2] + 1, LANES), x) for x in (0.0, -1.0))
        cpu_lanes.inside(*graph, _lanes(x, start), values, taus, root.max(), omega)
        for plane, rows in zip(planes, (values, taus)):
            _store(rows, start, plane)
        out[start : start + LANES] = values[root, _COLUMNS][: len(out) - start]

    _blocks(block, 1, first, tails, part, roots)
    return value, chart


def hypergraph_outside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    x, planes, out, mass = array(scores), array(chart_of(chart, scores.shape[0])), memory(mu), array(g)[:, None]
    omega = smoothing(alpha)

    def block(start, graph, root):
        s, values, taus = _lanes(x, start), _lanes(planes[0], start), _lanes(planes[-1], start)
        expected, q = _from_roots(values, root, _lanes(mass, start)[0]), np.empty_like(s)
        cpu_lanes.outside(*graph, s, values, taus, expected, q, root.max(), omega)
        _store(q, start, out)

    _blocks(block, 1, first, tails, part, roots)
    return mu


def hypergraph_tangent(
    scores: Tensor,
    first: Tensor,
    tails: Tensor,
    part: Tensor,
    roots: Tensor,
    chart: Tensor,
    g: Tensor,
    d: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    dvalue, dmu = scores.new_empty(scores.shape[:1]), torch.empty_like(scores, memory_format=torch.contiguous_format)
    x, planes, dx, mass = array(scores), array(chart_of(chart, scores.shape[0])), array(d), array(g)[:, None]
    out, dout, omega = memory(dvalue), memory(dmu), smoothing(alpha)

    def block(start, graph, root):
        s, values, taus, ds = (_lanes(rows, start) for rows in (x, planes[0], planes[-1], dx))
        slopes, change, dq = np.zeros_like(values), np.zeros_like(values), np.empty_like(s)
        expected = _from_roots(values, root, _lanes(mass, start)[0])
        cpu_lanes.tangent(*graph, s, values, taus, ds, slopes, expected, change, dq, root.max(), omega)
        out[start : start + LANES] = slopes[root, _COLUMNS][: len(out) - start]
        _store(dq, start, dout)

    _blocks(block, 2, first, tails, part, roots)
    return dvalue, dmu


def hypergraph_weights(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, alpha: float
) -> Tensor:
    p = scores.new_empty((scores.shape[0], tails.shape[0]))
    x, planes, out = array(scores), array(chart_of(chart, scores.shape[0])), memory(p)
    omega = smoothing(alpha)

    def block(start, graph, root):
        s, values, taus = _lanes(x, start), _lanes(planes[0], start), _lanes(planes[-1], start)
        reached, w = _from_roots(values, root, 1.0), np.empty((out.shape[1], LANES))
        cpu_lanes.weights(*graph, s, values, taus, reached, w, root.max(), omega)
        _store(w, start, out)

    _blocks(block, 1, first, tails, part, roots)
    return p


def _blocks(block: Callable[..., None], work: int, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor) -> None:
    """Run `block` on every LANES instances, with their roots; -1 past the last."""
    blocks = -(-len(roots) // LANES)
    graph = (array(first), array(tails), array(part))
    root = np.full(blocks * LANES, -1)
    root[: len(roots)] = memory(roots)

    def run(begin, end):
        for start in range(begin * LANES, end * LANES, LANES):
            block(start, graph, root[start : start + LANES])

    parallel(run, torch.Size((blocks, LANES * (len(part) + len(first)))), 8 * work)


def _from_roots(values: np.ndarray, root: np.ndarray, x: np.ndarray | float) -> np.ndarray:
    """Return zeros, and x at the roots."""
    out = np.zeros_like(values)
    out[root, _COLUMNS] = x
    return out


def _lanes(x: np.ndarray, start: int) -> np.ndarray:
    """Return rows from `start` on as LANES columns in float64; zeros past their end, and in a last row."""
    out = np.empty((x.shape[1] + 1, LANES))
    _load(x, start, out)
    return out


@kernel
def _load(x, start, out):
    n, count = x.shape[1], len(x) - start
    out[n] = 0.0
    whole = n - n % LANES if count >= LANES else 0
    for j in range(0, whole, LANES):
        transpose(x, start, j, out, j, 0)
    for j in range(whole, n):
        for l in range(LANES):
            out[j, l] = x[start + l, j] if l < count else 0.0


@kernel
def _store(block, start, out):
    n, count = out.shape[1], len(out) - start
    whole = n - n % LANES if count >= LANES else 0
    for j in range(0, whole, LANES):
        transpose(block, j, 0, out, start, j)
    for j in range(whole, n):
        for l in range(min(count, LANES)):
            out[start + l, j] = block[j, l]
