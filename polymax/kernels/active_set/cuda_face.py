"""The faces of solutions on a GPU: one program per instance adds structures of weight 0 until they span the face of mu.

It continues from the state that cuda_loop.py leaves, in the same shapes. The two kernels are separate because compile
time grows at least with the square of the size of a program, and this kernel is only needed for a gradient.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.active_set.cuda_loop import CONVERGED, DIRECTION, FACE, FACE_FULL, OTHER_FACE, _square
from polymax.kernels.active_set.triton_face import direction, nudge, widen


@Entry
@triton.jit(do_not_specialize=["height", "width", "slots", "rounds"])
def span(
    problem, held, point, fresh, known, height, width, slots, rounds,
    BEST: tl.constexpr, SIZES: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr,
    BS: tl.constexpr,
):  # fmt: skip
    """Take up to `rounds` steps for each instance whose face is to be spanned; BEST(problem, ...) finds structures."""
    i_b = tl.program_id(0).to(tl.int64)
    d = height * width
    n = tl.num_programs(0).to(tl.int64)
    mine = held[0] + i_b * K * slots, held[1] + i_b * K * K, held[2] + i_b * (K + 3) * K
    arounds = point + 2 * n * d
    here = point + i_b * d, point + (n + i_b) * d, arounds + i_b * d, arounds + (n + i_b) * d
    p_fresh = fresh + i_b * slots
    status = tl.load(known + i_b)
    square = _square(here[1], d, BP * BU)
    while (status >= DIRECTION) & (status < CONVERGED) & (rounds > 0):
        if status == DIRECTION:
            direction(mine[0], mine[2], here[3], height, width, slots, K, BR, BP, BU, BS)
            status = status * 0 + FACE
        else:
            tl.debug_barrier()
            score = BEST(problem, arounds, p_fresh, height, width, SIZES)
            tl.debug_barrier()
            more = widen(mine, here, p_fresh, score, _side(status), square, slots, K, BR, BP, BU)
            none = tl.where(status == FACE, OTHER_FACE, CONVERGED)
            status = tl.where(more > 0, DIRECTION, tl.where(more < 0, FACE_FULL, none))
        if (status == FACE) | (status == OTHER_FACE):
            nudge(here, _side(status), d, BU)
        rounds -= 1
    tl.store(known + i_b, status)
    tl.store(known + 2 * n + i_b, tl.sum((tl.load(mine[2] + (K + 1) * K + tl.arange(0, K)) >= 0).to(tl.int32), 0))


@triton.jit
def _side(status):
    return tl.where(status == FACE, 1.0, -1.0).to(tl.float64)
