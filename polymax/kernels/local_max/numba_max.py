"""The smoothed maximum for Numba, of a row of float64 numbers or of LANES such rows side by side.

`a` is an array of numbers, or (rows, LANES); its first `count` entries are the arguments. The type of `omega` selects
the smoothing at compile time: Entropic(), Quadratic(), Hard(), or the alpha of Tsallis' entropy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from polymax.backend.numba_math import PART, inline
from polymax.kernels.local_max import CLOSE, ROUNDS
from polymax.kernels.local_max.numba_lanes import exp, fill, load, log, select, some, sqrt, store

_CLOSE = CLOSE[np.dtype(np.float64)]


class Entropic(NamedTuple):
    """alpha = 1: Shannon's entropy."""


class Quadratic(NamedTuple):
    """alpha = 2: Gini's entropy."""


class Hard(NamedTuple):
    """alpha = inf: no smoothing."""


class Linear(NamedTuple):
    """alpha = 1, by sums of products instead of exponentials and logarithms, as far as the range of numbers allows."""


Smoothing = Entropic | Quadratic | Hard | Linear | float
_NAMED: dict[float, Smoothing] = {1.0: Entropic(), 2.0: Quadratic(), np.inf: Hard()}
_LINEAR, _UNREAD = Linear(), np.zeros(1, np.bool_)


def smoothing(alpha: float) -> Smoothing:
    """Return the smoothing argument of a kernel for this alpha."""
    return _NAMED.get(alpha, float(alpha))


def in_turn(alpha: float, run: Callable[..., None], *args: Any, more: tuple[Any, ...] = ()) -> None:
    """Run a kernel that may compute Shannon's entropy by sums of products; run it again on the instances that it marks
    odd.

    After its other arguments it takes an array whose entry becomes True if there are odd instances, and the smoothing;
    `more` comes last.
    """
    if alpha != 1:
        run(*args, _UNREAD, smoothing(alpha), *more)
        return
    odd = np.zeros(1, np.bool_)
    run(*args, odd, _LINEAR, *more)
    if odd[0]:
        run(*args, odd, _NAMED[1.0], *more)


def by_smoothing(shannon, gini, tsallis, hard, by_sums=None):
    """Return a function that dispatches on the type of its last argument; `by_sums` is for Shannon's sums of
    products.
    """
    kinds = {Entropic: shannon, Quadratic: gini, Hard: hard, Linear: by_sums or shannon}

    def function(*args):
        return kinds.get(type(args[-1]), tsallis)(*args)

    @overload(function, jit_options=PART, strict=False)
    def choose(*args):
        return kinds.get(getattr(args[-1], "instance_class", None), tsallis)

    return function


@inline
def power(base, exponent):
    """Return base ** exponent for base >= 0; 0 at 0."""
    if exponent == 0.5:
        return sqrt(base)
    if exponent == 1.0:
        return base
    if exponent == 2.0:
        return base * base
    return select(base == 0.0, 0.0, select(base != base, base, exp(exponent * log(base))))


@inline
def inverse(total):
    """Return 1 / total; 0 if the total is 0."""
    return select(total == 0.0, 0.0, 1.0 / total)


# the base of a weight is b = ((alpha - 1)(a - top) - tau)_+; NaN stays
_base = by_smoothing(
    None,
    lambda x, shift, tau, omega: _positive(x - shift - tau),
    lambda x, shift, tau, omega: _positive((omega - 1) * (x - shift) - tau),
    None,
)
_weight = by_smoothing(None, lambda b, omega: b, lambda b, omega: power(b, 1 / (omega - 1)), None)
# the factor by which Omega is divided
_degree = by_smoothing(None, lambda omega: 2.0, lambda omega: omega, None)
# p^(2 - alpha) on the support: the diagonal of the Jacobian before its mean is subtracted
slope = by_smoothing(
    lambda p, omega: p,
    lambda p, omega: select(p == 0.0, 0.0, 1.0),
    lambda p, omega: power(p, 2 - omega),
    lambda p, omega: p * 0.0,
)


@inline
def _positive(b):
    return select(b < 0.0, 0.0, b)


@inline
def _shift(top):
    """Return the number to subtract from arguments; NaN makes all of them NaN."""
    return select(top == -np.inf, 0.0, top)


