"""The recursion with targets in vector lanes, instance by instance, for Numba; a byte records the moves."""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, plain, run
from polymax.backend.numba_math import inline, kernel, rows_at


def ctc_search(x: Tensor, targets: Tensor, counts: Tensor, frames: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    batch, n, classes = x.shape
    size = targets.shape[1]
    scores = plain(x)
    rows, m_of, n_of = (t.long().contiguous() for t in (targets, counts, frames))
    found, value = (
        torch.empty((batch, n), dtype=torch.long, device="cpu"),
        torch.empty(batch, dtype=torch.float64, device="cpu"),
    )
    at = (t.data_ptr() for t in (scores, rows, m_of, n_of, found, value))
    run(_search, batch, 4 * n * (size + 1), n, classes, size, blank, *at, REALS[scores.dtype])
    return found, value


@kernel
def _search(start, stop, n, classes, size, blank, x_at, targets_at, counts_at, frames_at, found_at, value_at, real):
    whole = np.int64(0)
    x = rows_at(x_at, stop * n, classes, real)
    targets, found = rows_at(targets_at, stop, size, whole), rows_at(found_at, stop, n, whole)
    counts, frames = rows_at(counts_at, stop, 1, whole), rows_at(frames_at, stop, 1, whole)
    value = rows_at(value_at, stop, 1, np.float64(0))
    # rows of lanes: blanks; previous and current targets, each after an unreachable entry; scores; -inf for targets
    # that must not follow the target before directly, else 0
    lanes = np.empty((5, size + 2))
    moves = np.empty((n, size + 1), np.uint8)
    first = np.empty((2, size + 1), np.int64)
    for b in range(start, stop):
        rows, count = frames[b, 0], counts[b, 0]
        found[b] = -1
        value[b, 0] = 0.0 if rows == 0 and count == 0 else -np.inf
        if rows > 0 and _known(targets[b], count, classes):
            value[b, 0], at = _best(x[b * n : b * n + rows], targets[b], count, blank, lanes, moves, first)
            if value[b, 0] > -np.inf:
                _trace(targets[b], moves, at, rows, blank, found[b])


@inline
def _known(targets, count, classes):
    fine = True
    for i in range(count):
        fine &= 0 <= targets[i] < classes
    return fine


@inline
def _best(x, targets, count, blank, lanes, moves, first):
    """Return the value, and the last state: 2 i for blank i, 2 i + 1 for target i."""
    blanks, labels, fresh, scores, skips = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]
    repeats = 0
    for i in range(count + 1):
        first[0, i] = i + repeats
        again = 0 < i < count and targets[i] == targets[i - 1]
        repeats += again
        first[1, i] = i + repeats
        skips[i] = -np.inf if again else 0.0
    blanks[:] = labels[:] = fresh[:] = -np.inf
    for t in range(x.shape[0]):
        row = x[t]
        empty = np.float64(row[blank])
        for i in range(count):
            scores[i] = row[targets[i]]
        # states that no path has reached before
        near = 0
        while near <= count and first[1, near] < t:
            near += 1
        if t == 0:
            blanks[0] = labels[1] = 0.0
        move = moves[t]
        for i in range(near if t else 0):
            _step(i, empty, scores, skips, blanks, labels, fresh, move)
        for i in range(near if t else 0, min(t, count) + 1):
            _step(i, empty, scores, skips, blanks, labels, fresh, move)
            if first[0, i] > t:
                blanks[i] = -np.inf
            if first[1, i] > t:
                fresh[i + 1] = -np.inf
        labels, fresh = fresh, labels
    last, before = blanks[count], labels[count] if count else -np.inf
    if before > last or before != before:
        return before, 2 * count - 1
    return last, 2 * count


@inline
def _step(i, empty, scores, skips, blanks, labels, fresh, move):
    """Update blank i and target i: labels[i + 1] are targets of the frame before, fresh[i + 1] gets the new value."""
    stay, through, skip = labels[i + 1], blanks[i], labels[i] if skips[i] == 0 else -np.inf
    back = (labels[i] > through) | (labels[i] != labels[i])
    blanks[i] = (labels[i] if back else through) + empty
    one = (through > stay) | (through != through)
    best = through if one else stay
    two = (skip > best) | (skip != skip)
    fresh[i + 1] = (skip if two else best) + scores[i]
    move[i] = np.uint8(back) | (np.uint8(4) if two else np.uint8(2) * np.uint8(one))


@inline
def _trace(targets, moves, at, rows, blank, found):
    for t in range(rows - 1, -1, -1):
        i = at // 2
        found[t] = targets[i] if at % 2 else blank
        move = moves[t, i]
        if at % 2:
            at -= move >> 1
        else:
            at -= move & 1
