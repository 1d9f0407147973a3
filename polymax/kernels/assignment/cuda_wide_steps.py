"""The steps of cuda_wide.py: each program has some columns, and as many rows. For Triton."""

import triton
import triton.language as tl


@triton.jit
def load(p, mask, other):
    """Load what other programs may have written: not from a cache of this multiprocessor."""
    return tl.load(p, mask=mask, other=other, cache_modifier=".cg")


@triton.jit
def set_prices(p_x, across, down, short, long, p_v, p_owner, p_match, i_p, BC: tl.constexpr, BR: tl.constexpr):
    """Write the highest score of each column in a square, else 0; say 1 for NaN and +inf, 4096 for a column of -inf."""
    o_c = i_p * BC + tl.arange(0, BC)
    m_c = o_c < long
    b_top = tl.full([BR, BC], float("-inf"), tl.float64)
    b_bad = tl.full([BR, BC], 0, tl.int32)
    for r in range(0, short, BR):
        o_r = r + tl.arange(0, BR)
        m_x = (o_r < short)[:, None] & m_c[None, :]
        b_x = tl.load(p_x + o_r[:, None] * across + o_c[None, :] * down, mask=m_x, other=float("-inf"))
        b_bad |= (b_x < float("inf")).to(tl.int32) ^ 1
        b_top = tl.maximum(b_top, b_x.to(tl.float64))
    square = short == long
    b_v = tl.where(square, tl.max(b_top, 0), 0.0)
    tl.store(p_v + o_c, b_v, mask=m_c)
    tl.store(p_owner + o_c, tl.full([BC], -1, tl.int32), mask=m_c)
    tl.store(p_match + o_c, tl.full([BC], -1, tl.int32), mask=o_c < short)
    none = tl.max((m_c & (b_v == float("-inf"))).to(tl.int32), 0)
    return tl.max(tl.max(b_bad, 0), 0) + 4096 * none


@triton.jit
def _values(p_x, across, down, long, p_v, p_owner, o_r, m_r, most, BW: tl.constexpr):
    """Return for four rows the value of the best column, its rank, and the value of the second best.

    Among equally good columns free ones come first, then those that follow on the diagonal: rows with equal scores bid
    for different columns.
    """
    b_best = tl.full([4, BW], float("-inf"), tl.float64)
    b_second = tl.full([4, BW], float("-inf"), tl.float64)
    b_rank = tl.full([4, BW], 1 << 30, tl.int32)
    for c in range(0, long, BW):
        o_c = c + tl.arange(0, BW)
        m_c = o_c < long
        b_v = load(p_v + o_c, m_c, 0.0)
        b_owner = load(p_owner + o_c, m_c, -1)
        m_x = m_r[:, None] & m_c[None, :]
        b_x = tl.load(p_x + o_r[:, None] * across + o_c[None, :] * down, mask=m_x, other=float("-inf"))
        b_value = b_x.to(tl.float64) - b_v[None, :]
        b_place = ((o_c[None, :] - o_r[:, None]) & (most - 1)) + tl.where(b_owner < 0, 0, most)[None, :]
        better = (b_value > b_best) | ((b_value == b_best) & (b_place < b_rank))
        b_second = tl.maximum(b_second, tl.where(better, b_best, b_value))
        b_best = tl.where(better, b_value, b_best)
        b_rank = tl.where(better, b_place, b_rank)
    b_top = tl.max(b_best, 1)
    b_first = tl.min(tl.where(b_best == b_top[:, None], b_rank, 1 << 30), 1)
    return b_top, b_first, tl.max(tl.where(b_rank == b_first[:, None], b_second, b_best), 1)


