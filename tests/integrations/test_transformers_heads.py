"""Token classification by a CRF and dependency parsing above encoders of Transformers."""

import itertools
import logging
import warnings

import pytest
import torch
from tolerances import close, equal

import polymax as pm

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("polymax.integrations.transformers")

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
COMMON = {"vocab_size": 40, "pad_token_id": 0}
ENCODERS = {
    "bert": ("BertConfig", {**SIZES, **STILL}),
    "roberta": ("RobertaConfig", SIZES),
    "distilbert": ("DistilBertConfig", {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}),
    "modernbert": ("ModernBertConfig", {**SIZES, "global_attn_every_n_layers": 1}),
    "deberta-v2": ("DebertaV2Config", {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "electra": ("ElectraConfig", {**SIZES, "embedding_size": 8}),
    "t5": ("T5Config", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}),
    "llama": ("LlamaConfig", {**SIZES, "num_key_value_heads": 1, "head_dim": 8}),
}
every = pytest.mark.parametrize("name", ENCODERS)
# importing DeBERTa's code calls torch.jit.script
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
compiles = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
WORDS = ["ann", "bo", "met", "in", "rome", "li", "##ma", "##n", "##a", "."]
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *WORDS]


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity(logging.ERROR)


def encoder_config(name="bert", **changes):
    config, options = ENCODERS[name]
    return getattr(transformers, config)(**{**COMMON, **options, **changes})


def tagger(name="bert", labels=LABELS, **options):
    torch.manual_seed(0)
    config = integration.CRFConfig(encoder=encoder_config(name), id2label=dict(enumerate(labels)), **options)
    return integration.CRFForTokenClassification(config).eval()


def parser(name="bert", **options):
    torch.manual_seed(0)
    chosen = {"dropout": 0.0, "id2label": {0: "nsubj", 1: "root", 2: "obj"}, "arc_size": 8, "label_size": 4, **options}
    config = integration.DependencyParserConfig(encoder=encoder_config(name), **chosen)
    return integration.DependencyParserModel(config).eval()


def tokenizer(tmp_path):
    """A tokenizer of word pieces, made from a few words."""
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(VOCABULARY), encoding="utf-8")
    return transformers.BertTokenizerFast(vocab=str(file), model_max_length=16)


