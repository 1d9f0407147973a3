"""Word translation probabilities from sentence pairs: IBM Model 1, by expectation maximisation.

See: Brown, Della Pietra, Della Pietra and Mercer 1993, Section 4.1.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Pair = tuple[list[str], list[str]]


class Lexicon:
    """Translation probabilities t(target word | source word) of a corpus.

    Each round counts every target word once, shared among the source words of its sentence by their t:

        t(f | e)  <-  sum over pairs with f and e of  t(f | e) / sum_{e'} t(f | e'),  normalised over f

    Shapes: `probabilities` is (source words, target words).
    """

    def __init__(self, pairs: Sequence[Pair], rounds: int = 5) -> None:
        self.source = _vocabulary(source for source, _ in pairs)
        self.target = _vocabulary(target for _, target in pairs)
        self.probabilities = torch.ones(len(self.source), len(self.target), dtype=torch.float64)
        cells = [self._cells(pair) for pair in pairs]
        for _ in range(rounds):
            counts = torch.zeros_like(self.probabilities)
            for rows, columns in cells:
                t = self.probabilities[rows, columns]
                counts.index_put_((rows, columns), t / t.sum(1, keepdim=True), accumulate=True)
            self.probabilities = counts / counts.sum(1, keepdim=True)

    def scores(self, pair: Pair, slope: float = 0.0) -> Tensor:
        """Alignment scores, whose softmax is the posterior of the model: (target words, source words).

            scores[j, i]  =  log t(f_j | e_i)  -  slope |i / n - j / m|

        The second term prefers the diagonal; without it the two "the" of a sentence could not be told apart.
        """
        m, n = len(pair[1]), len(pair[0])
        rows, columns = self._cells(pair)
        distance = (torch.arange(n) / n - torch.arange(m).unsqueeze(1) / m).abs()
        return self.probabilities[rows, columns].log() - slope * distance

    def _cells(self, pair: Pair) -> tuple[Tensor, Tensor]:
        rows = torch.tensor([self.source[word] for word in pair[0]])
        columns = torch.tensor([self.target[word] for word in pair[1]])
        return rows.unsqueeze(0).expand(len(columns), -1), columns.unsqueeze(1).expand(-1, len(rows))


def _vocabulary(sentences: Iterable[list[str]]) -> dict[str, int]:
    words = dict.fromkeys(word for sentence in sentences for word in sentence)
    return {word: number for number, word in enumerate(words)}
