"""Several scores for each instance: the set of a batch with one more leading dimension."""

from dataclasses import replace

from torch import Tensor

from polymax.structures.base import Structure
from polymax.structures.span_tree import SpanTree


def stacked(structure: Structure, count: int, *scores: Tensor) -> Structure:
    """The set for scores (count, *batch, ...), given scores (*batch, ...) of the instances."""
    if isinstance(structure, SpanTree):
        # a dimension more must not be read as labels
        structure = replace(structure, labelled=structure.event_dims(*scores) == (3,))
    lengths = getattr(structure, "lengths", None)
    if lengths is None:
        return structure
    many = [t.expand(count, *t.shape) for t in (lengths if isinstance(lengths, tuple) else (lengths,))]
    return structure.with_lengths(tuple(many) if isinstance(lengths, tuple) else many[0])
