"""SparseMAP over chains: Viterbi around mu."""

import numpy as np
from torch import Tensor

from polymax.kernels.numba_math import inline, kernel
from polymax.solvers.cpu_loop import Settings, memory, run, settle


def solve_chain(unary: Tensor, transition: Tensor, lengths: Tensor, settings: Settings) -> tuple[Tensor, ...]:
    """Tag sequences; tensors as the chain kernels take them."""
    scores = [x.double().contiguous().numpy() for x in (unary, transition)]
    n, s = unary.shape[1:]
    return run(_chain, (*scores, lengths.numpy()), n * s * s, settings)


@kernel
def _chain(start, stop, unary, transition, lengths, settings, out):
    _, n, s = unary.shape
    shared = max(unary.shape[0] // max(transition.shape[0], 1), 1)
    space = memory(out, n * s)
    values, back = np.empty((2, s)), np.empty((n, s), np.int32)
    for i in range(start, stop):
        problem = unary[i], transition[i // shared], lengths[i], values, back
        settle(_best_tags, problem, i, settings, space, out)


@inline
def _best_tags(problem, mu, vertex):
    """The best sequence around mu as a list of parts: how many, and its own score."""
    unary, steps, length, values, back = problem
    s = unary.shape[1]
    if length == 0:
        return 0, 0.0
    v, w = values[0], values[1]
    for j in range(s):
        v[j] = unary[0, j] - mu[j]
    for t in range(1, length):
        step = steps[min(t - 1, steps.shape[0] - 1)]
        for j in range(s):
            w[j] = -np.inf
            back[t, j] = 0
        for i in range(s):
            for j in range(s):
                a = v[i] + step[i, j]
                better = a > w[j]
                w[j] = a if better else w[j]
                back[t, j] = np.int32(i) if better else back[t, j]
        for j in range(s):
            v[j] = w[j] + (unary[t, j] - mu[t * s + j])
    best = 0
    for j in range(s):
        if v[j] > v[best]:
            best = j
    if v[best] == -np.inf:
        return 0, -np.inf
    score = 0.0
    for t in range(length - 1, -1, -1):
        vertex[t] = t * s + best
        score += unary[t, best]
        if t > 0:
            before = back[t, best]
            score += steps[min(t - 1, steps.shape[0] - 1), before, best]
            best = before
    return length, score
