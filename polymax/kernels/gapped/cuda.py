"""Sums over alignments with gaps for Triton: one program per instance, a lane for each row, a step for each diagonal.

Lane r is row r + 1 of the recursion, at step t in column t - r. Values are float64, because they grow with the
alignment; only differences are exponentiated. The chart holds the weights of all choices: its line t mod (columns + 1)
has eight numbers for each lane. The general hypergraph handles other smoothings, and longer sequences.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.alignment.cuda_steps import clear, from_above, from_below
from polymax.kernels.gapped import weights_like
from polymax.kernels.gapped.reference import general

LARGEST = 2048


def fits(pairs: Tensor, alpha: float) -> bool:
    """Return True if these kernels support a problem."""
    return alpha == 1 and pairs.dtype == torch.float32 and pairs.shape[1] <= LARGEST and pairs.numel() > 0


def gapped_inside(
    pairs: Tensor, opened: Tensor, extended: Tensor, rows: Tensor, columns: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    given = pairs, opened, extended, rows, columns
    chart = weights_like(pairs)
    if not fits(pairs, alpha):
        return general.inside(*given, alpha), chart
    value = torch.empty(pairs.shape[0], dtype=pairs.dtype, device=pairs.device)
    with on_device(pairs):
        _inside[(pairs.shape[0],)](*_plain(given), value, chart, *pairs.shape[1:], **_sizes(given))
    return value, chart


def gapped_outside(*args: Any) -> tuple[Tensor, ...]:
    given, (chart, g, alpha) = args[:5], args[5:]
    if not fits(given[0], alpha):
        return general.outside(*given, g, alpha)
    out = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in given[:3])
    with on_device(g):
        tensors = (*_plain(given[3:]), chart, g.contiguous(), *out)
        _outside[(g.shape[0],)](*tensors, *given[0].shape[1:], **_sizes(given))
    return out


def gapped_tangent(*args: Any) -> tuple[Tensor, ...]:
    given, (_, g, *along, alpha) = args[:5], args[5:]
    return general.tangent(*given, g, *along, alpha)


def _plain(given):
    return tuple(t.contiguous() for t in given)


def _sizes(given):
    size = ceil_power(given[0].shape[1])
    single = [t.shape[1:] != given[0].shape[1:] for t in given[1:3]]
    warps = min(max(size // 32, 1), 16)
    return {"ONE_OPEN": single[0], "ONE_EXTEND": single[1], "BR": size, "num_warps": warps}


@triton.jit
def _gap(p_x, number, o_r, o_j, m, b_on, ONE: tl.constexpr):
    """Return the gap score of each lane, or the single number of all cells; column 0 has the score of column 1."""
    if ONE:
        return number + tl.zeros_like(o_j).to(tl.float64)
    return tl.load(p_x + o_r * m + tl.maximum(o_j - 1, 0), mask=b_on, other=float("-inf")).to(tl.float64)


@triton.jit
def _scores(
    p_x,
    p_open,
    p_extend,
    open_number,
    extend_number,
    t,
    rows,
    columns,
    m,
    o_r,
    ONE_OPEN: tl.constexpr,
    ONE_EXTEND: tl.constexpr,
):
    """Return the scores of pairs and gaps for step t; -inf for lanes without a cell."""
    o_j = t - o_r
    b_on = (o_j >= 0) & (o_j <= columns) & (o_r < rows)
    b_x = tl.load(p_x + o_r * m + o_j - 1, mask=b_on & (o_j > 0), other=float("-inf")).to(tl.float64)
    b_open = _gap(p_open, open_number, o_r, o_j, m, b_on, ONE_OPEN)
    return b_x, b_open, _gap(p_extend, extend_number, o_r, o_j, m, b_on, ONE_EXTEND)


@triton.jit
def _weights(p_chart, t, rows, columns, n, o_r):
    """Return the eight weights of the cells of step t, 0 for lanes without a cell."""
    o_j = t - o_r
    b_on = (o_j >= 0) & (o_j <= columns) & (o_r < rows)
    p_line = p_chart + (t % (columns + 1)).to(tl.int64) * 8 * n + o_r
    weights = ()
    for k in tl.static_range(8):
        weights = weights + (tl.load(p_line + k * n, mask=b_on, other=0.0).to(tl.float32),)
    return weights


@triton.jit
def _sum3(a, b, c):
    """Return log(exp a + exp b + exp c), and the shares of the three; -inf and 0 if all are -inf."""
    top = tl.maximum(tl.maximum(a, b), c)
    exists = top > float("-inf")
    base = tl.where(exists, top, 0.0)
    x = tl.exp((a - base).to(tl.float32))
    y = tl.exp((b - base).to(tl.float32))
    z = tl.exp((c - base).to(tl.float32))
    total = x + y + z
    scale = tl.where(exists, 1.0 / tl.where(exists, total, 1.0), 0.0)
    value = tl.where(exists, base + tl.log(tl.where(exists, total, 1.0)).to(tl.float64), float("-inf"))
    # a NaN argument makes the value NaN
    bad = (a != a) | (b != b) | (c != c)
    return tl.where(bad, float("nan"), value), x * scale, y * scale, z * scale


@Entry
@triton.jit
def _inside(
    p_x,
    p_open,
    p_extend,
    p_rows,
    p_columns,
    p_value,
    p_chart,
    n,
    m,
    ONE_OPEN: tl.constexpr,
    ONE_EXTEND: tl.constexpr,
    BR: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    rows = tl.load(p_rows + i_b).to(tl.int32)
    columns = tl.load(p_columns + i_b).to(tl.int32)
    p_x += i_b * n * m
    p_open += i_b * (1 if ONE_OPEN else n * m)
    p_extend += i_b * (1 if ONE_EXTEND else n * m)
    p_chart += i_b * (m + 1) * 8 * n
    o_r = tl.arange(0, BR)
    if (rows > 0) & (columns > 0):
        none = tl.full([BR], float("-inf"), tl.float64)
        b_m, b_d, b_i, b_p, b_diagonal = none, none, none, none, none
        # P above the first row, to which the score of the next insertion is added
        above = tl.full([], 0.0, tl.float64)
        # loaded here, since the compiler cannot prove that later stores do not change them
        opened = tl.load(p_open).to(tl.float64)
        extended = tl.load(p_extend).to(tl.float64)
        b_x, b_open, b_extend = _scores(
            p_x, p_open, p_extend, opened, extended, 0, rows, columns, m, o_r, ONE_OPEN, ONE_EXTEND
        )
        for t in range(rows + columns):
            o_j = t - o_r
            b_on = (o_j >= 0) & (o_j <= columns) & (o_r < rows)
            # load the inputs of the next step while this step is computed
            after = _scores(p_x, p_open, p_extend, opened, extended, t + 1, rows, columns, m, o_r, ONE_OPEN, ONE_EXTEND)
            longer = extended
            if not ONE_EXTEND:
                longer = tl.load(p_extend + tl.minimum(t, columns - 1)).to(tl.float64)
            first = tl.where(t <= columns, above, float("-inf"))
            b_m_up = from_above(b_m, tl.where(t == 0, 0.0, float("-inf")).to(tl.float64), o_r, BR)
            b_d_up = from_above(b_d, float("-inf"), o_r, BR)
            b_p_up = from_above(b_p, first, o_r, BR)
            b_match = b_diagonal + b_x
            b_deleted, b_d0, b_d1, _ = _sum3(b_m_up + b_open, b_d_up + b_extend, none)
            b_inserted, b_i0, b_i1, b_i2 = _sum3(b_m + b_open, b_d + b_open, b_i + b_extend)
            b_m = tl.where(b_on, b_match, float("-inf"))
            b_d = tl.where(b_on, b_deleted, float("-inf"))
            b_i = tl.where(b_on, b_inserted, float("-inf"))
            b_p, b_p0, b_p1, b_p2 = _sum3(b_m, b_d, b_i)
            b_diagonal = b_p_up
            p_line = p_chart + (t % (columns + 1)).to(tl.int64) * 8 * n + o_r
            tl.store(p_line, b_p0, mask=b_on)
            tl.store(p_line + n, b_p1, mask=b_on)
            tl.store(p_line + 2 * n, b_p2, mask=b_on)
            tl.store(p_line + 3 * n, b_d0, mask=b_on)
            tl.store(p_line + 4 * n, b_d1, mask=b_on)
            tl.store(p_line + 5 * n, b_i0, mask=b_on)
            tl.store(p_line + 6 * n, b_i1, mask=b_on)
            tl.store(p_line + 7 * n, b_i2, mask=b_on)
            # the first position of a gap is opened, the others are extended
            above += tl.where(t == 0, opened, longer)
            b_x, b_open, b_extend = after
        # after the last step the last row is in the last column
        best = tl.max(tl.where(o_r == rows - 1, b_p, float("-inf")), 0)
        bad = tl.max(((o_r == rows - 1) & (b_p != b_p)).to(tl.int32), 0) > 0
        tl.store(p_value + i_b, tl.where(bad, float("nan"), best))
    else:
        tl.store(p_value + i_b, 0.0)


@Entry
@triton.jit
def _outside(
    p_rows,
    p_columns,
    p_chart,
    p_g,
    p_dx,
    p_dopen,
    p_dextend,
    n,
    m,
    ONE_OPEN: tl.constexpr,
    ONE_EXTEND: tl.constexpr,
    BR: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    rows = tl.load(p_rows + i_b).to(tl.int32)
    columns = tl.load(p_columns + i_b).to(tl.int32)
    p_dx += i_b * n * m
    p_dopen += i_b * (1 if ONE_OPEN else n * m)
    p_dextend += i_b * (1 if ONE_EXTEND else n * m)
    p_chart += i_b * (m + 1) * 8 * n
    o_r = tl.arange(0, BR)
    some = (rows > 0) & (columns > 0)
    last_row = tl.where(some, rows, 0)
    last_column = tl.where(some, columns, 0)
    clear(p_dx, n, m, last_row, last_column, BR)
    if not ONE_OPEN:
        clear(p_dopen, n, m, last_row, last_column, BR)
    if not ONE_EXTEND:
        clear(p_dextend, n, m, last_row, last_column, BR)
    if some:
        zero = tl.zeros([BR], tl.float32)
        g = tl.load(p_g + i_b).to(tl.float32)
        # expectations to the left for M, X and Y, upwards for M and X, of the pairs, and of the pairs of the row below,
        # one step ago
        b_lm, b_ld, b_li, b_um, b_ud, b_pair, b_late = zero, zero, zero, zero, zero, zero, zero
        b_opens, b_extends = zero.to(tl.float64), zero.to(tl.float64)
        b_open_kept, b_extend_kept = zero, zero
        b_above = zero
        weights = _weights(p_chart, rows + columns - 1, rows, columns, n, o_r)
        for back in range(rows + columns):
            t = rows + columns - 1 - back
            o_j = t - o_r
            b_on = (o_j >= 0) & (o_j <= columns) & (o_r < rows)
            b_p0, b_p1, b_p2, b_d0, b_d1, b_i0, b_i1, b_i2 = weights
            # load the inputs of the next step while this step is computed
            weights = _weights(p_chart, t - 1, rows, columns, n, o_r)
            b_p = b_late + tl.where((o_r == rows - 1) & (o_j == columns), g, 0.0)
            b_m = b_lm + from_below(b_um, 0.0, rows - 1, o_r, BR) + b_p * b_p0
            b_d = b_ld + from_below(b_ud, 0.0, rows - 1, o_r, BR) + b_p * b_p1
            b_i = b_li + b_p * b_p2
            b_late = from_below(b_pair, 0.0, rows - 1, o_r, BR)
            b_um, b_ud = b_d * b_d0, b_d * b_d1
            b_lm, b_ld, b_li = b_i * b_i0, b_i * b_i1, b_i * b_i2
            b_pair = b_m
            tl.store(p_dx + o_r * m + o_j - 1, b_m.to(p_dx.dtype.element_ty), mask=b_on & (o_j > 0))
            # insertions above the first row: an alignment that passes column j passes all columns before it
            b_open = b_um + b_lm + b_ld + tl.where((o_r == 0) & (t == 1), b_above, 0.0)
            b_extend = b_ud + b_li + tl.where((o_r == 0) & (t > 1) & (t <= columns), b_above, 0.0)
            b_above += tl.where(b_on & (o_j > 0), b_m, 0.0)
            b_open = tl.where(b_on, b_open, 0.0)
            b_extend = tl.where(b_on, b_extend, 0.0)
            if ONE_OPEN:
                b_opens += b_open
            else:
                # column 0 has no score of its own: its expectation is added to that of column 1
                b_whole = b_open + tl.where(o_j == 0, b_open_kept, 0.0)
                b_open_kept = b_open
                tl.store(
                    p_dopen + o_r * m + tl.maximum(o_j - 1, 0),
                    b_whole.to(p_dopen.dtype.element_ty),
                    mask=b_on & (o_j != 1),
                )
            if ONE_EXTEND:
                b_extends += b_extend
            else:
                b_whole = b_extend + tl.where(o_j == 0, b_extend_kept, 0.0)
                b_extend_kept = b_extend
                tl.store(
                    p_dextend + o_r * m + tl.maximum(o_j - 1, 0),
                    b_whole.to(p_dextend.dtype.element_ty),
                    mask=b_on & (o_j != 1),
                )
        if ONE_OPEN:
            tl.store(p_dopen, tl.sum(b_opens, 0))
        if ONE_EXTEND:
            tl.store(p_dextend, tl.sum(b_extends, 0))
    else:
        if ONE_OPEN:
            tl.store(p_dopen, 0.0)
        if ONE_EXTEND:
            tl.store(p_dextend, 0.0)