def tokens():
    """Token numbers, their mask, and labels of first subwords that keep the rules."""
    ids = torch.randint(5, 40, (3, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    labels = torch.tensor([[-100, 1, 2, -100, 0, 3, -100], [-100, 0, -100, 1, -100, -100, -100], [-100, *[3, 4] * 3]])
    return {"input_ids": ids, "attention_mask": mask}, labels


def trees():
    """Heads and labels of arcs at first subwords."""
    heads = torch.tensor([[-100, 2, 0, -100, 2, 3, -100], [-100, 0, -100, 1, -100, -100, -100], [0, *range(1, 7)]])
    return {"head_labels": heads, "labels": torch.where(heads < 0, -100, heads % 3)}


@every
def test_the_loss_is_that_of_the_words_alone(name):
    model, (inputs, labels) = tagger(name), tokens()
    output = model(**inputs, labels=labels)
    states = model.encoder(**inputs).last_hidden_state
    total = 0.0
    for state, row in zip(states, labels, strict=True):
        keep = row != -100
        total = total + model.crf(model.classifier(state[keep])[None], row[keep][None])
    close(output.loss, total / (labels != -100).sum(), "the negative log-likelihood per word")
    equal(model(**inputs, labels=labels, return_dict=False)[0], output.loss, "as a tuple")
    model.train()(**inputs, labels=labels).loss.backward()
    missing = [key for key, p in model.named_parameters() if p.grad is None]
    assert not [key for key in missing if "embed" not in key and "wpe" not in key], missing


def test_logits_are_probabilities_with_the_best_labels_on_top():
    model, (inputs, labels) = tagger(), tokens()
    with torch.no_grad():
        for parameter in model.crf.parameters():
            parameter.normal_(std=3)
        model.classifier.weight.normal_(std=2)
    output = model(**inputs, labels=labels)
    words = labels != -100
    best = [[LABELS[k] for k in row[keep].tolist()] for row, keep in zip(output.logits.argmax(-1), words, strict=True)]
    assert best == model.decode(**inputs, word_mask=words)
    # by enumeration
    for b, keep in enumerate(words):
        x = model.classifier(model.encoder(**inputs).last_hidden_state)[b, keep].double()
        marginals = pm.nn.CRF.marginals(model.crf.double(), x[None])[0]
        model.float()
        top = marginals.gather(-1, output.logits[b, keep].argmax(-1, keepdim=True))
        expected = torch.minimum(marginals, top)
        expected = expected / expected.sum(-1, keepdim=True)
        torch.testing.assert_close(output.logits[b, keep].softmax(-1).double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("labels", [LABELS, ["O", "B-X", "I-X", "E-X", "S-X"]])
def test_decoding_keeps_the_rules(labels):
    model, rules = tagger(labels=labels), pm.nn.CRF(labels)
    with torch.no_grad():
        model.classifier.weight.normal_(std=20)
    for _ in range(5):
        inputs, _ = tokens()
        rows = model.decode(**inputs)
        assert [len(row) for row in rows] == inputs["attention_mask"].sum(1).tolist()
        for row in rows:
            tags = [labels.index(name) for name in row]
            assert rules.allowed_start[tags[0]]
            assert rules.allowed_end[tags[-1]]
            assert all(rules.allowed_transitions[a, b] for a, b in itertools.pairwise(tags))
    assert model.training is False


def test_rules_may_be_named_or_left_out():
    free = tagger(constraints=None)
    assert free.crf.allowed_transitions is None
    with pytest.raises(ValueError, match="break the constraints"):
        tagger()(**tokens()[0], labels=torch.full((3, 7), 2))
    assert tagger(constraints=None)(**tokens()[0], labels=torch.full((3, 7), 2)).loss > 0
    plain = tagger(labels=["NOUN", "VERB"])
    assert plain.crf.allowed_transitions is None
    with pytest.raises(ValueError, match="must be given encoder"):
        integration.CRFConfig(id2label={0: "O"})
    with pytest.raises(TypeError, match=r"encoder must be a configuration.*got 'bert'"):
        integration.CRFConfig(encoder="bert")
    with pytest.raises(TypeError, match="got a dict with hidden_size"):
        integration.CRFConfig(encoder={"hidden_size": 8})


def test_shapes_are_those_of_the_tokens():
    (inputs, labels), given = tokens(), trees()
    with pytest.raises(ValueError, match=r"labels must be \(3, 7\), as input_ids; got \(3, 6\)"):
        tagger()(**inputs, labels=labels[:, :6])
    for model in (tagger(), parser()):
        with pytest.raises(ValueError, match=r"word_mask must be \(3, 7\), as input_ids; got \(7,\)"):
            model.decode(**inputs, word_mask=torch.ones(7))
    for model, name in ((tagger(), "labels"), (parser(), "head_labels")):
        with pytest.raises(TypeError, match=f"{name} must be integers; got torch.float32"):
            model(**inputs, **{name: labels.float()})
    with pytest.raises(ValueError, match=r"head_labels must be \(3, 7\)"):
        parser()(**inputs, head_labels=given["head_labels"][:2])
    with pytest.raises(ValueError, match=r"labels must be \(3, 7\)"):
        parser()(**inputs, **given | {"labels": labels[:2]})


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "t5"])
@pytest.mark.parametrize("make", [tagger, parser])
def test_saved_models_come_back_bit_for_bit(tmp_path, name, make):
    model, (inputs, labels) = make(name), tokens()
    given = {"labels": labels} if make is tagger else trees()
    model.token_kinds[7] = 1
    expected = model(**inputs, **given)
    model.save_pretrained(tmp_path)
    auto = transformers.AutoModelForTokenClassification if make is tagger else transformers.AutoModel
    for source in (auto, type(model)):
        again = source.from_pretrained(tmp_path)
        assert type(again) is type(model)
        assert not again.training
        found = again(**inputs, **given)
        assert set(found) == set(expected)
        for key in ("loss", "logits", "heads", "relations", "arcs"):
            if key in expected:
                equal(found[key], expected[key], key)
        assert again.decode(**inputs) == model.decode(**inputs)
    for key, value in model.state_dict().items():
        equal(again.state_dict()[key], value, key)
    assert transformers.AutoConfig.from_pretrained(tmp_path).encoder.model_type == name
    assert isinstance(transformers.AutoConfig.from_pretrained(tmp_path), type(model.config))


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_models_begin_with_a_pretrained_encoder(tmp_path, name):
    encoder = transformers.AutoModel.from_config(encoder_config(name)).eval()
    encoder.save_pretrained(tmp_path)
    inputs, labels = tokens()
    inner = encoder.get_encoder() if name == "t5" else encoder
    expected = inner(**inputs).last_hidden_state
    for source in (str(tmp_path), encoder):
        model = integration.CRFForTokenClassification.from_encoder(source, LABELS, constraints="BIO").eval()
        equal(model.encoder(**inputs).last_hidden_state, expected, "the encoder")
        assert torch.isfinite(model(**inputs, labels=labels).loss)
        assert model.config.label2id["I-LOC"] == 4
    with pytest.raises(ValueError, match="from_encoder"):
        integration.CRFForTokenClassification.from_pretrained(tmp_path)


def features(tokenized, labels):
    rows = integration.word_labels(tokenized, labels)
    return [{"input_ids": ids, "labels": row} for ids, row in zip(tokenized["input_ids"], rows, strict=True)]


SENTENCES = [["ann", "met", "liman", "in", "limana", "."], ["bo", "liman", "met", "ann"], ["rome", "met", "bo"]]
TAGS = [[1, 0, 1, 0, 3, 0], [1, 2, 0, 1], [3, 0, 1]]


def trained(tmp_path):
    tool = tokenizer(tmp_path)
    encoded = tool(SENTENCES, is_split_into_words=True)
    model = tagger()
    model.with_tokenizer(tool)
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            tmp_path / "run",
            max_steps=60,
            learning_rate=0.02,
            per_device_train_batch_size=3,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=10,
            use_cpu=True,
        ),
        train_dataset=features(encoded, TAGS),
        eval_dataset=features(encoded, TAGS),
        data_collator=transformers.DataCollatorForTokenClassification(tool),
        compute_metrics=accuracy,
    )
    return tool, model, trainer


