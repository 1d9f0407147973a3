"""Tag sequences for SparseMAP on the CPU: Viterbi around mu."""

from functools import lru_cache

import numpy as np

from polymax.backend.cpu_arrays import memory
from polymax.backend.numba_memory import lean_kernel
from polymax.kernels.active_set.numba_search import SearchProblem


def problem(search):
    """Return the problem of unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s) or (s, s), and lengths (B,)."""
    unary, transition, lengths = search.tensors
    count, n, s = unary.shape
    # transposed, so that the steps into a tag lie side by side
    groups, last = transition.shape[:-2] or (1, 1)
    steps = memory(transition).swapaxes(-1, -2)
    return SearchProblem(
        _table(n, s, last),
        memory(lengths).reshape(count, 1),
        memory(unary).astype(np.float64, "C", copy=False).reshape(count, n * s),
        steps.astype(np.float64, "C", copy=False).reshape(groups, last * s * s),
        ((n, s), 1, (1, 2)),
        # eight sums at a time
        n * s * s // 8 + 1,
        choices=s,
    )


@lru_cache(maxsize=256)
def _table(n, s, last):
    return np.array([n, s, last])


@lean_kernel
def best(problem, mu, vertex):
    """Write the best sequence around mu as a list of states, then of steps; return its score."""
    table, own, unary, steps, values, _, marks = problem
    n, s, last_step, length = table[0], table[1], table[2] - 1, own[0]
    for u in range(vertex.size):
        vertex[u] = -1
    marks[0, 1] = length
    if length == 0:
        return 0.0
    for j in range(s):
        values[0, j] = unary[j] - mu[j]
    for t in range(1, length):
        step, v = min(t - 1, last_step) * s * s, values[t - 1]
        for j in range(s):
            row, best = steps[step + j * s : step + (j + 1) * s], -np.inf
            for i in range(s):
                a = v[i] + row[i]
                best = a if a > best else best
            values[t, j] = best + (unary[t * s + j] - mu[t * s + j])
    tag = 0
    for j in range(s):
        if values[length - 1, j] > values[length - 1, tag]:
            tag = j
    if values[length - 1, tag] == -np.inf:
        return -np.inf
    score = unary[(length - 1) * s + tag]
    vertex[length - 1] = (length - 1) * s + tag
    for t in range(length - 1, 0, -1):
        v, step = values[t - 1], (min(t - 1, last_step) * s + tag) * s
        # the first tag that gave the value
        before, best = 0, -np.inf
        for i in range(s):
            if v[i] + steps[step + i] > best:
                before, best = i, v[i] + steps[step + i]
        score += steps[step + before] + unary[(t - 1) * s + before]
        vertex[t - 1] = (t - 1) * s + before
        vertex[length + t - 1] = (n + (t - 1) * s + before) * s + tag
        tag = before
    return score
