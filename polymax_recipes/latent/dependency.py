"""Latent dependency trees: arcs scored from words in context, a composition of the words along them."""

from torch import Tensor, nn

import polymax as pm
from polymax_recipes.entail.classifier import PaddedLSTM
from polymax_recipes.latent.classifier import Classifier, Read, Sentences, Sizes, sentences_of
from polymax_recipes.latent.data import Batch
from polymax_recipes.latent.options import LatentOptions
from polymax_recipes.training.task import Measured
from polymax_recipes.training.vocabulary import PAD


class Context(nn.Module):
    """Words as a BiLSTM reads them: (r, n) to (r, n, size)."""

    def __init__(self, words: int, size: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size, padding_idx=PAD)
        self.lstm = PaddedLSTM(size, hidden, directions=2)
        self.output = nn.Linear(self.lstm.size, size)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        return self.output(self.lstm(self.words(words), lengths)[0])


class Dependency(Classifier):
    """A parser with its own word vectors, and a composition along dependency trees, by any method of LatentDependency.

    See: Niculae, Martins and Cardie 2018; Corro and Titov 2019; Peng, Thomson and Smith 2018.
    """

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        size = options.embedding
        method = "best" if options.parser == "pretrained" else options.chosen
        self.latent = pm.nn.LatentDependency(
            size, options.hidden, method, projective=options.projective, composition=options.composition
        )
        self.parser = Context(sizes.words, size, options.hidden)
        self.parsing_first = options.parser == "pretrained"

    def parser_parameters(self) -> list[nn.Parameter]:
        assert self.latent.scorer is not None
        return [*self.parser.parameters(), *self.latent.scorer.parameters()]

    def start_epoch(self, epoch: int) -> None:
        if self.options.parser == "pretrained":
            self.parsing_first = epoch < self.options.pretrain
            for parameter in self.parser_parameters():
                parameter.requires_grad_(self.parsing_first)

    def arcs(self, sentences: Sentences) -> Tensor:
        """Scores of arcs, (r, n + 1, n + 1)."""
        scores = self.latent.scores(self.parser(sentences.words, sentences.lengths), sentences.lengths)
        return scores / self.options.heat

    def read(self, sentences: Sentences) -> Read:
        scores, words = self.arcs(sentences), self.words(sentences.words)
        state = self.latent.encode(words, sentences.lengths, scores=scores)
        return Read(state, heads=self.latent.trees(words, sentences.lengths, scores=scores))

    def loss(self, batch: Batch) -> Measured:
        if not self.training:
            return super().loss(batch)
        sentences = sentences_of(batch)
        scores = self.arcs(sentences)
        count = batch.label.new_full((), len(batch.label))
        if self.parsing_first:
            return {"loss": (self.parsing(sentences, scores), count)}

        def loss_fn(encodings: Tensor, rows: Tensor) -> Tensor:
            return self.each(self.scores(encodings.flatten(0, 1)), batch.label[rows])

        words = self.dropout(self.words(sentences.words))
        total = self.latent.loss(words, sentences.lengths, loss_fn, group=self.sides, scores=scores).loss.sum()
        if self.options.multitask:
            total = total + self.options.multitask * self.parsing(sentences, scores)
        return {"loss": (total, count)}

    def parsing(self, sentences: Sentences, scores: Tensor) -> Tensor:
        """The loss of gold trees, - log p(tree), summed over sentences."""
        structure = self.latent.structure.with_lengths(sentences.lengths)
        return pm.crf_loss(structure, scores, sentences.heads, reduction="sum")
