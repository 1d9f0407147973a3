"""Expected losses over structures: the interface of loss functions, and reductions of their values.

    E[L] = sum over y in Y of p(y) L(y)

Estimators of it are called as estimator(loss_fn, *scores), and call loss_fn(y, at): y are structures stacked along a
first dimension, or a tuple of such stacks if a structure has several tensors. at (count,) are the places of their
instances in the flattened batch, so that inputs[at] belong to them. It returns their losses, (count,), and may use
parameters of its own, which get their gradients. With an estimator that returns one vertex for each instance the same
function is called as loss_fn(y, torch.arange(len(y))).
"""

from collections.abc import Callable

from torch import Tensor

from polymax import _check
from polymax.structures.base import Parts

LossFn = Callable[[Parts, Tensor], Tensor]


def losses_of(loss_fn: LossFn, y: Parts, at: Tensor) -> Tensor:
    """The losses (count,) of structures (count, ...), one for each."""
    losses = loss_fn(y, at)
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        raise TypeError(f"loss_fn must return a floating-point tensor; got {_check.kind(losses)}")
    if losses.shape != at.shape:
        raise ValueError(f"loss_fn must return ({len(at)},), a loss for each structure; got {tuple(losses.shape)}")
    return losses


def reduce_values(values: Tensor, reduction: str) -> Tensor:
    """The mean, the sum, or all of the values (*batch,), by `reduction`."""
    match reduction:
        case "mean":
            return values.mean()
        case "sum":
            return values.sum()
    return values


def value_with_gradient(value: Tensor, term: Tensor) -> Tensor:
    """The value, with the gradient of value + term."""
    return value + (term - term.detach()).to(value.dtype)
