"""The compact form of structures: integers as data sets store them, converted to and from indicators."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts, tensors
from polymax.structures.compact import faults


@dataclass(frozen=True, eq=False)
class Compact:
    """The used parts of a structure in order, (*batch, used, dims), or (*batch, used) if dims is 1; -1 after the last.

    This is the default form; other forms are subclasses. `encode` takes the sizes of all dims.
    """

    structure: Any

    def encode(self, index: Tensor, *shape: int) -> Parts:
        """Indicators of the shape `shape`; on the CPU, a ValueError if `index` is not a structure of any length."""
        check_rows(index, shape)
        return indicators(index, shape)

    def decode(self, y: Parts) -> Tensor:
        """The compact form of y."""
        return used_parts(tensors(y)[0], self.structure.event_dims(*tensors(y))[0])

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The compact form with -1 at all padding; a ValueError if it is not a structure for these scores."""
        x = scores[0]
        dims = self.structure.event_dims(*scores)[0]
        batch, shape = x.shape[: x.dim() - dims], x.shape[x.dim() - dims :]
        rows = index if dims > 1 else index.unsqueeze(-1)
        if rows.dim() != len(batch) + 2 or rows.shape[:-2] != batch or rows.shape[-1] != dims:
            form = (*batch, "used", dims) if dims > 1 else (*batch, "used")
            expected = "(" + ", ".join(map(str, form)) + ")"
            raise ValueError(f"y must be the used parts, {expected}; got {tuple(index.shape)}")
        if _check.readable(index):
            _refuse_parts(rows, shape)
            # subclasses have their own checks
            if type(self) is Compact:
                refuse_repeats("structure", rows, flat_places(index, shape))
                self._refuse_other_sets(rows, *scores)
        return index

    def _refuse_other_sets(self, rows: Tensor, *scores: Tensor) -> None:
        """Refuse parts that are not a structure: with scores of 1 for them, and -1 for others, `map` differs."""
        index = rows if rows.shape[-1] > 1 else rows.squeeze(-1)
        y = tensors(self.structure.complete(self.first(index, *scores)))
        dtype = torch.promote_types(scores[0].dtype, torch.float32)
        with torch.no_grad():
            best = tensors(self.structure.map(*(2 * part.to(dtype) - 1 for part in y)))
        dims = self.structure.event_dims(*scores)
        each = list(zip(y, best, dims, strict=True))
        # structures that use a part twice, or in part, may score more
        plain = torch.stack([((b == 0) | (b == 1)).flatten(b.dim() - d).all(-1) for _, b, d in each]).all(0)
        wrong = torch.stack([(part != b).flatten(b.dim() - d).any(-1) for part, b, d in each]).any(0) & plain

        def explain(instance: tuple[int, ...], _: int) -> str:
            used = [_plain_row(row) for row in rows[instance] if int(row[0]) >= 0]
            return (
                f"no structure of {type(self.structure).__name__} has the parts {used}{faults.of(instance)}, no others"
            )

        faults.refuse("structure", wrong.unsqueeze(-1), explain)

    def check_parts(self, y: Parts, *scores: Tensor) -> None:
        """Refuse indicators that are not a structure for these scores: a ValueError names the part."""
        index = self.check(self.decode(y), *scores)
        dims = self.structure.event_dims(*scores)
        again = tensors(self.structure.complete(self.first(index, *scores)))
        for part, expected, d in zip(tensors(y), again, dims, strict=True):
            wrong = (part != expected.to(part)).flatten(part.dim() - d)

            def explain(instance: tuple[int, ...], place: int, shape: torch.Size = part.shape[-d:]) -> str:
                at = tuple(int(i) for i in torch.unravel_index(torch.tensor(place, device="cpu"), shape))
                return f"part {at}{faults.of(instance)} does not go with the others"

            faults.refuse("structure", wrong, explain)

    def whole(self, y: Parts) -> bool:
        """True if y looks like structures, not like points between them."""
        return all(bool(((part == 0) | (part == 1)).all()) for part in tensors(y))

    def first(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The first tensor of the structures of this compact form, for scores of these shapes."""
        return tensors(self.encode(index, *self._event(scores)))[0]

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The used parts (*batch, used) of a compact form, as places in a flat first tensor; -1 for none."""
        return flat_places(index, self._event(scores))

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The scores of the used parts, (*batch, used), whose sum is the score of the structure."""
        (x,) = scores
        # one place more, for rows of -1
        flat = torch.nn.functional.pad(x.flatten(-self.structure.event_dims(x)[0]), (0, 1))
        places = self.places(index, x)
        return flat.gather(-1, torch.where(places < 0, flat.shape[-1] - 1, places))

    def shift_to_target(self, terms: Tensor, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Scores that shift all structures alike, and the score (*batch,) of the target whose `terms` are given.

        A loss is the maximum of these scores less the target's score: a shift makes both small, so that digits are not
        lost. By default there is no shift, and scores are in float64.
        """
        return tuple(x.double() for x in scores), terms.double().sum(-1)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The parts (*batch, ...) of the first tensor that agree with a compact form, in which -2 is unknown."""
        raise TypeError(
            f"Partial of {type(self.structure).__name__} takes a bool tensor of allowed parts; got integers"
        )

    def hamming(self, first: Tensor) -> Tensor:
        """The cost of each part of the first tensor, given the target `first`: 1 for parts that it does not use."""
        return 1 - first

    def _event(self, scores: tuple[Tensor, ...]) -> torch.Size:
        """The shape of one structure's first tensor."""
        return scores[0].shape[scores[0].dim() - self.structure.event_dims(*scores)[0] :]


def flat_places(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Places (*batch, used) in flat parts of rows (*batch, used, dims), or (*batch, used) if dims is 1; -1 for -1."""
    rows = index if len(shape) > 1 else index.unsqueeze(-1)
    flat = torch.zeros((), dtype=torch.long, device=index.device)
    for d, size in enumerate(shape):
        flat = flat * size + rows[..., d]
    return torch.where(rows[..., 0] >= 0, flat, -1)


def indicators(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Indicators (*batch, *shape), 1 at the rows of index (*batch, used, dims), or (*batch, used) if dims is 1."""
    places = flat_places(index, shape)
    y = torch.zeros(*places.shape[:-1], torch.Size(shape).numel() + 1, device=index.device)
    y.scatter_(-1, torch.where(places >= 0, places, y.shape[-1] - 1), 1.0)
    return y[..., :-1].unflatten(-1, shape)


def used_parts(y: Tensor, dims: int) -> Tensor:
    """The indices (*batch, used, dims) of nonzero entries along the last `dims` dims of y; -1 after the last."""
    flat = y.flatten(-dims) != 0
    count = int(flat.sum(-1).max()) if flat.numel() else 0
    # a stable sort brings the used parts to the front, in order
    order = torch.sort(~flat, dim=-1, stable=True).indices[..., :count]
    rows = torch.stack(torch.unravel_index(order, y.shape[-dims:]), -1)
    rows = torch.where(flat.gather(-1, order).unsqueeze(-1), rows, -1)
    return rows if dims > 1 else rows.squeeze(-1)


def check_rows(index: Tensor, shape: tuple[int, ...], repeats: bool = False) -> None:
    """Refuse rows (*batch, used, dims), or (*batch, used) if dims is 1, outside this shape, or with repeated parts."""
    faults.check_integers(index)
    dims = len(shape)
    if index.dim() < min(dims, 2) or (dims > 1 and index.shape[-1] != dims):
        form = f"(*batch, used, {dims})" if dims > 1 else "(*batch, used)"
        raise ValueError(f"index must be the used parts, {form}, of a structure {shape}; got {tuple(index.shape)}")
    if _check.readable(index):
        rows = index if dims > 1 else index.unsqueeze(-1)
        _refuse_parts(rows, torch.Size(shape))
        if not repeats:
            refuse_repeats("structure", rows, flat_places(index, shape))


def _refuse_parts(rows: Tensor, shape: torch.Size) -> None:
    """Refuse rows (*batch, used, dims) that are neither a part of this shape nor all of -1."""
    sizes = torch.tensor(shape, device=rows.device)
    bad = ~(((rows >= 0) & (rows < sizes)).all(-1) | (rows == -1).all(-1))

    def explain(instance: tuple[int, ...], place: int) -> str:
        return f"part {_plain_row(rows[(*instance, place)])}{faults.of(instance)} is not one of {tuple(shape)}"

    faults.refuse("structure", bad, explain)


def refuse_repeats(what: str, rows: Tensor, places: Tensor) -> None:
    """Refuse a part that is listed twice: rows (*batch, used, dims), and their places (*batch, used)."""
    ordered, order = places.sort(dim=-1, stable=True)
    bad = torch.zeros_like(places, dtype=torch.bool)
    bad[..., 1:] = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)

    def explain(instance: tuple[int, ...], place: int) -> str:
        part = _plain_row(rows[(*instance, int(order[(*instance, place)]))])
        return f"part {part}{faults.of(instance)} is listed twice"

    faults.refuse(what, bad, explain)


def _plain_row(row: Tensor) -> object:
    return tuple(row.tolist()) if row.numel() > 1 else row.item()
