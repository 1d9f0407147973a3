"""Hugging Face models with attention by a mapping: softmax gives their own attention, others the same laws."""

import logging
from functools import partial

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.nn import fused_attention
from polymax.nn.attention_call import AttentionCall

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("polymax.integrations.transformers")
BoxedLayer = pytest.importorskip("polymax.integrations.transformers.cache").BoxedLayer

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "initializer_range": 0.5}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
T5 = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
}
BART = {
    **{f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in (("layers", 2), ("attention_heads", 2))},
    **{"vocab_size": 40, "d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "init_std": 0.5},
}
# an encoder; decoders with grouped heads, with bounded scores and windows, with sinks; encoder-decoders
MODELS = {
    "bert": ("BertForMaskedLM", "BertConfig", {**SIZES, "num_attention_heads": 2}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**SIZES, **IDS, **HEADS}),
    "gemma": ("Gemma2ForCausalLM", "Gemma2Config", {**SIZES, **IDS, **HEADS, "sliding_window": 4}),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**SIZES, **IDS, **HEADS, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", "BartConfig", {**BART, **IDS, "decoder_start_token_id": 2}),
}
DECODERS = ("llama", "gemma", "gpt-oss")
every = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity(logging.ERROR)
    integration.register()


def make(name, implementation="polymax_sparsemax", **changes):
    """The same parameters for every implementation."""
    model, config, options = MODELS[name]
    config = getattr(transformers, config)(**{**options, **changes})
    torch.manual_seed(0)
    return getattr(transformers, model)._from_config(config, attn_implementation=implementation).eval()


