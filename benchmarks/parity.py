"""The gate: who does not return what its oracle returns is not timed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.baselines import Competitor, Mapping, Tensors

# the largest error of a row, relative to the size of its entries
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
# rows are compared until this many entries, spread evenly over the batch
ENTRIES = 1 << 16
LEAST_ROWS = 8
# two of rows as large as a head of attention, whose oracle computes all scores; one of 65,536 queries
LARGE_ROW, LARGEST_ROW = 1 << 18, 1 << 22
# how many roundings may have moved a score
ROUNDINGS = 8

# inputs and outputs to what is compared of the outputs
Compared = Callable[[Tensors, Tensors], Tensors]


@dataclass(frozen=True)
class Parity:
    """Errors of outputs and gradients: the worst of a row, over the size of its entries.

    The size is the largest entry; a gradient may vanish, so its size is at least that of y v for outputs y
    (1 for larger ones) and cotangents v. `kinks` counts rows whose gradient is wrong and excused: rounding decides
    on which side of a kink they are.
    """

    forward: float
    gradient: float
    tolerance: float
    rows: int
    kinks: int

    @property
    def holds(self) -> bool:
        # NaN fails both comparisons
        close = self.forward <= self.tolerance and self.gradient <= self.tolerance
        return close and 2 * self.kinks <= self.rows

    def __str__(self) -> str:
        errors = f"error {self.forward:.0e} forward, {self.gradient:.0e} gradient; at most {self.tolerance:.0e}"
        return f"{errors}; {self.kinks} of {self.rows} rows at kinks"


@dataclass(frozen=True)
class Truth:
    """What an oracle says of some rows of a problem, and of the gradient of what all rows share.

    `seen` takes outputs for these rows to what is compared of them.
    """

    rows: Tensor
    seen: Callable[[Tensors], Tensors]
    outputs: Tensors
    gradients: Tensors
    shared: Tensors
    output_size: Tensor
    gradient_size: Tensor
    smooth: Tensor


def truth(
    oracle: Mapping, inputs: Tensors, cotangents: Tensors, shared: int = 0, compared: Compared | None = None
) -> Truth:
    """The oracle on rows spread over the batch, the first dimension of every tensor but the last `shared` inputs.

    The gradient of a shared input takes all rows. Without cotangents nothing is differentiated.
    """
    size = inputs[0].shape[0]
    entries = inputs[0][0].numel()
    least = 1 if entries >= LARGEST_ROW else 2 if entries >= LARGE_ROW else LEAST_ROWS
    count = size if shared else min(size, max(least, ENTRIES // max(1, entries)))
    rows = torch.linspace(0, size - 1, count).round().long()
    own = len(inputs) - shared
    x = [*_at(inputs[:own], rows), *(t.detach().cpu().double() for t in inputs[own:])]
    v = _at(cotangents, rows)
    tolerance = TOLERANCE[inputs[0].dtype]
    outputs, gradients = _derive(oracle, x, v)
    seen = partial(compared, tuple(t.detach() for t in x)) if compared else lambda found: found
    outputs = seen(outputs)
    output_size, gradient_size = _largest(outputs), _largest(outputs)
    smooth = torch.ones(count, dtype=torch.bool)
    if v:
        # weights and marginals are at most 1, whatever the value of which they are the gradient
        gradient_size = torch.maximum(_largest(gradients[:own]), output_size.clamp(max=1) * _largest(v))
        nudges = _nudges(x, inputs[0].dtype)
        # there and back: at a kink itself one of the two sides looks smooth; the oracle of the largest rows takes long,
        # and none of them is excused
        for sign in (1, -1) if entries < LARGEST_ROW else ():
            nudged = [t.detach() + sign * nudge for t, nudge in zip(x, nudges, strict=True)]
            errors = _errors(_derive(oracle, nudged, v)[1][:own], gradients[:own], gradient_size)
            smooth &= errors <= tolerance
    return Truth(rows, seen, outputs, gradients[:own], gradients[own:], output_size, gradient_size, smooth)


def check(competitor: Competitor, inputs: Tensors, cotangents: Tensors, expected: Truth) -> Parity:
    """Run a competitor on a whole problem and compare the rows that the oracle has solved."""
    function = competitor.function
    problem = function.prepare(inputs, cotangents)
    results = [function.tensors(function.forward(problem))]
    gradients: Tensors = ()
    if cotangents:
        outputs, gradients = (function.tensors(arrays) for arrays in function.both(problem))
        results.append(outputs)
    rows, own = expected.rows, len(expected.gradients)
    tolerance = competitor.slack * TOLERANCE[inputs[0].dtype]
    forward = [_errors(expected.seen(_at(found, rows)), expected.outputs, expected.output_size) for found in results]
    own_errors = _errors(_at(gradients[:own], rows), expected.gradients, expected.gradient_size)
    excused = ~expected.smooth & ~(own_errors <= tolerance)
    gradient = [own_errors[~excused]]
    for sums, right in zip(gradients[own:], expected.shared, strict=True):
        gradient.append(_errors([sums.cpu().double()[None]], [right[None]], right.abs().max()[None]))
    finite = all(bool(t.isfinite().all()) for ts in (*results, gradients) for t in ts)
    return Parity(
        forward=_worst(torch.cat(forward)) if finite else math.nan,
        gradient=_worst(torch.cat(gradient)) if finite else math.nan,
        tolerance=tolerance,
        rows=len(rows),
        kinks=int(excused.sum()),
    )


def _nudges(inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Random changes as small as rounding, which is float32's for half precision too."""
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    generator = torch.Generator().manual_seed(0)
    return [
        ROUNDINGS * eps * t.detach().abs().max() * torch.empty_like(t).uniform_(-1, 1, generator=generator)
        for t in inputs
    ]


def _derive(oracle: Mapping, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    leaves = [x.requires_grad_() for x in inputs]
    y = oracle(*leaves)
    gradients = torch.autograd.grad(y, leaves, cotangents) if cotangents else ()
    return tuple(t.detach() for t in ((y,) if isinstance(y, Tensor) else y)), gradients


def _at(tensors: Tensors, rows: Tensor) -> Tensors:
    return tuple(t.detach()[rows.to(t.device)].cpu().double() for t in tensors)


def _errors(found: Sequence[Tensor], expected: Sequence[Tensor], size: Tensor) -> Tensor:
    """The largest error of each row, over its size; infinite where shapes differ."""
    if not expected and not found:
        return torch.zeros_like(size)
    if [t.shape for t in found] != [t.shape for t in expected]:
        return torch.full_like(size, torch.inf)
    return _largest([f - e for f, e in zip(found, expected, strict=True)]) / size


def _largest(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([t.abs().reshape(len(t), -1).amax(1) for t in tensors]).amax(0)


def _worst(errors: Tensor) -> float:
    return float(errors.max()) if errors.numel() else 0.0
