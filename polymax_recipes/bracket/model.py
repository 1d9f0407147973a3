"""Scores of labelled spans from the states of a reader, and the best trees."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import polymax as pm
from polymax_recipes.bracket.data import Batch
from polymax_recipes.text.reader import TextReader
from polymax_recipes.text.tokens import Tokens
from polymax_recipes.training.task import Model, Vocabularies
from polymax_recipes.training.vocabulary import stored_words

LOSSES: dict[str, Callable[..., Tensor]] = {
    "crf": pm.crf_loss,
    "sparsemap": pm.sparsemap_loss,
    "svm": pm.svm_loss,
    "perceptron": pm.perceptron_loss,
}
SMOOTHINGS: dict[str, Callable[[pm.SpanTree], Any]] = {"crf": pm.Marginals, "sparsemap": pm.SparseMap}


class Scored(NamedTuple):
    """The charts of a batch. Shapes: spans (b, n, n, labels); tags (b, n, tags)."""

    trees: pm.SpanTree
    spans: Tensor
    tags: Tensor


class Bracketer(Model):
    """A span is scored by the differences of the reader's states at its ends; parts of speech are scored word by word.

        x_ij = [forward_j - forward_{i-1}, backward_i - backward_{j+1}]        scores_ij = V relu(norm(W x_ij + b)) + c

    Shapes: words (b, n); characters (b, n, c); spans (b, n, n, labels); tags (b, n, tags)

    See: Stern, Andreas and Klein 2017, A minimal span-based neural constituency parser, Section 3; Kitaev and Klein
    2018, Constituency parsing with a self-attentive encoder.
    """

    def __init__(self, options: Any, vocabularies: Vocabularies) -> None:
        super().__init__()
        self.options = options
        labels, tags = (stored_words(vocabularies, name).words for name in ("labels", "tags"))
        self.reader = TextReader(options, vocabularies)
        self.changes = nn.Linear(self.reader.size, options.spans)
        self.scale = nn.LayerNorm(options.spans)
        self.labels = nn.Linear(options.spans, len(labels))
        self.tags = nn.Linear(self.reader.size, len(tags))

    def forward(self, tokens: Tokens) -> Scored:
        """The scores of a batch."""
        states = self.reader(tokens.words, tokens.characters, tokens.lengths)
        forward, backward = states.chunk(2, -1)
        n = states.shape[1]
        # W is applied to states, of which there are fewer than spans
        weight = self.changes.weight.T
        ends = pad(forward, (0, 0, 1, 0)) @ weight[: forward.shape[-1]]
        begins = pad(backward, (0, 0, 0, 1)) @ weight[forward.shape[-1] :]
        i, j = torch.triu_indices(n, n, device=states.device)
        x = ends[:, j + 1] - ends[:, i] + begins[:, i] - begins[:, j + 1] + self.changes.bias
        found = self.labels(torch.relu(self.scale(x))).float()
        spans = found.new_zeros(len(states), n, n, found.shape[-1])
        spans[:, i, j] = found
        return Scored(pm.SpanTree(tokens.lengths), spans, self.tags(states).float())

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The chosen loss of trees and the cross-entropy of tags, over sentences."""
        scored = self(Tokens(*batch[:3]))
        sentences = torch.ones_like(batch.lengths).sum()
        trees = LOSSES[self.options.loss](scored.trees, scored.spans, batch.spans, reduction="sum")
        tags = cross_entropy(scored.tags.flatten(0, 1), batch.tags.flatten(), ignore_index=-1, reduction="sum")
        measured = {"loss": (trees + tags, sentences)}
        if not self.training:
            found = self.best(scored).flatten(1)
            n = scored.spans.shape[1]
            first, last, label = batch.spans.clamp(min=0).unbind(-1)
            right = (found.gather(1, first * n + last) == label) & (batch.spans[..., 0] >= 0)
            # 2 n - 1 spans of n words
            measured["accuracy"] = (right.sum(), (2 * batch.lengths - 1).sum())
        return measured

    @torch.no_grad()
    def best(self, scored: Scored) -> Tensor:
        """Return the labels (b, n, n) of the best trees, -1 outside of their spans."""
        return used_labels(scored.trees.map(with_labelled_root(scored)))

    @torch.no_grad()
    def single(self, scored: Scored) -> Tensor:
        """Return a bool tensor (b,), True if one tree has all the weight under sparse inference."""
        mu = SMOOTHINGS[self.options.loss](scored.trees)(scored.spans)
        return ((mu == 0) | (mu == 1)).flatten(1).all(1)


def with_labelled_root(scored: Scored) -> Tensor:
    """The scores of spans, -inf for a whole sentence without a label; a single word may have none."""
    lengths = scored.trees.lengths
    assert lengths is not None
    n = scored.spans.shape[1]
    places = torch.arange(n, device=lengths.device)
    whole = (places == 0).view(n, 1, 1) & (places == lengths[:, None, None, None] - 1).transpose(2, 3)
    return scored.spans.masked_fill(whole & (lengths > 1)[:, None, None, None] & unlabelled(scored.spans), -torch.inf)


def unlabelled(spans: Tensor) -> Tensor:
    """Return a mask of labels, True for the first one, which marks spans that are not constituents."""
    return torch.arange(spans.shape[-1], device=spans.device) == 0


def used_labels(y: Tensor) -> Tensor:
    """Return the labels (..., n, n) of the spans of trees (..., n, n, labels), -1 for all other spans."""
    return torch.where(y.amax(-1) > 0, y.argmax(-1), -1)
