"""Lists of the keys that can be in the support of a row.

If supports are short but spread over many tiles, whole tiles are mostly zeros. A second product over the tiles of
a block marks the scores above the row's bound by bits. The bits are expanded to lists of keys, in order.
A block with a row that does not fit into its list uses tiles.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import INTERPRETED
from polymax.kernels.sparse_attention.cuda_tile import (
    BM,
    BN,
    head_start,
    heights,
    load_keys,
    load_rows,
    load_thresholds,
    part,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import exponent


@Entry
@triton.jit
def collect(
    p_q, p_k, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_bits, p_top, p_depth, p_plan, p_lists,
    q_b, q_h, q_l, k_b, k_h, k_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, longest, items, blocks, row_tiles,
    plan_head, a1, scale, softcap, left, right, offset, few,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, LONGEST: tl.constexpr, BT: tl.constexpr,
    BS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the list of each row, its length, and for each block a flag: 1 if all of its rows have a list.

    A head whose blocks all have few tiles has no lists.
    """
    o_r = tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    p_bits += tl.program_id(0).to(tl.int64) * BT * (BM * 2)
    columns = items // blocks
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        i_m = blocks - 1 - item // columns
        i_bh = item % columns
        i_h = i_bh % heads
        first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
        p_head_plan = p_plan + i_bh.to(tl.int64) * plan_head
        p_bounds = p_head_plan + blocks * row_tiles + i_m * 4
        m_listed = (i_m * BM < queries) & (tl.load(p_bounds + 3) == 1)
        if m_listed:
            m_listed = _most(p_head_plan + blocks * row_tiles, (queries + BM - 1) // BM) > few
            tl.store(p_bounds + 3, m_listed.to(tl.int32))
        if m_listed:
            o_m = i_m * BM + o_r
            m_rows = o_m < queries
            a = exponent(p_alphas + i_h, a1, LEARNED)
            p_head_q = p_q + head_start(i_b, i_h, first_q, q_b, q_h, q_l)
            p_head_k = p_k + head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
            p_head_mask = p_mask + i_b * mask_b + i_h.to(tl.int64) * mask_h
            p_tiles = p_head_plan + i_m * row_tiles
            n_before, n_whole, n_all = tl.load(p_bounds), tl.load(p_bounds + 1), tl.load(p_bounds + 2)
            o_row = (i_b * heads + i_h) * L + first_q + o_m
            b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
            b_bound = b_top - b_depth / unit(a, scale, PLAIN)
            b_q = load_rows(p_head_q, o_m, o_d, m_rows, q_l, D, BD)
            b_n = tl.zeros((BM,), tl.int32)
            for i_s in range(0, n_all, BT):
                i_e = tl.minimum(i_s + BT, n_all)
                for i_p in tl.static_range(0, 3):
                    first, last = part(n_before, n_whole, n_all, i_p)
                    _mark(
                        b_bound, b_q, p_head_k, p_head_mask, p_tiles, p_bits, k_l, mask_l, mask_s, o_m, o_r, o_d, i_s,
                        tl.maximum(i_s, first), tl.minimum(i_e, last), queries, keys, a, scale, softcap, left, right,
                        offset, MASK, CAP, PLAIN, i_p != 1, D, BD, PRECISION, STAGES,
                    )  # fmt: skip
                # other threads wrote the words that are read below
                tl.debug_barrier()
                b_n = _expand(b_n, p_bits, p_tiles + i_s, p_lists, o_row, i_e - i_s, LONGEST, BS)
                tl.debug_barrier()
            tl.store(p_head_plan + plan_head - longest + o_m, b_n, mask=m_rows)
            tl.store(p_bounds + 3, (tl.max(b_n, 0) <= LONGEST).to(tl.int32))


@triton.jit
def _most(p_bounds, blocks):
    """Return the largest number of tiles of a block of a head."""
    b_most = tl.zeros((128,), tl.int32)
    for i_m in range(0, blocks, 128):
        o_m = i_m + tl.arange(0, 128)
        b_most = tl.maximum(b_most, tl.load(p_bounds + o_m * 4 + 2, mask=o_m < blocks, other=0))
    return tl.max(b_most, 0)


@triton.jit
def _mark(
    b_bound, b_q, p_k, p_mask, p_tiles, p_bits, k_l, mask_l, mask_s, o_m, o_r, o_d, base, begin, end, queries, keys, a,
    scale, softcap, left, right, offset,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write two words of bits for each row and tile: 1 for scores above the row's bound."""
    o_bit = tl.arange(0, BN) % 32
    o_w = tl.arange(0, 2)
    for i_t in tl.range(begin, end, num_stages=STAGES):
        o_n = tl.load(p_tiles + i_t) * BN + tl.arange(0, BN)
        b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = heights(
            b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right, offset, MASK, CAP,
            PLAIN, EDGE,
        )  # fmt: skip
        b_on = tl.where(b_z > b_bound[:, None], (1 << o_bit)[None, :], 0)
        b_words = tl.reduce(tl.reshape(b_on, (BM, 2, 32)), 2, _both)
        tl.store(p_bits + (i_t - base) * (BM * 2) + o_r[:, None] * 2 + o_w[None, :], b_words)


@triton.jit
def _both(x, y):
    return x | y


@triton.jit
def _expand(b_n, p_bits, p_tiles, p_lists, o_row, n_all, LONGEST: tl.constexpr, BS: tl.constexpr):
    """Expand bits to lists of keys, as many as fit; return the length of each list, or more than LONGEST."""
    o_r = tl.arange(0, BM)
    o_w = tl.arange(0, BS * 2)
    for i_t in range(0, n_all, BS):
        if tl.max(b_n, 0) <= LONGEST:
            m_w = i_t + o_w // 2 < n_all
            i_tile = tl.load(p_tiles + i_t + o_w // 2, mask=m_w, other=0)
            p_tile = p_bits + (i_t + o_w // 2)[None, :] * (BM * 2) + o_r[:, None] * 2 + (o_w % 2)[None, :]
            b_word = tl.load(p_tile, mask=m_w[None, :] & (o_r >= 0)[:, None], other=0)
            b_count = _ones(b_word)
            o_at = b_n[:, None] + tl.cumsum(b_count, 1) - b_count
            o_first = (i_tile * BN + (o_w % 2) * 32)[None, :]
            most = tl.max(b_count)
            while most > 0:
                b_low = b_word & -b_word
                p_entry = p_lists + o_row[:, None] * LONGEST + o_at
                o_key = o_first + _ones(b_low - 1)
                tl.store(p_entry, o_key.to(p_lists.dtype.element_ty), mask=(b_word != 0) & (o_at < LONGEST))
                b_word ^= b_low
                o_at += 1
                most -= 1
            b_n += tl.sum(b_count, 1)
    return b_n


@triton.jit
def _ones(b_x):
    """Return the number of bits that are set."""
    if INTERPRETED:
        b_x = b_x.to(tl.uint32, bitcast=True)
        b_x = b_x - ((b_x >> 1) & 0x55555555)
        b_x = (b_x & 0x33333333) + ((b_x >> 2) & 0x33333333)
        b_x = (b_x + (b_x >> 4)) & 0x0F0F0F0F
        b_n = ((b_x * 0x01010101) >> 24).to(tl.int32)
    else:
        b_n = libdevice.popc(b_x)
    return b_n
