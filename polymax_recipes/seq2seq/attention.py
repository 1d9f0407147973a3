"""The attention of the decoder by its name on the command line, and measures of its weights."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import polymax as pm

# mappings that bound the sum of a source word's weights over the sentence
BOUNDED: dict[str, Callable[..., Tensor]] = {"csoftmax": pm.csoftmax, "csparsemax": pm.csparsemax}
FREE: dict[str, Callable[[Any], Callable[..., Tensor]]] = {
    "softmax": lambda options: pm.softmax,
    "sparsemax": lambda options: pm.sparsemax,
    "entmax": lambda options: partial(pm.entmax, alpha=options.alpha),
    "fusedmax": lambda options: partial(pm.fusedmax, strength=options.strength),
    "oscarmax": lambda options: partial(pm.oscarmax, strength=options.strength),
    "sq-pnorm-max": lambda options: partial(pm.sq_pnorm_max, p=options.p),
}
NAMES = (*FREE, *BOUNDED)


class Source(NamedTuple):
    """An encoded batch: keys to be compared with queries, values to be summed, and a mask of the words.

    Shapes: keys (b, n, h); values (b, n, e); mask (b, n), True = a word or the END after it; lengths (b,)
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    lengths: Tensor


class SourceAttention(nn.Module):
    """Attention of k hypotheses for each of b sentences, with their remaining fertilities `left`.

    A bounded mapping gives a word at most `fertility` over all steps, and END the rest of the sum, up to 1. Other
    mappings have no fertilities, and do not change `left`.

    Shapes: queries (b, k, h); left (b, k, n); context (b, k, e); weights (b, k, n)
    """

    def __init__(self, name: str, options: Any) -> None:
        super().__init__()
        self.fertility = options.fertility
        # keys are transformed once for all steps, so that a bilinear score becomes an inner product. it is scaled:
        # large scores put a sparse mapping on one word before anything is learned, and there it has no gradient
        scorer = pm.nn.DotScorer(options.hidden**-0.5)
        self.attention: nn.Module
        if name in BOUNDED:
            self.attention = pm.nn.FertilityAttention(scorer, BOUNDED[name])
        else:
            self.attention = pm.nn.Attention(scorer, FREE[name](options))

    def start(self, source: Source) -> Tensor:
        """Return the budget of each source word before the first step, for one hypothesis."""
        left = torch.full_like(source.mask, self.fertility, dtype=torch.float32)
        return left.scatter(1, source.lengths.unsqueeze(1) - 1, torch.inf).unsqueeze(1)

    def forward(self, queries: Tensor, source: Source, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(self.attention, pm.nn.Attention):
            context, weights = self.attention(queries, source.keys, source.values, source.mask)
            return context, weights, left
        # hypotheses have different fertilities left, so that each gets a copy of the sentence
        keys, values, mask = (
            part.unsqueeze(1).expand(-1, queries.shape[1], *part.shape[1:])
            for part in (source.keys, source.values, source.mask)
        )
        return self.attention(queries, keys, left, values, mask)


def attention_counts(weights: Tensor, steps: Tensor, words: Tensor) -> Tensor:
    """Sums over a batch, on its device: exact zeros, entries, segments, groups, steps.

    Segments are maximal runs of positive weights; groups are maximal runs of equal positive weights, the blocks in
    `pm.plot.attention`.

    Shapes: weights (b, m, n); steps (b, m), words (b, n): True for steps and words, False for padding, which comes
    after the words; sums (5,)

    Example:
        >>> weights, there = torch.tensor([[[0.4, 0.4, 0.2, 0.0]]]), torch.ones(1, 4, dtype=torch.bool)
        >>> attention_counts(weights, there[:, :1], there).tolist()
        [1.0, 4.0, 1.0, 2.0, 1.0]
    """
    there = steps.unsqueeze(2) & words.unsqueeze(1)
    positive = (weights > 0) & there
    begins, differs = positive.clone(), positive.clone()
    begins[..., 1:] &= ~positive[..., :-1]
    differs[..., 1:] &= weights[..., 1:] != weights[..., :-1]
    counts = ((weights == 0) & there, there, begins, differs, steps)
    return torch.stack([count.sum() for count in counts]).double()
