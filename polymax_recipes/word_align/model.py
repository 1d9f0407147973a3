"""Lexicons in both directions, whose words are explained by a latent alignment."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from polymax_recipes.training.task import Model, Vocabularies
from polymax_recipes.training.vocabulary import BEGIN, Vocabulary
from polymax_recipes.word_align.data import Batch, trigrams
from polymax_recipes.word_align.explanations import EXPLANATIONS, Scores

# size of the table of hashed trigrams, and the initial log-odds that no word explains a word
TRIGRAMS, NOTHING = 512, -2.5


class Lexicon(nn.Module):
    """Translation probabilities of low rank.

        log t(f | e) = <given_e, made_f> + bias_f - log sum_f' exp(<given_e, made_f'> + bias_f')

    Shapes: given (b, n); made (b, m); log t (b, m, n)
    """

    def __init__(self, given: int, made: int, size: int) -> None:
        super().__init__()
        self.given, self.made = nn.Embedding(given, size), nn.Embedding(made, size)
        self.bias = nn.Parameter(torch.zeros(made))
        for table in (self.given, self.made):
            nn.init.normal_(table.weight, std=size**-0.5)

    def forward(self, given: Tensor, made: Tensor) -> Tensor:
        # one sum over the vocabulary for each distinct word
        different, places = given.unique(return_inverse=True)
        normaliser = (self.given(different) @ self.made.weight.T + self.bias).float().logsumexp(-1)
        scores = self.made(made) @ self.given(given).transpose(1, 2)
        return scores.float() + self.bias[made].unsqueeze(2) - normaliser[places].unsqueeze(1)


class Direction(nn.Module):
    """Scores with which the words of one side, `given`, explain the words of the other, `made`.

        scores_ji = log t(f_j | e_i) + log p(i | j)        p(i | j) ~ exp(-slope |i / n - j / m| + weight cos(e_i, f_j))

    in which cos compares trigrams of letters; the probability of no explanation is learned.

    Shapes: given (b, n); made (b, m); lengths (b,)

    See: Brown et al. 1993; Dyer, Chahuneau and Smith 2013, A simple, fast, and effective reparameterization of IBM
    Model 2.
    """

    given_letters: Tensor
    made_letters: Tensor

    def __init__(self, options: Any, given: Vocabulary, made: Vocabulary) -> None:
        super().__init__()
        self.lexicon = Lexicon(len(given), len(made), options.embedding)
        # 0 leaves a term out
        self.slope = nn.Parameter(torch.tensor(float(options.slope))) if options.slope else None
        self.weight = nn.Parameter(torch.tensor(float(options.spelling))) if options.spelling else None
        self.nothing = nn.Parameter(torch.tensor(NOTHING))
        if self.weight is not None:
            for side, vocabulary in (("given", given), ("made", made)):
                table = normalize(trigrams(vocabulary, TRIGRAMS), dim=-1)
                self.register_buffer(f"{side}_letters", table, persistent=False)

    def forward(self, given: Tensor, given_lengths: Tensor, made: Tensor, made_lengths: Tensor) -> Scores:
        begun = torch.cat([torch.full_like(given[:, :1], BEGIN), given], 1)
        lexical = self.lexicon(begun, made)
        prior = self.prior(given, given_lengths, made, made_lengths) + logsigmoid(-self.nothing)
        nothing = lexical[..., 0] + logsigmoid(self.nothing)
        return Scores(lexical[..., 1:] + prior, nothing, made_lengths, given_lengths)

    def prior(self, given: Tensor, given_lengths: Tensor, made: Tensor, made_lengths: Tensor) -> Tensor:
        """log p(i | j), (b, m, n), -inf at padding."""
        at = [
            torch.arange(words.shape[1], device=words.device) / lengths.unsqueeze(1)
            for words, lengths in ((given, given_lengths), (made, made_lengths))
        ]
        scores = given.new_zeros(len(given), made.shape[1], given.shape[1], dtype=torch.float32)
        if self.slope is not None:
            scores = scores - self.slope * (at[1].unsqueeze(2) - at[0].unsqueeze(1)).abs()
        if self.weight is not None:
            alike = self.made_letters[made] @ self.given_letters[given].transpose(1, 2)
            scores = scores + self.weight * alike.float()
        there = torch.arange(given.shape[1], device=given.device) < given_lengths.unsqueeze(1)
        return scores.masked_fill(~there.unsqueeze(1), -torch.inf).log_softmax(-1)


class Aligner(Model):
    """Both directions of alignment: each sentence explains the other.

    loss = -max over alignments of <scores, alignment>, smoothed: with softmax the negative log-likelihood
    """

    def __init__(self, options: Any, vocabularies: Vocabularies) -> None:
        super().__init__()
        source, target = vocabularies["source"], vocabularies["target"]
        self.explanation = EXPLANATIONS[options.attention]
        self.forth, self.back = Direction(options, source, target), Direction(options, target, source)

    def forward(self, batch: Batch) -> tuple[Scores, Scores]:
        """The scores of target words that are explained by the source, and of source words by the target."""
        source, target = batch[:2], batch[2:]
        return self.forth(*source, *target), self.back(*target, *source)

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the negative smoothed score of the best alignments, over words of both sides."""
        forth, back = (self.explanation.max(scores).sum() for scores in self(batch))
        return {"loss": (-forth - back, batch.source_lengths.sum() + batch.target_lengths.sum())}

    @torch.no_grad()
    def weights(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The expected alignments of both directions, (b, n, m), source words first."""
        forth, back = (self.explanation.argmax(scores) for scores in self(batch))
        return forth.transpose(1, 2), back
