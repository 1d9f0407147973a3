"""The recursion in registers, one program per instance, a target and the blank before it in a lane, for Triton.

Eight frames are loaded while the eight before them are processed. Four bits for each lane and frame record the moves;
the path is read off them, from the last frame backwards.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.ctc import reference

LARGEST = 8192


def ctc_search(x: Tensor, targets: Tensor, counts: Tensor, frames: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    batch, n, classes = x.shape
    lanes = ceil_power(targets.shape[1] + 1)
    if lanes > LARGEST:
        return reference.ctc_search(x, targets, counts, frames, blank)
    found = torch.empty((batch, n), dtype=torch.long, device=x.device)
    value = torch.empty(batch, dtype=torch.float64, device=x.device)
    if batch:
        moves = torch.empty((batch, (n + 7) // 8, lanes), dtype=torch.int32, device=x.device)
        given = (t.contiguous() for t in (x, targets, counts, frames))
        with on_device(x):
            args = *given, found, value, moves, n, classes, targets.shape[1], blank
            _search[(batch,)](*args, BL=lanes, num_warps=max(1, lanes // 256))
    return found, value


@Entry
@triton.jit
def _search(p_x, p_targets, p_counts, p_frames, p_found, p_value, p_moves, n, classes, size, blank, BL: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    count = tl.load(p_counts + i_b).to(tl.int32)
    frames = tl.load(p_frames + i_b).to(tl.int32)
    p_x += i_b * n * classes
    p_targets += i_b * size
    p_found += i_b * n
    p_moves += i_b * ((n + 7) // 8) * BL
    o_l = tl.arange(0, BL)
    m_l = o_l < count
    b_target = tl.load(p_targets + o_l, mask=m_l, other=-1).to(tl.int64)
    b_before = tl.load(p_targets + o_l - 1, mask=m_l & (o_l > 0), other=-1).to(tl.int64)
    b_again = m_l & (o_l > 0) & (b_target == b_before)
    # the first frame at which a target, and the blank before it, can be reached
    b_first = o_l + tl.cumsum(b_again.to(tl.int32), 0)
    b_empty = b_first - b_again.to(tl.int32)
    # an invalid target label forbids all paths
    m_l = m_l & (b_target >= 0) & (b_target < classes)
    b_blank = tl.full([BL], float("-inf"), tl.float64)
    b_label = b_blank
    xs = _eight(p_x, 0, frames, classes, blank, b_target, m_l)
    for first in range(0, frames, 8):
        after = _eight(p_x, first + 8, frames, classes, blank, b_target, m_l)
        b_moves = tl.zeros([BL], tl.int32)
        for k in tl.static_range(8):
            t = first + k
            b_back = tl.gather(b_label, (o_l + (BL - 1)) % BL, 0)
            b_back = tl.where(o_l > 0, b_back, float("-inf"))
            b_stay = b_label
            b_through = b_blank
            if k == 0:
                # paths begin at the first blank, and at the first target
                b_stay = tl.where((o_l == 0) & (first == 0), 0.0, b_stay)
                b_through = tl.where((o_l == 0) & (first == 0), 0.0, b_through)
            b_from = (b_back > b_through) | (b_back != b_back)
            b_one = (b_through > b_stay) | (b_through != b_through)
            b_best = tl.where(b_one, b_through, b_stay)
            b_skip = tl.where(b_again, float("-inf"), b_back)
            b_two = (b_skip > b_best) | (b_skip != b_skip)
            b_new = xs[2 * k].to(tl.float64) + tl.where(b_from, b_back, b_through)
            b_next = xs[2 * k + 1].to(tl.float64) + tl.where(b_two, b_skip, b_best)
            b_moves |= (b_from.to(tl.int32) | tl.where(b_two, 4, b_one.to(tl.int32) * 2)) << (4 * k)
            # after the last frame values stay
            b_blank = tl.where(t < frames, tl.where((o_l <= count) & (b_empty <= t), b_new, float("-inf")), b_blank)
            b_label = tl.where(t < frames, tl.where(m_l & (b_first <= t), b_next, float("-inf")), b_label)
        tl.store(p_moves + (first // 8) * BL + o_l, b_moves)
        xs = after
    last, before = _at(b_blank, o_l == count), _at(b_label, o_l == count - 1)
    ends = (before > last) | (before != before)
    best = tl.where(ends, before, last)
    best = tl.where((frames == 0) & (count == 0), 0.0, best)
    tl.store(p_value + i_b, best)
    # other threads have written the moves that are read below
    tl.debug_barrier()
    length = tl.where(best > float("-inf"), frames, 0)
    # 2 i for blank i, 2 i + 1 for target i
    state = 2 * count - ends.to(tl.int32)
    for back in range(length):
        t = frames - 1 - back
        i_l = state // 2
        odd = state % 2
        label = tl.load(p_targets + i_l, mask=odd == 1, other=0).to(tl.int64)
        tl.store(p_found + t, tl.where(odd == 1, label, blank))
        bits = tl.load(p_moves + (t // 8) * BL + i_l) >> (4 * (t % 8))
        state -= tl.where(odd == 1, (bits >> 1) & 3, bits & 1)
    for first in range(length, n, BL):
        tl.store(p_found + first + o_l, tl.full([BL], -1, tl.int64), mask=first + o_l < n)


@triton.jit
def _at(b_v, m_v):
    """Return the value of the single lane in the mask, -inf if the mask is empty, and NaN if the value is NaN."""
    best = tl.max(tl.where(m_v, b_v, float("-inf")), 0)
    bad = tl.max((m_v & (b_v != b_v)).to(tl.int32), 0) > 0
    return tl.where(bad, float("nan"), best)


@triton.jit
def _eight(p_x, first, frames, classes, blank, b_target, m_l):
    """Return the scores of the blank, and of the targets, in eight frames."""
    xs = ()
    for k in tl.static_range(8):
        t = first + k
        p_row = p_x + t.to(tl.int64) * classes
        b_empty = tl.load(p_row + blank, mask=t < frames, other=0.0)
        b_label = tl.load(p_row + b_target, mask=m_l & (t < frames), other=0.0)
        xs = xs + (b_empty, b_label)
    return xs
