"""Chains and CTC: Viterbi's search, expected states and transitions, and the best labelling of frames."""

import math
from typing import Any

import numpy as np
from onnxscript import ir
from onnxscript.onnx_opset import opset18 as op

from polymax.integrations.onnx import loops

DOUBLE, INT = 11, 7


def chain_inside(unary: Any, transition: Any, lengths: Any, alpha: float) -> tuple[Any, Any]:
    """The log of the sum over sequences (alpha 1), or the score of the best one (alpha inf), and an empty chart."""
    _check_alpha(alpha)
    given = _Chain(unary, transition, lengths)
    if alpha == 1:
        value, _ = given.total()
    else:
        value, _, _ = given.best()
    chart = op.Concat(*[op.Unsqueeze(unary, _ints(2))] * 2, axis=2)
    return op.CastLike(value, unary), chart


def chain_outside(unary: Any, transition: Any, lengths: Any, chart: Any, g: Any, alpha: float) -> tuple[Any, Any]:
    """Expected states and transitions (alpha 1), or those of the best sequence (alpha inf), times g."""
    _check_alpha(alpha)
    given = _Chain(unary, transition, lengths)
    factor = op.Cast(g, to=DOUBLE)
    states, steps = given.expected(factor) if alpha == 1 else given.indicated(factor)
    # scores that instances or steps share get the sum
    for axis in (0, 1):
        if transition.shape is not None and transition.shape[axis] == 1:
            steps = op.ReduceSum(steps, _ints(axis), keepdims=1)
    return op.CastLike(states, unary), op.CastLike(steps, transition)


def token_order(kept: Any) -> tuple[Any, Any]:
    """The places of the tokens in order, then the others, and the number of tokens."""
    place = _count(kept, 1)
    size = op.Shape(kept, start=1, end=2)
    _, order = op.TopK(op.Where(kept, place, place + size), size, axis=1, largest=0, sorted=1)
    return order, op.ReduceSum(op.Cast(kept, to=INT), _ints(1), keepdims=0)


def tokens_first(x: Any, start: Any, end: Any, order: Any, lengths: Any) -> Any:
    """The rows of x in order, plus start at the first and end at the last token."""
    if order is not None:
        x = op.GatherElements(x, op.Expand(op.Unsqueeze(order, _ints(2)), op.Shape(x)), axis=1)
    place = op.Unsqueeze(_count(x, 1), _ints(1))
    last = op.Unsqueeze(lengths, _ints(1, 2)) - _ints(1)
    none = op.CastLike(0.0, x)
    for row, at in ((start, _ints(0)), (end, last)):
        x = x + op.Where(op.Equal(place, at), op.Unsqueeze(row, _ints(1)), none)
    return x


