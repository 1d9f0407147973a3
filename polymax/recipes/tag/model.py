"""A BiLSTM that reads words and their characters, and a chain over the tags."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import polymax as pm
from polymax.recipes.tag.data import Batch
from polymax.recipes.training.task import Model
from polymax.recipes.training.vocabulary import PAD, UNKNOWN

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
    """Scores of tags at tokens from a BiLSTM, and of pairs of neighbouring tags.

        x_t = [word_t, max over characters of convolution]        unary = W BiLSTM(x) + begin at 1 + end at n

    Shapes: words (b, n); characters (b, n, c); unary (b, n, s); transition (s, s)

    See: Ma and Hovy 2016, End-to-end sequence labeling via bi-directional LSTM-CNNs-CRF; Lample et al. 2016.
    """

    def __init__(self, options: Any, words: int, characters: int, tags: int) -> None:
        super().__init__()
        self.options = options
        self.words = nn.Embedding(words, options.embedding, padding_idx=PAD)
        self.letters = nn.Embedding(characters, options.characters, padding_idx=PAD)
        self.spelling = nn.Conv1d(options.characters, options.characters, kernel_size=3, padding=1)
        entering = options.embedding + options.characters
        drop = options.dropout if options.layers > 1 else 0.0
        self.lstm = nn.LSTM(
            entering, options.hidden, options.layers, batch_first=True, dropout=drop, bidirectional=True
        )
        self.tags = nn.Linear(2 * options.hidden, tags)
        self.dropout = nn.Dropout(options.dropout)
        if options.loss != "softmax":
            self.begin, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
            self.transition = nn.Parameter(torch.zeros(tags, tags))

    def forward(self, batch: Batch) -> Scored:
        """The scores of a batch."""
        words = batch.words
        if self.training and self.options.word_dropout:
            dropped = torch.rand(words.shape, device=words.device) < self.options.word_dropout
            words = torch.where(dropped & (words != PAD), UNKNOWN, words)
        entering = self.dropout(torch.cat([self.words(words), self.spelled(batch.characters)], -1))
        packed = pack_padded_sequence(entering, batch.lengths.cpu(), batch_first=True, enforce_sorted=False)
        # oneDNN has no LSTM in half precision where the processor has none; this says nothing about other devices
        with torch.autocast("cpu", enabled=False):
            outputs, _ = self.lstm(packed)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=words.shape[1])
        unary = self.tags(self.dropout(states)).float()
        chain = pm.Chain(batch.lengths)
        if self.options.loss == "softmax":
            return Scored(chain, unary, unary.new_zeros(2 * unary.shape[-1:]))
        place = torch.arange(unary.shape[1], device=unary.device).unsqueeze(-1)
        unary = unary + torch.where(place == 0, self.begin, 0)
        unary = unary + torch.where(place == batch.lengths[:, None, None] - 1, self.end, 0)
        return Scored(chain, unary, self.transition)

    def spelled(self, characters: Tensor) -> Tensor:
        """What the characters say of words: (b, n, c) to (b, n, h)."""
        flat = characters.flatten(0, 1)
        found = self.spelling(self.letters(flat).transpose(1, 2))
        # tanh is above -1, so that padding never is the largest
        found = torch.where((flat != PAD).unsqueeze(1), torch.tanh(found), -1)
        return found.amax(2).unflatten(0, characters.shape[:2])

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
