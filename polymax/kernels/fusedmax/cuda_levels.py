"""Fusedmax by level splitting, all runs of a row at once in registers: the prox, the threshold and the marks."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_rows import bit, extent, following, load_row, previous, store_row
from polymax.kernels.fusedmax import ABOVE, ABSENT, BAD, BELOW, FIRST, SAME, WITHOUT
from polymax.kernels.fusedmax.cuda_split import certain_cuts, split

# mark of the rows that the first kernel leaves to this kernel
LEFT = tl.constexpr(6)
IS_ABSENT, IS_WITHOUT, IS_SAME, IS_ABOVE, IS_BELOW, IS_FIRST, IS_BAD = (
    tl.constexpr(mark) for mark in (ABSENT, WITHOUT, SAME, ABOVE, BELOW, FIRST, BAD)
)


@Entry
@triton.jit
def levels(
    p_x,
    p_strength,
    p_y,
    p_mark,
    count,
    n,
    MANY: tl.constexpr,
    WIDE: tl.constexpr,
    REST: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BE: tl.constexpr,
):
    """Write weights and marks of all rows, or with REST of the rows marked LEFT."""
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    if REST:
        if tl.load(p_mark + tl.program_id(0).to(tl.int64) * n) == LEFT:
            _rows(p_x, p_strength, p_y, p_mark, i_r, n, MANY, WIDE, BT, BE)
    else:
        _rows(p_x, p_strength, p_y, p_mark, i_r, n, MANY, WIDE, BT, BE)


@triton.jit
def _rows(
    p_x,
    p_strength,
    p_y,
    p_mark,
    i_r,
    n,
    MANY: tl.constexpr,
    WIDE: tl.constexpr,
    BT: tl.constexpr,
    BE: tl.constexpr,
):
    BR: tl.constexpr = i_r.shape[0]
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    eps = 2.2e-16 if WIDE else 1.2e-7
    o_n = tl.arange(0, BT * BE)[None, :]
    b_x = tl.load(p_x + (i_r * n)[:, None] + o_n, mask=o_n < n, other=float("-inf")).to(dtype)
    b_s = tl.load(p_strength + (i_r if MANY else i_r * 0)).to(dtype)[:, None]
    m_good, b_unit, b_range, _ = extent(b_x)
    m_good = m_good & (b_s >= 0)
    # beyond this the solution is constant
    b_s = tl.where(m_good, tl.minimum(b_s * b_unit, n * b_range), 0)
    b_top = tl.max(tl.where(m_good, b_x, float("-inf")), 1)[:, None]
    b_top = tl.where(b_top == float("-inf"), 0, b_top) * b_unit
    # no entry below this has weight, whatever its exact value
    b_d = tl.where(m_good & (b_x != float("-inf")), b_x * b_unit - b_top, float("-inf"))
    b_floor = _threshold(b_d, b_unit) - 4.0001 * b_s - 1e-5 * b_unit
    b_range = tl.minimum(b_range, b_unit + 5 * b_s)
    b_limit = b_s + 8 * eps * (b_s + tl.minimum(b_range, 5 * n * b_s))

    xs = load_row(p_x, i_r, n, float("-inf"), dtype, BT, BE)
    b_present = tl.zeros([BR, BT], tl.uint32)
    b_live = tl.zeros([BR, BT], tl.uint32)
    ys = ()
    for k in tl.static_range(BE):
        # a NaN would keep the loop from ending
        m_here = m_good & (xs[k] != float("-inf"))
        # entries near the maximum matter, and keep their digits
        b_y = tl.where(m_here, xs[k] * b_unit, b_top) - b_top
        m_live = m_here & (b_y > b_floor)
        b_present |= m_here.to(tl.uint32) << k
        b_live |= m_live.to(tl.uint32) << k
        ys = ys + (tl.where(m_here, tl.maximum(b_y, b_floor), 0),)
    b_cut, b_up = certain_cuts(ys, b_present, b_s)
    # an entry that cannot get weight lies below each live neighbour
    b_next = (b_live >> 1) | (following(b_live & 1, 0) << (BE - 1))
    b_both = b_present & ((b_present >> 1) | (following(b_present & 1, 0) << (BE - 1)))
    b_edge = (b_live ^ b_next) & b_both
    b_cut, b_up = b_cut | b_edge, (b_up & (b_edge ^ 0xFFFFFFFF)) | (b_edge & b_next)
    zs = split(ys, b_present, b_cut, b_up, b_s, b_limit)
    _finish(zs, b_present, m_good, b_unit, p_y, p_mark, i_r, n)


@triton.jit
def _threshold(b_d, b_unit):
    """Return a lower bound of the threshold of scores, given less their maximum: two steps of Michelot's method."""
    b_tau = -b_unit
    for _ in tl.static_range(2):
        m_in = b_d > b_tau
        b_size = tl.sum(m_in.to(tl.int32), 1)[:, None].to(b_d.dtype)
        b_sum = tl.sum(tl.where(m_in, b_d, 0), 1)[:, None]
        b_tau = tl.maximum(b_tau, (b_sum - b_unit) / tl.maximum(b_size, 1))
    return b_tau


