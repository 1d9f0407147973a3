"""Sums over the paths of a transducer with durations for Triton: a program per instance, a lane per number of tokens.

At step s lane u is at frame s - u. Lanes read the values of former steps from the chart. Values are float64; only
differences are exponentiated, in the precision of the scores. The general hypergraph handles other smoothings, the
tangent, and more tokens.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.function import keep_tensors
from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.duration_transducer import chart_like
from polymax.kernels.duration_transducer.reference import general

# entries (lane, duration) that a program holds at a time
LARGEST = 8192


def fits(duration: Tensor, alpha: float) -> bool:
    """Return True if these kernels support a problem."""
    lanes, steps = ceil_power(duration.shape[2]), ceil_power(duration.shape[3])
    return alpha == 1 and lanes * steps <= LARGEST and duration.numel() > 0


def duration_transducer_inside(*args: Any) -> tuple[Tensor, Tensor]:
    given, (durations, alpha) = args[:5], args[5:]
    blank, duration = given[0], given[2]
    chart = chart_like(blank)
    if not fits(duration, alpha):
        return general.inside(*given, durations, alpha), chart
    value = torch.empty(blank.shape[0], dtype=blank.dtype, device=blank.device)
    tensors = (t.contiguous() for t in given)
    with on_device(blank):
        steps = _steps(tuple(durations), blank.device)
        args = *tensors, steps, value, chart, *blank.shape[1:], len(durations)
        _inside[(blank.shape[0],)](*args, **_sizes(duration))
    return value, chart


def duration_transducer_outside(*args: Any) -> tuple[Tensor, ...]:
    given, (chart, g, durations, alpha) = args[:5], args[5:]
    blank, duration = given[0], given[2]
    if not fits(duration, alpha):
        return tuple(t.contiguous() for t in general.outside(*given, durations, g, alpha))
    out = tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in given[:3])
    # the sums over paths from each cell to the end, on the lines of the chart
    after = torch.empty_like(chart)
    tensors = (t.contiguous() for t in (*given, chart, after, g))
    with on_device(blank):
        steps = _steps(tuple(durations), blank.device)
        args = *tensors, steps, *out, *blank.shape[1:], len(durations)
        _outside[(blank.shape[0],)](*args, **_sizes(duration))
    return out


def duration_transducer_tangent(*args: Any) -> tuple[Tensor, ...]:
    given, (_, g, *along), (durations, alpha) = args[:5], args[5:-2], args[-2:]
    value, *parts = general.tangent(*given, durations, g, *along, alpha)
    return value, *(t.contiguous() for t in parts)


@keep_tensors(64)
def _steps(durations: tuple[int, ...], device: torch.device) -> Tensor:
    steps = torch.empty(len(durations), dtype=torch.int32, device=device)
    # a copy from the host cannot be recorded in a CUDA graph
    for i, d in enumerate(durations):
        steps[i].fill_(d)
    return steps


def _sizes(duration):
    lanes, steps = ceil_power(duration.shape[2]), ceil_power(duration.shape[3])
    warps = min(max(lanes * steps // 128, 1), 16)
    return {"BU": lanes, "BD": steps, "WIDE": duration.dtype == torch.float64, "num_warps": warps}


@triton.jit
def _scores(p_blank, p_label, p_duration, s, frames, tokens, states, count, b_d, o_i, o_u):
    """Return the scores of the blanks and of the tokens that lead to the cells of step s, (BU, BD); else -inf."""
    b_t = s - o_u[:, None] - b_d[None, :]
    b_on = (b_t >= 0) & (s - o_u < frames)[:, None] & (o_u <= tokens)[:, None] & (o_i < count)[None, :]
    m_blank = b_on & (b_d > 0)[None, :]
    m_label = b_on & (o_u > 0)[:, None]
    o_cell = b_t * states + o_u[:, None]
    b_blank = tl.load(p_blank + o_cell, mask=m_blank, other=float("-inf")).to(tl.float64)
    b_blank += tl.load(p_duration + o_cell * count + o_i[None, :], mask=m_blank, other=0.0).to(tl.float64)
    b_label = tl.load(p_label + o_cell - b_t - 1, mask=m_label, other=float("-inf")).to(tl.float64)
    b_label += tl.load(p_duration + (o_cell - 1) * count + o_i[None, :], mask=m_label, other=0.0).to(tl.float64)
    return b_blank, b_label


@triton.jit
def _log_sum(b_x, b_y, WIDE: tl.constexpr):
    """Return the log of the sum of exponentials of both tiles for each lane; -inf without a term, NaN with a NaN."""
    b_top = tl.maximum(tl.max(b_x, 1), tl.max(b_y, 1))
    b_base = tl.where(b_top > float("-inf"), b_top, 0.0)
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    b_sum = tl.sum(tl.exp((b_x - b_base[:, None]).to(dtype)) + tl.exp((b_y - b_base[:, None]).to(dtype)), 1)
    b_none = b_sum == 0
    return tl.where(b_none, float("-inf"), b_base + tl.log(tl.where(b_none, 1.0, b_sum)).to(tl.float64))


@Entry
@triton.jit
def _inside(
    p_blank,
    p_label,
    p_duration,
    p_frames,
    p_tokens,
    p_steps,
    p_value,
    p_chart,
    n,
    states,
    count,
    BU: tl.constexpr,
    BD: tl.constexpr,
    WIDE: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    frames = tl.load(p_frames + i_b).to(tl.int32)
    tokens = tl.load(p_tokens + i_b).to(tl.int32)
    p_blank += i_b * n * states
    p_label += i_b * n * (states - 1)
    p_duration += i_b * n * states * count
    p_chart += i_b * (n + states) * states
    o_u, o_i = tl.arange(0, BU), tl.arange(0, BD)
    b_d = tl.load(p_steps + o_i, mask=o_i < count, other=0)
    if frames > 0:
        b_blank, b_label = _scores(p_blank, p_label, p_duration, 0, frames, tokens, states, count, b_d, o_i, o_u)
        for s in range(frames + tokens):
            # load the scores of the next step while this step is computed
            after = _scores(p_blank, p_label, p_duration, s + 1, frames, tokens, states, count, b_d, o_i, o_u)
            b_t = s - o_u
            m_d = (b_t >= 0)[:, None] & (b_t[:, None] >= b_d[None, :]) & (b_t < frames)[:, None]
            m_d = m_d & (o_u <= tokens)[:, None] & (o_i < count)[None, :]
            m_blank = m_d & (b_d > 0)[None, :]
            m_label = m_d & (o_u > 0)[:, None]
            p_line = p_chart + (s - b_d[None, :]) * states + o_u[:, None]
            b_x = b_blank + tl.load(p_line, mask=m_blank, other=float("-inf"))
            b_y = b_label + tl.load(p_line - states - 1, mask=m_label, other=float("-inf"))
            b_a = _log_sum(b_x, b_y, WIDE)
            b_a = tl.where((s == 0) & (o_u == 0), 0.0, b_a)
            tl.store(p_chart + s * states + o_u, b_a, mask=(b_t >= 0) & (b_t < frames) & (o_u <= tokens))
            # other threads read these values at the next steps
            tl.debug_barrier()
            b_blank, b_label = after
        # the last blank leads to the end of the frames
        b_t = frames - b_d
        m_end = (b_d > 0) & (b_t >= 0) & (o_i < count)
        b_x = tl.load(p_chart + (b_t + tokens) * states + tokens, mask=m_end, other=float("-inf"))
        o_cell = b_t * states + tokens
        b_x += tl.load(p_blank + o_cell, mask=m_end, other=0.0).to(tl.float64)
        b_x += tl.load(p_duration + o_cell * count + o_i, mask=m_end, other=0.0).to(tl.float64)
        b_none = tl.full([1, BD], float("-inf"), tl.float64)
        value = tl.sum(_log_sum(b_x[None, :], b_none, WIDE), 0)
        tl.store(p_value + i_b, value)
        tl.store(p_chart + (n + states - 1) * states, value)
    else:
        tl.store(p_value + i_b, 0.0)


@Entry
@triton.jit
def _outside(
    p_blank,
    p_label,
    p_duration,
    p_frames,
    p_tokens,
    p_chart,
    p_after,
    p_g,
    p_steps,
    p_dblank,
    p_dlabel,
    p_dduration,
    n,
    states,
    count,
    BU: tl.constexpr,
    BD: tl.constexpr,
    WIDE: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    frames = tl.load(p_frames + i_b).to(tl.int32)
    tokens = tl.load(p_tokens + i_b).to(tl.int32)
    p_chart += i_b * (n + states) * states
    p_after += i_b * (n + states) * states
    o_u, o_i = tl.arange(0, BU), tl.arange(0, BD)
    b_d = tl.load(p_steps + o_i, mask=o_i < count, other=0)
    value = tl.load(p_chart + (n + states - 1) * states, mask=frames > 0, other=float("-inf"))
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    if value != float("-inf"):
        g = tl.load(p_g + i_b).to(dtype)
        for back in range(frames + tokens):
            s = frames + tokens - 1 - back
            b_t = s - o_u
            m_u = (b_t >= 0) & (b_t < frames) & (o_u <= tokens)
            o_cell = i_b * n * states + b_t * states + o_u
            o_label = i_b * n * (states - 1) + b_t * (states - 1) + o_u
            m_d = m_u[:, None] & (o_i < count)[None, :]
            b_blank = tl.load(p_blank + o_cell, mask=m_u, other=0.0).to(tl.float64)
            b_label = tl.load(p_label + o_label, mask=m_u & (o_u < tokens), other=0.0).to(tl.float64)
            o_long = o_cell[:, None] * count + o_i[None, :]
            b_long = tl.load(p_duration + o_long, mask=m_d, other=0.0).to(tl.float64)
            b_to = b_t[:, None] + b_d[None, :]
            b_last = (o_u == tokens)[:, None] & (b_to == frames)
            m_blank = m_d & (b_d > 0)[None, :] & (b_to < frames)
            m_label = m_d & (o_u < tokens)[:, None] & (b_to < frames)
            p_line = p_after + (s + b_d[None, :]) * states + o_u[:, None]
            b_x = tl.load(p_line, mask=m_blank, other=float("-inf"))
            b_x = tl.where(b_last & m_d & (b_d > 0)[None, :], 0.0, b_x) + b_blank[:, None] + b_long
            b_x = tl.where(m_blank | (b_last & m_d & (b_d > 0)[None, :]), b_x, float("-inf"))
            b_y = tl.load(p_line + states + 1, mask=m_label, other=float("-inf")) + b_label[:, None] + b_long
            b_y = tl.where(m_label, b_y, float("-inf"))
            p_here = s * states + o_u
            tl.store(p_after + p_here, _log_sum(b_x, b_y, WIDE), mask=m_u)
            b_here = tl.load(p_chart + p_here, mask=m_u, other=float("-inf"))[:, None] - value
            # -inf less infinite values would be NaN
            m_x = (b_here != float("-inf")) & (b_x != float("-inf"))
            m_y = (b_here != float("-inf")) & (b_y != float("-inf"))
            b_x = tl.where(m_x, tl.exp((b_here + b_x).to(dtype)), 0.0)
            b_y = tl.where(m_y, tl.exp((b_here + b_y).to(dtype)), 0.0)
            tl.store(p_dblank + o_cell, g * tl.sum(b_x, 1), mask=m_u)
            tl.store(p_dlabel + o_label, g * tl.sum(b_y, 1), mask=m_u & (o_u < tokens))
            tl.store(p_dduration + o_long, g * (b_x + b_y), mask=m_d)
            # other threads read these values at the next steps
            tl.debug_barrier()
