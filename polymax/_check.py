"""Argument checks: errors that name the argument, the expectation and the value."""

import operator
from collections.abc import Callable
from functools import wraps
from inspect import signature
from numbers import Integral
from typing import Any, ParamSpec

import torch
from torch import Tensor

from polymax.backend.function import apart
from polymax.backend.function import readable as readable
from polymax.sharding.placements import is_sharded, plain

P = ParamSpec("P")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def floating(x: Any, name: str) -> None:
    """Refuse x unless it is a floating-point tensor."""
    if not isinstance(x, Tensor):
        advice = f": use torch.from_numpy({name})" if type(x).__module__ == "numpy" else ""
        raise TypeError(f"{name} must be a tensor; got {type(x).__name__}{advice}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must be float64, float32, bfloat16 or float16; got {x.dtype}")


def broadcasts(t: Tensor, x: Tensor, name: str) -> None:
    """Refuse a tensor that does not broadcast to the shape of the scores."""
    if not broadcastable(t.shape, x.shape):
        raise ValueError(f"{name} must broadcast to the scores {tuple(x.shape)}; got {tuple(t.shape)}")


def broadcastable(shape: torch.Size, to: torch.Size) -> bool:
    """True if a tensor of this shape broadcasts to the other one."""
    try:
        return torch.broadcast_shapes(shape, to) == to
    except RuntimeError:
        return False


def parameter(t: Tensor, x: Tensor, dim: int, name: str, full: bool = False) -> None:
    """Refuse a parameter that does not broadcast to the scores, with size 1 along dim unless it may be `full`."""
    broadcasts(t, x, name)
    if apart(t, x):
        raise TypeError(f"{name} must be on {x.device}, like the scores; got {t.device}")
    along = dim - x.dim() if dim >= 0 else dim
    if not full and t.dim() >= -along and t.shape[along] != 1:
        raise ValueError(f"{name} must have size 1 along dim {dim}; got {tuple(t.shape)}")


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """The scores with -inf where mask is False."""
    if mask is None:
        return x
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask must be a bool tensor (True = keep); got {kind(mask)}")
    if not is_sharded(x):
        plain(mask, "mask", "x")
    broadcasts(mask, x, "mask")
    return x.masked_fill(~mask, -torch.inf)


def number(value: Any, name: str, expected: str, valid: Any) -> None:
    """Refuse an argument that is neither a number nor a tensor of numbers, or for which `valid` is False.

    The values of a tensor on an accelerator, or of a traced tensor, are not read: that would wait for the device.
    """
    if isinstance(value, Tensor):
        floating(value, name)
        if readable(value) and not bool(torch.as_tensor(valid(value)).all()):
            raise ValueError(f"{name} must be {expected}; got values in [{value.min():g}, {value.max():g}]")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number or a tensor; got {type(value).__name__}")
    elif not valid(value):
        raise ValueError(f"{name} must be {expected}; got {value}")


def integer(value: Any, name: str) -> int:
    """Return an integer as Python's own type; raise if the argument is no integer."""
    if isinstance(value, int):
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {type(value).__name__}") from None


def whole(value: Any, name: str, least: int = 1) -> int:
    """Return an integer that is at least `least`, 0 or 1; raise ValueError for other arguments."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {expected}; got {value!r}")
    return value


def reduction(value: Any) -> str:
    """Return the reduction of a loss over instances; raise ValueError if its name is unknown."""
    if value not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {value!r}")
    return value


def function(value: Any, name: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function; got {value!r}")


def defined(value: Any) -> Any:
    """Return True for numbers, and False for NaN."""
    return value == value


def kind(x: Any) -> str:
    """Return the dtype of a tensor, or the name of another argument's class, for an error message."""
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__


def shape(x: Any) -> str:
    """Return the shape of a tensor, or the name of another argument's class, for an error message."""
    return str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__


def no_integer_second(mapping: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Refuse an integer in the second place: torch has `dim` there, and this function a parameter of its own."""
    name = list(signature(mapping).parameters)[1]

    @wraps(mapping)
    def checked(*args: P.args, **options: P.kwargs) -> Tensor:
        second = args[1] if len(args) > 1 else 0.0
        if type(second) is not float and isinstance(second, Integral) and not isinstance(second, bool):
            call = f"{mapping.__name__}(x, {second})"
            raise TypeError(f"{call} could mean dim={second} or {name}={second}: give the argument by name")
        return mapping(*args, **options)

    return checked