@triton.jit
def _finish(zs, b_present, m_good, b_unit, p_y, p_mark, i_r, n):
    """Store the weights that sparsemax gives to zs, and the marks."""
    BE: tl.constexpr = len(zs)
    dtype: tl.constexpr = zs[0].dtype
    b_high = tl.full(zs[0].shape, float("-inf"), dtype)
    for k in tl.static_range(BE):
        b_high = tl.maximum(b_high, tl.where(bit(b_present, k), zs[k], float("-inf")))
    b_high = tl.max(b_high, 1)[:, None]
    b_high = tl.where(b_high == float("-inf"), 0, b_high)
    b_before = tl.full(zs[0].shape, float("-inf"), dtype)
    levels = ()
    for k in tl.static_range(BE):
        b_z = tl.where(bit(b_present, k), zs[k] - b_high, float("-inf"))
        # the last present entry
        b_before = tl.where(bit(b_present, k), b_z, b_before)
        levels = levels + (b_z,)
    b_before = previous(tl.associative_scan(b_before, 1, _latest), float("-inf"))

    # Michelot: the threshold of a superset of the support is a lower bound; the count falls until it is exact
    b_tau = -b_unit
    b_old = tl.zeros_like(b_tau) + (BE * zs[0].shape[1] + 1)
    go = 1
    while go > 0:
        b_size, b_sum = tl.zeros_like(zs[0]), tl.zeros_like(zs[0])
        for k in tl.static_range(BE):
            m_in = levels[k] > b_tau
            b_size += tl.where(m_in, 1.0, 0.0)
            b_sum += tl.where(m_in, levels[k], 0)
        b_size, b_sum = tl.sum(b_size, 1)[:, None], tl.sum(b_sum, 1)[:, None]
        m_fell = (b_size < b_old) & (b_size > 0)
        b_tau = tl.where(m_fell, (b_sum - b_unit) / tl.maximum(b_size, 1), b_tau)
        b_old = tl.where(m_fell, b_size, b_old)
        go = tl.max(m_fell.to(tl.int32))
    b_sum = tl.zeros_like(zs[0])
    for k in tl.static_range(BE):
        b_sum += tl.maximum(levels[k] - b_tau, 0)
    b_sum = tl.sum(b_sum, 1)[:, None]
    b_scale = 1 / tl.where(b_sum > 0, b_sum, 1)

    weights = ()
    marks = ()
    for k in tl.static_range(BE):
        b_y = tl.maximum(levels[k] - b_tau, 0) * b_scale
        weights = weights + (tl.where(m_good, b_y, float("nan")),)
        b_kind = tl.where(b_before == float("-inf"), IS_FIRST, tl.where(levels[k] > b_before, IS_ABOVE, IS_BELOW))
        b_kind = tl.where(levels[k] == b_before, IS_SAME, b_kind)
        b_mark = tl.where(b_y > 0, b_kind, tl.where(bit(b_present, k), IS_WITHOUT, IS_ABSENT))
        marks = marks + (tl.where(m_good, b_mark, IS_BAD),)
        b_before = tl.where(bit(b_present, k), levels[k], b_before)
    store_row(p_y, i_r, n, weights)
    store_row(p_mark, i_r, n, marks)


@triton.jit
def _latest(a, b):
    return tl.where(b == float("-inf"), a, b)
