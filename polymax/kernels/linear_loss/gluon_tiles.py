"""Sums of exponentials of logits that never reach memory: a product that is read tile by tile, for Gluon on Hopper.

Two groups of four warps take 64 rows of a tile each, and drift apart, so that one group multiplies while the other
reads its logits; another warp copies the next parts of hidden states and words to shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# ROWS: rows of a group of warps, two of which share a tile
# WORDS: words of a tile
# CHANNELS: channels that are copied at once
# STAGES: copies ahead
ROWS, WORDS, CHANNELS, STAGES = gl.constexpr(64), gl.constexpr(256), gl.constexpr(64), gl.constexpr(4)
# tiles of so many rows follow each other, and share words in the cache
TOGETHER = gl.constexpr(8)
# how the numbers of a tile lie in the registers of a group
HELD = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 16]))


@gluon.jit
def _place(tile, n, words):
    """Return the first row and the first word of a tile."""
    above, beside = gl.cdiv(n, 2 * ROWS), gl.cdiv(words, WORDS)
    first = tile // (TOGETHER * beside) * TOGETHER
    height = gl.minimum(above - first, TOGETHER)
    inside = tile % (TOGETHER * beside)
    return (first + inside % height) * (2 * ROWS), inside // height * WORDS


@gluon.jit
def _next(stage, phase):
    stage += 1
    if stage == STAGES:
        stage = 0
        phase = phase ^ 1
    return stage, phase


@gluon.jit
def _copy_parts(hidden, weight, rows_at, words_at, full, free, n, words, d, tiles):
    """Copy the parts of all tiles of a program, as soon as there is room."""
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        i_r, i_w = _place(tile, n, words)
        for i_d in range(0, d, CHANNELS):
            mbarrier.wait(free.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, hidden.block_type.nbytes * 2 + weight.block_type.nbytes)
            tma.async_copy_global_to_shared(hidden, [i_r, i_d], bar, rows_at.index(2 * stage))
            tma.async_copy_global_to_shared(hidden, [i_r + ROWS, i_d], bar, rows_at.index(2 * stage + 1))
            tma.async_copy_global_to_shared(weight, [i_w, i_d], bar, words_at.index(stage))
            stage, phase = _next(stage, phase)


@gluon.jit
def _product(group: gl.constexpr, rows_at, words_at, full, free, d, stage, phase):
    """Return the logits of a group's rows, and the next stage and phase."""
    mbarrier.wait(full.index(stage), phase)
    x = gl.zeros((ROWS, WORDS), gl.float32, HELD)
    a, b = rows_at.index(2 * stage + group), words_at.index(stage).permute((1, 0))
    x = warpgroup_mma(a, b, x, use_acc=False, is_async=True)
    x = warpgroup_mma_wait(1, deps=[x])
    last = stage
    stage, phase = _next(stage, phase)
    for _ in range(CHANNELS, d, CHANNELS):
        mbarrier.wait(full.index(stage), phase)
        a, b = rows_at.index(2 * stage + group), words_at.index(stage).permute((1, 0))
        x = warpgroup_mma(a, b, x, is_async=True)
        # the product before is done, and its parts may be overwritten
        x = warpgroup_mma_wait(1, deps=[x])
        mbarrier.arrive(free.index(last), count=1)
        last = stage
        stage, phase = _next(stage, phase)
    x = warpgroup_mma_wait(0, deps=[x])
    mbarrier.arrive(free.index(last), count=1)
    return x, stage, phase


@gluon.jit
def _scores(x, i_w, words, p_bias, softcap, scale, BIAS: gl.constexpr, CAP: gl.constexpr):
    """Return the scores of a tile, -inf behind the last word."""
    o_w = i_w + gl.arange(0, WORDS, gl.SliceLayout(0, HELD))
    if BIAS:
        x += gl.load(p_bias + o_w, mask=o_w < words, other=0.0)[None, :]
    if CAP:
        x = softcap * (1 - 2 / (gl.exp(x * (2 / softcap)) + 1))
    if i_w + WORDS > words:
        x = gl.where((o_w < words)[None, :], x, float("-inf"))
    return scale * x


