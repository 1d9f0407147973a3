"""Attention to chosen blocks of keys: the blocks that are read give what a dense mask of priors gives."""

from functools import partial

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax import nn
from polymax.nn import block_routed


def heads(queries, keys, kv_heads=2):
    shapes = ((2, 2, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 6))
    return [2 * torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def dense(module, q, k, v, keep=None, bias=None, causal=False, offset=0):
    """The formula, one block of queries after the other, over all keys."""
    k, v = (t.repeat_interleave(2 // t.shape[1], 1) for t in (k, v))
    block, step = module.block, module.query_block
    seen = torch.ones(2, 2, q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        seen &= torch.arange(k.shape[2]) <= torch.arange(q.shape[2])[:, None] + offset
    plain = seen if keep is None else keep.expand_as(seen)
    seen = seen & plain
    held = plain.any(2) if keep is not None else torch.ones(2, 2, k.shape[2], dtype=torch.bool)
    rows = []
    for start in range(0, q.shape[2], step):
        part = q[:, :, start : start + step]
        chooser = part[:, :, :1] if causal else part.mean(2, keepdim=True)
        scores, fixed = [], []
        at = (start + offset) // block
        for n, begin in enumerate(range(0, k.shape[2], block)):
            inside, there = k[:, :, begin : begin + block], held[:, :, begin : begin + block]
            likes = torch.zeros_like(inside[..., 0])
            if module.summary is not None:
                likes = (inside * module.summary[:, None]).sum(-1)
            share = torch.softmax(likes.masked_fill(~there, -torch.inf), -1).nan_to_num(0)
            mean = (share[..., None] * torch.where(there[..., None], inside, 0)).sum(2)
            score = (chooser * mean[:, :, None]).sum(-1) * module.router_scale[:, None] / 8**0.5
            on = (n > at - module.window) if causal else abs(n - at) < module.window
            visible = plain[:, :, start : start + step, begin : begin + block].any(-1).any(-1, keepdim=True)
            on = torch.tensor(on or n < module.sinks)
            scores.append(score.masked_fill(on | ~visible, -torch.inf))
            fixed.append(on)
        prior = pm.entmax(torch.cat(scores, -1)) if module.router is pm.entmax else pm.sparsemax(torch.cat(scores, -1))
        prior = torch.where(torch.stack(fixed), 1.0, prior)
        logs = torch.where(prior > 0, torch.where(prior > 0, prior, 1).log(), -torch.inf)
        rows.append(logs.repeat_interleave(block, -1)[..., : k.shape[2]][:, :, None].expand(-1, -1, part.shape[2], -1))
    mask = torch.cat(rows, 2).masked_fill(~seen, -torch.inf)
    scores = q @ k.mT / 8**0.5 + mask + (0 if bias is None else bias)
    fn = module.mapping
    return fn(scores, dim=-1) @ v


KEEP = torch.rand(2, 1, 37, 45) > 0.2
MODULES = {
    "entmax": {},
    "sparsemax": {"router": "sparsemax", "window": 2, "sinks": 0},
    "inside entmax": {"mapping": "entmax", "query_block": 4},
    "inside sparsemax": {"mapping": "sparsemax", "router": "sparsemax", "query_block": 8, "sinks": 2},
    "learned summaries": {"head_dim": 8, "query_block": 3},
}
CALLS = {
    "all": {},
    "causal": {"is_causal": True},
    "cache": {"is_causal": True, "causal_offset": 8},
    "padding": {"attn_mask": (torch.arange(45) < torch.tensor([[45], [30]]))[:, None, None]},
    "mask": {"attn_mask": KEEP},
    "bias": {"attn_mask": torch.randn(2, 37, 45, dtype=torch.float64), "is_causal": True},
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES.keys())
def test_chosen_blocks_equal_dense_priors(options, call, monkeypatch):
    monkeypatch.setattr(block_routed, "GROUP", 8)
    module = nn.BlockRoutedAttention(2, block=4, **options).double()
    torch.nn.init.constant_(module.router_scale, 1.5)
    if module.summary is not None:
        torch.nn.init.normal_(module.summary)
    q, k, v = heads(37, 45, kv_heads=1)
    found = module(q, k, v, **call)
    mask = call.get("attn_mask")
    told = {"causal": call.get("is_causal", False), "offset": call.get("causal_offset", 0)}
    told["bias" if mask is not None and mask.dtype != torch.bool else "keep"] = mask
    expected = dense(module, q, k, v, **told)
    close(found, expected, "blocks of prior 0 are not needed")
    inputs = [q, k, v, *module.parameters()]
    slopes = (torch.autograd.grad(out.square().sum(), inputs) for out in (found, expected))
    for a, b in zip(*slopes, strict=True):
        size = max(1.0, b.abs().max().item()) * 10
        close(a / size, b / size, "the router has its gradient")
    weights = module.weights(q, k, **call)
    close(weights @ v, expected, "weights are those of the context")
    prior = module.prior(q, k, **call)
    if mask is None:
        assert (prior == 0).any(), "some blocks are left out"
        inside = weights > 0
        inside = torch.nn.functional.pad(inside, (0, -inside.shape[-1] % 4)).unflatten(-1, (-1, 4)).any(-1)
        assert not (inside & (prior == 0)).any(), "there is no weight where the prior is 0"
        assert ((prior > 0) & (prior < 1)).any(), "some blocks are chosen"


def test_no_later_query_has_influence():
    q, k, v = heads(24, 24)
    for step in (1, 4, 6):
        module = nn.BlockRoutedAttention(2, block=4, query_block=step).double()
        expected = module(q, k, v, is_causal=True)
        changed = [torch.cat([t[:, :, :13], torch.randn_like(t[:, :, 13:])], 2) for t in (q, k, v)]
        close(module(*changed, is_causal=True)[:, :, :13], expected[:, :, :13], "what follows has no influence")
    module = nn.BlockRoutedAttention(2, block=4).double()
    last = module(q[:, :, 23:], k, v, is_causal=True, causal_offset=23)
    close(last, module(q, k, v, is_causal=True)[:, :, 23:], "decoding chooses as training does")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_routing_compiles_and_is_saved():
    torch._dynamo.reset()
    module = nn.BlockRoutedAttention(2, block=4, head_dim=8)
    q, k, v = (t.detach().float() for t in heads(16, 16))
    expected = module(q, k, v, is_causal=True)
    compiled = torch.compile(partial(module, is_causal=True), fullgraph=True, backend="eager")
    with torch.no_grad():
        close(compiled(q, k, v), expected, "a compiled module is the module")
    again = nn.BlockRoutedAttention(2, block=4, head_dim=8)
    torch.nn.init.normal_(module.summary)
    again.load_state_dict(module.state_dict())
    equal(again(q, k, v), module(q, k, v), "parameters are saved")
    assert module(q[:, :, :0], k, v).shape == (2, 2, 0, 6)


def test_errors():
    for name in ("block", "window", "query_block"):
        with pytest.raises(ValueError, match=f"{name} must be an integer from 1 on; got 0"):
            nn.BlockRoutedAttention(2, **{name: 0})
    with pytest.raises(ValueError, match=r"for the 2 heads of query .*BlockRoutedAttention\(num_heads=4\)"):
        nn.BlockRoutedAttention(4)(*heads(4, 4))
    with pytest.raises(ValueError, match=r"query must be \(batch, num_heads, L, E\); got \(2, 4, 8\)"):
        nn.BlockRoutedAttention(2)(*(t[0] for t in heads(4, 4)))
    with pytest.raises(ValueError, match="did you mean 'sparsemax'"):
        nn.BlockRoutedAttention(2, router="sparse_max")
