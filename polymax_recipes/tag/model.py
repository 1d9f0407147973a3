"""A chain over tags, scored from the states of a reader of words and characters."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import polymax as pm
from polymax_recipes.doubts import doubt
from polymax_recipes.tag.agreed import Unkept, agreed_tags
from polymax_recipes.tag.data import Batch, PieceBatch
from polymax_recipes.tag.rules import Rule, rules_on
from polymax_recipes.tag.spans import constraints_of, counted_spans, spell_spans
from polymax_recipes.text.chosen import reader_of
from polymax_recipes.training.task import Model, Vocabularies
from polymax_recipes.training.vocabulary import Words, stored_words

# the tolerance is a duality gap below the digits of printed losses; with flat transitions, smaller gaps take thousands
# of tiny steps
SOLVER = pm.ActiveSet(tol=1e-6)
LOSSES: dict[str, Callable[..., Tensor]] = {
    "crf": pm.crf_loss,
    "sparse-dp": lambda structure, *rest, **named: pm.smoothed_dp_loss(structure, pm.Gini(), *rest, **named),
    "sparsemap": lambda structure, *rest, **named: pm.fenchel_young(pm.SparseMap(structure, SOLVER), *rest, **named),
    "perceptron": pm.perceptron_loss,
    "svm": pm.svm_loss,
}
NAMES = (*LOSSES, "softmax")
SMOOTHINGS: dict[str, Callable[[pm.Chain], Any]] = {
    "crf": pm.Marginals,
    # without transitions this is the softmax of each token
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
    """Scores of tags at tokens from the states of a reader, and scores of pairs of neighbouring tags.

    If the tags of the training keep the rules of a scheme, predicted tags keep them, too; losses do not use the rules.

        unary = W reader(x) + begin at 1 + end at n

    Shapes: words (b, n); characters (b, n, c); unary (b, n, s); transition (s, s)

    See: Lample et al. 2016, Neural architectures for named entity recognition, Section 2.
    """

    moves: Tensor | None
    first: Tensor | None
    last: Tensor | None

    def __init__(self, options: Any, vocabularies: Vocabularies) -> None:
        super().__init__()
        self.options = options
        self.names = stored_words(vocabularies, "tags").words
        count = len(self.names)
        self.spell_spans = spell_spans(self.names)
        allowed = constraints_of("".join(stored_words(vocabularies, "rules").words), self.names)
        for name, part in zip(("moves", "first", "last"), allowed or (None, None, None)):
            # not saved, since it follows from the vocabularies
            self.register_buffer(name, part, persistent=False)
        constraints = vocabularies.get("constraints")
        stored = constraints.words if isinstance(constraints, Words) else ()
        self.rules = rules_on(stored, self.names)
        self.reader = reader_of(options, vocabularies)
        self.tags = nn.Linear(self.reader.size, count)
        if options.loss != "softmax":
            self.begin, self.end = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count))
            self.transition = nn.Parameter(torch.zeros(count, count))

    def forward(self, batch: Batch | PieceBatch) -> Scored:
        """The scores of a batch."""
        # the reader takes all tensors except the tags
        unary = self.tags(self.reader(*batch[:-1])).float()
        chain = pm.Chain(batch.lengths)
        if self.options.loss == "softmax":
            return Scored(chain, unary, unary.new_zeros(2 * unary.shape[-1:]))
        return Scored(chain, _at_ends(unary, batch.lengths, self.begin, self.end), self.transition)

    def constrained(self, scored: Scored) -> Scored:
        """Scores with -inf for forbidden tags; unchanged without rules, without a chain, or if not wanted."""
        if self.moves is None or self.options.loss == "softmax" or self.options.unconstrained:
            return scored
        assert self.first is not None
        assert self.last is not None
        assert scored.chain.lengths is not None
        ends = (torch.zeros_like(self.begin).masked_fill(~part, -torch.inf) for part in (self.first, self.last))
        unary = _at_ends(scored.unary, scored.chain.lengths, *ends)
        return scored._replace(unary=unary, transition=scored.transition.masked_fill(~self.moves, -torch.inf))

    def loss(self, batch: Batch | PieceBatch) -> dict[str, tuple[Tensor, Tensor]]:
        """The chosen loss over sentences; in evaluation also right tags over tokens, and F1 of spans."""
        scored = self(batch)
        sentences = torch.ones_like(batch.lengths).sum()
        if self.options.loss == "softmax":
            wanted = batch.tags.clamp(min=-1)
            total = cross_entropy(scored.unary.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum")
        else:
            # training data have no unknown tags, so that only other data are tested
            partial = not self.training and bool((batch.tags == -2).any())
            y = pm.Partial(batch.tags) if partial else batch.tags
            scores = (scored.unary, scored.transition)
            total = LOSSES[self.options.loss](scored.chain, scores, y, reduction="sum")
        measured = {"loss": (total, sentences)}
        if not self.training:
            found = self.best(scored)
            right = (found == batch.tags) & (batch.tags != -1)
            measured["accuracy"] = (right.sum(), batch.lengths.sum())
            if self.spell_spans:
                measured["f1"] = counted_spans(self.names, batch.tags, found)
        return measured

    @torch.no_grad()
    def best(self, scored: Scored) -> Tensor:
        """The best tags (b, n) that keep the rules of sentences; -1 at padding.

        They are found by Viterbi's algorithm or, without a chain, one by one.
        """
        lengths = scored.chain.lengths
        assert lengths is not None
        if self.options.loss == "softmax":
            places = torch.arange(scored.unary.shape[1], device=scored.unary.device)
            found = torch.where(places < lengths.unsqueeze(1), scored.unary.argmax(-1), -1)
        else:
            chain, unary, transition = self.constrained(scored)
            found = chain.decode(chain.map(unary, transition))
        rules = [rule for rule in self.rules if not rule.document]
        return self.within(rules, scored, found) if rules else found

    def within(self, rules: Sequence[Rule], scored: Scored, found: Tensor) -> Tensor:
        """Return the best tags (b, n) that keep rules of sentences, for sentences whose tags break one."""
        _, unary, transition = self.constrained(scored)
        tags = found.cpu().clone()
        for row, n in enumerate((tags >= 0).sum(1).tolist()):
            if not all(rule.keeps(tags[row, :n].tolist()) for rule in rules):
                try:
                    tags[row, :n] = agreed_tags(rules, [unary[row, :n]], transition)[0]
                except Unkept as error:
                    doubt(f"{error}: its tags are those of the chain")
        return tags.to(found.device)

    @torch.no_grad()
    def single(self, scored: Scored) -> Tensor:
        """Return a bool tensor (b,), True if one sequence has all the weight under sparse inference."""
        smoothing = SMOOTHINGS[self.options.loss](scored.chain)
        if isinstance(smoothing, pm.SparseMap):
            smoothing = pm.SparseMap(scored.chain, SOLVER)
        mu = smoothing(scored.unary, scored.transition)
        return ((mu.unary > 0).sum(-1) <= 1).all(-1)


def _at_ends(unary: Tensor, lengths: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """The scores (b, n, s) with `begin` (s,) added at the first tag, and `end` (s,) at the last."""
    place = torch.arange(unary.shape[1], device=unary.device).unsqueeze(-1)
    unary = unary + torch.where(place == 0, begin, 0)
    return unary + torch.where(place == lengths[:, None, None] - 1, end, 0)
