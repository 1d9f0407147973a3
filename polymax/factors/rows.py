"""Logic and pairs as rows of linear constraints, in the form of the kernel `constrained`."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.factors.factor import Logic, Pair

_ENDS = {"=": (-torch.inf, torch.inf), "<=": (0.0, torch.inf), ">=": (-torch.inf, 0.0)}


@dataclass(frozen=True, eq=False)
class Rows:
    """Constraint rows of G graphs, and the pairs whose scores are prices of some of them.

    Shapes:
        columns, signs (G, R, K): the variables of each row and their coefficients
        offset (G, R): the right side of each row
        least, most (R,): the bounds of the price of each row, 0 for pairs
        factor (R,): the index of each row's factor
        by_variable, variable_signs (G, n, degree): the rows of each variable, -1 after the last, and its coefficients
        pairs (G, P, 2): the variables of pairs, whose rows are the last 2 P
        turned (P, 2) bool: True for negated literals
        by_literal (G, n, degree): the places of each variable among the pairs, -1 after the last
    """

    columns: Tensor
    signs: Tensor
    offset: Tensor
    least: Tensor
    most: Tensor
    factor: Tensor
    by_variable: Tensor
    variable_signs: Tensor
    pairs: Tensor
    turned: Tensor
    by_literal: Tensor

    def to(self, device: torch.device) -> "Rows":
        return Rows(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def sums(self, x: Tensor) -> Tensor:
        """A x, (B, R), of variables (B, n)."""
        return _gathered(x, self.columns, self.signs)

    def spread(self, y: Tensor) -> Tensor:
        """A^T y, (B, n): the sums of numbers y (B, R) of the rows at each variable."""
        return _gathered(y, self.by_variable, self.variable_signs)


def _gathered(x: Tensor, places: Tensor, signs: Tensor) -> Tensor:
    count = len(x)
    places, signs = (t.expand(count, *t.shape[1:]) if len(t) == 1 else t for t in (places, signs))
    flat = torch.nn.functional.pad(x, (0, 1))
    at = torch.where(places < 0, x.shape[1], places).flatten(1)
    return (flat.gather(1, at).reshape(places.shape) * signs).sum(-1)


def compile_rows(factors: Sequence[tuple[int, Any]], n: int, lead: torch.Size) -> Rows:
    """The rows of logic and pairs, each with the index of its factor.

    `lead` is the batch shape if rows differ between instances, else ().
    """
    groups: dict[Any, list[tuple[int, Logic]]] = defaultdict(list)
    pairs = [(f, factor) for f, factor in factors if isinstance(factor, Pair)]
    for f, factor in factors:
        if isinstance(factor, Logic):
            key = factor.kind, factor.rows.shape, *(tuple(t.flatten().tolist()) for t in (factor.rows, factor.needed))
            groups[key].append((f, factor))
    parts = [_group(members, lead) for members in groups.values()]
    at = _stacked([p.at for _, p in pairs], lead, 2)
    turned = torch.stack([p.negated for _, p in pairs]) if pairs else torch.zeros(0, 2, dtype=torch.bool, device="cpu")
    owners = torch.tensor([f for f, _ in pairs], dtype=torch.long, device="cpu")
    zero = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
    both = torch.ones(len(pairs), 1, 2, dtype=torch.bool, device="cpu")
    # two rows for each pair: second - first <= 0, and first + second <= 1, violations of which have a price
    for coefficients, bound in (
        (torch.tensor([[-1.0, 1.0]], device="cpu"), 0.0),
        (torch.tensor([[1.0, 1.0]], device="cpu"), 1.0),
    ):
        spread = coefficients.expand(len(pairs), 1, 2)
        rows = _literal_rows(
            at,
            turned,
            spread,
            torch.full((len(pairs), 1), bound, device="cpu"),
            torch.zeros(len(pairs), 1, device="cpu"),
            both,
        )
        parts.append((*rows, zero, zero, owners))
    width = max([p[0].shape[-1] for p in parts], default=0)
    padded = [_wide(p[0], width, -1) for p in parts], [_wide(p[1], width, 0) for p in parts]
    columns, signs = torch.cat(padded[0], 1), torch.cat(padded[1], 1)
    offset = torch.cat([p[2] for p in parts], 1)
    least, most, owner = (torch.cat([p[k] for p in parts]) for k in (3, 4, 5))
    back = _transposed(columns, signs, n)
    return Rows(columns, signs, offset, least, most, owner, *back, at, turned, places_of(at.flatten(1), n))


def _group(members: list[tuple[int, Logic]], lead: torch.Size) -> tuple[Tensor, ...]:
    first = members[0][1]
    at = _stacked([m.at for _, m in members], lead, first.at.shape[-1])
    flags = torch.stack([m.negated for _, m in members])
    count, r = len(members), len(first.rows)
    rows = first.rows.expand(count, *first.rows.shape)
    bound, counts = (torch.stack([getattr(m, name) for _, m in members]) for name in ("bound", "counts"))
    found = _literal_rows(at, flags, rows, bound, counts, first.needed.expand(count, *first.needed.shape))
    ends = torch.tensor([_ENDS[kind] for kind in first.kind], dtype=torch.float64, device="cpu")
    owner = torch.tensor([f for f, _ in members], dtype=torch.long, device="cpu")
    return (*found, *(ends.repeat(count, 1).T), owner.repeat_interleave(r))


def _literal_rows(
    at: Tensor, negated: Tensor, rows: Tensor, bound: Tensor, counts: Tensor, needed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Columns, signs and offsets of rows (F, r, k) over literals at (G, F, k)."""
    there = (at >= 0).unsqueeze(2)
    used = there & (rows != 0)
    signs = torch.where(negated.unsqueeze(1), -rows, rows)
    # the 1 of a literal 1 - mu goes to the right side
    shift = torch.where(used & negated.unsqueeze(1), rows.double(), 0).sum(-1)
    inputs = (there.squeeze(2)[..., :-1] if at.shape[-1] > 1 else there.squeeze(2)).sum(-1).double().unsqueeze(-1)
    offset = bound + counts * inputs - shift
    holds = (there | ~needed).all(-1) & there.any(-1)
    used = used & holds.unsqueeze(-1)
    # rows that do not hold in an instance become 0 = 0
    offset = torch.where(holds, offset, 0.0)
    columns = torch.where(used, at.unsqueeze(2), -1)
    order = torch.sort(~used, dim=-1, stable=True).indices
    columns, signs = columns.gather(-1, order), torch.where(used, signs, 0.0).double().gather(-1, order)
    return columns.flatten(1, 2), signs.flatten(1, 2), offset.flatten(1, 2)


