"""Losses of structured prediction by their names: each is a Fenchel-Young loss of a smoothing."""

from typing import Any

from torch import Tensor

from polymax._parts import checked_scores
from polymax.losses import sharded
from polymax.losses.fenchel_young import fenchel_young
from polymax.losses.structured import as_tuple, losses, reduce_losses
from polymax.losses.targets import target_of
from polymax.regularizers import Regularizer
from polymax.sharding.placements import any_sharded
from polymax.smoothing import HardMax, LocalMax, Marginals, Smoothing
from polymax.smoothing.sparse_map import SparseMap
from polymax.solvers import Solver
from polymax.structures import Counted, DynamicProgram, Structure

Scores = Tensor | tuple[Tensor, ...]


def perceptron_loss(structure: Structure, scores: Scores, y: Any, reduction: str = "mean") -> Tensor:
    """The score of the best structure less the score of y: 0 if no structure is better than y.

        max over y' of <scores, y'> - <scores, y>

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
        >>> perceptron_loss(pm.Chain(), scores, torch.tensor([0, 0]))
        tensor(1.)

    See: Collins 2002, Discriminative training methods for hidden Markov models.
    """
    return fenchel_young(HardMax(structure), scores, y, reduction=reduction)


def svm_loss(structure: Structure, scores: Scores, y: Any, cost: Any = None, reduction: str = "mean") -> Tensor:
    """The structured hinge loss: 0 if y is better than every other structure by at least that structure's cost.

        max over y' of <scores + cost, y'> - <scores, y>

    It is at least the cost of the best structure. The cost is Hamming's unless it is given, 1 - y on the first
    tensor: how many tags, heads, spans are wrong.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 0.5]]), torch.zeros(2, 2)
        >>> svm_loss(pm.Chain(), scores, torch.tensor([0, 1]))
        tensor(0.5000)

    See: Taskar, Guestrin and Koller 2003, Max-margin Markov networks; Tsochantaridis et al. 2005.
    """
    return _with_margin(HardMax(structure), scores, y, cost, reduction)


def crf_loss(
    structure: Counted, scores: Scores, y: Any, reduction: str = "mean", *, gamma: float | Tensor = 1.0
) -> Tensor:
    """The negative log-likelihood, times gamma, of the conditional random field with these scores.

        - gamma log p(y),  p(y) = exp(<scores, y> / gamma) / Z

    y may also be a teacher's expected structure or its distribution; see `fenchel_young` for the loss in this case.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
        >>> crf_loss(pm.Chain(), scores, torch.tensor([0, 1]))
        tensor(0.4402)

    See: Lafferty, McCallum and Pereira 2001, Conditional random fields.
    """
    return fenchel_young(Marginals(structure, gamma), scores, y, reduction=reduction)


def sparsemap_loss(
    structure: Structure,
    scores: Scores,
    y: Any,
    reduction: str = "mean",
    *,
    gamma: float | Tensor = 1.0,
    solver: Solver | None = None,
) -> Tensor:
    """The loss of SparseMAP: 0 if y is better than every other structure by a margin.

        max over mu of <scores, mu> - gamma / 2 ||mu||^2 + gamma / 2 ||y||^2 - <scores, y>

    The solver is `ActiveSet()` unless it is given; `WarmStart().at(keys)` starts from the structures of an earlier
    step.

    Example:
        >>> scores = torch.tensor([[1.0, 0.0], [0.0, 0.5]]), torch.zeros(2, 2)
        >>> sparsemap_loss(pm.Chain(), scores, torch.tensor([0, 1]))
        tensor(0.0625)

    See: Niculae, Martins, Blondel and Cardie 2018, SparseMAP, section 4.
    """
    return fenchel_young(_sparse_map(structure, solver, gamma), scores, y, reduction=reduction)


def margin_sparsemap_loss(
    structure: Structure,
    scores: Scores,
    y: Any,
    cost: Any = None,
    reduction: str = "mean",
    *,
    gamma: float | Tensor = 1.0,
    solver: Solver | None = None,
) -> Tensor:
    """The SparseMAP loss with costs inside its maximum; the default is the Hamming cost.

        max over mu of <scores + cost, mu> - gamma / 2 ||mu||^2 + gamma / 2 ||y||^2 - <scores, y>

    The solver is as in `sparsemap_loss`.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.5]]), torch.zeros(2, 2)
        >>> margin_sparsemap_loss(pm.Chain(), scores, torch.tensor([0, 1]))
        tensor(0.0625)

    See: Niculae, Martins, Blondel and Cardie 2018, SparseMAP, section 4.
    """
    return _with_margin(_sparse_map(structure, solver, gamma), scores, y, cost, reduction)


def smoothed_dp_loss(
    structure: DynamicProgram,
    regularizer: Regularizer,
    scores: Scores,
    y: Any,
    reduction: str = "mean",
    *,
    gamma: float | Tensor = 1.0,
) -> Tensor:
    """The value of the recursion with all maxima smoothed, less the score of y.

        DP_Omega(scores) - <scores, y>

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 0.5]]), torch.zeros(2, 2)
        >>> smoothed_dp_loss(pm.Chain(), pm.Gini(), scores, torch.tensor([0, 1]))
        tensor(0.0625)

    See: Mensch and Blondel 2018, Differentiable dynamic programming, section 3.
    """
    return fenchel_young(LocalMax(structure, regularizer, gamma), scores, y, reduction=reduction)


def _sparse_map(structure: Structure, solver: Solver | None, gamma: float | Tensor) -> SparseMap:
    return SparseMap(structure, gamma=gamma) if solver is None else SparseMap(structure, solver, gamma)


def _with_margin(smooth: Smoothing, scores: Scores, y: Any, cost: Any, reduction: str) -> Tensor:
    if cost is not None:
        return fenchel_young(smooth, scores, y, cost, reduction)
    inputs = as_tuple(scores)
    if any_sharded(inputs):
        return sharded.of_structures(
            lambda op, x, target, c: _with_margin(op, x, target, c, "none"), smooth, inputs, y, cost, reduction
        )
    wide = checked_scores(inputs)
    target = target_of(smooth.structure, wide, y)
    found = losses(smooth, wide, target, target.hamming(smooth.structure, wide))
    return reduce_losses(found, reduction).to(inputs[0].dtype)
