"""Log-probabilities in the form of TRL: against all logits, and in three steps of GRPO against TRL's own.

TRL is in no extra of this package: its release asks for versions of its own of Transformers and Accelerate, and only
one test needs it. That test is skipped where TRL is absent; `pip install --no-deps trl` is enough to run it.
"""

import importlib.util

import pytest
import torch
from tolerances import close
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from polymax.integrations.trl import LogProbHead, TokenLogProbs

TRL = importlib.util.find_spec("trl") is not None
SIZES = {
    "vocab_size": 30, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "capped": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=2.0)),
    "scaled": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25)),
}
TOKENS = torch.randint(2, 30, (3, 7), generator=torch.Generator().manual_seed(0))


def made(name="llama"):
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    # scores that differ
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=1.0)
    return model


def dense(model, temperature):
    """Log-probabilities of the next tokens and entropies from all logits."""
    logs = (model(TOKENS).logits[:, :-1] / temperature).log_softmax(-1)
    return logs.gather(-1, TOKENS[:, 1:, None]).squeeze(-1), -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_all_logits(name):
    model = made(name)
    expected = dense(model, 0.8)
    there = torch.ones_like(TOKENS)
    there[0, 5:] = 0
    there[1, :2] = 0
    head = LogProbHead(model, 0.8)
    labels = TOKENS.masked_fill(there == 0, -100)
    found = model(TOKENS, labels=labels, fused_lm_head=True)
    assert isinstance(found, TokenLogProbs)
    kept = there[:, 1:].double()
    for ours, theirs in zip((found.log_probs, found.entropy), expected):
        torch.testing.assert_close(ours, kept * theirs, rtol=1e-6, atol=1e-6)
    close(found.loss, -found.log_probs.sum() / kept.sum(), "loss")
    assert torch.equal(found.label_mask, kept.bool())
    parameters = list(model.parameters())
    directions = [torch.rand_like(kept) for _ in range(2)]
    ours = torch.autograd.grad((found.log_probs, found.entropy), parameters, directions)
    theirs = torch.autograd.grad([kept * t for t in expected], parameters, directions)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    head.remove()
    assert "forward" not in vars(model)


def test_the_last_layer_is_not_called():
    model = made()
    head = LogProbHead(model)
    called = []
    model.lm_head.register_forward_hook(lambda *_: called.append(True))
    model(TOKENS, labels=TOKENS, fused_lm_head=True)
    head.per_token(TOKENS)
    assert not called
    assert model(TOKENS).logits.shape == (3, 7, 30)
    assert called


def test_the_form_of_earlier_versions():
    """The last tokens, 0 where the mask is 0."""
    model = made()
    expected = dense(model, 1.0)
    mask = torch.ones_like(TOKENS)
    mask[2, 5:] = 0
    found = LogProbHead(model).per_token(TOKENS, mask, logits_to_keep=3)
    for ours, theirs in zip(found, expected):
        close(ours, (mask[:, 1:] * theirs)[:, -3:], "the last three")


def test_shifted_labels_and_items():
    model = made()
    LogProbHead(model)
    shifted = torch.cat([TOKENS[:, 1:], torch.full((3, 1), -100)], 1)
    found = model(TOKENS, shift_labels=shifted, fused_lm_head=True, num_items_in_batch=5)
    plain = model(TOKENS, labels=TOKENS, fused_lm_head=True)
    close(found.log_probs[:, :-1], plain.log_probs, "as shifted here")
    close(found.loss, -plain.log_probs.sum() / 5, "divided by items")


def test_a_batch_without_labels_has_gradients_of_zero():
    model = made()
    LogProbHead(model)
    found = model(TOKENS, labels=torch.full_like(TOKENS, -100), fused_lm_head=True)
    found.loss.backward()
    assert float(found.loss.detach()) == 0
    assert (model.lm_head.weight.grad == 0).all()


def test_errors():
    model = made()
    with pytest.raises(ValueError, match="temperature must be positive and finite; got 0"):
        LogProbHead(model, 0)
    head = LogProbHead(model)
    with pytest.raises(ValueError, match="labels must be given with fused_lm_head=True"):
        model(TOKENS, fused_lm_head=True)
    with pytest.raises(ValueError, match=r"logits_to_keep must be in \[1, 7\), the number of tokens; got 7"):
        head.per_token(TOKENS, logits_to_keep=7)
    with pytest.raises(ValueError, match="output_router_logits must be False"):
        model(TOKENS, labels=TOKENS, fused_lm_head=True, output_router_logits=True)
    model.set_output_embeddings(torch.nn.Sequential(model.lm_head))
    with pytest.raises(ValueError, match="must have a linear layer as get_output_embeddings"):
        LogProbHead(model)


@pytest.mark.skipif(not TRL, reason="trl is not installed")
@pytest.mark.filterwarnings("ignore")
def test_three_steps_of_grpo(tmp_path):
    """Losses, norms of gradients and entropies are those of TRL's own head; the second step leaves the policy."""
    (own, weights), (ours, trained) = (grpo(tmp_path, replaced) for replaced in (False, True))
    assert len(own) == len(ours) == 3
    assert max(abs(step["loss"]) for step in own) > 1e-4
    for one, other in zip(ours, own):
        for name in ("loss", "grad_norm", "entropy", "kl"):
            assert one[name] == pytest.approx(other[name], rel=1e-6, abs=1e-6), name
    for one, other in zip(trained, weights):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def grpo(folder, replaced):
    """The log of three steps of GRPO on a tiny random model, and its weights."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(28))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder / "policy")
    model = LlamaForCausalLM.from_pretrained(folder / "policy")
    given = GRPOConfig(
        output_dir=folder / "run", per_device_train_batch_size=4, num_generations=4, max_completion_length=6,
        num_iterations=2, max_steps=3, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", bf16=False,
        learning_rate=1e-2, beta=0.1, temperature=0.8, seed=3, disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip

    def reward(completions, **_):
        return [len(set(one.split())) + len(one) / 9 for one in completions]

    trainer = GRPOTrainer(
        model=model, reward_funcs=reward,
        args=given, train_dataset=Dataset.from_dict({"prompt": ["w1 w2", "w3", "w4 w5 w6"] * 4}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"),
    )  # fmt: skip
    if replaced:
        for each in (trainer.model, trainer.ref_model):
            LogProbHead(each, trainer.temperature)
    trainer.train()
    return [step for step in trainer.state.log_history if "loss" in step], [p.detach() for p in model.parameters()]
