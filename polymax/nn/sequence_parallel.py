"""Attention of a sequence whose parts are on several processes."""

from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from polymax import _check
from polymax.backend.widen import wide
from polymax.mappings import softmax
from polymax.nn.attention import Mapping, scaled_dot_product_attention
from polymax.nn.fused_attention import entmax_alpha
from polymax.regularizers import Shannon
from polymax.sharding import rows
from polymax.sharding.collectives import joined, same_sum, shared, sizes_of


def sequence_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: Any = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    balanced: bool = False,
) -> Tensor:
    """Return this process's part of the attention over a sequence whose parts are on all processes of a group.

    Each process holds a contiguous part of the sequence, in the order of the ranks, and gets the output of its part.
    Keys and values are gathered in one collective, and their gradients are added up in one; queries stay where they
    are. The result is that of `scaled_dot_product_attention` of the whole sequence. Gradients of parameters, such as
    sinks or a learned alpha, are those of this process's queries: DDP or FSDP over the group adds them up.

    Args:
        query: (batch, heads, tokens of this process, dim); parts may differ in length, and may be empty
        key: (batch, heads, tokens of this process, dim), with as many tokens as query, or others for cross-attention
        value: (batch, heads, tokens of this process, dim)
        group: the process group; None is the default group
        is_causal: hide the keys after the query's place in the whole sequence
        scale, enable_gqa, mapping, window, softcap, sinks: as in `scaled_dot_product_attention`
        balanced: with is_causal, each part is a block from the head of the sequence and one from its tail, as
            `balanced_part` cuts them, so that all processes have about the same work

    Returns:
        (batch, heads, tokens of this process, dim)

    Example:
        >>> # in each process: x is the whole sequence, of which every process keeps a part
        >>> # out = pm.distributed.sequence_parallel_attention(q, k, v, is_causal=True, mapping=pm.entmax)
    """
    rank = dist.get_rank(group)
    options: dict[str, Any] = {
        "scale": scale, "enable_gqa": enable_gqa, "mapping": mapping, "softcap": softcap, "sinks": sinks,
    }  # fmt: skip
    queries, keys = _agreed_sizes(query, key, value, group, (is_causal, window, balanced, scale, enable_gqa, softcap))
    if is_causal and keys != queries:
        raise ValueError(f"is_causal takes as many keys as queries on each process; got {keys} keys, {queries} queries")
    key, value = _gathered(key, value, keys, group)
    if not balanced:
        offset = sum(queries[:rank])
        return scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, window=window, causal_offset=offset, **options
        )
    key, value = (_in_order(t, keys) for t in (key, value))
    heads = [_head(size) for size in queries]
    tails = [size - head for size, head in zip(queries, heads)]
    starts = sum(heads[:rank]), sum(heads) + sum(tails[rank + 1 :])
    blocks = query.split([heads[rank], tails[rank]], -2)
    return torch.cat(
        [
            scaled_dot_product_attention(
                block, key, value, is_causal=is_causal, window=window, causal_offset=start, **options
            )
            for block, start in zip(blocks, starts)
        ],
        -2,
    )


