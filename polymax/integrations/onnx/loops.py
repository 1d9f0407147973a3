"""Recursions and searches as functions of ONNX Script, whose code is compiled to graphs with loops.

All arithmetic is in float64. -inf forbids a part, and NaN is passed on.
"""

from onnxscript import DOUBLE, INT64, graph, script
from onnxscript.onnx_opset import opset18 as op
from onnxscript.values import Opset

polymax = Opset("polymax", 1)


@script(polymax, default_opset=op)
def power_threshold(w, r) -> DOUBLE:
    """Return the end, at which the sum is at least 1, of 40 halvings of [0, 1] for u with sum (w - u)_+^r = 1."""
    low = op.ReduceMax(w, op.Constant(value_ints=[-1]), keepdims=1) * 0.0
    step = op.CastLike(op.Constant(value_float=1.0), w)
    for _ in range(40):
        step = step * 0.5
        t = low + step
        d = op.Max(w - t, op.CastLike(op.Constant(value_float=0.0), w))
        total = op.ReduceSum(op.Pow(d, r), op.Constant(value_ints=[-1]), keepdims=1)
        low = op.Where(total >= 1.0, t, low)
    return low


@script(polymax, default_opset=op)
def capped_threshold(z, low, high, total, below, above) -> DOUBLE:
    """Return the upper end of 64 halvings of [below, above] for tau with sum clip(z - tau, low, high) = total."""
    for _ in range(64):
        tau = below * 0.5 + above * 0.5
        mass = op.ReduceSum(op.Min(op.Max(z - tau, low), high), op.Constant(value_ints=[-1]), keepdims=1)
        over = mass > total
        below = op.Where(over, tau, below)
        above = op.Where(over, above, tau)
    return above


@script(polymax, default_opset=op)
def capped_exp_threshold(z, low, high, total, below, above) -> DOUBLE:
    """Return the upper end of 64 halvings of [below, above] for tau with sum clip(exp(z - tau), low, high) = total."""
    for _ in range(64):
        tau = below * 0.5 + above * 0.5
        mass = op.ReduceSum(op.Min(op.Max(op.Exp(z - tau), low), high), op.Constant(value_ints=[-1]), keepdims=1)
        over = mass > total
        below = op.Where(over, tau, below)
        above = op.Where(over, above, tau)
    return above


@script(polymax, default_opset=op)
def chain_forward(unary, transition, times, steps, lengths, start, zeros) -> tuple[DOUBLE, DOUBLE, DOUBLE]:
    """Return forward messages (n, B, s), less what was subtracted, the last one, and the subtracted sums (B, 1).

    `times` (n,) counts positions, `steps` (n,) names the transition into each, and `start` (B, s) and `zeros` (B, 1)
    are 0.
    """

    @graph()
    def forward(v, total, x, t, step):
        each = op.Unsqueeze(v, op.Constant(value_ints=[2])) + op.Gather(transition, step, axis=1)
        top = op.ReduceMax(each, op.Constant(value_ints=[1]), keepdims=1)
        finite = op.Where(op.Or(op.IsInf(top), op.IsNaN(top)), op.CastLike(0.0, top), top)
        summed = op.Log(op.ReduceSum(op.Exp(each - finite), op.Constant(value_ints=[1]), keepdims=1)) + finite
        after = op.Where(t == 0, x, op.Squeeze(summed, op.Constant(value_ints=[1])) + x)
        largest = op.ReduceMax(after, op.Constant(value_ints=[1]), keepdims=1)
        scale = op.Where(op.Or(op.IsInf(largest), op.IsNaN(largest)), op.CastLike(0.0, largest), largest)
        going = op.Unsqueeze(t < lengths, op.Constant(value_ints=[1]))
        message = op.Where(going, after - scale, v)
        subtracted = op.Where(going, total + scale, total)
        kept = op.Identity(message)
        return message, subtracted, kept

    last, total, messages = op.Scan(
        start, zeros, unary, times, steps, body=forward, num_scan_inputs=3, scan_input_axes=[1, 0, 0]
    )
    return messages, last, total


@script(polymax, default_opset=op)
def chain_backward(unary, transition, times, steps, lengths, start) -> DOUBLE:
    """Return backward messages (n, B, s): for each state the smoothed score of the later positions, less a constant."""

    @graph()
    def backward(v, x, t, step):
        # v is the message at t + 1, and x the score there
        each = op.Unsqueeze(v, op.Constant(value_ints=[1])) + op.Gather(transition, step, axis=1)
        top = op.ReduceMax(each, op.Constant(value_ints=[2]), keepdims=1)
        finite = op.Where(op.Or(op.IsInf(top), op.IsNaN(top)), op.CastLike(0.0, top), top)
        summed = op.Log(op.ReduceSum(op.Exp(each - finite), op.Constant(value_ints=[2]), keepdims=1)) + finite
        after = op.Squeeze(summed, op.Constant(value_ints=[2]))
        largest = op.ReduceMax(after, op.Constant(value_ints=[1]), keepdims=1)
        scale = op.Where(op.Or(op.IsInf(largest), op.IsNaN(largest)), op.CastLike(0.0, largest), largest)
        going = op.Unsqueeze(t + 1 < lengths, op.Constant(value_ints=[1]))
        kept = op.Where(going, after - scale, op.CastLike(0.0, after) * start)
        message = kept + x
        return message, kept

    _, messages = op.Scan(
        start,
        unary,
        times,
        steps,
        body=backward,
        num_scan_inputs=3,
        scan_input_axes=[1, 0, 0],
        scan_input_directions=[1, 1, 1],
        scan_output_directions=[1],
    )
    return messages


