"""Chains whose transitions fit into one tile: a program walks along an instance with the states in registers. For
Triton.

A matrix that all steps share is read once. The walk back sums the expectations of transitions on the way, in float64.
So a gradient takes one launch, and a short second launch to add up the sums of instances that share a transition.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Bound, Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.chain.cuda_whole_tangent import walk_tangent
from polymax.kernels.chain.cuda_whole_walks import walk_down, walk_up
from polymax.kernels.local_max.triton_max import smoothing

# the most states whose transitions fit into one tile
MOST_STATES = 64
# entries of a tile per thread; fewer for a tangent, which holds twice as many tiles, and beside tags, in float64
ENTRIES, TANGENT_ENTRIES, TAGGED_ENTRIES = 16, 8, 8
# entries that sums of instances may always take, even if this is more than half the memory of the unary scores
SMALL_SUMS = 1 << 18
# BLOCK: entries that a program adds up over the sums
# TERMS: sums that it adds at a time
BLOCK, TERMS = 32, 32


class Shape(NamedTuple):
    """The key of launch plans: sizes, dtype and alpha of a problem."""

    batch: int
    n: int
    states: int
    # numbers of instances and steps of the transitions: as given, and as stored in memory
    given: tuple[int, int]
    stored: tuple[int, int]
    dtype: torch.dtype
    alpha: float
    # dims of the transitions
    dims: int = 4

    def full(self) -> "Shape":
        """Return the shape of this problem with expectations for each instance and step."""
        return self._replace(given=(self.batch, max(self.n - 1, 0)), dims=4)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers that every kernel takes: group, steps between two instances' matrices, n, states."""
        group = max(self.batch // max(self.given[0], 1), 1)
        return group, self.stored[1] if self.stored[0] > 1 else 0, self.n, self.states

    @property
    def summed(self) -> bool:
        """Return True if the steps of an instance share the gradient of one transition."""
        return self.given[1] == 1

    def constants(self, entries: int) -> dict[str, object]:
        size = ceil_power(self.states)
        warps = min(max(size * size // (32 * entries), 1), 16)
        return {**smoothing(self.alpha), "SHARED": self.stored[1] == 1, "BS": size, "num_warps": warps, "num_stages": 1}


def shape_of(unary: Tensor, transition: Tensor, alpha: float) -> Shape | None:
    """Return the shape of a problem, also with one transition (s, s) for all; None if these kernels do not support
    it.
    """
    batch, n, s = unary.shape
    if not 0 < s <= MOST_STATES or not batch or not n or not transition.numel():
        return None
    if transition.dim() == 2:
        return Shape(batch, n, s, (1, 1), (1, 1), unary.dtype, alpha, 2)
    instances, steps = transition.shape[:2]
    stride_b, stride_t = transition.stride()[:2]
    stored = 1 if stride_b == 0 else instances, 1 if stride_t == 0 else steps
    return Shape(batch, n, s, (instances, steps), stored, unary.dtype, alpha)


def fused(shape: Shape) -> bool:
    """Return True if the walk back can sum the expectations of transitions; False if instances share each step's
    matrix.
    """
    group = shape.batch // shape.given[0]
    if not shape.summed:
        return group == 1
    small = shape.batch * shape.states**2 <= max(SMALL_SUMS, shape.batch * shape.n * shape.states // 2)
    return group == 1 or small


def stored(transition: Tensor) -> Tensor:
    """Return contiguous transitions, without the repetitions of an expanded tensor."""
    if transition.is_contiguous():
        return transition
    if transition.dim() == 2:
        return transition.contiguous()
    for dim in (0, 1):
        if transition.stride(dim) == 0 and transition.shape[dim] > 1:
            transition = transition.narrow(dim, 0, 1)
    return transition.contiguous()


@lru_cache(maxsize=512)
def _inside_plan(shape: Shape, tagged: bool) -> Bound:
    options = {"TAGS": tagged, **shape.constants(TAGGED_ENTRIES if tagged else ENTRIES)}
    return Bound(walk_up.prepared(**options), (shape.batch,), *shape.numbers)


@lru_cache(maxsize=512)
def _outside_plan(shape: Shape, given: bool, tagged: bool) -> Bound:
    """Return the launch of the walk down; `given` is True if the value has a slope."""
    entries = TAGGED_ENTRIES if tagged else ENTRIES
    options = {"SUMMED": shape.summed, "TAGS": tagged, **shape.constants(entries)}
    return Bound(walk_down.prepared(**options), (shape.batch,), *shape.numbers, int(given))


@lru_cache(maxsize=512)
def _tangent_plan(shape: Shape, given: bool, states: bool, along: tuple[int, ...] | None, at: int | None) -> Bound:
    """Return the launch of the tangent; `along` is the shape (instances, steps) of the stored tangents of transitions.

    `states` is True if unary scores have tangents. `at`: offset of the sums in the workspace if the value is not
    needed, else None.
    """
    instances, steps = along or (shape.batch, shape.n - 1)
    moved = max(shape.batch // instances, 1), steps if instances > 1 else 0
    flags = int(states), int(along is not None), int(at is None)
    options = {"SUMMED": shape.summed, "ONE": steps == 1, **shape.constants(TANGENT_ENTRIES)}
    numbers = *shape.numbers, int(given), *moved, at or 0, *flags
    return Bound(walk_tangent.prepared(**options), (shape.batch,), *numbers)


@lru_cache(maxsize=512)
def _add_plan(total: int, count: int, size: int, at: int, dtype: torch.dtype) -> Bound:
    grid = total, triton.cdiv(size, BLOCK)
    return Bound(_add.prepared(B=BLOCK, K=min(ceil_power(count), TERMS), num_warps=4), grid, count, size, at)


def inside(
    shape: Shape, unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the value and the chart; with tags, of unary scores less the scores of these tags, with a chart in
    float64.
    """
    dtype = unary.dtype if tags is None else torch.float64
    value = unary.new_empty(shape.batch)
    chart = unary.new_empty(shape.batch, shape.n, 2, shape.states, dtype=dtype)
    sizes = _whole(lengths)
    # the scores of the tags, which the walk writes before it begins
    given = (sizes, chart) if tags is None else (_whole(tags), chart.new_empty(shape.batch, shape.n))
    with on_device(unary):
        _inside_plan(shape, tags is not None)(unary.contiguous(), stored(transition), sizes, *given, value, chart)
    return value, chart


def outside(
    shape: Shape,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    g: Tensor | None,
    v: Tensor | None = None,
    tags: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the derivative of g v (of v if g is None); NaN for instances whose value v, if given, is NaN.

    With tags, v has their score subtracted.
    """
    batch, n, s = shape[:3]
    mu, sums = transition.new_empty(batch, n, s), _sums(shape, transition)
    slope, sizes = _slope(v, g), _whole(lengths)
    with on_device(chart):
        plan = _outside_plan(shape, g is not None, tags is not None)
        known = sizes if tags is None else _whole(tags)
        plan(stored(transition), sizes, known, chart.contiguous(), *slope, mu, sums)
        return mu, _added(shape, sums, transition)


def tangent(
    shape: Shape,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    g: Tensor,
    d_unary: Tensor,
    d_transition: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, n, s = shape[:3]
    value, dmu, sums = chart.new_empty(batch), chart.new_empty(batch, n, s), _sums(shape, chart)
    # workspace for dv and the means of the Jacobians, read by the walk back
    room = chart.new_empty(batch, n, 2, s)
    along, moved = _along(d_transition)
    du, dw = d_unary.contiguous(), chart if along is None else along
    given = stored(transition), _whole(lengths), chart.contiguous(), *_slope(None, g), du, dw
    with on_device(chart):
        _tangent_plan(shape, True, True, moved, None)(*given, room, value, dmu, sums)
        return value, dmu, _added(shape, sums, chart)


def change(
    shape: Shape,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    v: Tensor,
    d_unary: Tensor | None,
    d_transition: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the change of the derivative of v along tangents (None: 0); NaN if v is NaN."""
    batch, n, s = shape[:3]
    dmu = chart.new_empty(batch, n, s)
    # workspace of the walk back, as in `tangent`, followed by the sums
    before = batch * n * 2 * s
    apart = batch == shape.given[0]
    room = chart.new_empty(before if apart else before + batch * s * s)
    sums = _sums(shape, chart) if apart else room
    du = chart if d_unary is None else d_unary.contiguous()
    along, moved = _along(d_transition)
    given = stored(transition), _whole(lengths), chart, v, v, du, chart if along is None else along
    with on_device(chart):
        at = 0 if apart else before
        _tangent_plan(shape, False, d_unary is not None, moved, at)(*given, room, v, dmu, sums)
        return dmu, _added(shape, sums, chart, at)


def _along(d_transition: Tensor | None) -> tuple[Tensor | None, tuple[int, ...] | None]:
    """Return the stored tangents of transitions and their numbers of instances and steps; (None, None) without
    tangents.

    For chains of a single state, transitions have no entries.
    """
    if d_transition is None or not d_transition.numel():
        return None, None
    along = stored(d_transition)
    return along, tuple(along.shape[:-2]) or (1, 1)


def _slope(v: Tensor | None, g: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return values and slopes as the walks take them; a missing one is replaced by the other."""
    if g is None:
        assert v is not None, "without a slope there is a value"
        return v, v
    g = g.contiguous()
    return g if v is None else v, g


def _whole(lengths: Tensor) -> Tensor:
    return lengths if lengths.dtype == torch.long and lengths.is_contiguous() else lengths.long().contiguous()


def _sums(shape: Shape, like: Tensor) -> Tensor:
    """Return memory for the sums of the walk back: for each instance, and for each step with its own transition."""
    if shape.batch == 1 and shape.dims == 2:
        return like.new_empty(shape.states, shape.states)
    return like.new_empty(shape.batch, shape.given[1], shape.states, shape.states)


def _added(shape: Shape, sums: Tensor, like: Tensor, at: int = 0) -> Tensor:
    """Return the total over instances that share a transition of the sums at offset `at`, added in a fixed order."""
    instances, s = shape.given[0], shape.states
    if instances == shape.batch:
        return sums
    total = like.new_empty(s, s) if shape.dims == 2 else like.new_empty(instances, 1, s, s)
    _add_plan(instances, shape.batch // instances, s * s, at, sums.dtype)(sums, total)
    return total


@Entry
@triton.jit(do_not_specialize=["at"])
def _add(p_parts, p_total, count, size, at, B: tl.constexpr, K: tl.constexpr):
    p_parts += at
    o_x, o_k = tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, K)
    m_x = o_x < size
    p_parts += tl.program_id(0).to(tl.int64) * count * size
    b_sum = tl.zeros([B], tl.float64)
    for k in range(0, count, K):
        m_k = (k + o_k < count)[:, None] & m_x[None, :]
        b_parts = tl.load(p_parts + (k + o_k)[:, None] * size + o_x[None, :], mask=m_k, other=0)
        b_sum += tl.sum(b_parts.to(tl.float64), 0)
    p_total += tl.program_id(0).to(tl.int64) * size
    tl.store(p_total + o_x, b_sum.to(p_total.dtype.element_ty), mask=m_x)
