"""Tag sequences for SparseMAP on a GPU: Viterbi around mu, a slot for each position."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import ceil_power
from polymax.kernels.active_set.cuda_plan import Plan, own, places_of
from polymax.kernels.active_set.problem import Search, UsedParts
from polymax.kernels.active_set.triton_sums import first_of_largest
from polymax.kernels.chain.cuda_shapes import distinct

# _ENTRIES: entries of a tile per thread
# _COLUMNS: most states for which a program adds up all of them at once
# _BOTH: most states for which a program holds two transition matrices
_ENTRIES, _COLUMNS, _BOTH = 8, 64, 32
# a byte that stands for no state
_NONE = tl.constexpr(255)


def plan(search: Search) -> Plan:
    """Return the plan for unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s) or (s, s), and lengths (B,)."""
    unary, transition, lengths = search.tensors
    count, n, s = unary.shape
    w, stride_b, stride_t = distinct(transition)
    group = max(count // max(len(transition), 1), 1) if stride_b else 1
    height = max(ceil_power(s), 16)
    values, back = own(unary, n, s), own(unary, n + 5, height, dtype=torch.int32)
    width = max(min(height, 4096 // height), 2)
    problem = w, stride_b, stride_t, group, lengths.contiguous(), values, back
    warps = min(max(height * width // 512, 4 if n > 32 else 1), 8)
    # each end keeps its transition matrix in registers
    both = int(height <= _BOTH and stride_t == 0)
    sizes = height, width, both, max(32 * warps * _ENTRIES // height, 2)
    columns = height if height <= _COLUMNS else 0
    return Plan(best, problem, sizes, (n, s), n, warps, s, w, columns, n + 1, both)


def slots(search: Search, found: Tensor | UsedParts) -> Tensor:
    """Return sequences as lists of slots: (*batch, k, n)."""
    if not isinstance(found, UsedParts):
        return places_of(found, 2).amax(-1)
    (n, s), places = search.events[0], found.places
    states = torch.where(places < n * s, places, -1)
    return torch.nn.functional.pad(states, (0, n - states.shape[-1]), value=-1)


def listed(search: Search, places: Tensor) -> UsedParts:
    """Return sequences as lists of states, then of steps."""
    return UsedParts(places, search.events)


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Write the best sequence; SIZES: a tile of transitions, 1 to start from both ends, and steps of a tile."""
    p_w, stride_wb, stride_wt, group, p_lengths, p_values, p_back = problem
    n, s = height, width
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    p_w += (i_b // group) * stride_wb * s * s
    p_around, p_values, p_back = p_arounds + i_b * n * s, p_values + i_b * n * s, p_back + i_b * (n + 5) * SIZES[0]
    if SIZES[2]:
        _climb(p_w, p_around, p_values, p_back, length, s, SIZES[0])
        tl.debug_barrier()
        top, before, after = _meet(p_w, p_values, length, s, SIZES[0])
        _unwind_both(p_back, p_fresh, before, after, length, s, SIZES[0])
    else:
        _climb_tiles(p_w, stride_wt, p_around, p_values, length, s, SIZES)
        tl.debug_barrier()
        o_i = tl.arange(0, SIZES[0])
        m_i = o_i < s
        b_v = tl.load(p_values + tl.maximum(length - 1, 0) * s + o_i, mask=m_i, other=float("-inf"))
        top = tl.max(b_v, 0)
        tag = tl.min(tl.where((b_v == top) & m_i, o_i, s - 1), 0)
        _origins(p_w, stride_wt, p_values, p_back, length, s, SIZES)
        tl.debug_barrier()
        _unwind(p_back, p_fresh, tag, length, s, SIZES[0])
    for t in range(length, n):
        tl.store(p_fresh + t, -1)
    tl.debug_barrier()
    extra = _steps_of(p_w, stride_wt, p_fresh, length, s)
    return tl.where((length > 0) & (top == float("-inf")), float("-inf"), extra)


@triton.jit
def _climb(p_w, p_around, p_values, p_back, length, s, S: tl.constexpr):
    """Write back pointers, and the values of Viterbi's recursion in the middle, in the dtype of the scores.

    Values of the first half of the positions, with the middle one of an odd number, cover the scores before them.
    Values of the second half cover the scores after them. Both halves take a step at once. Four lanes share a state:
    each compares a quarter of the states it may come from, and writes a byte to words (steps, 2, S); a common result
    would need an exchange between lanes.
    """
    half = (length + 1) // 2
    o_x = tl.arange(0, S // 4)[:, None, None, None] + tl.arange(0, 4)[None, None, None, :] * (S // 4)
    o_y = tl.arange(0, S)[None, None, :, None]
    p_both = p_w + tl.where(tl.arange(0, 2)[None, :, None, None] == 0, o_x * s + o_y, o_y * s + o_x)
    # a chain of one position may come without memory for transitions
    m_w = (o_x < s) & (o_y < s) & (length > 1)
    b_w = tl.load(p_both, mask=m_w, other=float("-inf")).to(p_around.dtype.element_ty)
    p_bytes = p_back.to(tl.pointer_type(tl.uint8)) + tl.reshape(tl.arange(0, 8 * S), [2, S, 4])
    # positions go up from the first, and down from the last; an end that has reached the middle stops
    o_end, o_s = tl.arange(0, 2)[:, None], tl.arange(0, S)[None, :]
    limit = tl.where(o_end == 0, half, length - half)
    by = tl.where(o_end == 0, s, 0 - s)
    p_u = p_around + o_end * (length - 1) * s + o_s
    # transitions to masked states are -inf
    b_limit = tl.where(o_s < s, limit, 0)
    b_v = tl.load(p_u, mask=b_limit > 0, other=float("-inf"))
    if b_w.dtype == tl.float32:
        b_0 = tl.load(p_u + by, mask=b_limit > 1, other=float("-inf"))
        b_1 = tl.load(p_u + 2 * by, mask=b_limit > 2, other=float("-inf"))
        b_2 = tl.load(p_u + 3 * by, mask=b_limit > 3, other=float("-inf"))
        b_3 = tl.load(p_u + 4 * by, mask=b_limit > 4, other=float("-inf"))
        for _ in range(1, half, 4):
            p_u += 4 * by
            b_limit -= 4
            # load the scores of the next steps early, so that they arrive before their use
            b_4 = tl.load(p_u + by, mask=b_limit > 1, other=float("-inf"))
            b_5 = tl.load(p_u + 2 * by, mask=b_limit > 2, other=float("-inf"))
            b_6 = tl.load(p_u + 3 * by, mask=b_limit > 3, other=float("-inf"))
            b_7 = tl.load(p_u + 4 * by, mask=b_limit > 4, other=float("-inf"))
            b_v = _step(b_v, b_0, b_w, p_bytes, o_x, b_limit > -3, S)
            b_v = _step(b_v, b_1, b_w, p_bytes + 8 * S, o_x, b_limit > -2, S)
            b_v = _step(b_v, b_2, b_w, p_bytes + 16 * S, o_x, b_limit > -1, S)
            b_v = _step(b_v, b_3, b_w, p_bytes + 24 * S, o_x, b_limit > 0, S)
            b_0, b_1, b_2, b_3 = b_4, b_5, b_6, b_7
            p_bytes += 32 * S
    else:
        # a step in float64 takes longer than a load, so that no loads ahead are needed
        for _ in range(1, half):
            p_u += by
            b_limit -= 1
            b_u = tl.load(p_u, mask=b_limit > 0, other=float("-inf"))
            b_v = _step(b_v, b_u, b_w, p_bytes, o_x, b_limit > 0, S)
            p_bytes += 8 * S
    # the two rows in the middle
    m_v = (o_s < s) & (half - 1 + o_end < length) & (length > 0)
    tl.store(p_values + (half - 1 + o_end) * s + o_s, b_v, mask=m_v)


@triton.jit
def _step(b_v, b_u, b_w, p_bytes, o_x, m_v, S: tl.constexpr):
    """Return the values after a step if m_v, else b_v, and write the first states that give them."""
    b_c = tl.permute(tl.reshape(b_v, [2, 4, S // 4]), (2, 0, 1))[:, :, None, :] + b_w
    b_top = _largest(b_c, S)
    # the next step does not depend on these stores
    tl.store(p_bytes, tl.min(tl.where(b_c == b_top[None, :, :, None], o_x, _NONE), 0))
    return tl.where(m_v, b_top + b_u, b_v)


@triton.jit
def _largest(b_c, S: tl.constexpr):
    """Return the maxima over the first and the last dim of (S // 4, 2, S, 4), over pairs first, for short dependency
    chains.
    """
    if b_c.dtype == tl.float32:
        return tl.max(tl.max(b_c, 0), 2)
    else:
        return _largest_of_pairs(b_c, S)


@triton.jit
def _largest_of_pairs(b_c, S: tl.constexpr):
    b_top = b_c
    for i in tl.static_range(4):
        if S >> i > 4:
            b_top = tl.reshape(b_top, [2, S >> (i + 3), 2, S, 4])
            # with an index, which is not used, a maximum takes a third of the instructions of one that propagates NaN
            b_top, _ = tl.max(b_top, 0, return_indices=True, return_indices_tie_break_left=False)
    b_top, _ = tl.max(tl.reshape(b_top, [2, S, 4]), 2, return_indices=True, return_indices_tie_break_left=False)
    return b_top


@triton.jit
def _meet(p_w, p_values, length, s, S: tl.constexpr):
    """Return the value of the best sequence, and its two states next to the middle."""
    half = (length + 1) // 2
    o_s = tl.arange(0, S)
    m_s = o_s < s
    b_before = tl.load(p_values + (half - 1) * s + o_s, mask=m_s & (length > 0), other=float("-inf"))
    b_after = tl.load(p_values + half * s + o_s, mask=m_s & (length > 1), other=0.0)
    m_w = m_s[:, None] & m_s[None, :]
    b_w = tl.load(p_w + o_s[:, None] * s + o_s[None, :], mask=m_w & (length > 1), other=0.0)
    b_both = tl.where(m_w, b_before[:, None] + b_w + b_after[None, :], float("-inf"))
    top, at = first_of_largest(tl.reshape(b_both, [S * S]), tl.arange(0, S * S))
    return top, tl.minimum(at // S, s - 1), tl.minimum(at % S, s - 1)


@triton.jit
def _unwind_both(p_back, p_fresh, before, after, length, s, S: tl.constexpr):
    """Write the sequence from its two states in the middle towards both ends."""
    o_end, o_s = tl.arange(0, 2)[:, None], tl.arange(0, S)[None, :]
    b_tag = tl.where(o_end == 0, before, after) + o_s * 0
    k = (length + 1) // 2 - 1
    b_0, b_1 = _word_of(p_back, k, S), _word_of(p_back, k - 1, S)
    b_2, b_3 = _word_of(p_back, k - 2, S), _word_of(p_back, k - 3, S)
    while k >= 0:
        # these loads do not depend on the tag
        b_4, b_5 = _word_of(p_back, k - 4, S), _word_of(p_back, k - 5, S)
        b_6, b_7 = _word_of(p_back, k - 6, S), _word_of(p_back, k - 7, S)
        b_tag = _step_back(p_fresh, b_tag, b_0, k, length, s, S)
        b_tag = _step_back(p_fresh, b_tag, b_1, k - 1, length, s, S)
        b_tag = _step_back(p_fresh, b_tag, b_2, k - 2, length, s, S)
        b_tag = _step_back(p_fresh, b_tag, b_3, k - 3, length, s, S)
        b_0, b_1, b_2, b_3 = b_4, b_5, b_6, b_7
        k -= 4


@triton.jit
def _word_of(p_back, k, S: tl.constexpr):
    """Return the words (2, S) that the four lanes of each state wrote at step k >= 1."""
    o_word = tl.arange(0, 2)[:, None] * S + tl.arange(0, S)[None, :]
    return tl.load(p_back + (k - 1) * 2 * S + o_word, mask=k > 0, other=0)


@triton.jit
def _step_back(p_fresh, b_tag, b_word, k, length, s, S: tl.constexpr):
    """Write the tags (2, S) of both ends after k steps; return the tags that they come from."""
    o_end, o_s = tl.arange(0, 2)[:, None], tl.arange(0, S)[None, :]
    half = (length + 1) // 2
    m_t = tl.where(o_end == 0, k < half, k < length - half) & (k >= 0)
    o_t = tl.where(o_end == 0, k, length - 1 - k)
    # each lane that holds the row writes it, without synchronization
    tl.store(p_fresh + o_t + o_s * 0, o_t * s + b_tag, mask=m_t & (o_s == 0))
    b_from = b_word & 255
    for q in tl.static_range(1, 4):
        b_from = tl.minimum(b_from, (b_word >> (8 * q)) & 255)
    b_from = tl.sum(tl.where(o_s == b_tag, tl.minimum(b_from, s - 1), 0), 1)
    return tl.where(m_t, b_from[:, None], b_tag)


@triton.jit
def _climb_tiles(p_w, stride_wt, p_around, p_values, length, s, SIZES: tl.constexpr):
    """Write the values of Viterbi's recursion (n, s), with transitions that are loaded at each step."""
    o_i = tl.arange(0, SIZES[0])
    m_i = o_i < s
    tl.store(p_values + o_i, tl.load(p_around + o_i, mask=m_i), mask=m_i)
    for t in range(1, length):
        # other threads wrote the row of the step before
        tl.debug_barrier()
        b_v = tl.load(p_values + (t - 1) * s + o_i, mask=m_i, other=float("-inf"))
        for i_j in range(0, s, SIZES[1]):
            o_j = i_j + tl.arange(0, SIZES[1])
            p_step = p_w + (t - 1) * stride_wt * s * s + o_i[:, None] * s + o_j[None, :]
            b_c = b_v[:, None] + tl.load(p_step, mask=m_i[:, None] & (o_j < s)[None, :], other=float("-inf"))
            b_u = tl.load(p_around + t * s + o_j, mask=o_j < s, other=float("-inf"))
            tl.store(p_values + t * s + o_j, tl.max(b_c, 0) + b_u, mask=o_j < s)


@triton.jit
def _origins(p_w, stride_wt, p_values, p_back, length, s, SIZES: tl.constexpr):
    """Write the tag before each tag (n, s), for many steps at once."""
    o_j = tl.arange(0, SIZES[0])[None, :]
    m_j = o_j < s
    for i_t in range(1, length, SIZES[3]):
        o_t = i_t + tl.arange(0, SIZES[3])
        m_t = (o_t < length)[:, None]
        p_before, p_step = p_values + (o_t[:, None] - 1) * s, p_w + (o_t[:, None] - 1) * stride_wt * s * s + o_j
        b_best = tl.full([SIZES[3], SIZES[0]], float("-inf"), tl.float64)
        b_from = tl.full([SIZES[3], SIZES[0]], 0, tl.int32)
        for i in tl.range(0, s, loop_unroll_factor=4):
            b_c = tl.load(p_before + i, mask=m_t) + tl.load(p_step + i * s, mask=m_t & m_j, other=float("-inf"))
            # the first tag that gives the value
            b_from = tl.where(b_c > b_best, i, b_from)
            b_best = tl.where(b_c > b_best, b_c, b_best)
        tl.store(p_back + o_t[:, None] * s + o_j, b_from, mask=m_t & m_j)


@triton.jit
def _unwind(p_back, p_fresh, tag, length, s, S: tl.constexpr):
    """Write the sequence that ends with a tag."""
    o_i = tl.arange(0, S)
    m_i = o_i < s
    last = tl.maximum(length - 1, 0)
    b_from = tl.load(p_back + last * s + o_i, mask=m_i & (last > 0), other=0)
    b_from1 = tl.load(p_back + (last - 1) * s + o_i, mask=m_i & (last > 1), other=0)
    for k in range(0, length):
        t = last - k
        tl.store(p_fresh + t, t * s + tag)
        # this load does not depend on the tag
        b_from2 = tl.load(p_back + (t - 2) * s + o_i, mask=m_i & (t > 2), other=0)
        tag = tl.sum(tl.where(o_i == tag, b_from, 0), 0)
        b_from, b_from1 = b_from1, b_from2


@triton.jit
def _steps_of(p_w, stride_wt, p_fresh, length, s):
    """Return the score of a sequence's steps."""
    b_sum = tl.zeros([128], tl.float64)
    for i_t in range(1, length, 128):
        o_t = i_t + tl.arange(0, 128)
        m_t = o_t < length
        b_before = tl.load(p_fresh + o_t - 1, mask=m_t, other=0) - (o_t - 1) * s
        b_after = tl.load(p_fresh + o_t, mask=m_t, other=0) - o_t * s
        b_sum += tl.load(p_w + (o_t - 1) * stride_wt * s * s + b_before * s + b_after, mask=m_t, other=0.0)
    return tl.sum(b_sum, 0)
