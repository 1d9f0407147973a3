"""Functions shared by the kernels of sparse attention, for Triton: tiles that a block sees, and the scores of a
tile.
"""

import triton
import triton.language as tl

from polymax.backend.triton_math import INTERPRETED
from polymax.kernels.sparse_attention import tiles
from polymax.kernels.sparse_attention.cuda_weights import kept, positive, slope

# BM: queries of a block
# BN: keys of a tile
BM, BN = tl.constexpr(tiles.HEIGHT), tl.constexpr(tiles.WIDTH)
# relative margin, far above the rounding of scores in another kernel
MARGIN = tl.constexpr(1e-4)
# a rounding of float32
ROUNDING = tl.constexpr(2.0**-23)
# the width of an unlimited window
FAR = 1 << 29


@triton.jit
def sequence(p_starts_q, p_starts_k, i_b, L, S, PACKED: tl.constexpr):
    """Return the first query and key of sequence i_b in its tensor, its numbers of queries and keys, and its batch
    index.
    """
    if PACKED:
        first_q = tl.load(p_starts_q + i_b)
        first_k = tl.load(p_starts_k + i_b)
        queries = tl.load(p_starts_q + i_b + 1) - first_q
        keys = tl.load(p_starts_k + i_b + 1) - first_k
        i_b = i_b * 0
    else:
        first_q, first_k, queries, keys = i_b * 0, i_b * 0, L, S
    return first_q, first_k, queries, keys, i_b.to(tl.int64)


@triton.jit
def head_start(i_b, i_h, first, s_b, s_h, s_l):
    """Return the offset of row `first` of a head of a batch in a tensor of these strides."""
    return i_b * s_b + i_h.to(tl.int64) * s_h + first.to(tl.int64) * s_l


