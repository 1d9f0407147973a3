"""Linear assignment for Triton: one program per matrix, the columns in registers; many before it for few large ones.

The algorithm is that of numba_match.py: bids, then a shortest augmenting path for each row without a column. A thread
keeps the state of its columns in registers: their prices, owners and the owners' scores, distances, and the columns
before them on a path. A step is one row from memory and one reduction with all results for the next step. With more
rows than columns the matrix is read as its transpose. All arithmetic is in float64. If matrices are large and few,
cuda_wide.py leaves it little to do.
"""

import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.assignment import outputs
from polymax.kernels.assignment.cuda_wide import GOOD, LEFT, spread

LARGEST = 4096
# many programs share a matrix if it has _WIDE rows or columns, and there are at most _FEW matrices
_WIDE, _FEW = 256, 16


def assignment(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, n, m = scores.shape
    if max(n, m) > LARGEST:
        raise ValueError(f"scores must have at most {LARGEST} rows and columns on CUDA; got {n} and {m}")
    solve = by_many if batch <= _FEW and max(n, m) >= _WIDE else by_one
    return solve(scores, rows, columns)


def by_one(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of `assignment`, each matrix by one program."""
    match, u, v = outputs(scores)
    batch, n, m = scores.shape
    if scores.numel() == 0:
        return match.fill_(-1), u.zero_(), v.zero_()
    size, warps = tile(n, m)
    args = scores.contiguous(), rows.contiguous(), columns.contiguous(), match, u, v
    with on_device(scores):
        _entry[(batch,)](*args, n, m, BN=size, num_warps=warps, num_stages=1)
    return match, u, v


def by_many(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of `assignment`, each matrix by many programs, and the remaining rows by one."""
    match, u, v = outputs(scores)
    batch, n, m = scores.shape
    if scores.numel() == 0:
        return match.fill_(-1), u.zero_(), v.zero_()
    size, warps = tile(n, m)
    given = scores.contiguous(), rows.contiguous(), columns.contiguous()
    with on_device(scores):
        reals, integers, slot = spread(*given)
        args = *given, reals, integers, match, u, v, n, m, reals.shape[-1], slot
        _finish[(batch,)](*args, BN=size, num_warps=warps, num_stages=1)
    return match, u, v


def tile(n: int, m: int) -> tuple[int, int]:
    """Return the number of columns of a tile, and the number of warps."""
    size = ceil_power(max(n, m))
    return size, min(max(size // 128, 1), 16)


@triton.jit
def match_instance(p_scores, p_rows, p_columns, p_match, p_u, p_v, n, m, BN: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    rows = tl.load(p_rows + i_b).to(tl.int32)
    columns = tl.load(p_columns + i_b).to(tl.int32)
    p_scores += i_b * n * m
    # each index of the short side gets one of the long side: call them rows and columns
    flipped = rows > columns
    short, long = tl.minimum(rows, columns), tl.maximum(rows, columns)
    stride = tl.where(flipped, 1, m)
    o_j = tl.arange(0, BN)
    m_in = o_j < long
    p_x = p_scores + o_j * tl.where(flipped, m, 1)
    b_v, good = _first_prices(p_x, stride, short, long, m_in, BN)
    possible = tl.min(tl.where(m_in, b_v, 0), 0) > float("-inf")
    go = (good & possible).to(tl.int32)
    b_owner, b_held, b_v = _bids(p_x, stride, short * go, m_in, o_j, b_v, BN)
    b_owner, b_held, b_v, go = _augment_all(p_x, stride, short * go, m_in, o_j, b_owner, b_held, b_v, go, BN)
    _write(
        *(p_match + i_b * n, p_u + i_b * n, p_v + i_b * m, n, m, rows, columns, o_j),
        *(b_owner, b_held, b_v, good, go, BN),
    )


# SparseMAP's programs call the function without Entry
_entry = Entry(match_instance)


@Entry
@triton.jit
def _finish(p_scores, p_rows, p_columns, p_reals, p_integers, p_match, p_u, p_v, n, m, width, slot, BN: tl.constexpr):
    """Give the rows that `spread` left a column, and write the result."""
    i_b = tl.program_id(0).to(tl.int64)
    rows = tl.load(p_rows + i_b).to(tl.int32)
    columns = tl.load(p_columns + i_b).to(tl.int32)
    p_scores += i_b * n * m
    p_reals += i_b * 9 * width
    p_integers += i_b * 15 * width
    flipped = rows > columns
    short, long = tl.minimum(rows, columns), tl.maximum(rows, columns)
    stride = tl.where(flipped, 1, m)
    o_j = tl.arange(0, BN)
    m_in = o_j < long
    p_x = p_scores + o_j * tl.where(flipped, m, 1)
    b_v = tl.load(p_reals + o_j, mask=m_in, other=0.0)
    b_owner = tl.load(p_integers + o_j, mask=m_in, other=-1)
    good = tl.load(p_integers + slot * width + GOOD) > 0
    left = tl.load(p_integers + slot * width + LEFT)
    possible = tl.min(tl.where(m_in, b_v, 0), 0) > float("-inf")
    go = (good & possible).to(tl.int32)
    b_held = tl.load(p_x + b_owner * stride, mask=m_in & (b_owner >= 0), other=0.0).to(tl.float64)
    todo = tl.where(left > 0, short, 0) * go
    b_owner, b_held, b_v, go = _augment_all(p_x, stride, todo, m_in, o_j, b_owner, b_held, b_v, go, BN)
    _write(
        *(p_match + i_b * n, p_u + i_b * n, p_v + i_b * m, n, m, rows, columns, o_j),
        *(b_owner, b_held, b_v, good, go, BN),
    )


@triton.jit
def _augment_all(p_x, stride, count, m_in, o_j, b_owner, b_held, b_v, go, BN: tl.constexpr):
    """Give each of the first rows a column if it has none; the last result is 0 if one cannot have any."""
    for i in range(count):
        if (go > 0) & (tl.max((b_owner == i).to(tl.int32), 0) == 0):
            b_owner, b_held, b_v, go = _augment(p_x, stride, i, m_in, o_j, b_owner, b_held, b_v, BN)
    return b_owner, b_held, b_v, go


@triton.jit
def _write(p_match, p_u, p_v, n, m, rows, columns, o_j, b_owner, b_held, b_v, good, go, BN: tl.constexpr):
    """Write pairs and duals, given the owners of the columns, or of the rows if there are more of these."""
    flipped = rows > columns
    short, long = tl.minimum(rows, columns), tl.maximum(rows, columns)
    m_in = o_j < long
    b_none = tl.where(good, tl.where(go > 0, 0.0, float("-inf")), float("nan"))
    tl.store(p_match + o_j, tl.full([BN], -1, tl.int64), mask=o_j < n)
    tl.store(p_u + o_j, tl.where(o_j < rows, b_none, 0.0), mask=o_j < n)
    tl.store(p_v + o_j, tl.where((o_j < columns) & (good == 0), b_none, 0.0), mask=o_j < m)
    # other threads write these entries again
    tl.debug_barrier()
    lowest = tl.where(short == long, tl.min(tl.where(m_in, b_v, float("inf")), 0), 0.0)
    b_v -= lowest
    m_in = m_in & (go > 0)
    m_pair = m_in & (b_owner >= 0)
    b_first = tl.where(flipped, o_j, b_owner)
    b_second = tl.where(flipped, b_owner, o_j)
    tl.store(p_match + b_first, b_second.to(tl.int64), mask=m_pair)
    tl.store(tl.where(flipped, p_v, p_u) + b_owner, b_held - b_v, mask=m_pair)
    tl.store(tl.where(flipped, p_u, p_v) + o_j, b_v, mask=m_in)


@triton.jit
def _first_prices(p_x, stride, short, long, m_in, BN: tl.constexpr):
    """Return the highest score of each column in a square, else 0; and True if no score is NaN or +inf."""
    b_top = tl.full([BN], float("-inf"), tl.float64)
    b_good = tl.full([BN], 1, tl.int32)
    for i in range(short):
        b_x = _row(p_x, stride, i, m_in)
        b_good &= (b_x < float("inf")).to(tl.int32)
        b_top = tl.maximum(b_top, b_x)
    return tl.where(m_in & (short == long), b_top, 0.0), tl.min(b_good, 0) > 0


@triton.jit
def _bids(p_x, stride, short, m_in, o_j, b_v, BN: tl.constexpr):
    """Let rows bid for columns for a limited number of steps; a row that loses its column bids again."""
    b_owner = tl.full([BN], -1, tl.int32)
    b_held = tl.full([BN], 0, tl.float64)
    b_never = tl.full([BN], float("-inf"), tl.float64)
    patience = 2 * short
    for first in range(short):
        i = first
        while (i >= 0) & (patience > 0):
            patience -= 1
            b_x = _row(p_x, stride, i, m_in)
            found = tl.reduce((b_x - b_v, _rank(o_j, b_owner, BN), b_never, b_owner), 0, _two_best)
            best, rank, second, owner = found
            # without a second column the price is not determined; at a tie, a column is only taken if it is free
            takes = (second > float("-inf")) & ((best > second) | (owner < 0))
            m_here = o_j == tl.where(takes, rank % BN, -1)
            b_v = tl.where(m_here, b_v + (best - second), b_v)
            b_owner = tl.where(m_here, i, b_owner)
            b_held = tl.where(m_here, b_x, b_held)
            i = tl.where(takes, owner, -1)
    return b_owner, b_held, b_v


@triton.jit
def _augment(p_x, stride, start, m_in, o_j, b_owner, b_held, b_v, BN: tl.constexpr):
    """Give a row a column, along a shortest path to a free column; the last result is 0 if there is none."""
    b_reach = tl.full([BN], float("inf"), tl.float64)
    b_score = tl.full([BN], 0, tl.float64)
    b_by = tl.full([BN], -1, tl.int32)
    b_before = tl.full([BN], -1, tl.int32)
    b_open = m_in.to(tl.int32)
    base = tl.full([], 0, tl.float64)
    distance = tl.full([], 0, tl.float64)
    i, j = start, start * 0 - 1
    searching = start * 0 + 1
    while searching > 0:
        b_x = _row(p_x, stride, i, m_in)
        b_through = base + (b_v - b_x)
        m_shorter = (b_through < b_reach) & (b_open > 0)
        b_reach = tl.where(m_shorter, b_through, b_reach)
        b_score = tl.where(m_shorter, b_x, b_score)
        b_by = tl.where(m_shorter, i, b_by)
        b_before = tl.where(m_shorter, j, b_before)
        b_key = tl.where(b_open > 0, b_reach, float("inf"))
        distance, rank, i, worth = tl.reduce((b_key, _rank(o_j, b_owner, BN), b_owner, b_v - b_held), 0, _nearest)
        j = rank % BN
        searching = ((distance < float("inf")) & (i >= 0)).to(tl.int32)
        b_open = tl.where((o_j == j) & (searching > 0), 0, b_open)
        base = distance - worth
    found = (distance < float("inf")).to(tl.int32)
    b_v = tl.where(m_in & (b_open == 0) & (found > 0), b_v + (distance - b_reach), b_v)
    j = tl.where(found > 0, j, -1)
    while j >= 0:
        m_here = o_j == j
        b_owner = tl.where(m_here, b_by, b_owner)
        b_held = tl.where(m_here, b_score, b_held)
        j = tl.sum(tl.where(m_here, b_before, 0), 0)
    return b_owner, b_held, b_v, found


@triton.jit
def _row(p_x, stride, i, m_in):
    return tl.load(p_x + i * stride, mask=m_in, other=float("-inf")).to(tl.float64)


@triton.jit
def _rank(o_j, b_owner, BN: tl.constexpr):
    """Return the rank of columns among equally good ones: free columns first, then by index."""
    return o_j + tl.where(b_owner < 0, 0, BN)


@triton.jit
def _two_best(best, rank, second, owner, other_best, other_rank, other_second, other_owner):
    """Return the best column of two sets, with its owner, and the value of the second best."""
    other = (other_best > best) | ((other_best == best) & (other_rank < rank))
    next_best = tl.maximum(tl.maximum(second, other_second), tl.where(other, best, other_best))
    best = tl.where(other, other_best, best)
    return best, tl.where(other, other_rank, rank), next_best, tl.where(other, other_owner, owner)


@triton.jit
def _nearest(reach, rank, owner, worth, other_reach, other_rank, other_owner, other_worth):
    """Return the nearer of two columns."""
    other = (other_reach < reach) | ((other_reach == reach) & (other_rank < rank))
    reach, rank = tl.where(other, other_reach, reach), tl.where(other, other_rank, rank)
    return reach, rank, tl.where(other, other_owner, owner), tl.where(other, other_worth, worth)
