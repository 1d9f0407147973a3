"""Sums of rows of a matrix by lists: gradients of hidden states and of words, for Triton."""

import triton
import triton.language as tl


@triton.jit
def gathered_sum(b_sum, p_x, o_rows, b_c, o_d, m_d, stride):
    """Return b_sum (BD,) + the sum of c rows of x; rows with coefficient 0 are not read."""
    p_entry = p_x + o_rows.to(tl.int64)[:, None] * stride + o_d[None, :]
    b_x = tl.load(p_entry, mask=(b_c != 0)[:, None] & m_d[None, :], other=0.0)
    return b_sum + tl.sum(b_c[:, None] * b_x.to(b_c.dtype), 0)


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
    longest, h_stride, d,
    ADDED: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the gradient of each word: the sum of its rows' hidden states, times their coefficients, in order."""
    i_w = tl.program_id(0).to(tl.int64)
    i_d = tl.program_id(1)
    o_d = i_d * BD + tl.arange(0, BD)
    m_d = o_d < d
    begin, end = tl.load(p_starts + i_w), tl.load(p_starts + i_w + 1)
    if ADDED:
        b_sum = tl.load(p_dw + i_w * d + o_d, mask=m_d & (end > begin), other=0.0).to(p_coefs.dtype.element_ty)
    else:
        b_sum = tl.zeros((BD,), p_coefs.dtype.element_ty)
    b_total = tl.zeros((BR,), p_coefs.dtype.element_ty)
    for j in range(begin, end, BR):
        o_j = j + tl.arange(0, BR)
        o_entry = tl.load(p_order + o_j, mask=o_j < end, other=0)
        b_c = tl.load(p_coefs + o_entry, mask=o_j < end, other=0.0)
        b_sum = gathered_sum(b_sum, p_h, o_entry // longest, b_c, o_d, m_d, h_stride)
        b_total += b_c
    # most words have no entry: skip the addition
    if ADDED:
        m_d &= end > begin
    tl.store(p_dw + i_w * d + o_d, b_sum.to(p_dw.dtype.element_ty), mask=m_d)
    if (i_d == 0) & (end > begin):
        tl.store(p_db + i_w, tl.load(p_db + i_w) + tl.sum(b_total))
