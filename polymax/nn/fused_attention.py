"""Attention without a matrix of all scores: when it applies, and its derivatives."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import apply_function, autocasts, functional
from polymax.backend.widen import wide
from polymax.kernels.sparse_attention import reference, sparse_attention, sparse_attention_backward
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_attention.shared_memory import fits
from polymax.kernels.sparse_decoding import sparse_decoding
from polymax.kernels.sparse_decoding.options import Cached
from polymax.mappings import entmax, softmax, sparsemax
from polymax.nn.adaptive import AdaptiveEntmax
from polymax.nn.attention_checks import checked_sinks, checked_softcap, default_scale
from polymax.nn.attention_pattern import Pattern
from polymax.nn.softmax_attention import softmax_attention
from polymax.regularizers import Gini, Shannon, Tsallis

# below these the matrix of all scores is small, and faster
CPU_KEYS = 1024
CUDA_QUERIES = 16
# queries times the heads that share a key: the most that the kernel for a few queries takes
DECODED_ROWS = 64
# powers of 1 / (alpha - 1) have few digits left below; the CPU takes them from the largest score on, and has more
LEAST_ALPHA = 1.001
LEAST_ON_CPU = 1 + 1e-8


@dataclass(frozen=True)
class Attention:
    """A call of attention: whether it can be fused, and its result if it can."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout_p: float
    scale: float | None
    enable_gqa: bool
    mapping: Any
    pattern: Pattern
    softcap: float | None = None
    sinks: Tensor | None = None
    key_boxes: Tensor | None = None

    def is_softmax(self) -> bool:
        return self.mapping is softmax or (isinstance(self.mapping, Shannon) and _is_one(self.mapping.gamma))

    def obstacle(self) -> str | None:
        """Why the call cannot be fused; None if it can."""
        q, k, v = self.query, self.key, self.value
        if functional():
            return "torch.func transforms the call"
        if not all(isinstance(t, Tensor) and t.dtype in _check.FLOATS for t in (q, k, v)):
            return "query, key and value are not all floating-point tensors"
        if self.is_softmax():
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
            if k.shape[-2] < CPU_KEYS:
                return f"there are fewer than {CPU_KEYS} keys, and the matrix of scores is small"
            return None
        if q.device.type != "cuda":
            return f"there is no kernel for {q.device.type}"
        if q.dtype == torch.float64:
            return "float64 has no kernel on CUDA"
        if _few_digits(entmax_alpha(self.mapping)):
            return f"alpha is below {LEAST_ALPHA}, where powers in float32 have few digits left"
        channels = max(q.shape[-1], v.shape[-1])
        if channels > 256:
            return "heads have more than 256 channels"
        if q.shape[-2] < CUDA_QUERIES and self.decodes():
            return None
        if q.shape[-2] >= CUDA_QUERIES:
            if not fits(q.dtype, channels, q.device):
                return f"{q.dtype} heads of {channels} channels need more shared memory than the GPU has"
            return None
        return f"there are fewer than {CUDA_QUERIES} queries, which have no gradient, dropout, or more than 64 rows"

    def decodes(self) -> bool:
        """True if the kernel for a few queries over a cache takes the call: it has no gradient, and drops nothing."""
        q, k = self.query, self.key
        heads, key_heads = (t.shape[-3] if t.dim() > 2 else 1 for t in (q, k))
        if q.is_cuda and heads // max(key_heads, 1) * q.shape[-2] > DECODED_ROWS:
            return False
        alpha = entmax_alpha(self.mapping)
        inputs = [q, k, self.value, self.attn_mask, self.sinks, alpha if isinstance(alpha, Tensor) else None]
        recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
        return not recorded and self.dropout_p == 0

    def obstacle_over_pages(self) -> str | None:
        """Why the kernel for a few queries does not take a call whose keys are pages; None if it does."""
        alpha = entmax_alpha(self.mapping)
        if functional() or (self.query.dtype == torch.float64 and self.query.is_cuda):
            return "torch.func transforms the call, or it is one of float64"
        if self.query.is_cuda and _few_digits(alpha):
            return f"alpha is below {LEAST_ALPHA}, where powers in float32 have few digits left"
        if alpha is None or (not isinstance(alpha, Tensor) and not 1 < alpha <= 2):
            return "the mapping is neither sparsemax nor entmax with alpha in (1, 2]"
        if isinstance(self.scale, Tensor) or (self.scale is not None and not self.scale > 0):
            return "scale is a tensor, or not positive"
        if not self._same_kind() or max(self.query.shape[-1], self.value.shape[-1]) > 256:
            return "query, key and value differ in dtype or device, or have more than 256 channels"
        return None if self.decodes() else "a gradient is asked for, or there are more than 64 rows"

    def fused(self) -> Tensor:
        q, k, v = (_four_dims(t) for t in (self.query, self.key, self.value))
        mask = None
        if self.attn_mask is not None:
            shape = (*self.query.shape[:-1], self.key.shape[-2])
            mask = _mask_four_dims(self.attn_mask, len(shape), self.query.shape[:-3])
        if self.is_softmax():
            out = softmax_attention(q, k, v, mask, self.pattern, self.scale)
        elif q.is_cuda and q.shape[2] < CUDA_QUERIES:
            out = decoded_heads(q, k, v, self.mapping, self.cached(k, mask))
        else:
            out = fused_heads(q, k, v, self.mapping, self.options(q, k, mask))
        return out.reshape(*self.query.shape[:-1], v.shape[-1])

    def options(self, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Options:
        """What the operator takes beside q, k and v of (B, H, L, D); alpha is still that of the mapping."""
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
        )

    def cached(self, k: Tensor, mask: Tensor | None = None) -> Cached:
        """What the operator for a few queries takes beside q, k and v; alpha is still that of the mapping."""
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


