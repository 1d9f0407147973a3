"""The nearest point that satisfies linear constraints, for Triton: a program for each instance, in one launch.

As in the reference, each round moves every price part of the way to the value that would satisfy its row alone. It then
takes Newton's step for all prices, by conjugate gradients on the free variables, or the part of that step with the
least dual value. All arithmetic is in float64; sums have a fixed order, so that each call gives the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.constrained.cuda_lists import RowLists, lists_of
from polymax.kernels.constrained.cuda_rows import (
    by_row,
    codes,
    missed,
    named,
    paid,
    point,
    rises,
    signed,
    step,
    step_alone,
)
from polymax.kernels.constrained.cuda_systems import solved
from polymax.kernels.constrained.reference import DAMPING, FEW, FLAT, GAIN, IDLE, NEARLY, ROUGH, TOLERANCE

# _TILE: entries of a tile of rows
# _BLOCK: variables of a block
# _TOGETHER: rows of a variable that are read at once
# _WARPS: warps of a program
_TILE, _BLOCK, _TOGETHER, _WARPS = 4096, 2048, 4, 16
# lengths of Newton's step that are tried
_LENGTHS = tl.constexpr(16)


def constrained(
    x: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, columns: Tensor, signs: Tensor, offset: Tensor,
    least: Tensor, most: Tensor, start: Tensor, rounds: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    count, n = x.shape
    rows = columns.shape[1]
    done = torch.zeros(count, dtype=torch.long, device=x.device)
    if not count or not rows or not n:
        return (x / weight).clamp(lower, upper), start.clone(), x.new_zeros(count), done
    mu, tau, violation = torch.empty_like(x), torch.empty_like(start), x.new_empty(count)
    lists = lists_of(columns, signs, n)
    room, work = x.new_empty(count, 2, n), x.new_empty(count, 8, rows)
    tensors = (x, weight, lower, upper, offset.expand(len(columns), rows), least, most, start)
    args = (*(t.contiguous() for t in tensors), *lists.tensors, mu, tau, violation, done, room, work)
    constants = {
        "FLAT": FLAT, "ROUGH": ROUGH, "FEW": FEW, "GAIN": GAIN, "IDLE": IDLE, "NEARLY": NEARLY, "DAMPING": DAMPING,
        "TOLERANCE": TOLERANCE,
    }  # fmt: skip
    with on_device(x):
        _constrained[(count,)](*args, *_sizes(lists, count), rounds, **_tiles(lists), **constants, num_warps=_WARPS)
    return mu, tau, violation, done


def constrained_response(
    free: Tensor, tight: Tensor, weight: Tensor, columns: Tensor, signs: Tensor, g: Tensor
) -> Tensor:
    count, n = g.shape
    rows = columns.shape[1]
    if not count or not rows or not n:
        return torch.where(free, g, 0) / weight
    out = torch.empty(g.shape, dtype=torch.float64, device=g.device)
    lists = lists_of(columns, signs, n)
    room, work = g.new_empty((count, 2, n), dtype=torch.float64), g.new_empty((count, 6, rows), dtype=torch.float64)
    tensors = (t.contiguous() for t in (free, tight, weight, g.double()))
    with on_device(g):
        _response[(count,)](
            *tensors, *lists.tensors, out, room, work, *_sizes(lists, count), **_tiles(lists), num_warps=_WARPS
        )
    return out


def _sizes(lists: RowLists, count: int) -> tuple[int, ...]:
    graphs, rows, _ = lists.rows.shape
    return lists.by.shape[2], rows, lists.by.shape[1], count // graphs


def _tiles(lists: RowLists) -> dict[str, int]:
    _, rows, width = lists.rows.shape
    _, degree, n = lists.by.shape
    shared = lists.shared.shape[1]
    return {
        "SHARED": shared,
        # with many rows there is no matrix
        "BS": max(ceil_power(rows), 16) if shared else 16,
        "BR": min(max(_TILE // width, 1), max(ceil_power(rows), 16)),
        "BK": width,
        "BV": min(_BLOCK, max(ceil_power(max(n, rows)), 64)),
        "BD": min(ceil_power(degree), _TOGETHER),
    }


@triton.jit(do_not_specialize=["n", "count", "degree", "group", "rounds"])
def _constrained(
    p_x, p_weight, p_lower, p_upper, p_offset, p_least, p_most, p_start, p_rows, p_by, p_shared, p_mu, p_tau,
    p_violation, p_done, p_room, p_work, n, count, degree, group, rounds,
    FLAT: tl.constexpr, ROUGH: tl.constexpr, FEW: tl.constexpr, GAIN: tl.constexpr, IDLE: tl.constexpr,
    NEARLY: tl.constexpr, DAMPING: tl.constexpr, TOLERANCE: tl.constexpr, SHARED: tl.constexpr, BS: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    i_g = i_b // group
    p_x += i_b * n
    p_weight += i_b * n
    p_lower += i_b * n
    p_upper += i_b * n
    p_mu += i_b * n
    p_offset += i_g * count
    p_least += i_b * count
    p_most += i_b * count
    p_start += i_b * count
    p_rows += i_g * count * BK
    p_by += i_g * n * degree
    p_shared += i_g * SHARED * count * count
    p_tau += i_b * count
    p_spread = p_room + i_b * 2 * n
    p_space = p_spread + n
    p_b = p_work + i_b * 8 * count
    p_y = p_b + count
    p_diagonal = p_y + count
    p_rise = p_diagonal + count
    p_tried = p_rise + count
    p_cg = p_tried + count
    zero = tl.sum(tl.zeros([BV], tl.float64), 0)
    top = zero
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        m_moves = tl.load(p_lower + o_v, mask=m_in, other=0) < tl.load(p_upper + o_v, mask=m_in, other=0)
        top = tl.maximum(top, tl.max(tl.where(m_moves, tl.abs(tl.load(p_x + o_v, mask=m_in, other=0)), 0), 0))
    warm = zero
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        warm = tl.maximum(warm, tl.max(tl.abs(tl.load(p_start + o_r, mask=o_r < count, other=0)), 0))
    # from scaled-down scores to the full ones: prices double with them, and few variables change sides
    scale = zero + 1
    while (warm == 0) & (scale * top > FLAT):
        scale = scale / 2
    rises(p_rise, p_rows, p_weight, count, BR, BK)
    # prices start at 0, or at those of the full scores
    step(p_start, p_start, 0.0, p_least, p_most, scale, p_tau, count, BV)
    miss = zero
    done = 0
    going = 1
    while going > 0:
        steep = scale == 1
        goal = tl.where(steep, TOLERANCE * (1 + top), ROUGH)
        limit = tl.where(steep, rounds, FEW)
        before = zero + float("inf")
        idle = 0
        turn = 0
        # 1 if the point and its violations belong to the current prices
        fresh = 0
        running = 1
        while running > 0:
            if fresh == 0:
                point(
                    p_x, scale, p_tau, p_mu, p_spread, p_by, p_weight, p_lower, p_upper, p_offset, n, count, degree,
                    BV, BD,
                )  # fmt: skip
                miss = missed(
                    p_mu, p_spread, p_tau, p_b, p_diagonal, p_rows, p_offset, p_least, p_most, scale, count,
                    BR, BK,
                )  # fmt: skip
            idle = tl.where(miss > GAIN * before, idle + 1, 0)
            before = tl.minimum(before, miss)
            over = (miss > goal) & (((idle > IDLE) & (miss < NEARLY * goal)) == 0) & (turn < limit)
            running = over.to(tl.int32)
            if running > 0:
                turn += 1
                step_alone(p_tau, p_b, p_rise, degree, p_least, p_most, scale, count, BV)
                value = point(
                    p_x, scale, p_tau, p_mu, p_spread, p_by, p_weight, p_lower, p_upper, p_offset, n, count, degree,
                    BV, BD,
                )  # fmt: skip
                miss = missed(
                    p_mu, p_spread, p_tau, p_b, p_diagonal, p_rows, p_offset, p_least, p_most, scale, count,
                    BR, BK,
                )  # fmt: skip
                near = tl.minimum(miss, 1)
                # far from the solution a rough step is as good as an exact one
                solved(
                    p_b, p_y, p_cg, p_space, p_spread, p_diagonal, DAMPING * near,
                    tl.maximum(1e-4 * near * near, 1e-29), p_rows, p_by, p_shared, n, count, degree, 1, SHARED,
                    BS, BR, BK, BV, BD,
                )  # fmt: skip
                # the full step, which is exact in the end; else the length with the least value
                best = value
                chosen = zero
                length = zero + 1
                fresh = 0
                k = 0
                while (k < _LENGTHS) & (fresh == 0):
                    step(p_tau, p_y, length, p_least, p_most, scale, p_tried, count, BV)
                    reached = point(
                        p_x, scale, p_tried, p_mu, p_spread, p_by, p_weight, p_lower, p_upper, p_offset, n, count,
                        degree, BV, BD,
                    )  # fmt: skip
                    if k == 0:
                        left = missed(
                            p_mu, p_spread, p_tried, p_b, p_diagonal, p_rows, p_offset, p_least, p_most, scale, count,
                            BR, BK,
                        )  # fmt: skip
                        good = (left < GAIN * miss) & (reached <= value + 1e-13 * (1 + tl.abs(value)))
                        fresh = good.to(tl.int32)
                        miss = tl.where(good, left, miss)
                    lower = (reached < best) | (fresh > 0)
                    # the function is convex: past its least value it only rises
                    k = tl.where((chosen > 0) & (reached >= best), _LENGTHS, k + 1)
                    chosen = tl.where(lower, length, chosen)
                    best = tl.where(lower, reached, best)
                    length = length / 2
                step(p_tau, p_y, chosen, p_least, p_most, scale, p_tau, count, BV)
        done += turn
        going = tl.where(steep, 0, 1)
        if going > 0:
            scale = scale * 2
            step(p_tau, p_tau, 1.0, p_least, p_most, scale, p_tau, count, BV)
    tl.store(p_violation + i_b, miss)
    tl.store(p_done + i_b, done)


@triton.jit(do_not_specialize=["n", "count", "degree", "group"])
def _response(
    p_free, p_tight, p_weight, p_g, p_rows, p_by, p_shared, p_out, p_room, p_work, n, count, degree, group,
    SHARED: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    i_g = i_b // group
    p_free += i_b * n
    p_tight += i_b * count
    p_weight += i_b * n
    p_g += i_b * n
    p_out += i_b * n
    p_rows += i_g * count * BK
    p_by += i_g * n * degree
    p_shared += i_g * SHARED * count * count
    p_spread = p_room + i_b * 2 * n
    p_space = p_spread + n
    p_b = p_work + i_b * 6 * count
    p_y = p_b + count
    p_diagonal = p_y + count
    p_cg = p_diagonal + count
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        m_free = tl.load(p_free + o_v, mask=m_in, other=0) != 0
        b_spread = tl.where(m_free, 1 / tl.load(p_weight + o_v, mask=m_in, other=1), 0)
        tl.store(p_spread + o_v, b_spread, mask=m_in)
        # variables that are not free may be infinite
        b_g = tl.load(p_g + o_v, mask=m_in & m_free, other=0)
        tl.store(p_space + o_v, b_g * b_spread, mask=m_in)
    tl.debug_barrier()
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        m_tight = tl.load(p_tight + o_r, mask=m_in, other=0) != 0
        b_code = codes(p_rows, start, count, BR, BK)
        tl.store(p_b + o_r, tl.where(m_tight, by_row(signed(p_space, b_code), BR, BK), 0), mask=m_in)
        tl.store(p_diagonal + o_r, tl.where(m_tight, by_row(named(p_spread, b_code), BR, BK), 0), mask=m_in)
    tl.debug_barrier()
    solved(
        p_b, p_y, p_cg, p_space, p_spread, p_diagonal, 0.0, 1e-29, p_rows, p_by, p_shared, n, count, degree, 2,
        SHARED, BS, BR, BK, BV, BD,
    )  # fmt: skip
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        b_left = tl.load(p_g + o_v, mask=m_in, other=0) - paid(p_y, p_by, o_v, m_in, n, degree, BD)
        b_spread = tl.load(p_spread + o_v, mask=m_in, other=0)
        tl.store(p_out + o_v, tl.where(b_spread > 0, b_left * b_spread, 0), mask=m_in)
