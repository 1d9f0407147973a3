"""Estimators that return a vertex in the forward pass, and a surrogate gradient in the backward pass."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import Function

from polymax._parts import checked_scores, narrow
from polymax.backend.function import functional
from polymax.noise import Gumbel, Noise
from polymax.regularizers.entropies import positive
from polymax.sharding.placements import by_process, wrap_methods
from polymax.smoothing import Smoothing
from polymax.structures.base import Parts, Structure, tensors


@dataclass(frozen=True, eq=False)
class Estimator(ABC):
    """Returns the best structure, with a surrogate for its gradient in the scores, which is 0 almost everywhere.

    An estimator of your own is a class with one method, `vjp`. Whatever it returns, padding, parts that no structure
    uses and parts of score -inf get a gradient of 0, and shared scores get the sum. Half precision is computed in
    float32. MAP is piecewise constant, so that the second derivative is that of the formula in `vjp`.

    Example:
        >>> class Signs(Estimator):
        ...     def vjp(self, y, g, *scores):
        ...         return g.sign()
        >>> x = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> y = Signs(pm.Simplex())(x)
        >>> y @ torch.tensor([3.0, 0.5, -2.0])
        tensor(0.5000, grad_fn=<DotBackward0>)
        >>> torch.autograd.grad(y @ torch.tensor([3.0, 0.5, -2.0]), x)
        (tensor([ 1.,  1., -1.]),)
    """

    structure: Structure

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        wrap_methods(cls, ("__call__",), by_process)

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(f"structure must be a Structure; got {type(self.structure).__name__}")

    @abstractmethod
    def vjp(self, y: Parts, g: Parts, *scores: Tensor) -> Any:
        """The gradient in each score tensor, given the vertex y and the gradient g in it.

        All have the shape of the structure: shared scores come expanded, and are summed after.
        """

    @by_process
    def __call__(self, *scores: Tensor) -> Parts:
        """The best structure for the scores, with the gradient of the estimator."""
        full = self.structure.full(*checked_scores(scores))
        return narrow(with_gradient(self, self.structure.map(*(x.detach() for x in full)), full), scores[0].dtype)

    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: part for name, part in parts.items() if isinstance(part, Structure | Smoothing)}
        changes: dict[str, Any] = {name: part.with_lengths(lengths) for name, part in given.items()}
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class NoisyEstimator(Estimator):
    """An estimator that returns the best structure of perturbed scores; `vjp` is called at these scores, too.

    Noise is added to the first score tensor, gamma times a draw for each part. For chains these parts are the states:
    without transition scores, Gumbel noise then draws from independent softmaxes.
    """

    noise: Noise = Gumbel()  # noqa: RUF009
    gamma: float | Tensor = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_noise(self.noise, self.gamma)

    def __call__(self, *scores: Tensor, generator: torch.Generator | None = None) -> Parts:
        """The best structure of perturbed scores."""
        full = perturbed_scores(
            self.structure, self.noise, self.gamma, self.structure.full(*checked_scores(scores)), generator
        )
        return narrow(with_gradient(self, self.structure.map(*(x.detach() for x in full)), full), scores[0].dtype)


def checked_noise(noise: Noise, gamma: float | Tensor) -> None:
    """Raise an error unless `noise` is a Noise, and its scale gamma is positive."""
    if not isinstance(noise, Noise):
        raise TypeError(f"noise must be a Noise, such as Gumbel(); got {type(noise).__name__}")
    positive(gamma, "gamma")


def perturbed_scores(
    structure: Structure,
    noise: Noise,
    gamma: float | Tensor,
    scores: tuple[Tensor, ...],
    generator: torch.Generator | None,
    shape: tuple[int, ...] = (),
) -> tuple[Tensor, ...]:
    """Scores whose first tensor, (*shape, ...), has gamma times noise added; gamma broadcasts to (*batch,)."""
    first, *others = scores
    z = noise.sample(first, shape, generator)
    if isinstance(gamma, Tensor):
        gamma = gamma.to(first).reshape(*gamma.shape, *[1] * structure.event_dims(*scores)[0])
    return first + gamma * z, *others


def combine_parts(change: Callable[..., Tensor], y: Parts, *others: Any) -> Parts:
    """Apply `change` to corresponding tensors of structures."""
    if isinstance(y, Tensor):
        return change(y, *(tensors(other)[0] for other in others))
    return y._make(change(*t) for t in zip(y, *others, strict=True))


def with_gradient(estimator: Estimator, y: Parts, scores: tuple[Tensor, ...]) -> Parts:
    """y, with the gradient of the estimator in the scores."""
    if not (functional() or (torch.is_grad_enabled() and any(x.requires_grad for x in scores))):
        return y
    found = _Chosen.apply(estimator, *tensors(y), *scores)
    return found[0] if isinstance(y, Tensor) else y._make(found)


class _Chosen(Function):
    """y as a function of the scores, whose derivative is the estimator's `vjp`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(estimator: Estimator, *y_and_scores: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.clone() for t in y_and_scores[: len(y_and_scores) // 2])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.estimator, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        count = len(g)
        y, scores = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        whole, slope = (ctx.estimator.structure.named(*t) for t in (y, g))
        found = tensors(ctx.estimator.vjp(whole, slope, *scores))
        shapes = [tuple(d.shape) for d in found]
        if shapes != [tuple(x.shape) for x in scores]:
            raise ValueError(
                f"{type(ctx.estimator).__name__}.vjp must return a gradient for each score tensor, of shapes"
                f" {[tuple(x.shape) for x in scores]}; got {shapes}"
            )
        masks = ctx.estimator.structure.gradient_mask(whole)
        grads = (torch.where(mask & (x != -torch.inf), d, 0) for mask, x, d in zip(masks, scores, found, strict=True))
        # the derivative of a NaN part is NaN
        grads = (torch.where(torch.isnan(part), part, d) for part, d in zip(y, grads, strict=True))
        return None, *(None,) * count, *grads


# torch binds the arguments of apply by the signature of forward, and would compute it at each call
_Chosen.forward.__signature__ = inspect.signature(_Chosen.forward)  # type: ignore[attr-defined]
