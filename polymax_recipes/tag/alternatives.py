"""Whole taggings with their probabilities, from the scores of a chain."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from polymax import Chain
from polymax.structures.chain import ChainParts
from polymax_recipes.tag.model import SMOOTHINGS, SPARSE, Scored

# taggings that are listed if all have a positive probability
BEST = 5
# taggings of a sparse distribution that are listed at most
LARGEST = 100


class Tagging(NamedTuple):
    """A whole sequence of tags."""

    probability: float
    tags: list[int]


@torch.no_grad()
def alternatives(loss: str, scored: Scored) -> Iterator[list[Tagging]]:
    """The taggings of each sentence, most probable first: all with weight under a sparse loss, else the 5 best.

    A sparse distribution with more than 100 taggings gives the 100 most probable ones; their probabilities then sum to
    less than 1.

    Example:
        >>> scored = Scored(Chain(torch.tensor([2])), torch.tensor([[[0.2, 0.0], [3.0, 0.0]]]), torch.zeros(2, 2))
        >>> [(round(p, 3), tags) for p, tags in next(alternatives("sparsemap", scored))]
        [(0.6, [0, 0]), (0.4, [1, 0])]
    """
    if loss not in SMOOTHINGS:
        raise ValueError(f"--distribution needs a loss with probabilities, {', '.join(SMOOTHINGS)}; got {loss}")
    assert scored.chain.lengths is not None
    # one by one: a batch would be padded to the longest sentence
    for unary, length in zip(scored.unary, scored.chain.lengths.tolist()):
        scores = unary[:length], scored.transition
        distribution = SMOOTHINGS[loss](Chain()).distribution(*scores)
        most = min(support_size(distribution.mean), LARGEST) if loss in SPARSE else BEST
        structures, probabilities = distribution.topk(most)
        rows = zip(probabilities.tolist(), Chain().decode(structures).tolist())
        yield [Tagging(probability, tags) for probability, tags in rows if probability > 0]


def support_size(mu: ChainParts) -> int:
    """Return the number of sequences whose steps all have positive expectation: an upper bound of the support size.

    Example:
        >>> mu = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
        >>> support_size(ChainParts(mu, torch.tensor([[[0.5, 0.0], [0.0, 0.5]]])))
        2
    """
    counts: Tensor = (mu.unary[0] > 0).double()
    for step in mu.transition > 0:
        counts = counts @ step.double()
    # bounded, since counts may overflow; so many sequences are not listed anyway
    return max(int(counts.sum().clamp(max=2.0**62)), 1)
