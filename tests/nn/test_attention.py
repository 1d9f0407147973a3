"""Attention with a mapping in the place of softmax: torch's own where it is softmax, the same laws where it is not."""

import copy
import pickle
from functools import partial

import pytest
import torch
from tolerances import close, equal
from torch.autograd import gradcheck
from torch.nn import functional as F

import polymax as pm
from polymax import nn

MAPPINGS = {
    "hardmax": pm.hardmax,
    "softmax": pm.softmax,
    "sparsemax": pm.sparsemax,
    "entmax": pm.entmax,
    "entmax-1.3": partial(pm.entmax, alpha=1.3),
    "normmax": pm.normmax,
    "sq_pnorm_max": pm.sq_pnorm_max,
    "fusedmax": pm.fusedmax,
    "oscarmax": pm.oscarmax,
    "regularizer": pm.Tsallis(1.7, gamma=0.5),
    "bounded": pm.Bounded(pm.Shannon(), lower=0.01),
    "adaptive": nn.AdaptiveEntmax(2).double(),
    "smoothing": pm.SparseMap(pm.Simplex(), gamma=2.0),
}
mappings = pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS.keys())
# the laws that do not depend on the mapping are tried on few
few = pytest.mark.parametrize("mapping", [pm.softmax, pm.sparsemax], ids=["softmax", "sparsemax"])
N, H, L, S, E = 2, 2, 4, 5, 3


def heads(dtype=torch.float64, kv_heads=H):
    shapes = ((N, H, L, E), (N, kv_heads, S, E), (N, kv_heads, S, E + 1))
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def slopes(out, inputs):
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return torch.autograd.grad((weight * out).sum(), inputs)


KEEP = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1], [0, 1, 0, 1, 0]], dtype=torch.bool)
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "bool mask": {"attn_mask": KEEP},
    "float mask": {"attn_mask": torch.linspace(-1, 1, L * S, dtype=torch.float64).reshape(L, S)},
    "infinite mask": {"attn_mask": torch.zeros(L, S).double().masked_fill(~KEEP, -torch.inf)},
    "mask of each": {"attn_mask": KEEP.expand(N, 1, L, S)},
    "groups": {"enable_gqa": True},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_softmax_gives_torch_s_attention(options, dtype):
    inputs = heads(dtype, kv_heads=1 if "enable_gqa" in options else H)
    options = {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in options.items()}
    out, torch_s = (
        nn.scaled_dot_product_attention(*inputs, **options),
        F.scaled_dot_product_attention(*inputs, **options),
    )
    assert out.dtype == dtype
    # both round to half precision on the way
    gap = 4 if dtype == torch.bfloat16 else 1
    close(out / gap, torch_s / gap, "softmax attention is torch's")
    for a, b in zip(slopes(out, inputs), slopes(torch_s, inputs)):
        close(a / gap, b / gap, "softmax attention is torch's in gradients")


@mappings
def test_one_argument_changes_the_mapping(mapping):
    q, k, v = heads()
    weights = nn.attention_weights(q, k, KEEP, mapping=mapping)
    scores = (q @ k.transpose(-2, -1) / E**0.5).masked_fill(~KEEP, -torch.inf)
    fn = getattr(mapping, "argmax", mapping)
    close(weights, fn(scores), "weights are the mapping of scores")
    close(weights.sum(-1), torch.ones(N, H, L), "weights sum to 1")
    out = nn.scaled_dot_product_attention(q, k, v, KEEP, mapping=mapping)
    close(out, weights @ v, "the context is the mean of the values")


@mappings
def test_masked_is_truncated(mapping):
    q, k, v = heads()
    keep = torch.arange(S) < 3
    out = nn.scaled_dot_product_attention(q, k, v, keep, mapping=mapping)
    short = nn.scaled_dot_product_attention(q, k[..., :3, :], v[..., :3, :], mapping=mapping)
    close(out, short, "masked is truncated")
    for a, b in zip(slopes(out, (q, k, v)), slopes(short, (q, k, v))):
        close(a, b, "masked is truncated in gradients")


