"""Trees that score pairs of arcs as hypergraphs: siblings, grandparents, and both.

Parts are arcs, then pairs [.., .., modifier] in the order of the scores. The root of length L comes L nodes after the
number that goes with a graph.
"""

from typing import Any

import numpy as np

from polymax.graphs.graph import Builder, Family, Graph

SIBLING_KINDS, GRANDPARENT_KINDS, BOTH_KINDS = 7, 6, 9


def first_root(order: int, positions: int, single_root: bool) -> int:
    """Return the node that comes L nodes before the root of length L."""
    square, cube = positions**2, positions**3
    if order == 2:
        return GRANDPARENT_KINDS * cube
    nodes = SIBLING_KINDS * square if order == 1 else BOTH_KINDS * cube
    return nodes + square * int(single_root)


@Family
def siblings(positions: int, single_root: int) -> Graph:
    """Return the hypergraph of half trees over positions i < j.

    S joins two of them between siblings, JR and JL choose the sibling before the outermost modifier, IR and IL add its
    arc, R and L are complete. The root of length L comes after all others.
    """

    def node(kind: int, i: Any, j: Any) -> Any:
        # narrower spans first, and within a span in the order of the kinds
        return ((j - i) * positions + i) * SIBLING_KINDS + kind

    between, join_right, arc_right, join_left, arc_left, right, left = range(SIBLING_KINDS)
    square = positions * positions

    def sibling(h: Any, s: Any, m: Any) -> Any:
        return square + (h * positions + s) * positions + m

    builder = Builder(parts=square + positions**3)
    start = 1 if single_root else 0
    for width in range(1, positions):
        i, k = np.ogrid[start : positions - width, :width]
        j = i + width
        inner = np.arange(width - 1).reshape(1, -1) + 1
        builder.add(node(between, i, j), -1, node(right, i, i + k), node(left, i + k + 1, j))
        builder.add(node(join_right, i, j), sibling(i, i, j), node(left, i + 1, j))
        builder.add(
            node(join_right, i, j), sibling(i, i + inner, j), node(arc_right, i, i + inner), node(between, i + inner, j)
        )
        builder.add(node(arc_right, i, j), i * positions + j, node(join_right, i, j))
        builder.add(node(right, i, j), -1, node(arc_right, i, i + k + 1), node(right, i + k + 1, j))
        # the root symbol has no head
        i, j = i[max(1 - start, 0) :], j[max(1 - start, 0) :]
        builder.add(node(join_left, i, j), sibling(j, j, i), node(right, i, j - 1))
        builder.add(
            node(join_left, i, j), sibling(j, i + inner, i), node(between, i, i + inner), node(arc_left, i + inner, j)
        )
        builder.add(node(arc_left, i, j), j * positions + i, node(join_left, i, j))
        builder.add(node(left, i, j), -1, node(left, i, i + k), node(arc_left, i + k, j))
    nodes = SIBLING_KINDS * square
    if single_root:
        length, r = _roots(positions)
        # the only modifier of the root symbol has a pair and an arc: a node for the pair, then the root
        only = nodes + (length - 1) * positions + r
        builder.add(only, sibling(0, 0, r), node(left, 1, r), node(right, r, length))
        builder.add(nodes + square + length, r, only)
        return builder.build(nodes + square + positions)
    length = np.arange(1, positions)
    builder.add(nodes + length, -1, node(right, 0, length))
    return builder.build(nodes + positions)


@Family
def grandparents(positions: int, single_root: int) -> Graph:
    """Return the hypergraph of half trees over positions i < j, and g outside of them, the head of their head.

    JR and JL join two of them with an arc between their ends, IR and IL add the pair, R and L are complete. The root
    symbol is its own g.
    """

    def node(kind: int, g: Any, i: Any, j: Any) -> Any:
        return (((j - i) * positions + i) * positions + g) * GRANDPARENT_KINDS + kind

    join_right, arc_right, join_left, arc_left, right, left = range(GRANDPARENT_KINDS)
    square = positions * positions

    def pair(g: Any, h: Any, m: Any) -> Any:
        # the root symbol has no head
        return np.where(h == 0, -1, square + (g * positions + h) * positions + m)

    builder = Builder(parts=square + positions**3)
    start = 1 if single_root else 0
    for width in range(1, positions):
        for i in range(start, positions - width):
            j = i + width
            outside = np.array([g for g in range(positions) if not i <= g <= j] or [], np.int64)
            # for half trees with the head i: the root symbol is its own head
            g = (np.zeros(1, np.int64) if i == 0 else outside).reshape(-1, 1)
            k = np.arange(width).reshape(1, -1)
            builder.add(
                node(join_right, g, i, j), i * positions + j, node(right, g, i, i + k), node(left, i, i + k + 1, j)
            )
            builder.add(node(arc_right, g, i, j), pair(g, i, j), node(join_right, g, i, j))
            builder.add(node(right, g, i, j), -1, node(arc_right, g, i, i + k + 1), node(right, i, i + k + 1, j))
            if i == 0:
                continue
            g = outside.reshape(-1, 1)
            builder.add(
                node(join_left, g, i, j), j * positions + i, node(right, j, i, i + k), node(left, g, i + k + 1, j)
            )
            builder.add(node(arc_left, g, i, j), pair(g, j, i), node(join_left, g, i, j))
            builder.add(node(left, g, i, j), -1, node(left, j, i, i + k), node(arc_left, g, i + k, j))
    nodes = GRANDPARENT_KINDS * positions**3
    length, r = _roots(positions)
    if single_root:
        builder.add(nodes + length, r, node(left, 0, 1, r), node(right, 0, r, length))
    else:
        length = np.arange(1, positions)
        builder.add(nodes + length, -1, node(right, 0, 0, length))
    return builder.build(nodes + positions)


