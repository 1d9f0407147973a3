"""Chains on the CPU: one instance after the other, states in vector lanes, for Numba.

Shannon's entropy runs in the linear domain as long as its probabilities do not underflow; everything else, and what
does, in logarithms. A unit of work is a range of instances that share their transitions: it sums the gradient of a
shared transition in float64, and the units' sums are added in their order, so threads change no bit.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.chain.cpu_linear import BLOCK, STEPS, exponentials, linear_inside, linear_outside, transpose
from polymax.kernels.chain.cpu_linear_tangent import linear_tangent, tilted
from polymax.kernels.chain.cpu_local import (
    backtrack,
    fill_hopeless,
    hopeless,
    local_inside,
    local_outside,
    local_tangent,
)
from polymax.kernels.chain.cpu_product import padded
from polymax.kernels.cpu_rows import run
from polymax.kernels.numba_math import inline, kernel

# units in a batch: enough to keep the threads busy, few enough that their sums of s x s are small
UNITS = 16


def chain_inside(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    batch, n, s = unary.shape
    value, chart = unary.new_empty(batch), unary.new_empty(batch, n, 2, s)
    if s == 0:
        return value.copy_(torch.where(lengths > 0, -torch.inf, 0.0)), chart
    units, count, work = _units(batch, n, s, *transition.shape[:2])
    if batch:
        shared = transition[_DISTINCT[transition.stride(0) == 0, transition.stride(1) == 0]]
        x, steps, sizes = unary.detach().contiguous(), shared.detach().contiguous(), lengths.contiguous()
        args = x.numpy(), steps.numpy(), sizes.numpy(), float(alpha), value.numpy(), chart.numpy()
        run(_inside, count, work, *units, *args)
    return value, chart


def chain_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    mu = torch.empty_like(unary, memory_format=torch.contiguous_format)
    batch, n, s = unary.shape
    units, count, work = _units(batch, n, s, *transition.shape[:2])
    if batch == 0 or s == 0:
        return mu, torch.zeros_like(transition, memory_format=torch.contiguous_format)
    sums = transition.new_empty(transition.shape[0] * units[1], *transition.shape[1:])
    shared = transition[_DISTINCT[transition.stride(0) == 0, transition.stride(1) == 0]]
    steps, sizes = shared.detach().contiguous(), lengths.contiguous()
    table, slope = chart.detach().contiguous(), g.detach().contiguous()
    args = steps.numpy(), sizes.numpy(), table.numpy(), slope.numpy(), float(alpha)
    run(_outside, count, 2 * work, *units, *args, mu.numpy(), sums.numpy())
    return mu, sums if sums.shape == transition.shape else _added(sums, transition)


def chain_tangent(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    g: Tensor,
    d_unary: Tensor,
    d_transition: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    value = unary.new_zeros(unary.shape[0])
    h = torch.empty_like(unary, memory_format=torch.contiguous_format)
    batch, n, s = unary.shape
    units, count, work = _units(batch, n, s, *transition.shape[:2])
    if batch == 0 or s == 0:
        return value, h, torch.zeros_like(transition, memory_format=torch.contiguous_format)
    sums = transition.new_empty(transition.shape[0] * units[1], *transition.shape[1:])
    shared, along = (x[_DISTINCT[x.stride(0) == 0, x.stride(1) == 0]] for x in (transition, d_transition))
    arrays = [x.detach().contiguous().numpy() for x in (shared, lengths, chart, g, d_unary, along)]
    args = *arrays[:4], float(alpha), *arrays[4:]
    run(_tangent, count, 16 * work, *units, *args, value.numpy(), h.numpy(), sums.numpy())
    return value, h, sums if sums.shape == transition.shape else _added(sums, transition)


# the transitions without the repetitions of a tensor that is expanded along its first dimension, its second, or both
_DISTINCT = {(a, b): (slice(1) if a else slice(None), slice(1) if b else slice(None)) for a in (0, 1) for b in (0, 1)}


@lru_cache(maxsize=256)
def _units(batch: int, n: int, s: int, distinct: int, steps: int) -> tuple[tuple[int, int, int], int, int]:
    """Instances that share a transition, units these are cut into, instances to one; all units, and the work of one."""
    group = batch // max(distinct, 1)
    # the sums of a transition of every step are as large as the result: one unit writes it
    cuts = 1 if steps > 1 else max(1, min(group, UNITS // max(distinct, 1)))
    count = max(distinct * cuts, 1)
    return (group, cuts, -(-group // cuts)), count, batch * n * s * s // count


def _added(sums: Tensor, transition: Tensor) -> Tensor:
    total = torch.empty_like(transition, memory_format=torch.contiguous_format)
    _add(sums.numpy(), total.numpy())
    return total


@kernel
def _add(sums, total):
    """The sum of the units that share a transition, in float64."""
    cuts = sums.shape[0] // total.shape[0]
    for b in range(total.shape[0]):
        for t in range(total.shape[1]):
            for i in range(total.shape[2]):
                for j in range(total.shape[3]):
                    x = 0.0
                    for unit in range(b * cuts, (b + 1) * cuts):
                        x += sums[unit, t, i, j]
                    total[b, t, i, j] = x


@inline
def _span(unit, group, cuts, size):
    """First and last instance of a unit."""
    first = unit // cuts * group
    return min(first + unit % cuts * size, first + group), min(first + (unit % cuts + 1) * size, first + group)


@inline
def _clear(x):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = 0


@inline
def _shared(first, batch, transition):
    """Which transition serves the instances of a unit."""
    return transition[first // max(batch // transition.shape[0], 1)]


@kernel
def _inside(start, stop, group, cuts, size, unary, transitions, lengths, alpha, value, chart):
    s = unary.shape[2]
    width = padded(s)
    flat = np.zeros(-(-s * s // BLOCK) * BLOCK, unary.dtype)
    e = np.zeros((s, width), unary.dtype)
    lanes = np.zeros((4, width), unary.dtype)
    top, x, w, c = lanes[0], lanes[1], lanes[2], lanes[3]
    work = np.empty((5, s))
    p = np.empty((s, s))
    for unit in range(start, stop):
        first, last = _span(unit, group, cuts, size)
        if first == last:
            continue
        transition = _shared(first, unary.shape[0], transitions)
        best = unary.dtype.type(0)
        if alpha == 1.0 and transition.shape[0] == 1:
            best = exponentials(transition[0], flat, e, top)
        for b in range(first, last):
            length = lengths[b]
            for t in range(length, unary.shape[1]):
                _clear(chart[b, t])
            linear, total = alpha == 1.0, 0.0
            if length > 0 and linear:
                linear, total = linear_inside(unary[b], transition, length, e, top, best, flat, x, w, c, chart[b])
            if length > 0 and not linear:
                total = local_inside(unary[b], transition, length, alpha, flat, p, work[0], work[1], work[2:], chart[b])
            value[b] = total


@kernel
def _outside(start, stop, group, cuts, size, transitions, lengths, chart, g, alpha, mu_unary, mu_transition):
    s = mu_unary.shape[2]
    width = padded(s)
    flat = np.zeros(-(-s * s // BLOCK) * BLOCK, chart.dtype)
    e, e_t = np.zeros((s, width), chart.dtype), np.zeros((s, width), chart.dtype)
    a, b = np.zeros((STEPS, width), chart.dtype), np.zeros((STEPS, width), chart.dtype)
    top, r = np.zeros(width, chart.dtype), np.zeros(width, chart.dtype)
    products = np.zeros((s, width))
    work = np.empty((6, s))
    p, sums = np.empty((s, s)), np.empty((s, s))
    for unit in range(start, stop):
        first, last = _span(unit, group, cuts, size)
        alone = last - first == 1 and mu_transition.shape[1] > 1 and alpha == 1.0 and chart[first, 0, 1, 0] > 0
        for t in range(lengths[first] - 1 if alone else 0, mu_transition.shape[1]):
            _clear(mu_transition[unit, t])
        if first == last:
            continue
        transition = _shared(first, mu_unary.shape[0], transitions)
        if alpha == 1.0 and transition.shape[0] == 1:
            exponentials(transition[0], flat, e, top)
            transpose(e, e_t)
        _clear(products)
        _clear(sums)
        for k in range(first, last):
            length = lengths[k]
            _clear(mu_unary[k, length:])
            if length == 0:
                continue
            args = mu_unary[k], mu_transition[unit]
            if chart[k, 0, 1, 0] > 0:
                linear_outside(chart[k], transition, length, g[k], e, e_t, top, flat, a, b, r, products, alone, *args)
            elif hopeless(chart[k]):
                fill_hopeless(chart[k], length, *args, sums)
            elif alpha == np.inf:
                backtrack(chart[k], transition, length, g[k], work[0], sums, *args)
            else:
                local_outside(
                    chart[k], transition, length, g[k], alpha, flat, p, work[0], work[1], work[2], work[3:], sums, *args
                )
        if mu_transition.shape[1] == 1:
            for i in range(s):
                for j in range(s):
                    mu_transition[unit, 0, i, j] = products[i, j] * e[i, j] + sums[i, j]


@kernel
def _tangent(
    start,
    stop,
    group,
    cuts,
    size,
    transitions,
    lengths,
    chart,
    g,
    alpha,
    d_unary,
    d_transitions,
    value,
    h,
    h_sums,
):
    n, s = d_unary.shape[1:]
    width = padded(s)
    flat = np.zeros(-(-s * s // BLOCK) * BLOCK, chart.dtype)
    lanes, blocks = np.zeros((6, width), chart.dtype), np.zeros((4, STEPS, width), chart.dtype)
    matrices = (
        np.zeros((s, width), chart.dtype),
        np.zeros((s, width), chart.dtype),
        np.zeros((s, width), chart.dtype),
        np.zeros((s, width), chart.dtype),
    )
    top, products = np.zeros(width, chart.dtype), np.zeros((2, s, width))
    changes = np.empty((2, n, s), chart.dtype)
    p, dp, sums, dv, work = np.empty((s, s)), np.empty((s, s)), np.empty((s, s)), np.empty((n, s)), np.empty((7, s))
    for unit in range(start, stop):
        first, last = _span(unit, group, cuts, size)
        for t in range(h_sums.shape[1]):
            _clear(h_sums[unit, t])
        if first == last:
            continue
        transition = _shared(first, h.shape[0], transitions)
        d_transition = _shared(first, h.shape[0], d_transitions)
        if alpha == 1.0 and transition.shape[0] == 1 and d_transition.shape[0] == 1:
            tilted(transition[0], d_transition[0], flat, *matrices, top)
        _clear(products[0])
        _clear(products[1])
        _clear(sums)
        for k in range(first, last):
            length = lengths[k]
            _clear(h[k, length:])
            if length == 0:
                continue
            scores = chart[k], transition, d_unary[k], d_transition, length, g[k]
            if chart[k, 0, 1, 0] > 0:
                value[k] = linear_tangent(
                    *scores,
                    matrices,
                    top,
                    flat,
                    changes,
                    blocks,
                    lanes,
                    products,
                    h[k],
                    h_sums[unit],
                )
            elif hopeless(chart[k]):
                fill_hopeless(chart[k], length, h[k], h_sums[unit], sums)
                value[k] = h[k, 0, 0]
            else:
                value[k] = local_tangent(*scores, alpha, flat, p, dp, dv, work, sums, h[k], h_sums[unit])
        if h_sums.shape[1] == 1:
            e, f = matrices[0], matrices[2]
            for i in range(s):
                for j in range(s):
                    total = f[i, j] * products[0, i, j] + e[i, j] * products[1, i, j]
                    h_sums[unit, 0, i, j] = total + sums[i, j]
