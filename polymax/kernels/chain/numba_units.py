"""Units of work of chains on the CPU: ranges of instances that share their transitions. For Numba, and its callers.

A unit sums the gradient of a shared transition in float64, and the units' sums are added in their order, so threads
change no bit.
"""

from functools import lru_cache

import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import GRAIN
from polymax.backend.numba_math import inline, kernel

# units in a batch: enough to keep the threads busy, few enough that their sums of s x s are small
UNITS = 16
# the transitions without the repetitions of a tensor that is expanded along its first dimension, its second, or both
DISTINCT = {(a, b): (slice(1) if a else slice(None), slice(1) if b else slice(None)) for a in (0, 1) for b in (0, 1)}


@lru_cache(maxsize=256)
def units(batch: int, n: int, s: int, distinct: int, steps: int) -> tuple[tuple[int, int, int], int, int]:
    """Instances that share a transition, units these are cut into, instances to one; all units, and the work of one."""
    group = batch // max(distinct, 1)
    # the sums of a transition of every step are as large as the result: one unit writes it, as where all is too little
    # work for a second thread
    cuts = 1 if steps > 1 or batch * n * s * s < GRAIN // 8 else max(1, min(group, UNITS // max(distinct, 1)))
    count = max(distinct * cuts, 1)
    return (group, cuts, -(-group // cuts)), count, batch * n * s * s // count


def sum_shared(sums: Tensor, transition: Tensor) -> Tensor:
    """The sums of the units that share a transition."""
    total = torch.empty_like(transition, memory_format=torch.contiguous_format)
    _add(memory(sums), memory(total.view(-1, *sums.shape[1:])))
    return total


@kernel
def _add(sums, total):
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
def span(unit, group, cuts, size):
    """First and last instance of a unit."""
    first = unit // cuts * group
    return min(first + unit % cuts * size, first + group), min(first + (unit % cuts + 1) * size, first + group)


@inline
def clear(x):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = 0


@inline
def shared_index(instance, batch, distinct):
    """Which of the distinct transitions serves an instance."""
    return instance // max(batch // distinct, 1)
