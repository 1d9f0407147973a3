"""What a set of structures offers: its best element, its enumeration, and for some the sum over all."""

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from polymax import _check

# one tensor, or a NamedTuple of tensors with the names of the scores
Parts = Any


class Structure(ABC):
    """A finite set Y of structures, each an indicator of the parts it uses, shaped like the scores.

    `map` is the one algorithm a structure must have; `vertices` defines the set, and is what tests enumerate.
    """

    @abstractmethod
    def map(self, *scores: Tensor) -> Parts:
        """The structure with the highest score, as indicators; the same one at every call where several are best."""

    @abstractmethod
    def vertices(self, event_shape: tuple[int, ...]) -> Parts:
        """All structures for scores of this shape (of the first tensor), stacked along a first dimension."""

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

    def complete(self, first: Tensor) -> Parts:
        """Structures from their first tensor, where that determines the others."""
        return first

    def mean(self, vertices: Tensor, probs: Tensor) -> Parts:
        """The mean of structures given by first tensors (*batch, k, ...) and weights (*batch, k)."""
        return (vertices * probs.reshape(*probs.shape, *[1] * (vertices.dim() - probs.dim()))).sum(probs.dim() - 1)

    def rescore_used(self, places: Tensor, *scores: Tensor) -> Tensor:
        """The scores (*batch, k) of structures given by the parts they use (*batch, k, parts), -1 after the last."""
        (x,) = scores
        flat = torch.nn.functional.pad(x.flatten(-self.event_dims(x)[0]), (0, 1)).unsqueeze(-2)
        at = torch.where(places < 0, flat.shape[-1] - 1, places)
        return flat.expand(*at.shape[:-1], flat.shape[-1]).gather(-1, at).sum(-1)

    def mean_used(self, places: Tensor, probs: Tensor, event: torch.Size) -> Parts:
        """The mean of structures so given, with weights (*batch, k)."""
        return scattered(torch.where(places < 0, event.numel(), places), probs, event)

    def rescore(self, vertices: Tensor, *scores: Tensor) -> Tensor:
        """The scores (*batch, k) of structures given by first tensors (*batch, k, ...)."""
        dim = vertices.dim() - 1 - self.event_dims(*scores)[0]
        return self.score(self.complete(vertices.movedim(dim, 0)), *scores).movedim(0, -1)

    def encode(self, index: Tensor, *shape: int) -> Parts:
        """Indicators, of the dims `shape`, from the compact form: the rows of used parts that `decode` gives."""
        return indicators(index, shape)

    def decode(self, y: Parts) -> Tensor:
        """The compact form of y: the used parts, in order, as rows (*batch, used, dims), -1 after the last."""
        return used_parts(y, self.event_dims(y)[0])

    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""
        if "lengths" not in {f.name for f in fields(self)}:  # type: ignore[arg-type]
            raise TypeError(f"{type(self).__name__} has no lengths")
        return replace(self, lengths=lengths)  # type: ignore[type-var]


class Counted(Structure):
    """A structure over which sums are tractable."""

    @abstractmethod
    def logsumexp(self, *scores: Tensor) -> Tensor:
        """log of the sum over y in Y of exp(<scores, y>), (*batch,)."""

    def marginals(self, *scores: Tensor) -> Parts:
        """The gradient of logsumexp: the probabilities of parts under p(y) = exp(<scores, y>) / Z."""
        keep = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in self.full(*scores))
            value = self.logsumexp(*inputs)
            total = torch.where(value == -torch.inf, 0, value).sum()
            found = torch.autograd.grad(total, inputs, create_graph=keep)
        return found[0] if len(found) == 1 else found


def tensors(y: Parts) -> tuple[Tensor, ...]:
    """The tensors of a structure: one, or those of a tuple."""
    return (y,) if isinstance(y, Tensor) else tuple(y)


def scattered(places: Tensor, probs: Tensor, event: torch.Size) -> Tensor:
    """Weights (*batch, k) added up at places (*batch, k, parts) of (*batch, *event); the place after all is off."""
    spread = probs.unsqueeze(-1).expand(places.shape).flatten(-2)
    total = probs.new_zeros(*probs.shape[:-1], event.numel() + 1).scatter_add(-1, places.flatten(-2), spread)
    return total[..., :-1].reshape(*probs.shape[:-1], *event)


def indicators(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(*batch, *shape) with 1 at the rows of index (*batch, used, dims), those of -1 left out; no `dims` where 1."""
    rows = index if len(shape) > 1 else index.unsqueeze(-1)
    flat = torch.zeros((), dtype=torch.long, device=index.device)
    for d, size in enumerate(shape):
        flat = flat * size + rows[..., d]
    y = torch.zeros(*rows.shape[:-2], torch.Size(shape).numel() + 1, device=index.device)
    y.scatter_(-1, torch.where(rows[..., 0] >= 0, flat, y.shape[-1] - 1), 1.0)
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
