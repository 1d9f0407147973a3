"""A hypothesis that reads its premise word by word, by attention with any mapping."""

from typing import Any

import torch
from torch import Tensor, nn

from polymax_recipes.entail.classifier import Classifier, Judged, PaddedLSTM, inside
from polymax_recipes.entail.data import LABELS, Batch
from polymax_recipes.seq2seq.attention import Source, SourceAttention
from polymax_recipes.training.vocabulary import PAD


class Reader(Classifier):
    """An LSTM reads the premise, another continues with the hypothesis, whose words attend to the premise.

        r_t = attention(W [h_t, r_(t-1)]) + tanh(V r_(t-1))        scores = U tanh(P [r_m, h_m])

    A bounded mapping gives a word of the premise at most `fertility` over all words of the hypothesis.

    See: Rocktäschel et al. 2016, Reasoning about entailment with neural attention, Section 2.4; Niculae and Blondel
    2017, Section 5.1.
    """

    def __init__(self, options: Any, words: int) -> None:
        super().__init__()
        size = options.hidden
        self.words = nn.Embedding(words, options.embedding, padding_idx=PAD)
        self.premise = PaddedLSTM(options.embedding, size)
        self.hypothesis = PaddedLSTM(options.embedding, size)
        self.keys = nn.Linear(size, size, bias=False)
        self.query = nn.Linear(2 * size, size, bias=False)
        self.kept = nn.Linear(size, size, bias=False)
        self.attention = SourceAttention(options.attention, options)
        self.output = nn.Linear(2 * size, size, bias=False)
        self.labels = nn.Linear(size, len(LABELS))
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, batch: Batch) -> Judged:
        values, state = self.premise(self.dropout(self.words(batch.premise)), batch.premise_lengths)
        read, _ = self.hypothesis(self.dropout(self.words(batch.hypothesis)), batch.hypothesis_lengths, state)
        mask = inside(batch.premise, batch.premise_lengths)
        source = Source(self.keys(values), values, mask, batch.premise_lengths)
        found, weights = self._attend(read, source)
        rows = torch.arange(len(read), device=read.device)
        last = batch.hypothesis_lengths - 1
        ends = torch.cat([found[rows, last], read[rows, last]], -1)
        scores = self.labels(self.dropout(torch.tanh(self.output(ends))))
        steps = inside(batch.hypothesis, batch.hypothesis_lengths)
        return Judged(scores, weights, steps.unsqueeze(2) & mask.unsqueeze(1))

    def _attend(self, read: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Return the context found by each word (b, m, h), and its weights (b, m, n)."""
        left, found = self.attention.start(source), torch.zeros_like(read[:, :1])
        steps, weights = [], []
        for word in read.split(1, 1):
            context, attended, left = self.attention(self.query(torch.cat([word, found], -1)), source, left)
            found = context + torch.tanh(self.kept(found))
            steps.append(found)
            weights.append(attended)
        return torch.cat(steps, 1), torch.cat(weights, 1)
