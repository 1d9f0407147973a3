"""The maximum smoothed by noise: its value, its gradient and an estimate of its curvature need only calls of MAP."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax._parts import checked_scores, narrow, tensors
from polymax.backend.function import apply_function, once_differentiable
from polymax.hypergraphs.entropy import UnknownOmega
from polymax.noise import Gumbel, SmoothNoise
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.structures.base import Parts, Structure


@dataclass(frozen=True, eq=False)
class Perturbed(Smoothing):
    """The expected maximum, and the expected best structure, of scores with noise on every part.

        max = E[max over y of <scores + gamma z, y>],    argmax = E[y(z)],  y(z) = map(scores + gamma z)
        the Jacobian of argmax is E[y(z) slope(z)^T] / gamma,  slope = minus the gradient of z's log-density

    Expectations are means over `samples` draws. The gradient of max is argmax with the same draws; that of argmax is
    an unbiased estimate, in which the best structure without noise is subtracted from y(z) as a control variate, for
    which MAP is called once more. On the simplex with Gumbel noise, max tends to logsumexp and argmax to softmax.

    Example:
        >>> op = Perturbed(pm.Simplex(), samples=100000)
        >>> mu = op(torch.tensor([1.0, 0.0]), generator=torch.Generator().manual_seed(0))
        >>> round(mu[0].item(), 2)  # softmax gives 0.7311
        0.73

    See: Berthet et al. 2020, Learning with differentiable perturbed optimizers, sections 2 and 3.
    """

    structure: Structure
    noise: SmoothNoise = Gumbel()  # noqa: RUF009
    samples: int = 1
    gamma: float | Tensor = 1.0
    control_variate: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(f"structure must be a Structure; got {type(self.structure).__name__}")
        if not isinstance(self.noise, SmoothNoise):
            raise TypeError(f"noise must have a slope, as Gumbel() and Normal() do; got {type(self.noise).__name__}")
        _check.whole(self.samples, "samples")
        if not isinstance(self.control_variate, bool):
            raise TypeError(f"control_variate must be a bool; got {type(self.control_variate).__name__}")
        positive(self.gamma, "gamma")

    def __call__(self, *scores: Tensor, generator: torch.Generator | None = None) -> Parts:
        return self.argmax(*scores, generator=generator)

    def max(self, *scores: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return apply_function(_Values, self, *self._noise_for(scores, generator)).mean(0).to(scores[0].dtype)

    def argmax(self, *scores: Tensor, generator: torch.Generator | None = None) -> Parts:
        drawn = self._noise_for(scores, generator)
        y = self._best(drawn)
        mu = tuple(t.mean(0) for t in apply_function(_Vertices, self, *tensors(y), *drawn))
        return narrow(mu[0] if isinstance(y, Tensor) else y._make(mu), scores[0].dtype)

    def omega(self, mu: Parts) -> Tensor:
        """Raise UnknownOmega: Omega, the conjugate of an expectation, has no closed form."""
        raise UnknownOmega("the Omega of Perturbed has no closed form")

    def omega_at(self, index: Tensor, *scores: Tensor) -> float:
        """Return 0: Omega is not known, and losses of structures leave it out."""
        return 0.0

    def best_of(self, *scores: Tensor) -> Tensor:
        """The score of the best structure that the scores allow."""
        return self.structure.best_score(*scores)

    def _noise_for(self, scores: tuple[Tensor, ...], generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """gamma, the scores in the shape of structures, and noise (samples, ...) for each of their tensors."""
        full = self.structure.full(*checked_scores(scores))
        gamma = torch.as_tensor(self.gamma, dtype=full[0].dtype, device=full[0].device)
        # transitions get noise, too, since a derivative in a score is estimated from the noise on it
        return gamma, *full, *(self.noise.sample(x, (self.samples,), generator) for x in full)

    def _noisy(self, drawn: tuple[Tensor, ...]) -> tuple[Structure, tuple[Tensor, ...]]:
        """The set for all draws, and scores + gamma z."""
        gamma, scores, noise = _unpack_draws(tuple(t.detach() for t in drawn))
        dims = self.structure.event_dims(*scores)
        noisy = tuple(x + _beside(gamma, d) * z for x, z, d in zip(scores, noise, dims, strict=True))
        return self.structure.stack(self.samples, *scores), noisy

    def _best(self, drawn: tuple[Tensor, ...]) -> Parts:
        """The best structure of each draw, (samples, *batch, ...)."""
        many, noisy = self._noisy(drawn)
        return many.map(*noisy)


class _Values(Function):
    """The maximum of each draw, (samples, *batch); its derivative in the noisy scores is the vertex."""

    @staticmethod
    def forward(op: Perturbed, *drawn: Tensor) -> Tensor:
        many, noisy = op._noisy(drawn)
        return many.best_score(*noisy)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.op, *drawn = inputs
        ctx.save_for_backward(*drawn)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        drawn = ctx.saved_tensors
        gamma, scores, noise = _unpack_draws(drawn)
        y = tensors(ctx.op._best(drawn))
        if not torch.compiler.is_compiling():
            # a compiled backward pass is not differentiated again
            y = apply_function(_Vertices, ctx.op, *y, *drawn)
        dims = ctx.op.structure.event_dims(*scores)
        grads = tuple((_beside(g, d) * v).sum(0) for v, d in zip(y, dims, strict=True))
        reach = _inner(noise, y, dims)
        return None, (g * reach).sum_to_size(gamma.shape), *grads, *(None for _ in noise)


class _Vertices(Function):
    """The best structure of each draw, (samples, *batch, ...), with an unbiased estimate of its derivative."""

    @staticmethod
    def forward(op: Perturbed, *y_and_drawn: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.clone() for t in y_and_drawn[: len(y_and_drawn) // 3])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.op, *saved = inputs
        ctx.save_for_backward(*saved)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        op, count = ctx.op, len(g)
        y = ctx.saved_tensors[:count]
        gamma, scores, noise = _unpack_draws(ctx.saved_tensors[count:])
        dims = op.structure.event_dims(*scores)
        best = op.structure.map(*scores) if op.control_variate else None
        # the mean of slopes is 0, so that a structure which does not depend on the noise changes nothing
        moved = y if best is None else tuple(v - b for v, b in zip(y, tensors(best), strict=True))
        gain = _inner(g, moved, dims) / gamma
        masks = [m & (x != -torch.inf) for m, x in zip(_usable(op, y, best), scores, strict=True)]
        slopes = [torch.where(m, op.noise.slope(z), 0) for m, z in zip(masks, noise, strict=True)]
        grads = tuple((_beside(gain, d) * s).sum(0) for s, d in zip(slopes, dims, strict=True))
        wider = None
        if ctx.needs_input_grad[1 + count]:
            # the derivative of the density in gamma is the derivative along z, less one for each part
            parts = sum(m.flatten(m.dim() - d).sum(-1) for m, d in zip(masks, dims, strict=True))
            wider = (gain * (_inner(slopes, noise, dims) - parts)).sum_to_size(gamma.shape)
        return None, *(None for _ in y), wider, *grads, *(None for _ in noise)


def _unpack_draws(drawn: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    count = len(drawn) // 2
    return drawn[0], drawn[1 : 1 + count], drawn[1 + count :]


def _usable(op: Perturbed, y: tuple[Tensor, ...], best: Parts | None) -> tuple[Tensor, ...]:
    return op.structure.gradient_mask(op.structure.named(*(v[0] for v in y)) if best is None else best)


def _beside(t: Tensor, dims: int) -> Tensor:
    """A tensor (*batch,) with `dims` dimensions of size 1 appended, so that it broadcasts over events."""
    return t.reshape(*t.shape, *[1] * dims)


def _inner(a: Any, b: Any, dims: tuple[int, ...]) -> Tensor:
    """The inner product over all tensors of structures, (samples, *batch)."""
    each = [(x * y).flatten(x.dim() - d).sum(-1) for x, y, d in zip(a, b, dims, strict=True)]
    return torch.stack(each).sum(0)
