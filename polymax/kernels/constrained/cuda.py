"""The nearest point that keeps linear constraints, for Triton: a program for each instance, in one launch.

As in the reference, each round moves every price part of the way to where it alone would meet its row, then takes
Newton's step for all of them, by conjugate gradients on the variables that are free, or the part of it by which the
dual value falls most. All arithmetic is in float64; sums have one order, so that the same call gives the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from polymax.kernels.constrained.cuda_rows import clipped, curvature, dual, ends, gradients, missed, prices, variables
from polymax.kernels.constrained.reference import DAMPING, FEW, FLAT, GAIN, IDLE, NEARLY, ROUGH, TOLERANCE
from polymax.kernels.triton_math import ceil_power, on_device

# entries of a tile of rows, variables of a block, and warps
_TILE, _BLOCK, _WARPS = 4096, 2048, 32
# by the columns of rows: the signs that they came with, whose identity is no one else's meanwhile, and rows by variable
_TRANSPOSED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
# lengths of Newton's step that are tried
_LENGTHS = tl.constexpr(16)


def constrained(
    x: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, columns: Tensor, signs: Tensor, offset: Tensor,
    least: Tensor, most: Tensor, start: Tensor, rounds: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    count, n = x.shape
    rows, width = columns.shape[1:]
    done = torch.zeros(count, dtype=torch.long, device=x.device)
    if not count or not rows or not n:
        return (x / weight).clamp(lower, upper), start.clone(), x.new_zeros(count), done
    mu, tau, violation = torch.empty_like(x), torch.empty_like(start), x.new_empty(count)
    by, by_signs = _by_variable(columns, signs, n)
    room, work = x.new_empty(count, 3, n), x.new_empty(count, 8, rows)
    tensors = (x, weight, lower, upper, columns, signs.double(), offset.expand(len(columns), rows), least, most, start)
    args = (*(t.contiguous() for t in tensors), by, by_signs, mu, tau, violation, done, room, work)
    sizes = n, rows, width, by.shape[2], count // len(columns), rounds
    constants = {
        "FLAT": FLAT, "ROUGH": ROUGH, "FEW": FEW, "GAIN": GAIN, "IDLE": IDLE, "NEARLY": NEARLY, "DAMPING": DAMPING,
        "TOLERANCE": TOLERANCE,
    }  # fmt: skip
    with on_device(x):
        _constrained[(count,)](*args, *sizes, **_tiles(rows, width, n), **constants, num_warps=_WARPS)
    return mu, tau, violation, done


def constrained_response(
    free: Tensor, tight: Tensor, weight: Tensor, columns: Tensor, signs: Tensor, g: Tensor
) -> Tensor:
    count, n = g.shape
    rows, width = columns.shape[1:]
    if not count or not rows or not n:
        return torch.where(free, g, 0) / weight
    out = torch.empty(g.shape, dtype=torch.float64, device=g.device)
    by, by_signs = _by_variable(columns, signs, n)
    room, work = g.new_empty((count, 2, n), dtype=torch.float64), g.new_empty((count, 6, rows), dtype=torch.float64)
    tensors = free.double(), tight.double(), weight, columns, signs.double(), g.double()
    args = (*(t.contiguous() for t in tensors), by, by_signs, out, room, work)
    with on_device(g):
        _response[(count,)](
            *args, n, rows, width, by.shape[2], count // len(columns), **_tiles(rows, width, n), num_warps=_WARPS
        )
    return out


def _tiles(rows: int, width: int, n: int) -> dict[str, int]:
    choices = max(ceil_power(max(width, 1)), 16)
    return {
        "BR": min(max(_TILE // choices, 1), max(ceil_power(rows), 16)),
        "BK": choices,
        "BV": min(_BLOCK, max(ceil_power(max(n, rows)), 64)),
    }


def _by_variable(columns: Tensor, signs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The rows of each variable, and signs, (G, n, degree), in order, -1 after the last.

    They are kept as long as the columns are: those of a graph are the same tensors at every call.
    """
    # tensors of inference mode do not count how often they were written to
    key = n, *((id(t), 0 if t.is_inference() else t._version) for t in (columns, signs))
    known = _TRANSPOSED.get(columns)
    if known is None or known[0] != key:
        known = key, signs, _transposed(columns, signs, n)
        _TRANSPOSED[columns] = known
    return known[2]


