"""Interfaces of sets of structures: the best structure, the list of all, and for some sets the sum over all."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts as Parts
from polymax._parts import map_parts
from polymax._parts import tensors as tensors
from polymax.backend.function import functional
from polymax.hypergraphs.entropy import UnknownOmega
from polymax.regularizers import Regularizer
from polymax.sharding.placements import by_process, plain, wrap_methods
from polymax.structures.compact.base import Compact
from polymax.structures.full_lengths import full_lengths

if TYPE_CHECKING:
    from polymax.hypergraphs.passes import Problem
    from polymax.kernels.active_set.problem import Search


class Structure(ABC):
    """A finite set Y of structures, each an indicator of the parts it uses, shaped like the scores.

    A set must define `map` and `event_dims`. `vertices` lists the set, for tests. All other methods have a default that
    is correct for any set; a set overrides them to be faster, or to offer more.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        wrap_methods(cls, ("map", "logsumexp", "marginals"), by_process)

    # the length of each instance, (*batch,), or a pair of lengths; a field of sets whose instances may differ in size
    lengths: Any = None
    # True if a structure without any part may be in the set
    may_be_empty: bool = True
    # True if every structure is one part, so that a point of the hull is the distribution over structures itself
    one_part: bool = False
    # the compact form, as a function of the structure
    form: Callable[[Any], Compact] = Compact

    @abstractmethod
    def map(self, *scores: Tensor) -> Parts:
        """The structure with the highest score, as indicators; ties are broken in the same way at every call."""

    def vertices(self, event_shape: tuple[int, ...]) -> Parts:
        """All structures for scores of this shape (of the first tensor), stacked along a first dimension."""
        name = type(self).__name__
        raise TypeError(f"{name} does not list its structures: that takes a method {name}.vertices(event_shape)")

    @abstractmethod
    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        """The number of trailing dimensions of each score tensor that belong to a structure, not to the batch."""

    def score(self, y: Parts, *scores: Tensor) -> Tensor:
        """<scores, y>, (*batch,); a part that is not used adds 0, even if its score is -inf."""
        total: Tensor | float = 0.0
        for part, x, dims in zip(tensors(y), self.full(*scores), self.event_dims(*scores), strict=True):
            terms = torch.where(part == 0, 0, part * x)
            total = total + (terms.flatten(-dims).sum(-1) if dims else terms)
        return torch.as_tensor(total)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        """The scores, broadcast to the shape of the structures."""
        return scores

    def best_score(self, *scores: Tensor) -> Tensor:
        """The score of the best structure, (*batch,); -inf if scores forbid all structures."""
        y = self.map(*scores)
        found = self.score(y, *scores)
        if self.may_be_empty:
            return found
        first, dims = tensors(y)[0], self.event_dims(*scores)[0]
        return torch.where((first == 0).flatten(first.dim() - dims).all(-1), -torch.inf, found)

    def projection(self, *scores: Tensor) -> Tensor | None:
        """The point of the hull nearest to the scores if there is a closed form, else None."""
        return None

    def linear_relaxation(self, *scores: Tensor) -> Any:
        """The best point of a relaxation of the hull, for sets without an exact `map`; None for other sets."""
        return None

    def relaxed_projection(self, *scores: Tensor) -> Any:
        """The nearest point of a relaxation of the hull, as a solution with its residual; None for other sets."""
        return None

    def relaxed_projection_value(self, *scores: Tensor) -> Tensor | None:
        """<scores, mu> - 1/2 ||mu||^2 at the point of `relaxed_projection`, (*batch,), or None; its gradient is mu."""
        return None

    def search(self, *scores: Tensor) -> "Search | None":
        """The problem by which the compiled loops of SparseMAP find the best structure.

        If it is None, SparseMAP calls `map` for the whole batch at each iteration.
        """
        return None

    def less(self, index: Tensor, *scores: Tensor) -> "Problem | None":
        """The problem whose value is the maximum less the score of the structure in compact form, +inf if the scores
        forbid it; None for sets without kernels for it, whose losses subtract the score.
        """
        return None

    def potentials(self, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor] | None:
        """Scores (float64, in full shape) less potentials, and the total (*batch,) of the potentials on any structure.

        Under the reduced scores the best structure has a score of 0, and all scores are as small as possible, so that
        SparseMAP loses no digits if scores are large. None if the set has no potentials: scores are not reduced.
        """
        return None

    def complete(self, first: Tensor) -> Parts:
        """Structures from their first tensor (*lead, *batch, ...), which must determine the other tensors."""
        return first

    def complete_each(self, vertices: Tensor, dim: int) -> Parts:
        """Structures from their first tensors (*batch, k, ...), whose dimension `dim` is k; see `complete`."""
        return map_parts(lambda t: t.movedim(0, dim), self.complete(vertices.movedim(dim, 0)))

    def mean(self, vertices: Tensor, probs: Tensor) -> Parts:
        """The mean of structures given by first tensors (*batch, k, ...) and weights (*batch, k)."""
        return map_parts(lambda t: weighted_sum(t, probs), self.complete_each(vertices, probs.dim() - 1))

    def named(self, *parts: Tensor) -> Parts:
        """The tensors of a structure, or of a mean, as a named tuple; a single tensor is returned as it is."""
        return parts[0] if len(parts) == 1 else parts

    def rescore(self, vertices: Tensor, *scores: Tensor) -> Tensor:
        """The scores (*batch, k) of structures given by first tensors (*batch, k, ...)."""
        dim = vertices.dim() - 1 - self.event_dims(*scores)[0]
        return self.score(self.complete(vertices.movedim(dim, 0)), *scores).movedim(0, -1)

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """True for each part that some structure of this size uses, whatever the scores.

        Scores of other parts are ignored, and have no gradient. By default all parts are usable.

        Shapes: parts are tensors of the shapes of the structures; a bool tensor for each, which broadcasts to it
        """
        return tuple(torch.ones((), dtype=torch.bool, device=t.device) for t in parts)

    def gradient_mask(self, y: Parts) -> tuple[Tensor, ...]:
        """True for each part that may have a gradient, given the best structure y for the scores.

        These are the usable parts; none in an instance whose scores forbid every structure.
        """
        parts = tensors(y)
        masks = self.usable(*parts)
        if self.may_be_empty:
            return masks
        dims = self.event_dims(*parts)
        some = (parts[0] != 0).flatten(parts[0].dim() - dims[0]).any(-1)
        return tuple(m & some.reshape(*some.shape, *[1] * d) for m, d in zip(masks, dims, strict=True))

    def stack(self, count: int, *scores: Tensor) -> Self:
        """The set for scores (count, *batch, ...), given scores (*batch, ...) of the instances."""
        if self.lengths is None:
            return self
        many = tuple(t.expand(count, *t.shape) for t in tensors(self.lengths))
        return self.with_lengths(many if isinstance(self.lengths, tuple) else many[0])

    @property
    def compact(self) -> Compact:
        """The compact form of this set: integers, such as heads or tags."""
        return type(self).form(self)

    def encode(self, index: Tensor, *shape: int) -> Parts:
        """Indicators from the compact form; `type(self.compact)` describes the form and the sizes in `shape`.

        On the CPU, a ValueError is raised if `index` is not a structure of any length. An instance in which all entries
        are -1 gets zeros.
        """
        return self.compact.encode(index, *shape)

    def decode(self, y: Parts) -> Tensor:
        """The compact form of y, integers; see `type(self.compact)`."""
        return self.compact.decode(y)

    def log_count(self, event_shape: tuple[int, ...]) -> Tensor:
        """The log of the number of structures for scores of this shape (of the first tensor), for each of the lengths.

        Example:
            >>> pm.SpanningTree().log_count((31, 31))  # 30 tokens
            tensor(98.6347, dtype=torch.float64)
        """
        raise TypeError(f"{type(self).__name__} does not count its structures")

    def why_uncounted(self) -> str:
        """The error message that says why sums over this set are not available."""
        return f"{type(self).__name__} has no logsumexp, so that Marginals is not available"

    def with_lengths(self, lengths: Any) -> Self:
        """A copy of this set for a batch of these lengths."""
        if not is_dataclass(self) or "lengths" not in {f.name for f in fields(self)}:
            raise TypeError(f"{type(self).__name__} has no lengths")
        return replace(self, lengths=lengths)