def accuracy(found):
    known = found.label_ids != -100
    return {"accuracy": (found.predictions.argmax(-1) == found.label_ids)[known].mean()}


def test_trainer_and_pipeline(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tool, model, trainer = trained(tmp_path)
        before = trainer.evaluate()
        trainer.train()
        after = trainer.evaluate()
    assert after["eval_loss"] < 0.2 * before["eval_loss"]
    assert after["eval_accuracy"] == 1
    encoded = tool(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    names = [[LABELS[k] for k in row] for row in TAGS]
    assert model.decode(encoded["input_ids"], encoded["attention_mask"]) == names
    expected = [("ann", "PER"), ("liman", "PER"), ("limana", "LOC")]
    for strategy in ("simple", "first", "average", "max"):
        pipe = transformers.pipeline("token-classification", model=model, tokenizer=tool, aggregation_strategy=strategy)
        found = pipe("ann met liman in limana .")
        assert [(each["word"], each["entity_group"]) for each in found] == expected, strategy
        # two names side by side are one entity of two words
        assert [each["word"] for each in pipe("bo liman met ann")] == ["bo liman", "ann"]
    pieces = transformers.pipeline("token-classification", model=model, tokenizer=tool)("ann met liman .")
    assert [each["entity"] for each in pieces] == ["B-PER", "B-PER", "I-PER", "I-PER"]
    assert pieces[0]["score"] > 0.8


def test_words_are_read_from_a_vocabulary(tmp_path):
    tool = tokenizer(tmp_path)
    model = tagger().with_tokenizer(tool)
    encoded = tool("ann met liman.", return_tensors="pt")
    words, inside = model._words(encoded["input_ids"], encoded["attention_mask"], None, torch.zeros(1, 8, 16))
    assert words[0].tolist() == [False, True, True, True, False, False, True, False]
    assert inside[0].tolist() == [False, *[True] * 6, False]
    assert len(model.decode(**encoded)[0]) == 4

    class Marked:
        all_special_ids, unk_token_id = [0], None

        def get_vocab(self):
            return {"<s>": 0, "\u2581a": 1, "b": 2, "\u2581": 3, "##": 4}

    model.with_tokenizer(Marked())
    assert model.token_kinds[:5].tolist() == [2, 0, 1, 0, 1]
    # what follows a special token begins a word, also without the sign of a space
    words, _ = model._words(torch.tensor([[0, 2, 2, 1, 2]]), None, None, torch.zeros(1, 5, 16))
    assert words[0].tolist() == [False, True, False, True, False]


def test_embeddings_are_resized(tmp_path):
    model = tagger()
    model.resize_token_embeddings(44)
    assert len(model.token_kinds) == model.config.encoder.vocab_size == 44
    model.save_pretrained(tmp_path)
    again = integration.CRFForTokenClassification.from_pretrained(tmp_path)
    assert again.get_input_embeddings().num_embeddings == 44


@compiles
@pytest.mark.parametrize("make", [tagger, parser])
def test_models_compile(make):
    model, (inputs, labels) = make("bert"), tokens()
    given = {"labels": labels} if make is tagger else trees()
    for mode in (model.train(), model.eval()):
        for dropout in mode.modules():
            if isinstance(dropout, torch.nn.Dropout):
                dropout.p = 0.0
        fn = torch.compile(mode, fullgraph=True, backend="eager")
        close(fn(**inputs, **given).loss, mode(**inputs, **given).loss, "compiled is the same")


@pytest.mark.parametrize(
    ("name", "loss"), [*((name, "crf") for name in ENCODERS), ("bert", "svm"), ("bert", "sparsemap")]
)
def test_the_loss_of_trees(name, loss):
    model, (inputs, _), given = parser(name, loss=loss), tokens(), trees()
    output = model(**inputs, **given)
    states = model.encoder(**inputs).last_hidden_state
    tree_loss = {"crf": pm.crf_loss, "svm": pm.svm_loss, "sparsemap": pm.sparsemap_loss}[loss]
    total = 0.0
    for state, heads, relations in zip(states, given["head_labels"], given["labels"], strict=True):
        keep = heads != -100
        nodes = model.arcs.with_root(state[keep])
        total = total + tree_loss(pm.SpanningTree(), model.arcs(state[keep]), heads[keep])
        scores = model.relations(nodes[None], heads[keep][None])[0]
        total = total + torch.nn.functional.cross_entropy(scores, relations[keep], reduction="sum")
    close(output.loss, total / (given["head_labels"] != -100).sum(), "the loss per word")
    # heads stand where the labels stand, and so do relations
    equal(output.heads == -100, given["head_labels"] == -100, "places")
    model.train()(**inputs, **given).loss.backward()
    assert model.arcs.root.grad is not None


def test_decoded_trees():
    model, (inputs, _), given = parser(), tokens(), trees()
    words = given["head_labels"] != -100
    rows = model.decode(**inputs, word_mask=words)
    states = model.encoder(**inputs).last_hidden_state
    for state, keep, row in zip(states, words, rows, strict=True):
        best = pm.SpanningTree().map(model.arcs(state[keep]))
        assert [arc.head for arc in row] == pm.SpanningTree().decode(best).tolist()
        assert all((arc.label == "root") == (arc.head == 0) for arc in row)
    bare = parser(labelled=False, projective=True)
    assert bare.relations is None
    assert all(arc.label is None for row in bare.decode(**inputs) for arc in row)
    assert bare(**inputs, head_labels=given["head_labels"]).loss > 0
    with pytest.raises(ValueError, match="loss must be one of crf, svm, sparsemap"):
        parser(loss="other")


def test_a_parser_is_trained(tmp_path):
    tool = tokenizer(tmp_path)
    sentences, heads = [["ann", "met", "liman"], ["bo", "met", "rome", "in", "limana"]], [[2, 0, 2], [2, 0, 2, 5, 3]]
    relations = [[0, 1, 2], [0, 1, 2, 0, 0]]
    encoded = tool(sentences, is_split_into_words=True)
    columns = [encoded["input_ids"], *(integration.word_labels(encoded, each) for each in (heads, relations))]
    data = [dict(zip(("input_ids", "head_labels", "labels"), row, strict=True)) for row in zip(*columns, strict=True)]
    model = parser().with_tokenizer(tool)

    def attachment(found):
        (best, _), (gold, _) = found.predictions, found.label_ids
        return {"uas": (best == gold)[gold != -100].mean()}

    arguments = transformers.TrainingArguments(
        tmp_path / "run",
        max_steps=100,
        learning_rate=0.01,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=data,
            eval_dataset=data,
            data_collator=integration.ParserCollator(tool),
            compute_metrics=attachment,
        )
        before = trainer.evaluate()
        trainer.train()
        after = trainer.evaluate()
    assert after["eval_loss"] < 0.3 * before["eval_loss"]
    assert after["eval_uas"] == 1
    batch = tool(sentences[0], is_split_into_words=True, return_tensors="pt")
    assert model.decode(**batch)[0] == [(2, "nsubj"), (0, "root"), (2, "obj")]
