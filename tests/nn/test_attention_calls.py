"""Calls of attention: one rule for all paths, lengths that a graph does not know, packed sequences, and caches."""

from functools import partial

import pytest
import torch
from tolerances import close, equal
from torch._dynamo.testing import CompileCounter
from torch.autograd import gradcheck

import polymax as pm
from polymax import nn
from polymax.nn import fused_attention

compiles = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
PATHS = {"all scores": 1 << 30, "fused": 0}
both_paths = pytest.mark.parametrize("keys", PATHS.values(), ids=PATHS.keys())


def heads(*lengths, kv_heads=2, dtype=torch.float64):
    """Queries (1, 2, L, 4), keys and values (1, kv_heads, S, 4)."""
    queries, keys = lengths if len(lengths) == 2 else lengths * 2
    shapes = ((1, 2, queries, 4), (1, kv_heads, keys, 4), (1, kv_heads, keys, 4))
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


@both_paths
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [1, 2], ids=["key", "value"])
def test_what_no_query_may_see_has_no_influence(which, bad, keys, monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", keys)
    inputs = heads(9)
    keep = torch.arange(9) != 4
    call = partial(nn.scaled_dot_product_attention, attn_mask=keep, mapping=pm.entmax)
    expected = call(*inputs)
    slopes = torch.autograd.grad(expected.square().sum(), inputs)
    inputs[which].data[:, :, 4, 1] = bad
    found = call(*inputs)
    equal(found, expected, "a hidden key has no influence")
    for a, b in zip(torch.autograd.grad(found.square().sum(), inputs), slopes, strict=True):
        close(a, b, "a hidden key has no influence on gradients")


@both_paths
def test_values_of_later_tokens_do_not_reach_earlier_queries(keys, monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", keys)
    inputs = heads(9)
    call = partial(nn.scaled_dot_product_attention, is_causal=True, mapping=partial(pm.entmax, alpha=1.1))
    expected = call(*inputs)
    values = inputs[2].detach().clone()
    values[:, :, 4, 0], values[:, :, 4, 1], values[:, :, 4, 2] = torch.nan, torch.inf, -torch.inf
    found = call(*inputs[:2], values.requires_grad_())
    equal(found[:, :, :4], expected[:, :, :4], "earlier queries do not see it")
    weight = nn.attention_weights(*inputs[:2], is_causal=True, mapping=partial(pm.entmax, alpha=1.1))[..., 4] > 0
    assert found[..., 0].isnan().equal(weight)
    assert (found[..., 1] == torch.inf).equal(weight)
    assert (found[..., 2] == -torch.inf).equal(weight)
    (slope,) = torch.autograd.grad(found[:, :, :4].sum(), inputs[0])
    assert slope[:, :, :4].isfinite().all()
    (slope,) = torch.autograd.grad(call(*inputs[:2], values).sum(), inputs[0])
    assert not slope[weight].isfinite().any(), "a query that has weight on such a value has no gradient"


@both_paths
def test_scale_is_applied_before_products_overflow(keys, monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", keys)
    q, k, v = (torch.randn(1, 1, 12, 4) for _ in range(3))
    call = partial(nn.scaled_dot_product_attention, mapping=pm.entmax)
    found = call(1e19 * q, 1e20 * k, v, scale=1e-39)
    close(found, call(q, k, v, scale=1.0), "the product times scale is finite")


def test_padding_of_the_module_may_be_anything():
    module = nn.MultiheadAttention(4, 2, batch_first=True, mapping=pm.sparsemax)
    x = torch.randn(2, 5, 4)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    call = partial(module, x, key_padding_mask=padding)
    expected = call(x, x)[0]
    memory = x.clone()
    memory[1, 3:] = torch.nan
    equal(call(x, memory)[0], expected, "values of padding have no influence")
    equal(call(x, memory, need_weights=False)[0], call(x, x, need_weights=False)[0], "nor without weights")
    decoder = nn.Attention(pm.nn.DotScorer(), mapping=pm.sparsemax)
    values = x.clone()
    values[~(keep := ~padding)] = torch.nan
    equal(decoder(x[:, 0], x, values, keep)[0], decoder(x[:, 0], x, x, keep)[0], "nor in decoders")


@compiles
@pytest.mark.parametrize("dims", ["dynamic", "auto"])
def test_exported_attention_takes_all_lengths(dims):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return nn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, mapping=pm.entmax)

    q, k, v = (t.detach().float() for t in heads(20, kv_heads=1))
    if dims == "auto":
        shapes = [dict.fromkeys((0, 2), torch.export.Dim.AUTO)] * 3
    else:
        shapes = [{2: torch.export.Dim("length", min=2)}] * 3
    exported = torch.export.export(Layer(), (q, k, v), dynamic_shapes=shapes)
    for length in (5, 1100):
        q, k, v = (t.detach().float() for t in heads(length, kv_heads=1))
        close(exported.module()(q, k, v), Layer()(q, k, v), "an exported call is the call")


@compiles
def test_one_compiled_graph_serves_both_sides_of_the_limit():
    graphs = CompileCounter()
    torch._dynamo.reset()
    call = partial(nn.scaled_dot_product_attention, mapping=pm.entmax)
    compiled = torch.compile(call, fullgraph=True, backend=graphs, dynamic=True)
    for length in (6, 1023, 1024):
        q, k, v = (t.detach().float() for t in heads(3, length))
        close(compiled(q, k, v), call(q, k, v), "the compiled call is the call")
    assert graphs.frame_count == 1, "the choice of the path is no guard"


@compiles
def test_heads_of_an_export_may_be_unknown():
    q, k, v = (t.detach() for t in heads(6, kv_heads=1))

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return nn.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    dynamic = [dict.fromkeys(range(3), torch.export.Dim.AUTO)] * 3
    exported = torch.export.export(Layer(), (q, k, v), dynamic_shapes=dynamic, strict=False)
    close(exported.module()(q, k, v), Layer()(q, k, v), "an exported call is the call")


def test_names_and_heads_of_mappings():
    q, k, v = (t.detach() for t in heads(5))
    for name in ("entmax", "sparsemax", "softmax", "fusedmax"):
        expected = nn.scaled_dot_product_attention(q, k, v, mapping=getattr(pm, name))
        equal(nn.scaled_dot_product_attention(q, k, v, mapping=name), expected, "a name is its function")
    assert nn.attention_path(q, k, v, mapping="sparsemax") == nn.attention_path(q, k, v, mapping=pm.sparsemax)
    assert nn.MultiheadAttention(8, 2, mapping="entmax").mapping is pm.entmax
    assert nn.Attention(nn.DotScorer(), mapping="entmax").mapping is pm.entmax
    statistics = nn.attention_statistics(q, k, mapping="sparsemax").zeros
    equal(statistics, nn.attention_statistics(q, k, mapping=pm.sparsemax).zeros, "statistics take names")
    with pytest.raises(ValueError, match=r"for the 4 heads of MultiheadAttention; got AdaptiveEntmax\(num_heads=8\)"):
        nn.MultiheadAttention(8, 4, mapping=nn.AdaptiveEntmax(8))
    # a process of a tensor-parallel model has a part of the heads
    with pytest.raises(ValueError, match=r"for the 2 heads of query .*pm.distributed.attention_plan"):
        nn.scaled_dot_product_attention(q, k, v, mapping=nn.AdaptiveEntmax(4))
    with pytest.raises(
        ValueError, match=r"scores must have the 4 heads of AdaptiveEntmax .*pm.distributed.attention_plan"
    ):
        nn.AdaptiveEntmax(4)(torch.randn(1, 1, 3, 3))
    for sizes in ((8, 3), (0, 1), (8, 0)):
        with pytest.raises(ValueError, match=r"embed_dim must be a positive multiple of num_heads; got"):
            nn.MultiheadAttention(*sizes)


SLOPES = torch.tensor([0.5, 0.1], dtype=torch.float64)
Q, K = [0, 3, 3, 8], [0, 4, 6, 12]
PACKED = {
    "offsets": {"causal_offset": torch.tensor(K).diff() - torch.tensor(Q).diff(), "is_causal": True},
    "offset and window": {"causal_offset": torch.tensor([1, 0, 2]), "window": (2, 1)},
    "slopes": {"alibi_slopes": SLOPES, "is_causal": True},
    "slopes of each": {"alibi_slopes": torch.stack([SLOPES, 2 * SLOPES, SLOPES])},
    "mask": {"attn_mask": torch.rand(3, 1, 5, 6) > 0.3, "is_causal": True},
    "bias of keys": {"attn_mask": torch.randn(1, 2, 1, 6).double(), "alibi_slopes": SLOPES},
    "lengths": {"max_seqlen_q": 5, "max_seqlen_k": 6, "is_causal": True},
    "length scaling": {"mapping": nn.LengthScaling(2, beta=1.0).double(), "is_causal": True},
}


@both_paths
@pytest.mark.parametrize("options", PACKED.values(), ids=PACKED.keys())
def test_packed_sequences_have_offsets_biases_and_masks_of_their_own(options, keys, monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", keys)
    q, k, v = heads(8, 12, kv_heads=1)
    told = {"mapping": pm.entmax, **options}
    packed = nn.varlen_attention(*(t[0].transpose(0, 1) for t in (q, k, v)), *map(torch.tensor, (Q, K)), **told)
    parts = []
    for n, (a, b, c, d) in enumerate(zip(Q, Q[1:], K, K[1:])):
        offset = told.get("causal_offset", torch.zeros(3, dtype=torch.long))[n].item()
        bias = torch.zeros(1, 2, b - a, d - c, dtype=torch.float64)
        if "attn_mask" in told:
            mask = told["attn_mask"][min(n, len(told["attn_mask"]) - 1)][..., : max(b - a, 1), : d - c]
            mask = mask if mask.shape[-2] == b - a else mask[..., :1, :]
            bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
        if "alibi_slopes" in told:
            slopes = told["alibi_slopes"].expand(3, 2)[n]
            far = (torch.arange(b - a)[:, None] + offset - torch.arange(d - c)).abs()
            bias = bias - slopes[:, None, None] * far
        rest = {name: told[name] for name in ("is_causal", "window", "mapping") if name in told}
        alone = nn.scaled_dot_product_attention(
            q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], bias, enable_gqa=True, causal_offset=offset, **rest
        )
        parts.append(alone)
    expected = torch.cat(parts, 2)[0].transpose(0, 1)
    close(packed, expected, "a packed sequence is a sequence")
    slopes = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (packed, expected))
    for a, b in zip(*slopes, strict=True):
        close(a, b, "a packed sequence is a sequence in gradients")


def test_starts_that_do_not_fit_are_refused(monkeypatch):
    x, starts = torch.randn(5, 1, 4), torch.tensor([0, 2, 5])
    for wrong in ([0, 2, 4], [0, 2, 6]):
        for given in ((torch.tensor(wrong), starts), (starts, torch.tensor(wrong))):
            with pytest.raises(ValueError, match=r"cu_seqlens_. .*, from 0 on, in order, up to 5; got \[0, 2, "):
                nn.varlen_attention(x, x, x, *given)
    with pytest.raises(ValueError, match=r"max_seqlen_q must be at least the longest length, 3; got 2"):
        nn.varlen_attention(x[:4], x, x, torch.tensor([0, 3, 4]), starts, max_seqlen_q=2)
    with pytest.raises(ValueError, match=r"got no sequence for 5 tokens"):
        nn.varlen_attention(x, x, x, starts[:1], starts[:1])
    # as on an accelerator, whose numbers would have to be waited for
    monkeypatch.setattr("polymax.nn.packed_attention._check.readable", lambda t: False)
    with pytest.raises(ValueError, match=r"so large that 2 sequences have 5 tokens; got 2: cu_seqlens would end"):
        nn.varlen_attention(x, x, x, starts, starts, max_seqlen_q=2)
    with pytest.raises(ValueError, match=r"causal_offset must be an integer, or \(2,\)"):
        nn.varlen_attention(x, x, x, starts, starts, causal_offset=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"alibi_slopes must be \(1,\) or \(2, 1\); got \(2,\)"):
        nn.varlen_attention(x, x, x, starts, starts, alibi_slopes=torch.ones(2))
    with pytest.raises(ValueError, match=r"attn_mask must broadcast to \(2, 1, 3, 3\) and have 4 dims; got \(1, 5\)"):
        nn.varlen_attention(x, x, x, starts, starts, attn_mask=torch.ones(1, 5))


CACHED = {
    "padding": {"left_padding": torch.tensor([0, 7])},
    "sequences": {"sequences": torch.tensor([1, 1, 0])},
    "not causal": {"is_causal": False},
    "mask": {"attn_mask": torch.rand(2, 1, 1, 20) > 0.3},
    "slopes": {"alibi_slopes": torch.tensor([[0.5, 0.1], [1.0, 0.0]])},
    "all": {
        "sequences": torch.tensor([1, 0]),
        "left_padding": torch.tensor([3, 0]),
        "alibi_slopes": torch.tensor([0.5, 0.1]),
        "is_causal": False,
        "window": (9, 3),
    },
    "window": {"window": (6, -1)},
    "length scaling": {"mapping": nn.LengthScaling(2, beta=1.0)},
}


@pytest.mark.parametrize("paged", [False, True], ids=["cache", "pages"])
@pytest.mark.parametrize("mapping", [pm.entmax, pm.softmax], ids=["entmax", "softmax"])
@pytest.mark.parametrize("options", CACHED.values(), ids=CACHED.keys())
def test_caches_take_padding_numbers_slopes_and_masks(options, mapping, paged):
    key, value = torch.randn(2, 2, 1, 20, 8).unbind()
    lengths = [20, 15] if paged else [20, 20]
    if paged:
        table = torch.tensor([[3, 0], [1, 2]])
        pool = torch.full((2, 4, 1, 16, 8), torch.nan)
        for t, held in zip(pool, (key, value), strict=True):
            t[table] = torch.nn.functional.pad(held, (0, 0, 0, 12)).unflatten(2, (2, 16)).transpose(1, 2)
        cache = nn.KeyValuePages(*pool, table, torch.tensor(lengths))
    else:
        cache = nn.KeyValueCache()
        cache.append(key, value)
    sequences = options.get("sequences", torch.arange(2))
    told = {"mapping": mapping, "is_causal": True, **options}
    query = torch.randn(len(sequences), 2, 2, 8)
    with torch.no_grad():
        found = nn.cache_attention(query, cache, **told)
    for b, n in enumerate(sequences.tolist()):
        length = lengths[n]
        places = torch.arange(2) + length - 2
        bias = torch.zeros(1, 2, 2, length)
        if "left_padding" in told:
            bias = bias.masked_fill(torch.arange(length) < told["left_padding"][b], -torch.inf)
        if "attn_mask" in told:
            bias = bias.masked_fill(~told["attn_mask"][b : b + 1, ..., :length], -torch.inf)
        if "alibi_slopes" in told:
            slopes = told["alibi_slopes"].expand(len(sequences), 2)[b]
            bias = bias - slopes[:, None, None] * (places[:, None] - torch.arange(length)).abs()
        rest = {name: told[name] for name in ("is_causal", "window", "mapping") if name in told}
        kept = (t[n : n + 1, :, :length] for t in (key, value))
        expected = nn.scaled_dot_product_attention(
            query[b : b + 1], *kept, bias, enable_gqa=True, causal_offset=length - 2, **rest
        )
        close(found[b : b + 1], expected, "a cache is its keys and values")


def test_pages_leave_the_lengths_of_the_caller():
    lengths = torch.tensor([3, 0])
    pages = nn.KeyValuePages(*torch.zeros(2, 2, 1, 16, 4), torch.tensor([[0], [1]]), lengths)
    other = pages.boxed()
    pages.append(*torch.randn(2, 2, 1, 2, 4))
    assert lengths.tolist() == other.lengths.tolist() == [3, 0]
    assert pages.lengths.tolist() == [5, 2]
    for name in ("left_padding", "sequences"):
        with pytest.raises(ValueError, match=rf"{name} must be \(2,\) integers, one for each query"):
            nn.cache_attention(torch.randn(2, 1, 1, 4), pages, **{name: torch.zeros(3)})
    with pytest.raises(ValueError, match=r"sequences must be from 0 to 1; got \[0, 2\]"):
        nn.cache_attention(torch.randn(2, 1, 1, 4), pages, sequences=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"alibi_slopes must be \(1,\) or \(2, 1\); got \(3,\)"):
        nn.cache_attention(torch.randn(2, 1, 1, 4), pages, alibi_slopes=torch.zeros(3))


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
def test_nested_tensors_of_both_layouts():
    module = nn.MultiheadAttention(8, 2, batch_first=True, mapping=pm.sparsemax)
    parts = [torch.randn(n, 8, requires_grad=True) for n in (3, 5)]
    nested = torch.nested.as_nested_tensor(parts)
    assert nested.layout == torch.strided
    out, weights = module(nested, nested, nested, need_weights=False, is_causal=True)
    assert weights is None
    assert out.layout == torch.strided
    for a, x in zip(out.unbind(), parts, strict=True):
        expected = module(x[None], x[None], x[None], is_causal=True)[0][0]
        close(a, expected, "a nested sequence is a sequence")
        slopes = (torch.autograd.grad(t.square().sum(), x, retain_graph=True)[0] for t in (a, expected))
        close(*slopes, "a nested sequence has its gradient")
    heads = torch.nested.as_nested_tensor([torch.randn(2, n, 4) for n in (3, 5)])
    for a, x in zip(nn.scaled_dot_product_attention(heads, heads, heads).unbind(), heads.unbind(), strict=True):
        close(a, nn.scaled_dot_product_attention(x, x, x), "a nested sequence is a sequence")
    with pytest.raises(ValueError, match="batch_first must be True for nested tensors"):
        nn.MultiheadAttention(8, 2)(nested, nested, nested, need_weights=False)
    with pytest.raises(ValueError, match="must all be nested tensors of one layout, or none"):
        module(nested, parts[0][None], parts[0][None], need_weights=False)


@both_paths
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"window": (3, 1), "causal_offset": 1},
        {"attn_mask": torch.rand(2, 9, 9) > 0.3, "is_causal": True},
        {"attn_mask": (torch.arange(9) > 2).expand(1, 1, 1, 9)},
    ],
    ids=["all", "causal", "window", "mask", "padding"],
)
def test_length_scaling_multiplies_scores(options, keys, monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", keys)
    mapping = nn.LengthScaling(2, pm.entmax, beta=0.7, gamma=1.2).double()
    q, k, v = heads(9)
    found = nn.scaled_dot_product_attention(q, k, v, mapping=mapping, **options)
    seen = nn.attention_weights(q, k, mapping=lambda x, dim: (x > -torch.inf).double(), **options).sum(-1)
    factor = (1 + 0.7 * seen.clamp(min=2).log() ** 1.2)[..., None]
    expected = nn.scaled_dot_product_attention(q * factor, k, v, mapping=pm.entmax, **options)
    # parameters have the digits of float32
    assert torch.allclose(found, expected, atol=1e-6)
    scores = (q @ k.mT / 2).masked_fill(torch.rand(9, 9) > 0.6, -torch.inf)
    close(mapping(scores), nn.attention_weights(q, k, scores > -torch.inf, mapping=mapping), "it is a mapping, too")
    parameters = list(mapping.parameters())
    slopes = torch.autograd.grad(found.square().sum(), parameters)
    assert all(s.isfinite().all() and (s != 0).any() for s in slopes)


def test_length_scaling_is_learned_and_saved():
    module = nn.MultiheadAttention(8, 2, batch_first=True, mapping=nn.LengthScaling(2, pm.softmax))
    names = [name for name, _ in module.named_parameters() if name.startswith("mapping")]
    assert names == ["mapping.delta", "mapping.raw_beta", "mapping.gamma"]
    x = torch.randn(2, 5, 8)
    out, _ = module(x, x, x)
    close(module(x, x, x, need_weights=False)[0], out, "the result does not depend on need_weights")
    torch.nn.init.constant_(module.mapping.gamma, 2.0)
    again = nn.MultiheadAttention(8, 2, batch_first=True, mapping=nn.LengthScaling(2, pm.softmax))
    again.load_state_dict(module.state_dict())
    equal(again(x, x, x)[0], module(x, x, x)[0], "a state_dict has the parameters")
    mapping = nn.LengthScaling(2, nn.AdaptiveEntmax(2)).double()
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    parameters = dict(mapping.named_parameters())

    def call(scores, *values):
        return torch.func.functional_call(mapping, dict(zip(parameters, values)), (scores,))

    assert gradcheck(call, (scores, *parameters.values()))
    with pytest.raises(ValueError, match=r"for the 4 heads of MultiheadAttention; got LengthScaling\(num_heads=2\)"):
        nn.MultiheadAttention(8, 4, mapping=nn.LengthScaling(2))
    with pytest.raises(ValueError, match="beta must be positive and finite; got 0"):
        nn.LengthScaling(2, beta=0)
    with pytest.raises(TypeError, match="mapping must not be a LengthScaling itself"):
        nn.LengthScaling(2, nn.LengthScaling(2))
    with pytest.raises(ValueError, match="num_heads must be a positive integer; got 0"):
        nn.LengthScaling(0)
