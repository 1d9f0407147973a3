"""Models that read in one pass: LSTM, Tree-LSTM of gold trees, SPINN, Gumbel Tree-LSTM."""

import torch
from torch import Tensor, nn

import polymax as pm
from polymax.nn.choice import Policy
from polymax_recipes.latent.classifier import Classifier, Read, Sentences, Sizes
from polymax_recipes.latent.options import LatentOptions


class Sequential(Classifier):
    """An LSTM from left to right; the state after the last token."""

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.lstm = nn.LSTM(options.embedding, options.hidden, batch_first=True)

    def read(self, sentences: Sentences) -> Read:
        # on some processors oneDNN has no LSTM in half precision
        with torch.autocast("cpu", enabled=False):
            states, _ = self.lstm(self.dropout(self.words(sentences.words)))
        rows = torch.arange(len(states), device=states.device)
        return Read(states[rows, sentences.lengths - 1])


class Gold(Classifier):
    """A Tree-LSTM over the trees that the data come with."""

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.tree = pm.nn.BinaryTreeLSTM(options.embedding, options.hidden)

    def read(self, sentences: Sentences) -> Read:
        words = self.dropout(self.words(sentences.words))
        return Read(self.tree(words, sentences.transitions).root, sentences.transitions)


class Gumbel(Classifier):
    """Trees that grow by the best pair of neighbours, with straight-through Gumbel-softmax.

    See: Choi, Yoo and Lee 2018.
    """

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.tree = pm.nn.GumbelTreeLSTM(options.embedding, options.hidden, options.heat)

    def parser_parameters(self) -> list[nn.Parameter]:
        return [self.tree.query]

    def read(self, sentences: Sentences) -> Read:
        found = self.tree(self.dropout(self.words(sentences.words)), sentences.lengths)
        return Read(found.root, found.transitions, found.log_prob, found.entropy)


def policy_of(options: LatentOptions) -> Policy:
    """Return the rule by which spinn chooses its actions in training."""
    one = pm.Simplex()
    match options.chosen:
        case "reinforce":
            return pm.Marginals(one)
        case "straight-through":
            return pm.StraightThrough(one, pm.Marginals(one))
        case "st-gumbel":
            return pm.PerturbAndMap(one, through=pm.Marginals(one, gamma=options.heat))
    return pm.HardMax(one)


class Spinn(Classifier):
    """SPINN: the parser reads its own nodes, and its tracker is part of the composition.

    See: Bowman et al. 2016; Yogatama et al. 2017 for reinforce, Maillard and Clark 2018 for beam.
    """

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.spinn = pm.nn.SPINN(options.embedding, options.hidden, options.tracker)
        self.policy = policy_of(options)
        self.searched = pm.nn.BeamSPINN(self.spinn, options.beam) if options.chosen == "beam" else None
        self.expected = pm.nn.PolicyGradient(pm.MovingAverage()) if options.chosen == "reinforce" else None

    def parser_parameters(self) -> list[nn.Parameter]:
        return [*self.spinn.reader.tracker.parameters(), *self.spinn.reader.action.parameters()]

    def read(self, sentences: Sentences) -> Read:
        words = self.dropout(self.words(sentences.words))
        gold = self.training and self.options.chosen == "supervised"
        if self.searched is not None:
            found = self.searched(words, sentences.lengths)
            return Read(
                found.root, found.transitions[:, 0], extra=self._parsing(words, sentences, self.options.multitask)
            )
        parse = self.spinn(
            words,
            sentences.lengths,
            sentences.transitions if gold else None,
            self.policy if self.training else pm.HardMax(pm.Simplex()),
        )
        extra = -parse.log_prob if gold else self._parsing(words, sentences, self.options.multitask)
        return Read(parse.root, parse.transitions, parse.log_prob, parse.entropy, extra)

    def _parsing(self, words: Tensor, sentences: Sentences, weight: float) -> Tensor | None:
        """The loss of gold trees, times its weight among the options."""
        if not self.training or not weight:
            return None
        return -weight * self.spinn(words, sentences.lengths, sentences.transitions).log_prob

    def minimised(self, losses: Tensor, read: Read) -> Tensor:
        if self.expected is None:
            return super().minimised(losses, read)
        assert read.transitions is not None
        assert read.log_prob is not None
        assert read.entropy is not None
        steps = (read.transitions >= 0).sum(-1)
        total = self.expected(losses, self.per_example(read.log_prob)) * len(losses)
        total = total - self.options.entropy * (read.entropy / steps).sum()
        return total if read.extra is None else total + read.extra.sum()
