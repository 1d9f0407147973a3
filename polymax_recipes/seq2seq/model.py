"""The attentional encoder and decoder of the papers on sparse attention: LSTMs, with input feeding."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from polymax_recipes.seq2seq.attention import Source, SourceAttention, attention_counts
from polymax_recipes.seq2seq.data import Batch
from polymax_recipes.training.task import Model
from polymax_recipes.training.vocabulary import PAD
from polymax_recipes.words import word_log_probs, words_loss, words_measured


class State(NamedTuple):
    """The decoder between two steps, for k hypotheses of each sentence.

    Shapes: hidden, cell (b, k, layers, h); fed (b, k, h), the last output; left (b, k, n), the remaining fertilities
    """

    hidden: Tensor
    cell: Tensor
    fed: Tensor
    left: Tensor

    def chosen(self, hypotheses: Tensor) -> "State":
        """The states of chosen hypotheses, given by indices (b, k') below k."""
        rows = torch.arange(len(hypotheses), device=hypotheses.device).unsqueeze(1)
        return State(*(part[rows, hypotheses] for part in self))


class Seq2Seq(Model):
    """A bidirectional LSTM reads, an LSTM with attention writes.

        h_t = LSTM([y_(t-1), o_(t-1)])        o_t = tanh(W [h_t, context(h_t)])        scores_t = V o_t

    Shapes: source (b, n); target (b, m); scores (b, m - 1, words)

    See: Luong, Pham and Manning 2015, Sections 3.1 and 3.3; Niculae and Blondel 2017, Section 5.2.
    """

    def __init__(self, options: Any, source_words: int, target_words: int) -> None:
        super().__init__()
        self.options = options
        size, layers = options.hidden, options.layers
        self.source = nn.Embedding(source_words, options.embedding, padding_idx=PAD)
        self.target = nn.Embedding(target_words, options.embedding, padding_idx=PAD)
        drop = options.dropout if layers > 1 else 0.0
        half = (size + 1) // 2
        self.encoder = nn.LSTM(options.embedding, half, layers, batch_first=True, dropout=drop, bidirectional=True)
        self.bridge = nn.Linear(4 * half, 2 * size)
        self.keys = nn.Linear(2 * half, size, bias=False)
        inputs = [options.embedding + size] + [size] * (layers - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(entering, size) for entering in inputs)
        self.attention = SourceAttention(options.attention, options)
        self.output = nn.Linear(size + 2 * half, size, bias=False)
        self.words = nn.Linear(size, target_words)
        self.dropout = nn.Dropout(options.dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Source, State]:
        """Return the encoded source, which all steps use, and the state before the first step, for one hypothesis."""
        embedded = self.dropout(self.source(source))
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        # on some processors oneDNN has no LSTM in half precision; other devices keep autocast
        with torch.autocast("cpu", enabled=False):
            outputs, (hidden, cell) = self.encoder(packed)
        values, _ = pad_packed_sequence(outputs, batch_first=True, total_length=source.shape[1])
        # (2 layers, b, h) to (b, 1, layers, 2 h): forwards and backwards side by side
        ends = [part.unflatten(0, (-1, 2)).permute(2, 0, 1, 3).flatten(2).unsqueeze(1) for part in (hidden, cell)]
        begin, cells = torch.tanh(self.bridge(torch.cat(ends, -1))).chunk(2, -1)
        mask = torch.arange(source.shape[1], device=source.device) < lengths.unsqueeze(1)
        encoded = Source(self.keys(values), values, mask, lengths)
        fed = begin.new_zeros(begin[:, :, 0].shape)
        return encoded, State(begin, cells, fed, self.attention.start(encoded))

    def step(self, embedded: Tensor, source: Source, state: State) -> tuple[State, Tensor]:
        """Return the state after words (b, k, e) were written, and the weights of the attention."""
        entering = torch.cat([embedded, state.fed], -1).flatten(0, 1)
        hidden, cell = [], []
        before = zip(state.hidden.flatten(0, 1).unbind(1), state.cell.flatten(0, 1).unbind(1))
        for lstm, kept in zip(self.cells, before):
            entering, remembered = lstm(entering, kept)
            hidden.append(entering)
            cell.append(remembered)
            entering = self.dropout(entering)
        rows = embedded.shape[:2]
        queries = entering.unflatten(0, rows)
        context, weights, left = self.attention(queries, source, state.left)
        fed = self.dropout(torch.tanh(self.output(torch.cat([queries, context], -1))))
        hiddens, cells = (torch.stack(parts, 1).unflatten(0, rows) for parts in (hidden, cell))
        return State(hiddens, cells, fed, left), weights

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return outputs for the words of the target after the first, and the attention weights of each."""
        source, state = self.encode(batch.source, batch.source_lengths)
        embedded = self.dropout(self.target(batch.target[:, :-1]))
        outputs, weights = [], []
        for word in embedded.split(1, 1):
            state, attended = self.step(word, source, state)
            outputs.append(state.fed)
            weights.append(attended)
        return torch.cat(outputs, 1), torch.cat(weights, 1)

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the loss, the number of right words, and measures of the attention, over words and END."""
        outputs, weights = self(batch)
        gold = batch.target[:, 1:]
        there = gold != PAD
        flat, wanted, kept = outputs.flatten(0, 1), gold.flatten(), there.flatten()
        layer = self.words
        total, scores = words_loss(self.options, flat, layer.weight, layer.bias, wanted, PAD)
        words = there.sum()
        found = {"loss": (total, words)}
        if not self.training:
            given = None if scores is None else scores[kept]
            measured = words_measured(self.options, flat[kept], layer.weight, layer.bias, wanted[kept], given)
            found |= {"word_accuracy" if name == "accuracy" else name: pair for name, pair in measured.items()}
        elif scores is not None:
            found["word_accuracy"] = ((scores.argmax(-1) == wanted) & kept).sum(), words
        with torch.no_grad():
            inside = torch.arange(batch.source.shape[1], device=gold.device) < batch.source_lengths.unsqueeze(1)
            zeros, entries, segments, groups, steps = attention_counts(weights, there, inside)
        return {**found, "zeros": (zeros, entries), "segments": (segments, steps), "groups": (groups, steps)}

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Return log-probabilities of all words, (b, k, words); -inf for words of probability 0."""
        return word_log_probs(self.options, self.words(outputs).float())
