"""The Fenchel-Young loss of a smoothed maximum, over a simplex or a set of structures."""

from typing import Any

import torch
from torch import Tensor

from polymax.losses.simplex import of_classes
from polymax.losses.structured import of_structures
from polymax.regularizers import Regularizer
from polymax.smoothing import Smoothing


def fenchel_young(
    smooth: Regularizer | Smoothing,
    scores: Tensor | tuple[Tensor, ...],
    y: Any,
    cost: Any = None,
    reduction: str = "mean",
    *,
    dim: int = -1,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """max(scores + cost) + Omega(y) - <scores, y>; its gradient is argmax(scores + cost) - y.

    `cost` is added inside the max, for a margin: a tensor that broadcasts to the first scores, or a tuple.

    With a Regularizer, y holds class indices, shaped like the scores without `dim`, or distributions, shaped like
    them; the other options are those of torch.nn.functional.cross_entropy: smoothing mixes in the losses of all
    classes, and the mean over indices is weighted.

    With a Smoothing, y is integers as its structure's `encode` takes them, -1 at padding; or indicators; or points
    between structures, such as a teacher's expectations; or the teacher's distribution; or a `Partial`. The reduction
    is over instances. On the CPU, a y that is not a structure raises a ValueError; integers on other devices are not
    checked. A forbidden y has loss inf. `generator` is for noise.

    Omega is known at points between chains, segmentations, paths and derivations. If it is not known (alignments,
    trees, subsets; Perturbed), the loss leaves it out: it has no gradient in the scores. With Marginals the loss is
    then the cross-entropy, E[-gamma log p(y)]. If y is a distribution, Omega is known: the loss is the divergence of p
    from y.

    Example:
        >>> fenchel_young(pm.Gini(), torch.tensor([[2.0, 0.5, 0.0]]), torch.tensor([1]))
        tensor(1.5000)
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
        >>> fenchel_young(pm.Marginals(pm.Chain()), scores, torch.tensor([0, 1]))
        tensor(0.4402)

    See: Blondel, Martins and Niculae 2020, Learning with Fenchel-Young losses.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {reduction!r}")
    if isinstance(smooth, Regularizer):
        if generator is not None:
            raise TypeError("generator is for a Smoothing that draws noise; smooth is a Regularizer")
        options = {"dim": dim, "weight": weight, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
        return of_classes(smooth, scores, y, cost, reduction, **options)  # type: ignore[arg-type]
    if not isinstance(smooth, Smoothing):
        raise TypeError(f"smooth must be a Regularizer or a Smoothing; got {type(smooth).__name__}")
    if dim != -1 or weight is not None or ignore_index != -100 or label_smoothing:
        raise TypeError("dim, weight, ignore_index and label_smoothing belong to a Regularizer; smooth is a Smoothing")
    return of_structures(smooth, scores, y, cost, reduction, generator)
