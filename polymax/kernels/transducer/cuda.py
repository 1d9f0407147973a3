"""Sums over the paths of a transducer for Triton: one program per instance, a lane for each number of tokens.

At step d lane u is at frame d - u. Values are float64; only differences are exponentiated. The general hypergraph
handles other smoothings, and more tokens.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.alignment.cuda_steps import clear, from_above, from_below
from polymax.kernels.transducer import chart_like
from polymax.kernels.transducer.reference import general

LARGEST = 4096


def fits(blank: Tensor, alpha: float) -> bool:
    """Return True if these kernels support a problem."""
    return alpha == 1 and blank.dtype == torch.float32 and blank.shape[2] <= LARGEST and blank.numel() > 0


def transducer_inside(
    blank: Tensor, label: Tensor, frames: Tensor, tokens: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    chart = chart_like(blank)
    if not fits(blank, alpha):
        return general.inside(blank, label, frames, tokens, alpha), chart
    value = torch.empty(blank.shape[0], dtype=blank.dtype, device=blank.device)
    given = (t.contiguous() for t in (blank, label, frames, tokens))
    with on_device(blank):
        _inside[(blank.shape[0],)](*given, value, chart, *blank.shape[1:], **_sizes(blank))
    return value, chart


def transducer_outside(*args: Any) -> tuple[Tensor, ...]:
    given, (chart, g, alpha) = args[:4], args[4:]
    blank, label, frames, tokens = given
    if not fits(blank, alpha):
        return general.outside(*given, g, alpha)
    out = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (blank, label))
    tensors = (t.contiguous() for t in (frames, tokens, chart, g))
    with on_device(blank):
        _outside[(blank.shape[0],)](*tensors, *out, *blank.shape[1:], **_sizes(blank))
    return out


def transducer_tangent(*args: Any) -> tuple[Tensor, ...]:
    return general.tangent(*args[:4], *args[5:])


def _sizes(blank):
    size = ceil_power(blank.shape[2])
    return {"BU": size, "num_warps": min(max(size // 64, 1), 16)}


@triton.jit
def _scores(p_blank, p_label, d, frames, tokens, states, o_u):
    """Return the blank of the frame before and the emission of the token before, for the cells of step d; else -inf."""
    o_t = d - o_u
    b_on = (o_t >= 0) & (o_t < frames) & (o_u <= tokens)
    b_blank = tl.load(p_blank + (o_t - 1) * states + o_u, mask=b_on & (o_t > 0), other=float("-inf"))
    b_label = tl.load(p_label + o_t * (states - 1) + o_u - 1, mask=b_on & (o_u > 0), other=float("-inf"))
    return b_blank.to(tl.float64), b_label.to(tl.float64)


@triton.jit
def _weights(p_chart, d, frames, tokens, states, o_u):
    """Return the weights of both choices of the cells of step d, 0 for lanes without a cell."""
    o_t = d - o_u
    b_on = (o_t >= 0) & (o_t < frames) & (o_u <= tokens)
    p_line = p_chart + (d % frames).to(tl.int64) * 2 * states + o_u
    b_back = tl.load(p_line, mask=b_on, other=0.0).to(tl.float32)
    return b_back, tl.load(p_line + states, mask=b_on, other=0.0).to(tl.float32)


@Entry
@triton.jit
def _inside(p_blank, p_label, p_frames, p_tokens, p_value, p_chart, n, states, BU: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    frames = tl.load(p_frames + i_b).to(tl.int32)
    tokens = tl.load(p_tokens + i_b).to(tl.int32)
    p_blank += i_b * n * states
    p_label += i_b * n * (states - 1)
    p_chart += i_b * n * 2 * states
    o_u = tl.arange(0, BU)
    if frames > 0:
        b_a = tl.full([BU], float("-inf"), tl.float64)
        b_blank, b_label = _scores(p_blank, p_label, 0, frames, tokens, states, o_u)
        for d in range(frames + tokens):
            o_t = d - o_u
            b_on = (o_t >= 0) & (o_t < frames) & (o_u <= tokens)
            # load the inputs of the next step while this step is computed
            after = _scores(p_blank, p_label, d + 1, frames, tokens, states, o_u)
            b_first = b_a + b_blank
            b_second = from_above(b_a, float("-inf"), o_u, BU) + b_label
            b_top = tl.maximum(b_first, b_second)
            b_some = b_top > float("-inf")
            b_base = tl.where(b_some, b_top, 0.0)
            b_x = tl.exp((b_first - b_base).to(tl.float32))
            b_y = tl.exp((b_second - b_base).to(tl.float32))
            b_total = tl.where(b_some, b_x + b_y, 1.0)
            b_scale = tl.where(b_some, 1.0 / b_total, 0.0)
            b_new = tl.where(b_some, b_base + tl.log(b_total).to(tl.float64), float("-inf"))
            b_new = tl.where((b_first != b_first) | (b_second != b_second), float("nan"), b_new)
            b_a = tl.where(b_on, tl.where((o_u == 0) & (d == 0), 0.0, b_new), float("-inf"))
            p_line = p_chart + (d % frames).to(tl.int64) * 2 * states + o_u
            tl.store(p_line, b_x * b_scale, mask=b_on)
            tl.store(p_line + states, b_y * b_scale, mask=b_on)
            b_blank, b_label = after
        # after the last step lane `tokens` is at the last frame
        last = tl.load(p_blank + (frames - 1) * states + tokens).to(tl.float64)
        b_end = o_u == tokens
        best = tl.max(tl.where(b_end, b_a, float("-inf")), 0) + last
        bad = tl.max((b_end & (b_a != b_a)).to(tl.int32), 0) > 0
        tl.store(p_value + i_b, tl.where(bad, float("nan"), best))
        # the first cell has no choice: its first weight is 1 if there is a path, else 0
        tl.debug_barrier()
        tl.store(p_chart, tl.where(best > float("-inf"), 1.0, 0.0))
    else:
        tl.store(p_value + i_b, 0.0)


@Entry
@triton.jit
def _outside(p_frames, p_tokens, p_chart, p_g, p_dblank, p_dlabel, n, states, BU: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    frames = tl.load(p_frames + i_b).to(tl.int32)
    tokens = tl.load(p_tokens + i_b).to(tl.int32)
    p_chart += i_b * n * 2 * states
    p_dblank += i_b * n * states
    p_dlabel += i_b * n * (states - 1)
    o_u = tl.arange(0, BU)
    clear(p_dblank, n, states, frames, tokens + 1, BU)
    clear(p_dlabel, n, states - 1, frames, tokens, BU)
    if frames > 0:
        exists = tl.load(p_chart).to(tl.float32) > 0
        g = tl.where(exists, tl.load(p_g + i_b).to(tl.float32), 0.0)
        # expectations for the frame before, and for the token before
        b_back, b_left = tl.zeros([BU], tl.float32), tl.zeros([BU], tl.float32)
        weights = _weights(p_chart, frames + tokens - 1, frames, tokens, states, o_u)
        for step in range(frames + tokens):
            d = frames + tokens - 1 - step
            o_t = d - o_u
            b_on = (o_t >= 0) & (o_t < frames) & (o_u <= tokens)
            b_blank = b_back + tl.where((o_u == tokens) & (o_t == frames - 1), g, 0.0)
            b_label = from_below(b_left, 0.0, tokens, o_u, BU)
            tl.store(p_dblank + o_t * states + o_u, b_blank, mask=b_on)
            tl.store(p_dlabel + o_t * (states - 1) + o_u, b_label, mask=b_on & (o_u < tokens))
            b_flow = b_blank + b_label
            b_first, b_second = weights
            # load the inputs of the next step while this step is computed
            weights = _weights(p_chart, d - 1, frames, tokens, states, o_u)
            b_back, b_left = b_flow * b_first, b_flow * b_second
