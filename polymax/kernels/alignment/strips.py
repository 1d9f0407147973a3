"""A strip of rows, skewed: line t holds the cells of one anti-diagonal, lane r the cell of row r and column t - r."""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.alignment import STRIP

# columns copied together, so that the lines they touch stay in the cache
BLOCK = 16
# distance of the rows of small arrays that hold one lane more than a strip
SIDE = STRIP + 8


@inline
def skew(x, top, n, m, padding, lines):
    """Write x[top + r, t - r] to line t, lane r of lines, `padding` outside the problem; return True if any is NaN or
    inf.
    """
    lanes = min(STRIP, n - top)
    for t in range(STRIP):
        # columns before the first and after the last
        first = lines[t * STRIP : (t + 1) * STRIP]
        last = lines[(t + m) * STRIP : (t + m + 1) * STRIP]
        first[t + 1 :] = padding
        last[: t + 1] = padding
    if lanes < STRIP:
        for t in range(m + STRIP):
            lines[t * STRIP + lanes : (t + 1) * STRIP] = padding
    bad = 0
    for left in range(0, m, BLOCK):
        for r in range(lanes):
            row = x[top + r, left:m]
            lane = lines[(left + r) * STRIP + r :]
            if row.size >= BLOCK:
                for j in range(BLOCK):
                    lane[j * STRIP] = row[j]
            else:
                for j in range(row.size):
                    lane[j * STRIP] = row[j]
    for r in range(lanes):
        row = x[top + r, :m]
        for j in range(row.size):
            bad += not (row[j] < np.inf)
    return bad > 0


@inline
def unskew(lines, top, lanes, m, x):
    """Write the rows x[top : top + lanes] from their lines."""
    for left in range(0, m, BLOCK):
        for r in range(lanes):
            row = x[top + r, left:m]
            lane = lines[(left + r) * STRIP + r :]
            if row.size >= BLOCK:
                for j in range(BLOCK):
                    row[j] = lane[j * STRIP]
            else:
                for j in range(row.size):
                    row[j] = lane[j * STRIP]


@inline
def clear_padding(x, n, m):
    """Write zeros outside the problem."""
    for i in range(x.shape[0]):
        for j in range(m if i < n else 0, x.shape[1]):
            x[i, j] = 0


@inline
def receive(flow, given, tail, out):
    """Write the expectations of a line: from the right, from the row below, and `given` for `tail` from the next strip.

    flow: expectations to the right, to the row above, and diagonally to the row above, one step later.
    """
    for r in range(STRIP):
        out[r] = flow[r] + flow[SIDE + r + 1]
    out[tail] += given


@inline
def send(flow, expectation, weights):
    """Split the expectation of each cell over its predecessors."""
    for r in range(STRIP):
        flow[r] = expectation[r] * weights[2 * STRIP + r]
        flow[SIDE + r] = flow[2 * SIDE + r] + expectation[r] * weights[STRIP + r]
        flow[2 * SIDE + r] = expectation[r] * weights[r]
