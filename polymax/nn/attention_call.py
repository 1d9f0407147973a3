"""A call of attention: its checked arguments, the choice of an algorithm, and its result."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.function import autocasts, functional, surely
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_attention.shared_memory import fits
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
        reason = self._obstacle()
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

    def _obstacle(self) -> str | None:
        """Return why the call cannot be fused; None if it can."""
        q, k, v = self.query, self.key, self.value
        if functional():
            return "torch.func transforms the call"
        if not all(isinstance(t, Tensor) and t.dtype in _check.FLOATS for t in (q, k, v)):
            return "query, key and value are not all floating-point tensors"
        if is_softmax(self.mapping):
            return self._softmax_obstacle()
        alpha = entmax_alpha(self.mapping)
        if alpha is None:
            return "the mapping is none of softmax, sparsemax and entmax"
        if not isinstance(alpha, Tensor):
            if not 1 < alpha <= 2:
                return f"alpha is {alpha}, not in (1, 2]"
        elif _check.readable(alpha) and not bool(((alpha >= 1) & (alpha <= 2)).all()):
            return "alpha is not in [1, 2] for all heads"
        return self._shape_obstacle(alpha) or self._device_obstacle()

    def _softmax_obstacle(self) -> str | None:
        if self.softcap is not None or self.sinks is not None:
            return "the mapping is softmax with a softcap or sinks, which torch's kernels do not take"
        if self.dropout_p != 0:
            return "the mapping is softmax with dropout, of which torch's kernels have no second derivative"
        if 0 in (*self.query.shape, *self.key.shape, *self.value.shape):
            return "query, key or value is empty"
        if isinstance(self.attn_mask, Tensor) and self.attn_mask.dtype not in (torch.bool, self.query.dtype):
            return "the mapping is softmax with an added mask of another dtype, which torch's kernels would round"
        return self._shape_obstacle(None)

    def _same_kind(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return len({t.dtype for t in tensors}) == 1 and len({t.device for t in tensors}) == 1

    def _shape_obstacle(self, alpha: float | Tensor | None) -> str | None:
        q, k, v = self.query, self.key, self.value
        if not self._same_kind():
            return "query, key and value differ in dtype or device"
        if k.is_nested or v.is_nested:
            return "key and value are nested tensors, and query is not"
        if min(q.dim(), k.dim(), v.dim()) < 2 or not q.dim() == k.dim() == v.dim():
            return "query, key and value differ in their number of dims"
        if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
            return "query, key and value broadcast"
        heads, key_heads = (t.shape[-3] if t.dim() > 2 else 1 for t in (q, k))
        if heads != key_heads and (not self.enable_gqa or key_heads == 0 or heads % key_heads):
            return "the heads of key do not divide those of query"
        if isinstance(alpha, Tensor) and alpha.shape not in ((heads, 1, 1), (1,), (), (1, 1, 1)):
            return f"alpha has the shape {tuple(alpha.shape)}, not a number for each head"
        if self.scale is not None:
            if isinstance(self.scale, Tensor):
                return "scale is a tensor"
            if not self.scale > 0:
                return "scale is not positive"
        mask = self.attn_mask
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, *_check.FLOATS):
                return "attn_mask is neither bool nor floating-point"
            shape = (*q.shape[:-1], k.shape[-2])
            pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
            if mask.dim() > len(shape) or any(m not in (1, n) for m, n in pairs):
                return "attn_mask does not broadcast to the scores"
        return None

    def _device_obstacle(self) -> str | None:
        q, k, v = self.query, self.key, self.value
        if not 0 <= self.dropout_p < 1:
            return "dropout_p is not in [0, 1)"
        if q.device.type == "cpu":
            if surely(k.shape[-2] < fused_attention.CPU_KEYS):
                return f"there are fewer than {fused_attention.CPU_KEYS} keys, and the matrix of scores is small"
            return None
        if q.device.type != "cuda":
            return f"there is no kernel for {q.device.type}"
        if q.dtype == torch.float64:
            return "float64 has no kernel on CUDA"
        if _few_digits(entmax_alpha(self.mapping)):
            return f"alpha is below {fused_attention.LEAST_ALPHA}, where powers in float32 have few digits left"
        channels = max(q.shape[-1], v.shape[-1])
        if channels > 256:
            return "heads have more than 256 channels"
        least = fused_attention.CUDA_QUERIES
        if surely(q.shape[-2] < least):
            if self._decodes():
                return None
            return f"there are fewer than {least} queries, which have no gradient, dropout, or more than 64 rows"
        if not fits(q.dtype, channels, q.device):
            return f"{q.dtype} heads of {channels} channels need more shared memory than the GPU has"
        return None

    def _has_few_queries(self) -> bool:
        return self.query.is_cuda and surely(self.query.shape[-2] < fused_attention.CUDA_QUERIES)

    def _decodes(self) -> bool:
        """True if the kernel for a few queries over a cache takes the call: no gradient and no dropout."""
        q, k = self.query, self.key
        heads, key_heads = (t.shape[-3] if t.dim() > 2 else 1 for t in (q, k))
        if q.is_cuda and heads // max(key_heads, 1) * q.shape[-2] > fused_attention.DECODED_ROWS:
            return False
        alpha = entmax_alpha(self.mapping)
        inputs = [q, k, self.value, self.attn_mask, self.sinks, alpha if isinstance(alpha, Tensor) else None]
        recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
        return not recorded and self.dropout_p == 0

    def obstacle_over_pages(self) -> str | None:
        """Return why the kernel for a few queries does not take a call whose keys are pages; None if it does."""
        alpha = entmax_alpha(self.mapping)
        if functional() or (self.query.dtype == torch.float64 and self.query.is_cuda):
            return "torch.func transforms the call, or it is one of float64"
        if self.query.is_cuda and _few_digits(alpha):
            return f"alpha is below {fused_attention.LEAST_ALPHA}, where powers in float32 have few digits left"
        if alpha is None or (not isinstance(alpha, Tensor) and not 1 < alpha <= 2):
            return "the mapping is neither sparsemax nor entmax with alpha in (1, 2]"
        if isinstance(self.scale, Tensor) or (self.scale is not None and not self.scale > 0):
            return "scale is a tensor, or not positive"
        if not self._same_kind() or max(self.query.shape[-1], self.value.shape[-1]) > 256:
            return "query, key and value differ in dtype or device, or have more than 256 channels"
        return None if self._decodes() else "a gradient is asked for, or there are more than 64 rows"

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


def _few_digits(alpha: float | Tensor | None) -> bool:
    """True if alpha is a number so close to 1 that the CUDA kernels, which compute in float32, are not exact."""
    return isinstance(alpha, float) and 1 < alpha < fused_attention.LEAST_ALPHA
