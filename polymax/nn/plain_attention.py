"""Sparse attention of plain calls on CUDA, which are checked once for each kind of call."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.dispatch import plain
from polymax.backend.function import functional
from polymax.kernels.sparse_attention.short_rows import near
from polymax.nn import fused_attention
from polymax.nn.attention_call import AttentionCall, Route
from polymax.nn.attention_mapping import NAMED, entmax_alpha

if TYPE_CHECKING:
    from polymax.kernels.sparse_attention.cuda_plain import Plain
    from polymax.kernels.sparse_attention.cuda_short_plain import ShortPlain

    Known = Plain | ShortPlain

# the most kinds of calls in the cache
MOST = 512

_KNOWN: dict[Hashable, "Known | None"] = {}


def known_call(query: Tensor, key: Tensor, value: Tensor, mapping: Any, more: tuple[Any, ...]) -> "Known | None":
    """The cached plan of this kind of call, without mask, sinks, boxes or dropout; None if the call is not plain.

    `more` are is_causal, scale, enable_gqa, window, softcap and causal_offset.
    """
    if functional() or not plain(query, key, value):
        return None
    # a call whose inputs autocast would convert is not plain
    if torch.is_autocast_enabled("cuda") and query.dtype != torch.get_autocast_dtype("cuda"):
        return None
    alpha = entmax_alpha(NAMED.get(mapping) if isinstance(mapping, str) else mapping)
    if type(alpha) is not float or type(more[3]) is list or not isinstance(more[1], (float, int, type(None))):
        return None
    # tests change CUDA_QUERIES
    kind = (alpha, more, *[_kind(t) for t in (query, key, value)], fused_attention.CUDA_QUERIES)
    if kind not in _KNOWN:
        if len(_KNOWN) >= MOST:
            _KNOWN.clear()
        _KNOWN[kind] = _found(query, key, value, mapping, alpha, more)
    return _KNOWN[kind]


def attend(query: Tensor, key: Tensor, value: Tensor, known: "Known") -> Tensor:
    """Attention of a plain call."""
    if torch.is_grad_enabled():
        return PlainAttention.apply(query, key, value, known)
    return known.forward(query, key, value)[0]


class PlainAttention(Function):
    """The context and its gradient; second derivatives go through the matrix of all scores."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, known: "Known") -> Tensor:
        out, notes = known.forward(query, key, value)
        ctx.save_for_backward(query, key, value, notes)
        ctx.known = known
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, notes = ctx.saved_tensors
        known = ctx.known
        if plain(grad) and not torch.is_grad_enabled():
            return (*known.backward(grad, query, key, value, notes), None)
        wanted = (*ctx.needs_input_grad[:3], False, False, False)
        q, k, v = known.four_dims(query, key, value)
        slopes = fused_attention.recorded(grad.reshape(*q.shape[:-1], -1), q, k, v, known.options, wanted)
        shapes = query.shape, key.shape, value.shape
        found = [s if s is None else s.reshape(shape) for s, shape in zip(slopes, shapes, strict=False)]
        return (*found, None)


def _found(
    query: Tensor, key: Tensor, value: Tensor, mapping: Any, alpha: float, more: tuple[Any, ...]
) -> "Known | None":
    names = "is_causal", "scale", "enable_gqa", "window", "softcap", "causal_offset"
    call = AttentionCall(query, key, value, mapping=mapping, **dict(zip(names, more, strict=True)))
    tensors = (query, key, value)
    # queries, keys and values must not be empty, and must reach kernels without a copy
    views = all(t.dim() <= 4 and near(t) and t.numel() > 0 for t in tensors)
    route = call.decide().route
    if route not in (Route.SPARSE, Route.SHORT) or not views:
        return None
    from polymax.kernels.sparse_attention.cuda_plain import Plain
    from polymax.kernels.sparse_attention.cuda_short_plain import ShortPlain

    q, k, v = (t[(None,) * (4 - t.dim())] for t in tensors)
    shape = torch.Size((*query.shape[:-1], value.shape[-1]))
    made = ShortPlain if route is Route.SHORT else Plain
    return made(q, k, v, shape, call.options(q, k)._replace(alpha=alpha))


def _kind(t: Tensor) -> Hashable:
    return t.dtype, t.shape, t.stride(), t.data_ptr() & 15 == 0, t.get_device()