def _stacked(ats: list[Tensor], lead: torch.Size, k: int) -> Tensor:
    """The variables of all factors, (G, F, k), from a list with the variables of each."""
    if not ats:
        return torch.zeros(lead.numel(), 0, k, dtype=torch.long, device="cpu")
    return torch.stack([at.expand(*lead, k) for at in ats], -2).reshape(lead.numel(), len(ats), k)


def _wide(t: Tensor, width: int, value: float) -> Tensor:
    return torch.nn.functional.pad(t, (0, width - t.shape[-1]), value=value)


def places_of(edges: Tensor, n: int) -> Tensor:
    """The places of each variable in lists (G, E) of variables, in order: (G, n, degree), -1 after the last."""
    key = torch.where(edges < 0, n, edges)
    order = torch.sort(key, dim=1, stable=True).indices
    begin = torch.searchsorted(
        key.gather(1, order), torch.arange(n + 1, device="cpu").expand(len(edges), n + 1).contiguous()
    )
    size = begin[:, 1:] - begin[:, :-1]
    degree = int(size.max()) if size.numel() else 0
    step = torch.arange(degree, device="cpu")
    there = step < size.unsqueeze(-1)
    place = torch.where(there, begin[:, :-1].unsqueeze(-1) + step, 0).flatten(1)
    entry = order.gather(1, place) if order.shape[1] else place
    return torch.where(there, entry.reshape(there.shape), -1)


def _transposed(columns: Tensor, signs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The rows of each variable, -1 after the last, and its signs in them, (G, n, degree)."""
    k = max(columns.shape[2], 1)
    entry = places_of(columns.flatten(1), n)
    there = entry >= 0
    found = torch.nn.functional.pad(signs.flatten(1), (0, 1))
    value = found.gather(1, torch.where(there, entry, found.shape[1] - 1).flatten(1)).reshape(entry.shape)
    return torch.where(there, entry // k, -1), torch.where(there, value, 0.0)
