"""The Jacobian of fusedmax: v centred on the support, and averaged over runs, if there are any."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_rows import flat_means
from polymax.kernels.fusedmax import BAD, FIRST, SAME

IS_SAME, IS_FIRST, IS_BAD = tl.constexpr(SAME), tl.constexpr(FIRST), tl.constexpr(BAD)


@Entry
@triton.jit
def marked_mean(p_mark, p_v, p_out, count, n, WIDE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    o_n = tl.arange(0, BN)[None, :]
    o_x = (i_r * n)[:, None] + o_n
    b_mark = tl.load(p_mark + o_x, mask=o_n < n, other=0).to(tl.int32)
    b_v = tl.load(p_v + o_x, mask=o_n < n, other=0).to(dtype)
    m_in = b_mark > 0
    b_size = tl.sum(m_in.to(tl.int32), 1)[:, None].to(dtype)
    b_mean = tl.sum(tl.where(m_in, b_v, 0), 1)[:, None] / tl.maximum(b_size, 1)
    m_bad = tl.max(b_mark, 1)[:, None] == IS_BAD
    b_out = tl.where(m_in, b_v - b_mean, 0)
    if tl.max((b_mark == IS_SAME).to(tl.int32)) > 0:
        # entries before the first run have no weight, and form a run of their own
        m_begins = (b_mark > IS_SAME) | (o_n == 0)
        m_ends = tl.load(p_mark + o_x + 1, mask=o_n + 1 < n, other=IS_FIRST) > IS_SAME
        b_out = tl.where(m_in, flat_means(b_out, m_in, m_begins, m_ends), 0)
    b_out = tl.where(m_bad, float("nan"), b_out)
    tl.store(p_out + o_x, b_out.to(p_out.dtype.element_ty), mask=o_n < n)
