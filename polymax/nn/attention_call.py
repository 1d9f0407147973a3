"""A call of attention: its checked arguments, the choice of an algorithm, and its result."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.backend.function import autocasts, surely
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_attention.short_rows import takes_short_rows
from polymax.kernels.sparse_decoding.options import Cached
from polymax.mappings import softmax
from polymax.nn import fused_attention
from polymax.nn.attention_checks import (
    check_boxes,
    check_keys,
    check_mask,
    check_values,
    checked_dropout,
    checked_scale,
    checked_sinks,
    checked_softcap,
    default_scale,
    score_batch,
)
from polymax.nn.attention_mapping import apply_mapping, check_heads, checked_mapping, entmax_alpha, is_softmax
from polymax.nn.attention_obstacles import obstacle
from polymax.nn.attention_pattern import Pattern, pattern_of, visible_keys
from polymax.nn.attention_scores import masked, repeat_heads, scaled_products
from polymax.nn.attention_values import multiplies_wide, weighted_sum
from polymax.nn.length_scaling import LengthScaling
from polymax.nn.softmax_attention import softmax_attention


class Route(Enum):
    """An algorithm for attention; the value is the sentence that describes it."""

    TORCH = "fused: torch's scaled_dot_product_attention, for the mapping is softmax"
    FEW_QUERIES = "fused: the kernel for a few queries reads values only where weights are not zero"
    SPARSE = "fused: the kernel of sparse attention keeps only weights that are not zero"
    SHORT = "fused: the kernels of short rows compute the scores of a block of queries anew in each pass over them"
    SCORES = "all scores at once"


class Decision(NamedTuple):
    """The route of a call, and the reason if it computes all scores."""

    route: Route
    reason: str = ""

    def sentence(self) -> str:
        return f"{self.route.value}: {self.reason}" if self.reason else self.route.value


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of `scaled_dot_product_attention`, in its order, and properties that follow from them.

    After construction, names of mappings are functions, tensors have the dtype of autocast, a `LengthScaling` has
    become a factor of the queries, and `pattern` stands for is_causal, window and causal_offset.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    mapping: Any = softmax
    window: tuple[int, int] | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    causal_offset: int = 0
    key_boxes: Tensor | None = None
    pattern: Pattern = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.query, Tensor):
            raise TypeError(f"query must be a tensor; got {type(self.query).__name__}")
        self._put("pattern", pattern_of(self.is_causal, self.window, self.causal_offset))
        self._put("scale", checked_scale(self.scale))
        self._put("dropout_p", checked_dropout(self.dropout_p))
        self._put("mapping", checked_mapping(self.mapping))
        if self.query.is_nested:
            return
        for name in ("query", "key", "value"):
            self._put(name, _autocast(getattr(self, name), self.query.device))
        if self.key_boxes is not None:
            check_boxes(self.key_boxes, self.key)
        check_heads(self.mapping, self.heads(), f"query {tuple(self.query.shape)}")
        if isinstance(self.mapping, LengthScaling):
            self._scale_by_length(self.mapping)

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _scale_by_length(self, mapping: LengthScaling) -> None:
        self.check()
        sizes = self.query.shape[-2], self.key.shape[-2]
        counts = visible_keys(self.pattern, *sizes, self.attn_mask, self.query.device)
        self._put("query", mapping.scaled(self.query, counts))
        self._put("mapping", mapping.mapping)

    def heads(self) -> int:
        return self.query.shape[-3] if self.query.dim() > 2 else 1

    def check(self) -> None:
        """Refuse tensors that do not fit together, and numbers out of range."""
        query, key, shared = self.query, self.key, self.enable_gqa
        check_keys(query, key, shared)
        checked_softcap(self.softcap)
        if self.sinks is not None:
            checked_sinks(self.sinks, query)
        check_values(query, key, self.value, shared)
        if self.attn_mask is not None:
            scores = (*score_batch(query, key, shared), query.shape[-2], key.shape[-2])
            check_mask(self.attn_mask, torch.Size(scores))

    def decide(self) -> Decision:
        """Return the route of the call."""
        reason = obstacle(self)
        if reason is not None:
            return Decision(Route.SCORES, reason)
        if is_softmax(self.mapping):
            return Decision(Route.TORCH)
        if self._has_few_queries():
            return Decision(Route.FEW_QUERIES)
        return Decision(self.sparse_route(self.key.shape[-2]))

    def sparse_route(self, longest_k: int) -> Route:
        """Return the route of a call of sparse attention whose rows have at most so many keys."""
        channels = max(self.query.shape[-1], self.value.shape[-1])
        alpha, dtype = entmax_alpha(self.mapping), self.query.dtype
        short = self.query.is_cuda and takes_short_rows(alpha, longest_k, channels, dtype)
        return Route.SHORT if short else Route.SPARSE

    def attend(self) -> Tensor:
        """Return the context (*batch, L, V)."""
        route = self.decide().route
        return self.over_scores() if route is Route.SCORES else self.fused(route)

    def _has_few_queries(self) -> bool:
        return self.query.is_cuda and surely(self.query.shape[-2] < fused_attention.CUDA_QUERIES)

    def fused(self, route: Route) -> Tensor:
        """Return the context by a kernel."""
        q, k, v = (_four_dims(t) for t in (self.query, self.key, self.value))
        mask = None
        if self.attn_mask is not None:
            shape = (*self.query.shape[:-1], self.key.shape[-2])
            mask = _mask_four_dims(self.attn_mask, len(shape), self.query.shape[:-3])
        if route is Route.TORCH:
            out = softmax_attention(q, k, v, mask, self.pattern, self.scale)
        elif route is Route.FEW_QUERIES:
            out = fused_attention.decoded_heads(q, k, v, self.mapping, self.cached(k, mask))
        else:
            out = fused_attention.fused_heads(q, k, v, self.mapping, self.options(q, k, mask))
        return out.reshape(*self.query.shape[:-1], v.shape[-1])

    def options(self, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Options:
        """Return the options of the operator for q, k and v (B, H, L, D), with alpha not set."""
        return Options(
            alpha=0.0,
            alphas=None,
            mask=mask,
            sinks=None if self.sinks is None else checked_sinks(self.sinks, self.query),
            starts_q=None,
            starts_k=None,
            longest_q=q.shape[2],
            longest_k=k.shape[2],
            scale=default_scale(q.shape[-1]) if self.scale is None else self.scale,
            softcap=checked_softcap(self.softcap),
            left=self.pattern.left,
            right=self.pattern.right,
            offset=self.pattern.offset,
            dropout=self.dropout_p,
            seed=torch.randint(1 << 62, (1,), device=q.device) if self.dropout_p > 0 else None,
            short=self.sparse_route(k.shape[2]) is Route.SHORT,
        )

    def cached(self, k: Tensor, mask: Tensor | None = None) -> Cached:
        """Return the options of the operator for a few queries, with alpha not set."""
        boxes = self.key_boxes
        return Cached(
            boxes=None if boxes is None else boxes.reshape(*k.shape[:2], *boxes.shape[-3:]),
            table=None,
            lengths=None,
            alpha=0.0,
            alphas=None,
            mask=mask,
            sinks=None if self.sinks is None else checked_sinks(self.sinks, self.query),
            scale=default_scale(k.shape[-1]) if self.scale is None else self.scale,
            softcap=checked_softcap(self.softcap),
            left=self.pattern.left,
            right=self.pattern.right,
            offset=self.pattern.offset,
        )

    def over_scores(self) -> Tensor:
        """Return the context by the matrix of all scores."""
        weights = self.weights()
        check_values(self.query, self.key, self.value, self.enable_gqa)
        if self.dropout_p > 0:
            weights = torch.nn.functional.dropout(weights, self.dropout_p)
        value = repeat_heads(self.value, self.query, "value") if self.enable_gqa else self.value
        if multiplies_wide(weights, value):
            weights = weights.to(value.dtype)
        return weighted_sum(weights, value).to(value.dtype)

    def weights(self) -> Tensor:
        """Return the weights (*batch, L, S), at least in float32."""
        check_keys(self.query, self.key, self.enable_gqa)
        scores = self._scores()
        cap = checked_softcap(self.softcap)
        if cap > 0:
            scores = cap * torch.tanh(scores / cap)
        scores = masked(scores, self.attn_mask)
        if not self.pattern.sees_all():
            left, right, offset = self.pattern
            sees = allowed(scores.shape[-2], scores.shape[-1], None, None, left, right, offset, scores.device)
            scores = scores.masked_fill(~sees, -torch.inf)
        if self.sinks is None:
            return apply_mapping(self.mapping, scores)
        column = checked_sinks(self.sinks, self.query).to(scores.dtype)
        column = column[:, None, None] if scores.dim() > 2 else column[:, None]
        joint = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], -1)
        return apply_mapping(self.mapping, joint)[..., :-1]

    def _scores(self) -> Tensor:
        """Return the products of queries and keys times scale."""
        q, k = self.query, self.key
        if self.enable_gqa:
            k = repeat_heads(k, q, "key")
        factor = default_scale(q.shape[-1]) if self.scale is None else self.scale
        return scaled_products(q, k, factor)


def _autocast(t: Any, device: torch.device) -> Any:
    """The tensor in the dtype that autocast would pass to torch's own attention."""
    if not isinstance(t, Tensor) or not autocasts(device) or not t.is_floating_point() or t.dtype == torch.float64:
        return t
    return t.to(torch.get_autocast_dtype(device.type))


def _four_dims(t: Tensor) -> Tensor:
    t = t[None] if t.dim() == 2 else t
    return t[None] if t.dim() == 3 else t.flatten(0, -4)


def _mask_four_dims(mask: Tensor, dims: int, batch: torch.Size) -> Tensor:
    """A mask that broadcasts to (*batch, heads, L, S), with the batch dims flattened."""
    mask = mask.reshape((1,) * (max(dims, 4) - mask.dim()) + tuple(mask.shape))
    if mask.dim() == 4:
        return mask
    if all(size == 1 for size in mask.shape[:-3]):
        return mask.flatten(0, -4)
    return mask.expand(*batch, *mask.shape[-3:]).flatten(0, -4)
