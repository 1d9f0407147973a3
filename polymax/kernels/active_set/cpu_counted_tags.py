"""Tag sequences that count a state, for SparseMAP on the CPU: Viterbi around mu, all counts side by side."""

import numpy as np

from polymax.kernels.active_set.numba_search import Problem
from polymax.kernels.numba_math import inline, kernel


def problem(search):
    """Unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s) and lengths (B,) as the search takes them."""
    unary, transition, lengths = search.tensors
    k, state, runs = search.options
    n, s = unary.shape[1:]
    return Problem(
        np.array([n, s, transition.shape[1], k, *rises(s, state, runs).ravel()]),
        lengths.reshape(-1, 1).contiguous().numpy(),
        unary.double().reshape(len(unary), n * s).numpy(),
        transition.double().reshape(len(transition), transition.shape[1:].numel()).numpy(),
        ((max(n * s, 1), k + 1), 1, (1, 2)),
        n * s * s * (k // 4 + 1),
    )


def rises(states, state, runs):
    """By how much a step from one state to the next raises the count, (s + 1, s); the first one is a step from s."""
    rise = np.zeros((states + 1, states), np.int64)
    rise[:, state] = 1
    if runs:
        rise[state, state] = 0
    return rise


@inline
def _raise(before, more, row, first):
    """The best of a row and what is before it, more added."""
    if first:
        for c in range(before.size):
            row[c] = before[c] + more
    else:
        for c in range(before.size):
            a = before[c] + more
            row[c] = a if a > row[c] else row[c]


@kernel
def best(problem, mu, vertex):
    """The best sequence around mu as a list of states, then of steps."""
    table, own, unary, steps, values, _, marks = problem
    n, s, last_step, room, length = table[0], table[1], table[2] - 1, table[3] + 1, own[0]
    rise = table[4:]
    for u in range(vertex.size):
        vertex[u] = -1
    marks[0, 1] = length
    if length == 0:
        return 0.0
    for j in range(s):
        for c in range(room):
            values[j, c] = -np.inf
        if rise[s * s + j] < room:
            values[j, rise[s * s + j]] = unary[j] - mu[j]
    for t in range(1, length):
        step = min(t - 1, last_step) * s * s
        for j in range(s):
            row, add = values[t * s + j], unary[t * s + j] - mu[t * s + j]
            for i in range(s):
                r = rise[i * s + j]
                _raise(values[(t - 1) * s + i, : room - r], steps[step + i * s + j] + add, row[r:], i == 0)
                if i == 0 and r > 0:
                    row[0] = -np.inf
    tag, count, value = 0, 0, -np.inf
    for j in range(s):
        for c in range(room):
            if values[(length - 1) * s + j, c] > value:
                tag, count, value = j, c, values[(length - 1) * s + j, c]
    if value == -np.inf:
        return -np.inf
    score = unary[(length - 1) * s + tag]
    vertex[length - 1] = (length - 1) * s + tag
    for t in range(length - 1, 0, -1):
        step = min(t - 1, last_step) * s * s
        # the first that gave the value
        before, value = 0, -np.inf
        for i in range(s):
            c = count - rise[i * s + tag]
            if c >= 0 and values[(t - 1) * s + i, c] + steps[step + i * s + tag] > value:
                before, value = i, values[(t - 1) * s + i, c] + steps[step + i * s + tag]
        score += steps[step + before * s + tag] + unary[(t - 1) * s + before]
        vertex[t - 1] = (t - 1) * s + before
        vertex[length + t - 1] = (n + (t - 1) * s + before) * s + tag
        count -= rise[before * s + tag]
        tag = before
    return score
