"""The recursion of alignments with gaps as a hypergraph."""

import numpy as np

from polymax.graphs.graph import Builder, Family, Graph


@Family
def graph(n: int, m: int, local: int, tensors: int) -> Graph:
    """Return the hypergraph with nodes at i rows and j columns: M pairs the last ones, X deletes a row, Y inserts a
    column, P is any of these.
    """
    point = 4 * np.arange((n + 1) * (m + 1)).reshape(n + 1, m + 1)
    cell = np.arange(n * m).reshape(n, m)
    builder = Builder(parts=tensors * n * m)
    if not n or not m:
        return builder.build(4 * (n + 1) * (m + 1) + 1)
    opens, extends = n * m + cell, (tensors - 1) * n * m + cell
    builder.add(point[1:, 1:], cell, point[:-1, :-1] + 3)
    # columns and rows of gap scores: the border uses the scores of the cells next to it
    left, top = np.maximum(np.arange(m + 1) - 1, 0), np.maximum(np.arange(n + 1) - 1, 0)
    open_x, extend_x, open_y, extend_y = opens[:, left], extends[:, left], opens[top], extends[top]
    # a gap is extended, or opened after a pair, an insertion also after a deletion
    x, y = point + 1, point + 2
    if local:
        builder.add(x[3:, 1:], extend_x[2:, 1:], x[2:-1, 1:])
        builder.add(x[2:, 1:], open_x[1:, 1:], point[1:-1, 1:])
        builder.add(y[1:, 3:], extend_y[1:, 2:], y[1:, 2:-1])
        builder.add(y[1:, 2:], open_y[1:, 1:], point[1:, 1:-1])
        builder.add(y[2:, 2:], open_y[2:, 1:], x[2:, 1:-1])
        builder.add(point + 3, -1)
        builder.add(point[1:, 1:] + 3, -1, point[1:, 1:])
        builder.add(point[2:, 1:] + 3, -1, x[2:, 1:])
        builder.add(point[1:, 2:] + 3, -1, y[1:, 2:])
        root = 4 * (n + 1) * (m + 1)
        builder.add(root, -1)
        builder.add(root, -1, point[1:, 1:])
        return builder.build(root + 1)
    builder.add(x[2:, 0], extend_x[1:, 0], x[1:-1, 0])
    builder.add(x[1, 0], open_x[0, 0], point[0, 0] + 3)
    builder.add(x[3:, 1:], extend_x[2:, 1:], x[2:-1, 1:])
    builder.add(x[2:, 1:], open_x[1:, 1:], point[1:-1, 1:])
    builder.add(y[0, 2:], extend_y[0, 1:], y[0, 1:-1])
    builder.add(y[0, 1], open_y[0, 0], point[0, 0] + 3)
    builder.add(y[1:, 2:], extend_y[1:, 1:], y[1:, 1:-1])
    builder.add(y[1:, 2:], open_y[1:, 1:], point[1:, 1:-1])
    builder.add(y[1:, 1], open_y[1:, 0], x[1:, 0])
    builder.add(y[2:, 2:], open_y[2:, 1:], x[2:, 1:-1])
    builder.add(point[1:, 1:] + 3, -1, point[1:, 1:])
    builder.add(point[1:, 0] + 3, -1, x[1:, 0])
    builder.add(point[2:, 1:] + 3, -1, x[2:, 1:])
    builder.add(point[0, 1:] + 3, -1, y[0, 1:])
    builder.add(point[1:, 1:] + 3, -1, y[1:, 1:])
    return builder.build(4 * (n + 1) * (m + 1) + 1)
