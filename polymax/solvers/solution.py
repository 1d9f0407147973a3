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
        found, the structures by their first tensors: (*batch, k, *event), or as lists of parts; none after the last
        probs (*batch, k), heaviest first, 0 for structures that only span the face; overlaps (*batch, k, k)
        value, what is reached, -inf without a structure; iterations and gap (*batch,)
        undefined, the parts of mu that are NaN because a score of their instance is: bool, a tensor for each of mu
        mean, the tensors of mu, flat and one after the other, (B, d) in float64, where the loop has added them up

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
        """The first tensor of each structure, (*batch, k, *event); zeros where there are fewer than k."""
        return vertices_of(self.found)

    def rescore(self, structure: Structure, *scores: Tensor) -> Tensor:
        """What other scores give the structures, (*batch, k), -inf for those that they forbid."""
        if not isinstance(self.found, UsedParts):
            return structure.rescore(self.found, *scores)
        places, before = self.found.places.long(), 0
        total = torch.zeros(places.shape[:-1], dtype=scores[0].dtype, device=places.device)
        for x, event in zip(structure.full(*scores), self.found.events, strict=True):
            flat = torch.nn.functional.pad(x.flatten(x.dim() - len(event)), (0, 1))
            # what is of another tensor, or no part at all, has a score of 0 after the last
            at = torch.where((places >= before) & (places < before + event.numel()), places - before, event.numel())
            total = total + flat.unsqueeze(-2).expand(*places.shape[:-1], flat.shape[-1]).gather(-1, at).sum(-1)
            before += event.numel()
        return total

    def with_weight(self) -> Tensor | UsedParts:
        """The structures that have weight, as many as the instance with the most has; none in the place of others."""
        used, dim, found = self.probs != 0, self.probs.dim() - 1, self.found
        width = max(int(used.sum(-1).max()) if used.numel() else 0, 1)
        used = used.narrow(dim, 0, width)
        if isinstance(found, UsedParts):
            return UsedParts(torch.where(used.unsqueeze(-1), found.places.narrow(dim, 0, width), -1), found.events)
        return torch.where(used.reshape(*used.shape, *[1] * (found.dim() - dim - 1)), found.narrow(dim, 0, width), 0)

    def of_support(self) -> "Solution":
        """This solution without the structures of weight 0, which take no part in derivatives then."""
        used, found = self.probs != 0, self.found
        kept: Tensor | UsedParts
        if isinstance(found, UsedParts):
            kept = UsedParts(torch.where(used.unsqueeze(-1), found.places, -1), found.events)
        else:
            kept = torch.where(used.reshape(*used.shape, *[1] * (found.dim() - used.dim())), found, 0)
        both = used.unsqueeze(-1) & used.unsqueeze(-2)
        return replace(self, found=kept, overlaps=torch.where(both, self.overlaps, 0))

    def without(self, structure: Structure, undefined: tuple[Tensor, ...]) -> "Solution":
        """This solution without structures in the instances whose parts are undefined, whose weights are NaN."""
        from polymax.solvers.undefined import instances

        bad = instances(structure, undefined)
        used = torch.where(bad.unsqueeze(-1), 0, self.probs) != 0
        # as many weights of NaN as another instance has weights
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
    """The parts of structures given by their first tensors, of all tensors one after the other; -1 after the last."""
    whole = tensors(structure.complete(first))
    lead = first.dim() - structure.event_dims(*whole)[0]
    return used_parts(torch.cat([t.flatten(lead) for t in whole], -1), 1)