def _transposed(columns: Tensor, signs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    graphs, _, width = columns.shape
    key = torch.where(columns < 0, n, columns).flatten(1)
    ordered, order = torch.sort(key, dim=1, stable=True)
    places = torch.arange(n + 1, device=columns.device).expand(graphs, n + 1).contiguous()
    begin = torch.searchsorted(ordered, places)
    size = begin.diff(dim=1)
    degree = max(int(size.max()), 1)
    step = torch.arange(degree, device=columns.device)
    there = step < size.unsqueeze(-1)
    entry = order.gather(1, torch.where(there, begin[:, :-1].unsqueeze(-1) + step, 0).flatten(1))
    found = signs.double().flatten(1).gather(1, entry).reshape(there.shape)
    entry = entry.reshape(there.shape)
    return torch.where(there, entry // width, -1), torch.where(there, found, 0).contiguous()


@triton.jit(do_not_specialize=["n", "count", "width", "degree", "group", "rounds"])
def _constrained(
    p_x, p_weight, p_lower, p_upper, p_columns, p_signs, p_offset, p_least, p_most, p_start, p_by, p_by_signs, p_mu,
    p_tau, p_violation, p_done, p_room, p_work, n, count, width, degree, group, rounds,
    FLAT: tl.constexpr, ROUGH: tl.constexpr, FEW: tl.constexpr, GAIN: tl.constexpr, IDLE: tl.constexpr,
    NEARLY: tl.constexpr, DAMPING: tl.constexpr, TOLERANCE: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    i_g = i_b // group
    p_x += i_b * n
    p_weight += i_b * n
    p_lower += i_b * n
    p_upper += i_b * n
    p_columns += i_g * count * width
    p_signs += i_g * count * width
    p_offset += i_g * count
    p_least += i_b * count
    p_most += i_b * count
    p_start += i_b * count
    p_by += i_g * n * degree
    p_by_signs += i_g * n * degree
    p_tau += i_b * count
    p_t = p_room + i_b * 3 * n
    p_free = p_t + n
    p_space = p_free + n
    p_b = p_work + i_b * 8 * count
    p_y = p_b + count
    p_diagonal = p_y + count
    p_held = p_diagonal + count
    p_tried = p_held + count
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
    # from flat scores to steep ones: prices double with them, and few variables change sides
    scale = zero + 1
    while (warm == 0) & (scale * top > FLAT):
        scale = scale / 2
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        b_tau = scale * tl.load(p_start + o_r, mask=m_in, other=0)
        tl.store(p_tau + o_r, b_tau, mask=m_in)
    tl.debug_barrier()
    miss = zero
    done = 0
    going = 1
    while going > 0:
        steep = scale == 1
        for start in range(0, count, BV):
            o_r = start + tl.arange(0, BV)
            m_in = o_r < count
            b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
            b_tau = tl.minimum(tl.maximum(tl.load(p_tau + o_r, mask=m_in, other=0), b_low), b_high)
            tl.store(p_tau + o_r, b_tau, mask=m_in)
        tl.debug_barrier()
        goal = tl.where(steep, TOLERANCE * (1 + top), ROUGH)
        limit = tl.where(steep, rounds, FEW)
        before = zero + float("inf")
        idle = 0
        turn = 0
        running = 1
        while running > 0:
            prices(p_x, scale, p_tau, p_t, p_by, p_by_signs, n, degree, BV)
            miss = missed(
                p_t, p_tau, p_b, p_columns, p_signs, p_offset, p_least, p_most, scale, p_weight, p_lower, p_upper,
                count, width, BR, BK,
            )  # fmt: skip
            idle = tl.where(miss > GAIN * before, idle + 1, 0)
            before = tl.minimum(before, miss)
            over = (miss > goal) & (((idle > IDLE) & (miss < NEARLY * goal)) == 0) & (turn < limit)
            running = over.to(tl.int32)
            if running > 0:
                turn += 1
                _alone(
                    p_b, p_tau, p_least, p_most, scale, p_columns, p_weight, p_by, n, count, width, degree, BR, BK, BV
                )
                prices(p_x, scale, p_tau, p_t, p_by, p_by_signs, n, degree, BV)
                miss = missed(
                    p_t, p_tau, p_b, p_columns, p_signs, p_offset, p_least, p_most, scale, p_weight, p_lower, p_upper,
                    count, width, BR, BK,
                )  # fmt: skip
                value = dual(p_t, p_tau, p_offset, p_weight, p_lower, p_upper, n, count, BV)
                _sides(
                    p_t, p_b, p_tau, p_least, p_most, scale, p_free, p_held, p_weight, p_lower, p_upper, n, count, BV
                )
                curvature(p_free, p_held, p_diagonal, p_columns, p_signs, p_weight, count, width, BR, BK)
                near = tl.minimum(miss, 1)
                # far from the solution a rough step is as good as an exact one
                gradients(
                    p_b, p_y, p_cg, p_space, p_free, p_diagonal, DAMPING * near,
                    tl.maximum(1e-4 * near * near, 1e-29), p_columns, p_signs, p_by, p_by_signs, p_weight, n, count,
                    width, degree, 1, BR, BK, BV,
                )  # fmt: skip
                # all of it, which is exact in the end; else as much as the value falls most by
                best = value
                chosen = zero
                length = zero + 1
                whole = zero
                k = 0
                while (k < _LENGTHS) & (whole == 0):
                    _step(p_tau, p_y, length, p_least, p_most, scale, p_tried, count, BV)
                    prices(p_x, scale, p_tried, p_t, p_by, p_by_signs, n, degree, BV)
                    reached = dual(p_t, p_tried, p_offset, p_weight, p_lower, p_upper, n, count, BV)
                    if k == 0:
                        left = missed(
                            p_t, p_tried, p_b, p_columns, p_signs, p_offset, p_least, p_most, scale, p_weight,
                            p_lower, p_upper, count, width, BR, BK,
                        )  # fmt: skip
                        good = (left < GAIN * miss) & (reached <= value + 1e-13 * (1 + tl.abs(value)))
                        whole = tl.where(good, zero + 1, zero)
                    lower = (reached < best) | (whole > 0)
                    # the function is convex: past its lowest value it only rises
                    k = tl.where((chosen > 0) & (reached >= best), _LENGTHS, k + 1)
                    chosen = tl.where(lower, length, chosen)
                    best = tl.where(lower, reached, best)
                    length = length / 2
                _step(p_tau, p_y, chosen, p_least, p_most, scale, p_tau, count, BV)
        done += turn
        going = tl.where(steep, 0, 1)
        if going > 0:
            scale = scale * 2
            for start in range(0, count, BV):
                o_r = start + tl.arange(0, BV)
                m_in = o_r < count
                tl.store(p_tau + o_r, 2 * tl.load(p_tau + o_r, mask=m_in, other=0), mask=m_in)
            tl.debug_barrier()
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        _, _, b_mu, _ = clipped(p_t, p_weight, p_lower, p_upper, o_v, o_v < n)
        tl.store(p_mu + i_b * n + o_v, b_mu, mask=o_v < n)
    tl.store(p_violation + i_b, miss)
    tl.store(p_done + i_b, done)


@triton.jit
def _alone(
    p_b, p_tau, p_least, p_most, scale, p_columns, p_weight, p_by, n, count, width, degree,
    BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Every price goes part of the way to where it alone would meet its row: a variable follows all of its rows."""
    o_k = tl.arange(0, BK)[None, :]
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        o_v, m_on = variables(p_columns, o_r, m_in, o_k, width)
        b_rise = tl.sum(tl.where(m_on, 1 / tl.load(p_weight + o_v, mask=m_on, other=1), 0), 1) * degree
        b_step = tl.load(p_b + o_r, mask=m_in, other=0) / tl.maximum(b_rise, 1e-300)
        b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
        b_tau = tl.minimum(tl.maximum(tl.load(p_tau + o_r, mask=m_in, other=0) + b_step, b_low), b_high)
        tl.store(p_tau + o_r, b_tau, mask=m_in)
    tl.debug_barrier()


@triton.jit
def _sides(
    p_t, p_b, p_tau, p_least, p_most, scale, p_free, p_held, p_weight, p_lower, p_upper, n, count, BV: tl.constexpr
):
    """Which variables are between their bounds, and which prices may move."""
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        _, _, _, b_free = clipped(p_t, p_weight, p_lower, p_upper, o_v, o_v < n)
        tl.store(p_free + o_v, b_free.to(tl.float64), mask=o_v < n)
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        b_tau = tl.load(p_tau + o_r, mask=m_in, other=0)
        b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
        m_held = (tl.load(p_b + o_r, mask=m_in, other=0) != 0) | ((b_tau > b_low) & (b_tau < b_high))
        tl.store(p_held + o_r, m_held.to(tl.float64), mask=m_in)
    tl.debug_barrier()


@triton.jit
def _step(p_tau, p_y, length, p_least, p_most, scale, p_out, count, BV: tl.constexpr):
    """tau + length y, within the ends of prices."""
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        b_tau = tl.load(p_tau + o_r, mask=m_in, other=0) + length * tl.load(p_y + o_r, mask=m_in, other=0)
        b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
        tl.store(p_out + o_r, tl.minimum(tl.maximum(b_tau, b_low), b_high), mask=m_in)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["n", "count", "width", "degree", "group"])
def _response(
    p_free, p_tight, p_weight, p_columns, p_signs, p_g, p_by, p_by_signs, p_out, p_room, p_work, n, count, width,
    degree, group, BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    i_g = i_b // group
    p_free += i_b * n
    p_tight += i_b * count
    p_weight += i_b * n
    p_g += i_b * n
    p_columns += i_g * count * width
    p_signs += i_g * count * width
    p_by += i_g * n * degree
    p_by_signs += i_g * n * degree
    p_space = p_room + i_b * 2 * n
    p_left = p_space + n
    p_b = p_work + i_b * 6 * count
    p_y = p_b + count
    p_diagonal = p_y + count
    p_cg = p_diagonal + count
    curvature(p_free, p_tight, p_diagonal, p_columns, p_signs, p_weight, count, width, BR, BK)
    o_k = tl.arange(0, BK)[None, :]
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        o_v, m_on = variables(p_columns, o_r, m_in, o_k, width)
        b_g = tl.load(p_g + o_v, mask=m_on, other=0) * tl.load(p_free + o_v, mask=m_on, other=0)
        b_g = b_g * tl.load(p_signs + o_r[:, None] * width + o_k, mask=m_on, other=0)
        tl.store(p_b + o_r, tl.sum(b_g / tl.load(p_weight + o_v, mask=m_on, other=1), 1), mask=m_in)
    tl.debug_barrier()
    gradients(
        p_b, p_y, p_cg, p_space, p_free, p_diagonal, 0.0, 1e-29, p_columns, p_signs, p_by, p_by_signs, p_weight, n,
        count, width, degree, 2, BR, BK, BV,
    )  # fmt: skip
    prices(p_g, 1.0, p_y, p_left, p_by, p_by_signs, n, degree, BV)
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        b_moved = tl.load(p_left + o_v, mask=m_in, other=0) * tl.load(p_free + o_v, mask=m_in, other=0)
        tl.store(p_out + i_b * n + o_v, b_moved / tl.load(p_weight + o_v, mask=m_in, other=1), mask=m_in)
