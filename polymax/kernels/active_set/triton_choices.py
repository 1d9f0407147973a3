"""The choices of dynamic programs for Triton: of equal ones the first, and NaN is never chosen."""

import triton
import triton.language as tl


@triton.jit
def none_of(BI: tl.constexpr, BK: tl.constexpr):
    """Return the initial value of a tile of rows and their choices: values -inf, and choices 0."""
    return tl.full([BI, BK], float("-inf"), tl.float64), tl.zeros([BI, BK], tl.int32)


@triton.jit
def better_of(b_best, b_from, b_new, o_new):
    """Return the entrywise better of the values so far and new values, with the numbers of their choices."""
    m_new = b_new > b_best
    return tl.where(m_new, b_new, b_best), tl.where(m_new, o_new, b_from)


@triton.jit
def best_of(b_best, b_from):
    """Return the best score of each row, and the first choice that has it."""
    b_top = tl.max(b_best, 1)
    return b_top, tl.min(tl.where(b_best == b_top[:, None], b_from, 2**30), 1)


@triton.jit
def best_labels(p_x, p_value, p_label, cells, labels, BS: tl.constexpr, BL: tl.constexpr):
    """Write the best score of each cell, of x (cells, labels), and the label that has it."""
    for start in range(0, cells, BS):
        o_s = start + tl.arange(0, BS)
        b_best, b_from = none_of(BS, BL)
        for first in range(0, labels, BL):
            o_l = first + tl.arange(0, BL)[None, :]
            m_x = (o_s < cells)[:, None] & (o_l < labels)
            b_x = tl.load(p_x + o_s[:, None] * labels + o_l, mask=m_x, other=float("-inf"))
            b_best, b_from = better_of(b_best, b_from, b_x, o_l)
        b_top, b_label = best_of(b_best, b_from)
        tl.store(p_value + o_s, b_top, mask=o_s < cells)
        tl.store(p_label + o_s, b_label, mask=o_s < cells)
