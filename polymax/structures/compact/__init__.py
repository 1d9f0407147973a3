"""Compact forms of structures, integers as data sets store them, and their checks as targets of losses.

base      the list of used parts: the default form.
choices   a class, a place in a list, a subset, or ranks.
tags      a tag for each position.
segments  start, width and label of each segment.
cells     the cells of a path.
pairs     the pairs of an alignment with gaps.
emissions the number of tokens that a transducer has emitted at each frame.
columns   the column of each row.
spans     the spans of a binary tree.
heads     the head of each token, and its label; `trees` checks them, with the messages of `tree_faults`.
edges     the edges of a path, or the hyperedges of a derivation.
faults    errors of invalid targets, with the place and the instance.
"""

from polymax.structures.compact.base import Compact

__all__ = ["Compact"]
