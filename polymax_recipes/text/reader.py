"""A BiLSTM that reads the words of a sentence and their characters."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from polymax_recipes.training.task import Reading, Vocabularies, option
from polymax_recipes.training.vocabulary import PAD, UNKNOWN


@dataclass(frozen=True)
class ReaderOptions(Reading):
    """The options of the reader, the first options of every task with a reader."""

    hidden: int = option(200, "Size of the LSTM in each direction.", least=1)
    embedding: int = option(100, "Size of word vectors.", least=1)
    characters: int = option(50, "Size of the vectors of characters.", least=1)
    spelling: int = option(100, "Size of a word's vector from its characters.", least=1)
    layers: int = option(1, "Layers of the LSTM.", least=1)
    dropout: float = option(0.3, "Probability of dropping an entry.", most=1)
    word_dropout: float = option(0.05, "Probability of replacing a word by UNKNOWN, in training.", most=1)
    words: int = option(50_000, "Most words in the vocabulary.", least=1)


class TextReader(nn.Module):
    """States of tokens from the words around them and from their own characters.

        x_t = [word_t, max over characters of convolution]        h = BiLSTM(x)

    Shapes: words (b, n); characters (b, n, c); lengths (b,) -> h (b, n, 2 hidden), with dropout

    See: Ma and Hovy 2016, End-to-end sequence labeling via bi-directional LSTM-CNNs-CRF; Lample et al. 2016.
    """

    def __init__(self, options: Any, vocabularies: Vocabularies) -> None:
        super().__init__()
        self.word_dropout = options.word_dropout
        self.words = nn.Embedding(len(vocabularies["words"]), options.embedding, padding_idx=PAD)
        self.letters = nn.Embedding(len(vocabularies["characters"]), options.characters, padding_idx=PAD)
        self.spelling = nn.Conv1d(options.characters, options.spelling, kernel_size=3, padding=1)
        entering = options.embedding + options.spelling
        drop = options.dropout if options.layers > 1 else 0.0
        self.lstm = nn.LSTM(
            entering, options.hidden, options.layers, batch_first=True, dropout=drop, bidirectional=True
        )
        self.dropout = nn.Dropout(options.dropout)
        self.size = 2 * options.hidden

    def forward(self, words: Tensor, characters: Tensor, lengths: Tensor) -> Tensor:
        if self.training and self.word_dropout:
            dropped = torch.rand(words.shape, device=words.device) < self.word_dropout
            words = torch.where(dropped & (words != PAD), UNKNOWN, words)
        entering = self.dropout(torch.cat([self.words(words), self.spelled(characters)], -1))
        packed = pack_padded_sequence(entering, lengths.cpu(), batch_first=True, enforce_sorted=False)
        # on some processors oneDNN has no LSTM in half precision; other devices keep autocast
        with torch.autocast("cpu", enabled=False):
            outputs, _ = self.lstm(packed)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=words.shape[1])
        return self.dropout(states)

    def spelled(self, characters: Tensor) -> Tensor:
        """Return vectors of words from their characters: (b, n, c) to (b, n, h)."""
        flat = characters.flatten(0, 1)
        found = self.spelling(self.letters(flat).transpose(1, 2))
        # tanh is above -1, so that padding with -1 is never the maximum
        found = torch.where((flat != PAD).unsqueeze(1), torch.tanh(found), -1)
        return found.amax(2).unflatten(0, characters.shape[:2])
