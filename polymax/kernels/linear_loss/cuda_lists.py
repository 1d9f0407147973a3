"""Weights of lists, and sums of rows of a matrix by lists: gradients of hidden states and of words, for Triton."""

import triton
import triton.language as tl

from polymax.kernels.linear_loss.cuda_power import newton_step, powers


@triton.jit
def gathered_sum(b_sum, p_x, o_rows, b_c, o_d, m_d, stride):
    """Return b_sum (BD,) + the sum of c rows of x; rows with coefficient 0 are not read."""
    p_entry = p_x + o_rows.to(tl.int64)[:, None] * stride + o_d[None, :]
    b_x = tl.load(p_entry, mask=(b_c != 0)[:, None] & m_d[None, :], other=0.0)
    return b_sum + tl.sum(b_c[:, None] * b_x.to(b_c.dtype), 0)


@triton.jit
def finish_lists(
    p_count, p_values, p_top, p_counted, p_value, p_tau, p_probs, p_extent,
    size, alpha,
    R: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write the smoothed maximum of a row's list, its threshold, its weights, and the largest logit; add to the extent.

    The length of a list becomes FLAT if the row must be computed as a whole, and 0 if it does not count.
    """
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    a = alpha - 1
    b_top = tl.load(p_top + i_r)
    n = tl.load(p_count + i_r)
    counted = tl.load(p_counted + i_r) != 0
    # a row without a candidate has no finite logit: rows with NaN or infinities are computed as whole rows
    finite = (b_top > float("-inf")) & (b_top < float("inf"))
    listed = counted & finite & (n >= 1)
    b_top = tl.where(finite, b_top, 0)
    m_k = (o_k < n) & listed
    b_x = tl.load(p_values + i_r * size + o_k, mask=m_k, other=float("-inf"))
    b_z = a * (b_x - b_top)
    b_t = tl.where(listed, -1.0, 0.0)
    go = listed.to(tl.int32)
    turn = 0
    while go > 0:
        b_low, b_high = powers(tl.maximum(b_z - b_t, 0.0), 1 / a, R)
        b_next = b_t + tl.maximum(newton_step(tl.sum(b_high, 0), tl.sum(b_low, 0), a, R), 0.0)
        turn += 1
        go = (b_next > b_t).to(tl.int32) * (turn < 40).to(tl.int32)
        b_t = b_next
    _, b_high = powers(tl.maximum(b_z - b_t, 0.0), 1 / a, R)
    b_p = tl.where(m_k, b_high / tl.where(listed, tl.sum(b_high, 0), 1), 0)
    b_most = tl.max(b_p, 0)
    if R == 1:
        b_tau = 0 - b_most
    elif R == 2:
        b_tau = 0 - tl.sqrt(b_most)
    else:
        b_tau = 0 - tl.exp2(a * tl.log2(tl.where(listed, b_most, 1)))
    b_value = tl.sum(tl.where(b_p > 0, b_p * b_z, 0), 0) / alpha + (b_tau + 1) / (alpha * a)
    tl.store(p_probs + i_r * size + o_k, b_p, mask=o_k < size)
    tl.store(p_top + i_r, b_top)
    tl.store(p_value + i_r, tl.where(listed, b_value, 0))
    tl.store(p_tau + i_r, b_tau)
    flat = counted & (listed == 0)
    tl.store(p_count + i_r, tl.where(flat, -1, tl.where(listed, n, 0)))
    tl.atomic_add(p_extent, flat.to(tl.int32), sem="relaxed")
    tl.atomic_max(p_extent + 1, tl.where(listed, n, 0), sem="relaxed")


@triton.jit
def write_entries(
    p_named, p_chosen, p_ids, p_probs, p_value, p_count, p_words, p_coefs, p_keys, p_sizes,
    k, size, longest, vocabulary,
    BK: tl.constexpr,
):  # fmt: skip
    """Write the words of a row that have a gradient, named words first, the gradients of their logits, and keys."""
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    n = tl.maximum(tl.load(p_count + i_r), 0)
    m_named = o_k < k
    m_listed = (o_k >= k) & (o_k < k + n)
    o_word = tl.load(p_named + i_r * k + o_k, mask=m_named, other=0).to(tl.int32)
    o_word = tl.maximum(o_word, 0)
    o_word = tl.where(m_listed, tl.load(p_ids + i_r * size + o_k - k, mask=m_listed, other=0), o_word)
    b_c = tl.load(p_value + i_r) * tl.load(p_probs + i_r * size + o_k - k, mask=m_listed, other=0.0)
    b_c = tl.where(m_named, tl.load(p_chosen + i_r * k + o_k, mask=m_named, other=0.0), b_c)
    m_all = o_k < k + longest
    o_out = i_r * (k + longest) + o_k
    tl.store(p_words + o_out, o_word, mask=m_all)
    tl.store(p_coefs + o_out, b_c, mask=m_all)
    tl.store(p_keys + o_out, tl.where((m_named | m_listed) & (b_c != 0), o_word, vocabulary), mask=m_all)
    tl.store(p_sizes + i_r, n + k)


@triton.jit
def add_rows(
    p_words, p_coefs, p_sizes, p_w, p_out,
    longest, w_stride, d,
    BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the sum of the weights of each row's words, times their coefficients."""
    i_r = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m_d = o_d < d
    n = tl.load(p_sizes + i_r)
    b_sum = tl.zeros((BD,), p_coefs.dtype.element_ty)
    for j in range(0, n, BR):
        o_j = j + tl.arange(0, BR)
        b_c = tl.load(p_coefs + i_r * longest + o_j, mask=o_j < n, other=0.0)
        o_word = tl.load(p_words + i_r * longest + o_j, mask=o_j < n, other=0)
        b_sum = gathered_sum(b_sum, p_w, o_word, b_c, o_d, m_d, w_stride)
    tl.store(p_out + i_r * d + o_d, b_sum.to(p_out.dtype.element_ty), mask=m_d)


@triton.jit
def add_columns(
    p_starts, p_order, p_coefs, p_h, p_dw, p_db,
    longest, size, h_stride, d,
    ADDED: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the gradient of each word: the sum of its rows' hidden states, times their coefficients, in order.

    A place in `order` is among `longest` of each row, whose coefficients are `size` apart.
    """
    i_w = tl.program_id(0).to(tl.int64)
    i_d = tl.program_id(1)
    o_d = i_d * BD + tl.arange(0, BD)
    m_d = o_d < d
    begin, end = tl.load(p_starts + i_w), tl.load(p_starts + i_w + 1)
    if ADDED:
        b_sum = tl.load(p_dw + i_w * d + o_d, mask=m_d & (end > begin), other=0.0).to(p_coefs.dtype.element_ty)
    else:
        b_sum = tl.zeros((BD,), p_coefs.dtype.element_ty)
    b_total = tl.sum(b_sum * 0, 0)
    # most words have few entries, one after another; some have very many
    whole = begin + (end - begin) // BR * BR
    for j in range(begin, whole, BR):
        o_entry = tl.load(p_order + j + tl.arange(0, BR))
        o_row = o_entry // longest
        b_c = tl.load(p_coefs + o_row * (size - longest) + o_entry)
        b_sum = gathered_sum(b_sum, p_h, o_row, b_c, o_d, m_d, h_stride)
        b_total += tl.sum(b_c, 0)
    for j in range(whole, end):
        i_entry = tl.load(p_order + j)
        i_row = i_entry // longest
        b_c = tl.load(p_coefs + i_row * (size - longest) + i_entry)
        b_sum += b_c * tl.load(p_h + i_row.to(tl.int64) * h_stride + o_d, mask=m_d, other=0.0).to(b_c.dtype)
        b_total += b_c
    # most words have no entry: skip the addition
    if ADDED:
        m_d &= end > begin
    tl.store(p_dw + i_w * d + o_d, b_sum.to(p_dw.dtype.element_ty), mask=m_d)
    if (i_d == 0) & (end > begin):
        tl.store(p_db + i_w, tl.load(p_db + i_w) + b_total)