@mappings
def test_causal_attention_does_not_see_later_keys(mapping):
    q, k, v = heads()
    out = nn.scaled_dot_product_attention(q, k, v, is_causal=True, mapping=mapping)
    for t in range(L):
        past = nn.scaled_dot_product_attention(
            q[..., t : t + 1, :], k[..., : t + 1, :], v[..., : t + 1, :], mapping=mapping
        )
        close(out[..., t : t + 1, :], past, "causal is truncated")


@mappings
def test_a_query_without_keys_gets_zeros(mapping):
    q, k, v = heads()
    keep = KEEP.clone()
    keep[1] = False
    out = nn.scaled_dot_product_attention(q, k, v, keep, mapping=mapping)
    assert (out[..., 1, :] == 0).all()
    slope = slopes(out, (q, k, v))
    assert all(g.isfinite().all() for g in slope)
    assert (slope[0][..., 1, :] == 0).all()


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax-1.3", "fusedmax", "adaptive"])
def test_gradients(name):
    q, k, v = heads()
    assert gradcheck(partial(nn.scaled_dot_product_attention, attn_mask=KEEP, mapping=MAPPINGS[name]), (q, k, v))


def test_dropout():
    q, k, v = torch.zeros(1, 2), torch.zeros(1000, 2), torch.ones(1000, 1)
    mean = nn.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert 0.85 < mean.item() < 1.15
    assert mean.item() != 1


def test_attention_errors():
    q, k, v = heads()
    attend = nn.scaled_dot_product_attention
    with pytest.raises(ValueError, match=r"mapping must be one of .*; got 'sparsmax'; did you mean 'sparsemax'\?"):
        attend(q, k, v, mapping="sparsmax")
    with pytest.raises(TypeError, match=r"mapping must be a function, .*; got the class Gini"):
        attend(q, k, v, mapping=pm.Gini)
    with pytest.raises(TypeError, match=r"attn_mask must be a bool tensor .* or a float tensor; got torch.int64"):
        attend(q, k, v, KEEP.long())
    with pytest.raises(ValueError, match=r"attn_mask must broadcast to the scores \(2, 2, 4, 5\); got \(3, 5\)"):
        attend(q, k, v, KEEP[:3])
    with pytest.raises(ValueError, match=r"key must have heads that divide those of query \(2, 2, 4, 3\)"):
        attend(q, k[:, [0, 1, 0]], v, enable_gqa=True)
    with pytest.raises(TypeError, match=r"query must be float64.*; got torch.int64"):
        attend(q.long(), k, v)


# constructor options of multi-head attention, with the sizes of keys and values
MODULES = {
    "plain": ({}, 4, 4),
    "batch first": ({"batch_first": True}, 4, 4),
    "no bias": ({"bias": False}, 4, 4),
    "learned key": ({"add_bias_kv": True}, 4, 4),
    "zero key": ({"add_zero_attn": True}, 4, 4),
    "both keys": ({"add_bias_kv": True, "add_zero_attn": True, "batch_first": True}, 4, 4),
    "other sizes": ({"kdim": 3, "vdim": 5}, 3, 5),
}
PAD = torch.tensor([[False] * 5, [False, False, False, True, True]])
# what the call is given beside the sequences
CALLS = {
    "plain": {},
    "each head": {"average_attn_weights": False},
    "padding": {"key_padding_mask": PAD},
    "added padding": {"key_padding_mask": torch.zeros(N, S).double().masked_fill(PAD, -torch.inf)},
    "mask": {"attn_mask": ~KEEP},
    "added mask": {"attn_mask": torch.linspace(-1, 1, L * S).double().reshape(L, S)},
    "mask of each": {"attn_mask": (~KEEP).expand(N * H, L, S)},
    "both masks": {"key_padding_mask": PAD, "attn_mask": ~KEEP & (torch.arange(S) > 0)},
    "causal": {"attn_mask": torch.ones(L, S, dtype=torch.bool).triu(1), "is_causal": True},
}


