"""Oscarmax by sorting: the isotonic regression of the raised scores, the threshold and the code; and its Jacobian."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_rows import extent, flat_means, previous, sparsemax_rows, stack, unstack
from polymax.kernels.isotonic.cuda import non_increasing
from polymax.kernels.oscarmax import BAD, BEGINS, HEAVY

# mark of the rows that the first kernel leaves to the second
LEFT = tl.constexpr(-2)
IS_HEAVY, IS_BEGINS, IS_BAD = tl.constexpr(HEAVY), tl.constexpr(BEGINS), tl.constexpr(BAD)


@Entry
@triton.jit
def clusters(
    p_x,
    p_strength,
    p_y,
    p_code,
    count,
    n,
    MANY: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BE: tl.constexpr,
):
    """Write weights and codes of all rows, or with REST of the rows marked LEFT."""
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    if REST:
        if tl.load(p_code + tl.program_id(0).to(tl.int64) * n) == LEFT:
            _rows(p_x, p_strength, p_y, p_code, i_r, n, MANY, HALF, BT, BE)
    else:
        _rows(p_x, p_strength, p_y, p_code, i_r, n, MANY, HALF, BT, BE)


@triton.jit
def _rows(
    p_x,
    p_strength,
    p_y,
    p_code,
    i_r,
    n,
    MANY: tl.constexpr,
    HALF: tl.constexpr,
    BT: tl.constexpr,
    BE: tl.constexpr,
):
    BR: tl.constexpr = i_r.shape[0]
    BN: tl.constexpr = BT * BE
    o_r = (i_r * n)[:, None]
    o_n = tl.arange(0, BN)[None, :]
    b_x = tl.load(p_x + o_r + o_n, mask=o_n < n, other=float("-inf")).to(tl.float32)
    b_s = tl.load(p_strength + (i_r if MANY else i_r * 0)).to(tl.float32)[:, None]
    m_good, b_unit, b_range, b_base = extent(b_x)
    m_good = m_good & (b_s >= 0)
    # beyond this all entries are one cluster
    b_s = tl.minimum(b_s * b_unit, b_range)
    # bad rows keep their order; -0.0 is a tie with 0.0
    b_x = tl.where((m_good | (o_n >= n)) & (b_x != 0), b_x, 0.0)
    b_x, b_index = sorted_rows(b_x, o_n, p_x.dtype.element_ty, HALF)
    zs = non_increasing(unstack(tl.reshape(b_x * b_unit - b_base + b_s * o_n, [BR, BT, BE])))

    begins = ()
    b_before = previous(zs[BE - 1], float("inf"))
    for k in tl.static_range(BE):
        begins = begins + ((zs[k] != b_before).to(tl.int32),)
        b_before = zs[k]
    b_z = tl.reshape(stack(zs), [BR, BN])
    b_begins = tl.reshape(stack(begins), [BR, BN])
    b_high = tl.max(b_z, 1)[:, None]
    b_z = (b_z - tl.where(b_high == float("-inf"), 0, b_high)) * (1 / b_unit)
    b_y = sparsemax_rows(tl.where(b_x == float("-inf"), b_x, b_z))
    b_code = 4 * b_index + tl.where(b_y > 0, IS_HEAVY + IS_BEGINS * b_begins, 0)
    b_y = tl.where(m_good, b_y, float("nan"))
    tl.store(p_y + o_r + b_index, b_y.to(p_y.dtype.element_ty), mask=b_index < n)
    tl.store(p_code + o_r + o_n, tl.where(m_good, b_code, IS_BAD), mask=o_n < n)


@triton.jit
def sorted_rows(b_x, o_n, dtype: tl.constexpr, HALF: tl.constexpr):
    """Return rows in decreasing order, and the original index of each entry."""
    BN: tl.constexpr = b_x.shape[1]
    SHIFT: tl.constexpr = 16 if HALF else 32
    LOW: tl.constexpr = (1 << (SHIFT - 1)) - 1
    if HALF:
        b_bits = b_x.to(dtype).to(tl.int16, bitcast=True).to(tl.int32)
    else:
        b_bits = b_x.to(tl.int32, bitcast=True).to(tl.int64)
    # the bits of negative floats count down
    b_keys = tl.where(b_bits < 0, b_bits ^ LOW, b_bits) << SHIFT
    b_keys = tl.sort(b_keys | (BN - 1 - o_n), descending=True)
    b_index = BN - 1 - (b_keys & (2 * LOW + 1)).to(tl.int32)
    b_bits = b_keys >> SHIFT
    b_bits = tl.where(b_bits < 0, b_bits ^ LOW, b_bits)
    if HALF:
        return b_bits.to(tl.int16).to(dtype, bitcast=True).to(tl.float32), b_index
    else:
        return b_bits.to(tl.int32).to(tl.float32, bitcast=True), b_index


@Entry
@triton.jit
def coded_mean(p_code, p_v, p_out, count, n, WIDE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    o_r = (i_r * n)[:, None]
    o_n = tl.arange(0, BN)[None, :]
    m_n = o_n < n
    b_code = tl.load(p_code + o_r + o_n, mask=m_n, other=0)
    m_bad = tl.min(b_code, 1)[:, None] == IS_BAD
    b_index = tl.where(m_bad, o_n, b_code >> 2)
    m_in = m_n & (b_code & IS_HEAVY != 0)
    m_begins = m_n & (b_code & IS_BEGINS != 0)
    b_v = tl.load(p_v + o_r + b_index, mask=m_in, other=0).to(dtype)
    b_size = tl.sum(m_in.to(tl.int32), 1)[:, None]
    b_runs = tl.sum(m_begins.to(tl.int32), 1)[:, None]
    b_mean = tl.sum(b_v, 1)[:, None] / tl.maximum(b_size, 1).to(dtype)
    # all entries of one cluster change with its mean
    b_out = tl.where(m_in, tl.where(b_runs == 1, b_mean * 0, b_v - b_mean), 0)
    if tl.max(((b_runs > 1) & (b_runs < b_size)).to(tl.int32)) > 0:
        m_ends = tl.load(p_code + o_r + o_n + 1, mask=o_n + 1 < n, other=IS_BEGINS) & IS_BEGINS != 0
        # entries after the last cluster have no weight, and add nothing to it
        b_out = tl.where(m_in, flat_means(b_out, m_in, m_begins | (o_n == 0), m_ends | (o_n + 1 >= n)), 0)
    b_out = tl.where(m_bad, float("nan"), b_out)
    tl.store(p_out + o_r + b_index, b_out.to(p_out.dtype.element_ty), mask=m_n)
