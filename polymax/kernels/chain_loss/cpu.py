"""Losses of chains on the CPU: the chain's passes, and the score of the tags in loops around them, for Numba."""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, run
from polymax.backend.numba_math import kernel, rows_at
from polymax.kernels.chain import cpu as chain
from polymax.kernels.chain_loss.reference import ROUNDING, by_chain

_inside, _, chain_loss_tangent = by_chain((chain.chain_inside, chain.chain_outside, chain.chain_tangent))


def chain_loss_inside(
    unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    batch, n, s = unary.shape
    if not unary.numel():
        return _inside(unary, transition, lengths, tags, alpha)
    steps, stored, distinct, _ = chain.layout(transition)
    x, sizes, known = unary.contiguous(), lengths.contiguous(), tags.contiguous()
    moved, limit = torch.empty_like(x), torch.empty(batch, dtype=torch.float64)
    run(
        _less_tags, batch, n * s, n, s, batch // distinct, *stored, x.data_ptr(), steps.data_ptr(), sizes.data_ptr(),
        known.data_ptr(), moved.data_ptr(), limit.data_ptr(), REALS[x.dtype],
    )  # fmt: skip
    value, chart = chain.chain_inside(moved, transition, sizes, alpha)
    _settle(0, batch, value.data_ptr(), limit.data_ptr(), REALS[x.dtype])
    return value, chart


def chain_loss_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    batch, n, s = unary.shape
    mu, steps = chain.chain_outside(unary, transition, lengths, chart, g, alpha)
    if mu.numel():
        distinct, count = steps.shape[:2] if steps.dim() == 4 else (1, 1)
        sizes, known, slope = lengths.contiguous(), tags.contiguous(), g.contiguous()
        run(
            _subtract_tags, distinct, batch // distinct * n, n, s, batch // distinct, count, sizes.data_ptr(),
            known.data_ptr(), slope.data_ptr(), mu.data_ptr(), steps.data_ptr(), REALS[mu.dtype],
        )  # fmt: skip
    return mu, steps


@kernel
def _less_tags(start, stop, n, s, group, stored, stored_steps, x_at, w_at, sizes_at, tags_at, moved_at, limit_at, real):
    """Write the scores of states less the terms of the tags, and the size below which a loss is rounding error.

    The limit is infinite if a term is -inf.
    """
    x, moved = rows_at(x_at, stop * n, s, real), rows_at(moved_at, stop * n, s, real)
    w = rows_at(w_at, stored * stored_steps * s, s, real)
    sizes, tags = rows_at(sizes_at, 1, stop, np.int64(0))[0], rows_at(tags_at, stop, n, np.int64(0))
    limits = rows_at(limit_at, 1, stop, 0.0)[0]
    for b in range(start, stop):
        size = 0.0
        first = (b // group if stored > 1 else 0) * stored_steps
        for t in range(sizes[b]):
            here, there = x[b * n + t], moved[b * n + t]
            tag = tags[b, t]
            state, step = real, real
            if tag < 0 or tag >= s:
                # scores of a tag that is none are not known
                state = real / real
            else:
                state = here[tag]
                before = tags[b, t - 1] if t > 0 else np.int64(-1)
                if 0 <= before < s:
                    step = w[(first + (t - 1 if stored_steps > 1 else 0)) * s + before, tag]
            size += abs(np.float64(state)) + abs(np.float64(step))
            state = real if state == -np.inf else state
            step = real if step == -np.inf else step
            for j in range(s):
                there[j] = here[j] - state - step
        for t in range(sizes[b], n):
            moved[b * n + t] = 0
        limits[b] = ROUNDING * size


@kernel
def _settle(start, stop, value_at, limit_at, real):
    """Replace losses that are rounding errors by 0, and those of forbidden tags by inf."""
    value, limit = rows_at(value_at, 1, stop, real)[0], rows_at(limit_at, 1, stop, 0.0)[0]
    for b in range(start, stop):
        if limit[b] == np.inf and value[b] == value[b]:
            value[b] = np.inf
        elif abs(value[b]) <= limit[b]:
            value[b] = 0


@kernel
def _subtract_tags(start, stop, n, s, group, count, sizes_at, tags_at, g_at, mu_at, steps_at, real):
    """Subtract g at the tags and between them; sums over shared transitions in float64, in the order of instances."""
    sizes, g = rows_at(sizes_at, 1, stop * group, np.int64(0))[0], rows_at(g_at, 1, stop * group, real)[0]
    tags, mu = rows_at(tags_at, stop * group, n, np.int64(0)), rows_at(mu_at, stop * group * n, s, real)
    steps = rows_at(steps_at, stop * count * s, s, real)
    shared = group > 1 or count < n - 1
    totals = np.zeros((count * s if shared else 0, s))
    for k in range(start, stop):
        totals[:] = 0
        for b in range(k * group, (k + 1) * group):
            for t in range(sizes[b]):
                tag, before = tags[b, t], tags[b, t - 1] if t > 0 else np.int64(-1)
                if 0 <= tag < s:
                    mu[b * n + t, tag] -= g[b]
                    if 0 <= before < s:
                        row = (t - 1 if count > 1 else 0) * s + before
                        if shared:
                            totals[row, tag] += g[b]
                        else:
                            steps[k * count * s + row, tag] -= g[b]
        if shared:
            for i in range(count * s):
                for j in range(s):
                    steps[k * count * s + i, j] -= totals[i, j]
