"""Structures and solvers as lists of numbers and tensors, which operators of torch take and torch.compile traces.

An object is a dataclass, or has no state at all; its fields are numbers, strings, tensors, None, other such objects,
and tuples and lists of these. A list of integers, the code, holds types, sizes, integers and strings in order; floats
and tensors are in two lists of their own.
"""

import sys
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

_NONE, _BOOL, _INT, _FLOAT, _STR, _TENSOR, _TUPLE, _LIST, _OBJECT = range(9)


class Packed(NamedTuple):
    """The code, floats and tensors of an object."""

    code: list[int]
    reals: list[float]
    tensors: list[Tensor]


def pack(thing: Any) -> Packed:
    """Take an object apart into numbers and tensors."""
    parts = Packed([], [], [])
    _pack(thing, parts)
    return parts


def unpack(code: list[int], reals: list[float], tensors: list[Tensor]) -> Any:
    """Rebuild an object from its parts; without tensors, the object is cached and returned again at the next call."""
    if not tensors:
        return _known(tuple(code), tuple(reals))
    return _unpack(iter(code), iter(reals), iter(tensors))


@lru_cache(maxsize=64)
def _known(code: tuple[int, ...], reals: tuple[float, ...]) -> Any:
    return _unpack(iter(code), iter(reals), iter(()))


def _pack(thing: Any, parts: Packed) -> None:
    code = parts.code
    if thing is None:
        code.append(_NONE)
    elif isinstance(thing, bool):
        code.extend([_BOOL, int(thing)])
    elif isinstance(thing, int):
        code.extend([_INT, thing])
    elif isinstance(thing, float):
        code.append(_FLOAT)
        parts.reals.append(thing)
    elif isinstance(thing, str):
        code.extend([_STR, len(thing), *[ord(c) for c in thing]])
    elif isinstance(thing, Tensor):
        code.append(_TENSOR)
        parts.tensors.append(thing)
    elif isinstance(thing, tuple | list):
        code.extend([_TUPLE if isinstance(thing, tuple) else _LIST, len(thing)])
        for x in thing:
            _pack(x, parts)
    else:
        names = _names(thing)
        code.append(_OBJECT)
        for name in (type(thing).__module__, type(thing).__qualname__):
            _pack(name, parts)
        code.append(len(names))
        for name in names:
            _pack(getattr(thing, name), parts)


def _names(thing: Any) -> list[str]:
    """The fields from which an object can be built again; a TypeError if it is not a dataclass and has attributes."""
    if "<locals>" in type(thing).__qualname__:
        raise TypeError(f"{type(thing).__qualname__} must be defined at the top of a module to be compiled")
    if is_dataclass(thing):
        return [f.name for f in fields(thing) if f.init]
    if thing.__dict__:
        raise TypeError(f"{type(thing).__name__} must be a dataclass, or without attributes, to be compiled")
    return []


def _unpack(code: Any, reals: Any, tensors: Any) -> Any:
    """Rebuild the object whose type is the next entry of the code; the parts are iterators, read in order."""
    kind = next(code)
    if kind == _NONE:
        return None
    if kind == _BOOL:
        return bool(next(code))
    if kind == _INT:
        return next(code)
    if kind == _FLOAT:
        return next(reals)
    if kind == _STR:
        return "".join(chr(next(code)) for _ in range(next(code)))
    if kind == _TENSOR:
        return next(tensors)
    if kind in (_TUPLE, _LIST):
        found = [_unpack(code, reals, tensors) for _ in range(next(code))]
        return found if kind == _LIST else tuple(found)
    module, name = _unpack(code, reals, tensors), _unpack(code, reals, tensors)
    cls: Any = sys.modules.get(module) or import_module(module)
    for part in name.split("."):
        cls = getattr(cls, part)
    return cls(*(_unpack(code, reals, tensors) for _ in range(next(code))))
