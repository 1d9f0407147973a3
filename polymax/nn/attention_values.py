"""Sums of values by attention weights, in which a value of weight 0 does not count, even if it is NaN or infinite."""

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.function import under_transform, without_autocast
from polymax.backend.widen import wide


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return weights @ values in which 0 times NaN, and 0 times infinity, is 0.

    On the CPU, a key of weight 0 has no influence, even if its value is not finite. Other devices return their plain
    product.

    Shapes: weights (*batch, L, S); values (*batch, S, V); the sums (*batch, L, V)
    """
    out = product(weights, values)
    if out.device.type != "cpu" or (_check.readable(out) and bool(out.detach().isfinite().all())):
        return out
    finite = values.isfinite()
    # among values with weight: the number of values that are not finite, and the number of +inf less that of -inf
    marks = torch.cat([~finite, torch.where(values.isinf(), values.sign(), 0)], -1).to(weights.dtype)
    count, sign = ((weights != 0).to(weights.dtype) @ marks).chunk(2, -1)
    touched = count > 0
    kind = torch.where(sign.abs() == count, sign.sign() * torch.inf, torch.nan)
    clean = product(weights, torch.where(finite, values, 0))
    # only weights of values that are not finite get a gradient that is not finite
    bad = ~finite.all(-1).unsqueeze(-2) & (weights != 0)
    share = torch.where(bad, weights, 0).sum(-1, keepdim=True)
    return clean + torch.where(touched, torch.where(touched, kind, 0) * share, 0)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product in float32, or float64."""
    with without_autocast(a.device):
        if a.dtype == b.dtype and multiplies_wide(a, b):
            found = torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32)
            return found.unflatten(0, a.shape[:-2])
        return wide(a) @ wide(b)


def multiplies_wide(a: Tensor, b: Tensor) -> bool:
    """Return True if the device multiplies matrices of b's half precision to float32: a cache need not be copied."""
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    batched = a.dim() > 2 and a.shape[:-2] == b.shape[:-2]
    half = b.dtype in (torch.float16, torch.bfloat16)
    return b.is_cuda and half and batched and not recorded and not under_transform()
