"""Hugging Face models over packed documents, pages of continuous batching and selected blocks: nothing is dropped."""

import logging

import pytest
import torch
from tolerances import close, equal

import polymax as pm

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("polymax.integrations.transformers")
forward = pytest.importorskip("polymax.integrations.transformers.forward")

SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "initializer_range": 0.5}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
# a decoder, and one with bounded scores and a window in every second layer
DECODERS = {"llama": ("Llama", {}), "gemma": ("Gemma2", {"sliding_window": 4})}
LENGTHS = (7, 3, 5)


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity(logging.ERROR)
    integration.register()


def make(name, implementation="polymax_entmax", layers=2):
    family, more = DECODERS[name]
    config = getattr(transformers, f"{family}Config")(**SIZES, **IDS, **HEADS, **more, num_hidden_layers=layers)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")
    return model._from_config(config, attn_implementation=implementation).eval()


def documents():
    return [torch.randint(3, 40, (n,)) for n in LENGTHS]


def padded(rows):
    ids, mask, labels = torch.zeros(3, 7).long(), torch.zeros(3, 7).long(), torch.full((3, 7), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)], labels[i, : len(row)] = row, 1, row
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.fixture
def calls(monkeypatch):
    taken, varlen = [], forward.varlen_attention

    def count(*args, **options):
        taken.append(options)
        return varlen(*args, **options)

    monkeypatch.setattr(forward, "varlen_attention", count)
    return taken


@pytest.mark.parametrize("told", ["positions", "starts"])
@pytest.mark.parametrize("name", DECODERS)
def test_packed_documents_are_padded_ones(name, told, calls):
    model, rows = make(name).double(), documents()
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=told == "starts")
    packed = collate([{"input_ids": row.tolist(), "labels": row.tolist()} for row in rows])
    found, expected = model(**packed, use_cache=False), model(**padded(rows))
    assert len(calls) == 2, "both layers take the packed path"
    inside = torch.cat([expected.logits[i, :n] for i, n in enumerate(LENGTHS)])
    # batches of other shapes round in another order
    assert torch.allclose(found.logits[0], inside, atol=1e-4)
    assert abs(found.loss.item() - expected.loss.item()) < 1e-6
    slopes = (torch.autograd.grad(out.loss, list(model.parameters())) for out in (found, expected))
    for a, b in zip(*slopes, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    kept = model(**packed, use_cache=True)
    assert torch.allclose(kept.logits, found.logits, atol=1e-4), "a cache changes nothing"
    assert len(model(**packed, use_cache=False, output_attentions=True).attentions) == 2


def heads(tokens, batch=1):
    return [torch.randn(batch, 2, tokens, 4) for _ in range(3)]


def attend(inputs, mask=None, module=None, mapping=pm.sparsemax, **options):
    return integration.attention(mapping, module or torch.nn.Module(), *inputs, mask, **options)


def test_masks_and_starts_are_both_obeyed(calls):
    q, k, v = heads(6)
    starts = torch.tensor([0, 2, 6], dtype=torch.int32)
    told = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 4, "max_length_k": 4}
    same = torch.ones(6, 6).tril().bool()
    same[2:, :2] = False
    expected = attend((q, k, v), same[None, None])[0]
    close(attend((q, k, v), **told)[0], expected, "starts are a mask")
    close(attend((q, k, v), same[None, None], **told)[0], expected, "a mask that says the same is not needed")
    low = torch.zeros(6, 6).masked_fill(~same, torch.finfo(torch.float32).min)[None, None]
    close(attend((q, k, v), low, **told)[0], expected, "nor is a float mask")
    assert len(calls) == 3
    context, weights = attend((q, k, v), output_attentions=True, **told)
    close(context, expected, "weights that are asked for change nothing")
    assert (weights[..., ~same] == 0).all()
    # a mask that hides more, or adds something
    more = same & (torch.arange(6) != 3)
    close(attend((q, k, v), more[None, None], **told)[0], attend((q, k, v), more[None, None])[0], "both are obeyed")
    bias = torch.randn(1, 2, 6, 6)
    both = bias.masked_fill(~same, -torch.inf)
    close(attend((q, k, v), position_bias=bias, **told)[0], attend((q, k, v), both)[0], "a bias is added")
    # all keys of a sequence, and a window
    module = torch.nn.Module()
    module.is_causal = False
    whole = attend((q, k, v), (same | same.T)[None, None])[0]
    close(attend((q, k, v), module=module, **told)[0], whole, "an encoder sees what follows")
    near = same & ~torch.ones(6, 6).tril(-2).bool()
    close(attend((q, k, v), sliding_window=2, **told)[0], attend((q, k, v), near[None, None])[0], "windows count")
    # two rows of tokens, in which sequences lie one after the other
    pair = heads(3, batch=2)
    flat = [t.transpose(0, 1).flatten(1, 2)[None] for t in pair]
    found = attend(pair, cu_seq_lens_q=starts, cu_seq_lens_k=starts)[0]
    close(found.flatten(0, 1), attend(flat, cu_seq_lens_q=starts, cu_seq_lens_k=starts)[0][0], "rows are one row")


