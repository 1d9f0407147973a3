"""Blocks of logits to lists of candidates, a program for each row, for Triton."""

import triton
import triton.language as tl

from polymax.kernels.linear_loss.cuda_power import capped_scores, load_scores, newton_step, powers

FLAT = tl.constexpr(-1)
# if a row has more candidates in this block than fit into its list of length n, the length is set to AGAIN - n
AGAIN = tl.constexpr(-2)
# added to the length of a list that has new entries
NEW = tl.constexpr(1 << 20)
# most steps of a bound, and the increase that ends them
STEPS = tl.constexpr(10)
SMALL = tl.constexpr(0.02)


@triton.jit
def lowest(t):
    """Return a bound lowered by a margin for rounding."""
    return t - 1e-5 - 1e-6 * tl.abs(t)


@triton.jit
def pick_words(
    p_x, p_bias, p_named, p_chosen,
    first, words, softcap, scale, k,
    BIAS: tl.constexpr, CAP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write the scores of the named words of a row that are in the block."""
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_n = tl.load(p_named + i_r * k + o_k, mask=o_k < k, other=-1) - first
    m_k = (o_n >= 0) & (o_n < words)
    b_x = tl.load(p_x + i_r * words + o_n, mask=m_k, other=0.0)
    if BIAS:
        b_x += tl.load(p_bias + o_n, mask=m_k, other=0.0)
    tl.store(p_chosen + i_r * k + o_k, scale * capped_scores(b_x, softcap, CAP), mask=m_k)


@triton.jit
def add_exponentials(
    p_x, p_bias, p_top, p_total, p_moment,
    words, softcap, scale,
    BIAS: tl.constexpr, CAP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add exp u and u exp u of the block to the sums of a row, u being the score less the largest score so far."""
    i_r = tl.program_id(0).to(tl.int64)
    p_x += i_r * words
    b_top = tl.load(p_top + i_r)
    b_total = tl.load(p_total + i_r)
    b_moment = tl.load(p_moment + i_r)
    for i_n in range(0, words, BN):
        b_x = scale * load_scores(p_x, p_bias, i_n + tl.arange(0, BN), words, softcap, BIAS, CAP)
        b_old = b_top
        b_top = tl.maximum(b_old, tl.max(b_x, 0))
        b_at = tl.where((b_top > float("-inf")) & (b_top < float("inf")), b_top, 0)
        b_u = b_x - b_at
        b_e = tl.exp(b_u)
        b_moved = tl.where(b_old > float("-inf"), b_old - b_at, 0)
        b_kept = tl.where(b_old > float("-inf"), tl.exp(b_moved), 0)
        b_moment = b_kept * (b_moment + b_moved * b_total) + tl.sum(tl.where(b_e > 0, b_e * b_u, 0), 0)
        b_total = b_kept * b_total + tl.sum(b_e, 0)
    tl.store(p_top + i_r, b_top)
    tl.store(p_total + i_r, b_total)
    tl.store(p_moment + i_r, b_moment)


@triton.jit
def keep_rows(
    p_x, p_bias, p_reference, p_out,
    words, softcap, scale,
    BIAS: tl.constexpr, CAP: tl.constexpr, REFERENCE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the scores of a block, less the reference of their row."""
    i_r = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    b_x = scale * load_scores(p_x + i_r * words, p_bias, o_n, words, softcap, BIAS, CAP)
    if REFERENCE:
        b_x -= tl.load(p_reference + i_r)
    tl.store(p_out + i_r * words + o_n, b_x.to(p_out.dtype.element_ty), mask=o_n < words)


@triton.jit
def scan_rows(
    p_x, p_bias, p_count, p_ids, p_values, p_bound,
    first, words, a, softcap, size,
    BIAS: tl.constexpr, CAP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add the logits of a block above a row's bound to the row's list, if they fit."""
    i_r = tl.program_id(0).to(tl.int64)
    n_old = tl.load(p_count + i_r)
    if n_old >= 0:
        p_x += i_r * words
        b_low = lowest(tl.load(p_bound + i_r)) / a
        n_all = n_old
        b_next = load_scores(p_x, p_bias, tl.arange(0, BN), words, softcap, BIAS, CAP)
        for i_n in range(0, words, BN):
            o_n = i_n + tl.arange(0, BN)
            b_x = b_next
            # read ahead, while this part is compared
            b_next = load_scores(p_x, p_bias, o_n + BN, words, softcap, BIAS, CAP)
            # comparisons with NaN are False, so that a NaN is listed
            m_new = (b_x <= b_low) == 0
            n_new = tl.sum(m_new.to(tl.int32))
            if n_new > 0:
                o_new = n_all + tl.cumsum(m_new.to(tl.int32), 0) - 1
                m_fits = m_new & (o_new < size)
                tl.store(p_values + i_r * size + o_new, b_x, mask=m_fits)
                tl.store(p_ids + i_r * size + o_new, first + o_n, mask=m_fits)
                n_all += n_new
        if n_all != n_old:
            tl.store(p_count + i_r, tl.where(n_all > size, AGAIN - n_old, n_all + NEW))


@triton.jit
def settle_rows(
    p_x, p_bias, p_count, p_ids, p_values, p_top, p_bound,
    first, words, a, softcap, size,
    R: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Raise the bound of a row by its list, and drop entries below the bound from the list.

    A row whose list overflowed, as at the first block, is scanned again, and its bound raised by all logits of the
    block before entries are listed. A list without new entries stays as it is.
    """
    i_r = tl.program_id(0).to(tl.int64)
    n_all = tl.load(p_count + i_r)
    fresh = (n_all <= AGAIN) | (n_all >= NEW)
    b_t = tl.load(p_bound + i_r)
    p_x += i_r * words
    p_values += i_r * size
    p_ids += i_r * size
    if n_all <= AGAIN:
        n_all = AGAIN - n_all
        for i_n in range(0, words, BN):
            o_n = i_n + tl.arange(0, BN)
            b_x = load_scores(p_x, p_bias, o_n, words, softcap, BIAS, CAP)
            b_u = a * b_x
            m_new = (b_u <= lowest(b_t)) == 0
            n_new = tl.sum(m_new.to(tl.int32))
            if (n_new > 0) & (n_all >= 0):
                if n_all + n_new > size:
                    n_all, b_t = _raise_and_add(
                        b_x, b_u, b_t, n_all, first + o_n, p_values, p_ids, a, size, R, BK
                    )  # fmt: skip
                else:
                    o_new = n_all + tl.cumsum(m_new.to(tl.int32), 0) - 1
                    tl.store(p_values + o_new, b_x, mask=m_new)
                    tl.store(p_ids + o_new, first + o_n, mask=m_new)
                    n_all += n_new
        tl.debug_barrier()
        tl.store(p_count + i_r, n_all)
    elif fresh:
        n_all -= NEW
    if fresh & (n_all > 0):
        r = 1 / a
        o_k = tl.arange(0, BK)
        m_k = o_k < n_all
        b_v = tl.load(p_values + o_k, mask=m_k, other=float("-inf"))
        o_j = tl.load(p_ids + o_k, mask=m_k, other=0)
        b_s = a * b_v
        b_top = tl.maximum(tl.load(p_top + i_r), tl.max(b_v, 0))
        b_t = tl.maximum(b_t, a * b_top - 1)
        go = 1
        turn = 0
        while go > 0:
            b_low, b_high = powers(tl.maximum(b_s - b_t, 0.0), r, R)
            b_step = tl.maximum(newton_step(tl.sum(b_high), tl.sum(b_low), a, R), 0.0)
            b_t += b_step
            turn += 1
            go = (b_step > SMALL).to(tl.int32) * (turn < STEPS).to(tl.int32)
        m_old = m_k & (b_s > lowest(b_t))
        bad = tl.max((b_v != b_v).to(tl.int32), 0)
        n_kept = tl.where(bad > 0, FLAT, tl.sum(m_old.to(tl.int32)))
        tl.debug_barrier()
        if n_kept < n_all:
            o_old = tl.cumsum(m_old.to(tl.int32), 0) - 1
            tl.store(p_values + o_old, b_v, mask=m_old)
            tl.store(p_ids + o_old, o_j, mask=m_old)
        tl.store(p_count + i_r, n_kept)
        tl.store(p_top + i_r, b_top)
        tl.store(p_bound + i_r, b_t)


@triton.jit
def _raise_and_add(b_x, b_u, b_t, n_old, o_word, p_values, p_ids, a, size, R: tl.constexpr, BK: tl.constexpr):
    """Return the length of a list and the bound after both the list and new logits have raised it."""
    r = 1 / a
    o_k = tl.arange(0, BK)
    # other threads may have written entries of the list
    tl.debug_barrier()
    b_v = tl.load(p_values + o_k, mask=o_k < n_old, other=float("-inf"))
    o_j = tl.load(p_ids + o_k, mask=o_k < n_old, other=0)
    b_s = a * b_v
    b_t = tl.maximum(b_t, a * tl.max(b_x, 0) - 1)
    go = 1
    turn = 0
    while go > 0:
        b_low, b_high = powers(tl.maximum(b_u - b_t, 0.0), r, R)
        b_low_k, b_high_k = powers(tl.maximum(b_s - b_t, 0.0), r, R)
        b_step = newton_step(tl.sum(b_high) + tl.sum(b_high_k), tl.sum(b_low) + tl.sum(b_low_k), a, R)
        b_step = tl.maximum(b_step, 0.0)
        b_t += b_step
        turn += 1
        go = (b_step > SMALL).to(tl.int32) * (turn < STEPS).to(tl.int32)
    m_old = b_s > lowest(b_t)
    m_new = (b_u <= lowest(b_t)) == 0
    n_kept = tl.sum(m_old.to(tl.int32))
    n_all = n_kept + tl.sum(m_new.to(tl.int32))
    o_old = tl.cumsum(m_old.to(tl.int32), 0) - 1
    o_new = n_kept + tl.cumsum(m_new.to(tl.int32), 0) - 1
    bad = tl.max((b_x != b_x).to(tl.int32), 0)
    n_all = tl.where((n_all > size) | (bad > 0), FLAT, n_all)
    m_fits = n_all >= 0
    # entries move to the front of the list, after all threads have read theirs
    tl.debug_barrier()
    tl.store(p_values + o_old, b_v, mask=m_old & m_fits)
    tl.store(p_ids + o_old, o_j, mask=m_old & m_fits)
    tl.store(p_values + o_new, b_x, mask=m_new & m_fits)
    tl.store(p_ids + o_new, o_word, mask=m_new & m_fits)
    tl.debug_barrier()
    return n_all, b_t
