"""The solution of a SparseMAP problem: a few structures and their weights."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from polymax.kernels.active_set.problem import UsedParts, vertices_of
from polymax.structures.base import Structure, tensors
from polymax.structures.compact.base import used_parts


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights of a few structures.

    Shapes:
        found: the structures by their first tensors, (*batch, k, *event), or as lists of parts; empty after the last
        probs (*batch, k): heaviest first, 0 for structures that only span the face
        overlaps (*batch, k, k)
        value (*batch,): the value reached, -inf without a structure
        iterations and gap (*batch,)
        undefined: a bool tensor for each tensor of mu, True at parts that are NaN because of NaN scores; or None
        mean (B, d) in float64: the tensors of mu, flat and in a row; or None if the loop did not compute them

    An undefined instance has no structures; its weights, value and gap are NaN.
    """

    found: Tensor | UsedParts
    probs: Tensor
    overlaps: Tensor
    value: Tensor
    iterations: Tensor
    gap: Tensor
    undefined: tuple[Tensor, ...] | None = None
    mean: Tensor | None = None

    @cached_property
    def vertices(self) -> Tensor:
        """The first tensor of each structure, (*batch, k, *event); zeros after the last if there are fewer than k."""
        return vertices_of(self.found)

    def rescore(self, structure: Structure, *scores: Tensor) -> Tensor:
        """The scores (*batch, k) of the structures under other scores of parts; -inf if a structure uses -inf."""
        if not isinstance(self.found, UsedParts):
            return structure.rescore(self.found, *scores)
        places, before = self.found.places.long(), 0
        total = torch.zeros(places.shape[:-1], dtype=scores[0].dtype, device=places.device)
        for x, event in zip(structure.full(*scores), self.found.events, strict=True):
            flat = torch.nn.functional.pad(x.flatten(x.dim() - len(event)), (0, 1))
            # places in other tensors, and -1, read the 0 after the last score
            at = torch.where((places >= before) & (places < before + event.numel()), places - before, event.numel())
            total = total + flat.unsqueeze(-2).expand(*places.shape[:-1], flat.shape[-1]).gather(-1, at).sum(-1)
            before += event.numel()
        return total

    def with_weight(self) -> Tensor | UsedParts:
        """The structures with weight, cut to the largest number of them in an instance; places without weight empty."""
        used, dim, found = self.probs != 0, self.probs.dim() - 1, self.found
        width = max(int(used.sum(-1).max()) if used.numel() else 0, 1)
        used = used.narrow(dim, 0, width)
        if isinstance(found, UsedParts):
            return UsedParts(torch.where(used.unsqueeze(-1), found.places.narrow(dim, 0, width), -1), found.events)
        return torch.where(used.reshape(*used.shape, *[1] * (found.dim() - dim - 1)), found.narrow(dim, 0, width), 0)

    def of_support(self) -> "Solution":
        """This solution without its structures of weight 0, so that derivatives do not use them."""
        used, found = self.probs != 0, self.found
        kept: Tensor | UsedParts
        if isinstance(found, UsedParts):
            kept = UsedParts(torch.where(used.unsqueeze(-1), found.places, -1), found.events)
        else:
            kept = torch.where(used.reshape(*used.shape, *[1] * (found.dim() - used.dim())), found, 0)
        both = used.unsqueeze(-1) & used.unsqueeze(-2)
        return replace(self, found=kept, overlaps=torch.where(both, self.overlaps, 0))

    def without(self, structure: Structure, undefined: tuple[Tensor, ...]) -> "Solution":
        """This solution with no structures, and with weights of NaN, in the undefined instances."""
        from polymax.solvers.undefined import instances

        bad = instances(structure, undefined)
        used = torch.where(bad.unsqueeze(-1), 0, self.probs) != 0
        # an undefined instance has as many weights of NaN as the largest number of weights of another instance
        width = torch.arange(self.probs.shape[-1], device=bad.device) < used.sum(-1).max().clamp(min=1)

        def cleared(t: Tensor, empty: float) -> Tensor:
            return torch.where(bad.reshape(bad.shape + (1,) * (t.dim() - bad.dim())), empty, t)

        found = self.found
        return replace(
            self,
            found=UsedParts(cleared(found.places, -1), found.events)
            if isinstance(found, UsedParts)
            else cleared(found, 0),
            probs=torch.where(bad.unsqueeze(-1), torch.where(width, torch.nan, 0.0), self.probs),
            overlaps=cleared(self.overlaps, 0),
            value=cleared(self.value, torch.nan),
            gap=cleared(self.gap, torch.nan),
            undefined=undefined,
            mean=None,
        )


def parts_of(structure: Structure, first: Tensor) -> Tensor:
    """The used parts (..., parts) of structures, over all tensors in a row; -1 after the last."""
    whole = tensors(structure.complete(first))
    lead = first.dim() - structure.event_dims(*whole)[0]
    return used_parts(torch.cat([t.flatten(lead) for t in whole], -1), 1)
