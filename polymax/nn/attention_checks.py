"""Checks of the arguments of attention; errors name the argument, the expected value and the value given."""

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.sparse_decoding.options import PAGE


def default_scale(channels: int) -> float:
    """The factor of scores if `scale` is None: 1 / sqrt(channels)."""
    return 1 / math.sqrt(max(channels, 1))


def checked_scale(scale: Any) -> Any:
    """The scale as a number, a tensor, or None."""
    if scale is None or isinstance(scale, Tensor):
        return scale
    if isinstance(scale, bool) or not isinstance(scale, (int, float, Real)):
        raise TypeError(f"scale must be a number or None; got {type(scale).__name__}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite; got {scale}")
    return float(scale)


def checked_dropout(rate: float) -> float:
    """dropout_p, a probability."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float, Real)) or not 0 <= rate <= 1:
        raise ValueError(f"dropout_p must be a number from 0 to 1; got {rate!r}")
    return float(rate)


def checked_softcap(softcap: float | None) -> float:
    """The softcap as a number; 0 for None."""
    if softcap is None:
        return 0.0
    if isinstance(softcap, bool) or not isinstance(softcap, (int, float)) or not 0 < softcap < math.inf:
        raise ValueError(f"softcap must be a positive number or None; got {softcap!r}")
    return float(softcap)


def checked_sinks(sinks: Tensor, query: Tensor) -> Tensor:
    """Scores of sinks, one for each head of the query."""
    _check.floating(sinks, "sinks")
    heads = query.shape[-3] if query.dim() > 2 else 1
    if sinks.shape != (heads,):
        raise ValueError(f"sinks must be ({heads},), a score for each head; got {tuple(sinks.shape)}")
    return sinks


def check_keys(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    """Refuse queries and keys whose shapes or dtypes do not fit."""
    _check.floating(query, "query")
    _check.floating(key, "key")
    if key.is_nested:
        raise ValueError("query, key and value must all be nested tensors of the layout torch.jagged, or none of them")
    if query.dim() < 2:
        raise ValueError(f"query must be (*batch, L, E); got {tuple(query.shape)}")
    if key.dim() < 2 or key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key must be (*batch, S, {query.shape[-1]}), as query has it; got {tuple(key.shape)}")
    if (query.dtype == torch.float64) != (key.dtype == torch.float64):
        raise TypeError(f"key must have the dtype of query, {query.dtype}; got {key.dtype}")
    try:
        score_batch(query, key, enable_gqa)
    except RuntimeError:
        more = "" if enable_gqa else "; enable_gqa=True lets heads of query share a key"
        shapes = f"that of query {tuple(query.shape)}; got {tuple(key.shape)}"
        raise ValueError(f"key must have a batch that broadcasts with {shapes}{more}") from None


def check_values(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Refuse values unless there is one for each key, in a dtype that fits."""
    _check.floating(value, "value")
    if value.is_nested:
        raise ValueError("query, key and value must all be nested tensors of the layout torch.jagged, or none of them")
    if value.dim() < 2 or value.shape[-2] != key.shape[-2]:
        raise ValueError(f"value must be (*batch, {key.shape[-2]}, V), one for each key; got {tuple(value.shape)}")
    if (query.dtype == torch.float64) != (value.dtype == torch.float64):
        raise TypeError(f"value must have the dtype of query, {query.dtype}; got {value.dtype}")
    try:
        score_batch(query, value, enable_gqa)
    except RuntimeError:
        raise ValueError(
            f"value must have a batch that broadcasts with that of query {tuple(query.shape)}; got {tuple(value.shape)}"
        ) from None


def score_batch(query: Tensor, key: Tensor, enable_gqa: bool) -> torch.Size:
    """The batch dims of scores; with enable_gqa the heads are those of query, which `grouped` checks."""
    if enable_gqa:
        return torch.Size((*torch.broadcast_shapes(query.shape[:-3], key.shape[:-3]), *query.shape[-3:-2]))
    return torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])


def check_mask(attn_mask: Tensor, scores: torch.Size) -> None:
    if not isinstance(attn_mask, Tensor) or attn_mask.dtype not in (torch.bool, *_check.FLOATS):
        raise TypeError(
            f"attn_mask must be a bool tensor (True = keep) or a float tensor; got {_check.kind(attn_mask)}"
        )
    if not _check.broadcastable(attn_mask.shape, scores):
        raise ValueError(f"attn_mask must broadcast to the scores {tuple(scores)}; got {tuple(attn_mask.shape)}")


def check_boxes(boxes: Tensor, key: Tensor) -> None:
    shape = (*key.shape[:-2], -(-key.shape[-2] // PAGE), 2, key.shape[-1])
    if not isinstance(boxes, Tensor) or boxes.shape != shape or boxes.dtype != key.dtype:
        came = f"{boxes.dtype} {tuple(boxes.shape)}" if isinstance(boxes, Tensor) else type(boxes).__name__
        raise ValueError(f"key_boxes must be {key.dtype} {shape}, as pm.nn.key_boxes(key) is; got {came}")
