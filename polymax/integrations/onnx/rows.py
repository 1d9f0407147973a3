"""Mappings of rows of scores: entmax from softmax to sparsemax, and the capped simplex."""

from typing import Any

import numpy as np
from onnxscript import ir
from onnxscript.onnx_opset import opset18 as op

from polymax.integrations.onnx import loops
from polymax.kernels.threshold import TSALLIS

DOUBLE = 11
LAST = [-1]


def threshold(x: Any, alpha: float, family: int, alphas: Any = None) -> Any:
    """Entmax of each row: alpha 1 is softmax, 1.5 and 2 are exact, other alphas are found by 40 halvings."""
    if family != TSALLIS:
        raise ValueError("ONNX export has entmax, and neither normmax nor sq_pnorm_max")
    if alphas is None and not 1 <= alpha <= 2:
        raise ValueError(f"alpha must be in [1, 2] for ONNX export; got {alpha}")
    wide = op.Cast(x, to=DOUBLE)
    top = _max(wide)
    dead = _forbidden(top)
    z = wide - op.Where(dead, _number(0.0), top)
    # scores that are NaN, or +inf less itself
    missing = _max(op.Cast(op.IsNaN(z), to=1)) > op.Constant(value_float=0.0)
    if alphas is not None:
        a = op.Unsqueeze(op.Cast(alphas, to=DOUBLE), op.Constant(value_ints=LAST))
        soft = op.Equal(a, _number(1.0))
        y = op.Where(soft, _softmax(z), _halved(z, op.Where(soft, _number(2.0), a)))
    elif alpha == 1:
        y = _softmax(z)
    elif alpha == 2:
        y = _sparsemax(z)
    elif alpha == 1.5:
        y = _entmax15(z)
    else:
        y = _halved(z, _number(alpha))
    y = op.Where(dead, _number(0.0), y)
    return op.CastLike(op.Where(missing, _number(float("nan")), y), x)


def capped(x: Any, lower: Any, upper: Any, total: Any, entropic: bool) -> Any:
    """The capped simplex of each row: 64 halvings for the threshold, then the free entries in closed form."""
    scores, low, high = (op.Cast(t, to=DOUBLE) for t in (x, lower, upper))
    mass = op.Unsqueeze(op.Cast(total, to=DOUBLE), op.Constant(value_ints=LAST))
    gone = _forbidden(scores)
    zero, infinity = _number(0.0), _number(float("inf"))
    top = _max(scores)
    dead = _forbidden(top)
    z = op.Where(gone, zero, scores - op.Where(dead, zero, top))
    low, high = op.Where(gone, zero, low), op.Where(gone, zero, high)
    if entropic:
        below, above = z - op.Log(high), op.Min(z - op.Log(low), _max(z) + _number(800.0))
    else:
        below, above = z - high, z - low
    widest = _number(1e300)
    below = op.Max(_min(op.Where(gone, infinity, below)), op.Neg(widest))
    above = op.Min(_max(op.Where(gone, op.Neg(infinity), above)), widest)
    search = loops.capped_exp_threshold if entropic else loops.capped_threshold
    tau = search(z, low, high, mass, below, above)
    y = op.Min(op.Max(op.Exp(z - tau) if entropic else z - tau, low), high)
    free = op.And(op.Not(gone), op.And(y > low, y < high))
    rest = mass - _sum(op.Where(free, zero, y))
    if entropic:
        inside = op.Where(free, op.Exp(z - _max(op.Where(free, z, op.Neg(infinity)))), zero)
        share = inside / op.Max(_sum(inside), _number(1e-300)) * rest
    else:
        nearest = _max(op.Where(free, z, op.Neg(widest)))
        over = op.Where(free, z - nearest, zero)
        count = op.Max(_sum(op.Where(free, _number(1.0), zero)), _number(1.0))
        share = over + (rest - _sum(over)) / count
    y = op.Where(free, share, op.Where(gone, zero, y))
    least, most = _sum(low), _sum(high)
    y = op.Where(mass <= least, low, op.Where(mass >= most, high, y))
    slack = _number(1e-6) * op.Max(mass, _number(1.0))
    fits = op.And(op.And(least <= mass + slack, most >= mass - slack), mass >= zero)
    finite = op.And(fits, _max(op.Cast(op.IsNaN(scores), to=1)) <= op.Constant(value_float=0.0))
    finite = op.And(finite, top < infinity)
    y = op.Where(op.Or(finite, dead), y, _number(float("nan")))
    kept = op.CastLike(y, x)
    # the result of half precision is float32, as from the kernel
    return kept if x.dtype is None or x.dtype.itemsize >= 4 else op.Cast(y, to=1)


def _softmax(z: Any) -> Any:
    weights = op.Exp(z)
    return weights / _sum(weights)


def _sparsemax(z: Any) -> Any:
    """The largest threshold tau with (sum of the k largest - 1) / k, by sorting."""
    ordered, ranks = _ordered(op.Max(z, _number(-2.0)))
    sums = op.CumSum(ordered, op.Constant(value_int=-1))
    inside = _number(1.0) + ranks * ordered > sums
    count = _sum(op.Cast(inside, to=DOUBLE))
    total = _sum(op.Where(inside, ordered, _number(0.0)))
    return op.Max(z - (total - _number(1.0)) / count, _number(0.0))


def _entmax15(z: Any) -> Any:
    """p = (z / 2 - tau)_+^2: tau solves a quadratic equation on the k largest entries, by sorting."""
    half = op.Max(z * _number(0.5), _number(-2.0))
    ordered, ranks = _ordered(half)
    axis = op.Constant(value_int=-1)
    mean = op.CumSum(ordered, axis) / ranks
    square = op.CumSum(ordered * ordered, axis) / ranks
    spread = ranks * (square - mean * mean)
    tau = mean - op.Sqrt(op.Max((_number(1.0) - spread) / ranks, _number(0.0)))
    count = op.Max(_sum(op.Cast(tau <= ordered, to=DOUBLE)), _number(1.0))
    chosen = op.GatherElements(tau, op.Cast(count - _number(1.0), to=7), axis=-1)
    root = op.Max(half - chosen, _number(0.0))
    return root * root


def _halved(z: Any, alpha: Any) -> Any:
    scale = alpha - _number(1.0)
    power = _number(1.0) / scale
    # w - u with u in [0, 1]; an entry of -1 or less has no weight
    w = op.Max(_number(1.0) + scale * z, _number(-1.0))
    u = loops.power_threshold(w, power)
    y = op.Pow(op.Max(w - u, _number(0.0)), power)
    return y / _sum(y)


def _ordered(x: Any) -> tuple[Any, Any]:
    """Entries in descending order, and their ranks 1, ..., n."""
    size = op.Shape(x, start=-1)
    values, _ = op.TopK(x, size, axis=-1)
    count = op.Squeeze(size, op.Constant(value_ints=[0]))
    ranks = op.Range(op.Constant(value_int=1), count + op.Constant(value_int=1), op.Constant(value_int=1))
    return values, op.Cast(ranks, to=DOUBLE)


def _number(value: float) -> Any:
    return op.Constant(value=ir.tensor(np.float64(value)))


def _forbidden(x: Any) -> Any:
    return op.And(op.IsInf(x), x < _number(0.0))


def _max(x: Any) -> Any:
    return op.ReduceMax(x, op.Constant(value_ints=LAST), keepdims=1)


def _min(x: Any) -> Any:
    return op.ReduceMin(x, op.Constant(value_ints=LAST), keepdims=1)


def _sum(x: Any) -> Any:
    return op.ReduceSum(x, op.Constant(value_ints=LAST), keepdims=1)
