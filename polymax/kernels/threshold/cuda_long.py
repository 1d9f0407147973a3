"""Threshold for rows too long for the registers: each step reads the row again. For Triton."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.threshold.cuda_steps import (
    IS_TSALLIS,
    LOG2_E,
    coefficients,
    exponents,
    highest,
    log2_distance,
    rows_of_part,
    step,
    weights,
)


@Entry
@triton.jit
def long_forward(
    p_x,
    p_y,
    p_alpha,
    count,
    n,
    alpha,
    FAMILY: tl.constexpr,
    PER_ROW: tl.constexpr,
    WIDE: tl.constexpr,
    PART: tl.constexpr,
    BN: tl.constexpr,
):
    dtype = tl.float64 if WIDE else tl.float32
    i_r = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    m_r = rows_of_part(p_alpha, i_r, i_r < count, PART)
    o_n = tl.arange(0, BN)
    o_row = i_r[:, None] * n
    b_best = tl.full([1, BN], float("-inf"), dtype)
    b_nan = tl.zeros([1, BN], tl.int32)
    for i in range(0, n, BN):
        b_x = tl.load(
            p_x + o_row + i + o_n[None, :], mask=m_r[:, None] & (i + o_n < n)[None, :], other=float("-inf")
        ).to(dtype)
        b_best = tl.maximum(b_best, b_x)
        b_nan = b_nan | (b_x != b_x).to(tl.int32) | (b_x == float("inf")).to(tl.int32)
    b_top = tl.max(b_best, 1)[:, None]
    m_bad = tl.max(b_nan, 1)[:, None] > 0
    m_dead = b_top == float("-inf")
    b_top = tl.where(m_dead | m_bad, 0, b_top)
    b_zero = b_top * 0
    m_entropic, b_scale, b_r = exponents(p_alpha, i_r, m_r, alpha, FAMILY, PER_ROW, b_zero)
    b_low = b_zero
    b_high = highest(b_scale, n)
    b_t = b_zero
    go = (tl.max((m_dead | m_bad | m_entropic).to(tl.int32)) == 0).to(tl.int32)
    i_step = 0
    while go > 0:
        b_sums = tl.zeros([1, BN], dtype)
        b_totals = tl.zeros([1, BN], dtype)
        b_lowests = tl.zeros([1, BN], dtype)
        for i in range(0, n, BN):
            b_x = tl.load(
                p_x + o_row + i + o_n[None, :], mask=m_r[:, None] & (i + o_n < n)[None, :], other=float("-inf")
            )
            m_in, b_d, b_log = log2_distance(b_x.to(dtype) - b_top, b_t, b_scale, WIDE)
            b_p = tl.where(m_in, tl.exp2(b_log * (b_r - 2)), 0)
            b_lowests += b_p
            b_sums += b_p * b_d
            b_totals += b_p * b_d * b_d
        b_lower = tl.sum(b_sums, 1)[:, None]
        b_total = tl.sum(b_totals, 1)[:, None]
        b_lowest = tl.sum(b_lowests, 1)[:, None]
        b_guess, b_low, b_high, _ = step(b_t, b_low, b_high, b_lowest, b_lower, b_total, b_scale, b_r, FAMILY)
        b_change = tl.abs((b_guess - b_t) * b_scale)
        b_t = b_guess
        i_step += 1
        go = (tl.max(b_change) > (1e-15 if WIDE else 1e-7)).to(tl.int32) * (i_step < 70).to(tl.int32)
    b_k = b_r if FAMILY == IS_TSALLIS else b_r - 1
    b_sums = tl.zeros([1, BN], dtype)
    for i_pass in range(2):
        b_sum = tl.sum(b_sums, 1)[:, None]
        b_factor = 1 / tl.where(b_sum > 0, b_sum, 1)
        for i in range(0, n, BN):
            m_n = m_r[:, None] & (i + o_n < n)[None, :]
            b_x = tl.load(p_x + o_row + i + o_n[None, :], mask=m_n, other=float("-inf")).to(dtype)
            b_z = b_x - b_top
            m_in, b_d, b_log = log2_distance(b_z, b_t, b_scale, WIDE)
            b_y = tl.where(m_in, tl.exp2(b_log * b_k), 0)
            b_y = tl.where(m_entropic, tl.exp2(b_z * LOG2_E), b_y)
            b_y = tl.where(b_x == float("-inf"), 0, b_y)
            if i_pass == 0:
                b_sums += b_y
            else:
                b_out = tl.where(m_bad, float("nan"), b_y * b_factor)
                if p_y.dtype.element_ty != tl.float64:
                    b_out = b_out.to(tl.float32)
                tl.store(p_y + o_row + i + o_n[None, :], b_out.to(p_y.dtype.element_ty), mask=m_n)


@Entry
@triton.jit
def long_backward(
    p_y,
    p_v,
    p_out,
    p_alpha,
    count,
    n,
    alpha,
    FAMILY: tl.constexpr,
    PER_ROW: tl.constexpr,
    WIDE: tl.constexpr,
    METHOD: tl.constexpr,
    PART: tl.constexpr,
    BN: tl.constexpr,
):
    dtype = tl.float64 if WIDE else tl.float32
    i_r = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    o_n = tl.arange(0, BN)
    o_row = i_r[:, None] * n
    m_r = rows_of_part(p_alpha, i_r, i_r < count, PART)
    b_alpha = tl.zeros([1, 1], dtype) + alpha
    if PER_ROW:
        b_alpha = tl.load(p_alpha + i_r).to(dtype)[:, None]
    b_totals = tl.zeros([1, BN], dtype)
    b_wvs = tl.zeros([1, BN], dtype)
    b_yvs = tl.zeros([1, BN], dtype)
    b_norms = tl.zeros([1, BN], dtype)
    for i in range(0, n, BN):
        m_n = m_r[:, None] & (i + o_n < n)[None, :]
        b_y = tl.load(p_y + o_row + i + o_n[None, :], mask=m_n, other=0).to(dtype)
        b_v = tl.load(p_v + o_row + i + o_n[None, :], mask=m_n, other=0).to(dtype)
        b_w = weights(b_y, b_alpha, METHOD, WIDE)
        b_totals += b_w
        b_wvs += b_w * b_v
        if FAMILY != IS_TSALLIS:
            b_yvs += b_y * b_v
            b_norms += tl.where(b_w > 0, b_y * b_y / tl.where(b_w > 0, b_w, 1), 0)
    b_total = tl.sum(b_totals, 1)[:, None]
    b_wv = tl.sum(b_wvs, 1)[:, None]
    b_yv = tl.sum(b_yvs, 1)[:, None]
    b_norm = tl.sum(b_norms, 1)[:, None]
    b_a, b_b, b_c = coefficients(b_total, b_wv, b_yv, b_norm, b_alpha, FAMILY)
    for i in range(0, n, BN):
        m_n = m_r[:, None] & (i + o_n < n)[None, :]
        b_y = tl.load(p_y + o_row + i + o_n[None, :], mask=m_n, other=0).to(dtype)
        b_v = tl.load(p_v + o_row + i + o_n[None, :], mask=m_n, other=0).to(dtype)
        b_w = weights(b_y, b_alpha, METHOD, WIDE)
        b_out = tl.where(b_w == 0, 0, b_w * (b_a * b_v + b_b) + b_c * b_y)
        if p_out.dtype.element_ty != tl.float64:
            b_out = b_out.to(tl.float32)
        tl.store(p_out + o_row + i + o_n[None, :], b_out.to(p_out.dtype.element_ty), mask=m_n)
