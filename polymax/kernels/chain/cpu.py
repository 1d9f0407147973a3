"""Chains on the CPU: one instance after the other, states in vector lanes, for Numba.

Shannon's entropy runs in the linear domain as long as its probabilities do not underflow (cpu_linear.py); everything
else, and what does, in logarithms (cpu_local.py), whose kernels are compiled when they are first needed.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.chain import cpu_linear, cpu_linear_tangent, cpu_local
from polymax.kernels.chain.numba_units import DISTINCT, sum_shared, units
from polymax.kernels.cpu_rows import run
from polymax.kernels.local_max.numba_max import array, smoothing


def chain_inside(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    batch, n, s = unary.shape
    value, chart = unary.new_empty(batch), unary.new_empty(batch, n, 2, s)
    if s == 0:
        return value.copy_(torch.where(lengths > 0, -torch.inf, 0.0)), chart
    if batch:
        unit, count, work = units(batch, n, s, *transition.shape[:2])
        # what torch is asked for is written out: each function on the way costs time
        shared = transition[DISTINCT[transition.stride(0) == 0, transition.stride(1) == 0]]
        x, steps, sizes = unary.detach().contiguous(), shared.detach().contiguous(), lengths.contiguous()
        args = *unit, x.numpy(), steps.numpy(), sizes.numpy(), value.numpy(), chart.numpy()
        odd = np.full(1, alpha != 1)
        if alpha == 1:
            run(cpu_linear.inside, count, work, *args, odd)
        if odd[0]:
            run(cpu_local.inside, count, work, *args, smoothing(alpha))
    return value, chart


def chain_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    mu = torch.empty_like(unary, memory_format=torch.contiguous_format)
    if unary.shape[0] == 0 or unary.shape[2] == 0:
        return mu, torch.zeros_like(transition, memory_format=torch.contiguous_format)
    unit, count, work = units(*unary.shape, *transition.shape[:2])
    # in the linear domain units clear their own sums
    empty = transition.new_empty if alpha == 1 else transition.new_zeros
    sums = empty(transition.shape[0] * unit[1], *transition.shape[1:])
    shared = transition[DISTINCT[transition.stride(0) == 0, transition.stride(1) == 0]]
    steps, sizes = shared.detach().contiguous(), lengths.contiguous()
    table, slope = chart.detach().contiguous(), g.detach().contiguous()
    args = *unit, steps.numpy(), sizes.numpy(), table.numpy(), slope.numpy(), mu.numpy(), sums.numpy()
    odd = np.full(1, alpha != 1)
    if alpha == 1:
        run(cpu_linear.outside, count, 2 * work, *args, odd)
    if odd[0]:
        local = cpu_local.best_sequences if alpha == np.inf else cpu_local.outside
        run(local, count, 2 * work, *args, smoothing(alpha))
    return mu, sums if sums.shape == transition.shape else sum_shared(sums, transition)


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
    if unary.shape[0] == 0 or unary.shape[2] == 0:
        return value, h, torch.zeros_like(transition, memory_format=torch.contiguous_format)
    unit, count, work = units(*unary.shape, *transition.shape[:2])
    sums = transition.new_zeros(transition.shape[0] * unit[1], *transition.shape[1:])
    steps, along = (x[DISTINCT[x.stride(0) == 0, x.stride(1) == 0]] for x in (transition, d_transition))
    args = *unit, array(steps), array(lengths), array(chart), array(g), h.numpy(), sums.numpy()
    more = array(d_unary), array(along), value.numpy()
    odd = np.full(1, alpha != 1)
    if alpha == 1:
        run(cpu_linear_tangent.tangent, count, 16 * work, *args, odd, *more)
    if odd[0] and d_transition.shape != transition.shape:
        every = transition.expand(d_transition.shape)
        value, h, sums = chain_tangent(unary, every, lengths, chart, g, d_unary, d_transition, alpha)
        return value, h, sums.sum_to_size(transition.shape)
    if odd[0]:
        run(cpu_local.outside, count, 16 * work, *args, smoothing(alpha), *more)
    return value, h, sums if sums.shape == transition.shape else sum_shared(sums, transition)
