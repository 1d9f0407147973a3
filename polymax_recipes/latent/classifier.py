"""The base of all latent-tree models: word vectors, labels from the states of one sentence or two, and a loss."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from polymax_recipes.latent.data import Batch
from polymax_recipes.latent.options import LatentOptions
from polymax_recipes.training.task import Measured, Model
from polymax_recipes.training.vocabulary import PAD


class Sizes(NamedTuple):
    """Numbers of words and of labels, and of sentences in an example."""

    words: int
    labels: int
    sides: int


class Read(NamedTuple):
    """States and trees of r sentences; None for parts that a model does not have.

    Shapes: state (r, d); transitions (r, 2 n - 1), -1 at padding; log_prob and entropy (r,), of the actions; extra (r,)
    is added to the loss in training, such as the loss of gold trees; heads (r, n), of dependency trees, -1 at padding;
    chosen (r, n), the weight of each word in a rationale
    """

    state: Tensor
    transitions: Tensor | None = None
    log_prob: Tensor | None = None
    entropy: Tensor | None = None
    extra: Tensor | None = None
    heads: Tensor | None = None
    chosen: Tensor | None = None


class Sentences(NamedTuple):
    """All sentences of a batch, one after the other. Shapes: as in Batch, with r = b s rows."""

    words: Tensor
    lengths: Tensor
    transitions: Tensor
    heads: Tensor


class Classifier(Model):
    """A classifier: a model computes the states of sentences, a network the scores of labels.

    scores = W relu(V u + c) + e,    u the state of a sentence, or [u, v, |u - v|, u v] of a pair
    """

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__()
        self.options = options
        self.words = nn.Embedding(sizes.words, options.embedding, padding_idx=PAD)
        self.dropout = nn.Dropout(options.dropout)
        self.sides = sizes.sides
        wide = options.hidden * (1 if sizes.sides == 1 else 4)
        self.judge = nn.Sequential(
            self.dropout, nn.Linear(wide, options.hidden), nn.ReLU(), nn.Linear(options.hidden, sizes.labels)
        )

    @abstractmethod
    def read(self, sentences: Sentences) -> Read:
        """The states of sentences: in training by the learning method, else along the best trees."""

    def parser_parameters(self) -> list[nn.Parameter]:
        """The parameters of the parser, on which the trees depend."""
        return []

    def forward(self, batch: Batch) -> tuple[Tensor, Read]:
        """Return the scores of labels (b, labels), and the states and trees behind them."""
        read = self.read(sentences_of(batch))
        return self.scores(read.state), read

    def scores(self, state: Tensor) -> Tensor:
        """Scores of labels (b, labels), from the states (b s, d) of sentences."""
        if self.sides == 1:
            return self.judge(state).float()
        u, v = state.unflatten(0, (-1, 2)).unbind(1)
        return self.judge(torch.cat([u, v, (u - v).abs(), u * v], -1)).float()

    def each(self, scores: Tensor, label: Tensor) -> Tensor:
        """The losses (b,) of examples; 0 for a label that training did not have."""
        return cross_entropy(scores, label, ignore_index=-1, reduction="none")

    def per_example(self, values: Tensor) -> Tensor:
        """Sums (b,) over the sentences of examples."""
        return values.unflatten(0, (-1, self.sides)).sum(1)

    def loss(self, batch: Batch) -> Measured:
        """The cross-entropy of labels, and how many are right."""
        scores, read = self(batch)
        losses = self.each(scores, batch.label)
        total = self.minimised(losses, read) if self.training else losses.sum()
        return measures_of(total, scores, batch.label)

    def minimised(self, losses: Tensor, read: Read) -> Tensor:
        """Return the loss that training minimises, summed over examples."""
        return losses.sum() if read.extra is None else losses.sum() + read.extra.sum()


def measures_of(total: Tensor, scores: Tensor, label: Tensor) -> Measured:
    """The measures of a batch: the sum of losses, and the number of right labels."""
    count = label.new_full((), len(label))
    return {"loss": (total, count), "accuracy": ((scores.argmax(-1) == label).sum(), count)}


def sentences_of(batch: Batch) -> Sentences:
    """The sentences of a batch, with the sentences of an example one after the other."""
    return Sentences(*(part.flatten(0, 1) for part in batch[:4]))