@Family
def both(positions: int, single_root: int) -> Graph:
    """Return the hypergraph of half trees over positions i < j, and g outside of them, the head of their head.

    S joins two of them between siblings whose head is g; JR and JL choose the sibling before the outermost modifier; AR
    and AL add its arc, IR and IL the grandparent; R and L are complete. The root symbol is its own g.
    """

    def node(kind: int, g: Any, i: Any, j: Any) -> Any:
        return (((j - i) * positions + i) * positions + g) * BOTH_KINDS + kind

    between, join_right, arc_right, pair_right, join_left, arc_left, pair_left, right, left = range(BOTH_KINDS)
    square, cube = positions**2, positions**3

    def sibling(h: Any, s: Any, m: Any) -> Any:
        return square + (h * positions + s) * positions + m

    def pair(g: Any, h: Any, m: Any) -> Any:
        # the root symbol has no head
        return np.where(h == 0, -1, square + cube + (g * positions + h) * positions + m)

    builder = Builder(parts=square + 2 * cube)
    start = 1 if single_root else 0
    for width in range(1, positions):
        for i in range(start, positions - width):
            j = i + width
            outside = np.array([g for g in range(positions) if not i <= g <= j] or [], np.int64).reshape(-1, 1)
            # the root symbol is its own head
            g = np.zeros((1, 1), np.int64) if i == 0 else outside
            k = np.arange(width).reshape(1, -1)
            inner = i + np.arange(1, width).reshape(1, -1)
            builder.add(node(join_right, g, i, j), sibling(i, i, j), node(left, i, i + 1, j))
            above, gap = node(pair_right, g, i, inner), node(between, i, inner, j)
            builder.add(node(join_right, g, i, j), sibling(i, inner, j), above, gap)
            builder.add(node(arc_right, g, i, j), i * positions + j, node(join_right, g, i, j))
            builder.add(node(pair_right, g, i, j), pair(g, i, j), node(arc_right, g, i, j))
            builder.add(node(right, g, i, j), -1, node(pair_right, g, i, i + k + 1), node(right, i, i + k + 1, j))
            if i == 0:
                continue
            builder.add(node(between, g, i, j), -1, node(right, g, i, i + k), node(left, g, i + k + 1, j))
            builder.add(node(join_left, g, i, j), sibling(j, j, i), node(right, j, i, j - 1))
            builder.add(
                node(join_left, g, i, j), sibling(j, inner, i), node(between, j, i, inner), node(pair_left, g, inner, j)
            )
            builder.add(node(arc_left, g, i, j), j * positions + i, node(join_left, g, i, j))
            builder.add(node(pair_left, g, i, j), pair(g, j, i), node(arc_left, g, i, j))
            builder.add(node(left, g, i, j), -1, node(left, j, i, i + k), node(pair_left, g, i + k, j))
    nodes = BOTH_KINDS * cube
    if single_root:
        length, r = _roots(positions)
        only = nodes + (length - 1) * positions + r
        builder.add(only, sibling(0, 0, r), node(left, 0, 1, r), node(right, 0, r, length))
        builder.add(nodes + square + length, r, only)
        return builder.build(nodes + square + positions)
    length = np.arange(1, positions)
    builder.add(nodes + length, -1, node(right, 0, 0, length))
    return builder.build(nodes + positions)


def _roots(positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths, and tokens that may hang from the root symbol."""
    length, r = np.ogrid[1:positions, 1:positions]
    length, r = np.broadcast_arrays(length, r)
    return length[r <= length], r[r <= length]
