"""Latent dependency trees: a parser and a composition, learned together from the loss of a task."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.estimators import Estimator, JointLoss, NoisyEstimator, Relaxed, ScoreFunction, SparseExpectation
from polymax.estimators.expected_loss import losses_of
from polymax.estimators.policies import Drawn
from polymax.nn.latent_composition import Composition, GraphComposition, TreeLSTMComposition, before, mean_of
from polymax.nn.latent_methods import Given, Method, Trees, method_for_batch, method_of, soft, trees_of
from polymax.nn.scorers import ArcScorer
from polymax.nn.spinn import checked_sentences
from polymax.smoothing import HardMax

COMPOSITIONS: dict[str, Callable[[int, int, int], Composition]] = {
    "tree-lstm": TreeLSTMComposition,
    "gcn": GraphComposition,
}
LossFn = Callable[[Tensor, Tensor], Tensor]


class Loss(NamedTuple):
    """Losses (B,) of instances: `loss` for backward, and `value`, the losses without gradient."""

    loss: Tensor
    value: Tensor


class LatentDependency(nn.Module):
    """Encodes sentences by composing their tokens along latent dependency trees.

        scores = ArcScorer(x),    encoding = composition(x, tree),    tree by the method, from the scores

    | method                           | in training                                | `encode`             |
    |----------------------------------|--------------------------------------------|----------------------|
    | structured-attention, sparsemap  | expected arcs, Marginals or SparseMap      | as in training       |
    | straight-through, spigot         | the best tree, with a chosen gradient      | the best tree        |
    | perturb                          | the best tree of noisy scores, likewise    | the best tree        |
    | score-function                   | drawn trees, compared with the best one    | the best tree        |
    | sparse-expectation               | all trees of SparseMap, each weighed       | the best tree        |
    | best                             | the best tree; the parser is not trained   | as in training       |
    | given, left-chain, right-chain   | trees given with x, or chains              | as in training       |

    A method of one's own is an object: a smoothing, an estimator, `Given`, each over SpanningTree() or
    ProjectiveTree(). composition is "tree-lstm", the root of a child-sum Tree-LSTM, or "gcn", the mean over tokens of a
    graph convolution; `layers` is the number of times that states go along arcs; a Tree-LSTM over a single tree needs
    no such number.

    Shapes: x (B, n, size); lengths (B,); encodings (B, hidden); heads (B, n), 0 the root symbol, -1 at padding

    Example:
        >>> model = LatentDependency(3, 8, "sparse-expectation")
        >>> x, lengths = torch.randn(2, 4, 3), torch.tensor([4, 2])
        >>> found = model.loss(x, lengths, lambda encoding, rows: encoding.square().sum(-1))
        >>> found.loss.mean().backward()
        >>> found.value.shape, model.encode(x, lengths).shape, model.trees(x, lengths).shape
        (torch.Size([2]), torch.Size([2, 8]), torch.Size([2, 4]))

    See: Liu and Lapata 2018; Niculae, Martins and Cardie 2018, Towards dynamic computation graphs via sparse latent
    structure; Corro and Titov 2019, Learning latent trees with a stochastic perturbation; Peng et al. 2018.
    """

    def __init__(
        self,
        size: int,
        hidden: int,
        method: str | Method,
        *,
        projective: bool = False,
        composition: str = "tree-lstm",
        layers: int = 1,
    ) -> None:
        super().__init__()
        if composition not in COMPOSITIONS:
            raise ValueError(f"composition must be one of {', '.join(COMPOSITIONS)}; got {composition!r}")
        self.method = method_of(method, projective)
        if composition == "tree-lstm" and not soft(self.method) and layers != 1:
            raise ValueError(f"layers must be 1 for a Tree-LSTM over single trees; got {layers!r}")
        self.composition = COMPOSITIONS[composition](size, hidden, layers)
        self.scorer = None if isinstance(self.method, Given) else ArcScorer(size, hidden)

    @property
    def structure(self) -> Trees:
        """The set of trees; structured losses of a batch take `structure.with_lengths(lengths)`."""
        return trees_of(self.method)

    def scores(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Scores of arcs, (B, n + 1, n + 1), [head, modifier], 0 the root symbol."""
        if self.scorer is None:
            raise TypeError("trees that are given have no scores")
        sizes, _ = checked_sentences(x, lengths)
        return self.scorer(before(x, sizes))

    def loss(
        self,
        x: Tensor,
        lengths: Tensor | None,
        loss_fn: LossFn,
        *,
        group: int | None = None,
        heads: Tensor | None = None,
        scores: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Loss:
        """The losses of sentences, with the method's gradient in the parser and in the composition.

        `loss_fn(encodings (k, hidden), rows (k,)) -> (k,)` computes the losses of encodings for the sentences `rows`,
        which may repeat. `heads` are trees to use instead of the method's; `scores` replace the scorer's. The features
        of a learned baseline are the mean of x.

        With `group`, each `group` sentences in a row, such as pairs, have a joint loss: encodings are
        (k, group, hidden), rows are indices of groups, and trees are independent (see `JointLoss`). The features of a
        learned baseline are the concatenated means.
        """
        tokens, sizes, method = self._for_batch(x, lengths, heads)
        batch = (len(x),) if group is None else (_groups(len(x), group), group)

        def apart(t: Tensor) -> Tensor:
            return t.reshape(*batch, *t.shape[1:])

        def composed(y: Tensor, at: Tensor) -> Tensor:
            return self.composition.several(tokens, sizes, y, at)

        def loss_of(y: Tensor, at: Tensor) -> Tensor:
            return loss_fn(composed(y, at), at)

        judged = loss_of if group is None else JointLoss(composed, loss_fn)
        match method:
            case ScoreFunction():
                method, seen = method.with_lengths(apart(sizes)), apart(mean_of(tokens, sizes))
                joined = seen.reshape(len(seen), -1)
                losses = method(judged, apart(self._scores(tokens, scores)), features=joined, generator=generator)
            case SparseExpectation():
                losses = method.with_lengths(apart(sizes))(judged, apart(self._scores(tokens, scores)))
            case _:
                encodings = apart(self._encodings(tokens, sizes, method, scores, generator))
                losses = losses_of(loss_fn, encodings, torch.arange(len(encodings), device=x.device))
        return Loss(losses, losses.detach())

    def encode(
        self, x: Tensor, lengths: Tensor | None = None, *, heads: Tensor | None = None, scores: Tensor | None = None
    ) -> Tensor:
        """Encodings (B, hidden) for prediction, without noise: along expected arcs, or along the best tree."""
        tokens, sizes, method = self._for_batch(x, lengths, heads)
        match method:
            case Relaxed():
                method = method.smooth
            case Estimator() | ScoreFunction() | SparseExpectation():
                method = HardMax(trees_of(method))
        return self._encodings(tokens, sizes, method, scores)

    @torch.no_grad()
    def trees(
        self, x: Tensor, lengths: Tensor | None = None, *, heads: Tensor | None = None, scores: Tensor | None = None
    ) -> Tensor:
        """The heads (B, n) of the best trees, or of the given trees."""
        tokens, sizes, method = self._for_batch(x, lengths, heads)
        if isinstance(method, Given):
            return method.heads(sizes, x.shape[1])
        structure = trees_of(method)
        return structure.decode(structure.map(self._scores(tokens, scores)))

    def distribution(self, x: Tensor, lengths: Tensor | None = None, *, scores: Tensor | None = None) -> Any:
        """The distribution over trees: `topk(k)` and `support()` give arcs and probabilities, `structure` their heads.

        Only methods that weight trees or draw them have a distribution; other methods raise an error.
        """
        tokens, _, method = self._for_batch(x, lengths, None)
        smooth: Any = method
        match method:
            case SparseExpectation():
                smooth = method.smooth
            case ScoreFunction(policy=Drawn(smooth=drawn)):
                smooth = drawn
        if not hasattr(smooth, "distribution"):
            raise TypeError(f"{type(method).__name__} has no distribution over trees")
        return smooth.distribution(self._scores(tokens, scores))

    def _for_batch(self, x: Tensor, lengths: Tensor | None, heads: Tensor | None) -> tuple[Tensor, Tensor, Method]:
        """Tokens, 0 at padding, their lengths (B,), and the method for them."""
        sizes, _ = checked_sentences(x, lengths)
        method = self.method if heads is None else Given(self.structure, lambda *_: heads)
        return before(x, sizes), sizes, method_for_batch(method, sizes)

    def _scores(self, tokens: Tensor, scores: Tensor | None) -> Tensor:
        if scores is None:
            return self.scores(tokens)
        shape = (tokens.shape[0], tokens.shape[1] + 1, tokens.shape[1] + 1)
        if scores.shape != shape:
            raise ValueError(f"scores must be {shape}, [head, modifier]; got {tuple(scores.shape)}")
        return scores

    def _encodings(
        self,
        tokens: Tensor,
        sizes: Tensor,
        method: Any,
        scores: Tensor | None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Encodings of one tree, or of expected arcs, for each sentence."""
        match method:
            case Given():
                y = self.structure.encode(method.heads(sizes, tokens.shape[1])).to(tokens)
            case NoisyEstimator() | Relaxed():
                y = method(self._scores(tokens, scores), generator=generator)
            case _:
                y = method(self._scores(tokens, scores))
        return (self.composition.soft if soft(method) else self.composition.along)(tokens, sizes, y)


def _groups(count: int, group: int) -> int:
    """The number of groups of this size among `count` sentences."""
    if _check.whole(group, "group") and count % group:
        raise ValueError(f"group must divide the number of sentences, {count}; got {group}")
    return count // group
