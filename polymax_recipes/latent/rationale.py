"""A classifier by rationales: it chooses at most k words, and reads only these."""

import torch
from torch import Tensor, nn

import polymax as pm
from polymax_recipes.latent.classifier import Classifier, Read, Sentences, Sizes
from polymax_recipes.latent.options import ClassifyOptions


class Rationale(Classifier):
    """An LSTM over both directions that scores words, and an LSTM from left to right that reads the chosen words.

    In training words are chosen by SparseMAP over all choices of at most k words, which has a gradient; else they are
    the best choice. States are off and on, or with `contiguous` before, on and after, in that order, so that the words
    are one stretch.

    See: Lei, Barzilay and Jaakkola 2016, Rationalizing neural predictions; Guerreiro and Martins 2021, SPECTRA.
    """

    def __init__(self, options: ClassifyOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        half = max(options.hidden // 2, 1)
        self.scorer = nn.LSTM(options.embedding, half, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * half, 1)
        # the score of choosing two neighbouring words
        self.together = nn.Parameter(torch.zeros(()))
        self.lstm = nn.LSTM(options.embedding, options.hidden, batch_first=True)
        self.limit, self.contiguous = options.rationale, options.contiguous

    def parser_parameters(self) -> list[nn.Parameter]:
        return [*self.scorer.parameters(), *self.score.parameters(), self.together]

    def read(self, sentences: Sentences) -> Read:
        # on some processors oneDNN has no LSTM in half precision
        with torch.autocast(sentences.words.device.type, enabled=False):
            words = self.dropout(self.words(sentences.words)).float()
            weights = self.weights(self.score(self.scorer(words)[0]).squeeze(-1), sentences.lengths)
            states, _ = self.lstm(words * weights.unsqueeze(-1))
        rows = torch.arange(len(states), device=states.device)
        return Read(states[rows, sentences.lengths - 1], chosen=weights.detach())

    def weights(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the weights (r, n) of the chosen words, from the scores of all words (r, n)."""
        chain = pm.BudgetChain(self.limit, lengths=lengths)
        off = torch.zeros_like(scores)
        unary = torch.stack([off, scores, off] if self.contiguous else [off, scores], -1)
        smooth = pm.SparseMap(chain) if self.training else pm.HardMax(chain)
        return smooth(unary, self._steps(scores)).unary[..., 1]

    def _steps(self, scores: Tensor) -> Tensor:
        """Return the scores of neighbouring states; -inf for a forbidden pair."""
        if not self.contiguous:
            return self.together * torch.tensor([[0.0, 0.0], [0.0, 1.0]]).to(scores)
        never = -torch.inf
        order = torch.tensor([[0.0, 0.0, never], [never, 0.0, 0.0], [never, never, 0.0]]).to(scores)
        return order + self.together * torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]]).to(scores)
