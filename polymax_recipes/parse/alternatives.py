"""Probabilities of whole trees, and of the heads of words, from the scores of a parser."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import polymax as pm
from polymax.solvers.finite import Finite
from polymax_recipes.parse.model import Scored, Trees

# trees that are listed if all trees have a positive probability
BEST = 5
# words of a sentence at most for several trees: the memory of the best trees grows with the cube of the words, with
# grandparents with the fourth power
LONGEST = {pm.ProjectiveTree: 120, pm.SiblingTree: 80, pm.GrandparentTree: 40, pm.SiblingGrandparentTree: 40}
# with this tolerance, missing trees have negligible weights
SOLVER = pm.ActiveSet(tol=1e-9)

SMOOTHINGS: dict[str, Callable[[Trees], Any]] = {
    "crf": pm.Marginals,
    # heads are independent; draws that are not trees are left out
    "softmax-heads": pm.Marginals,
    "sparsemap": lambda trees: pm.SparseMap(trees, SOLVER),
    "margin-sparsemap": lambda trees: pm.SparseMap(trees, SOLVER),
}


class Weighted(NamedTuple):
    """Trees over a sentence, most probable first, on the CPU. Shapes: probabilities (k,); heads (k, n)."""

    probabilities: Tensor
    heads: Tensor


def smoothing(loss: str, trees: Trees, wanted: str) -> Any:
    """Return the smoothing of a loss with probabilities; a ValueError names the command that needs another loss."""
    if loss not in SMOOTHINGS:
        raise ValueError(f"{wanted} needs a loss with probabilities, {', '.join(SMOOTHINGS)}; got {loss}")
    return SMOOTHINGS[loss](trees)


@torch.no_grad()
def alternatives(loss: str, scored: Scored) -> Iterator[Weighted]:
    """The trees of each sentence: all with weight under a sparse loss, else the 5 best, or only the best of a long
    projective sentence.

    Example:
        >>> arcs = torch.tensor([[[0.0, 0.2, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
        >>> found = next(alternatives("sparsemap", Scored(pm.SpanningTree(torch.tensor([2])), arcs, arcs)))
        >>> found.heads.tolist(), [round(p, 3) for p in found.probabilities.tolist()]
        ([[0, 1], [2, 0]], [0.55, 0.45])
    """
    assert scored.trees.lengths is not None
    trees = type(scored.trees)(single_root=scored.trees.single_root)
    # one by one: a batch would be padded to the longest sentence
    tensors = zip(*(t.double().cpu() for t in scored.scores))
    for each, length in zip(tensors, scored.trees.lengths.tolist()):
        shorter = tuple(t[(slice(length + 1),) * t.dim()] for t in each)
        distribution = smoothing(loss, trees, "--distribution").distribution(*shorter)
        if isinstance(distribution, Finite):
            found, probabilities = distribution.support()
            heads = trees.decode(found)
        elif length > LONGEST.get(type(trees), length):
            best = trees.map(*shorter)
            probabilities, heads = distribution.prob(best).reshape(1), trees.decode(best).unsqueeze(0)
        else:
            found, probabilities = distribution.topk(BEST)
            heads = trees.decode(found)
        # leave out the empty places after the last tree
        there = (heads >= 0).all(-1)
        yield Weighted(probabilities[there], heads[there])


@torch.no_grad()
def head_probabilities(loss: str, scored: Scored) -> Tensor:
    """The probability of each head [head, modifier] of each word, (b, n + 1, n + 1)."""
    mu = smoothing(loss, scored.trees, "ambiguous")(*(t.double() for t in scored.scores))
    return mu if isinstance(mu, Tensor) else mu.arcs
