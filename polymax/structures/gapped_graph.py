"""The recursions of alignments with gaps as hypergraphs, and masks of the cells at which a free end may begin."""

import numpy as np
import torch
from torch import Tensor

from polymax.hypergraphs import Builder, Family, Graph
from polymax.kernels.gapped.lattice import graph as graph


def ends_of(rows: Tensor, columns: Tensor, n: int, m: int) -> tuple[Tensor, ...]:
    """Masks of the pairs that may end an alignment, that deletions may follow to the end, and that insertions may.

    Two more masks mark the last row and the last column.

    Shapes: rows and columns (B,): the lengths; results: three of (B, n, m), then (B, n) and (B, m)
    """
    i, j = torch.arange(1, n + 1, device=rows.device), torch.arange(1, m + 1, device=rows.device)
    after_i, after_j = (rows[:, None] - i)[:, :, None], (columns[:, None] - j)[:, None]
    inside = (after_i >= 0) & (after_j >= 0)
    some = (after_i > 0) & (after_j > 0)
    ends = inside & ~some
    return ends, some & (after_i <= after_j), some & (after_i > after_j), i == rows[:, None], j == columns[:, None]


def used_ends(pairs: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
    """The masks of `ends_of`, True only at the ends of alignments with these pairs (*lead, B, n, m)."""
    n, m = pairs.shape[-2:]
    place = torch.arange(n * m, device=pairs.device)
    last = torch.where(pairs.flatten(-2) != 0, place, -1).amax(-1, keepdim=True)
    at = (place == last).unflatten(-1, (n, m))
    free, deleted, inserted, end_i, end_j = ends_of(rows, columns, n, m)
    free, deleted, inserted = at & free, at & deleted, at & inserted
    by_rows, by_columns = (t.flatten(-2).any(-1, keepdim=True) for t in (deleted, inserted))
    return free, deleted, inserted, end_i & by_rows, end_j & by_columns


@Family
def free_ends(n: int, m: int, tensors: int) -> Graph:
    """The graph of `graph` with gaps before the first pair, L, and after the last, T, apart; T begins by a mask."""
    points, parts = (n + 1) * (m + 1), tensors * n * m
    point = np.arange(points).reshape(n + 1, m + 1)
    cell = np.arange(n * m).reshape(n, m)
    builder = Builder(parts=parts + 3 * n * m + n + m)
    if not n or not m:
        return builder.build(10 * points + 1)
    opens, extends = n * m + cell, (tensors - 1) * n * m + cell
    free, deleting, inserting = (parts + k * n * m + cell for k in range(3))
    end_i, end_j = parts + 3 * n * m + np.arange(n), parts + 3 * n * m + n + np.arange(m)
    i, j = np.broadcast_arrays(*np.ogrid[: n + 1, : m + 1])
    main = 2 * points + 4 * point
    x, y, p = main + 1, main + 2, main + 3

    def lead(node: np.ndarray, there: np.ndarray, step: tuple[int, int]) -> None:
        """Gaps before the first pair: the first position is opened, the others are extended."""
        first = there & (i * step[0] + j * step[1] == 1)
        builder.add(node[first], opens[i[first] - 1, j[first] - 1])
        a, b = i[there & ~first], j[there & ~first]
        builder.add(node[a, b], extends[a - 1, b - 1], node[a - step[0], b - step[1]])

    inside = (i > 0) & (j > 0)
    lead(point, inside & (i <= j), (1, 0))
    lead(points + point, inside & (j < i), (0, 1))
    builder.add(main[1:, 1:], cell, p[:-1, :-1])
    builder.add(x[3:, 1:], extends[2:], x[2:-1, 1:])
    builder.add(x[2:, 1:], opens[1:], main[1:-1, 1:])
    builder.add(y[1:, 3:], extends[:, 2:], y[1:, 2:-1])
    builder.add(y[1:, 2:], opens[:, 1:], main[1:, 1:-1])
    builder.add(y[2:, 2:], opens[1:, 1:], x[2:, 1:-1])
    builder.add(p[~inside], -1)
    builder.add(p[inside], -1, np.where(i <= j, point, points + point)[inside])
    builder.add(p[1:, 1:], -1, main[1:, 1:])
    builder.add(p[2:, 1:], -1, x[2:, 1:])
    builder.add(p[1:, 2:], -1, y[1:, 2:])
    begin_x, trail_x, begin_y, trail_y = (6 * points + k * points + point for k in range(4))
    builder.add(begin_x[1:, 1:], deleting, main[1:, 1:])
    builder.add(begin_y[1:, 1:], inserting, main[1:, 1:])
    builder.add(trail_x[2:, 1:], opens[1:], begin_x[1:-1, 1:])
    builder.add(trail_x[3:, 1:], extends[2:], trail_x[2:-1, 1:])
    builder.add(trail_y[1:, 2:], opens[:, 1:], begin_y[1:, 1:-1])
    builder.add(trail_y[1:, 3:], extends[:, 2:], trail_y[1:, 2:-1])
    root = 10 * points
    builder.add(root, -1)
    builder.add(root, free, main[1:, 1:])
    builder.add(root, end_i[1:, None], trail_x[2:, 1:])
    builder.add(root, end_j[None, 1:], trail_y[1:, 2:])
    return builder.build(root + 1)
