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
from polymax.kernels.assignment.cuda_wide_steps import (
    bid,
    flip_paths,
    list_waiting,
    load,
    pick_paths,
    raise_prices,
    set_prices,
    settle,
    sweep_paths,
)

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
            b_said = load(p_heard + o_p, m_p, 0)
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
                said = set_prices(p_x, across, down, short, long, p_v, p_owner, p_match, i_p, BC, BS * NP)
            elif (kind == _BID) | (kind == _DUALS):
                said = bid(
                    *(p_x, across, down, short, long, p_v, p_owner, p_match, p_u, p_near, p_row, p_base),
                    *(kind == _DUALS, most, i_p, BC, BW),
                )
            elif kind == _SETTLE:
                said = settle(
                    *(long, p_v, p_owner, p_match, p_near, p_row, p_base, p_heard),
                    *(width, longest, programs, most, i_p, BC, BS, NP),
                )
            elif kind == _LIST:
                said = list_waiting(short, p_match, p_u, p_row, p_base, p_dual, p_row_root, width, i_p, BC)
            elif kind == _SWEEP:
                said = sweep_paths(
                    *(p_x, across, down, long, p_v, p_owner, p_u, p_d, p_by, p_root, p_row, p_base, p_dual),
                    *(p_row_root, p_heard, width, sweep, longest, programs, most, i_p, BC, BS, NP),
                )
            elif kind == _PICK:
                said = pick_paths(long, p_owner, p_d, p_root, p_win, p_ends, width, i_p, BC, BS * NP)
            elif kind == _RAISE:
                raise_prices(short, long, p_v, p_match, p_u, p_d, p_win, p_ends, width, o_p, m_p, i_p, BC)
            elif kind == _FLIP:
                said = flip_paths(p_x, across, down, short, long, p_v, p_owner, p_match, p_u, p_by, p_win, i_p, BC)
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