@triton.jit
def bid(
    p_x,
    across,
    down,
    short,
    long,
    p_v,
    p_owner,
    p_match,
    p_u,
    p_near,
    p_row,
    p_base,
    final,
    most,
    i_p,
    BC: tl.constexpr,
    BW: tl.constexpr,
):
    """List the waiting rows, the columns for which they bid, or -1, and by how much they raise the prices.

    If `final`, write the dual of each row: the value of its column, or of the best one if it waits.
    """
    o_i = i_p * BC + tl.arange(0, BC)
    m_in = o_i < short
    b_match = load(p_match + o_i, m_in, 0)
    m_has = m_in & (b_match >= 0) & final
    b_held = tl.load(p_x + o_i * across + b_match * down, mask=m_has, other=0.0).to(tl.float64)
    tl.store(p_u + o_i, b_held - load(p_v + b_match, m_has, 0.0), mask=m_has)
    m_waits = m_in & (b_match < 0)
    b_place = tl.where(m_waits, tl.cumsum(m_waits.to(tl.int32), 0), 0) - 1
    count = tl.sum(m_waits.to(tl.int32), 0)
    for first in range(0, count, 4):
        o_s = first + tl.arange(0, 4)
        m_r = o_s < count
        o_r = tl.max(tl.where(b_place[None, :] == o_s[:, None], o_i[None, :], 0), 1)
        b_best, b_rank, b_second = _values(p_x, across, down, long, p_v, p_owner, o_r, m_r, most, BW)
        # without a second column the price is not determined; at a tie, a column is only taken if it is free
        takes = (b_second > float("-inf")) & ((b_best > b_second) | (b_rank < most))
        o_s += i_p * BC
        tl.store(p_row + o_s, o_r, mask=m_r)
        tl.store(p_near + o_s, tl.where(takes, (b_rank + o_r) & (most - 1), -1), mask=m_r)
        tl.store(p_base + o_s, tl.where(takes, b_best - b_second, 0.0), mask=m_r)
        tl.store(p_u + o_r, b_best, mask=m_r & final)
    return count << 16


@triton.jit
def settle(
    long,
    p_v,
    p_owner,
    p_match,
    p_near,
    p_row,
    p_base,
    p_heard,
    width,
    longest,
    programs,
    most,
    i_p,
    BC: tl.constexpr,
    BS: tl.constexpr,
    NP: tl.constexpr,
):
    """Give each column to the highest bid; say how many were free, and 8192 for each that was given."""
    o_c = i_p * BC + tl.arange(0, BC)
    m_c = o_c < long
    b_v = load(p_v + o_c, m_c, 0.0)
    b_old = load(p_owner + o_c, m_c, -1)
    b_top = tl.full([BS * NP, BC], -1.0, tl.float64)
    b_rank = tl.full([BS * NP, BC], 1 << 30, tl.int32)
    for first in range(0, longest, BS):
        o_s, m_s = _entries(p_heard, first, programs, BC, BS, NP)
        m_far = o_s < width
        o_r = load(p_row + o_s, m_far, 0)
        b_near = tl.where(m_s, load(p_near + o_s, m_far, -1), -1)
        b_raise = load(p_base + o_s, m_far, 0.0)
        b_bid = tl.where(b_near[:, None] == o_c[None, :], b_raise[:, None], -1.0)
        b_place = (o_r[:, None] - o_c[None, :]) & (most - 1)
        better = (b_bid > b_top) | ((b_bid == b_top) & (b_place < b_rank))
        b_top = tl.where(better, b_bid, b_top)
        b_rank = tl.where(better, b_place, b_rank)
    b_rise = tl.max(b_top, 0)
    m_won = m_c & (b_rise >= 0)
    b_row = (tl.min(tl.where(b_top == b_rise[None, :], b_rank, 1 << 30), 0) + o_c) & (most - 1)
    # all threads have read before one writes
    tl.debug_barrier()
    tl.store(p_v + o_c, b_v + b_rise, mask=m_won)
    tl.store(p_owner + o_c, b_row, mask=m_won)
    tl.store(p_match + b_old, tl.full([BC], -1, tl.int32), mask=m_won & (b_old >= 0))
    tl.store(p_match + b_row, o_c, mask=m_won)
    return tl.sum((m_won & (b_old < 0)).to(tl.int32) + 8192 * m_won.to(tl.int32), 0)


@triton.jit
def _entries(p_heard, first, programs, BC: tl.constexpr, BS: tl.constexpr, NP: tl.constexpr):
    """Return the places of the next entries of the lists of all programs, and a mask of those that there are."""
    o_e = tl.arange(0, BS * NP)
    o_p = o_e % NP
    o_k = first + o_e // NP
    m_e = (o_p < programs) & (o_k < BC)
    m_e = m_e & (o_k < (load(p_heard + o_p, m_e, 0) >> 16))
    return o_p * BC + o_k, m_e


