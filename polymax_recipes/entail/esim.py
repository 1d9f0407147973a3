"""ESIM: premise and hypothesis are aligned, compared word by word, and read again."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import polymax as pm
from polymax_recipes.entail.classifier import Classifier, Judged, PaddedLSTM, inside
from polymax_recipes.entail.data import LABELS, Batch
from polymax_recipes.training.vocabulary import PAD

# mappings of each word alone, and structured ones of all words together
MAPPINGS: dict[str, Callable[..., Tensor]] = {"softmax": pm.softmax, "sparsemax": pm.sparsemax}
STRUCTURES = {"assignment": pm.Assignment(), "sequence": pm.Alignment()}
ALIGNMENTS = (*MAPPINGS, *STRUCTURES)


class EachOther(nn.Module):
    """Two sequences that attend to each other, each word on its own: `pm.nn.AlignmentAttention` without a structure.

    Its weights are (2, b, n, m): the weights of rows, which sum to 1 along columns, and the weights of columns.
    """

    def __init__(self, mapping: Callable[..., Tensor]) -> None:
        super().__init__()
        self.mapping = mapping

    def forward(
        self, scores: Tensor, x: Tensor, y: Tensor, x_mask: Tensor, y_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        mask = x_mask.unsqueeze(2) & y_mask.unsqueeze(1)
        first, second = (self.mapping(scores, dim=dim, mask=mask) for dim in (-1, -2))
        return first @ y, second.transpose(1, 2) @ x, torch.stack([first, second])


class Esim(Classifier):
    """A BiLSTM reads, words are aligned and compared, a second BiLSTM reads the comparisons.

        a', b' = alignment(a b^T)        v = BiLSTM(relu(W [a, a', a - a', a * a']))        the same for b
        scores = MLP([mean v_a, max v_a, mean v_b, max v_b])

    See: Chen et al. 2017, Enhanced LSTM for natural language inference, Section 3; Niculae, Martins, Blondel and
    Cardie 2018, SparseMAP, which aligns by matchings.
    """

    def __init__(self, options: Any, words: int) -> None:
        super().__init__()
        name = options.alignment
        self.words = nn.Embedding(words, options.embedding, padding_idx=PAD)
        self.reading = PaddedLSTM(options.embedding, options.hidden, directions=2)
        size = self.reading.size
        self.alignment: nn.Module
        if name in MAPPINGS:
            self.alignment = EachOther(MAPPINGS[name])
        else:
            self.alignment = pm.nn.AlignmentAttention(pm.SparseMap(STRUCTURES[name]))
        self.compared = nn.Linear(4 * size, size)
        self.composition = PaddedLSTM(size, size, directions=2)
        self.hidden = nn.Linear(4 * size, size)
        self.labels = nn.Linear(size, len(LABELS))
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, batch: Batch) -> Judged:
        sides = (batch.premise, batch.premise_lengths), (batch.hypothesis, batch.hypothesis_lengths)
        masks = [inside(*side) for side in sides]
        x, y = (self.reading(self.dropout(self.words(words)), lengths)[0] for words, lengths in sides)
        first, second, weights = self.alignment(x @ y.transpose(1, 2), x, y, *masks)
        pooled = [
            self._pool(side, aligned, lengths, mask)
            for side, aligned, (_, lengths), mask in zip((x, y), (first, second), sides, masks)
        ]
        hidden = torch.tanh(self.hidden(self.dropout(torch.cat(pooled, -1))))
        return Judged(self.labels(self.dropout(hidden)), weights, masks[0].unsqueeze(2) & masks[1].unsqueeze(1))

    def _pool(self, x: Tensor, aligned: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        """Compare and compose the words, and return the mean and the maximum over them, (b, 2 h)."""
        compared = torch.relu(self.compared(torch.cat([x, aligned, x - aligned, x * aligned], -1)))
        composed, _ = self.composition(self.dropout(compared), lengths)
        outside = ~mask.unsqueeze(2)
        mean = composed.masked_fill(outside, 0).sum(1) / lengths.unsqueeze(1)
        return torch.cat([mean, composed.masked_fill(outside, -torch.inf).amax(1)], -1)
