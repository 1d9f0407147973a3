"""Mappings of attention, cut to the heads that a process has."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from polymax.regularizers import Regularizer

# a parameter, and its dim that belongs to heads, None if all heads share it, to the part of this process
Cut = Callable[[Tensor, int | None], Tensor]


def cut_to_heads(mapping: Any, heads: int, cut: Cut) -> Any:
    """Return a mapping with parameters for `heads` heads so that each parameter is `cut(parameter, dim of heads)`.

    Modules are copied with other parameters, so that gradients reach the module itself. Tensors of a regularizer or a
    `partial` have their heads in dim -3, as scores have.
    """
    if isinstance(mapping, nn.Module):
        return _cut_module(mapping, heads, cut)
    if isinstance(mapping, Regularizer):
        return mapping._map_tensors(lambda t: cut(t, _dim_of_heads(t, heads)))
    if isinstance(mapping, partial):
        changed = {
            name: cut(value, _dim_of_heads(value, heads)) if isinstance(value, Tensor) else value
            for name, value in mapping.keywords.items()
        }
        return partial(mapping.func, *mapping.args, **changed)
    return mapping


def part_of_heads(mapping: Any, heads: int, first: int, count: int, each: Callable[[Tensor], Tensor]) -> Any:
    """Return a mapping with the parameters of `count` heads from `first` on; `each` is applied before the cut."""

    def cut(t: Tensor, dim: int | None) -> Tensor:
        return each(t) if dim is None else each(t).narrow(dim, first, count)

    return cut_to_heads(mapping, heads, cut)


def _cut_module(module: nn.Module, heads: int, cut: Cut) -> nn.Module:
    own = getattr(module, "num_heads", None) == heads
    found = copy.copy(module)
    # a copy of a module shares these dictionaries with it
    found.__dict__["_parameters"] = {
        name: None if p is None else cut(p, 0 if own and p.dim() and len(p) == heads else None)
        for name, p in module._parameters.items()
    }
    found.__dict__["_modules"] = {
        name: None if inner is None else cut_to_heads(inner, heads, cut) for name, inner in module._modules.items()
    }
    for name, inner in module.__dict__.items():
        if isinstance(inner, Regularizer | partial):
            found.__dict__[name] = cut_to_heads(inner, heads, cut)
    return found


def _dim_of_heads(t: Tensor, heads: int) -> int | None:
    return -3 if t.dim() >= 3 and t.shape[-3] == heads else None