def balanced_part(x: Tensor, group: Any = None, dim: int = -2) -> Tensor:
    """Return this process's part of a sequence in the balanced order: a block of its head, and one of its tail.

    With P processes the sequence is cut into 2 P blocks; process r has block r and block 2 P - 1 - r.

    Args:
        x: the whole sequence, the same on all processes
        group: the process group; None is the default group
        dim: the dimension of the tokens

    Returns:
        the two blocks, one after the other along dim

    Example:
        >>> # in each process, of a sequence x that all have:
        >>> # mine = pm.distributed.balanced_part(x)
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    blocks = x.tensor_split(2 * size, dim)
    head, tail = blocks[rank], blocks[2 * size - 1 - rank]
    return torch.cat([head, tail], dim)


def sharded_keys_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: Any = None,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    mapping: Mapping = softmax,
) -> Tensor:
    """Return the attention of queries that all processes have over keys that are sharded over them.

    This is for decoding, where queries are few and the cache of keys and values is spread over several devices: keys
    and values stay where they are. Each process scores its own keys; for each row it communicates two numbers, then the
    few scores that may have weight, then its part of the output.

    Args:
        query: (batch, heads, queries, dim), the same on all processes
        key: (batch, heads, keys of this process, dim)
        value: (batch, heads, keys of this process, dim)
        group: the process group; None is the default group
        mask: bool (batch, heads, queries, keys of this process), or of a shape that broadcasts to it; True = keep
        scale: the factor of the scores; None is 1 / sqrt(dim)
        mapping: softmax, sparsemax, or entmax with 1 <= alpha <= 2

    Returns:
        (batch, heads, queries, dim), the same on all processes

    Example:
        >>> # in each process, with its own part of the cache:
        >>> # out = pm.distributed.sharded_keys_attention(query, keys, values, mapping=pm.entmax)
    """
    alpha = _alpha(mapping)
    if alpha is None or not 1 <= alpha <= 2:
        raise ValueError("mapping must be softmax, sparsemax, or entmax with a number alpha in [1, 2] for sharded keys")
    groups = (dist.group.WORLD if group is None else group,)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = wide(shared(query, groups)) @ wide(key).mT * factor
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = rows.weights(scores, alpha, groups)
    return same_sum(weights @ wide(value), groups).to(query.dtype)


def _alpha(mapping: Mapping) -> float | None:
    """The number alpha of a mapping that is softmax, sparsemax or entmax; None for other mappings."""
    if mapping is softmax or (isinstance(mapping, Shannon) and mapping.gamma == 1):
        return 1.0
    alpha = entmax_alpha(mapping)
    return None if isinstance(alpha, Tensor) else alpha


def _check_parts(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse tensors without a dimension of tokens, and unequal numbers of keys and values."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor) or t.dim() < 2:
            raise ValueError(f"{name} must be (*batch, tokens of this process, dim); got {_check.shape(t)}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key and value must have as many tokens; got {key.shape[-2]} and {value.shape[-2]}")


def _agreed_sizes(
    query: Tensor, key: Tensor, value: Tensor, group: Any, options: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of queries and keys of all processes; every process raises if one has other arguments, or wrong ones.

    A process that raised by itself would leave the others waiting in the next collective.
    """
    error: Exception | None = None
    numbers = (0, 0, 0, 0)
    try:
        _check_parts(query, key, value)
        kinds = [(*t.shape[:-2], t.shape[-1], str(t.dtype)) for t in (query, key, value)]
        # the same text has the same number on all processes
        kind = int.from_bytes(sha256(repr((kinds, options)).encode()).digest()[:7], "big")
        numbers = (1, kind, query.shape[-2], key.shape[-2])
    except ValueError as wrong:
        error = wrong
    device = query.device if isinstance(query, Tensor) else torch.device("cpu")
    valid, kinds_of_all, queries, keys = sizes_of(numbers, device, group)
    if error is not None:
        raise error
    if not all(valid):
        raise RuntimeError(f"process {valid.index(0)} of the group has wrong arguments: its own message says which")
    if len(set(kinds_of_all)) > 1:
        other = next(r for r, kind in enumerate(kinds_of_all) if kind != kinds_of_all[0])
        raise ValueError(
            "all processes must have the same heads, dims, dtypes and options, and parts that differ in tokens alone; "
            f"those of process {other} of the group are not those of process 0"
        )
    return queries, keys


def _gathered(key: Tensor, value: Tensor, sizes: tuple[int, ...], group: Any) -> tuple[Tensor, Tensor]:
    """Keys and values of all processes, in one collective if their shapes allow it."""
    dim = key.dim() - 2
    if key.shape[:-1] != value.shape[:-1] or key.dtype != value.dtype:
        return joined(key, sizes, dim, group), joined(value, sizes, value.dim() - 2, group)
    both = joined(torch.cat([key, value], -1), sizes, dim, group)
    found = both.split([key.shape[-1], value.shape[-1]], -1)
    return found[0].contiguous(), found[1].contiguous()


def _head(size: int) -> int:
    """The number of tokens of a balanced part that are from the head of the sequence."""
    return size - size // 2


def _in_order(t: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Balanced parts, gathered in the order of the ranks, in the order of the sequence."""
    parts = t.split(sizes, -2)
    halves = [p.split([_head(size), size - _head(size)], -2) for p, size in zip(parts, sizes)]
    return torch.cat([h for h, _ in halves] + [tail for _, tail in reversed(halves)], -2)