class Counted(Structure):
    """A set of structures over which sums are tractable."""

    @abstractmethod
    def logsumexp(self, *scores: Tensor) -> Tensor:
        """log of the sum over y in Y of exp(<scores, y>), (*batch,)."""

    def log_count(self, event_shape: tuple[int, ...]) -> Tensor:
        return self.logsumexp(*self.zero_scores(tuple(event_shape)))

    def zero_scores(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Scores of 0, one instance for each of the lengths."""
        return (zeros_of(self, event_shape),)

    def marginals(self, *scores: Tensor) -> Parts:
        """The gradient of logsumexp: the probabilities of parts under p(y) = exp(<scores, y>) / Z."""
        if functional():
            value, pull = torch.func.vjp(self.logsumexp, *self.full(*scores))[:2]
            return self.named(*pull(torch.where(value == -torch.inf, 0, torch.ones_like(value))))
        given = self.full(*scores)
        keep = torch.is_grad_enabled() and any(x.requires_grad for x in given)
        with torch.enable_grad():
            inputs = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in given)
            value = self.logsumexp(*inputs)
            total = torch.where(value == -torch.inf, 0, value).sum()
            found = torch.autograd.grad(total, inputs, create_graph=keep)
        return self.named(*found)

    def omega(self, mu: Parts, regularizer: Regularizer) -> Tensor:
        """Omega(mu), (*batch,), if the regularizer smooths every choice; with Shannon, minus the entropy of mu.

        By default Omega is known only at structures, where it is 0; at other points UnknownOmega is raised.
        """
        found = self.omega_of_structures(mu, regularizer)
        if found is None:
            name = type(self).__name__
            raise UnknownOmega(f"Omega is known at the structures of {name} alone, not between them")
        return found

    def omega_of_structures(self, mu: Parts, regularizer: Regularizer) -> Tensor | None:
        """0 for each instance, (*batch,), if mu are structures and the regularizer is 0 at these; else None."""
        if not regularizer.zero_at_vertices or not self.compact.whole(mu):
            return None
        first, *_ = points = tensors(mu)
        return first.new_zeros(first.shape[: first.dim() - self.event_dims(*points)[0]])


class Sampled(Counted):
    """A set whose structures can be drawn by their probability, and whose k best structures can be listed."""

    @abstractmethod
    def gibbs(self, scores: tuple[Tensor, ...], dtype: torch.dtype) -> Any:
        """The distribution p(y) = exp(<scores, y>) / Z over structures; its results have this dtype."""

    @abstractmethod
    def kbest(self, scores: tuple[Tensor, ...], k: int) -> tuple[Parts, Tensor]:
        """The k best structures (*batch, k, ...), best first, and their scores (*batch, k).

        If there are fewer than k, zeros of score -inf follow.
        """

    def optimal(self, *scores: Tensor, limit: int = 1000) -> tuple[Parts, Tensor]:
        """All structures of the best score, (*batch, k, ...), and how many each instance has, (*batch,) int64.

        Scores count as equal if they differ only by rounding of float64. At most `limit` structures are listed, and
        zeros follow in instances that have fewer than k.

        Example:
            >>> paths, count = pm.Alignment().optimal(torch.zeros(2, 2))
            >>> paths.shape, count
            (torch.Size([3, 2, 2]), tensor(3))
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1; got {limit}")
        wide = tuple(x.detach().double() for x in self.full(*scores))
        k = min(4, limit)
        while True:
            found, values = self.kbest(wide, k)
            best = values[..., :1]
            tied = (values > -torch.inf) & (values >= best - 1e-9 * (1 + best.abs()))
            if k == limit or not bool(tied[..., -1].any()):
                break
            k = min(4 * k, limit)
        count = tied.sum(-1)
        width = int(count.max()) if count.numel() else 0
        dims = count.dim()

        def kept(t: Tensor) -> Tensor:
            first, used = t.narrow(dims, 0, width), tied[..., :width]
            return torch.where(used.reshape(*used.shape, *[1] * (t.dim() - dims - 1)), first, 0).to(scores[0].dtype)

        return map_parts(kept, found), count


def weighted_sum(each: Tensor, weights: Tensor) -> Tensor:
    """The sum (*batch, ...) of tensors `each` (*batch, k, ...) by weights (*batch, k)."""
    return (each * weights.reshape(*weights.shape, *[1] * (each.dim() - weights.dim()))).sum(weights.dim() - 1)


def zeros_of(structure: Structure, event_shape: tuple[int, ...]) -> Tensor:
    """Zeros (*batch, *event_shape) in float64, on the device of the structure's lengths."""
    first = structure.lengths[0] if isinstance(structure.lengths, tuple) else structure.lengths
    if first is None:
        return torch.zeros(event_shape, dtype=torch.float64)
    return torch.zeros(*first.shape, *event_shape, dtype=torch.float64, device=first.device)


def summed_at(places: Tensor, probs: Tensor, event: torch.Size) -> Tensor:
    """Sums (*batch, *event) of weights (*batch, k) at places (*batch, k, parts); the place after all is ignored."""
    spread = probs.unsqueeze(-1).expand(places.shape).flatten(-2)
    total = probs.new_zeros(*probs.shape[:-1], event.numel() + 1).scatter_add(-1, places.flatten(-2), spread)
    return total[..., :-1].reshape(*probs.shape[:-1], *event)


def checked_lengths(lengths: Tensor | None, batch: torch.Size, size: int, device: torch.device, name: str) -> Tensor:
    """Lengths as int64 (B,), or the full size if `lengths` is None; do not write to the result."""
    if lengths is None:
        return full_lengths(math.prod(batch), size, device)
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor of integers; got {_check.kind(lengths)}")
    plain(lengths, name, "scores")
    if lengths.shape != batch:
        raise ValueError(f"{name} must be {tuple(batch)}, the batch of the scores; got {tuple(lengths.shape)}")
    if _check.readable(lengths) and lengths.numel() and not bool(((lengths >= 0) & (lengths <= size)).all()):
        raise ValueError(f"{name} must be in [0, {size}]; got values in [{lengths.min()}, {lengths.max()}]")
    return lengths.to(device=device, dtype=torch.long).reshape(-1)


def checked_pairs(structure: Structure, *scores: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], torch.Size]:
    """Scores (B, n, m) of a set of cells, the rows and the columns of each instance (B,), and the batch."""
    (x,) = scores
    if x.dim() < 2:
        raise ValueError(f"scores must be (*batch, n, m); got {tuple(x.shape)}")
    if structure.lengths is not None and (not isinstance(structure.lengths, tuple) or len(structure.lengths) != 2):
        raise TypeError("lengths must be a pair of tensors, rows and columns")
    rows, columns = structure.lengths or (None, None)
    batch, (n, m) = x.shape[:-2], x.shape[-2:]
    return (
        x if len(batch) == 1 else x.reshape(math.prod(batch), n, m),
        checked_lengths(rows, batch, n, x.device, "lengths[0]"),
        checked_lengths(columns, batch, m, x.device, "lengths[1]"),
    ), batch
