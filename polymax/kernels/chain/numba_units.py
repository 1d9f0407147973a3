"""Units of work of chains on the CPU: ranges of instances that share their transitions. For Numba, and its callers.

A unit sums the gradient of a shared transition in float64, and the units' sums are added in a fixed order, so that the
number of threads changes no bit.
"""

from functools import lru_cache

import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import GRAIN
from polymax.backend.numba_math import inline, kernel

# units in a batch: enough for all threads, few enough that their sums of s x s are small
UNITS = 16
# index of the transitions without the repetitions of a tensor expanded along dim 0, dim 1, or both
DISTINCT = {(a, b): (slice(1) if a else slice(None), slice(1) if b else slice(None)) for a in (0, 1) for b in (0, 1)}


@lru_cache(maxsize=256)
def units(batch: int, n: int, s: int, distinct: int, steps: int) -> tuple[tuple[int, int, int], int, int]:
    """Return (instances that share a transition, units for them, instances of a unit), the number of units, and a
    unit's work.
    """
    group = batch // max(distinct, 1)
    # sums of a transition for each step are as large as the result, so that one unit writes it; one unit also suffices
    # for too little work for a second thread
    cuts = 1 if steps > 1 or batch * n * s * s < GRAIN // 8 else max(1, min(group, UNITS // max(distinct, 1)))
    count = max(distinct * cuts, 1)
    return (group, cuts, -(-group // cuts)), count, batch * n * s * s // count


def sum_shared(sums: Tensor, transition: Tensor) -> Tensor:
    """Return the total of the units that share a transition."""
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
    """Return the first and the end of the instances of a unit."""
    first = unit // cuts * group
    return min(first + unit % cuts * size, first + group), min(first + (unit % cuts + 1) * size, first + group)


@inline
def clear(x):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = 0


@inline
def shared_index(instance, batch, distinct):
    """Return the index of the distinct transition of an instance."""
    return instance // max(batch // distinct, 1)
