"""SparseMAP over chains: Viterbi around mu."""

import numpy as np
from torch import Tensor

from polymax.kernels.active_set.cpu_loop import Found, Settings, memory, run, settle
from polymax.kernels.numba_math import inline, kernel


def solve_chain(unary: Tensor, transition: Tensor, lengths: Tensor, settings: Settings) -> Found:
    """Tag sequences; tensors as the chain kernels take them."""
    # a tag chooses among those before it: they stand side by side
    scores = [x.double().contiguous().numpy() for x in (unary, transition.transpose(-1, -2))]
    n, s = unary.shape[1:]
    return run(_chain, (*scores, lengths.numpy()), n * s * s, settings)


@kernel
def _chain(start, stop, unary, transition, lengths, settings, out):
    _, n, s = unary.shape
    shared = max(unary.shape[0] // max(transition.shape[0], 1), 1)
    space = memory(out, n * s)
    values = np.empty((n, s))
    for i in range(start, stop):
        problem = unary[i], transition[i // shared], lengths[i], values
        settle(_best_tags, problem, 0.0, i, settings, space, out)


@inline
def _best_tags(problem, mu, vertex):
    """The best sequence around mu as a list of parts: how many states, and its own score."""
    unary, steps, length, values = problem
    n, s = unary.shape
    vertex[:] = -1
    if length == 0:
        return 0, 0.0
    for j in range(s):
        values[0, j] = unary[0, j] - mu[j]
    for t in range(1, length):
        step, v = steps[min(t - 1, steps.shape[0] - 1)], values[t - 1]
        for j in range(s):
            row, best = step[j], -np.inf
            for i in range(s):
                a = v[i] + row[i]
                best = a if a > best else best
            values[t, j] = best + (unary[t, j] - mu[t * s + j])
    tag = 0
    for j in range(s):
        if values[length - 1, j] > values[length - 1, tag]:
            tag = j
    if values[length - 1, tag] == -np.inf:
        return 0, -np.inf
    score = unary[length - 1, tag]
    vertex[length - 1] = (length - 1) * s + tag
    for t in range(length - 1, 0, -1):
        row, v = steps[min(t - 1, steps.shape[0] - 1), tag], values[t - 1]
        # the first that gave the value
        before, best = 0, -np.inf
        for i in range(s):
            if v[i] + row[i] > best:
                before, best = i, v[i] + row[i]
        score += row[before] + unary[t - 1, before]
        vertex[t - 1] = (t - 1) * s + before
        vertex[length + t - 1] = (n + (t - 1) * s + before) * s + tag
        tag = before
    return length, score
