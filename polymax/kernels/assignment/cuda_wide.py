"""Linear assignment for Triton where problems are large and few: many programs for each matrix.

Rows first bid all at once for some rounds. Then come phases. The shortest paths from all rows without a column, by
sweeps over the matrix (Bellman and Ford), are a forest. In each tree, the path to its nearest free column gives the
rows on it their next columns. With D the longest of these paths, the price of a column at a distance d < D rises by
D - d, and the dual of a row falls likewise: pairs stay tight, and no slack becomes negative. Prices of columns that
stay free must be 0 if there are more columns than rows: D is then at most the distance of a free column whose tree ends
elsewhere, and later paths wait for the next phase.

A step is a round of bids, its outcome, or a sweep, for all programs of a matrix; then they wait for each other. A
program has some columns, and in a step that concerns rows, as many rows. Rows that bid, or have a shorter path than
before, are handed on in a list for each program; the next step takes some entries of all lists at a time. What a
program reads of the others was written in an earlier step, so that results do not depend on their order. Steps are
limited: problems whose paths are as long as the matrix is wide go on from the prices and pairs that were found, in the
program that `_finish` gives each matrix.

See: Jonker and Volgenant 1987; Bertsekas 1988; Balas et al. 1991, A parallel shortest augmenting path algorithm.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import INTERPRETED, ceil_power

# _TILE: entries of a matrix that a program reads at a time; _PROGRAMS: most programs, for all matrices together
_TILE, _PROGRAMS = 64 if INTERPRETED else 4096, 128
# most rounds of bids: _PATIENCE while many rows wait, _FEW while few wait
_PATIENCE, _FEW = tl.constexpr(300), tl.constexpr(24)
# a program that waits for others this many polls, about a second, gives up
_POLLS = tl.constexpr(1 << 20)
_PRICES, _BID, _SETTLE, _DUALS, _LIST, _SWEEP, _PICK, _RAISE, _FLIP, _DONE = (tl.constexpr(k) for k in range(10))
_REALS, _INTEGERS = 9, 15
# indices in the state that `finish` reads: GOOD, if the search succeeded; LEFT, the number of rows without a column
GOOD, LEFT = tl.constexpr(2), tl.constexpr(3)


def spread(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, int]:
    """Match rows and columns by many programs; return their numbers, and where among the integers the state is.

    Shapes: scores (B, n, m); rows, columns (B,); result (B, 9, width) float64, which begin with the prices, and
    (B, 15, width) int32, which begin with the owners
    """
    batch, n, m = scores.shape
    size, programs = 4, -(-max(n, m) // 4)
    while programs > 1 and programs * batch > _programs(scores.device):
        size, programs = 2 * size, -(-max(n, m) // (2 * size))
    width = max(programs * size, 8)
    reals = torch.empty((batch, _REALS, width), dtype=torch.float64, device=scores.device)
    integers = torch.zeros((batch, _INTEGERS, width), dtype=torch.int32, device=scores.device)
    most = limit(n, m)
    args = scores, rows, columns, reals, integers, n, m, ceil_power(max(n, m)), width, most
    padded = ceil_power(programs)
    shape = {"BC": size, "BS": max(_TILE // (size * padded), 1), "NP": padded, "BW": _TILE // 4}
    if not INTERPRETED:
        _entry[(programs, batch)](
            *args, 0, most + 1000, MEET=True, **shape, num_warps=16, num_stages=1, launch_cooperative_grid=True
        )
        return reals, integers, 14
    # Triton's interpreter runs one program after the other: a launch is a step
    step, slot = 0, 13
    while not bool((integers[:, slot, 0] == _DONE.value).all()):
        _entry[(programs, batch)](*args, step, 1, MEET=False, **shape)
        step, slot = step + 1, 27 - slot
    return reals, integers, slot


def limit(n: int, m: int) -> int:
    """Return after how many steps one program goes on."""
    return 8 * max(n, m)


@cache
def _programs(device: torch.device) -> int:
    """Return how many programs a device runs at the same time, since they wait for each other."""
    if INTERPRETED:
        return _PROGRAMS
    return min(_PROGRAMS, torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit(do_not_specialize=["n", "m", "most", "width", "limit", "start", "steps"])
def _advance(
    p_scores,
    p_rows,
    p_columns,
    p_reals,
    p_integers,
    n,
    m,
    most,
    width,
    limit,
    start,
    steps,
    MEET: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    NP: tl.constexpr,
    BW: tl.constexpr,
):
    """Take steps: kind is the kind of the last one, and total the sum of the programs' numbers in it."""
    i_p = tl.program_id(0)
    i_b = tl.program_id(1).to(tl.int64)
    programs = tl.num_programs(0)
    rows = tl.load(p_rows + i_b).to(tl.int32)
    columns = tl.load(p_columns + i_b).to(tl.int32)
    flipped = rows > columns
    short, long = tl.minimum(rows, columns), tl.maximum(rows, columns)
    p_x = p_scores + i_b * n * m
    across = tl.where(flipped, 1, m).to(tl.int64)
    down = tl.where(flipped, m, 1).to(tl.int64)
    p_v = p_reals + i_b * 9 * width
    p_d, p_u, p_base, p_dual, p_ends = p_v + width, p_v + 2 * width, p_v + 3 * width, p_v + 5 * width, p_v + 7 * width
    p_owner = p_integers + i_b * 15 * width
    p_match, p_by, p_root, p_win = p_owner + width, p_owner + 2 * width, p_owner + 3 * width, p_owner + 4 * width
    p_near, p_row, p_row_root = p_owner + 5 * width, p_owner + 6 * width, p_owner + 8 * width
    p_said, p_sync, p_state = p_owner + 10 * width, p_owner + 12 * width, p_owner + 13 * width
    o_p = tl.arange(0, NP)
    m_p = o_p < programs

    p_now = p_state + (start % 2) * width
    # the first state is zeros
    kind = tl.load(p_now) - (start == 0).to(tl.int32)
    sweep = tl.load(p_now + 1)
    good = tl.load(p_now + 2)
    left = tl.load(p_now + 3)
    rounds = tl.load(p_now + 4)
    t = start
    end = start + steps
    while t < end:
        if MEET:
            end = tl.where(_meet(p_sync, (t - start + 1) * programs), end, t - 1)
        if t < end:
            p_heard = p_said + ((t + 1) % 2) * width
            b_said = _load(p_heard + o_p, m_p, 0)
            total = tl.sum(b_said, 0)
            # the length of the longest list
            longest = tl.max(b_said, 0) >> 16
            # the kind of the next step
            if kind < 0:
                kind, left, good = kind * 0 + _PRICES, short, kind * 0 + 1
            elif kind == _PRICES:
                good = ((total & 4095) == 0).to(tl.int32)
                kind = tl.where((total == 0) & (short > 0), _BID, _DONE)
            elif kind == _BID:
                kind = kind * 0 + _SETTLE
            elif kind == _SETTLE:
                left -= total & 8191
                rounds += 1
                more = (total > 0) & (rounds < tl.where(left * 16 > short, _PATIENCE, _FEW))
                kind = tl.where(left > 0, tl.where(more, _BID, _DUALS), _DONE)
            elif kind == _DUALS:
                kind = kind * 0 + _LIST
            elif kind == _LIST:
                kind, sweep = kind * 0 + _SWEEP, sweep * 0
            elif kind == _SWEEP:
                sweep += 1
                kind = tl.where(t > limit, _DONE, tl.where((total & 65535) > 0, _SWEEP, _PICK))
            elif kind == _PICK:
                kind = tl.where(total > 0, _RAISE, _DONE)
            elif kind == _RAISE:
                kind = kind * 0 + _FLIP
            elif kind == _FLIP:
                left -= total
                kind = tl.where((left > 0) & (total > 0) & (t <= limit), _LIST, _DONE)

            said = kind * 0
            if kind == _PRICES:
                said = _prices(p_x, across, down, short, long, p_v, p_owner, p_match, i_p, BC, BS * NP)
            elif (kind == _BID) | (kind == _DUALS):
                said = _bid(
                    *(p_x, across, down, short, long, p_v, p_owner, p_match, p_u, p_near, p_row, p_base),
                    *(kind == _DUALS, most, i_p, BC, BW),
                )
            elif kind == _SETTLE:
                said = _settle(
                    *(long, p_v, p_owner, p_match, p_near, p_row, p_base, p_heard),
                    *(width, longest, programs, most, i_p, BC, BS, NP),
                )
            elif kind == _LIST:
                said = _list(short, p_match, p_u, p_row, p_base, p_dual, p_row_root, width, i_p, BC)
            elif kind == _SWEEP:
                said = _sweep(
                    *(p_x, across, down, long, p_v, p_owner, p_u, p_d, p_by, p_root, p_row, p_base, p_dual),
                    *(p_row_root, p_heard, width, sweep, longest, programs, most, i_p, BC, BS, NP),
                )
            elif kind == _PICK:
                said = _pick(long, p_owner, p_d, p_root, p_win, p_ends, width, i_p, BC, BS * NP)
            elif kind == _RAISE:
                _raise(short, long, p_v, p_match, p_u, p_d, p_win, p_ends, width, o_p, m_p, i_p, BC)
            elif kind == _FLIP:
                said = _flip(p_x, across, down, short, long, p_v, p_owner, p_match, p_u, p_by, p_win, i_p, BC)
            tl.store(p_said + (t % 2) * width + i_p, said)
            if kind == _DONE:
                end = t
        t += 1
    if i_p == 0:
        p_next = p_state + ((start + 1) % 2) * width
        tl.store(p_next, kind)
        tl.store(p_next + 1, sweep)
        # programs that gave up waiting have no result
        tl.store(p_next + 2, tl.where((MEET == 0) | (kind == _DONE), good, 0))
        tl.store(p_next + 3, left)
        tl.store(p_next + 4, rounds)
        tl.store(p_next + 5, t)


