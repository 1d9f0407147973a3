"""Why a call of attention cannot be computed by a fused kernel."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.function import functional, surely
from polymax.kernels.sparse_attention.shared_memory import fits
from polymax.nn import fused_attention
from polymax.nn.attention_mapping import entmax_alpha, is_softmax

if TYPE_CHECKING:
    from polymax.nn.attention_call import AttentionCall


def obstacle(call: "AttentionCall") -> str | None:
    """Return why the call cannot be fused; None if it can."""
    q, k, v = call.query, call.key, call.value
    if functional():
        return "torch.func transforms the call"
    if not all(isinstance(t, Tensor) and t.dtype in _check.FLOATS for t in (q, k, v)):
        return "query, key and value are not all floating-point tensors"
    if is_softmax(call.mapping):
        return _softmax_obstacle(call)
    alpha = entmax_alpha(call.mapping)
    if alpha is None:
        return "the mapping is none of softmax, sparsemax and entmax"
    if not isinstance(alpha, Tensor):
        if not 1 < alpha <= 2:
            return f"alpha is {alpha}, not in (1, 2]"
    elif _check.readable(alpha) and not bool(((alpha >= 1) & (alpha <= 2)).all()):
        return "alpha is not in [1, 2] for all heads"
    return _shape_obstacle(call, alpha) or _device_obstacle(call)


def _softmax_obstacle(call: "AttentionCall") -> str | None:
    if call.softcap is not None or call.sinks is not None:
        return "the mapping is softmax with a softcap or sinks, which torch's kernels do not take"
    if call.dropout_p != 0:
        return "the mapping is softmax with dropout, of which torch's kernels have no second derivative"
    if 0 in (*call.query.shape, *call.key.shape, *call.value.shape):
        return "query, key or value is empty"
    if isinstance(call.attn_mask, Tensor) and call.attn_mask.dtype not in (torch.bool, call.query.dtype):
        return "the mapping is softmax with an added mask of another dtype, which torch's kernels would round"
    return _shape_obstacle(call, None)


def _shape_obstacle(call: "AttentionCall", alpha: float | Tensor | None) -> str | None:
    q, k, v = call.query, call.key, call.value
    if not _same_kind(call):
        return "query, key and value differ in dtype or device"
    if k.is_nested or v.is_nested:
        return "key and value are nested tensors, and query is not"
    if min(q.dim(), k.dim(), v.dim()) < 2 or not q.dim() == k.dim() == v.dim():
        return "query, key and value differ in their number of dims"
    if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
        return "query, key and value broadcast"
    heads, key_heads = (t.shape[-3] if t.dim() > 2 else 1 for t in (q, k))
    if heads != key_heads and (not call.enable_gqa or key_heads == 0 or heads % key_heads):
        return "the heads of key do not divide those of query"
    if isinstance(alpha, Tensor) and alpha.shape not in ((heads, 1, 1), (1,), (), (1, 1, 1)):
        return f"alpha has the shape {tuple(alpha.shape)}, not a number for each head"
    if call.scale is not None:
        if isinstance(call.scale, Tensor):
            return "scale is a tensor"
        if not call.scale > 0:
            return "scale is not positive"
    mask = call.attn_mask
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, *_check.FLOATS):
            return "attn_mask is neither bool nor floating-point"
        shape = (*q.shape[:-1], k.shape[-2])
        pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
        if mask.dim() > len(shape) or any(m not in (1, n) for m, n in pairs):
            return "attn_mask does not broadcast to the scores"
    return None


def _device_obstacle(call: "AttentionCall") -> str | None:
    q, k, v = call.query, call.key, call.value
    if not 0 <= call.dropout_p < 1:
        return "dropout_p is not in [0, 1)"
    if q.device.type == "cpu":
        if surely(k.shape[-2] < fused_attention.CPU_KEYS):
            return f"there are fewer than {fused_attention.CPU_KEYS} keys, and the matrix of scores is small"
        return None
    if q.device.type != "cuda":
        return f"there is no kernel for {q.device.type}"
    if q.dtype == torch.float64:
        return "float64 has no kernel on CUDA"
    if _few_digits(entmax_alpha(call.mapping)):
        return f"alpha is below {fused_attention.LEAST_ALPHA}, where powers in float32 have few digits left"
    channels = max(q.shape[-1], v.shape[-1])
    if channels > 256:
        return "heads have more than 256 channels"
    least = fused_attention.CUDA_QUERIES
    if surely(q.shape[-2] < least):
        if _decodes(call):
            return None
        return f"there are fewer than {least} queries, which have no gradient, dropout, or more than 64 rows"
    if not fits(q.dtype, channels, q.device):
        return f"{q.dtype} heads of {channels} channels need more shared memory than the GPU has"
    return None


def obstacle_over_pages(call: "AttentionCall") -> str | None:
    """Return why the kernel for a few queries does not take a call whose keys are pages; None if it does."""
    alpha = entmax_alpha(call.mapping)
    if functional() or (call.query.dtype == torch.float64 and call.query.is_cuda):
        return "torch.func transforms the call, or it is one of float64"
    if call.query.is_cuda and _few_digits(alpha):
        return f"alpha is below {fused_attention.LEAST_ALPHA}, where powers in float32 have few digits left"
    if alpha is None or (not isinstance(alpha, Tensor) and not 1 < alpha <= 2):
        return "the mapping is neither sparsemax nor entmax with alpha in (1, 2]"
    if isinstance(call.scale, Tensor) or (call.scale is not None and not call.scale > 0):
        return "scale is a tensor, or not positive"
    if not _same_kind(call) or max(call.query.shape[-1], call.value.shape[-1]) > 256:
        return "query, key and value differ in dtype or device, or have more than 256 channels"
    return None if _decodes(call) else "a gradient is asked for, or there are more than 64 rows"


def _decodes(call: "AttentionCall") -> bool:
    """True if the kernel for a few queries over a cache takes the call: no gradient and no dropout."""
    q, k = call.query, call.key
    heads, key_heads = (t.shape[-3] if t.dim() > 2 else 1 for t in (q, k))
    if q.is_cuda and heads // max(key_heads, 1) * q.shape[-2] > fused_attention.DECODED_ROWS:
        return False
    alpha = entmax_alpha(call.mapping)
    inputs = [q, k, call.value, call.attn_mask, call.sinks, alpha if isinstance(alpha, Tensor) else None]
    recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    return not recorded and call.dropout_p == 0


def _same_kind(call: "AttentionCall") -> bool:
    tensors = (call.query, call.key, call.value)
    return len({t.dtype for t in tensors}) == 1 and len({t.device for t in tensors}) == 1


def _few_digits(alpha: float | Tensor | None) -> bool:
    """True if alpha is a number so close to 1 that the CUDA kernels, which compute in float32, are not exact."""
    return isinstance(alpha, float) and 1 < alpha < fused_attention.LEAST_ALPHA
