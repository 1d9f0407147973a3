"""Chains on the CPU: one instance after the other, states in vector lanes, for Numba.

Shannon's entropy runs in the linear domain as long as its probabilities do not underflow (cpu_linear.py); everything
else, and what does, in logarithms (cpu_local.py), whose kernels are compiled when they are first needed.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.chain import cpu_linear, cpu_linear_tangent, cpu_local
from polymax.kernels.chain.numba_units import added, distinct, units
from polymax.kernels.cpu_rows import run
from polymax.kernels.local_max.numba_max import array, smoothing


def chain_inside(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    batch, n, s = unary.shape
    value, chart = unary.new_empty(batch), unary.new_empty(batch, n, 2, s)
    if s == 0:
        return value.copy_(torch.where(lengths > 0, -torch.inf, 0.0)), chart
    if batch:
        unit, count, work = units(batch, n, s, *transition.shape[:2])
        args = *unit, array(unary), distinct(transition), array(lengths), value.numpy(), chart.numpy()
        _in_turn(alpha, cpu_linear.inside, cpu_local.inside, count, work, *args)
    return value, chart


def chain_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    mu = torch.empty_like(unary, memory_format=torch.contiguous_format)
    if unary.shape[0] == 0 or unary.shape[2] == 0:
        return mu, torch.zeros_like(transition, memory_format=torch.contiguous_format)
    unit, count, work = units(*unary.shape, *transition.shape[:2])
    sums = transition.new_zeros(transition.shape[0] * unit[1], *transition.shape[1:])
    args = *unit, distinct(transition), array(lengths), array(chart), array(g), mu.numpy(), sums.numpy()
    local = cpu_local.best_sequences if alpha == np.inf else cpu_local.outside
    _in_turn(alpha, cpu_linear.outside, local, count, 2 * work, *args)
    return mu, added(sums, transition)


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
    args = *unit, distinct(transition), array(lengths), array(chart), array(g), h.numpy(), sums.numpy()
    more = array(d_unary), distinct(d_transition), value.numpy()
    _in_turn(alpha, cpu_linear_tangent.tangent, cpu_local.outside, count, 16 * work, *args, more=more)
    return value, h, added(sums, transition)


def _in_turn(alpha, linear, local, count, work, *args, more=()):
    """Run the linear kernel for Shannon's entropy, and the other where it did not do or some instance is left."""
    if alpha == 1:
        odd = np.zeros(1, np.bool_)
        run(linear, count, work, *args, odd, *more)
        if not odd[0]:
            return
    run(local, count, work, *args, smoothing(alpha), *more)
