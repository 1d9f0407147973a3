"""Whole trees with their probabilities, from the chart of a sentence."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import polymax as pm
from polymax_recipes.bracket.model import SMOOTHINGS, Scored, used_labels, with_labelled_root

# trees that are listed if all trees have a positive probability
BEST = 5
# trees of a sparse distribution that are listed at most
LARGEST = 100


class Bracketing(NamedTuple):
    """A whole tree: the labels (n, n) of its spans, -1 for all other spans."""

    probability: float
    labels: Tensor


@torch.no_grad()
def alternatives(loss: str, scored: Scored) -> Iterator[list[Bracketing]]:
    """The trees of each sentence, most probable first: at most 100 of those with weight under sparsemap, else the 5
    best.

    Example:
        >>> scored = Scored(pm.SpanTree(torch.tensor([2])), torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 1))
        >>> [probability for probability, _ in next(alternatives("crf", scored))]
        [0.25, 0.25, 0.25, 0.25]
    """
    if loss not in SMOOTHINGS:
        raise ValueError(f"--distribution needs a loss with probabilities, {', '.join(SMOOTHINGS)}; got {loss}")
    assert scored.trees.lengths is not None
    # one by one: a batch would be padded to the longest sentence
    for scores, length in zip(with_labelled_root(scored), scored.trees.lengths.tolist()):
        distribution = SMOOTHINGS[loss](pm.SpanTree(labelled=True)).distribution(scores[:length, :length])
        most = min(int(distribution.support_size), LARGEST) if loss == "sparsemap" else BEST
        structures, probabilities = distribution.topk(most)
        rows = list(map(Bracketing, probabilities.tolist(), used_labels(structures).cpu()))
        # the best tree is listed even if its probability underflows to 0
        yield rows[:1] + [row for row in rows[1:] if row.probability > 0]
