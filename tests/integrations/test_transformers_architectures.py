"""Architectures of Transformers: equal to eager, or refused. `python -m tests.transformers_sweep` tries all of them."""

import logging

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("polymax.integrations.transformers")
sweep = pytest.importorskip("transformers_sweep")

from architectures import architecture, batch, build, logits  # noqa: E402

# attention of their own: these add a mask to their scores, or choose a class by the implementation's name
REFUSED = {
    "causal": ("bloom", "codegen", "mpt", "xglm", "gpt_neox_japanese", "falcon", "gptj", "git", "xlnet"),
    "masked": (
        "roformer",
        "rembert",
        "megatron-bert",
        "squeezebert",
        "convbert",
        "ibert",
        "mpnet",
        "longformer",
        "yoso",
    ),
    "seq2seq": ("led", "mvp"),
}
# dense, windows, bounded scores, sinks, selected keys, latent keys, experts, biases, encoders, some parts of their own,
# modules that do not know whether they are causal
EQUAL = {
    "causal": ("gpt2", "opt", "gemma2", "gpt_oss", "deepseek_v32", "mixtral", "cohere2", "bert", "jamba"),
    "masked": ("bert", "modernbert", "xlm-roberta", "distilbert", "esm"),
    "seq2seq": ("t5", "bart", "longt5", "bigbird_pegasus", "t5gemma", "nllb-moe"),
}


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity(logging.CRITICAL)
    integration.register()


def pairs(table):
    return [pytest.param(task, kind, id=f"{task}-{kind}") for task, kinds in table.items() for kind in kinds]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("task", "kind"), pairs(EQUAL))
def test_equal_to_eager(task, kind):
    word, reason = sweep.verdict(task, kind)
    assert word == "equal", reason


@pytest.mark.parametrize(("task", "kind"), pairs(REFUSED))
def test_refused(task, kind):
    """Softmax in the place of what was asked for, or a mask that is added as a bool, would be silent."""
    model, config = architecture(task, kind)
    with pytest.raises(
        ValueError, match=f"{model.__name__} cannot have 'polymax_sparsemax': its attention .*Attention"
    ):
        build(model, config, "polymax_sparsemax")
    eager = build(model, config, "eager")
    with pytest.raises(ValueError, match=r"cannot have 'polymax_sparsemax': its attention"):
        integration.use(eager, "polymax_sparsemax")
    with pytest.raises(ValueError, match=rf"no attention of {model.__name__} goes through polymax"):
        integration.check(eager)


def test_masks_of_an_architecture_with_its_own_attention():
    """Whoever writes the name into a configuration by hand gets softmax, but its masks are right."""
    model, config = architecture("causal", "bloom")
    eager = build(model, config, "eager")
    inputs = batch("causal", "right")
    expected = logits(eager, inputs)
    eager.config._attn_implementation = "polymax_sparsemax"
    assert torch.equal(logits(eager, inputs), expected)


def test_who_takes_which_masks():
    """Bool, and None for what is all visible, where every attention module of the architecture is ours."""
    sizes = {"batch_size": 1, "q_length": 3, "kv_length": 3, "dtype": torch.float32}
    llama = transformers.LlamaConfig()
    assert transformers.LlamaForCausalLM.config_class is type(llama)
    keep = torch.tensor([[True, True, False]])
    mask = integration.architectures.attention_mask
    assert mask(**sizes, config=llama) is None
    assert mask(**sizes, config=llama, attention_mask=keep).dtype == torch.bool
    assert transformers.NllbMoeModel._supports_sdpa is False
    assert mask(**sizes, config=transformers.NllbMoeConfig()).dtype == torch.bool
    for config in (transformers.BigBirdPegasusConfig(), transformers.PreTrainedConfig(), None):
        assert mask(**sizes, config=config, attention_mask=keep).dtype == torch.float32


def test_check_names_modules_with_attention_of_their_own():
    model, config = architecture("seq2seq", "longt5")
    found = integration.check(build(model, config, "polymax_sparsemax"))
    own = {type(build(model, config, "eager").get_submodule(name)).__name__ for name, x in found.items() if x is None}
    assert own == {"LongT5LocalAttention"}
    assert set(found.values()) == {None, "polymax_sparsemax"}


def test_check_needs_the_inputs_of_other_models():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, image_size=4, patch_size=2)
    model = transformers.ViTModel._from_config(config, attn_implementation="polymax_sparsemax")
    with pytest.raises(ValueError, match=r"ViTModel must be given inputs here, as keywords: it takes pixel_values"):
        integration.check(model)
    model.train()
    found = integration.check(model, pixel_values=torch.zeros(1, 3, 4, 4))
    assert list(found.values()) == ["polymax_sparsemax"]
    assert model.training


def test_check_names_parts_with_another_implementation():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text = {**sizes, "vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.CLIPConfig(text_config=text, vision_config={**sizes, "image_size": 4, "patch_size": 2})
    names = {"text_config": "polymax_sparsemax", "vision_config": "eager"}
    model = transformers.CLIPModel._from_config(config, attn_implementation=names)
    inputs = {"input_ids": torch.tensor([[1, 3, 2]]), "pixel_values": torch.zeros(1, 3, 4, 4)}
    found = integration.check(model, **inputs)
    assert {name.split("_")[0]: x for name, x in found.items()} == {"text": "polymax_sparsemax", "vision": "eager"}
