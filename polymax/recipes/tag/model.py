"""A chain over the tags of what reads words and their characters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import polymax as pm
from polymax.recipes.tag.data import Batch
from polymax.recipes.text.reader import TextReader
from polymax.recipes.training.task import Model, Vocabularies
from polymax.recipes.training.vocabulary import Words

LOSSES: dict[str, Callable[..., Tensor]] = {
    "crf": pm.crf_loss,
    "sparse-dp": lambda structure, *rest, **named: pm.smoothed_dp_loss(structure, pm.Gini(), *rest, **named),
    "sparsemap": pm.sparsemap_loss,
    "perceptron": pm.perceptron_loss,
    "svm": pm.svm_loss,
}
NAMES = (*LOSSES, "softmax")
SMOOTHINGS: dict[str, Callable[[pm.Chain], Any]] = {
    "crf": pm.Marginals,
    # without transitions it is each token's softmax
    "softmax": pm.Marginals,
    "sparse-dp": lambda structure: pm.LocalMax(structure, pm.Gini()),
    "sparsemap": pm.SparseMap,
}
SPARSE = ("sparse-dp", "sparsemap")


class Scored(NamedTuple):
    """The chains of a batch. Shapes: unary (b, n, s); transition (s, s)."""

    chain: pm.Chain
    unary: Tensor
    transition: Tensor


class Tagger(Model):
    """Scores of tags at tokens from what reads them, and of pairs of neighbouring tags.

        unary = W reader(x) + begin at 1 + end at n

    Shapes: words (b, n); characters (b, n, c); unary (b, n, s); transition (s, s)

    See: Lample et al. 2016, Neural architectures for named entity recognition, Section 2.
    """

    def __init__(self, options: Any, vocabularies: Vocabularies) -> None:
        super().__init__()
        self.options = options
        tags = vocabularies["tags"]
        assert isinstance(tags, Words)
        count = len(tags.words)
        self.reader = TextReader(options, vocabularies)
        self.tags = nn.Linear(self.reader.size, count)
        if options.loss != "softmax":
            self.begin, self.end = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count))
            self.transition = nn.Parameter(torch.zeros(count, count))

    def forward(self, batch: Batch) -> Scored:
        """The scores of a batch."""
        unary = self.tags(self.reader(batch.words, batch.characters, batch.lengths)).float()
        chain = pm.Chain(batch.lengths)
        if self.options.loss == "softmax":
            return Scored(chain, unary, unary.new_zeros(2 * unary.shape[-1:]))
        place = torch.arange(unary.shape[1], device=unary.device).unsqueeze(-1)
        unary = unary + torch.where(place == 0, self.begin, 0)
        unary = unary + torch.where(place == batch.lengths[:, None, None] - 1, self.end, 0)
        return Scored(chain, unary, self.transition)

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The chosen loss over sentences, and, where the model does not learn, right tags over tokens."""
        scored = self(batch)
        sentences = torch.ones_like(batch.lengths).sum()
        if self.options.loss == "softmax":
            wanted = batch.tags.clamp(min=-1)
            total = cross_entropy(scored.unary.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum")
        else:
            # tags of the training are known, and only others are worth asking for
            partial = not self.training and bool((batch.tags == -2).any())
            y = pm.Partial(batch.tags) if partial else batch.tags
            scores = (scored.unary, scored.transition)
            total = LOSSES[self.options.loss](scored.chain, scores, y, reduction="sum")
        measured = {"loss": (total, sentences)}
        if not self.training:
            right = (self.best(scored) == batch.tags) & (batch.tags != -1)
            measured["accuracy"] = (right.sum(), batch.lengths.sum())
        return measured

    @torch.no_grad()
    def best(self, scored: Scored) -> Tensor:
        """The best tags (b, n), by Viterbi's algorithm or, without a chain, one by one; -1 at padding."""
        if self.options.loss == "softmax":
            lengths, places = scored.chain.lengths, torch.arange(scored.unary.shape[1], device=scored.unary.device)
            assert lengths is not None
            return torch.where(places < lengths.unsqueeze(1), scored.unary.argmax(-1), -1)
        return scored.chain.decode(scored.chain.map(scored.unary, scored.transition))

    @torch.no_grad()
    def single(self, scored: Scored) -> Tensor:
        """Whether sparse inference leaves one sequence, (b,)."""
        mu = SMOOTHINGS[self.options.loss](scored.chain)(scored.unary, scored.transition)
        return ((mu.unary > 0).sum(-1) <= 1).all(-1)
