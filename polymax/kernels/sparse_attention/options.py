"""The arguments of a call of sparse attention besides queries, keys and values, in the order of the operator."""

from typing import Any, NamedTuple

from torch import Tensor

SCHEMA = (
    "float alpha, Tensor? alphas, Tensor? mask, Tensor? sinks, Tensor? starts_q, Tensor? starts_k, "
    "SymInt longest_q, SymInt longest_k, float scale, float softcap, SymInt left, SymInt right, SymInt offset, "
    "float dropout, Tensor? seed, bool short=False"
)
# the saved tensors that the backward operator takes besides the gradient of the context
SAVED = "Tensor q, Tensor k, Tensor v, Tensor mean, Tensor tau, Tensor plan, Tensor lists"


class Options(NamedTuple):
    """The arguments of the operator after q, k and v; the package's docstring explains them."""

    alpha: float
    alphas: Tensor | None
    mask: Tensor | None
    sinks: Tensor | None
    starts_q: Tensor | None
    starts_k: Tensor | None
    longest_q: int
    longest_k: int
    scale: float
    softcap: float
    left: int
    right: int
    offset: int
    dropout: float = 0.0
    seed: Tensor | None = None
    short: bool = False


def of_backward(given: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], bool, Options]:
    """Return the saved tensors, True if the mask needs a gradient, and the options of the call."""
    return given[:7], given[7], Options(*given[8:])