def test_positions_and_windows_without_a_mask():
    q, k, v = heads(6)
    positions = torch.tensor([[0, 1, 0, 1, 2, 3]])
    same = torch.ones(6, 6).tril().bool()
    plain = attend((q, k, v), same[None, None])[0]
    close(attend((q, k, v), position_ids=torch.arange(5, 11)[None])[0], plain, "positions may start anywhere")
    same[2:, :2] = False
    close(attend((q, k, v), position_ids=positions)[0], attend((q, k, v), same[None, None])[0], "they begin again")
    near = torch.ones(6, 6).tril().triu(-2).bool()
    expected = attend((q, k, v), near[None, None])[0]
    close(attend((q, k, v), sliding_window=3)[0], expected, "a window counts without a mask")
    last = attend((q[:, :, 5:], k, v), sliding_window=3)[0]
    close(last, expected[:, 5:], "and for one query over a cache")


class Indexer(torch.nn.Module):
    block_size = 2


def test_selected_blocks():
    q, k, v = heads(5)
    module = torch.nn.Module()
    module.indexer = Indexer()
    blocks = torch.tensor([[[[0, -1], [0, -1], [1, 0], [1, -1], [2, 0]]]])
    keep = torch.zeros(5, 6).bool()
    for i, row in enumerate(blocks[0, 0].tolist()):
        for n in row:
            if n >= 0:
                keep[i, 2 * n : 2 * n + 2] = True
    keep = keep[:, :5].tril()
    found = attend((q, k, v), module=module, block_indices=blocks)[0]
    close(found, attend((q, k, v), keep[None, None])[0], "blocks that are not selected are masked")
    with pytest.raises(ValueError, match=r"an indexer that has a block_size; Module has none"):
        attend((q, k, v), block_indices=blocks)


def test_what_is_not_known_is_refused():
    inputs = heads(3)
    for name in ("head_mask", "alibi_slopes", "attention_chunk_size", "local_window", "cu_seqlens"):
        with pytest.raises(ValueError, match=rf"{name} must be None"):
            attend(inputs, **{name: torch.ones(1)})
    attend(inputs, head_mask=None, num_items_in_batch=3)
    starts = torch.tensor([0, 3])
    with pytest.raises(ValueError, match="cu_seq_lens_q and cu_seq_lens_k must be given together"):
        attend(inputs, cu_seq_lens_q=starts)
    with pytest.raises(ValueError, match=r"cu_seqlens_q .* up to 3; got"):
        attend(inputs, cu_seq_lens_q=starts - 1, cu_seq_lens_k=starts - 1)


@pytest.mark.parametrize("name", DECODERS)
def test_continuous_batching_generates_what_generate_does(name):
    model, prompts = make(name), [[3, 4, 5, 6, 7, 8], [9, 10], [11, 12, 13]]
    told = transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0)
    found = model.generate_batch(inputs=prompts, generation_config=told)
    for prompt, request in zip(prompts, found.values(), strict=True):
        alone = model.generate(torch.tensor([prompt]), generation_config=told)
        assert request.generated_tokens == alone[0, len(prompt) :].tolist()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@torch.no_grad()
def test_a_layer_compiles_by_itself():
    torch._dynamo.reset()
    model = make("llama", layers=1)
    tokens = torch.randint(3, 40, (1, 6))
    expected = model(tokens, use_cache=False).logits
    model.model.layers[0].compile(fullgraph=True, backend="eager")
    close(model(tokens, use_cache=False).logits, expected, "a compiled layer is the layer")


def test_length_scaling_is_saved_with_the_model(tmp_path):
    model = make("llama", "eager")
    integration.use(model, "polymax_length_scaled_entmax")
    mapping = model.model.layers[1].self_attn.polymax_mapping
    assert isinstance(mapping, pm.nn.LengthScaling)
    torch.nn.init.constant_(mapping.gamma, 1.5)
    tokens = torch.randint(3, 40, (1, 6))
    expected = model(tokens).logits
    assert not torch.allclose(expected, make("llama")(tokens).logits, atol=1e-3), "factors count"
    model.save_pretrained(tmp_path)
    equal(integration.load(tmp_path)(tokens).logits, expected, "parameters are saved with the model")
    rows = documents()
    packed = transformers.DataCollatorWithFlattening()([{"input_ids": row.tolist()} for row in rows])
    packed.pop("labels")
    found, alone = model(**packed, use_cache=False).logits[0], [model(row[None]).logits[0] for row in rows]
    assert torch.allclose(found, torch.cat(alone), atol=1e-3), "lengths are those of each document"