def pair(options, mapping=pm.softmax):
    """Torch's module and ours, of the same parameters."""
    torch_s = torch.nn.MultiheadAttention(4, H, dtype=torch.float64, **options)
    ours = nn.MultiheadAttention(4, H, dtype=torch.float64, mapping=mapping, **options)
    ours.load_state_dict(torch_s.state_dict())
    return torch_s, ours


def sequences(options, kdim=4, vdim=4):
    inputs = [torch.randn(N, n, d, dtype=torch.float64) for n, d in ((L, 4), (S, kdim), (S, vdim))]
    return [x if options.get("batch_first") else x.transpose(0, 1) for x in inputs]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES.keys())
def test_softmax_gives_torch_s_module(options, call):
    options, *sizes = options
    torch_s, ours = pair(options)
    inputs = sequences(options, *sizes)
    out, weights = ours(*inputs, **call)
    expected, expected_weights = torch_s(*inputs, **call)
    close(out, expected, "softmax is torch's module")
    close(weights, expected_weights, "softmax has torch's weights")
    assert ours(*inputs, **call, need_weights=False)[1] is None
    close(ours(*inputs, **call, need_weights=False)[0], expected, "the result does not depend on need_weights")


@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES.keys())
def test_state_dicts_are_torch_s(options):
    torch_s, ours = pair(options[0])
    torch_s.load_state_dict(ours.state_dict())
    assert list(ours.state_dict()) == list(torch_s.state_dict())
    torch.manual_seed(3)
    again = torch.nn.MultiheadAttention(4, H, **options[0])
    torch.manual_seed(3)
    fresh = nn.MultiheadAttention(4, H, **options[0])
    for a, b in zip(fresh.parameters(), again.parameters(), strict=True):
        equal(a.detach(), b.detach(), "a seed gives the parameters it gives in torch")
    for module in (fresh, again):
        torch.manual_seed(4)
        module._reset_parameters()
    for a, b in zip(fresh.parameters(), again.parameters(), strict=True):
        equal(a.detach(), b.detach(), "and when they are drawn again")


def test_without_a_batch():
    torch_s, ours = pair({})
    q, k, v = (x[:, 0] for x in sequences({}))
    # torch has NaN where nothing is left, so the first key stays
    masks = {"key_padding_mask": PAD[1], "attn_mask": (~KEEP & (torch.arange(S) > 0)).expand(H, L, S)}
    for a, b in zip(ours(q, k, v, **masks), torch_s(q, k, v, **masks)):
        close(a, b, "without a batch it is torch's")


@few
def test_torch_s_encoder_uses_the_mapping(mapping):
    layer = torch.nn.TransformerEncoderLayer(4, H, 8, batch_first=True, dtype=torch.float64)
    layer.self_attn = pair({"batch_first": True}, mapping)[1]
    x = torch.randn(N, L, 4, dtype=torch.float64)
    layer.eval()
    slow = layer(x)
    assert slow.requires_grad
    with torch.no_grad():
        close(layer(x), slow, "torch's fast path is not taken")
        close(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)(x), layer(layer(x)), "nor in a stack")
    torch_s = torch.nn.MultiheadAttention(4, H, batch_first=True, dtype=torch.float64)
    torch_s.load_state_dict(layer.self_attn.state_dict())
    layer.self_attn = torch_s
    same = torch.allclose(layer(x), slow, rtol=0, atol=1e-12)
    assert same == (mapping is pm.softmax), "the layer differs from torch's where the mapping does"


