"""SparseMAP over chains that count: Viterbi around mu, all counts of a state side by side."""

import numpy as np
from torch import Tensor

from polymax.kernels.active_set.cpu_loop import Found, Settings, memory, run, settle
from polymax.kernels.numba_math import inline, kernel


def solve_counter(
    unary: Tensor, transition: Tensor, lengths: Tensor, rise: np.ndarray, k: int, settings: Settings
) -> Found:
    """Tag sequences whose steps raise a counter by `rise` (s + 1, s), to k at most; tensors as the chain's kernels."""
    scores = [x.double().contiguous().numpy() for x in (unary, transition)]
    n, s = unary.shape[1:]
    return run(_counter, (*scores, lengths.numpy(), rise, k), n * s * s * (k // 4 + 1), settings)


@kernel
def _counter(start, stop, unary, transition, lengths, rise, k, settings, out):
    _, n, s = unary.shape
    shared = max(unary.shape[0] // max(transition.shape[0], 1), 1)
    space = memory(out, n * s)
    values = np.empty((n, s, k + 1))
    for i in range(start, stop):
        problem = unary[i], transition[i // shared], lengths[i], rise, values
        settle(_best_tags, problem, 0.0, i, settings, space, out)


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


@inline
def _best_tags(problem, mu, vertex):
    """The best sequence around mu as a list of parts: how many states, and its own score."""
    unary, steps, length, rise, values = problem
    n, s = unary.shape
    room = values.shape[2]
    vertex[:] = -1
    if length == 0:
        return 0, 0.0
    for j in range(s):
        values[0, j, :] = -np.inf
        if rise[s, j] < room:
            values[0, j, rise[s, j]] = unary[0, j] - mu[j]
    for t in range(1, length):
        step = steps[min(t - 1, steps.shape[0] - 1)]
        for j in range(s):
            row, add = values[t, j], unary[t, j] - mu[t * s + j]
            for i in range(s):
                r = rise[i, j]
                _raise(values[t - 1, i, : room - r], step[i, j] + add, row[r:], i == 0)
                if i == 0 and r > 0:
                    row[0] = -np.inf
    tag, count, best = 0, 0, -np.inf
    for j in range(s):
        for c in range(room):
            if values[length - 1, j, c] > best:
                tag, count, best = j, c, values[length - 1, j, c]
    if best == -np.inf:
        return 0, -np.inf
    score = unary[length - 1, tag]
    vertex[length - 1] = (length - 1) * s + tag
    for t in range(length - 1, 0, -1):
        step = steps[min(t - 1, steps.shape[0] - 1)]
        # the first that gave the value
        before, best = 0, -np.inf
        for i in range(s):
            c = count - rise[i, tag]
            if c >= 0 and values[t - 1, i, c] + step[i, tag] > best:
                before, best = i, values[t - 1, i, c] + step[i, tag]
        score += step[before, tag] + unary[t - 1, before]
        vertex[t - 1] = (t - 1) * s + before
        vertex[length + t - 1] = (n + (t - 1) * s + before) * s + tag
        count -= rise[before, tag]
        tag = before
    return length, score