_entry = Entry(_advance)


@triton.jit
def _meet(p_sync, target):
    """Wait until all programs of this matrix have arrived; return False if they have not after many polls."""
    tl.debug_barrier()
    seen = tl.atomic_add(p_sync, 1, sem="acq_rel", scope="gpu") + 1
    polls = 0
    while (seen < target) & (polls < _POLLS):
        seen = tl.atomic_add(p_sync, 0, sem="acq_rel", scope="gpu")
        polls += 1
    tl.debug_barrier()
    return seen >= target


@triton.jit
def _load(p, mask, other):
    """Load what other programs may have written: not from a cache of this multiprocessor."""
    return tl.load(p, mask=mask, other=other, cache_modifier=".cg")


@triton.jit
def _prices(p_x, across, down, short, long, p_v, p_owner, p_match, i_p, BC: tl.constexpr, BR: tl.constexpr):
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
        b_v = _load(p_v + o_c, m_c, 0.0)
        b_owner = _load(p_owner + o_c, m_c, -1)
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
def _bid(
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
    b_match = _load(p_match + o_i, m_in, 0)
    m_has = m_in & (b_match >= 0) & final
    b_held = tl.load(p_x + o_i * across + b_match * down, mask=m_has, other=0.0).to(tl.float64)
    tl.store(p_u + o_i, b_held - _load(p_v + b_match, m_has, 0.0), mask=m_has)
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
def _settle(
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
    b_v = _load(p_v + o_c, m_c, 0.0)
    b_old = _load(p_owner + o_c, m_c, -1)
    b_top = tl.full([BS * NP, BC], -1.0, tl.float64)
    b_rank = tl.full([BS * NP, BC], 1 << 30, tl.int32)
    for first in range(0, longest, BS):
        o_s, m_s = _entries(p_heard, first, programs, BC, BS, NP)
        m_far = o_s < width
        o_r = _load(p_row + o_s, m_far, 0)
        b_near = tl.where(m_s, _load(p_near + o_s, m_far, -1), -1)
        b_raise = _load(p_base + o_s, m_far, 0.0)
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
    m_e = m_e & (o_k < (_load(p_heard + o_p, m_e, 0) >> 16))
    return o_p * BC + o_k, m_e


@triton.jit
def _list(short, p_match, p_u, p_row, p_base, p_dual, p_row_root, width, i_p, BC: tl.constexpr):
    """List the rows without a column, with distance 0 and their duals, as roots of the forest."""
    o_r = i_p * BC + tl.arange(0, BC)
    m_in = o_r < short
    m_r = m_in & (_load(p_match + o_r, m_in, 0) < 0)
    o_s = i_p * BC + tl.cumsum(m_r.to(tl.int32), 0) - 1
    tl.store(p_row + o_s, o_r, mask=m_r)
    tl.store(p_base + o_s, tl.full([BC], 0.0, tl.float64), mask=m_r)
    tl.store(p_dual + o_s, _load(p_u + o_r, m_r, 0.0), mask=m_r)
    tl.store(p_row_root + o_r, o_r, mask=m_r)
    tl.store(p_row_root + width + o_r, o_r, mask=m_r)
    return tl.sum(m_r.to(tl.int32), 0) << 16


@triton.jit
def _sweep(
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
    b_v = _load(p_v + o_c, m_c, 0.0)
    b_owner = _load(p_owner + o_c, m_c, -1)
    b_old = _load(p_d + o_c, m_old, float("inf"))
    b_by = _load(p_by + o_c, m_old, -1)
    b_root_old = _load(p_root + o_c, m_old, -1)
    m_own = m_c & (b_owner >= 0)
    b_dual = _load(p_u + b_owner, m_own, 0.0)
    b_d = tl.full([BS * NP, BC], float("inf"), tl.float64)
    b_rank = tl.full([BS * NP, BC], 1 << 30, tl.int32)
    for first in range(0, longest, BS):
        o_s, m_s = _entries(p_heard, first, programs, BC, BS, NP)
        m_far = o_s < width
        o_r = _load(p_row + here + o_s, m_far, 0)
        b_base = _load(p_base + here + o_s, m_far, 0.0)
        b_u = _load(p_dual + here + o_s, m_far, 0.0)
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
    b_root = _load(p_row_root + here + b_by, m_c & (b_by >= 0), -1)
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
def _pick(long, p_owner, p_d, p_root, p_win, p_ends, width, i_p, BC: tl.constexpr, BR: tl.constexpr):
    """Mark the nearest free column of each tree; write the nearest one that is not, and the farthest that is."""
    o_c = i_p * BC + tl.arange(0, BC)
    m_c = o_c < long
    b_d = _load(p_d + o_c, m_c, float("inf"))
    b_root = _load(p_root + o_c, m_c, -1)
    m_free = m_c & (_load(p_owner + o_c, m_c, 0) < 0) & (b_d < float("inf"))
    b_beaten = tl.full([BR, BC], 0, tl.int32)
    for k in range(0, long, BR):
        o_k = k + tl.arange(0, BR)
        m_k = o_k < long
        b_far = tl.where(_load(p_owner + o_k, m_k, 0) < 0, _load(p_d + o_k, m_k, float("inf")), float("inf"))
        m_same = _load(p_root + o_k, m_k, -2)[:, None] == b_root[None, :]
        m_tie = (b_far[:, None] == b_d[None, :]) & (o_k[:, None] < o_c[None, :])
        b_beaten |= (m_same & ((b_far[:, None] < b_d[None, :]) | m_tie)).to(tl.int32)
    m_win = m_free & (tl.max(b_beaten, 0) == 0)
    tl.store(p_win + o_c, m_win.to(tl.int32), mask=m_c)
    tl.store(p_ends + i_p, tl.min(tl.where(m_free & (m_win == 0), b_d, float("inf")), 0))
    tl.store(p_ends + width + i_p, tl.max(tl.where(m_win, b_d, 0.0), 0))
    return tl.sum(m_win.to(tl.int32), 0)


@triton.jit
def _raise(short, long, p_v, p_match, p_u, p_d, p_win, p_ends, width, o_p, m_p, i_p, BC: tl.constexpr):
    """Raise prices and lower duals of rows up to the distance of the farthest path that is used."""
    farthest = tl.max(_load(p_ends + width + o_p, m_p, 0.0), 0)
    nearest = tl.min(_load(p_ends + o_p, m_p, float("inf")), 0)
    distance = tl.where(short == long, farthest, tl.minimum(farthest, nearest))
    o_c = i_p * BC + tl.arange(0, BC)
    m_c = o_c < long
    m_r = o_c < short
    b_v = _load(p_v + o_c, m_c, 0.0)
    b_d = _load(p_d + o_c, m_c, float("inf"))
    b_win = _load(p_win + o_c, m_c, 0)
    b_u = _load(p_u + o_c, m_r, 0.0)
    b_match = _load(p_match + o_c, m_r, -1)
    b_base = _load(p_d + b_match, m_r & (b_match >= 0), 0.0)
    # all threads have read before one writes
    tl.debug_barrier()
    tl.store(p_v + o_c, b_v + tl.maximum(distance - b_d, 0.0), mask=m_c)
    tl.store(p_win + o_c, tl.where(b_d <= distance, b_win, 0), mask=m_c)
    tl.store(p_u + o_c, b_u - tl.maximum(distance - b_base, 0.0), mask=m_r)


@triton.jit
def _flip(p_x, across, down, short, long, p_v, p_owner, p_match, p_u, p_by, p_win, i_p, BC: tl.constexpr):
    """Give the rows on the paths to marked columns their next columns; say how many paths."""
    o_c = i_p * BC + tl.arange(0, BC)
    m_on = (o_c < long) & (_load(p_win + o_c, o_c < long, 0) > 0)
    paths = tl.sum(m_on.to(tl.int32), 0)
    b_j = o_c
    hops = short
    while (tl.max(m_on.to(tl.int32), 0) > 0) & (hops > 0):
        hops -= 1
        b_i = _load(p_by + b_j, m_on, 0)
        b_next = _load(p_match + b_i, m_on, -1)
        b_x = tl.load(p_x + b_i * across + b_j * down, mask=m_on, other=0.0).to(tl.float64)
        b_v = _load(p_v + b_j, m_on, 0.0)
        # all threads have read before one writes
        tl.debug_barrier()
        tl.store(p_match + b_i, b_j, mask=m_on)
        tl.store(p_owner + b_j, b_i, mask=m_on)
        tl.store(p_u + b_i, b_x - b_v, mask=m_on)
        m_on = m_on & (b_next >= 0)
        b_j = tl.where(m_on, b_next, b_j)
    return paths
