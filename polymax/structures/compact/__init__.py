"""Compact forms of structures: what people store, and what losses ask of a target in that form.

base      the used parts, one by one: the form of a set that has no shorter one
choices   one of a list: classes, places in a list; several of a list; ranks
tags      a tag for each position
segments  start, width and label of each segment
cells     the cells of a path
pairs     the pairs of an alignment with gaps
emissions how many tokens a transducer has emitted at each frame
columns   the column of each row
spans     the spans of a binary tree
heads     the head of each token, and its label: `trees` checks them, in the words of `tree_faults`
edges     the edges of a path, the hyperedges of a derivation
faults    why a target is no structure, told with its place and its instance
"""

from polymax.structures.compact.base import Compact

__all__ = ["Compact"]
