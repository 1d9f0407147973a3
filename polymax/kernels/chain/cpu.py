"""Chains on the CPU: one instance after the other, states in vector lanes, for Numba.

Shannon's entropy runs in the linear domain as long as its probabilities do not underflow (cpu_linear.py). Other
entropies, and instances that underflow, run in logarithms (cpu_local.py), whose kernels are compiled when first needed.

A direct call may pass transitions (s, s), shared by all instances and steps: making a view of four dims takes a good
part of the time of a small chain.
"""

import math

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array, memory
from polymax.backend.cpu_flag import FLAG
from polymax.backend.cpu_rows import REALS, run
from polymax.kernels.chain import cpu_linear, cpu_linear_tangent, cpu_local
from polymax.kernels.chain.numba_units import DISTINCT, sum_shared, units
from polymax.kernels.local_max.numba_max import smoothing


def chain_inside(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    batch, n, s = unary.shape
    value, chart = unary.new_empty(batch), unary.new_empty(batch, n, 2, s)
    if s == 0:
        return value.copy_(torch.where(lengths > 0, -torch.inf, 0.0)), chart
    if batch:
        steps, stored, distinct, out_steps = layout(transition)
        unit, count, work = units(batch, n, s, distinct, out_steps)
        x, sizes = unary.contiguous(), lengths.contiguous()
        FLAG.number[0] = 0
        if alpha == 1:
            run(
                cpu_linear.inside, count, work, *unit, batch, n, s, *stored, x.data_ptr(), steps.data_ptr(),
                sizes.data_ptr(), value.data_ptr(), chart.data_ptr(), FLAG.address, REALS[unary.dtype],
            )  # fmt: skip
        if alpha != 1 or FLAG.number[0]:
            args = *unit, array(x), _array(steps), array(sizes), memory(value), memory(chart)
            run(cpu_local.inside, count, work, *args, smoothing(alpha))
    return value, chart


def chain_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    mu = torch.empty_like(unary, memory_format=torch.contiguous_format)
    batch, n, s = unary.shape
    if batch == 0 or s == 0:
        return mu, torch.zeros_like(transition, memory_format=torch.contiguous_format)
    steps, stored, distinct, out_steps = layout(transition)
    unit, count, work = units(batch, n, s, distinct, out_steps)
    # one sum for each unit of instances that share a transition; in the linear domain units clear their own sums
    shape = transition.shape if unit[1] == 1 else (distinct * unit[1], out_steps, s, s)
    sums = transition.new_empty(shape) if alpha == 1 else transition.new_zeros(shape)
    sizes, table, slope = lengths.contiguous(), chart.contiguous(), g.contiguous()
    FLAG.number[0] = 0
    if alpha == 1:
        run(
            cpu_linear.outside, count, 2 * work, *unit, batch, n, s, *stored, steps.data_ptr(),
            sizes.data_ptr(), table.data_ptr(), slope.data_ptr(), mu.data_ptr(), sums.data_ptr(), distinct * unit[1],
            out_steps, FLAG.address, REALS[unary.dtype],
        )  # fmt: skip
    if alpha != 1 or FLAG.number[0]:
        args = _array(steps), array(sizes), array(table), array(slope), memory(mu), _array(sums)
        local = cpu_local.best_sequences if alpha == math.inf else cpu_local.outside
        run(local, count, 2 * work, *unit, *args, smoothing(alpha))
    return mu, sums if unit[1] == 1 else sum_shared(sums, transition)


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
    batch, n, s = unary.shape
    value = unary.new_zeros(batch)
    h = torch.empty_like(unary, memory_format=torch.contiguous_format)
    if batch == 0 or s == 0:
        return value, h, torch.zeros_like(transition, memory_format=torch.contiguous_format)
    steps, stored, distinct, out_steps = layout(transition)
    along, along_stored, _, _ = layout(d_transition)
    unit, count, work = units(batch, n, s, distinct, out_steps)
    sums = transition.new_zeros(transition.shape if unit[1] == 1 else (distinct * unit[1], out_steps, s, s))
    sizes, table, slope, moved = lengths.contiguous(), chart.contiguous(), g.contiguous(), d_unary.contiguous()
    FLAG.number[0] = 0
    if alpha == 1:
        run(
            cpu_linear_tangent.tangent, count, 16 * work, *unit, batch, n, s, *stored, steps.data_ptr(),
            sizes.data_ptr(), table.data_ptr(), slope.data_ptr(), h.data_ptr(), sums.data_ptr(), distinct * unit[1],
            out_steps, FLAG.address, REALS[unary.dtype], moved.data_ptr(), along.data_ptr(), *along_stored,
            value.data_ptr(),
        )  # fmt: skip
    if alpha == 1 and not FLAG.number[0]:
        return value, h, sums if unit[1] == 1 else sum_shared(sums, transition)
    if _with_dims(d_transition).shape != _with_dims(transition).shape:
        every = transition.expand(d_transition.shape)
        value, h, sums = chain_tangent(unary, every, lengths, chart, g, d_unary, d_transition, alpha)
        return value, h, sums.sum_to_size(transition.shape)
    args = _array(steps), array(sizes), array(table), array(slope), memory(h), _array(sums)
    more = array(moved), _array(along), memory(value)
    run(cpu_local.outside, count, 16 * work, *unit, *args, smoothing(alpha), *more)
    return value, h, sums if unit[1] == 1 else sum_shared(sums, transition)


def _with_dims(transition: Tensor) -> Tensor:
    return transition if transition.dim() == 4 else transition.view(1, 1, *transition.shape)


def layout(transition: Tensor) -> tuple[Tensor, tuple[int, int], int, int]:
    """Return contiguous transitions, the stored numbers of instances and steps, and the numbers of instances and steps
    given.

    Nothing is stored twice: an expanded tensor may be passed as it is, since it begins at the matrix that it repeats.
    """
    if transition.dim() == 2:
        return transition.contiguous(), (1, 1), 1, 1
    distinct, steps, _, s = transition.shape
    if transition.is_contiguous():
        return transition, (distinct, steps), distinct, steps
    strides = transition.stride()
    if strides == (0, 0, s, 1):
        return transition, (1, 1), distinct, steps
    few = transition[DISTINCT[strides[0] == 0, strides[1] == 0]].contiguous()
    return few, (few.shape[0], few.shape[1]), distinct, steps


def _array(transition: Tensor) -> np.ndarray:
    """Return contiguous transitions, without repetitions, for kernels that take arrays."""
    whole = _with_dims(transition)
    return array(whole[DISTINCT[whole.stride(0) == 0, whole.stride(1) == 0]])
