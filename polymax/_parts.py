"""The tensors of scores and of structures: one tensor, or a NamedTuple of tensors with the names of the scores."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.function import refuse_trace, tracing

Parts = Any


def tensors(y: Parts) -> tuple[Tensor, ...]:
    """The tensors of a structure as a tuple, also if there is only one."""
    return (y,) if isinstance(y, Tensor) else tuple(y)


def map_parts(change: Callable[[Tensor], Tensor], y: Parts) -> Parts:
    """The structure after `change` was applied to each of its tensors."""
    return change(y) if isinstance(y, Tensor) else y._make(change(t) for t in y)


def narrow(y: Parts, dtype: torch.dtype) -> Parts:
    """Return the structure in the dtype of the scores."""
    return y if tensors(y)[0].dtype == dtype else map_parts(lambda t: t.to(dtype), y)


def checked_scores(scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Scores of one floating-point type, at least in float32; numbers after the first are tensors of its type."""
    if tracing():
        refuse_trace()
    for x in scores:
        if not isinstance(x, Tensor) or x.dtype not in _check.FLOATS:
            scores = _with_numbers(scores)
            break
    for x in scores[1:]:
        if x.dtype != scores[0].dtype or x.device != scores[0].device:
            came = ", ".join(f"{x.dtype} on {x.device}" for x in scores)
            raise TypeError(f"scores must have one dtype and one device; got {came}")
    if not torch.compiler.is_compiling():
        for x in scores:
            # kernels read memory, in which the numbers of such a view have other signs
            if x.is_neg():
                scores = tuple(s.resolve_neg() for s in scores)
                break
    if not scores or scores[0].dtype.itemsize >= 4:
        return scores
    return tuple(x.float() for x in scores)


def _with_numbers(scores: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Scores whose numbers after the first tensor have become tensors; other types are refused."""
    _check.floating(scores[0], "scores")
    found = tuple(scores[0].new_tensor(x) if type(x) in (int, float) else x for x in scores)
    for x in found:
        _check.floating(x, "scores")
    return found
