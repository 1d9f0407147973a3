"""The recursion in blocks of instances, for Numba: all arithmetic in float64, so one compilation serves both dtypes."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.hypergraph import LANES, chart_shape, cpu_lanes
from polymax.kernels.hypergraph.cpu_kbest import hypergraph_kbest
from polymax.kernels.hypergraph.cpu_walk import hypergraph_count, hypergraph_sample, hypergraph_visits
from polymax.kernels.hypergraph.numba_lanes import transpose
from polymax.kernels.numba_math import kernel

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
    chart[1:].zero_()
    x, out = _array(scores), value.numpy()

    def block(start, graph, values, taus, root):
        cpu_lanes.inside(*graph, _lanes(x, start), values, taus, root.max(), alpha)
        out[start : start + LANES] = values[root, _COLUMNS][: len(out) - start]

    _blocks(block, 1, first, tails, part, roots, chart)
    return value, chart


def hypergraph_outside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    x, out, mass = _array(scores), mu.numpy(), _array(g)[:, None]

    def block(start, graph, values, taus, root):
        s = _lanes(x, start)
        expected, q = _from_roots(values, root, _lanes(mass, start)[0]), np.empty_like(s)
        cpu_lanes.outside(*graph, s, values, taus, expected, q, root.max(), alpha)
        _store(q, start, out)

    _blocks(block, 1, first, tails, part, roots, chart)
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
    x, dx, out, dout, mass = _array(scores), _array(d), dvalue.numpy(), dmu.numpy(), _array(g)[:, None]

    def block(start, graph, values, taus, root):
        s = _lanes(x, start)
        slopes, change, dq = np.zeros_like(values), np.zeros_like(values), np.empty_like(s)
        expected = _from_roots(values, root, _lanes(mass, start)[0])
        ds = _lanes(dx, start)
        cpu_lanes.tangent(*graph, s, values, taus, ds, slopes, expected, change, dq, root.max(), alpha)
        out[start : start + LANES] = slopes[root, _COLUMNS][: len(out) - start]
        _store(dq, start, dout)

    _blocks(block, 2, first, tails, part, roots, chart)
    return dvalue, dmu


def hypergraph_weights(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, alpha: float
) -> Tensor:
    p = scores.new_empty((scores.shape[0], tails.shape[0]))
    x, out = _array(scores), p.numpy()

    def block(start, graph, values, taus, root):
        reached, w = _from_roots(values, root, 1.0), np.empty((out.shape[1], LANES))
        cpu_lanes.weights(*graph, _lanes(x, start), values, taus, reached, w, root.max(), alpha)
        _store(w, start, out)

    _blocks(block, 1, first, tails, part, roots, chart)
    return p


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


def _blocks(
    block: Callable[..., None], work: int, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor
) -> None:
    """Run `block` on every LANES instances, with their roots and their part of the chart."""
    _, count, width = chart.shape
    graph = (_array(first), _array(tails), _array(part))
    planes, root = _array(chart), np.full(count, -1)
    root[: len(roots)] = roots.numpy()

    def run(begin, end):
        for start in range(begin * LANES, end * LANES, LANES):
            values, taus = (planes[i, start : start + LANES].reshape(width, LANES) for i in (0, -1))
            block(start, graph, values, taus, root[start : start + LANES])

    parallel(run, torch.Size((count // LANES, LANES * (len(graph[2]) + width))), 8 * work)


def _from_roots(values: np.ndarray, root: np.ndarray, x: np.ndarray | float) -> np.ndarray:
    """Zeros, and x at the roots."""
    out = np.zeros_like(values)
    out[root, _COLUMNS] = x
    return out


def _lanes(x: np.ndarray, start: int) -> np.ndarray:
    """Rows from `start` on as LANES columns in float64; zeros past their end, and in a last row."""
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
