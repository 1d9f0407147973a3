"""Rows for scans in Triton: each thread holds consecutive entries, so that most of a scan needs no exchange.

A tile of R rows, T threads to a row and E entries to a thread is a tuple of E tensors `(R, T)`: entry k of thread t is
position t E + k. A yes-or-no value for each entry is a bit of one tensor `(R, T)` of uint32, so E is at most 32. Code
is written out for each of the E entries, and its compilation takes more than quadratic time in E: rows of more than
1,024 threads use fewer threads that do the work of several, and no more entries.
"""

import torch
import triton
import triton.language as tl

from polymax.backend.triton_math import ceil_power
from polymax.backend.widen import UNITS

# counts of entries share a word with a flag above them
LONGEST = 32768
FLAG = tl.constexpr(1 << 16)
WIDEST_64, SMALL_64 = (tl.constexpr(number) for number in UNITS[torch.float64])
WIDEST_32, SMALL_32 = (tl.constexpr(number) for number in UNITS[torch.float32])


def chunks(count: int, n: int) -> tuple[int, int, int, int]:
    """Return rows per program, threads to a row, entries to a thread, and warps."""
    bn = ceil_power(n)
    # one warp to a row as long as possible; beyond, more threads rather than more registers
    be = 32 if bn == 1024 else min(16, max(bn // 8, 1))
    bt = bn // be
    br = max(1, min(32 // bt, ceil_power(count)))
    return br, bt, be, min(max(1, br * bt // 32), 32)


def quick_chunks(n: int) -> tuple[int, int, int]:
    """Return threads to a row, entries to a thread, and warps of kernels for few rows, chosen for short compile
    time.
    """
    bn = ceil_power(n)
    be = min(8, bn)
    return bn // be, be, min(max(1, bn // be // 32), 32)


def flat(n: int) -> tuple[int, int, int]:
    """Return rows per program, padded length and warps of kernels that hold rows in any order."""
    bn = ceil_power(n)
    br = max(1, 512 // bn)
    return br, bn, min(max(1, br * bn // 512), 32)


@triton.jit
def load_row(p_x, i_r, n, other, dtype: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr):
    """Return rows i_r of length n as a tuple; `other` past their end."""
    # a warp loads together and exchanges; an exchange between warps would cost more than loads of four
    B4: tl.constexpr = BE if BT <= 32 or BE < 4 else 4
    xs = ()
    for k in tl.static_range(0, BE, B4):
        o_x, m_x = _offsets(i_r, n, k, BT, BE, B4)
        xs = xs + unstack(tl.load(p_x + o_x, mask=m_x, other=other).to(dtype))
    return xs


@triton.jit
def store_row(p_x, i_r, n, xs):
    """Store rows: the inverse of `load_row`."""
    BE: tl.constexpr = len(xs)
    BT: tl.constexpr = xs[0].shape[1]
    B4: tl.constexpr = BE if BT <= 32 or BE < 4 else 4
    for k in tl.static_range(0, BE, B4):
        o_x, m_x = _offsets(i_r, n, k, BT, BE, B4)
        tl.store(p_x + o_x, stack(xs[k : k + B4]).to(p_x.dtype.element_ty), mask=m_x)


@triton.jit
def _offsets(i_r, n, k: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr, B4: tl.constexpr):
    """Return offsets `(R, T, B4)` of entries k.. of each thread, and the mask of those that exist."""
    o_r = (i_r * n)[:, None, None]
    o_n = tl.arange(0, BT)[None, :, None] * BE + k + tl.arange(0, B4)[None, None, :]
    return o_r + o_n, o_n < n


@triton.jit
def unstack(b_x):
    """Return a tensor `(R, T, E)` as a tuple of E tensors `(R, T)`."""
    BR: tl.constexpr = b_x.shape[0]
    BT: tl.constexpr = b_x.shape[1]
    BE: tl.constexpr = b_x.shape[2]
    if BE == 1:
        return (tl.reshape(b_x, [BR, BT]),)
    else:
        b_front, b_back = tl.split(tl.permute(tl.reshape(b_x, [BR, BT, 2, BE // 2]), (0, 1, 3, 2)))
        return unstack(b_front) + unstack(b_back)


@triton.jit
def stack(xs):
    """Return the tensor `(R, T, E)` of a tuple."""
    BE: tl.constexpr = len(xs)
    BR: tl.constexpr = xs[0].shape[0]
    BT: tl.constexpr = xs[0].shape[1]
    if BE == 1:
        return tl.reshape(xs[0], [BR, BT, 1])
    else:
        MIDDLE: tl.constexpr = BE // 2
        b_pair = tl.join(stack(xs[:MIDDLE]), stack(xs[MIDDLE:]))
        return tl.reshape(tl.permute(b_pair, (0, 1, 3, 2)), [BR, BT, BE])


@triton.jit
def extent(b_x):
    """Return True for rows of `(R, N)` without NaN and +inf; and the unit, range and offset of rows, as columns.

    -inf is absent; rows with NaN or +inf count as absent. Range and offset are in the unit.
    """
    m_good = tl.min((b_x < float("inf")).to(tl.int32), 1)[:, None] > 0
    b_x = tl.where(m_good, b_x, float("-inf"))
    b_top = tl.max(b_x, 1)[:, None]
    b_low = tl.min(tl.where(b_x == float("-inf"), float("inf"), b_x), 1)[:, None]
    b_unit = unit(b_top, b_low)
    b_top, b_low = b_top * b_unit, b_low * b_unit
    return m_good, b_unit, tl.where(b_top < b_low, 0, b_top - b_low), offset(b_top, b_low)


@triton.jit
def unit(b_top, b_low):
    """Return the factor of rows between b_low and b_top: 1, or a power of two that keeps sums of entries finite."""
    WIDEST: tl.constexpr = WIDEST_64 if b_top.dtype == tl.float64 else WIDEST_32
    SMALL: tl.constexpr = SMALL_64 if b_top.dtype == tl.float64 else SMALL_32
    # a difference that overflows is also too wide; absent rows have top < low
    b_one = tl.full(b_top.shape, 1.0, b_top.dtype)
    return tl.where(b_top - b_low > WIDEST, b_one * SMALL, b_one)


@triton.jit
def offset(b_top, b_low):
    """Return the number to subtract from rows between b_low and b_top, so that sums keep their digits.

    Scores far from 0 relative to their range are shifted by their maximum, without rounding; other scores stay. Absent
    rows have top < low.
    """
    m_far = (b_top >= b_low) & (tl.abs(b_top) > 2 * (b_top - b_low))
    return tl.where(m_far, b_top, 0)


@triton.jit
def sparsemax_rows(b_z):
    """Return sparsemax of rows `(R, N)` whose maximum is 0; zeros for rows of -inf."""
    BN: tl.constexpr = b_z.shape[1]
    dtype: tl.constexpr = b_z.dtype
    b_tau = tl.full([b_z.shape[0], 1], -1, dtype)
    b_before = tl.full([b_z.shape[0], 1], BN + 1, dtype)
    go = 1
    while go > 0:
        # Michelot: the threshold of a superset of the support is a lower bound; iterate until the count stops falling
        m_in = b_z > b_tau
        b_size = tl.sum(tl.where(m_in, 1.0, 0.0).to(dtype), 1)[:, None]
        b_sum = tl.sum(tl.where(m_in, b_z, 0), 1)[:, None]
        m_fell = (b_size < b_before) & (b_size > 0)
        b_tau = tl.where(m_fell, (b_sum - 1) / tl.maximum(b_size, 1), b_tau)
        b_before = tl.where(m_fell, b_size, b_before)
        go = tl.max(m_fell.to(tl.int32))
    b_y = tl.maximum(b_z - b_tau, 0)
    b_sum = tl.sum(b_y, 1)[:, None]
    return b_y * (1 / tl.where(b_sum > 0, b_sum, 1))


@triton.jit
def bit(b_bits, k: tl.constexpr):
    """Return entry k of a bit set."""
    return (b_bits >> k) & 1 != 0


@triton.jit
def previous(b_x, fill):
    """Return the values of the thread before; `fill` in the first thread."""
    BT: tl.constexpr = b_x.shape[1]
    o_t = tl.arange(0, BT)[None, :]
    return tl.where(o_t == 0, tl.full(b_x.shape, fill, b_x.dtype), _shifted(b_x, tl.maximum(o_t - 1, 0), False))


@triton.jit
def following(b_x, fill):
    """Return the values of the next thread; `fill` in the last thread."""
    BT: tl.constexpr = b_x.shape[1]
    o_t = tl.arange(0, BT)[None, :]
    b_next = _shifted(b_x, tl.minimum(o_t + 1, BT - 1), True)
    return tl.where(o_t == BT - 1, tl.full(b_x.shape, fill, b_x.dtype), b_next)


@triton.jit
def _shifted(b_x, o_t, BACK: tl.constexpr):
    if b_x.shape[1] <= 32:
        return tl.gather(b_x, o_t + tl.zeros(b_x.shape, tl.int32), 1)
    else:
        # a gather between warps would make each of them hold the whole row
        b_zero = tl.zeros(b_x.shape, tl.int32)
        _, b_before, _ = tl.associative_scan((b_x, b_x, b_zero), 1, _last_two, reverse=BACK)
        return b_before


@triton.jit
def _last_two(a_last, a_before, a_known, b_last, b_before, b_known):
    return b_last, tl.where(b_known > 0, b_before, a_last), b_known + 1


@triton.jit
def run_means(ys, b_present, b_begins, b_ends):
    """Return the mean of each run at every entry of it, as two tuples that add up to it.

    Bits mark the entries that are present, and those that begin and end a run; absent entries of ys are added, but not
    counted. Sums carry their rounding error along, so the mean of a million entries is as accurate as that of one.
    """
    BE: tl.constexpr = len(ys)
    b_zero = tl.zeros_like(ys[0])
    b_sum, b_rest, b_count = b_zero, b_zero, tl.zeros(b_zero.shape, tl.int32)
    for k in tl.static_range(BE):
        b_sum, b_rest, b_count = _count_in(b_sum, b_rest, b_count, ys[k], b_present, b_begins, k)
    b_tally = tl.where(b_begins != 0, b_count + FLAG, b_count)
    b_sum, b_rest, b_tally = tl.associative_scan((b_sum, b_rest, b_tally), 1, _accumulate)
    b_sum, b_rest, b_count = previous(b_sum, 0), previous(b_rest, 0), previous(b_tally, 0) & (FLAG - 1)
    means = ()
    rests = ()
    for k in tl.static_range(BE):
        b_sum, b_rest, b_count = _count_in(b_sum, b_rest, b_count, ys[k], b_present, b_begins, k)
        b_n = tl.maximum(b_count, 1).to(b_zero.dtype)
        b_inverse = 1 / b_n
        b_mean = b_sum * b_inverse
        means = means + (b_mean,)
        rests = rests + ((tl.fma(-b_mean, b_n, b_sum) + b_rest) * b_inverse,)
    b_mean, b_rest = b_zero, b_zero
    for k in tl.static_range(BE):
        b_mean = tl.where(bit(b_ends, BE - 1 - k), means[BE - 1 - k], b_mean)
        b_rest = tl.where(bit(b_ends, BE - 1 - k), rests[BE - 1 - k], b_rest)
    b_known = (b_ends != 0).to(tl.int32)
    b_mean, b_rest, _ = tl.associative_scan((b_mean, b_rest, b_known), 1, _nearest, reverse=True)
    b_mean, b_rest = following(b_mean, 0), following(b_rest, 0)
    wide_means = ()
    wide_rests = ()
    for k in tl.static_range(BE):
        b_mean = tl.where(bit(b_ends, BE - 1 - k), means[BE - 1 - k], b_mean)
        b_rest = tl.where(bit(b_ends, BE - 1 - k), rests[BE - 1 - k], b_rest)
        wide_means = (b_mean,) + wide_means
        wide_rests = (b_rest,) + wide_rests
    return wide_means, wide_rests


@triton.jit
def flat_means(b_y, m_present, m_begins, m_ends):
    """Return the mean of each run at every entry of it, as `run_means`, for rows `(R, N)`: slower, with less code."""
    b_tally = m_present.to(tl.int32) + tl.where(m_begins, FLAG, 0)
    b_sum, b_rest, b_tally = tl.associative_scan((b_y, tl.zeros_like(b_y), b_tally), 1, _accumulate)
    b_n = tl.maximum(b_tally & (FLAG - 1), 1).to(b_y.dtype)
    b_inverse = 1 / b_n
    b_mean = b_sum * b_inverse
    b_rest = (tl.fma(-b_mean, b_n, b_sum) + b_rest) * b_inverse
    b_mean, _, _ = tl.associative_scan((b_mean + b_rest, b_rest, m_ends.to(tl.int32)), 1, _nearest, reverse=True)
    return b_mean


@triton.jit
def _count_in(b_sum, b_rest, b_count, b_y, b_present, b_begins, k: tl.constexpr):
    m_fresh = bit(b_begins, k)
    b_sum, b_rest = _add(tl.where(m_fresh, 0, b_sum), tl.where(m_fresh, 0, b_rest), b_y)
    return b_sum, b_rest, tl.where(m_fresh, 0, b_count) + bit(b_present, k).to(tl.int32)


@triton.jit
def _add(b_sum, b_rest, b_y):
    # the rounding error of a sum is itself a float
    b_new = b_sum + b_y
    b_got = b_new - b_sum
    return b_new, b_rest + ((b_sum - (b_new - b_got)) + (b_y - b_got))


@triton.jit
def _accumulate(a_sum, a_rest, a_tally, b_sum, b_rest, b_tally):
    m_fresh = b_tally >= FLAG
    b_both, b_both_rest = _add(a_sum, a_rest + b_rest, b_sum)
    return (
        tl.where(m_fresh, b_sum, b_both),
        tl.where(m_fresh, b_rest, b_both_rest),
        tl.where(m_fresh, b_tally, a_tally + b_tally),
    )


@triton.jit
def _nearest(a_mean, a_rest, a_known, b_mean, b_rest, b_known):
    m_has = b_known > 0
    return tl.where(m_has, b_mean, a_mean), tl.where(m_has, b_rest, a_rest), a_known | b_known