def ctc_search(x: Any, targets: Any, counts: Any, frames: Any, blank: int) -> tuple[Any, Any]:
    """The label of each frame in the best labelling that reads as the targets, -1 for none, and its score."""
    counts, frames = op.Cast(counts, to=INT), op.Cast(frames, to=INT)
    column = op.Unsqueeze(counts, _ints(1))
    # blanks at even lanes, targets at odd ones
    size = op.Shape(targets, start=1)
    rows = op.Unsqueeze(op.Cast(targets, to=INT), _ints(2))
    pairs = op.Concat(op.CastLike(blank, rows) + rows * op.CastLike(0, rows), rows, axis=2)
    joined = op.Reshape(pairs, op.Concat(_ints(0), size * _ints(2), axis=0), allowzero=0)
    labels = op.Pad(joined, _ints(0, 0, 0, 1), op.CastLike(blank, joined))
    lane = _count(labels, 1)
    wide = op.Shape(x, start=2)
    odd = op.Equal(op.Mod(lane, _ints(2)), _ints(1))
    valid = op.And(lane <= column * _ints(2), op.Or(op.Not(odd), op.And(labels >= _ints(0), labels < wide)))
    before = op.Slice(
        op.Pad(labels, _ints(0, 2, 0, 0), op.CastLike(-1, labels)), _ints(0), op.Shape(labels, start=1), _ints(1)
    )
    direct = op.And(odd, op.Not(op.Equal(labels, before)))
    zero, none = _number(0.0), _number(-math.inf)
    skips, inside = op.Where(direct, zero, none), op.Where(valid, zero, none)
    start = op.Where(lane <= _ints(1), zero, none) + inside
    safe = op.Where(op.And(labels >= _ints(0), labels < wide), labels, _ints(0))
    times = _count(x, 1)
    last, moves = loops.ctc_forward(x, safe, skips, inside, times, frames, start, none)
    blank_end = op.GatherElements(last, column * _ints(2), axis=1)
    target_end = op.GatherElements(last, op.Max(column * _ints(2) - _ints(1), _ints(0)), axis=1)
    target_end = op.Where(column > _ints(0), target_end, none)
    # NaN, too, is taken before blanks
    ends = op.Or(target_end > blank_end, op.IsNaN(target_end))
    value = op.Squeeze(op.Where(ends, target_end, blank_end), _ints(1))
    empty = op.And(op.Equal(frames, _ints(0)), op.Equal(counts, _ints(0)))
    value = op.Where(op.Equal(frames, _ints(0)), op.Where(empty, zero, none), value)
    final = op.Squeeze(column * _ints(2) - op.Cast(ends, to=INT), _ints(1))
    lanes = loops.ctc_path(moves, times, frames, op.Max(final, _ints(0)))
    found = op.GatherElements(labels, op.Transpose(lanes, perm=[1, 0]), axis=1)
    # False for NaN, too
    going = op.And(times < op.Unsqueeze(frames, _ints(1)), op.Unsqueeze(value > none, _ints(1)))
    return op.Where(going, found, _ints(-1)), value


