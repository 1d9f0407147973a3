"""A biaffine parser: scores of arcs and of relations, and trees over the arcs."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import polymax as pm
from polymax.nn import ArcScorer, RelationScorer
from polymax_recipes.parse.data import ROOT, Batch, universal
from polymax_recipes.parse.second_order import PairScorer
from polymax_recipes.text.reader import TextReader
from polymax_recipes.text.tokens import Tokens, numbers
from polymax_recipes.training.task import Model, Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, stored_words

Paired = pm.SiblingTree | pm.GrandparentTree | pm.SiblingGrandparentTree
Trees = pm.SpanningTree | pm.ProjectiveTree | Paired
# pairs of arcs that are scored besides arcs
ORDERS: dict[str, type[Paired] | None] = {
    "first": None,
    "siblings": pm.SiblingTree,
    "grandparents": pm.GrandparentTree,
    "both": pm.SiblingGrandparentTree,
}

LOSSES: dict[str, Callable[..., Tensor]] = {
    "crf": pm.crf_loss,
    "svm": pm.svm_loss,
    "perceptron": pm.perceptron_loss,
}
# True for losses with the cost of wrong heads inside the maximum
SPARSE = {"sparsemap": False, "margin-sparsemap": True}
NAMES = (*LOSSES, *SPARSE, "softmax-heads")
# a duality gap that no loss shows; with flat scores, hundreds of trees of smaller weight would follow
TOLERANCE = 1e-6
# a number of turns that no solution needs
LARGEST = 100_000


class Scored(NamedTuple):
    """The trees of a batch.

    Shapes: arcs (b, n + 1, n + 1), [head, modifier]; nodes (b, n + 1, d), 0 the root; pairs of arcs, (b, n + 1, n + 1,
    n + 1) for each kind that is scored
    """

    trees: Trees
    arcs: Tensor
    nodes: Tensor
    pairs: tuple[Tensor, ...] = ()

    @property
    def scores(self) -> tuple[Tensor, ...]:
        """The score tensors of the trees."""
        return self.arcs, *self.pairs


class Parser(Model):
    """Trees from the scores of their arcs, and for each arc a relation.

    Shapes: words (b, n); characters (b, n, c); arcs (b, n + 1, n + 1); relations (b, n, r)

    See: Dozat and Manning 2017, Deep biaffine attention for neural dependency parsing.
    """

    universals: Tensor
    of_root: Tensor

    def __init__(self, options: Any, vocabularies: Vocabularies) -> None:
        super().__init__()
        self.options = options
        relations = stored_words(vocabularies, "relations").words
        universals = numbers(vocabularies["universals"])
        self.reader = TextReader(options, vocabularies)
        self.arcs = ArcScorer(self.reader.size, options.arcs, options.dropout)
        kind = ORDERS[options.order]
        kinds = len(kind().event_dims()) - 1 if kind is not None else 0
        self.pairs = nn.ModuleList(PairScorer(self.reader.size, options.rank, options.dropout) for _ in range(kinds))
        self.relations = RelationScorer(self.reader.size, options.labels, len(relations), options.dropout)
        without = [universals[universal(name)] - len(SPECIALS) for name in relations]
        self.register_buffer("universals", torch.tensor(without), persistent=False)
        of_root = [universal(name).lower() == ROOT for name in relations]
        self.rooted = any(of_root) and not all(of_root)
        self.register_buffer("of_root", torch.tensor(of_root), persistent=False)

    def forward(self, batch: Batch | Tokens) -> Scored:
        """The scores of a batch."""
        tokens = self.reader(batch.words, batch.characters, batch.lengths)
        first = pm.ProjectiveTree if self.options.projective else pm.SpanningTree
        kind = ORDERS[self.options.order] or first
        trees = kind(batch.lengths, single_root=self.options.roots == "single")
        nodes = self.arcs.with_root(tokens)
        pairs = tuple(each(nodes).float() for each in self.pairs)
        return Scored(trees, self.arcs(tokens).float(), nodes, pairs)

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the losses of arcs and relations, over words; in training also the share of lifted words, otherwise
        UAS and LAS.
        """
        scored = self(batch)
        words = batch.lengths.sum()
        named = self.relations(scored.nodes, batch.heads).float()
        known = batch.relations.clamp(min=-1)
        total = cross_entropy(named.flatten(0, 1), known.flatten(), ignore_index=-1, reduction="sum")
        wanted = batch.lifted if self.options.projective else batch.heads
        total = total + self.options.weight * self.arc_loss(scored, wanted)
        measured = {"loss": (total, words)}
        if self.training:
            moved = {"lifted": ((batch.heads != batch.lifted).sum(), words)}
            return measured | (moved if self.options.projective else {})
        heads, relations = self.best(scored)
        right = (heads == batch.heads) & (heads >= 0)
        same = right & (self.universals[relations.clamp(min=0)] == batch.universals)
        measured |= {"uas": (right.sum(), words), "las": (same.sum(), words)}
        if self.options.loss in SPARSE:
            measured["single"] = (self.single(scored).sum(), torch.ones_like(batch.lengths).sum())
        return measured

    def arc_loss(self, scored: Scored, heads: Tensor) -> Tensor:
        """The chosen loss of trees with these heads (b, n), summed."""
        if self.options.loss in LOSSES:
            return LOSSES[self.options.loss](scored.trees, scored.scores, heads, reduction="sum")
        if self.options.loss in SPARSE:
            wanted = scored.trees.compact.first(heads, *scored.scores)
            cost = scored.trees.compact.hamming(wanted) if SPARSE[self.options.loss] else None
            turns = self.options.turns or LARGEST
            with stopping():
                smooth = pm.SparseMap(scored.trees, pm.ActiveSet(turns, TOLERANCE))
                return pm.fenchel_young(smooth, scored.scores, heads, cost, reduction="sum")
        assert scored.trees.lengths is not None
        place = torch.arange(heads.shape[1] + 1, device=heads.device)
        outside = place > scored.trees.lengths.unsqueeze(-1)
        arcs = scored.arcs.masked_fill(outside.unsqueeze(-1) | (place == place.unsqueeze(-1)), -torch.inf)
        return cross_entropy(arcs[:, :, 1:], heads, ignore_index=-1, reduction="sum")

    @torch.no_grad()
    def best(self, scored: Scored) -> tuple[Tensor, Tensor]:
        """The best tree: heads (b, n), and the best relations to them; -1 at padding."""
        heads = scored.trees.decode(scored.trees.map(*scored.scores))
        return heads, self.named(scored.nodes, heads)

    @torch.no_grad()
    def named(self, nodes: Tensor, heads: Tensor) -> Tensor:
        """The best relations (b, n) of words to heads: only the relation to the root is `root`."""
        scores = self.relations(nodes, heads).float()
        if self.rooted:
            scores = scores.masked_fill(self.of_root != (heads == 0).unsqueeze(-1), -torch.inf)
        return torch.where(heads < 0, -1, scores.argmax(-1))

    @torch.no_grad()
    def single(self, scored: Scored) -> Tensor:
        """Return a bool tensor (b,), True if one tree has all the weight under SparseMAP."""
        # the solver starts from the best tree, and stops if it finds no second one in its first iteration
        with stopping():
            mu = pm.SparseMap(scored.trees, pm.ActiveSet(2, TOLERANCE))(*scored.scores)
        arcs = mu if isinstance(mu, Tensor) else mu.arcs
        return ((arcs > 0).sum(-2) <= 1).all(-1)


@contextmanager
def stopping() -> Iterator[None]:
    """Suppress the warning that a solver was stopped, since --turns limits it on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ActiveSet stopped")
        yield