@mappings
@pytest.mark.parametrize("extra", [False, True], ids=["", "with extra keys"])
def test_masked_is_truncated_in_the_module(mapping, extra):
    options = {"batch_first": True, "add_bias_kv": extra, "add_zero_attn": extra}
    ours = nn.MultiheadAttention(4, H, dtype=torch.float64, mapping=mapping, **options)
    q, k, v = sequences(options)
    out, weights = ours(q, k, v, key_padding_mask=PAD)
    short, short_weights = ours(q[1:], k[1:, :3], v[1:, :3])
    close(out[1:], short, "masked is truncated")
    close(weights[1:, :, [0, 1, 2, *range(S, S + 2 * extra)]], short_weights, "masked is truncated in weights")
    assert (weights[1:, :, 3:5] == 0).all()


@mappings
def test_causal_module_does_not_see_later_keys(mapping):
    ours = nn.MultiheadAttention(4, H, batch_first=True, dtype=torch.float64, mapping=mapping)
    x = torch.randn(N, S, 4, dtype=torch.float64)
    out, _ = ours(x, x, x, is_causal=True)
    for t in range(1, S):
        close(out[:, :t], ours(x[:, :t], x[:, :t], x[:, :t], is_causal=True)[0], "causal is truncated")


@few
def test_nothing_to_attend_to(mapping):
    ours = nn.MultiheadAttention(4, H, batch_first=True, dtype=torch.float64, mapping=mapping)
    x = torch.randn(N, S, 4, dtype=torch.float64, requires_grad=True)
    out, weights = ours(x, x, x, key_padding_mask=torch.tensor([[False] * S, [True] * S]))
    close(out[1], ours.out_proj.bias.expand(S, 4), "without a key there is the bias")
    assert (weights[1] == 0).all()
    (slope,) = slopes(out, (x,))
    assert slope.isfinite().all()
    assert (slope[1] == 0).all()


def test_dropout_of_the_module():
    _, ours = pair({"dropout": 0.5})
    inputs = sequences({})
    _, weights = ours(*inputs, average_attn_weights=False)
    full = ours.eval()(*inputs, average_attn_weights=False)[1]
    assert (weights == 0).any()
    close(torch.where(weights == 0, 0, weights - 2 * full), torch.zeros_like(full), "what is left is doubled")


def test_module_gradients():
    ours = nn.MultiheadAttention(4, H, batch_first=True, dtype=torch.float64, mapping=nn.AdaptiveEntmax(H).double())
    torch.nn.init.normal_(ours.mapping.logits)
    q, k, v = (x.requires_grad_() for x in sequences({"batch_first": True}))
    names, values = zip(*ours.named_parameters())

    def out(*inputs):
        parameters = dict(zip(names, inputs[3:]))
        return torch.func.functional_call(ours, parameters, inputs[:3], {"key_padding_mask": PAD})[0]

    assert gradcheck(out, (q, k, v, *values))
    assert "mapping.logits" in names


def test_adaptive_entmax_is_entmax_of_each_head():
    mapping = nn.AdaptiveEntmax(3).double()
    torch.nn.init.normal_(mapping.logits)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    keep = torch.arange(5) != 1
    y = mapping(x, mask=keep)
    assert ((mapping.alpha > 1) & (mapping.alpha < 2)).all()
    for h, alpha in enumerate(mapping.alpha.tolist()):
        close(y[:, h], pm.entmax(x[:, h], alpha, mask=keep), "each head has its alpha")
    inputs = (x.requires_grad_(), mapping.logits)
    assert gradcheck(lambda x, a: torch.func.functional_call(mapping, {"logits": a}, (x,)), inputs)
    torch.nn.init.constant_(mapping.logits, 100)
    close(mapping(x), pm.sparsemax(x), "sparsemax is its end")
    with pytest.raises(ValueError, match=r"num_heads must be a positive integer; got 0"):
        nn.AdaptiveEntmax(0)