def decoded_heads(q: Tensor, k: Tensor, v: Tensor, mapping: Any, cached: Cached) -> Tensor:
    """Sparse attention of a few queries (B, H, L, D) over a cache, without a gradient."""
    alpha, alphas = _alphas(mapping, q.shape[1])
    return sparse_decoding(q, k, v, *cached._replace(alpha=alpha, alphas=alphas))[0]


def fused_heads(q: Tensor, k: Tensor, v: Tensor, mapping: Any, options: Options) -> Tensor:
    """Sparse attention of (B, H, L, D) by a mapping that is sparsemax or entmax."""
    alpha, alphas = _alphas(mapping, q.shape[1])
    options = options._replace(alpha=alpha, alphas=alphas)
    tensors = (options.alphas, options.mask, options.sinks, options.starts_q, options.starts_k, options.seed)
    without = options._replace(alphas=None, mask=None, sinks=None, starts_q=None, starts_k=None, seed=None)
    if torch.compiler.is_compiling():
        # the compiler refuses a function that is given one tensor twice, as attention of a sequence to itself may be
        q, k, v = (t.view_as(t) for t in (q, k, v))
    return apply_function(SparseAttention, q, k, v, *tensors, without)[0]


def _alphas(mapping: Any, heads: int) -> tuple[float, Tensor | None]:
    """alpha of a mapping as the operators take it: a number, or 0 and a number for each head."""
    alpha = entmax_alpha(mapping)
    assert alpha is not None, "the mapping is sparsemax or entmax"
    if isinstance(alpha, Tensor):
        return 0.0, _in_range(alpha).reshape(-1).expand(heads).contiguous()
    return alpha, None


def _in_range(alpha: Tensor) -> Tensor:
    """alpha, or the least that kernels take: the gradient passes, so that what is learned comes back.

    Above 2, where values could not be read, it is NaN: kernels would give weights that are none.
    """
    if alpha.device.type == "cpu":
        # in float32 the least one is 1
        alpha, least = alpha.double(), LEAST_ON_CPU
    else:
        least = LEAST_ALPHA
    known = alpha.detach()
    taken = known.clamp(min=least)
    return alpha + (torch.where(known > 2, torch.nan, taken) - known)