@triton.jit
def list_waiting(short, p_match, p_u, p_row, p_base, p_dual, p_row_root, width, i_p, BC: tl.constexpr):
    """List the rows without a column, with distance 0 and their duals, as roots of the forest."""
    o_r = i_p * BC + tl.arange(0, BC)
    m_in = o_r < short
    m_r = m_in & (load(p_match + o_r, m_in, 0) < 0)
    o_s = i_p * BC + tl.cumsum(m_r.to(tl.int32), 0) - 1
    tl.store(p_row + o_s, o_r, mask=m_r)
    tl.store(p_base + o_s, tl.full([BC], 0.0, tl.float64), mask=m_r)
    tl.store(p_dual + o_s, load(p_u + o_r, m_r, 0.0), mask=m_r)
    tl.store(p_row_root + o_r, o_r, mask=m_r)
    tl.store(p_row_root + width + o_r, o_r, mask=m_r)
    return tl.sum(m_r.to(tl.int32), 0) << 16


@triton.jit
def sweep_paths(
    p_x,
    across,
    down,
    long,
    p_v,
    p_owner,
    p_u,
    p_d,
    p_by,
    p_root,
    p_row,
    p_base,
    p_dual,
    p_row_root,
    p_heard,
    width,
    sweep,
    longest,
    programs,
    most,
    i_p,
    BC: tl.constexpr,
    BS: tl.constexpr,
    NP: tl.constexpr,
):
    """Shorten paths to columns by one edge from the rows that are listed; list the rows of those that came nearer.

    Say how many columns with an owner have another distance or root, and 65536 for each row of the list.
    """
    o_c = i_p * BC + tl.arange(0, BC)
    m_c = o_c < long
    m_old = m_c & (sweep > 0)
    here, there = (sweep % 2) * width, ((sweep + 1) % 2) * width
    b_v = load(p_v + o_c, m_c, 0.0)
    b_owner = load(p_owner + o_c, m_c, -1)
    b_old = load(p_d + o_c, m_old, float("inf"))
    b_by = load(p_by + o_c, m_old, -1)
    b_root_old = load(p_root + o_c, m_old, -1)
    m_own = m_c & (b_owner >= 0)
    b_dual = load(p_u + b_owner, m_own, 0.0)
    b_d = tl.full([BS * NP, BC], float("inf"), tl.float64)
    b_rank = tl.full([BS * NP, BC], 1 << 30, tl.int32)
    for first in range(0, longest, BS):
        o_s, m_s = _entries(p_heard, first, programs, BC, BS, NP)
        m_far = o_s < width
        o_r = load(p_row + here + o_s, m_far, 0)
        b_base = load(p_base + here + o_s, m_far, 0.0)
        b_u = load(p_dual + here + o_s, m_far, 0.0)
        m_x = m_s[:, None] & m_c[None, :]
        b_x = tl.load(p_x + o_r[:, None] * across + o_c[None, :] * down, mask=m_x, other=float("-inf"))
        b_x = b_x.to(tl.float64)
        # rounding may leave slacks a little below 0
        b_slack = tl.maximum((b_u[:, None] + b_v[None, :]) - b_x, 0.0)
        b_through = tl.where(b_x > float("-inf"), b_base[:, None] + b_slack, float("inf"))
        b_place = (o_r[:, None] - o_c[None, :]) & (most - 1)
        nearer = (b_through < b_d) | ((b_through == b_d) & (b_place < b_rank))
        b_d = tl.where(nearer, b_through, b_d)
        b_rank = tl.where(nearer, b_place, b_rank)
    b_new = tl.min(b_d, 0)
    b_place = tl.min(tl.where(b_d == b_new[None, :], b_rank, 1 << 30), 0)
    nearer = m_c & (b_new < b_old)
    b_new = tl.where(nearer, b_new, b_old)
    b_by = tl.where(nearer, (b_place + o_c) & (most - 1), b_by)
    # the row before a column may have another root than it had, at an equal distance
    b_root = load(p_row_root + here + b_by, m_c & (b_by >= 0), -1)
    m_next = m_own & nearer
    o_s = there + i_p * BC + tl.cumsum(m_next.to(tl.int32), 0) - 1
    # all threads have read before one writes
    tl.debug_barrier()
    tl.store(p_d + o_c, b_new, mask=m_c)
    tl.store(p_by + o_c, b_by, mask=m_c)
    tl.store(p_root + o_c, b_root, mask=m_c)
    tl.store(p_row + o_s, b_owner, mask=m_next)
    tl.store(p_base + o_s, b_new, mask=m_next)
    tl.store(p_dual + o_s, b_dual, mask=m_next)
    tl.store(p_row_root + there + b_owner, b_root, mask=m_own)
    changed = m_own & (nearer | (b_root != b_root_old))
    return tl.sum(changed.to(tl.int32) + (m_next.to(tl.int32) << 16), 0)


