"""The start of SparseMAP from given structures on a GPU: their overlaps, and the inverse that exact weights need.

One program per instance would add these structures one after the other. Here many programs work side by side on the
overlaps of 16 structures with 16 others, Cholesky's factor of an instance, and 32 columns of its inverse.

Shapes: as in cuda_loop.py; factor (B, K, K) as in triton_factor.py
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device
from polymax.kernels.active_set.triton_factor import NB, factorize

_WARPS = 4
# _SLOTS: slots of a tile of overlaps
# _ROWS: rows of a block of columns
# _COLUMNS: columns of the inverse for a program
# _DEPTH: terms that are added up at once
_SLOTS, _ROWS, _COLUMNS, _DEPTH = 32, 64, 32, 64


def prepare(held: tuple[Tensor, Tensor, Tensor], seeds: int) -> None:
    """Write the overlaps and the inverse of the structures in the first places; p becomes -1 for linearly dependent
    ones.
    """
    places, gram, system = held
    count, room, slots = places.shape
    factor = torch.empty_like(gram, dtype=torch.float64)
    # free places up to the end of a block have p = -1 and are skipped
    tiles = -(-seeds // NB.value)
    top = tiles * NB.value
    with on_device(places):
        _overlaps[(count, tiles, tiles)](places, gram, system, slots, K=room, BU=_SLOTS, num_warps=_WARPS)
        _factor[(count,)](gram, factor, system, top, K=room, BM=min(room, _ROWS), num_warps=_WARPS, num_stages=1)
        _invert[(count, -(-top // _COLUMNS))](
            factor, system, top, K=room, BC=_COLUMNS, BD=min(room, _DEPTH), num_warps=_WARPS, num_stages=1
        )


@Entry
@triton.jit(do_not_specialize=["slots"])
def _overlaps(p_places, p_gram, p_system, slots, K: tl.constexpr, BU: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    o_i, o_j = tl.program_id(1) * NB + tl.arange(0, NB), tl.program_id(2) * NB + tl.arange(0, NB)
    p_places += i_b * K * slots
    p_p = p_system + i_b * (K + 3) * K + (K + 1) * K
    m_i, m_j = tl.load(p_p + o_i) >= 0, tl.load(p_p + o_j) >= 0
    b_both = tl.zeros([NB, NB], tl.int32)
    for i_u in range(0, slots, BU):
        o_u = i_u + tl.arange(0, BU)
        m_u = (o_u < slots)[None, :]
        b_i = tl.load(p_places + o_i[:, None] * slots + o_u[None, :], mask=m_i[:, None] & m_u, other=-1)
        b_j = tl.load(p_places + o_j[:, None] * slots + o_u[None, :], mask=m_j[:, None] & m_u, other=-2)
        m_same = (b_i[:, None, :] == b_j[None, :, :]) & (b_i >= 0)[:, None, :]
        b_both += tl.sum(m_same.to(tl.int32), 2)
    tl.store(p_gram + i_b * K * K + o_i[:, None] * K + o_j[None, :], b_both.to(tl.float32))


@Entry
@triton.jit(do_not_specialize=["top"])
def _factor(p_gram, p_factor, p_system, top, K: tl.constexpr, BM: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    p_p = p_system + i_b * (K + 3) * K + (K + 1) * K
    factorize(p_gram + i_b * K * K, p_factor + i_b * K * K, p_p, top, K, BM)


@Entry
@triton.jit(do_not_specialize=["top"])
def _invert(p_factor, p_system, top, K: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr):
    """Overwrite the inverse by the solution for columns of the identity: by the factor, then by its transpose."""
    i_b = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BC
    p_factor += i_b * K * K
    p_system += i_b * (K + 3) * K
    o_b, o_d = tl.arange(0, NB), tl.arange(0, BD)
    o_c = first + tl.arange(0, BC)
    # rows above the first of the columns stay 0
    for i_r in range(first, top, NB):
        o_r = i_r + o_b
        b_x = (o_r[:, None] == o_c[None, :]).to(tl.float64)
        for i_d in range(first, i_r, BD):
            m_d = i_d + o_d < i_r
            b_l = tl.load(p_factor + o_r[:, None] * K + (i_d + o_d)[None, :], mask=m_d[None, :], other=0)
            b_y = tl.load(p_system + (i_d + o_d)[:, None] * K + o_c[None, :], mask=m_d[:, None], other=0)
            b_x -= tl.dot(b_l, b_y, input_precision="ieee", out_dtype=tl.float64)
        b_own = tl.load(p_factor + o_r[:, None] * K + o_r[None, :])
        b_x = tl.dot(b_own, b_x, input_precision="ieee", out_dtype=tl.float64)
        tl.store(p_system + o_r[:, None] * K + o_c[None, :], b_x)
        tl.debug_barrier()
    blocks = tl.cdiv(top, NB)
    for block in range(0, blocks):
        i_r = (blocks - 1 - block) * NB
        o_r = i_r + o_b
        b_x = tl.load(p_system + o_r[:, None] * K + o_c[None, :])
        for i_d in range(i_r + NB, blocks * NB, BD):
            m_d = i_d + o_d < blocks * NB
            b_l = tl.load(p_factor + (i_d + o_d)[None, :] * K + o_r[:, None], mask=m_d[None, :], other=0)
            b_y = tl.load(p_system + (i_d + o_d)[:, None] * K + o_c[None, :], mask=m_d[:, None], other=0)
            b_x -= tl.dot(b_l, b_y, input_precision="ieee", out_dtype=tl.float64)
        b_own = tl.load(p_factor + o_r[None, :] * K + o_r[:, None])
        b_x = tl.dot(b_own, b_x, input_precision="ieee", out_dtype=tl.float64)
        tl.debug_barrier()
        tl.store(p_system + o_r[:, None] * K + o_c[None, :], b_x)
        tl.debug_barrier()
