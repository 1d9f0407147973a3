"""Tiles of short rows: which of them a block of queries sees, the scores of a tile, and sums of values over tiles.

Kernels of short rows pass over the tiles of a block a few times and compute scores again in each pass: see
cuda_short_contexts.py and cuda_short_slopes.py.
"""

import triton
import triton.language as tl

from polymax.kernels.sparse_attention.cuda_tile import load_keys, load_near, masked_heights, over, unit
from polymax.kernels.sparse_attention.cuda_weights import kept, slope, weight

# as EDGE: a loop over all tiles, which looks at each if it is at an edge
EACH = tl.constexpr(2)
# entries of a mask that are loaded at once
CHUNK = tl.constexpr(1024)
# tolerated relative error of sums of p and of s in half precision, a quarter of the rounding of bfloat16
ROUGH_ERROR = tl.constexpr(1e-3)
# lengths, numbers of heads and strides of masks, for whose values nothing is compiled anew
NUMBERS = (
    "mask_b", "mask_h", "mask_l", "heads", "group", "L", "S", "blocks", "row_tiles", "plan_head", "flag", "left",
    "right", "offset", "drop", "fewest",
)  # fmt: skip


@triton.jit
def shown_keys(p_mask, mask_s, keys, MASK: tl.constexpr, BK: tl.constexpr):
    """Return the first key that a bool mask with one row shows, the number of keys up to the last one, and 1 if it
    shows all keys between: padding needs no mask. For other masks return 0, all keys and 1.
    """
    first, last, solid = keys * 0, keys, keys * 0 + 1
    if MASK == 3:
        first, last, shown = keys, keys * 0, keys * 0
        for i_n in range(0, keys, BK):
            o_n = i_n + tl.arange(0, BK)
            m_shown = tl.load(p_mask + o_n.to(tl.int64) * mask_s, mask=o_n < keys, other=0) != 0
            first = tl.minimum(first, tl.min(tl.where(m_shown, o_n, keys), 0))
            last = tl.maximum(last, tl.max(tl.where(m_shown, o_n + 1, 0), 0))
            shown += tl.sum(m_shown.to(tl.int32), 0)
        solid = (shown == last - first).to(tl.int32)
    return first, last, solid