@triton.jit
def reach(i_0, queries, keys, left, right, offset, BR: tl.constexpr):
    """Return the bounds of the tiles that queries i_0 .. i_0 + BR see: begin, begin and end of the tiles that all of
    these see whole, end.

    i_0 may be a number or a vector.
    """
    m_1 = tl.minimum(i_0 + BR, queries) - 1
    low, high = tl.maximum(i_0 + offset - left, 0), tl.minimum(m_1 + offset + right + 1, keys)
    whole_low, whole_high = tl.maximum(m_1 + offset - left, 0), tl.minimum(i_0 + offset + right + 1, keys)
    begin, end = low // BN, (tl.maximum(high, 0) + BN - 1) // BN
    end = tl.maximum(end, begin)
    whole_begin = tl.minimum((whole_low + BN - 1) // BN, end)
    whole_end = tl.minimum(tl.maximum(tl.maximum(whole_high, 0) // BN, whole_begin), end)
    return begin, whole_begin, whole_end, end


@triton.jit
def part(n_before, n_whole, n_all, I: tl.constexpr):
    """Return the bounds of part I of a block's tiles: 0 before the tiles that all rows see whole, 1 these, 2 after
    them.
    """
    if I == 0:
        begin, end = n_before * 0, n_before
    elif I == 1:
        begin, end = n_before, n_whole
    else:
        begin, end = n_whole, n_all
    return begin, end


@triton.jit
def load_rows(p_x, o_m, o_d, m_rows, stride_l, D: tl.constexpr, BD: tl.constexpr):
    """Return rows o_m of a matrix with D columns, as (rows, BD)."""
    p_tile = p_x + o_m.to(tl.int64)[:, None] * stride_l + o_d[None, :]
    if D == BD:
        b_x = tl.load(p_tile, mask=m_rows[:, None], other=0.0)
    else:
        b_x = tl.load(p_tile, mask=m_rows[:, None] & (o_d < D)[None, :], other=0.0)
    if INTERPRETED:
        # the interpreter multiplies the bits of bfloat16
        b_x = b_x.to(tl.float32)
    return b_x


@triton.jit
def load_keys(p_k, o_n, o_d, keys, stride_l, D: tl.constexpr, BD: tl.constexpr, EDGE: tl.constexpr):
    """Return keys as `load_rows` does, unmasked unless EDGE: only a tile at an edge can reach behind the last key."""
    if EDGE:
        b_k = load_rows(p_k, o_n, o_d, o_n < keys, stride_l, D, BD)
    else:
        b_k = load_rows(p_k, o_n, o_d, o_n >= 0, stride_l, D, BD)
    return b_k


@triton.jit
def load_near(p_x, o_m, o_d, rows, stride_l, D: tl.constexpr, BD: tl.constexpr):
    """Return rows as `load_rows` does, without a mask: the last row for all behind it. Offsets have 32 bits: see
    short_rows.near.
    """
    p_tile = p_x + (tl.minimum(o_m, rows - 1) * stride_l)[:, None] + o_d[None, :]
    if D == BD:
        b_x = tl.load(p_tile)
    else:
        b_x = tl.load(p_tile, mask=(o_d < D)[None, :], other=0.0)
    if INTERPRETED:
        # the interpreter multiplies the bits of bfloat16
        b_x = b_x.to(tl.float32)
    return b_x


@triton.jit
def capped_units(b_raw, a, scale, softcap, CAP: tl.constexpr):
    """Return u = (alpha - 1) x of products q k^T."""
    if CAP:
        b_u = tanh(b_raw * (scale / softcap)) * (softcap * a)
    else:
        b_u = b_raw * (scale * a)
    return b_u


@triton.jit
def unit(a, scale, PLAIN: tl.constexpr):
    """Return the factor from z to u: see `heights`."""
    return scale * a if PLAIN else scale * 0 + 1


@triton.jit
def heights(
    b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right, offset,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Return z of products q k^T (rows o_m, keys o_n), -inf if a query does not see a key: see `masked_heights`."""
    b_z = masked_heights(
        b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN, EDGE
    )
    if EDGE:
        o_ahead = o_n[None, :] - (o_m[:, None] + offset)
        m_seen = (o_ahead >= -left) & (o_ahead <= right) & (o_n < keys)[None, :]
        b_z = tl.where(m_seen, b_z, float("-inf"))
    return b_z


@triton.jit
def masked_heights(
    b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Return z of products q k^T (rows o_m, keys o_n), -inf if the mask hides a key, whatever its place.

    z is the product itself if u = (alpha - 1) x is a multiple of it (PLAIN), else z is u. All kernels compute the same
    bits, so that differences of two z are exact, however large both are. MASK is 0 for no mask, 1 for a bool mask, 2
    for an added mask; 3 and 4 for these if all queries share one row of it. A mask 3 is read at an EDGE only: elsewhere
    it shows all keys.
    """
    b_z = b_raw
    if not PLAIN:
        # rounded the same way in all kernels, whatever operation follows
        if CAP:
            b_z = tl.fma(tanh(b_raw * (scale / softcap)), softcap * a, 0.0)
        else:
            b_z = tl.fma(b_raw, scale * a, 0.0)
    if MASK > 0 and (EDGE or MASK != 3):
        if MASK > 2:
            m_in = (o_n < keys)[None, :]
            p_tile = p_mask + o_n.to(tl.int64)[None, :] * mask_s
        else:
            m_in = (o_m < queries)[:, None] & (o_n < keys)[None, :]
            p_tile = p_mask + o_m.to(tl.int64)[:, None] * mask_l + o_n.to(tl.int64)[None, :] * mask_s
        if MASK % 2 == 1:
            b_z = tl.where(tl.load(p_tile, mask=m_in, other=0) != 0, b_z, float("-inf"))
        else:
            b_z = tl.fma(tl.load(p_tile, mask=m_in, other=0.0).to(tl.float32), a, b_z)
    return b_z


@triton.jit
def excess(
    b_raw, b_top, b_depth, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right, offset,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Return w = (u - tau)_+ of products q k^T; tau is b_depth below the u of the row's largest z, b_top."""
    b_z = heights(
        b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right, offset, MASK, CAP,
        PLAIN, EDGE,
    )  # fmt: skip
    return tl.maximum((b_z - b_top[:, None]) * unit(a, scale, PLAIN) + b_depth[:, None], 0.0)


@triton.jit
def over(b_z, b_top, b_depth, factor, PRECISION: tl.constexpr):
    """Return w = (u - tau)_+ of scores z; tau is b_depth below the u of the row's largest z, b_top.

    In half precision it is one instruction, a product and a sum that end at 0 and 1, which no w exceeds; tau is then
    lower by no more than a rounding of u, so that the largest z always has weight.
    """
    if PRECISION == "tf32x3":
        b_w = positive((b_z - b_top) * factor + b_depth)
    else:
        b_up = b_top * factor
        b_w = positive(b_z * factor + (b_depth - (b_up - tl.minimum(tl.abs(b_up), 1e30) * ROUNDING)))
    return b_w


@triton.jit
def load_thresholds(p_top, p_depth, o_row, m_rows):
    """Return the largest z of rows, and how far tau is below it; masked rows get inf and 0, which no z exceeds."""
    b_top = tl.load(p_top + o_row, mask=m_rows, other=float("inf"))
    return b_top, tl.load(p_depth + o_row, mask=m_rows, other=0.0)


@triton.jit
def score_slopes(b_w, b_dp, b_common, b_state, o_n, r, drop, DROP: tl.constexpr, R: tl.constexpr):
    """Return dx = s (dp - common) with dp = grad v^T."""
    if DROP:
        b_dp *= kept(b_state, o_n[None, :], drop)
    return slope(b_w, r, R) * (b_dp - b_common[:, None])


@triton.jit
def tanh(b_y):
    """Return tanh(y), from the exponential that cannot overflow."""
    b_e = tl.exp(-2 * tl.abs(b_y))
    b_t = (1 - b_e) / (1 + b_e)
    return tl.where(b_y < 0, -b_t, b_t)


@triton.jit
def cap_slope(b_raw, scale, softcap):
    """Return the derivative of softcap tanh(y / softcap) in y = scale q k^T."""
    b_t = tanh(b_raw * (scale / softcap))
    return 1 - b_t * b_t


@triton.jit
def row_top(b_u):
    """Return the maximum of each row; NaN if the row has a NaN."""
    if INTERPRETED:
        b_top = tl.where(tl.sum((b_u != b_u).to(tl.int32), 1) > 0, float("nan"), tl.max(b_u, 1))
    else:
        b_top = tl.reduce(b_u, 1, _larger)
    return b_top


@triton.jit
def larger(b_x, b_y):
    """Return the larger of x and y; NaN if x or y is NaN."""
    if INTERPRETED:
        b_z = tl.where((b_x != b_x) | (b_y != b_y), float("nan"), tl.maximum(b_x, b_y))
    else:
        b_z = tl.maximum(b_x, b_y, propagate_nan=tl.PropagateNan.ALL)
    return b_z


@triton.jit
def _larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
