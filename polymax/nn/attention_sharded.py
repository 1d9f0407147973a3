"""Attention of DTensors: each process computes its part of the batch and its heads; nothing is communicated."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from polymax.nn.attention_heads import cut_to_heads
from polymax.sharding.placements import Argument, Placed, Sharded, check_alike, is_sharded, placed


def attend_parts(
    function: Callable[..., Any],
    query: Sharded,
    key: Sharded,
    value: Sharded,
    attn_mask: Sharded,
    sinks: Sharded,
    mapping: Any,
    shares_keys: bool = False,
) -> Any:
    """Return the DTensors of function(query, key, value, attn_mask, sinks, mapping) on the part of each process.

    `function` returns one tensor (*batch, ...) or a tuple of such tensors. With `shares_keys`, key and value have fewer
    heads than query: heads of both must be divided alike.
    """
    queries = [Argument("query", query, 2)]
    if attn_mask is not None:
        queries.append(Argument("attn_mask", attn_mask, min(2, attn_mask.dim())))
    if sinks is not None:
        queries.append(Argument("sinks", sinks, 0))
    keys = [Argument("key", key, 2), Argument("value", value, 2)]
    check_alike(queries + keys)
    if sinks is not None:
        queries[-1] = Argument("sinks", sinks[:, None, None], 2)
    if shares_keys:
        place, other = placed(queries), placed(keys)
        axes = tuple(other.axes[m] if axis is None else axis for m, axis in enumerate(place.axes))
        place = Placed(place.mesh, axes, place.batch)
        _check_shared_keys(place, query, key)
    else:
        place = placed(queries + keys)
    local = {a.name: place.local(a) for a in queries + keys}
    own = local.get("sinks")
    heads = query.shape[-3] if query.dim() > 2 else 1
    found = function(
        local["query"],
        local["key"],
        local["value"],
        local.get("attn_mask"),
        None if own is None else own[:, 0, 0],
        _mapping_of_process(mapping, heads, place),
    )
    return place.whole(found) if isinstance(found, Tensor) else tuple(place.whole(t) for t in found)


def _mapping_of_process(mapping: Any, heads: int, place: Placed) -> Any:
    """The mapping with the parameters of this process's heads, which must be DTensors."""

    def cut(t: Tensor, dim: int | None) -> Tensor:
        if not is_sharded(t):
            raise TypeError(
                "the parameters of mapping must be DTensors, as query is; got a plain tensor "
                f"{tuple(t.shape)}: distribute_module makes DTensors of them"
            )
        return place.local(Argument("mapping", t, t.dim() if dim is None else t.dim() - 1 - dim % t.dim()))

    return cut_to_heads(mapping, heads, cut)


def _check_shared_keys(place: Placed, query: Tensor, key: Tensor) -> None:
    """Refuse heads that do not divide, so that a process would lack the keys of its queries."""
    if query.dim() < 3 or key.dim() < 3:
        return
    for m, axis in enumerate(place.axes):
        ways, own = place.mesh.size(m), key.shape[-3]
        if axis == -1 and own != 1 and (own % ways or query.shape[-3] % ways):
            raise ValueError(
                f"heads must be divisible by the {ways} processes of mesh dim {m} that share them; got "
                f"{query.shape[-3]} heads of query and {own} of key"
            )