@inline
def top_of(a, count):
    """Return the largest argument; NaN if one is NaN or inf."""
    top = fill(a, -np.inf)
    for e in range(count):
        x = load(a, e)
        top = select((x > top) | (x != x), x, top)
    return select(top == np.inf, np.nan, top)


@inline
def _search(a, count, top, omega):
    """Return the threshold at which the weights sum to 1."""
    shift = _shift(top)
    low = tau = fill(a, -1.0)
    # without a finite maximum no search is needed
    busy = shift == top
    high = select(busy, 0.0, low)
    for _ in range(ROUNDS):
        total, slopes = fill(a, 0.0), fill(a, 0.0)
        for e in range(count):
            b = _base(load(a, e), shift, tau, omega)
            rise = power(b, 1 / (omega - 1) - 1)
            total += rise * b
            slopes += rise
        over = total > 1.0
        low, high = select(over, tau, low), select(over, high, tau)
        newton = tau + (total - power(total, 2 - omega)) / slopes
        # at the root a Newton step is 0 and lies on the end of the bracket
        far = (newton - tau > _CLOSE) | (tau - newton > _CLOSE)
        middle = 0.5 * (low + high)
        step = select(far, select(newton > low, select(newton < high, newton, middle), middle), newton)
        # finished lanes stay, however long their neighbours take
        tau = select(busy, step, tau)
        busy = busy & far
        if not some(busy):
            break
    return tau


@inline
def _michelot(a, count, top, omega):
    """Return the threshold of `_search` for Gini's entropy, for which Newton's steps never pass the root."""
    shift = _shift(top)
    tau = fill(a, -1.0)
    busy = shift == top
    for _ in range(ROUNDS):
        total, size = fill(a, -1.0), fill(a, 0.0)
        # two independent sums, since the terms of one sum have to wait for each other
        other, more = fill(a, 0.0), fill(a, 0.0)
        for e in range(0, count - 1, 2):
            b, c = load(a, e) - shift - tau, load(a, e + 1) - shift - tau
            total += select(b > 0.0, b, 0.0)
            size += select(b > 0.0, 1.0, 0.0)
            other += select(c > 0.0, c, 0.0)
            more += select(c > 0.0, 1.0, 0.0)
        if count % 2 == 1:
            b = load(a, count - 1) - shift - tau
            other += select(b > 0.0, b, 0.0)
            more += select(b > 0.0, 1.0, 0.0)
        total, size = total + other, size + more
        step = total / size
        tau = select(busy, tau + step, tau)
        busy = busy & (step > _CLOSE)
        if not some(busy):
            break
    return tau


@inline
def _shannon_value(a, count, top, tau, omega):
    shift = _shift(top)
    total = fill(a, 0.0)
    for e in range(count):
        total += exp(load(a, e) - shift)
    return top + log(total)


@inline
def _tsallis_value(a, count, top, tau, omega):
    """Return <p, a> - Omega(p); p^alpha is p times its base.

    For alpha > 2, weights that should be 0 are roots of rounding errors, and their sum is not 1 to the last digit: the
    first two terms of total^-alpha correct this.
    """
    alpha = _degree(omega)
    c = 1 / (alpha * (alpha - 1))
    shift = _shift(top)
    total, mean, powers = fill(a, 0.0), fill(a, 0.0), fill(a, 0.0)
    for e in range(count):
        x = load(a, e)
        b = _base(x, shift, tau, omega)
        p = _weight(b, omega)
        total += p
        mean += select(p == 0.0, 0.0, p * (x - shift))
        powers += p * b
    return top + ((mean - c * powers * (1.0 - (alpha - 1) * (total - 1.0))) * inverse(total) + c)


@inline
def _shannon_weights(a, count, top, tau, p, omega):
    shift = _shift(top)
    total = fill(a, 0.0)
    for e in range(count):
        x = exp(load(a, e) - shift)
        store(p, e, x)
        total += x
    return total


@inline
def _tsallis_weights(a, count, top, tau, p, omega):
    shift = _shift(top)
    total = fill(a, 0.0)
    for e in range(count):
        x = _weight(_base(load(a, e), shift, tau, omega), omega)
        store(p, e, x)
        total += x
    return total


@inline
def _hard_weights(a, count, top, tau, p, omega):
    """Write weight 1 to the first maximal argument; all weights are NaN if an argument is NaN."""
    total = fill(a, 0.0)
    for e in range(count):
        x = select(load(a, e) == top, select(total == 0.0, 1.0, 0.0), 0.0)
        x = select(top != top, top, select(top == -np.inf, 0.0, x))
        store(p, e, x)
        total += x
    return total