def test_alpha_learns_to_be_sparse():
    ours = nn.MultiheadAttention(4, 1, batch_first=True, mapping=nn.AdaptiveEntmax(1))
    ours.requires_grad_(False).mapping.requires_grad_(True)
    x = 3 * torch.randn(8, 6, 4)
    optimizer = torch.optim.SGD(ours.mapping.parameters(), 5.0)
    start = ours(x, x, x)[1]
    for _ in range(20):
        optimizer.zero_grad()
        (-ours(x, x, x)[1].square().sum(-1).mean()).backward()
        optimizer.step()
    assert ours.mapping.alpha.item() > 1.6
    assert (ours(x, x, x)[1] == 0).sum() > (start == 0).sum()


@few
def test_half_precision(mapping):
    ours = nn.MultiheadAttention(4, H, batch_first=True, mapping=mapping)
    x = torch.randn(N, S, 4)
    expected = ours(x, x, x, key_padding_mask=PAD)
    with torch.autocast("cpu", torch.bfloat16):
        cast = ours(x, x, x, key_padding_mask=PAD)
    half = ours.bfloat16()(x.bfloat16(), x.bfloat16(), x.bfloat16(), key_padding_mask=PAD)
    for found in (cast, half):
        assert found[0].dtype == torch.bfloat16
        assert torch.allclose(found[0].float(), expected[0], atol=3e-2)
        assert torch.allclose(found[1].float(), expected[1], atol=3e-2)


def test_copies():
    ours = nn.MultiheadAttention(4, H, mapping=partial(pm.entmax, alpha=1.3)).double()
    inputs = sequences({})
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        equal(other(*inputs)[0], ours(*inputs)[0], "a copy is the same")


def test_module_errors():
    ours = nn.MultiheadAttention(4, H)
    q, k, v = (x.float() for x in sequences({}))
    with pytest.raises(TypeError, match=r"mapping must be a function.*; got NoneType"):
        nn.MultiheadAttention(4, H, mapping=None)
    with pytest.raises(ValueError, match=r"must all have 3 dims, or 2 without a batch; got .*\(5, 4\)"):
        ours(q, k, v[:, 0])
    with pytest.raises(ValueError, match=r"attn_mask must be \(4, 5\); got \(3, 5\)"):
        ours(q, k, v, attn_mask=KEEP[:3])
    with pytest.raises(ValueError, match=r"attn_mask must be \(4, 4, 5\); got \(3, 4, 5\)"):
        ours(q, k, v, attn_mask=KEEP.expand(3, L, S))
    with pytest.raises(ValueError, match=r"key_padding_mask must be \(2, 5\); got \(2, 4\)"):
        ours(q, k, v, key_padding_mask=PAD[:, 1:])
    with pytest.raises(TypeError, match=r"key_padding_mask must be a bool tensor .*; got torch.int64"):
        ours(q, k, v, key_padding_mask=PAD.long())


COMPILED = {
    "function": partial(nn.scaled_dot_product_attention, is_causal=True, mapping=pm.sparsemax),
    "module": nn.MultiheadAttention(4, H, batch_first=True, dtype=torch.float64, mapping=pm.entmax),
    "adaptive": nn.MultiheadAttention(
        4, H, batch_first=True, dtype=torch.float64, mapping=nn.AdaptiveEntmax(H).double()
    ),
    "mask": lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, KEEP, mapping=pm.Tsallis(1.3)),
}


# torch's own code warns about itself when it traces
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("attend", COMPILED.values(), ids=COMPILED.keys())
def test_compile(attend):
    torch._dynamo.reset()
    inputs = [x.requires_grad_() for x in sequences({"batch_first": True})]
    results = []
    for fn in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=False)):
        out = fn(*inputs)
        out = out if torch.is_tensor(out) else out[0]
        results.append((out.detach(), *slopes(out, inputs)))
    for a, b in zip(*results, strict=True):
        close(b, a, "compiled attention is attention")