@triton.jit
def pick_paths(long, p_owner, p_d, p_root, p_win, p_ends, width, i_p, BC: tl.constexpr, BR: tl.constexpr):
    """Mark the nearest free column of each tree; write the nearest one that is not, and the farthest that is."""
    o_c = i_p * BC + tl.arange(0, BC)
    m_c = o_c < long
    b_d = load(p_d + o_c, m_c, float("inf"))
    b_root = load(p_root + o_c, m_c, -1)
    m_free = m_c & (load(p_owner + o_c, m_c, 0) < 0) & (b_d < float("inf"))
    b_beaten = tl.full([BR, BC], 0, tl.int32)
    for k in range(0, long, BR):
        o_k = k + tl.arange(0, BR)
        m_k = o_k < long
        b_far = tl.where(load(p_owner + o_k, m_k, 0) < 0, load(p_d + o_k, m_k, float("inf")), float("inf"))
        m_same = load(p_root + o_k, m_k, -2)[:, None] == b_root[None, :]
        m_tie = (b_far[:, None] == b_d[None, :]) & (o_k[:, None] < o_c[None, :])
        b_beaten |= (m_same & ((b_far[:, None] < b_d[None, :]) | m_tie)).to(tl.int32)
    m_win = m_free & (tl.max(b_beaten, 0) == 0)
    tl.store(p_win + o_c, m_win.to(tl.int32), mask=m_c)
    tl.store(p_ends + i_p, tl.min(tl.where(m_free & (m_win == 0), b_d, float("inf")), 0))
    tl.store(p_ends + width + i_p, tl.max(tl.where(m_win, b_d, 0.0), 0))
    return tl.sum(m_win.to(tl.int32), 0)


@triton.jit
def raise_prices(short, long, p_v, p_match, p_u, p_d, p_win, p_ends, width, o_p, m_p, i_p, BC: tl.constexpr):
    """Raise prices and lower duals of rows up to the distance of the farthest path that is used."""
    farthest = tl.max(load(p_ends + width + o_p, m_p, 0.0), 0)
    nearest = tl.min(load(p_ends + o_p, m_p, float("inf")), 0)
    distance = tl.where(short == long, farthest, tl.minimum(farthest, nearest))
    o_c = i_p * BC + tl.arange(0, BC)
    m_c = o_c < long
    m_r = o_c < short
    b_v = load(p_v + o_c, m_c, 0.0)
    b_d = load(p_d + o_c, m_c, float("inf"))
    b_win = load(p_win + o_c, m_c, 0)
    b_u = load(p_u + o_c, m_r, 0.0)
    b_match = load(p_match + o_c, m_r, -1)
    b_base = load(p_d + b_match, m_r & (b_match >= 0), 0.0)
    # all threads have read before one writes
    tl.debug_barrier()
    tl.store(p_v + o_c, b_v + tl.maximum(distance - b_d, 0.0), mask=m_c)
    tl.store(p_win + o_c, tl.where(b_d <= distance, b_win, 0), mask=m_c)
    tl.store(p_u + o_c, b_u - tl.maximum(distance - b_base, 0.0), mask=m_r)


@triton.jit
def flip_paths(p_x, across, down, short, long, p_v, p_owner, p_match, p_u, p_by, p_win, i_p, BC: tl.constexpr):
    """Give the rows on the paths to marked columns their next columns; say how many paths."""
    o_c = i_p * BC + tl.arange(0, BC)
    m_on = (o_c < long) & (load(p_win + o_c, o_c < long, 0) > 0)
    paths = tl.sum(m_on.to(tl.int32), 0)
    b_j = o_c
    hops = short
    while (tl.max(m_on.to(tl.int32), 0) > 0) & (hops > 0):
        hops -= 1
        b_i = load(p_by + b_j, m_on, 0)
        b_next = load(p_match + b_i, m_on, -1)
        b_x = tl.load(p_x + b_i * across + b_j * down, mask=m_on, other=0.0).to(tl.float64)
        b_v = load(p_v + b_j, m_on, 0.0)
        # all threads have read before one writes
        tl.debug_barrier()
        tl.store(p_match + b_i, b_j, mask=m_on)
        tl.store(p_owner + b_j, b_i, mask=m_on)
        tl.store(p_u + b_i, b_x - b_v, mask=m_on)
        m_on = m_on & (b_next >= 0)
        b_j = tl.where(m_on, b_next, b_j)
    return paths
