"""A model keeps its attention when it is saved and loaded, and learned mappings belong to it."""

import json
import logging

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from tests.integrations.test_transformers import batch, make

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("polymax.integrations.transformers")

ADAPTIVE = "polymax_adaptive_entmax"


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity(logging.CRITICAL)
    integration.register()


def saved(path):
    return json.loads((path / "config.json").read_text()).get("attn_implementation")


def test_a_name_is_saved_and_loaded(tmp_path):
    inputs, load = batch("llama"), transformers.AutoModelForCausalLM.from_pretrained
    model = make("llama")
    model.save_pretrained(tmp_path / "first")
    assert saved(tmp_path / "first") == "polymax_sparsemax"
    again = load(tmp_path / "first")
    equal(again(**inputs).logits, model(**inputs).logits, "loaded is saved")
    again.save_pretrained(tmp_path / "second")
    equal(load(tmp_path / "second")(**inputs).logits, model(**inputs).logits, "a second time, too")
    helped = integration.load(tmp_path / "second")
    assert type(helped) is transformers.LlamaForCausalLM
    equal(helped(**inputs).logits, model(**inputs).logits, "by the helper")
    other = load(tmp_path / "first", attn_implementation="eager")
    close(other(**inputs).logits[:1], make("llama", "eager")(**inputs).logits[:1], "another name is obeyed")
    other.save_pretrained(tmp_path / "other")
    assert saved(tmp_path / "other") is None
    other.set_attn_implementation("polymax_sparsemax")
    equal(other(**inputs).logits, model(**inputs).logits, "an implementation is changed by its name")
    other.save_pretrained(tmp_path / "other")
    assert saved(tmp_path / "other") == "polymax_sparsemax"


def test_other_names_are_not_saved(tmp_path):
    for name in ("eager", "sdpa"):
        make("llama", name).save_pretrained(tmp_path)
        assert saved(tmp_path) is None
    with pytest.raises(ValueError, match=r"names no attention of polymax"):
        integration.load(tmp_path)


def test_parts_keep_their_names():
    config = transformers.CLIPConfig()
    config._attn_implementation = {"text_config": "polymax_sparsemax", "vision_config": "eager"}
    again = transformers.CLIPConfig.from_dict(config.to_dict())
    assert again.text_config._attn_implementation == "polymax_sparsemax"
    assert again.vision_config._attn_implementation is None
    assert again._attn_implementation is None
    config._attn_implementation = "polymax_entmax"
    assert config.to_dict()["attn_implementation"] == "polymax_entmax"
    again = transformers.CLIPConfig.from_dict(json.loads(config.to_json_string()))
    assert again.vision_config._attn_implementation == "polymax_entmax"


def test_an_unknown_name_is_an_error_at_loading(tmp_path):
    integration.register("once", pm.entmax)
    make("llama", "polymax_once").save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("polymax_once", "polymax_never"))
    for load in (integration.load, transformers.AutoModelForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=r"unknown attention implementation 'polymax_never': add it by .*'never'"):
            load(tmp_path)


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_learned_mappings_belong_to_the_model(name, tmp_path):
    inputs = batch(name)
    model = make(name, "eager")
    modules = integration.use(model, ADAPTIVE)
    heads = {"llama": 4, "bert": 2, "t5": 2}[name]
    learned = {key: p for key, p in model.named_parameters() if "polymax_mapping" in key}
    # T5: the encoder's, the decoder's, and those between
    assert len(learned) == len(modules) == (6 if name == "t5" else 2)
    assert all(p.shape == (heads,) for p in learned.values())
    assert len({id(p) for p in learned.values()}) == len(learned), "one for each layer"
    assert set(learned) <= set(model.state_dict())

    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    labels = {"labels": inputs["input_ids"]}
    for _ in range(2):
        optimizer.zero_grad()
        model(**inputs, **labels).loss.backward()
        optimizer.step()
    assert all((p != 0).all() for p in learned.values()), "an ordinary optimizer trains them"

    model.save_pretrained(tmp_path)
    again = integration.load(tmp_path)
    assert type(again) is type(model)
    equal(again(**inputs).logits, model(**inputs).logits, "loaded is saved")
    for key, p in again.named_parameters():
        equal(p, model.get_parameter(key), key)
    plain = type(model).from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"has no mapping of its own.*transformers\.load"):
        plain(**inputs)
    again.save_pretrained(tmp_path / "again")
    equal(integration.load(tmp_path / "again")(**inputs).logits, model(**inputs).logits, "a second time, too")


def test_load_takes_classes_and_options(tmp_path):
    model = make("llama", "eager")
    integration.use(model, ADAPTIVE)
    for p in (p for key, p in model.named_parameters() if "polymax" in key):
        p.data.normal_()
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    inputs = batch("llama")
    auto = integration.load(tmp_path, transformers.AutoModelForCausalLM)
    equal(auto(**inputs).logits, model(**inputs).logits, "an Auto class, in shards")
    base = integration.load(tmp_path, transformers.AutoModel)
    assert type(base) is transformers.LlamaModel
    equal(base(**inputs).last_hidden_state, model.model(**inputs).last_hidden_state, "the model without its head")
    half = integration.load(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert half(**inputs).logits.isfinite().all()
    with pytest.raises(TypeError, match=r"load gives a model the attention it was saved with"):
        integration.load(tmp_path, attn_implementation="eager")
    with pytest.raises(ValueError, match=r"model_class must take LlamaConfig; got AutoModelForSeq2SeqLM"):
        integration.load(tmp_path, transformers.AutoModelForSeq2SeqLM)


def test_use_takes_learned_mappings_away_again(tmp_path):
    model = make("llama", "eager")
    integration.use(model, ADAPTIVE)
    integration.use(model, "polymax_sparsemax")
    assert not any("polymax" in key for key in model.state_dict())
    equal(model(**batch("llama")).logits, make("llama")(**batch("llama")).logits, "sparsemax")
    model.save_pretrained(tmp_path)
    assert saved(tmp_path) == "polymax_sparsemax"
    assert not hasattr(integration.load(tmp_path).config, "polymax_heads")


def test_learned_mappings_of_one_s_own():
    class Temperature(torch.nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.gamma = torch.nn.Parameter(torch.ones(heads, 1, 1))

        def forward(self, x, dim=-1):
            return pm.sparsemax(x, dim=dim, gamma=self.gamma)

    integration.register("warm", learned=Temperature)
    model, inputs = make("llama", "eager"), batch("llama")
    integration.use(model, "polymax_warm")
    equal(model(**inputs).logits, make("llama")(**inputs).logits, "sparsemax at first")
    model(**inputs).logits.square().sum().backward()
    assert sum(p.grad.abs().sum() for key, p in model.named_parameters() if "polymax" in key) > 0


def test_a_learned_mapping_needs_use():
    with pytest.raises(
        RuntimeError, match=r"call polymax.integrations.transformers.use\(model, 'polymax_adaptive_entmax'\)"
    ):
        make("llama", ADAPTIVE)(**batch("llama"))
