"""The problems that the compiled loops of SparseMAP take, and the lists of structures that they find."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Search(NamedTuple):
    """A batch of problems as the compiled loops of SparseMAP take them.

    The kind names the files of kernels/active_set with the search: cpu_<kind>.py, and cuda_<kind>.py if there is one.
    Structures use each part once at most, so that lists of parts hold them.

    tags           unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s), or (s, s), and lengths (B,) of chains
    counted_tags   as tags, of chains that count, with transitions of four dims; the options are the limit, the state,
                   and True if runs of the state are counted
    arcs           scores (B, n + 1, n + 1) and lengths (B,) of spanning trees; the option is `single_root`
    cells          scores (B, n, m), rows (B,) and columns (B,) of assignments
    spans          scores (B, n, n, labels) and lengths (B,) of span trees; the option is `derivations`, see below
    projective     scores (B, n + 1, n + 1) or (B, n + 1, n + 1, labels), and lengths (B,) of trees without crossing
    arcs;
                   the options are `single_root` and `derivations`
    derivations    scores (B, parts) and roots (B,) of a dynamic program; the option is its graph

    The function `derivations` is called without arguments and returns scores (B, parts), their graph, and roots (B,).
    `batch` and `events` are the full shapes of the scores. A structure uses at most `most` parts of all tensors.
    """

    kind: str
    tensors: tuple[Tensor, ...]
    batch: torch.Size
    events: tuple[torch.Size, ...]
    most: int
    options: tuple[Any, ...] = ()


class UsedParts(NamedTuple):
    """Structures as lists of the parts they use, with parts numbered through all tensors, flat and one after the other.

    Shapes: places (*batch, k, parts), those of the first tensor first, -1 after the last; events, the shape of each
    tensor
    """

    places: Tensor
    events: tuple[torch.Size, ...]

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return indicators of the first tensors, (*batch, k, *event)."""
        event, places = self.events[0], self.places.long()
        y = torch.zeros(*places.shape[:-1], event.numel() + 1, dtype=dtype, device=places.device)
        # unused entries and parts of other tensors are scattered to an extra part, which is cut off
        y.scatter_(-1, torch.where((places < 0) | (places >= event.numel()), event.numel(), places), 1.0)
        return y[..., :-1].reshape(*places.shape[:-1], *event)


def vertices_of(found: Tensor | UsedParts) -> Tensor:
    """Return the first tensor of each structure, (*batch, k, *event)."""
    return found.dense() if isinstance(found, UsedParts) else found
