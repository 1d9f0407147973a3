"""What a set of structures offers: its best element, its enumeration, and for some the sum over all."""

from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from polymax import _check
from polymax._function import functional
from polymax.structures import faults

# one tensor, or a NamedTuple of tensors with the names of the scores
Parts = Any


class Structure(ABC):
    """A finite set Y of structures, each an indicator of the parts it uses, shaped like the scores.

    `map` and `event_dims` are all that a structure must have; `vertices` defines the set, for tests to enumerate.
    """

    @abstractmethod
    def map(self, *scores: Tensor) -> Parts:
        """The structure with the highest score, as indicators; the same one at every call where several are best."""

    def vertices(self, event_shape: tuple[int, ...]) -> Parts:
        """All structures for scores of this shape (of the first tensor), stacked along a first dimension."""
        name = type(self).__name__
        raise TypeError(f"{name} does not list its structures: that takes a method {name}.vertices(event_shape)")

    @abstractmethod
    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        """How many of the last dimensions of each score tensor are not batch."""

    def score(self, y: Parts, *scores: Tensor) -> Tensor:
        """<scores, y>, over the dimensions of one structure; a part that is not used counts nothing, even at -inf."""
        total: Tensor | float = 0.0
        for part, x, dims in zip(tensors(y), scores, self.event_dims(*scores), strict=True):
            terms = torch.where(part == 0, 0, part * x)
            total = total + (terms.flatten(-dims).sum(-1) if dims else terms)
        return torch.as_tensor(total)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        """Scores in the shape of the structures, where the ones given broadcast to it."""
        return scores

    def best_score(self, *scores: Tensor) -> Tensor:
        """The score of the best structure, (*batch,); -inf where all are forbidden."""
        return self.score(self.map(*scores), *scores)

    def projection(self, *scores: Tensor) -> Tensor | None:
        """The point of the hull nearest to the scores, where it has a closed form."""
        return None

    def relaxed(self, *scores: Tensor) -> Any:
        """The best point of a relaxation of the hull, for sets that have no `map` of their own; None for others."""
        return None

    def projected(self, *scores: Tensor) -> Any:
        """The nearest point of a relaxation of the hull, with what a solver reports; None for sets without one."""
        return None

    def projected_value(self, *scores: Tensor) -> Tensor | None:
        """<scores, mu> - 1/2 ||mu||^2 at that point, (*batch,), whose gradient is mu; None for sets without one."""
        return None

    def complete(self, first: Tensor) -> Parts:
        """Structures from their first tensor, where that determines the others."""
        return first

    def mean(self, vertices: Tensor, probs: Tensor) -> Parts:
        """The mean of structures given by first tensors (*batch, k, ...) and weights (*batch, k)."""
        return (vertices * probs.reshape(*probs.shape, *[1] * (vertices.dim() - probs.dim()))).sum(probs.dim() - 1)

    def named(self, *parts: Tensor) -> Parts:
        """The tensors of a structure, or of a mean, under their names; one tensor is itself."""
        return parts[0] if len(parts) == 1 else parts

    def rescore(self, vertices: Tensor, *scores: Tensor) -> Tensor:
        """The scores (*batch, k) of structures given by first tensors (*batch, k, ...)."""
        dim = vertices.dim() - 1 - self.event_dims(*scores)[0]
        return self.score(self.complete(vertices.movedim(dim, 0)), *scores).movedim(0, -1)

    def encode(self, index: Tensor, *shape: int) -> Parts:
        """Indicators, of the dims `shape`, from the compact form: the rows of used parts that `decode` gives.

        What is no structure, of whatever length, is a ValueError on the CPU; rows of -1 alone are none, and zeros.
        """
        check_rows(index, shape)
        return indicators(index, shape)

    def decode(self, y: Parts) -> Tensor:
        """The compact form of y: the used parts, in order, as rows (*batch, used, dims), -1 after the last."""
        return used_parts(y, self.event_dims(y)[0])

    def first(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The first tensor of the structures of this compact form, for scores of these shapes."""
        x = scores[0]
        return tensors(self.encode(index, *x.shape[x.dim() - self.event_dims(*scores)[0] :]))[0]

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The used parts (*batch, used) of a compact form, as places in a flat first tensor; -1 for none."""
        shape = scores[0].shape[scores[0].dim() - self.event_dims(*scores)[0] :]
        return raveled(index, shape)

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The scores of the parts that structures of this compact form use, (*batch, used): their sum is the score."""
        (x,) = scores
        places = self.places(index, x)
        flat = x.flatten(-self.event_dims(x)[0])
        # one place more, for rows of -1
        flat = torch.nn.functional.pad(flat, (0, 1))
        return flat.gather(-1, torch.where(places < 0, flat.shape[-1] - 1, places))

    def anchored(self, terms: Tensor, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Scores, all structures shifted alike, and that of the one whose terms are given, (*batch,).

        Their maximum less that score is to be a small difference of small numbers; without a shift that all
        structures share, of numbers that are exact enough.
        """
        return tuple(x.double() for x in scores), terms.double().sum(-1)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The compact form with -1 at all padding; a ValueError says where it is no structure for these scores."""
        x = scores[0]
        dims = self.event_dims(*scores)[0]
        batch, shape = x.shape[: x.dim() - dims], x.shape[x.dim() - dims :]
        rows = index if dims > 1 else index.unsqueeze(-1)
        if rows.dim() != len(batch) + 2 or rows.shape[:-2] != batch or rows.shape[-1] != dims:
            form = (*batch, "used", dims) if dims > 1 else (*batch, "used")
            expected = "(" + ", ".join(map(str, form)) + ")"
            raise ValueError(f"y must be the used parts, {expected}; got {tuple(index.shape)}")
        if _check.readable(index):
            _refuse_parts(rows, shape)
        return index

    def check_parts(self, y: Parts, *scores: Tensor) -> None:
        """Refuse indicators that are no structure for these scores, with a ValueError that says where."""
        index = self.check(self.decode(y), *scores)
        for k, (part, again) in enumerate(zip(tensors(y), tensors(self.complete(self.first(index, *scores))))):
            dims = self.event_dims(*scores)[k]
            wrong = (part != again.to(part)).flatten(part.dim() - dims)

            def explain(instance: tuple[int, ...], place: int, shape: torch.Size = part.shape[-dims:]) -> str:
                at = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), shape))
                return f"part {at}{faults.of(instance)} does not go with the others"

            faults.refuse("structure", wrong, explain)

    def whole(self, y: Parts) -> bool:
        """Whether y looks like structures, not like points between them."""
        return all(bool(((part == 0) | (part == 1)).all()) for part in tensors(y))

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The parts (*batch, ...) of the first tensor that agree with a compact form in which -2 is not known."""
        raise TypeError(f"Partial of {type(self).__name__} takes a bool tensor of allowed parts; got integers")

    def hamming(self, first: Tensor) -> Tensor:
        """The cost of each part of the first tensor, for structures that should be `first`: 1 where it is not used."""
        return 1 - first

    def log_count(self, event_shape: tuple[int, ...]) -> Tensor:
        """log of the number of structures for scores of this shape (of the first tensor), (*batch,) as lengths have.

        Example:
            >>> pm.SpanningTree().log_count((31, 31))  # 30 tokens
            tensor(98.6347, dtype=torch.float64)
        """
        raise TypeError(f"{type(self).__name__} does not count its structures")

    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""
        if not is_dataclass(self) or "lengths" not in {f.name for f in fields(self)}:
            raise TypeError(f"{type(self).__name__} has no lengths")
        return replace(self, lengths=lengths)


class Counted(Structure):
    """A structure over which sums are tractable."""

    @abstractmethod
    def logsumexp(self, *scores: Tensor) -> Tensor:
        """log of the sum over y in Y of exp(<scores, y>), (*batch,)."""

    def log_count(self, event_shape: tuple[int, ...]) -> Tensor:
        return self.logsumexp(*self.unscored(tuple(event_shape)))

    def unscored(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Scores of 0, one instance for each of the lengths."""
        return (zeros_of(self, event_shape),)

    def marginals(self, *scores: Tensor) -> Parts:
        """The gradient of logsumexp: the probabilities of parts under p(y) = exp(<scores, y>) / Z."""
        if functional():
            value, pull = torch.func.vjp(self.logsumexp, *self.full(*scores))[:2]
            return self.named(*pull(torch.where(value == -torch.inf, 0, torch.ones_like(value))))
        keep = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in self.full(*scores))
            value = self.logsumexp(*inputs)
            total = torch.where(value == -torch.inf, 0, value).sum()
            found = torch.autograd.grad(total, inputs, create_graph=keep)
        return self.named(*found)


def zeros_of(structure: Structure, event_shape: tuple[int, ...]) -> Tensor:
    """Zeros (*batch, *event_shape) in float64, where the structure's lengths are."""
    lengths = getattr(structure, "lengths", None)
    first = lengths[0] if isinstance(lengths, tuple) else lengths
    if first is None:
        return torch.zeros(event_shape, dtype=torch.float64)
    return torch.zeros(*first.shape, *event_shape, dtype=torch.float64, device=first.device)


def tensors(y: Parts) -> tuple[Tensor, ...]:
    """The tensors of a structure: one, or those of a tuple."""
    return (y,) if isinstance(y, Tensor) else tuple(y)


def scattered(places: Tensor, probs: Tensor, event: torch.Size) -> Tensor:
    """Weights (*batch, k) added up at places (*batch, k, parts) of (*batch, *event); the place after all is off."""
    spread = probs.unsqueeze(-1).expand(places.shape).flatten(-2)
    total = probs.new_zeros(*probs.shape[:-1], event.numel() + 1).scatter_add(-1, places.flatten(-2), spread)
    return total[..., :-1].reshape(*probs.shape[:-1], *event)


def raveled(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows (*batch, used, dims), no `dims` where 1, to places (*batch, used) in flat parts; -1 for rows of -1."""
    rows = index if len(shape) > 1 else index.unsqueeze(-1)
    flat = torch.zeros((), dtype=torch.long, device=index.device)
    for d, size in enumerate(shape):
        flat = flat * size + rows[..., d]
    return torch.where(rows[..., 0] >= 0, flat, -1)


def indicators(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(*batch, *shape) with 1 at the rows of index (*batch, used, dims), those of -1 left out; no `dims` where 1."""
    places = raveled(index, shape)
    y = torch.zeros(*places.shape[:-1], torch.Size(shape).numel() + 1, device=index.device)
    y.scatter_(-1, torch.where(places >= 0, places, y.shape[-1] - 1), 1.0)
    return y[..., :-1].unflatten(-1, shape)


def used_parts(y: Tensor, dims: int) -> Tensor:
    """Where y (*batch, *shape), of `dims` dims, is not 0: rows (*batch, used, dims), -1 after the last."""
    flat = y.flatten(-dims) != 0
    count = int(flat.sum(-1).max()) if flat.numel() else 0
    # a stable sort brings the used parts to the front, in order
    order = torch.sort(~flat, dim=-1, stable=True).indices[..., :count]
    rows = torch.stack(torch.unravel_index(order, y.shape[-dims:]), -1)
    rows = torch.where(flat.gather(-1, order).unsqueeze(-1), rows, -1)
    return rows if dims > 1 else rows.squeeze(-1)


def checked_lengths(lengths: Tensor | None, batch: torch.Size, size: int, device: torch.device, name: str) -> Tensor:
    """Lengths as int64 (batch,), the full size where none are given."""
    if lengths is None:
        return torch.full((batch.numel(),), size, dtype=torch.long, device=device)
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        came = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(f"{name} must be a tensor of integers; got {came}")
    if lengths.shape != batch:
        raise ValueError(f"{name} must be {tuple(batch)}, the batch of the scores; got {tuple(lengths.shape)}")
    if _check.readable(lengths) and lengths.numel() and not bool(((lengths >= 0) & (lengths <= size)).all()):
        raise ValueError(f"{name} must be in [0, {size}]; got values in [{lengths.min()}, {lengths.max()}]")
    return lengths.to(device=device, dtype=torch.long).reshape(-1)


def check_rows(index: Tensor, shape: tuple[int, ...], repeats: bool = False) -> None:
    """Rows (*batch, used, dims), no `dims` where 1, name parts of this shape, or are all of -1; none is named twice."""
    faults.integers(index)
    dims = len(shape)
    if index.dim() < min(dims, 2) or (dims > 1 and index.shape[-1] != dims):
        form = f"(*batch, used, {dims})" if dims > 1 else "(*batch, used)"
        raise ValueError(f"index must be the used parts, {form}, of a structure {shape}; got {tuple(index.shape)}")
    if _check.readable(index):
        rows = index if dims > 1 else index.unsqueeze(-1)
        _refuse_parts(rows, torch.Size(shape))
        if not repeats:
            refuse_repeats("structure", rows, raveled(index, shape))


def _refuse_parts(rows: Tensor, shape: torch.Size) -> None:
    """Rows (*batch, used, dims) name parts of this shape, or are all of -1."""
    sizes = torch.tensor(shape, device=rows.device)
    bad = ~(((rows >= 0) & (rows < sizes)).all(-1) | (rows == -1).all(-1))

    def explain(instance: tuple[int, ...], place: int) -> str:
        return f"part {_named(rows[(*instance, place)])}{faults.of(instance)} is not one of {tuple(shape)}"

    faults.refuse("structure", bad, explain)


def refuse_repeats(what: str, rows: Tensor, places: Tensor) -> None:
    """No part is listed twice: rows (*batch, used, dims), and their places (*batch, used)."""
    ordered, order = places.sort(dim=-1, stable=True)
    bad = torch.zeros_like(places, dtype=torch.bool)
    bad[..., 1:] = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)

    def explain(instance: tuple[int, ...], place: int) -> str:
        return f"part {_named(rows[(*instance, int(order[(*instance, place)]))])}{faults.of(instance)} is listed twice"

    faults.refuse(what, bad, explain)


def _named(row: Tensor) -> object:
    return tuple(row.tolist()) if row.numel() > 1 else row.item()