class SparseAttention(Function):
    """The operator and its gradient; second derivatives go through the matrix of all scores."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alphas: Tensor | None,
        mask: Tensor | None,
        sinks: Tensor | None,
        starts_q: Tensor | None,
        starts_k: Tensor | None,
        seed: Tensor | None,
        without: Options,
    ) -> tuple[Tensor, ...]:
        return sparse_attention(q, k, v, *_with(without, alphas, mask, sinks, starts_q, starts_k, seed))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.without = inputs
        ctx.mark_non_differentiable(*output[1:])
        # zeros for the outputs that no gradient comes to would take as much memory as all else
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[1], output[2], *output[4:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        q, k, v, alphas, mask, sinks, starts_q, starts_k, seed, *notes = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        options = _with(ctx.without, alphas, mask, sinks, starts_q, starts_k, seed)
        if torch.is_grad_enabled():
            return (*recorded(grad, q, k, v, options, wanted), *[None] * (len(wanted) - 6))
        bias = mask is not None and wanted[4]
        dq, dk, dv, dalpha, dsink, dmask = sparse_attention_backward(grad, q, k, v, *notes, bias, *options)
        return (
            dq,
            dk,
            dv,
            dalpha.sum((0, 2)).to(alphas.dtype) if alphas is not None else None,
            dmask.to(mask.dtype) if bias and mask is not None else None,
            dsink.sum((0, 2)).to(sinks.dtype) if sinks is not None else None,
            *[None] * (len(wanted) - 6),
        )


def _with(without: Options, *tensors: Tensor | None) -> Options:
    """Options with their tensors, which autograd must see one by one."""
    alphas, mask, sinks, starts_q, starts_k, seed = tensors
    return without._replace(alphas=alphas, mask=mask, sinks=sinks, starts_q=starts_q, starts_k=starts_k, seed=seed)


def recorded(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, options: Options, wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """The gradients in differentiable torch."""
    inputs = q, k, v, options.alphas, options.mask, options.sinks
    x, _ = reference.scores(q, k, options)
    if options.sinks is not None:
        x = torch.cat([x, options.sinks.to(x.dtype)[:, None, None].expand(*x.shape[:-1], 1)], -1)
    weights = entmax(x, options.alpha if options.alphas is None else options.alphas[:, None, None])[..., : k.shape[2]]
    weights = weights * reference.dropout_factors(weights, options)
    out = (weights @ reference.repeat_heads(wide(v), q)).to(v.dtype)
    chosen = [t for t, wants in zip(inputs, wanted, strict=False) if wants and t is not None]
    slopes = iter(torch.autograd.grad(out, chosen, grad, create_graph=True))
    return [next(slopes) if wants and t is not None else None for t, wants in zip(inputs, wanted, strict=False)]


def entmax_alpha(mapping: Any) -> float | Tensor | None:
    """alpha of a mapping that is sparsemax or entmax, None of any other."""
    if isinstance(mapping, partial) and mapping.func in (entmax, sparsemax) and not mapping.args:
        if not mapping.keywords.keys() <= {"alpha"}:
            return None
        alpha = mapping.keywords.get("alpha", 1.5) if mapping.func is entmax else 2.0
    elif mapping is sparsemax or (isinstance(mapping, Gini) and _is_one(mapping.gamma)):
        return 2.0
    elif mapping is entmax:
        return 1.5
    elif isinstance(mapping, Tsallis) and _is_one(mapping.gamma):
        alpha = mapping.alpha
    elif isinstance(mapping, AdaptiveEntmax):
        alpha = mapping.alpha[:, None, None]
    else:
        return None
    _check.number(alpha, "alpha", "positive and finite", lambda v: (v > 0) & (v < math.inf))
    return alpha if isinstance(alpha, Tensor) else float(alpha)


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors as autocast gives them to torch's own attention."""
    if not isinstance(tensors[0], Tensor) or not autocasts(tensors[0].device):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def _four_dims(t: Tensor) -> Tensor:
    t = t[None] if t.dim() == 2 else t
    return t[None] if t.dim() == 3 else t.flatten(0, -4)


def _mask_four_dims(mask: Tensor, dims: int, batch: torch.Size) -> Tensor:
    """A mask that broadcasts to (*batch, heads, L, S), with the dims of batch as one."""
    mask = mask.reshape((1,) * (max(dims, 4) - mask.dim()) + tuple(mask.shape))
    if mask.dim() == 4:
        return mask
    if all(size == 1 for size in mask.shape[:-3]):
        return mask.flatten(0, -4)
    return mask.expand(*batch, *mask.shape[-3:]).flatten(0, -4)


def _few_digits(alpha: float | Tensor | None) -> bool:
    """True if alpha is a number so close to 1 that the kernels of CUDA, which have float32 alone, are not exact."""
    return isinstance(alpha, float) and 1 < alpha < LEAST_ALPHA


def _is_one(gamma: Any) -> bool:
    return not isinstance(gamma, Tensor) and gamma == 1
