"""Tag sequences that count a state, for SparseMAP on the CPU: Viterbi around mu for all counts at once.

The values of a state lie in blocks of LANES counts. A step into the counted state shifts them by one count: a shuffle
of two blocks, since a load that overlaps two recent stores stalls. With two states, one bit records from which state a
value came, LANES bits to a number in `marks`: on the way back a bit is read faster than two sums are compared.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from polymax.backend.cpu_arrays import array
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.active_set.numba_search import SearchProblem
from polymax.kernels.local_max.numba_lanes import LANES, fill, lanes, load, mask, select, store

_SHIFT = LANES.bit_length() - 1


def problem(search):
    """Return the problem of unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s) and lengths (B,)."""
    unary, transition, lengths = search.tensors
    k, state, runs = search.options
    n, s = unary.shape[1:]
    blocks = k // LANES + 1
    # transposed, so that the steps into a state lie side by side
    steps = transition.double().transpose(-1, -2)
    return SearchProblem(
        np.array([n, s, transition.shape[1], k, state, int(runs)]),
        array(lengths.reshape(-1, 1)),
        array(unary.double().reshape(len(unary), n * s)),
        array(steps.reshape(len(steps), steps.shape[1:].numel())),
        ((max(n * s, 1) * blocks, LANES), 1, (1 + n * blocks, 2) if s == 2 else (1, 2)),
        n * s * s * (k // 4 + 1),
        choices=s,
    )


@intrinsic
def _one_on(typing_context, before, block):
    """Return a block shifted by one lane; the last lane of the block before it comes first."""

    def codegen(context, builder, signature, args):
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [*range(LANES - 1, 2 * LANES - 1)])
        return builder.shuffle_vector(*args, order)

    return lanes(lanes, lanes), codegen


@intrinsic
def _bits(typing_context, chosen):
    """Return the lanes of a mask as the bits of a number."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.bitcast(args[0], ir.IntType(LANES)), ir.IntType(64))

    return types.int64(mask), codegen


@inline
def _larger(x, y):
    return select(y > x, y, x)


@inline
def _from_second(state, rest, counted):
    """Return bits that are 1 if the larger value came from state 1; equal values count for state 0."""
    return _bits(counted > rest) if state == 1 else _bits(rest > counted)


@inline
def _two_states(t, state, runs, blocks, first, steps, unary, mu, values, marks):
    """Write the values of two states at position t, each value before it read once; the step's scores begin at
    `first`.
    """
    rest, last, now = 1 - state, (t - 1) * 2, t * 2
    stay, leave = steps[first + 2 * rest + rest], steps[first + 2 * rest + state]
    enter, repeat = steps[first + 2 * state + rest], steps[first + 2 * state + state]
    more, counted = unary[now + rest] - mu[now + rest], unary[now + state] - mu[now + state]
    before = fill(values, -np.inf)
    for b in range(blocks):
        x, y = load(values, (last + rest) * blocks + b), load(values, (last + state) * blocks + b)
        stays, leaves = x + stay, y + leave
        store(values, (now + rest) * blocks + b, _larger(stays, leaves) + more)
        enters, repeats = x + enter, y + repeat
        if runs:
            # a step that continues a run does not count
            enters, before = _one_on(before, enters), enters
        best = _larger(enters, repeats)
        marks[1 + t * blocks + b, rest] = _from_second(state, stays, leaves)
        marks[1 + t * blocks + b, state] = _from_second(state, enters, repeats)
        if not runs:
            best, before = _one_on(before, best), best
        store(values, (now + state) * blocks + b, best + counted)


@inline
def _states(t, s, state, runs, blocks, first, steps, unary, mu, values):
    """Write the values of all states at position t; the step's scores begin at `first`."""
    last, none = (t - 1) * s * blocks, fill(values, -np.inf)
    for j in range(s):
        row, before = first + j * s, none
        for b in range(blocks):
            best = none
            for i in range(s):
                # a step that continues a run does not count
                if j != state or i != state or not runs:
                    best = _larger(best, load(values, last + i * blocks + b) + steps[row + i])
            if j == state:
                best, before = _one_on(before, best), best
                if runs:
                    best = _larger(best, load(values, last + j * blocks + b) + steps[row + j])
            store(values, (t * s + j) * blocks + b, best + (unary[t * s + j] - mu[t * s + j]))


@inline
def _first_best(t, s, state, runs, wide, step, count, least, values, steps):
    """Return the first state at position t - 1 that gave the value of a state with this count at t."""
    found, value = 0, -np.inf
    for i in range(s):
        c = count if runs and i == state else least
        if c >= 0:
            a = values[((t - 1) * s + i) * wide + c] + steps[step + i]
            if a > value:
                found, value = i, a
    return found


@kernel
def best(problem, mu, vertex):
    """Write the best sequence around mu as a list of states, then of steps; return its score."""
    table, own, unary, steps, values, _, marks = problem
    n, s, last_step, most, length = table[0], table[1], table[2] - 1, table[3], own[0]
    state, runs, blocks = table[4], table[5] != 0, most // LANES + 1
    for u in range(vertex.size):
        vertex[u] = -1
    marks[0, 1] = length
    if length == 0:
        return 0.0
    for row in range(s * blocks):
        store(values, row, fill(values, -np.inf))
    flat, wide = values.reshape(values.size), blocks * LANES
    for j in range(s):
        flat[j * wide + (j == state)] = unary[j] - mu[j]
    for t in range(1, length):
        # by an offset: Numba would count references to a view of the scores, which takes as long as the step
        first = min(t - 1, last_step) * s * s
        if s == 2:
            _two_states(t, state, runs, blocks, first, steps, unary, mu, values, marks)
        else:
            _states(t, s, state, runs, blocks, first, steps, unary, mu, values)
    tag, count, value = 0, 0, -np.inf
    for j in range(s):
        for c in range(most + 1):
            a = flat[((length - 1) * s + j) * wide + c]
            if a > value:
                tag, count, value = j, c, a
    if value == -np.inf:
        return -np.inf
    score = unary[(length - 1) * s + tag]
    vertex[length - 1] = (length - 1) * s + tag
    for t in range(length - 1, 0, -1):
        step, least = (min(t - 1, last_step) * s + tag) * s, count - (tag == state)
        if s == 2:
            place = count if runs else least
            before = (marks[1 + t * blocks + (place >> _SHIFT), tag] >> (place & (LANES - 1))) & 1
        else:
            before = _first_best(t, s, state, runs, wide, step, count, least, flat, steps)
        score += steps[step + before] + unary[(t - 1) * s + before]
        vertex[t - 1] = (t - 1) * s + before
        vertex[length + t - 1] = (n + (t - 1) * s + before) * s + tag
        count = count if runs and before == state else least
        tag = before
    return score
