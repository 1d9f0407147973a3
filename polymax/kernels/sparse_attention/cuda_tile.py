"""What the kernels of sparse attention share: where a block of queries looks, scores of a tile, powers of a weight."""

import triton
import triton.language as tl

from polymax.kernels.triton_math import INTERPRETED

WIDTH = tl.constexpr(64)
# a window without an end
FAR = 1 << 29


@triton.jit
def sequence(p_starts_q, p_starts_k, i_b, L, S, PACKED: tl.constexpr):
    """First query and key of sequence i_b in its tensor, its numbers of queries and keys, and its batch index."""
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
    """Where row `first` of a head of a batch begins in a tensor of these strides."""
    return i_b * s_b + i_h.to(tl.int64) * s_h + first.to(tl.int64) * s_l


@triton.jit
def exponent(p_alpha, a1, LEARNED: tl.constexpr):
    """alpha - 1, of the head where it is learned."""
    a = a1
    if LEARNED:
        a = tl.load(p_alpha).to(tl.float32) - 1
    return a


@triton.jit
def reach(m_0, queries, keys, left, right, offset, BM: tl.constexpr):
    """Tiles that queries m_0 .. m_0 + BM see: the first, the first and the end of those that all see whole, the end.

    m_0 may be a number or a vector.
    """
    m_1 = tl.minimum(m_0 + BM, queries) - 1
    low, high = tl.maximum(m_0 + offset - left, 0), tl.minimum(m_1 + offset + right + 1, keys)
    whole_low, whole_high = tl.maximum(m_1 + offset - left, 0), tl.minimum(m_0 + offset + right + 1, keys)
    begin, end = low // WIDTH, (tl.maximum(high, 0) + WIDTH - 1) // WIDTH
    end = tl.maximum(end, begin)
    whole_begin = tl.minimum((whole_low + WIDTH - 1) // WIDTH, end)
    whole_end = tl.minimum(tl.maximum(tl.maximum(whole_high, 0) // WIDTH, whole_begin), end)
    return begin, whole_begin, whole_end, end


@triton.jit
def part(n_before, n_whole, n_all, I: tl.constexpr):
    """Part I of three of a block's tiles: before those that all rows see whole, these, and after them."""
    if I == 0:
        begin, end = n_before * 0, n_before
    elif I == 1:
        begin, end = n_before, n_whole
    else:
        begin, end = n_whole, n_all
    return begin, end


@triton.jit
def units(
    b_raw,
    o_m,
    o_n,
    p_mask,
    mask_l,
    mask_s,
    queries,
    keys,
    a1,
    scale,
    softcap,
    left,
    right,
    offset,
    MASK: tl.constexpr,
    CAP: tl.constexpr,
    EDGE: tl.constexpr,
):
    """u = (alpha - 1) x of products q k^T (rows o_m, keys o_n), -inf where a query does not see a key."""
    if CAP:
        b_u = b_tanh(b_raw * (scale / softcap)) * (softcap * a1)
    else:
        b_u = b_raw * (scale * a1)
    if MASK > 0:
        inside = (o_m < queries)[:, None] & (o_n < keys)[None, :]
        p_tile = p_mask + o_m.to(tl.int64)[:, None] * mask_l + o_n.to(tl.int64)[None, :] * mask_s
        if MASK == 1:
            b_u = tl.where(tl.load(p_tile, mask=inside, other=0) != 0, b_u, float("-inf"))
        else:
            b_u += tl.load(p_tile, mask=inside, other=0.0).to(tl.float32) * a1
    if EDGE:
        b_ahead = o_n[None, :] - (o_m[:, None] + offset)
        sees = (b_ahead >= -left) & (b_ahead <= right) & (o_n < keys)[None, :]
        b_u = tl.where(sees, b_u, float("-inf"))
    return b_u


@triton.jit
def b_tanh(b_y):
    """tanh(y), from the exponential that cannot overflow."""
    b_e = tl.exp(-2 * tl.abs(b_y))
    b_t = (1 - b_e) / (1 + b_e)
    return tl.where(b_y < 0, -b_t, b_t)


@triton.jit
def cap_slope(b_raw, scale, softcap):
    """The derivative of softcap tanh(y / softcap) in y = scale q k^T."""
    b_t = b_tanh(b_raw * (scale / softcap))
    return 1 - b_t * b_t


@triton.jit
def slope(b_w, r, R: tl.constexpr):
    """s = p^(2 - alpha) = w^(r - 1), 0 outside the support."""
    if R == 1:
        b_s = (b_w > 0).to(tl.float32)
    elif R == 2:
        b_s = b_w
    else:
        b_s = tl.where(b_w > 0, tl.exp2((r - 1) * tl.log2(tl.where(b_w > 0, b_w, 1.0))), 0.0)
    return b_s


@triton.jit
def weight(b_w, r, R: tl.constexpr):
    """p = w^r, where w = (u - tau)_+; R is 1 and 2 for sparsemax and alpha 1.5, 0 for any other r."""
    if R == 1:
        b_p = b_w
    elif R == 2:
        b_p = b_w * b_w
    else:
        # one power serves both, where both are asked for
        b_p = b_w * slope(b_w, r, R)
    return b_p


@triton.jit
def raised(b_t, b_f, b_g, a1, R: tl.constexpr):
    """Newton's step on the r-norm: it never passes the threshold from below. f = sum w^r, g = sum w^(r - 1)."""
    if R == 1:
        b_step = (b_f - 1) / b_g
    elif R == 2:
        b_step = (b_f - tl.sqrt(b_f)) / b_g
    else:
        b_step = (b_f - tl.exp2((1 - a1) * tl.log2(tl.maximum(b_f, 1.0)))) / b_g
    return tl.where(b_f > 1, b_t + b_step, b_t)


@triton.jit
def last_error(tolerance, a1, LEARNED: tl.constexpr):
    """How far the sum of weights may be from 1 before the last of Newton's steps, which squares it for alpha <= 1.5."""
    if LEARNED:
        tolerance = tl.where(a1 <= 0.5, 1e-3, tolerance)
    return tolerance


@triton.jit
def row_top(b_u):
    """The maximum of each row; NaN where there is one."""
    if INTERPRETED:
        b_top = tl.where(tl.sum((b_u != b_u).to(tl.int32), 1) > 0, float("nan"), tl.max(b_u, 1))
    else:
        b_top = tl.reduce(b_u, 1, _larger)
    return b_top


@triton.jit
def larger(b_x, b_y):
    """The larger one; NaN where one is NaN."""
    if INTERPRETED:
        b_z = tl.where((b_x != b_x) | (b_y != b_y), float("nan"), tl.maximum(b_x, b_y))
    else:
        b_z = tl.maximum(b_x, b_y, propagate_nan=tl.PropagateNan.ALL)
    return b_z


@triton.jit
def _larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def load_rows(p_x, o_m, o_d, m_rows, stride_l, D: tl.constexpr, BD: tl.constexpr):
    """Rows o_m of a matrix with D columns, as (rows, BD)."""
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
def sink_units(p_sink, a1, BM: tl.constexpr, SINKS: tl.constexpr):
    """u of the sink for each row, -inf where there is none."""
    if SINKS:
        b_sink = tl.zeros((BM,), tl.float32) + tl.load(p_sink).to(tl.float32) * a1
    else:
        b_sink = tl.full((BM,), float("-inf"), tl.float32)
    return b_sink


@triton.jit
def alpha_slope(b_w, a1):
    """The derivative of p^(alpha - 1) / (alpha - 1) in alpha, where p^(alpha - 1) = w."""
    return tl.where(b_w > 0, b_w * (tl.log(tl.where(b_w > 0, b_w, 1.0)) - 1) / (a1 * a1), 0.0)


@triton.jit
def row_states(p_seed, o_row):
    """A number of 32 bits for each row, counted over all batches and heads: see dropout.py."""
    seed = tl.load(p_seed)
    b_row = o_row.to(tl.int64)
    b_state = _mixed(_mixed((seed >> 32).to(tl.uint32)) ^ seed.to(tl.uint32))
    return _mixed(_mixed(b_state ^ (b_row >> 32).to(tl.uint32)) ^ b_row.to(tl.uint32))


@triton.jit
def kept(b_state, b_key, drop):
    """1 / (1 - rate) for weights (rows, keys) that are kept, 0 for others; b_key is (1, keys) or (rows, keys)."""
    b_drawn = _mixed(b_state[:, None] ^ _mixed(b_key.to(tl.uint32))) >> 8
    return tl.where(b_drawn.to(tl.int32) >= drop, 1 / (1 - drop * 5.9604644775390625e-08), 0.0)


@triton.jit
def _mixed(b_x):
    b_x = b_x ^ (b_x >> 16)
    b_x = b_x * 0x7FEB352D
    b_x = b_x ^ (b_x >> 15)
    b_x = b_x * 0x846CA68B
    return b_x ^ (b_x >> 16)