# linear: True if a kernel runs for sums of products
# remaining: True if it runs for Shannon's entropy, also for instances that sums of products left
linear = by_smoothing(*(lambda omega: False,) * 4, lambda omega: True)
remaining = by_smoothing(lambda omega: True, *(lambda omega: False,) * 4)
# searched: True if weights need a threshold besides the maximum
# smooth: True if weights change with the arguments
searched = by_smoothing(lambda omega: False, lambda omega: True, lambda omega: True, lambda omega: False)
smooth = by_smoothing(lambda omega: True, lambda omega: True, lambda omega: True, lambda omega: False)
# the threshold, from the maximum
threshold = by_smoothing(lambda a, count, top, omega: top, _michelot, _search, lambda a, count, top, omega: top)
# the smoothed maximum, from the maximum and the threshold
value = by_smoothing(_shannon_value, _tsallis_value, _tsallis_value, lambda a, count, top, tau, omega: top)
# writes weights that are not normalised to p, which may be a; returns their sum
weigh = by_smoothing(_shannon_weights, _tsallis_weights, _tsallis_weights, _hard_weights)


@inline
def smooth_max(a, count, omega):
    """Return the smoothed maximum."""
    top = top_of(a, count)
    return value(a, count, top, threshold(a, count, top, omega), omega)


@inline
def _scale(p, count, total):
    scale = inverse(total)
    for e in range(count):
        store(p, e, load(p, e) * scale)


@inline
def _weights_of_sum(a, count, p, omega):
    top = top_of(a, count)
    _scale(p, count, weigh(a, count, top, threshold(a, count, top, omega), p, omega))


@inline
def _weights_of_gini(a, count, p, omega):
    """Write the weights of Gini's entropy, which sum to 1 without a division."""
    top = top_of(a, count)
    weigh(a, count, top, threshold(a, count, top, omega), p, omega)


@inline
def _weights_of_hard(a, count, p, omega):
    top, place = fill(a, -np.inf), fill(a, -1.0)
    for e in range(count):
        x = load(a, e)
        more = (x > top) | (x != x)
        top = select(more, x, top)
        place = select(more, np.float64(e), place)
    undefined = select(top < np.inf, 0.0, np.nan)
    for e in range(count):
        store(p, e, select(place == np.float64(e), 1.0, 0.0) + undefined)


@inline
def _both_of_shannon(a, count, p, omega):
    top = top_of(a, count)
    total = weigh(a, count, top, top, p, omega)
    _scale(p, count, total)
    return top + log(total)


@inline
def _both(a, count, p, omega):
    top = top_of(a, count)
    tau = threshold(a, count, top, omega)
    _scale(p, count, weigh(a, count, top, tau, p, omega))
    return value(a, count, top, tau, omega)


# writes the weights of the smoothed maximum to p
weights = by_smoothing(_weights_of_sum, _weights_of_gini, _weights_of_sum, _weights_of_hard)
# the smoothed maximum, and its weights
max_and_weights = by_smoothing(_both_of_shannon, _both, _both, _both)


@inline
def slope_mean(p, scale, da, count, omega):
    """Return the mean of da by the slopes of weights p scale."""
    total, mean = fill(p, 0.0), fill(p, 0.0)
    for e in range(count):
        s = slope(load(p, e) * scale, omega)
        total += s
        # an entry without weight may have an infinite tangent
        mean += select(s == 0.0, 0.0, s * load(da, e))
    return select(total == 0.0, 0.0, mean / total)


@inline
def weight_change(p, da, mean, omega):
    """Return dp of an entry, from the mean of da by the slopes."""
    return select(p == 0.0, 0.0, slope(p, omega) * (da - mean))


@inline
def _changes(p, da, count, dp, omega):
    mean = slope_mean(p, 1.0, da, count, omega)
    for e in range(count):
        store(dp, e, weight_change(load(p, e), load(da, e), mean, omega))


@inline
def _no_changes(p, da, count, dp, omega):
    for e in range(count):
        store(dp, e, 0.0)


# writes the change of weights p along da to dp
weight_changes = by_smoothing(_changes, _changes, _changes, _no_changes)
