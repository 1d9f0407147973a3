"""A parser and a composition that share nothing, and learn in turns."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import polymax as pm
from polymax import Baseline, Learned, MovingAverage, Normalized, SelfCritical
from polymax.nn import PolicyGradient, binary_plan, clipped_surrogate
from polymax_recipes.latent.classifier import Classifier, Read, Sentences, Sizes, measures_of, sentences_of
from polymax_recipes.latent.data import Batch
from polymax_recipes.latent.merging import MergeParser
from polymax_recipes.latent.options import LatentOptions
from polymax_recipes.latent.parser import Drawn, TransitionParser
from polymax_recipes.training.task import Alternating, Measured, Part


class Disjoint(Classifier):
    """A parser with words of its own, and a Tree-LSTM over the trees that it finds.

    The parser shifts and reduces; for the model gumbel-tree it merges neighbours.
    """

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.tree = pm.nn.BinaryTreeLSTM(options.embedding, options.hidden)
        kind = MergeParser if options.model == "gumbel-tree" else TransitionParser
        self.parser = kind(sizes.words, options.embedding, options.hidden)

    def parser_parameters(self) -> list[nn.Parameter]:
        return list(self.parser.parameters())

    def read(self, sentences: Sentences) -> Read:
        greedy = torch.zeros_like(sentences.lengths, dtype=torch.bool)
        drawn = self.parser.draw(sentences.words, sentences.lengths, greedy)
        along = self.walk(drawn, drawn.transitions.cpu(), sentences)
        found = self.parser(sentences.words, along)
        words = self.dropout(self.words(sentences.words))
        return Read(self.tree(words, along.plan).root, drawn.transitions, found.log_prob, found.entropy)

    def walk(self, drawn: Any, host: Tensor, sentences: Sentences) -> Any:
        """The parser's walk along drawn transitions; the plan is made from their copy on the host."""
        plan = binary_plan(host, sentences.words.shape[1]).to(sentences.words.device)
        return self.parser.walk(drawn, sentences.lengths, plan)

    def parsing(self, sentences: Sentences) -> Tensor:
        """The losses (r,) of gold trees: - log p(actions)."""
        gold = sentences.transitions
        return -self.parser(sentences.words, self.walk(Drawn(gold), gold.cpu(), sentences)).log_prob


class Pretrained(Disjoint):
    """The parser learns from gold trees for some epochs; then it is frozen, and the composition learns."""

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.parsing_first = True

    def start_epoch(self, epoch: int) -> None:
        self.parsing_first = epoch < self.options.pretrain
        self.parser.requires_grad_(self.parsing_first)

    def loss(self, batch: Batch) -> Measured:
        """The loss; in training there are no other measures, so that all epochs have the same ones."""
        if not self.training:
            return super().loss(batch)
        count = batch.label.new_full((), len(batch.label))
        total = self.parsing(sentences_of(batch)).sum() if self.parsing_first else super().loss(batch)["loss"][0]
        return {"loss": (total, count)}


class Cooperative(Disjoint, Alternating):
    """The parser draws a tree, the composition takes a step along it, and then the parser several on that tree.

        a = (L(tree) - b) / running root mean square of it
        the parser minimises mean of max(r a, clip(r, 1 - ratio, 1 + ratio) a) - entropy,    r = p(tree) / p_old(tree)

    By default b is the loss of the parser's best tree.

    See: Havrylov, Kruszewski and Joulin 2019, Cooperative learning of disjoint syntax and semantics.
    """

    def __init__(self, options: LatentOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.judged = PolicyGradient(Normalized(baseline_of(options, sizes.sides)))
        self.critical = options.baseline == "self-critical"

    def parts(self) -> tuple[Part, Part]:
        parser = list(self.parser.parameters())
        own = {id(parameter) for parameter in parser}
        rest = [parameter for parameter in self.parameters() if id(parameter) not in own]
        return Part(rest), Part(parser, self.options.parser_rate)

    def turns(self, batch: Batch) -> Iterator[Measured]:
        sentences = sentences_of(batch)
        along, scores, losses = self._draw_trees(sentences, batch.label)
        advantages = self._advantages(sentences, losses)
        drawn, label = losses[: len(batch.label)], batch.label
        total = drawn.sum()
        if advantages.requires_grad:
            # its gradient fits the baseline, and its value is not used
            fit = advantages.square().sum()
            total = total + fit - fit.detach()
        yield measures_of(total, scores[: len(label)], label)
        old = None
        steps = 2 * sentences.lengths - 1
        for _ in range(self.options.updates):
            found = self.parser(sentences.words, along)
            log_prob = self.per_example(found.log_prob)
            old = log_prob.detach() if old is None else old
            surrogate = clipped_surrogate(log_prob, old, advantages, self.options.ratio)
            surrogate = surrogate - self.options.entropy * (found.entropy / steps).mean()
            if self.options.multitask:
                surrogate = surrogate + self.options.multitask * self.parsing(sentences).mean()
            yield {"turn": (surrogate, torch.ones_like(surrogate)), "entropy": (found.entropy.sum(), steps.sum())}

    def loss(self, batch: Batch) -> Measured:
        """The loss; in training it is the loss of a drawn tree, with the gradient of the parser's first step."""
        if not self.training:
            return super().loss(batch)
        turns = self.turns(batch)
        first, second = next(turns), next(turns)
        total, count = first["loss"]
        surrogate = second["turn"][0] * count
        return {**first, "loss": (total + surrogate - surrogate.detach(), count)}

    def _draw_trees(self, sentences: Sentences, label: Tensor) -> tuple[Any, Tensor, Tensor]:
        """Return the walk along drawn trees, and the scores and losses of all trees, the drawn ones first."""
        count = len(sentences.words)
        times = 2 if self.critical else 1
        words, lengths = (part.repeat(times, *[1] * (part.dim() - 1)) for part in sentences[:2])
        chance = torch.arange(len(words), device=words.device) < count
        every = self.parser.draw(words, lengths, chance)
        # plans are made on the host: this copy waits for the device once
        host, at = every.transitions.cpu(), torch.arange(count).repeat(times)
        plan = binary_plan(host, words.shape[1], at).to(words.device)
        root = self.tree(self.dropout(self.words(sentences.words)), plan).root
        scores = self.scores(root)
        losses = self.each(scores, label.repeat(times))
        drawn = type(every)(*(part[:count] for part in every))
        return self.walk(drawn, host[:count], sentences), scores, losses

    def _advantages(self, sentences: Sentences, losses: Tensor) -> Tensor:
        count = len(sentences.words) // self.sides
        drawn = losses[:count]
        features = None
        if self.options.baseline == "learned":
            there = (sentences.words != 0).unsqueeze(-1)
            mean = (self.words(sentences.words) * there).sum(1) / sentences.lengths.unsqueeze(-1)
            features = mean.unflatten(0, (-1, self.sides)).flatten(1)
        return self.judged.advantages(drawn, features, lambda: losses[count:])


def baseline_of(options: LatentOptions, sides: int) -> Baseline:
    """The baseline that losses are compared with, by its name."""
    match options.baseline:
        case "self-critical":
            return SelfCritical()
        case "learned":
            seen = nn.Linear(sides * options.embedding, options.hidden)
            return Learned(nn.Sequential(seen, nn.ReLU(), nn.Linear(options.hidden, 1), nn.Flatten(0)))
    return MovingAverage()