class _Chain:
    """The scores of a chain in float64, and its recursions."""

    def __init__(self, unary: Any, transition: Any, lengths: Any) -> None:
        self.unary = op.Cast(unary, to=DOUBLE)
        self.lengths = op.Cast(lengths, to=INT)
        self.times = _count(unary, 1)
        self.shared = transition.shape is not None and transition.shape[1] == 1
        moves = op.Cast(transition, to=DOUBLE)
        if self.shared:
            self.moves, self.into = moves, self.times * _ints(0)
        else:
            # a step before the first one, which is never read
            self.moves, self.into = op.Pad(moves, _ints(0, 1, 0, 0, 0, 0, 0, 0), _number(0.0)), self.times
        last = op.Shape(unary, start=1, end=2) - _ints(1)
        self.out = self.times * _ints(0) if self.shared else op.Min(self.times + _ints(1), last)
        rows = op.Concat(op.Shape(unary, start=0, end=1), op.Shape(unary, start=2, end=3), axis=0)
        self.zeros = op.Expand(_number(0.0), rows)
        self.inside = self.times < op.Unsqueeze(self.lengths, _ints(1))

    def total(self) -> tuple[Any, Any]:
        """The log of the sum over sequences (B,), and forward messages (n, B, s)."""
        nothing = op.ReduceSum(self.zeros, _ints(1), keepdims=1)
        given = self.unary, self.moves, self.times, self.into, self.lengths, self.zeros, nothing
        messages, last, subtracted = loops.chain_forward(*given)
        top = op.ReduceMax(last, _ints(1), keepdims=1)
        finite = op.Where(op.Or(op.IsInf(top), op.IsNaN(top)), _number(0.0), top)
        summed = op.Log(op.ReduceSum(op.Exp(last - finite), _ints(1), keepdims=1)) + finite + subtracted
        return self._valued(op.Squeeze(summed, _ints(1))), messages

    def best(self) -> tuple[Any, Any, Any]:
        """The score of the best sequence (B,), the scores of its last states, and the best states before each."""
        last, before = loops.chain_search(
            self.unary, self.moves, self.times, self.into, self.lengths, self.zeros, _number(-math.inf)
        )
        missing = op.ReduceMax(op.Cast(op.IsNaN(last), to=1), _ints(1), keepdims=0) > op.Constant(value_float=0.0)
        value = op.Where(missing, _number(math.nan), op.ReduceMax(last, _ints(1), keepdims=0))
        return self._valued(value), last, before

    def expected(self, g: Any) -> tuple[Any, Any]:
        """Expected states (B, n, s) and transitions (B, n - 1, s, s), times g."""
        value, messages = self.total()
        after = loops.chain_backward(self.unary, self.moves, self.times, self.out, self.lengths, self.zeros)
        forward, backward = (op.Transpose(t, perm=[1, 0, 2]) for t in (messages, after))
        known = op.And(self.inside, op.Unsqueeze(op.Not(_lost(value)), _ints(1)))
        states = _normalized(forward + backward, [2]) * op.Unsqueeze(g, _ints(1, 2))
        states = op.Where(op.Unsqueeze(known, _ints(2)), states, _number(0.0))
        scores = op.Unsqueeze(_before_last(forward), _ints(3)) + self._steps()
        scores = scores + op.Unsqueeze(_after_first(self.unary) + _after_first(backward), _ints(2))
        steps = _normalized(scores, [2, 3]) * op.Unsqueeze(g, _ints(1, 2, 3))
        return states, op.Where(op.Unsqueeze(_after_first(known), _ints(2, 3)), steps, _number(0.0))

    def indicated(self, g: Any) -> tuple[Any, Any]:
        """States (B, n, s) and transitions (B, n - 1, s, s) of the best sequence, times g."""
        value, last, before = self.best()
        final = op.ArgMax(last, axis=1, keepdims=0)
        found = op.Transpose(loops.chain_path(before, self.times, self.lengths, final), perm=[1, 0])
        each = op.Equal(op.Unsqueeze(found, _ints(2)), _count(self.unary, 2))
        known = op.And(self.inside, op.Unsqueeze(op.Not(_lost(value)), _ints(1)))
        hot = op.Where(op.And(each, op.Unsqueeze(known, _ints(2))), _number(1.0), _number(0.0))
        missing = op.IsNaN(g)
        # the parts of an instance with NaN are NaN
        whole = op.And(op.Unsqueeze(known, _ints(2)), op.Unsqueeze(missing, _ints(1, 2)))
        factor = op.Where(missing, _number(0.0), g)
        states = op.Where(whole, _number(math.nan), hot * op.Unsqueeze(factor, _ints(1, 2)))
        pairs = op.Unsqueeze(_before_last(hot), _ints(3)) * op.Unsqueeze(_after_first(hot), _ints(2))
        lost = op.Unsqueeze(_after_first(whole), _ints(3))
        return states, op.Where(lost, _number(math.nan), pairs * op.Unsqueeze(factor, _ints(1, 2, 3)))

    def _steps(self) -> Any:
        return self.moves if self.shared else _after_first(self.moves)

    def _valued(self, value: Any) -> Any:
        return op.Where(op.Equal(self.lengths, _ints(0)), _number(0.0), value)


def _check_alpha(alpha: float) -> None:
    if alpha not in (1, math.inf):
        raise ValueError(f"ONNX export of a chain has Marginals and HardMax; got a smoothing with alpha {alpha}")


def _normalized(x: Any, axes: list[int]) -> Any:
    """Softmax over several axes, 0 if all scores are -inf."""
    top = op.ReduceMax(x, _ints(*axes), keepdims=1)
    finite = op.Where(op.Or(op.IsInf(top), op.IsNaN(top)), _number(0.0), top)
    weights = op.Exp(x - finite)
    total = op.ReduceSum(weights, _ints(*axes), keepdims=1)
    return weights / op.Where(op.Equal(total, _number(0.0)), _number(1.0), total)


def _before_last(x: Any) -> Any:
    return op.Slice(x, _ints(0), _ints(-1), _ints(1))


def _after_first(x: Any) -> Any:
    return op.Slice(x, _ints(1), _ints(np.iinfo(np.int64).max), _ints(1))


def _lost(value: Any) -> Any:
    """True where no structure is allowed."""
    return op.And(op.IsInf(value), value < _number(0.0))


def _count(x: Any, axis: int) -> Any:
    """The numbers 0, 1, ... of the entries along an axis, int64."""
    size = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), _ints(0))
    return op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=list(values))


def _number(value: float) -> Any:
    return op.Constant(value=ir.tensor(np.float64(value)))
