"""The cases on which kernels of entmax attention are tested elsewhere: their lengths, heads, padding and dtypes.

Shapes and defaults are those of AdaSplash's tests; what is expected is attention by bisection in float64.
"""

from functools import partial

import pytest
import torch
from tolerances import equal

import polymax as pm
from polymax import nn
from polymax.nn import fused_attention

GPU = torch.cuda.is_available()
LENGTHS = (128, 256, 1024, 2048) if GPU else (128,)
DTYPES = (torch.float32, torch.float16, torch.bfloat16) if GPU else (torch.float32, torch.bfloat16)
# relative to the largest entry, or twice the error of the same computation with all scores
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)


def bisected(scores, alpha):
    """Entmax in float64 by bisection, 0 for rows of -inf."""
    u = (alpha - 1) * scores
    top = u.amax(-1, keepdim=True)
    u = torch.where(top == -torch.inf, -torch.inf, u - top)
    low, high = torch.full_like(top, -1.0), torch.zeros_like(top)
    for _ in range(60):
        tau = (low + high) / 2
        over = (u - tau).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(over, tau, low), torch.where(over, high, tau)
    p = (u - low).clamp(min=0).pow(1 / (alpha - 1))
    total = p.sum(-1, keepdim=True)
    # the gradient of the mapping, without that of the bisection
    s = torch.where(p > 0, p.pow(2 - alpha), 0).detach()
    fixed = (p / torch.where(total == 0, 1, total)).detach()
    safe = torch.where(scores == -torch.inf, 0, scores)
    mean = (s * safe).sum(-1, keepdim=True) / s.sum(-1, keepdim=True).clamp(min=1e-300)
    return fixed + s * ((safe - safe.detach()) - (mean - mean.detach()))


def expected(q, k, v, alpha, causal, lengths):
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    n = q.shape[2]
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril() if causal else torch.ones_like(scores, dtype=bool)
    if lengths is not None:
        held = torch.arange(n, device=q.device) < lengths[:, None]
        seen = seen & held[:, None, None, :] & held[:, None, :, None]
    return bisected(scores.masked_fill(~seen, -torch.inf), alpha) @ v


def agree(shape, alpha=1.5, causal=True, lengths=None, dtype=torch.float32, key_heads=None, device="cpu"):
    torch.manual_seed(42)
    B, H, n, d = shape
    sizes = (H, key_heads or H, key_heads or H)
    q, k, v = (torch.randn(B, h, n, d, dtype=dtype, device=device, requires_grad=True) for h in sizes)
    weight = torch.randn(shape, dtype=dtype, device=device)
    mask = None
    if lengths is not None:
        lengths = torch.as_tensor(lengths, device=device)
        held = torch.arange(n, device=device) < lengths[:, None]
        mask = held[:, None, None, :] & held[:, None, :, None]
    call = partial(nn.scaled_dot_product_attention, attn_mask=mask, is_causal=causal, enable_gqa=True)
    mapping = partial(pm.entmax, alpha=alpha)
    assert "fused" in nn.attention_path(q, k, v, mask, is_causal=causal, enable_gqa=True, mapping=mapping)
    out = call(q, k, v, mapping=mapping)
    found = (out, *torch.autograd.grad(out, (q, k, v), weight))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    true = expected(*wide, alpha, causal, lengths)
    for a, b in zip(found, (true, *torch.autograd.grad(true, wide, weight.double())), strict=True):
        # a gradient of 0 is a difference of terms of size 1
        error = (a.double() - b).norm() / b.norm().clamp(min=0.1)
        assert error <= TOLERANCE[dtype], f"off by {error}"
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alpha", [1.333, 1.5, 2.0])
@pytest.mark.parametrize("channels", [32, 64])
def test_padded_batches(channels, alpha, causal, dtype, device):
    heads, n, lengths = (2, 128, [100, 77]) if device == "cuda" else (1, 80, [70, 41])
    out = agree((2, heads, n, channels), alpha, causal, torch.tensor(lengths), dtype, device=device)
    for row, length in zip(out, lengths, strict=True):
        assert (row[:, length:] == 0).all()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("key_heads", [1, 2, 8])
def test_heads_that_share_keys(key_heads, length, device):
    if device == "cuda" or length == 128:
        agree((1, 8, length, 64), key_heads=key_heads, device=device)


@pytest.mark.parametrize("lengths", [[128], [65], [1]])
def test_lengths(lengths, device):
    agree((1, 2, 128, 32), lengths=lengths, key_heads=1, device=device)


def test_equal_scores_give_the_mean(device):
    q, v = torch.zeros(1, 1, 128, 64, device=device), torch.randn(1, 1, 128, 64, device=device)
    out = nn.scaled_dot_product_attention(q, q, v, mapping=pm.entmax)
    assert (out - v.mean(-2, keepdim=True)).abs().max() < 1e-5


def test_large_scores_are_finite(device):
    q, k, v = (100 * torch.randn(2, 2, 256, 64, device=device) for _ in range(3))
    half = [t.half() for t in (q, k, v)]
    out = nn.scaled_dot_product_attention(*half, mapping=pm.entmax)
    assert out.isfinite().all()
    assert out.abs().max() < 1e3
    equal(out, nn.scaled_dot_product_attention(*half, mapping=pm.entmax), "the same call gives the same bits")
