"""Tag sequences for SparseMAP on a GPU: Viterbi around mu, a slot for each position."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.active_set.cuda import Plan, places_of, room
from polymax.kernels.chain.cuda_shapes import distinct
from polymax.kernels.triton_math import ceil_power
from polymax.solvers.search import Search
from polymax.solvers.solution import Solution, UsedParts

# entries of a tile to a thread, and the most states of which a program adds up all at once
_ENTRIES, _COLUMNS = 8, 64


def plan(search: Search) -> Plan:
    """Unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s) and lengths (B,) as the program takes them."""
    unary, transition, lengths = search.tensors
    count, n, s = unary.shape
    w, stride_b, stride_t = distinct(transition.double())
    group = max(count // max(len(transition), 1), 1) if stride_b else 1
    height = max(ceil_power(s), 16)
    values = room(unary, n, s)
    # the tags before 16 tags or fewer are one word
    back = room(unary, n, dtype=torch.long) if height == 16 else room(unary, n, s, dtype=torch.int32)
    width = max(min(height, 4096 // height), 2)
    problem = w, stride_b, stride_t, group, lengths.contiguous(), values, back
    warps = min(max(height * width // 512, 4 if n > 32 else 1), 8)
    # states to a lane, where one matrix is for all steps
    lanes = (2 if s == height else 1) if stride_t == 0 and height <= 32 and hasattr(tl, "gather") else 0
    sizes = height, width, lanes, max(32 * warps * _ENTRIES // height, 2)
    columns = height if height <= _COLUMNS else 0
    return Plan(best, problem, sizes, (n, s), n, warps, s, w, columns, n + 1)


def slots(search: Search, start: Solution) -> Tensor:
    """Sequences as the program lists them: (*batch, k, n)."""
    if not isinstance(start.found, UsedParts):
        return places_of(start.vertices, 2).amax(-1)
    (n, s), places = search.events[0], start.found.places
    states = torch.where(places < n * s, places, -1)
    return torch.nn.functional.pad(states, (0, n - states.shape[-1]), value=-1)


def listed(search: Search, places: Tensor) -> UsedParts:
    """Sequences as lists of states, then of steps."""
    return UsedParts(places, search.events)


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """The best sequence; SIZES of a tile of transitions, how lanes have states, and steps of a tile."""
    p_w, stride_wb, stride_wt, group, p_lengths, p_values, p_back = problem
    n, s = height, width
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    p_w += (i_b // group) * stride_wb * s * s
    p_around, p_values = p_arounds + i_b * n * s, p_values + i_b * n * s
    p_back += i_b * n * (1 if SIZES[0] == 16 else s)
    o_i = tl.arange(0, SIZES[0])
    m_i = o_i < s
    if SIZES[2]:
        _climb(p_w, p_around, p_values, length, s, SIZES[0], SIZES[2] == 2)
    else:
        _climb_tiles(p_w, stride_wt, p_around, p_values, length, s, SIZES)
    tl.debug_barrier()
    last = tl.maximum(length - 1, 0)
    b_v = tl.load(p_values + last * s + o_i, mask=m_i, other=float("-inf"))
    top = tl.max(b_v, 0)
    tag = tl.min(tl.where((b_v == top) & m_i, o_i, s - 1), 0)
    _origins(p_w, stride_wt, p_values, p_back, length, s, SIZES)
    tl.debug_barrier()
    if SIZES[0] == 16:
        _unwind_words(p_back, p_fresh, tag, length, s)
    else:
        _unwind(p_back, p_fresh, tag, length, s, SIZES[0])
    for t in range(length, n):
        tl.store(p_fresh + t, -1)
    tl.debug_barrier()
    extra = _steps_of(p_w, stride_wt, p_fresh, length, s)
    return tl.where((length > 0) & (top == float("-inf")), float("-inf"), extra)


@triton.jit
def _climb(p_w, p_around, p_values, length, s, S: tl.constexpr, FULL: tl.constexpr):
    """Write the values of Viterbi's recursion (n, s), which go from step to step in registers; FULL if s is S.

    Each warp has all of them, and computes all that follow: none waits for another.
    """
    o_j = tl.arange(0, S)
    m_j = o_j < s
    b_v = tl.load(p_around + o_j, mask=m_j, other=float("-inf"))
    tl.store(p_values + o_j, b_v, mask=m_j)
    # scores are on their way two steps before they are added
    b_u = tl.load(p_around + s + o_j, mask=m_j & (length > 1), other=float("-inf"))
    b_u1 = tl.load(p_around + 2 * s + o_j, mask=m_j & (length > 2), other=float("-inf"))
    for t in range(1, length):
        b_u2 = tl.load(p_around + (t + 2) * s + o_j, mask=m_j & (t + 2 < length), other=float("-inf"))
        b_0, b_1 = _through(b_v, p_w, 0, m_j, s, S, FULL), _through(b_v, p_w, 1, m_j, s, S, FULL)
        b_2, b_3 = _through(b_v, p_w, 2, m_j, s, S, FULL), _through(b_v, p_w, 3, m_j, s, S, FULL)
        for i in tl.static_range(4, S, 4):
            # four in flight: a maximum waits for the one before it
            b_0 = _larger(b_0, _through(b_v, p_w, i, m_j, s, S, FULL))
            b_1 = _larger(b_1, _through(b_v, p_w, i + 1, m_j, s, S, FULL))
            b_2 = _larger(b_2, _through(b_v, p_w, i + 2, m_j, s, S, FULL))
            b_3 = _larger(b_3, _through(b_v, p_w, i + 3, m_j, s, S, FULL))
        b_v = _larger(_larger(b_0, b_1), _larger(b_2, b_3)) + b_u
        tl.store(p_values + t * s + o_j, b_v, mask=m_j)
        b_u, b_u1 = b_u1, b_u2


@triton.jit
def _larger(b_a, b_b):
    """The maximum, in a third of the instructions that one takes which knows of NaN."""
    return tl.where(b_b > b_a, b_b, b_a)


@triton.jit
def _through(b_v, p_w, i: tl.constexpr, m_j, s, S: tl.constexpr, FULL: tl.constexpr):
    """The values of states that come after state i."""
    if FULL:
        b_w = tl.load(p_w + i * S + tl.arange(0, S))
    else:
        b_w = tl.load(p_w + i * s + tl.arange(0, S), mask=m_j & (i < s), other=float("-inf"))
    return tl.gather(b_v, tl.full([S], i, tl.int32), 0) + b_w


@triton.jit
def _climb_tiles(p_w, stride_wt, p_around, p_values, length, s, SIZES: tl.constexpr):
    """The same for transitions that are read at each step."""
    o_i = tl.arange(0, SIZES[0])
    m_i = o_i < s
    tl.store(p_values + o_i, tl.load(p_around + o_i, mask=m_i), mask=m_i)
    for t in range(1, length):
        # the row of the step before is written by other threads
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
    """Write the tag before each tag (n, s), for many steps at once; 16 of them or fewer are the digits of a word."""
    o_j = tl.arange(0, SIZES[0])[None, :]
    m_j = o_j < s
    for i_t in range(1, length, SIZES[3]):
        o_t = i_t + tl.arange(0, SIZES[3])
        m_t = (o_t < length)[:, None]
        p_before, p_step = p_values + (o_t[:, None] - 1) * s, p_w + (o_t[:, None] - 1) * stride_wt * s * s + o_j
        b_best = tl.full([SIZES[3], SIZES[0]], float("-inf"), tl.float64)
        b_from = tl.full([SIZES[3], SIZES[0]], 0, tl.int32)
        for i in tl.range(0, s, loop_unroll_factor=4):
            if SIZES[2]:
                b_w = tl.load(p_w + i * s + o_j, mask=m_j, other=float("-inf"))
            else:
                b_w = tl.load(p_step + i * s, mask=m_t & m_j, other=float("-inf"))
            b_c = tl.load(p_before + i, mask=m_t) + b_w
            # the first that gives the value
            b_from = tl.where(b_c > b_best, i, b_from)
            b_best = tl.where(b_c > b_best, b_c, b_best)
        if SIZES[0] == 16:
            b_word = tl.sum(tl.where(m_j, b_from, 0).to(tl.int64) << (o_j * 4).to(tl.int64), 1)
            tl.store(p_back + o_t, b_word, mask=o_t < length)
        else:
            tl.store(p_back + o_t[:, None] * s + o_j, b_from, mask=m_t & m_j)


@triton.jit
def _unwind_words(p_words, p_fresh, tag, length, s):
    """Write the sequence that ends with a tag, from words."""
    last = tl.maximum(length - 1, 0)
    word = tl.load(p_words + last, mask=last > 0, other=0)
    word1 = tl.load(p_words + last - 1, mask=last > 1, other=0)
    word2 = tl.load(p_words + last - 2, mask=last > 2, other=0)
    word3 = tl.load(p_words + last - 3, mask=last > 3, other=0)
    for k in range(0, length, 4):
        t = last - k
        # what comes next does not wait for the tag
        next0 = tl.load(p_words + t - 4, mask=t > 4, other=0)
        next1 = tl.load(p_words + t - 5, mask=t > 5, other=0)
        next2 = tl.load(p_words + t - 6, mask=t > 6, other=0)
        next3 = tl.load(p_words + t - 7, mask=t > 7, other=0)
        tag1 = _digit(word, tag)
        tag2 = _digit(word1, tag1)
        tag3 = _digit(word2, tag2)
        tl.store(p_fresh + t, t * s + tag)
        tl.store(p_fresh + t - 1, (t - 1) * s + tag1, mask=t > 0)
        tl.store(p_fresh + t - 2, (t - 2) * s + tag2, mask=t > 1)
        tl.store(p_fresh + t - 3, (t - 3) * s + tag3, mask=t > 2)
        tag = _digit(word3, tag3)
        word, word1, word2, word3 = next0, next1, next2, next3


@triton.jit
def _digit(word, tag):
    return ((word >> (tag * 4).to(tl.int64)) & 15).to(tl.int32)


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
        # what comes next does not wait for the tag
        b_from2 = tl.load(p_back + (t - 2) * s + o_i, mask=m_i & (t > 2), other=0)
        tag = tl.sum(tl.where(o_i == tag, b_from, 0), 0)
        b_from, b_from1 = b_from1, b_from2


@triton.jit
def _steps_of(p_w, stride_wt, p_fresh, length, s):
    """The score of a sequence's steps."""
    b_sum = tl.zeros([128], tl.float64)
    for i_t in range(1, length, 128):
        o_t = i_t + tl.arange(0, 128)
        m_t = o_t < length
        b_before = tl.load(p_fresh + o_t - 1, mask=m_t, other=0) % s
        b_after = tl.load(p_fresh + o_t, mask=m_t, other=0) % s
        b_sum += tl.load(p_w + (o_t - 1) * stride_wt * s * s + b_before * s + b_after, mask=m_t, other=0.0)
    return tl.sum(b_sum, 0)
