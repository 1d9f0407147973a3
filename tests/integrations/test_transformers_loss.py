"""Models of Transformers under sparse losses: the loss is that of their logits, which Trainer never sees."""

import logging

import pytest
import torch
from tolerances import close

import polymax as pm

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("polymax.integrations.transformers")

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 24, "initializer_range": 0.4}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
# a plain head, tied weights, a cap, a scale
MODELS = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "gemma": ("Gemma2", {"final_logit_softcapping": 3.0, "sliding_window": 4}),
    "cohere": ("Cohere", {"logit_scale": 0.25}),
}


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity(logging.ERROR)


def make(name, **options):
    kind, changes = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **HEADS, "pad_token_id": 0, **changes, **options})
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")._from_config(config)


def batch():
    ids = torch.randint(3, 40, (2, 7))
    labels = ids.clone()
    labels[1, 4:] = -100
    return ids, labels


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_that_of_the_logits(name):
    ids, labels = batch()
    model = make(name)
    plain = model.eval()(ids).logits
    expected = pm.entmax_loss(plain[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), 1.5)
    slopes = torch.autograd.grad(expected, list(model.parameters()))
    loss = integration.EntmaxLoss(model, 1.5)
    model.train()
    outputs = model(ids)
    assert outputs.logits.shape[-1] == 0, "no logits in training"
    found = loss(outputs, labels)
    close(found, expected, "the loss is that of the logits")
    for a, b in zip(torch.autograd.grad(found, list(model.parameters())), slopes, strict=True):
        close(a, b, "and its gradient")
    kept = int((labels[:, 1:] != -100).sum())
    close(loss(model(ids), labels, num_items_in_batch=torch.tensor(2 * kept)), expected / 2, "over accumulated batches")
    model.eval()
    close(model(ids).logits, plain, "logits are there without training")
    loss.remove()
    close(model.train()(ids).logits, plain, "and after the loss is removed")


def test_trainer_learns(tmp_path):
    pytest.importorskip("accelerate", reason="accelerate, which Trainer needs, is not installed")
    model = make("llama")
    rows = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in torch.randint(3, 9, (16, 6))]
    options = {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.02,
    }
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=4,
        prediction_loss_only=True, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:4], compute_loss_func=integration.EntmaxLoss(model)
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged[-1] < logged[0]
    ids = torch.tensor([row["input_ids"] for row in rows[:4]])
    after = trainer.evaluate()["eval_loss"]
    expected = pm.entmax_loss(model.eval()(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert after < before
    assert after == pytest.approx(float(expected.detach()), rel=1e-4)


def test_trainer_distils(tmp_path):
    """Labels are the lists of a teacher; the student comes nearer to it, and the loss is that of its logits."""
    pytest.importorskip("accelerate", reason="accelerate, which Trainer needs, is not installed")
    teacher, student = make("llama").eval(), make("llama", hidden_size=8, intermediate_size=16)
    ids = torch.randint(3, 40, (8, 6))
    with torch.no_grad():
        lists = pm.entmax(8 * teacher(ids).logits)
    probs, words = lists.sort(descending=True)
    words[0, 0] = -1
    probs[0, 0] = 0
    words = torch.where(probs > 0, words, -1)

    def collate(rows):
        places = torch.tensor([row["place"] for row in rows])
        return {"input_ids": ids[places], "labels": {"ids": words[places], "probs": probs[places]}}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=5,
        max_steps=20, per_device_train_batch_size=8, learning_rate=0.02, remove_unused_columns=False,
    )  # fmt: skip
    loss = integration.EntmaxLoss(student)
    batch = collate([{"place": k} for k in range(8)])
    found = loss(student.train()(ids), batch["labels"])
    plain = student.eval()(ids).logits
    each = pm.entmax_loss(plain, lists, 1.5, "none")
    each[0, 0] = 0
    close(found, each.sum() / (each.numel() - 1), "the loss is that of the logits")
    rows = [{"place": k} for k in range(8)]
    trainer = transformers.Trainer(
        student, arguments, data_collator=collate, train_dataset=rows, compute_loss_func=loss
    )
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged[-1] < 0.8 * logged[0]


def test_half_precision():
    ids, labels = batch()
    model = make("llama")
    loss = integration.EntmaxLoss(model)
    expected = loss(model.train()(ids), labels)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(ids)
    found = loss(outputs, labels)
    assert found.dtype == torch.float32
    assert float((found - expected).detach().abs()) < 0.05 * float(expected.detach())
    found.backward()


def test_generation_draws_possible_words_alone():
    model = make("llama").eval()
    ids = torch.randint(3, 40, (64, 3))
    processor = transformers.LogitsProcessorList([integration.EntmaxLogitsProcessor(2.0)])
    drawn = model.generate(ids, max_new_tokens=1, do_sample=True, top_k=0, logits_processor=processor)[:, -1]
    p = pm.sparsemax(model(ids).logits[:, -1])
    assert (p.gather(1, drawn[:, None]) > 0).all()
    soft = model.generate(ids, max_new_tokens=1, do_sample=True, top_k=0)[:, -1]
    assert (p.gather(1, soft[:, None]) == 0).any(), "softmax draws others"


def test_errors():
    model = make("llama")
    with pytest.raises(ValueError, match=r"alpha must be positive"):
        integration.EntmaxLoss(model, 0.0)
    with pytest.raises(ValueError, match=r"temperature must be positive"):
        integration.EntmaxLogitsProcessor(1.5, temperature=0.0)
    loss = integration.EntmaxLoss(model)
    with pytest.raises(ValueError, match=r"labels must be given"):
        loss(None, None)
    with pytest.raises(RuntimeError, match=r"last layer of the model must have been called"):
        loss(None, torch.zeros(1, 2).long())
    bare = transformers.LlamaModel(model.config)
    with pytest.raises(ValueError, match=r"LlamaModel must have a linear layer"):
        integration.EntmaxLoss(bare)
