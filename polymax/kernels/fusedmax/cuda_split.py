"""Total-variation prox by level splitting, all runs of a row at once in registers, for Triton.

The algorithm is that of tv_prox/reference.py, from the right to the left. The recursion d <- clamp(d, -s, s) + g is a
scan, because functions x -> clamp(x + add, low, high) compose to such functions; the labels follow by a scan over bits.
"""

import triton
import triton.language as tl

from polymax.backend.triton_rows import bit, following, previous, run_means


@triton.jit
def split(ys, b_present, b_cut, b_up, b_s, b_limit):
    """Return the solution, given bits of entries that are split from the next entry, and of those that lie below it."""
    BE: tl.constexpr = len(ys)
    BT: tl.constexpr = ys[0].shape[1]
    ALL: tl.constexpr = (1 << BE) - 1
    b_last = ((tl.arange(0, BT) == BT - 1).to(tl.uint32) << (BE - 1))[None, :]
    zs = ys
    go = 1
    while go > 0:
        b_ends = b_cut | b_last
        b_begins = (b_cut << 1) & ALL | previous(b_cut >> (BE - 1), 1)
        ps = _pulled(ys, b_cut, b_up, b_s)
        means, rests = run_means(ps, b_present, b_begins, b_ends)
        zs = _sums(means, rests)
        b_above = _labels(_gains(ps, means, rests, b_present), b_begins, b_ends, b_s, b_limit)
        b_next = (b_above >> 1) | (following(b_above & 1, 0) << (BE - 1))
        b_new = (b_above ^ b_next) & (b_ends ^ ALL)
        b_cut = b_cut | b_new
        b_up = b_up | (b_new & b_next)
        go = tl.max((b_new != 0).to(tl.int32))
    return zs


@triton.jit
def certain_cuts(ys, b_present, b_s):
    """Return bits of entries that are certainly split from the next entry, and of those that lie below it.

    |z - x| <= 2 strength, so neighbours further apart than 4 strength are never fused.
    """
    BE: tl.constexpr = len(ys)
    # more than 4, so that rounding does not split a tie
    b_far = 4.0001 * b_s
    b_cut = tl.zeros(b_present.shape, tl.uint32)
    b_up = tl.zeros(b_present.shape, tl.uint32)
    for k in tl.static_range(BE):
        b_next = ys[k + 1] if k + 1 < BE else following(ys[0], 0)
        b_step = b_next - ys[k]
        b_cut = b_cut | ((tl.abs(b_step) > b_far).to(tl.uint32) << k)
        b_up = b_up | ((b_step > b_far).to(tl.uint32) << k)
    b_both = b_present & ((b_present >> 1) | (following(b_present & 1, 0) << (BE - 1)))
    b_cut = b_cut & b_both
    return b_cut, b_up & b_cut


@triton.jit
def _pulled(ys, b_cut, b_up, b_s):
    """Return ys plus the pull of the neighbours from which each entry is split."""
    BE: tl.constexpr = len(ys)
    b_before = previous(_pull(b_cut, b_up, b_s, BE - 1), 0)
    ps = ()
    for k in tl.static_range(BE):
        b_pull = _pull(b_cut, b_up, b_s, k)
        ps = ps + (ys[k] + (b_pull - b_before),)
        b_before = b_pull
    return ps


@triton.jit
def _pull(b_cut, b_up, b_s, k: tl.constexpr):
    return tl.where(bit(b_cut, k), tl.where(bit(b_up, k), b_s, -b_s), 0)


@triton.jit
def _sums(means, rests):
    zs = ()
    for k in tl.static_range(len(means)):
        zs = zs + (means[k] + rests[k],)
    return zs


@triton.jit
def _gains(ps, means, rests, b_present):
    """Return the gain of each entry if it lies above the mean of its run."""
    gs = ()
    for k in tl.static_range(len(ps)):
        gs = gs + (tl.where(bit(b_present, k), (ps[k] - means[k]) - rests[k], ps[k]),)
    return gs


@triton.jit
def _labels(gs, b_begins, b_ends, b_s, b_limit):
    """Return bits of the entries above the mean, at the best labels of each run."""
    BE: tl.constexpr = len(gs)
    ALL: tl.constexpr = (1 << BE) - 1
    b_zero = tl.zeros_like(gs[0])
    # advantage of above over below, given the best labels to the right: x -> clamp(x + add, low, high)
    b_add, b_low, b_high = b_zero, b_zero - b_s, b_zero + b_s
    for k in tl.static_range(BE):
        b_g = gs[BE - 1 - k]
        m_end = bit(b_ends, BE - 1 - k)
        b_add += b_g
        b_low = tl.where(m_end, b_g, _clamp(b_low, -b_s, b_s) + b_g)
        b_high = tl.where(m_end, b_g, _clamp(b_high, -b_s, b_s) + b_g)
    _, b_d, _ = tl.associative_scan((b_add, b_low, b_high), 1, _then, reverse=True)
    b_d = following(b_d, 0)
    b_sure = b_begins
    b_above = tl.zeros(b_begins.shape, tl.uint32)
    for k in tl.static_range(BE):
        b_d = tl.where(bit(b_ends, BE - 1 - k), 0, _clamp(b_d, -b_s, b_s)) + gs[BE - 1 - k]
        b_sure = b_sure | ((tl.abs(b_d) > b_limit).to(tl.uint32) << (BE - 1 - k))
        b_above = b_above | ((b_d > 0).to(tl.uint32) << (BE - 1 - k))
    # undecided entries take the label of the entry before: fill runs of bits by doubling
    b_above, b_open = b_above & b_sure, b_sure ^ ALL
    for j in tl.static_range(5):
        b_above |= b_open & (b_above << (1 << j))
        b_open &= (b_open << (1 << j)) | ((1 << (1 << j)) - 1)
    # labels: 0 undecided, 1 not above, 2 above
    b_label = tl.where((b_open >> (BE - 1)) & 1 != 0, 0, 1 + ((b_above >> (BE - 1)) & 1).to(tl.int32))
    b_label = previous(tl.associative_scan(b_label, 1, _latest), 0)
    return tl.where(b_label == 2, b_above | b_open, b_above)


@triton.jit
def _clamp(b_x, b_low, b_high):
    return tl.minimum(tl.maximum(b_x, b_low), b_high)


@triton.jit
def _then(a_add, a_low, a_high, b_add, b_low, b_high):
    return (
        a_add + b_add,
        _clamp(a_low + b_add, b_low, b_high),
        _clamp(a_high + b_add, b_low, b_high),
    )


@triton.jit
def _latest(a, b):
    return tl.where(b == 0, a, b)
