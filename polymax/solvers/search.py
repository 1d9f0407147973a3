"""What a set tells SparseMAP about itself: how its best structure is found without a call of `map` for each."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Search(NamedTuple):
    """A batch of problems as the compiled loops of SparseMAP take them.

    The kind names the files of kernels/active_set that know how to search: cpu_<kind>.py, and cuda_<kind>.py where
    there is one. Structures use each part once at most, so that lists of parts hold them.

    tags           unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s), or (s, s), and lengths (B,) of chains
    counted_tags   the same, of chains that count, with transitions of four dims; the options are the limit, the state,
                   and if its runs are counted
    arcs           scores (B, n + 1, n + 1) and lengths (B,) of spanning trees; the option is `single_root`
    cells          scores (B, n, m), rows (B,) and columns (B,) of assignments
    spans          scores (B, n, n, labels) and lengths (B,) of span trees; the option gives derivations
    projective     scores (B, n + 1, n + 1), or with labels after them, and lengths (B,) of trees without crossing arcs;
                   the options are `single_root`, and what gives derivations
    derivations    scores (B, parts) and roots (B,) of a dynamic program; the option is its graph

    What gives derivations is called without arguments: scores (B, parts), their graph, and roots (B,).
    `batch` and `events` are the shapes of the scores in full, a structure uses `most` parts of all tensors at most.
    """

    kind: str
    tensors: tuple[Tensor, ...]
    batch: torch.Size
    events: tuple[torch.Size, ...]
    most: int
    options: tuple[Any, ...] = ()