@gluon.jit
def _pick(x, i_r, i_w, n, p_named, p_chosen, k):
    """Write the scores of the named words of rows that are in the tile."""
    o_r = i_r + gl.arange(0, ROWS, gl.SliceLayout(1, HELD))
    o_w = i_w + gl.arange(0, WORDS, gl.SliceLayout(0, HELD))
    for j in range(k):
        b_word = gl.load(p_named + o_r * k + j, mask=o_r < n, other=-1).to(gl.int32)
        m_in = (b_word >= i_w) & (b_word < i_w + WORDS)
        if gl.max(m_in.to(gl.int32), 0) > 0:
            b_x = gl.sum(gl.where(o_w[None, :] == b_word[:, None], x, 0.0), 1)
            gl.store(p_chosen + o_r * k + j, b_x, mask=m_in)


@gluon.jit
def _sum_group(
    group: gl.constexpr, p_bias, p_named, p_chosen, p_sums, rows_at, words_at, full, free, n, words, d, tiles, k,
    softcap, scale, BIAS: gl.constexpr, CAP: gl.constexpr,
):  # fmt: skip
    """Write the largest score u of each row of a tile, and the sums of exp(u - largest) and u - largest times it."""
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        i_r, i_w = _place(tile, n, words)
        i_r += group * ROWS
        x, stage, phase = _product(group, rows_at, words_at, full, free, d, stage, phase)
        x = _scores(x, i_w, words, p_bias, softcap, scale, BIAS, CAP)
        _pick(x, i_r, i_w, n, p_named, p_chosen, k)
        b_top = gl.max(x, 1)
        b_u = x - gl.where((b_top > float("-inf")) & (b_top < float("inf")), b_top, 0.0)[:, None]
        b_e = gl.exp(b_u)
        o_r = i_r + gl.arange(0, ROWS, gl.SliceLayout(1, HELD))
        m_r = o_r < n
        p_sums_at = p_sums + (i_w // WORDS * 3).to(gl.int64) * n + o_r
        gl.store(p_sums_at, b_top, mask=m_r)
        gl.store(p_sums_at + n, gl.sum(b_e, 1), mask=m_r)
        gl.store(p_sums_at + 2 * n, gl.sum(gl.where(b_e > 0, b_e * b_u, 0.0), 1), mask=m_r)


@gluon.jit
def _room(hidden, weight):
    """Return shared memory for parts of hidden states and words, and barriers of full and free places."""
    rows_at = gl.allocate_shared_memory(hidden.dtype, [2 * STAGES, ROWS, CHANNELS], hidden.layout)
    words_at = gl.allocate_shared_memory(weight.dtype, [STAGES, WORDS, CHANNELS], weight.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    fence_async_shared()
    return rows_at, words_at, full, free


@gluon.jit
def sum_tiles(
    hidden, weight, p_bias, p_named, p_chosen, p_sums,
    n, words, d, k, softcap, scale,
    BIAS: gl.constexpr, CAP: gl.constexpr,
):  # fmt: skip
    """Write largest scores, sums of exponentials and their moments of each tile, (tiles of words, 3, n)."""
    rows_at, words_at, full, free = _room(hidden, weight)
    tiles = gl.cdiv(n, 2 * ROWS) * gl.cdiv(words, WORDS)
    gl.warp_specialize(
        [
            (_sum_group, (
                gl.constexpr(0), p_bias, p_named, p_chosen, p_sums, rows_at, words_at, full, free, n, words, d, tiles,
                k, softcap, scale, BIAS, CAP,
            )),
            (_sum_group, (
                gl.constexpr(1), p_bias, p_named, p_chosen, p_sums, rows_at, words_at, full, free, n, words, d, tiles,
                k, softcap, scale, BIAS, CAP,
            )),
            (_copy_parts, (hidden, weight, rows_at, words_at, full, free, n, words, d, tiles)),
        ],
        [4, 4],
        [240, 24],
    )  # fmt: skip
