"""The arguments of a call besides queries, keys and values, in the order of the operator."""

from typing import NamedTuple

from torch import Tensor

# neighbouring keys that share a box, without a table of pages
PAGE = 64

SCHEMA = (
    "Tensor? boxes, Tensor? table, Tensor? lengths, float alpha, Tensor? alphas, Tensor? mask, Tensor? sinks, "
    "float scale, float softcap, SymInt left, SymInt right, SymInt offset"
)


class Cached(NamedTuple):
    """The arguments of the operator after q, k and v; the package's docstring explains them."""

    boxes: Tensor | None
    table: Tensor | None
    lengths: Tensor | None
    alpha: float
    alphas: Tensor | None
    mask: Tensor | None
    sinks: Tensor | None
    scale: float
    softcap: float
    left: int
    right: int
    offset: int
