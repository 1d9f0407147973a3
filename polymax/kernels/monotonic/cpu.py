"""The recursion eight frames at a time, sixteen tokens in vector lanes, for Numba; the path is read off bits."""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import REALS, plain, run
from polymax.backend.numba_math import inline, kernel, rows_at
from polymax.kernels.monotonic import reference
from polymax.kernels.monotonic.numba_tiles import BLOCK, TILE, walk_tiles


def monotonic_search(x: Tensor, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    scores, n_of, m_of = plain(x), frames.long().contiguous(), tokens.long().contiguous()
    batch, n, m = x.shape
    # filled by the kernel: an operation of torch would leave its threads spinning on cores that the search needs
    path = torch.empty((batch, n), dtype=torch.long, device="cpu")
    value = torch.empty(batch, dtype=torch.float64, device="cpu")
    at = (t.data_ptr() for t in (scores, n_of, m_of, path, value))
    run(_walk, batch, n * m, n, m, *at, REALS[scores.dtype])
    return path, value


def monotonic_cells(x: Tensor, path: Tensor, value: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    if bool(value.isnan().any()):
        return reference.monotonic_cells(x, path, value, frames, tokens)
    # fresh pages of np.zeros are zero without a write; threads that touch them first wait for each other
    found = np.zeros(x.shape, np.float64 if x.dtype == torch.float64 else np.float32)
    at = memory(path.flatten())
    used = np.flatnonzero(at >= 0)
    found.reshape(-1)[used * x.shape[2] + at[used]] = 1
    return torch.from_numpy(found).to(x.dtype)


# distance in bytes from reads to prefetches: enough for the latency of memory, and within the second-level cache
AHEAD = 1 << 16
# workspace for the moves that each thread keeps, since fresh pages cost more than the writes to them
_kept = threading.local()
MOST_KEPT = 1 << 20


def _walk(start: int, stop: int, n: int, m: int, *args: Any) -> None:
    tiles = -(-m // TILE)
    size = -(-n // BLOCK) * tiles
    moves = getattr(_kept, "moves", None)
    if moves is None or len(moves) < size:
        moves = np.empty((size, BLOCK), np.uint16)
        if moves.nbytes <= MOST_KEPT:
            _kept.moves = moves
    v, carry, edge = (np.empty(shape, args[-1].dtype) for shape in (tiles * TILE, BLOCK, BLOCK * TILE))
    _search(start, stop, n, m, *args, v, carry, edge, moves)


@kernel
def _search(start, stop, n, m, x_at, frames_at, tokens_at, path_at, value_at, real, v, carry, edge, moves):
    x, path = rows_at(x_at, stop, n * m, real), rows_at(path_at, stop, n, np.int64(0))
    frames, tokens = rows_at(frames_at, stop, 1, np.int64(0)), rows_at(tokens_at, stop, 1, np.int64(0))
    value = rows_at(value_at, stop, 1, np.float64(0))
    for i in range(start, stop):
        rows, columns = frames[i, 0], tokens[i, 0]
        path[i] = -1
        if columns == 0 or columns > rows:
            value[i, 0] = 0.0 if rows == columns else -np.inf
        else:
            # all memory that may be read from the first score of the instance on
            scores = x.reshape(-1)[i * n * m :]
            value[i, 0] = _best(scores, m, rows, columns, v, carry, edge, moves, real)
            if value[i, 0] > -np.inf:
                _trace(moves, v.size // TILE, rows, columns, path[i])


@inline
def _best(x, m, rows, columns, v, carry, edge, moves, real):
    """Return the value of the best path. The first block may begin before the first frame, to make blocks whole."""
    v[:] = -np.inf
    v[0] = 0
    size = v.itemsize
    bad = False
    for block in range((rows + BLOCK - 1) // BLOCK):
        t = block * BLOCK - -rows % BLOCK
        # tokens from which the last token can be reached: at the first frame of the block, and after its last frame
        low, after = max(0, columns - rows + t), max(0, columns - rows + t + BLOCK)
        tile, tiles = low // TILE, (min(t + BLOCK, columns) + TILE - 1) // TILE
        # tiles up to the diagonal, and to the end of the memory
        whole = min((t + 1) // TILE, tiles)
        whole -= (t + BLOCK - 1) * m + whole * TILE > x.size
        # left neighbour of the first tile: reachable at the frame before this block, never later
        carry[:] = -np.inf
        if tile:
            carry[0] = v[tile * TILE - 1]
        while tile < tiles:
            at = t * m + tile * TILE
            p_x, stride, count = _at(x) + at * size, m, max(whole - tile, 1)
            if tile >= whole or tile * TILE < after - 1:
                _copy_edge(x, m, t, tile * TILE, rows, columns, edge)
                p_x, stride, count = _at(edge), TILE, 1
            p_v, place = _at(v) + tile * TILE * size, block * (v.size // TILE) + tile
            p_moves = _at(moves) + place * BLOCK * moves.itemsize
            ahead = _at(x) + (t * m + tile * TILE * BLOCK) * size + AHEAD
            walk_tiles(p_x, stride, p_v, p_moves, _at(carry), ahead, count, real)
            tile += count
        for j in range(low, min(after, columns)):
            # NaN stays in its column, which ends here
            bad |= v[j] != v[j]
    return np.nan if bad else np.float64(v[columns - 1])


@inline
def _at(array):
    return np.int64(array.ctypes.data)


@inline
def _copy_edge(x, m, t, first, rows, columns, edge):
    """Copy a tile with cells that are on no path from the first cell to the last; -inf above the diagonal."""
    for k in range(BLOCK):
        low, high, diagonal = columns - rows + t + k - first, min(columns - 1, t + k) - first, max(t + k, 0) - first
        to = edge[k * TILE : (k + 1) * TILE]
        place = (t + k) * m + first
        if place >= 0 and place + TILE <= x.size:
            row = x[place : place + TILE]
            for c in range(TILE):
                to[c] = row[c] if low <= c <= high else (-np.inf if c > diagonal else 0.0)
        else:
            for c in range(TILE):
                to[c] = -np.inf if c > diagonal else 0
            for c in range(max(low, 0), min(high + 1, TILE)):
                to[c] = x[place + c]


@inline
def _trace(moves, tiles, rows, columns, path):
    j = columns - 1
    before = -rows % BLOCK
    for t in range(rows - 1, 0, -1):
        path[t] = j
        block, k = divmod(t + before, BLOCK)
        j -= (moves[block * tiles + j // TILE, k] >> (j % TILE)) & 1
    path[0] = 0