def batch(name):
    """Token numbers, and the mask of two sequences, one shorter."""
    ids = torch.randint(3, 40, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    return {**inputs, "decoder_input_ids": ids.flip(1)} if name in ("t5", "bart") else inputs


def logits(model, inputs):
    """Those of tokens: what stands at padding is nobody's business."""
    keep = torch.ones(2, 7).bool() if "decoder_input_ids" in inputs else inputs["attention_mask"].bool()
    return model(**inputs).logits[keep]


@every
def test_softmax_gives_the_model_s_own_attention(name):
    inputs = batch(name)
    eager, ours = make(name, "eager"), make(name, "polymax_softmax")
    # kernels round in another order, and logits are large
    size = logits(eager, inputs).abs().max()
    close(logits(ours, inputs) / size, logits(eager, inputs) / size, "softmax is eager")
    unmasked = {**inputs, "attention_mask": torch.ones(2, 7).long()}
    close(logits(ours, unmasked) / size, logits(eager, unmasked) / size, "softmax is eager without padding")
    found, expected = (m(**inputs, output_attentions=True) for m in (ours, eager))
    for kind in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        for a, b in zip(found.get(kind) or (), expected.get(kind) or (), strict=True):
            close(a[:1], b[:1], f"{kind} are eager's")
    assert any(key.endswith("attentions") for key in found)
    assert not torch.allclose(logits(make(name), inputs), logits(eager, inputs), atol=1e-3), "sparsemax is not softmax"


@every
def test_masked_is_truncated(name):
    inputs = batch(name)
    short = {key: x[1:] if key == "decoder_input_ids" else x[1:, :5] for key, x in inputs.items()}
    # batches of one and of two round in another order; experts have no float64
    model = make(name) if name == "gpt-oss" else make(name).double()
    rows = 7 if "decoder_input_ids" in inputs else 5
    found, expected = model(**inputs).logits[1:, :rows], model(**short).logits
    size = expected.abs().max()
    close(found / size, expected / size, "masked is truncated")


@every
@pytest.mark.parametrize("mapping", ["softmax", "entmax", "adaptive_entmax"])
def test_fused_attention_is_that_of_all_scores(name, mapping, monkeypatch):
    """Models whose weights nobody asks for never hold them; logits and gradients are the same."""
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    inputs, model = batch(name), make(name, "eager")
    try:
        integration.use(model, f"polymax_{mapping}")
    except ValueError as error:
        pytest.skip(f"this version of Transformers: {error}")
    taken = []
    fused = AttentionCall.fused
    monkeypatch.setattr(AttentionCall, "fused", lambda self, route: taken.append(self) or fused(self, route))
    results = []
    for asked in (False, True):
        taken.clear()
        found = model(**inputs, output_attentions=asked)
        # torch's kernels have no softcap and no sinks
        assert bool(taken) == (not asked and (mapping != "softmax" or name not in ("gemma", "gpt-oss")))
        weights = [p for p in model.parameters() if p.requires_grad]
        chosen = found.logits[:1]
        slopes = torch.autograd.grad(chosen.square().sum() / 100, weights, allow_unused=True)
        results.append([chosen, *(s for s in slopes if s is not None)])
    for a, b in zip(*results, strict=True):
        size = max(1.0, b.abs().max().item()) * 10
        close(a / size, b / size, "fused attention is that of all scores")


@pytest.mark.parametrize("mapping", integration.DEFAULTS)
def test_weights_are_sparse(mapping):
    inputs = batch("llama")
    for weights in make("llama", f"polymax_{mapping}")(**inputs, output_attentions=True).attentions:
        assert weights.shape == (2, 4, 7, 7)
        assert (weights.triu(1) == 0).all(), "a decoder does not look ahead"
        close(weights[0].sum(-1), torch.ones(4, 7), "weights sum to 1")
        assert (mapping == "softmax") == bool((weights[0].tril() > 0).sum() == 4 * 28)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_step_of_training(name):
    model = make(name).train()
    inputs = batch(name)
    inputs.pop("decoder_input_ids", None)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", [*DECODERS, "t5", "bart"])
def test_generate(name):
    inputs = batch(name)
    inputs.pop("decoder_input_ids", None)
    if name in DECODERS:
        # decoders continue from the right
        inputs = {key: x.flip(1) for key, x in inputs.items()}
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    model = make(name)
    kept = model.generate(**inputs, **options, use_cache=True)
    equal(kept, model.generate(**inputs, **options, use_cache=False), "a cache changes nothing")
    eager, ours = (make(name, kind).generate(**inputs, **options) for kind in ("eager", "polymax_softmax"))
    equal(ours, eager, "softmax generates what eager does")


@pytest.mark.parametrize("implementation", ["polymax_entmax", "polymax_softmax"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_cache_with_boxes_generates_the_same(name, options, implementation, device):
    model = make(name, implementation).to(device)
    inputs = {key: x.flip(1).repeat(1, 20).to(device) for key, x in batch(name).items()}
    inputs["attention_mask"] = (torch.arange(140) >= torch.tensor([[0], [30]])).long().to(device)
    options = {**options, "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    dense = model.generate(**inputs, **options)
    boxed = integration.BoxedCache(config=model.config)
    equal(model.generate(**inputs, **options, past_key_values=boxed), dense, "boxes change nothing")
    assert any(isinstance(layer, BoxedLayer) for layer in boxed.layers)


def test_a_mapping_of_one_s_own():
    integration.register("entmax_1.3", pm.Tsallis(1.3))
    integration.register("budget", partial(pm.budgetmax, k=1))
    inputs = batch("bert")
    ours = make("bert", "polymax_entmax_1.3")(**inputs, output_attentions=True).attentions[0]
    soft = make("bert", "polymax_softmax")(**inputs, output_attentions=True).attentions[0]
    keep = inputs["attention_mask"].bool()[:, None, None]
    scores = soft.log().masked_fill(~keep, -torch.inf)
    close(ours, pm.entmax(scores, 1.3), "scores are softmax's, up to a shift")
    one = make("bert", "polymax_budget")(**inputs, output_attentions=True).attentions[0]
    close(one, pm.sparsemax(scores), "a function, too")


def test_dropout_in_training():
    model = make("bert", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    inputs = batch("bert")
    equal(logits(model, inputs), logits(model, inputs), "without training there is none")
    model.train()
    assert not torch.equal(logits(model, inputs), logits(model, inputs))


def test_half_precision():
    inputs = batch("llama")
    model = make("llama")
    expected = logits(model, inputs)
    found = logits(model.bfloat16(), inputs)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().mean() < 0.05 * expected.abs().mean()


def test_a_query_that_may_see_nothing_has_zeros():
    """Padding on the left: the first queries have no key; float masks write the lowest number for -inf."""
    q, k, v = torch.randn(3, 1, 2, 3, 4).unbind(0)
    keep = torch.tensor([[False, False, False], [False, True, False], [False, True, True]])
    low = torch.zeros(3, 3).masked_fill(~keep, torch.finfo(torch.float32).min)
    module = torch.nn.Module()
    for mask in (keep, low):
        out, weights = integration.attention(
            pm.sparsemax, module, q, k, v, mask.expand(1, 1, 3, 3), output_attentions=True
        )
        assert (out[:, 0] == 0).all()
        assert (weights[..., ~keep] == 0).all()
        close(weights[..., 1:, :].sum(-1), torch.ones(1, 2, 2), "others are not touched")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_compile():
    torch._dynamo.reset()
    model, inputs = make("llama", num_hidden_layers=1), batch("llama")
    fn = torch.compile(lambda **inputs: model(**inputs, use_cache=False).logits, fullgraph=True, backend="eager")
    close(fn(**inputs), model(**inputs).logits, "compiled is the same")


def test_errors():
    for options in ({}, {"mapping": pm.softmax, "learned": pm.nn.AdaptiveEntmax}):
        with pytest.raises(TypeError, match=r"must be given either mapping or learned"):
            integration.register("sparse", **options)
    with pytest.raises(TypeError, match=r"name must be given with a mapping"):
        integration.register(mapping=pm.softmax)
    with pytest.raises(TypeError, match=r"learned must be a function of the number of heads; got int"):
        integration.register("sparse", learned=4)
    with pytest.raises(ValueError, match=r"name must be a string without the prefix 'polymax_'.*got 'polymax_x'"):
        integration.register("polymax_x", pm.softmax)
    with pytest.raises(ValueError, match=r"mapping must have no parameters.*got AdaptiveEntmax"):
        integration.register("sparse", pm.nn.AdaptiveEntmax(4))
    with pytest.raises(TypeError, match=r"mapping must be a function.*; got float"):
        integration.register("sparse", 1.5)


def test_names_are_explained():
    with pytest.raises(ValueError, match=r"'sparsemax' is named 'polymax_sparsemax' in models"):
        make("llama", "sparsemax")
    with pytest.raises(
        ValueError, match=r"unknown attention implementation 'polymax_ghost'.*register\('ghost', mapping\)"
    ):
        make("llama", "polymax_ghost")
    with pytest.raises(ValueError, match=r"unknown attention implementation 'eager'; there are .*polymax_sparsemax"):
        integration.use(make("llama"), "eager")


def test_selected_keys():
    """An indexer chooses the keys of each query; -1 is none."""
    q, k, v = torch.randn(3, 1, 2, 3, 4).unbind(0)
    indices = torch.tensor([[[0, -1], [1, 0], [2, 0]]])
    keep = torch.tensor([[True, False, False], [True, True, False], [True, False, True]])
    module = torch.nn.Module()
    found = integration.attention(pm.sparsemax, module, q, k, v, None, indices=indices, output_attentions=True)
    expected = integration.attention(pm.sparsemax, module, q, k, v, keep.expand(1, 1, 3, 3), output_attentions=True)
    for a, b in zip(found, expected, strict=True):
        equal(a, b, "what is not selected is masked")