@triton.jit
def seen_tiles(i_0, queries, first, keys, solid, left, right, offset, BR: tl.constexpr, BN: tl.constexpr):
    """Return bounds of the tiles of BN keys that queries i_0 .. i_0 + BR see: begin, begin and end of the tiles that
    all of these see whole, end. No tile counts as whole if `solid` is 0.
    """
    i_1 = tl.minimum(i_0 + BR, queries) - 1
    low, high = tl.maximum(i_0 + offset - left, first), tl.minimum(i_1 + offset + right + 1, keys)
    whole_low, whole_high = tl.maximum(i_1 + offset - left, first), tl.minimum(i_0 + offset + right + 1, keys)
    begin, end = low // BN, (tl.maximum(high, 0) + BN - 1) // BN
    end = tl.maximum(end, begin)
    whole_begin = tl.minimum((whole_low + BN - 1) // BN, end)
    whole_end = tl.minimum(tl.maximum(tl.maximum(whole_high * solid, 0) // BN, whole_begin), end)
    return begin, whole_begin, whole_end, end


@triton.jit
def key_bounds(o_m, first, keys, left, right, offset):
    """Return the first and the last key of each row."""
    return tl.maximum(o_m + (offset - left), first), tl.minimum(o_m + (offset + right), keys - 1)


@triton.jit
def short_heights(
    b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Return z as `heights` does; row i sees the keys from b_low to b_high, which take two comparisons."""
    b_z = masked_heights(
        b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN, EDGE
    )
    if EDGE:
        m_seen = (o_n[None, :] >= b_low[:, None]) & (o_n[None, :] <= b_high[:, None])
        b_z = tl.where(m_seen, b_z, float("-inf"))
    return b_z


@triton.jit
def tile_heights(
    b_raw, b_low, b_high, i_n, whole_begin, whole_end, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale,
    softcap, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Return z as `short_heights` does; for EACH, tile i_n is at an edge if it is not among those that all rows see."""
    if EDGE == EACH and (MASK == 0 or MASK == 3):
        # before the branch: Triton fails to pipeline a loop with functions of products in a branch
        b_z = masked_heights(
            b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, 0, CAP, PLAIN, False
        )
        if (i_n < whole_begin) | (i_n >= whole_end):
            b_z = short_heights(
                b_z, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, False,
                True, True,
            )  # fmt: skip
    else:
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN,
            EDGE,
        )  # fmt: skip
    return b_z


@triton.jit
def tiles_of(begin, whole_begin, whole_end, end, EDGE: tl.constexpr):
    """Return the number of tiles of a kind, those at edges or those that all rows see whole; and the first one, the
    number of tiles before a gap, and the length of the gap. For EACH it is all tiles, without a gap.
    """
    if EDGE == EACH:
        count, first, before, gap = end - begin, begin, end - begin, begin * 0
    elif EDGE:
        count, first, before, gap = whole_begin - begin + end - whole_end, begin, whole_begin - begin, whole_end
        gap = whole_end - whole_begin
    else:
        count, first, before, gap = whole_end - whole_begin, whole_begin, whole_end - whole_begin, begin * 0
    return count, first, before, gap


@triton.jit
def value_sums(
    b_o, b_mean, b_p, b_s, b_n, b_top, b_depth, b_q, b_state, p_k, p_v, p_mask, k_l, v_l, mask_l, mask_s, o_m, o_d, o_v,
    begin, whole_begin, whole_end, end, queries, keys, a, r, scale, softcap, b_low, b_high, drop,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, DROP: tl.constexpr, COUNT: tl.constexpr,
    EDGE: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return sums of values under p and s, of p and of s, and the support, after adding the tiles of a kind."""
    factor = unit(a, scale, PLAIN)
    count, first, before, gap = tiles_of(begin, whole_begin, whole_end, end, EDGE)
    for i_t in tl.range(0, count, num_stages=STAGES):
        i_n = first + i_t + tl.where(i_t < before, 0, gap)
        o_n = i_n * BN + tl.arange(0, BN)
        if EDGE == EACH:
            b_k = load_near(p_k, o_n, o_d, keys, k_l, D, BD)
            b_v = load_near(p_v, o_n, o_v, keys, v_l, V, BV)
        else:
            b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, EDGE)
            b_v = load_keys(p_v, o_n, o_v, keys, v_l, V, BV, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = tile_heights(
            b_raw, b_low, b_high, i_n, whole_begin, whole_end, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a,
            scale, softcap, MASK, CAP, PLAIN, EDGE,
        )  # fmt: skip
        if EDGE == EACH:
            b_w = over(b_z, b_top[:, None], b_depth[:, None], factor, PRECISION)
        else:
            b_w = tl.maximum((b_z - b_top[:, None]) * factor + b_depth[:, None], 0.0)
        b_weight, b_slope = weight(b_w, r, R), slope(b_w, r, R)
        b_p += tl.sum(b_weight, 1)
        b_s += tl.sum(b_slope, 1)
        if COUNT:
            b_n += tl.sum((b_w > 0).to(tl.int32), 1)
        if DROP:
            b_keep = kept(b_state, o_n[None, :], drop)
            b_weight, b_slope = b_weight * b_keep, b_slope * b_keep
        b_o = tl.dot(b_weight.to(b_v.dtype), b_v, b_o, input_precision=PRECISION)
        b_mean = tl.dot(b_slope.to(b_v.dtype), b_v, b_mean, input_precision=PRECISION)
    return b_o, b_mean, b_p, b_s, b_n
