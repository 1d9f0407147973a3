"""Scaled dot-product attention with any mapping in the place of softmax."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from torch import Tensor

from polymax.backend.dispatch import PLAIN
from polymax.backend.function import without_autocast
from polymax.mappings import softmax
from polymax.nn import plain_attention
from polymax.nn.attention_call import AttentionCall, Route
from polymax.nn.attention_mapping import Mapping, checked_mapping
from polymax.nn.attention_sharded import attend_parts
from polymax.sharding.placements import is_sharded

P = ParamSpec("P")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
    key_boxes: Tensor | None = None,
) -> Tensor:
    """torch's scaled_dot_product_attention, with any mapping in the place of softmax.

        mapping(softcap tanh(scale query key^T / softcap) + attn_mask) value

    A bool mask is True where attention is allowed; a float mask is added. A query that may attend to nothing gets
    zeros. A mapping is a function as in `polymax.mappings` or its name ("entmax"), a regularizer, or a smoothing such
    as SparseMap(Subset(3)). Query i stands at key i + causal_offset: is_causal hides the keys after it, and
    window=(left, right) those more than `left` before or `right` after, -1 being no limit. A sink is a score that takes
    weight in each row of its head and has no value. `key_boxes`, from `pm.nn.key_boxes` or a `KeyValueCache`, let a few
    queries skip keys; they do not change the result. `attention_path` with the same arguments says how the result is
    computed.

    Shapes:
        query (*batch, L, E); key (*batch, S, E); value (*batch, S, V); attn_mask broadcasts to (*batch, L, S); sinks
        (heads,) if batch ends in heads; with enable_gqa, the heads of key and value divide those of query

    Example:
        >>> query, key, value = torch.tensor([[1.0]]), torch.tensor([[4.0], [3.5], [0.0]]), torch.eye(3)
        >>> scaled_dot_product_attention(query, key, value, mapping="sparsemax")
        tensor([[0.7500, 0.2500, 0.0000]])
    """
    plain = attn_mask is None and sinks is None and key_boxes is None and dropout_p == 0
    if plain and isinstance(query, Tensor) and query.is_cuda and not query.is_nested:
        more = is_causal, scale, enable_gqa, window, softcap, causal_offset
        if (known := plain_attention.known_call(query, key, value, mapping, more)) is not None:
            return plain_attention.attend(query, key, value, known)
    if _any_sharded(query, key, value, attn_mask, sinks):
        _refuse_boxes(key_boxes)
        told: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "window": window}
        told |= {"enable_gqa": enable_gqa, "softcap": softcap, "causal_offset": causal_offset}
        return _by_process(scaled_dot_product_attention, query, key, value, attn_mask, sinks, mapping, told)
    call = AttentionCall(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa,
        mapping, window, softcap, sinks, causal_offset, key_boxes,
    )  # fmt: skip
    if query.is_nested:
        # imported here: packed attention calls this function for each sequence
        from polymax.nn.packed_attention import nested_attention

        return nested_attention(call)
    return call.attend()


def _takes_the_arguments_of(function: Callable[P, Any]) -> Callable[[Callable[..., str]], Callable[P, str]]:
    """Return a decorator that gives a function the signature of `function`."""

    def decorate(decorated: Callable[..., str]) -> Callable[P, str]:
        signature = inspect.signature(function)
        decorated.__signature__ = signature.replace(return_annotation=str)  # type: ignore[attr-defined]
        return decorated

    return decorate


@_takes_the_arguments_of(scaled_dot_product_attention)
def attention_path(*args: Any, **options: Any) -> str:
    """Return how `scaled_dot_product_attention` computes a call with these arguments, and why, in a sentence.

    Example:
        >>> q = torch.randn(2, 1200, 16)
        >>> attention_path(q, q, q, mapping=pm.entmax)
        'fused: the kernel of sparse attention keeps only weights that are not zero'
        >>> attention_path(q, q, q, mapping=pm.fusedmax)
        'all scores at once: the mapping is none of softmax, sparsemax and entmax'
    """
    given = inspect.signature(scaled_dot_product_attention).bind(*args, **options)
    call = AttentionCall(**given.arguments)
    if call.query.is_nested:
        from polymax.nn.packed_attention import nested_path

        return nested_path(call)
    decision = call.decide()
    if decision.route is Route.SCORES:
        call.check()
    return decision.sentence()


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
) -> Tensor:
    """Return the weights (*batch, L, S) by which `scaled_dot_product_attention` sums values.

    Example:
        >>> attention_weights(torch.tensor([[1.0]]), torch.tensor([[4.0], [3.5], [0.0]]), mapping=pm.sparsemax)
        tensor([[0.7500, 0.2500, 0.0000]])
    """
    given: dict[str, Any] = {"is_causal": is_causal, "window": window, "causal_offset": causal_offset}
    given |= {"scale": scale, "enable_gqa": enable_gqa, "mapping": mapping, "softcap": softcap, "sinks": sinks}
    if not isinstance(query, Tensor):
        raise TypeError(f"query must be a tensor; got {type(query).__name__}")
    if _any_sharded(query, key, None, attn_mask, sinks):
        told = {name: option for name, option in given.items() if name not in ("mapping", "sinks")}
        return _by_process(_weights_of_process, query, key, key, attn_mask, sinks, mapping, told)
    # weights keep the precision of the scores
    with without_autocast(query.device):
        return AttentionCall(query, key, key, attn_mask, **given).weights().to(query.dtype)


def _any_sharded(*tensors: Any) -> bool:
    """Return True if a tensor of a call is a DTensor."""
    return any(t is not None and type(t) not in PLAIN and is_sharded(t) for t in tensors)


def _refuse_boxes(key_boxes: Tensor | None) -> None:
    if key_boxes is not None:
        raise TypeError("key_boxes must be None with DTensors: call attention on the parts of this process")


def _by_process(
    function: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    sinks: Tensor | None,
    mapping: Mapping,
    told: dict[str, Any],
) -> Tensor:
    """The DTensor of a function of attention on the part of each process."""

    def local(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, own: Tensor | None, mapped: Any) -> Tensor:
        return function(q, k, v, mask, sinks=own, mapping=mapped, **told)

    shares_keys = bool(told["enable_gqa"])
    return attend_parts(local, query, key, value, attn_mask, sinks, checked_mapping(mapping), shares_keys)


def _weights_of_process(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
    return attention_weights(query, key, *args, **options)