def test_block_routing_in_a_model(tmp_path):
    model = make("llama", "eager")
    integration.register("routed", learned=lambda heads: pm.nn.BlockRoutedAttention(heads, block=2, router="sparsemax"))
    integration.use(model, "polymax_routed")
    mapping = model.model.layers[0].self_attn.polymax_mapping
    rows = documents()
    whole = model(rows[0][None])
    weights = model(rows[0][None], output_attentions=True)
    close(weights.logits / 10, whole.logits / 10, "weights change nothing")
    assert (weights.attentions[0].tril() == 0).sum() > 4 * 21, "blocks are left out"
    whole.logits.square().sum().backward()
    assert (mapping.router_scale.grad != 0).any()
    batch = padded(rows)
    batch.pop("labels")
    close(model(**batch).logits[0] / 10, whole.logits[0] / 10, "a row does not depend on padding of others")
    packed = transformers.DataCollatorWithFlattening()([{"input_ids": row.tolist()} for row in rows])
    packed.pop("labels")
    found, alone = model(**packed, use_cache=False).logits[0], [model(row[None]).logits[0] for row in rows]
    close(found / 10, torch.cat(alone) / 10, "blocks are counted in each document")
    told = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    prompt = {"input_ids": batch["input_ids"].flip(1), "attention_mask": batch["attention_mask"].flip(1)}
    expected = model.generate(**prompt, **told, use_cache=False)
    equal(model.generate(**prompt, **told), expected, "a cache changes nothing")
    equal(model.generate(**prompt, **told, cache_implementation="static"), expected, "nor does a static cache")
    model.save_pretrained(tmp_path)
    equal(integration.load(tmp_path)(rows[0][None]).logits, whole.logits, "routers are saved with the model")
    assert integration.use(make("llama", "eager"), "polymax_block_routed")


def packed_rows(rows, starts=False):
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=starts)
    packed = collate([{"input_ids": row.tolist()} for row in rows])
    packed.pop("labels")
    return packed


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("fullgraph", [False, True])
@torch.no_grad()
def test_compiled_models_keep_documents_apart_or_raise(fullgraph):
    model, rows = make("gemma", layers=2), documents()
    alone = torch.cat([model(row[None], use_cache=False).logits[0] for row in rows])
    mask = {"attention_mask": torch.ones(1, sum(LENGTHS), dtype=torch.long)}
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    for starts, more in ((False, {}), (False, mask), (True, {}), (True, mask)):
        found = compiled(**packed_rows(rows, starts), **more, use_cache=False).logits[0]
        assert torch.allclose(found, alone, atol=1e-4), f"starts {starts}, mask {bool(more)}"
    plain = make("llama", layers=1)
    torch._dynamo.reset()
    compiled = torch.compile(plain, backend="eager", fullgraph=fullgraph)
    close(compiled(rows[0][None]).logits, plain(rows[0][None]).logits, "one document")
    # with a cache, Transformers makes no mask of the positions
    with pytest.raises(RuntimeError, match="position_ids begin again"):
        compiled(**packed_rows(rows))


def test_documents_with_masks_and_caches():
    q, k, v = heads(6, batch=2)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1]])
    keep = torch.ones(6, 6).tril().bool() & (torch.arange(6) != 1)
    same = torch.stack([keep, keep])[:, None]
    same[0, 0, 3:, :3] = same[1, 0, 4:, :4] = False
    expected = attend((q, k, v), same)[0]
    mask = keep[None, None].expand(2, 1, 6, 6)
    close(attend((q, k, v), mask, position_ids=positions)[0], expected, "a mask does not tell documents")
    low = torch.zeros(2, 1, 6, 6).masked_fill(~mask, torch.finfo(torch.float32).min)
    close(attend((q, k, v), low, position_ids=positions)[0], expected, "nor does a float mask")
    whole = torch.ones(6, 6).tril().bool()
    whole[3:, :3] = False
    expected = attend((q[:1], k[:1], v[:1]), whole[None, None])[0]
    # the last token over a cache, and the first ones of a cache that is not full
    last = attend((q[:1, :, 5:], k[:1], v[:1]), position_ids=positions[:1, 5:])[0]
    close(last, expected[:, 5:], "a token sees the keys of its document")
    seen = (torch.arange(9) <= torch.arange(6)[:, None])[None, None]
    longer = [torch.cat([t[:1], torch.randn(1, 2, 3, 4)], 2) for t in (k, v)]
    for given in (seen, None):
        close(attend((q[:1], *longer), given, position_ids=positions[:1])[0], expected, "a static cache")
    # a tensor that is changed is read again
    positions.copy_(torch.arange(6).expand(2, 6))
    plain = attend((q, k, v), mask)[0]
    close(attend((q, k, v), mask, position_ids=positions)[0], plain, "positions are read again")
    with torch.inference_mode():
        close(attend((q, k, v), mask, position_ids=torch.arange(6)[None])[0], plain, "tensors without versions")


def test_encoders_are_told_of_documents():
    q, k, v = heads(4)
    module = torch.nn.Module()
    module.is_causal = False
    attend((q, k, v), module=module, position_ids=torch.arange(4)[None])
    with pytest.raises(ValueError, match="position_ids begin again"):
        attend((q, k, v), module=module, position_ids=torch.tensor([[0, 1, 0, 1]]))


@torch.no_grad()
def test_generation_after_packed_prompts_continues_the_last():
    model, rows = make("llama"), documents()
    told = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    alone = model.generate(rows[-1][None], **told)[0, len(rows[-1]) :]
    for more in ({}, {"cache_implementation": "static"}):
        found = model.generate(**packed_rows(rows), **told, **more)[0, sum(LENGTHS) :]
        equal(found, alone, f"{more}")