@script(polymax, default_opset=op)
def chain_search(unary, transition, times, steps, lengths, start, none) -> tuple[DOUBLE, INT64]:
    """Return the score of the best state at each last position (B, s), and the best states before (n, B, s).

    `none` is -inf.
    """

    @graph()
    def forward(v, x, t, step):
        each = op.Unsqueeze(v, op.Constant(value_ints=[2])) + op.Gather(transition, step, axis=1)
        top = op.ReduceMax(each, op.Constant(value_ints=[1]), keepdims=0)
        missing = op.ReduceMax(op.Cast(op.IsNaN(each), to=1), op.Constant(value_ints=[1]), keepdims=0) > 0.0
        best = op.Where(missing, none - none, top)
        after = op.Where(t == 0, x, best + x)
        going = op.Unsqueeze(t < lengths, op.Constant(value_ints=[1]))
        message = op.Where(going, after, v)
        before = op.ArgMax(each, axis=1, keepdims=0)
        return message, before

    last, before = op.Scan(start, unary, times, steps, body=forward, num_scan_inputs=3, scan_input_axes=[1, 0, 0])
    return last, before


@script(polymax, default_opset=op)
def chain_path(before, times, lengths, final) -> INT64:
    """Return the states (n, B) that lead to the final states (B,), which also stand at padding."""

    @graph()
    def back(state, pointers, t):
        # the pointers at t give the state at t - 1
        kept = op.Identity(state)
        taken = op.Squeeze(
            op.GatherElements(pointers, op.Unsqueeze(state, op.Constant(value_ints=[1])), axis=1),
            op.Constant(value_ints=[1]),
        )
        moved = op.Where(t < lengths, taken, state)
        return moved, kept

    _, states = op.Scan(
        final,
        before,
        times,
        body=back,
        num_scan_inputs=2,
        scan_input_directions=[1, 1],
        scan_output_directions=[1],
    )
    return states


@script(polymax, default_opset=op)
def ctc_forward(x, labels, skips, inside, times, frames, start, none) -> tuple[DOUBLE, INT64]:
    """Return the best scores (B, lanes) after the last frames, and the moves (n, B, lanes): 0, 1 or 2 lanes back.

    Lanes are blanks and targets in turns, and `labels` (B, lanes) has their classes. Three masks are 0 or -inf: `skips`
    is 0 where a target may follow another target directly, `inside` at lanes of the instance, and `start` at the lanes
    with which a labelling may begin. `none` is -inf.
    """

    @graph()
    def forward(v, frame, t):
        pads = op.Constant(value_ints=[0, 1, 0, 0])
        further = op.Constant(value_ints=[0, 2, 0, 0])
        width = op.Shape(v, start=1)
        ones = op.Constant(value_ints=[1])
        zero = op.Constant(value_ints=[0])
        one_back = op.Slice(op.Pad(v, pads, none), zero, width, ones)
        two_back = op.Slice(op.Pad(v, further, none), zero, width, ones) + skips
        each = op.Concat(
            op.Unsqueeze(v, op.Constant(value_ints=[2])),
            op.Unsqueeze(one_back, op.Constant(value_ints=[2])),
            op.Unsqueeze(two_back, op.Constant(value_ints=[2])),
            axis=2,
        )
        missing = op.IsNaN(each)
        # NaN is taken before all numbers
        ranked = op.Where(missing, op.Neg(none), each)
        move = op.ArgMax(ranked, axis=2, keepdims=0)
        any_missing = op.ReduceMax(op.Cast(missing, to=1), op.Constant(value_ints=[2]), keepdims=0) > 0.0
        best = op.ReduceMax(ranked, op.Constant(value_ints=[2]), keepdims=0)
        reached = op.Where(t == 0, start, op.Where(any_missing, none - none, best)) + inside
        scores = op.Cast(op.GatherElements(frame, labels, axis=1), to=11)
        # scores that no path uses do not count, even if they are NaN
        lost = op.And(op.IsInf(reached), reached < 0.0)
        after = op.Where(lost, reached, reached + scores)
        going = op.Unsqueeze(t < frames, op.Constant(value_ints=[1]))
        kept = op.Where(going, after, v)
        return kept, move

    last, moves = op.Scan(start, x, times, body=forward, num_scan_inputs=2, scan_input_axes=[1, 0])
    return last, moves


@script(polymax, default_opset=op)
def ctc_path(moves, times, frames, final) -> INT64:
    """Return the lanes (n, B) that lead to the final lanes (B,), which also stand at padding."""

    @graph()
    def back(lane, move, t):
        kept = op.Identity(lane)
        taken = op.Squeeze(
            op.GatherElements(move, op.Unsqueeze(lane, op.Constant(value_ints=[1])), axis=1),
            op.Constant(value_ints=[1]),
        )
        moved = op.Where(op.And(t < frames, t > 0), lane - taken, lane)
        inside = op.Max(moved, op.CastLike(0, moved))
        return inside, kept

    _, lanes = op.Scan(
        final,
        moves,
        times,
        body=back,
        num_scan_inputs=2,
        scan_input_directions=[1, 1],
        scan_output_directions=[1],
    )
    return lanes
