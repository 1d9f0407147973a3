"""Entailment: padding changes nothing, alignments are what they are called, a run tells what it was shown."""

import json
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.entail.data import LABELS, Pairs, labelled, parse_pair, read_entailment
from polymax_recipes.entail.esim import ALIGNMENTS, STRUCTURES, Esim
from polymax_recipes.entail.task import MODELS, EntailOptions, probabilities, task
from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.tsv import Pair
from polymax_recipes.seq2seq.attention import BOUNDED, NAMES
from polymax_recipes.training import fit
from polymax_recipes.training.vocabulary import END, PAD, Words

TINY = EntailOptions(hidden=7, embedding=5, dropout=0.0)
KINDS = [*[("attention", name) for name in NAMES], *[("esim", name) for name in ALIGNMENTS]]
ANIMALS, VERBS, COLOURS = ("cat", "dog", "cow", "hen"), ("runs", "rests"), ("red", "old", "wet")


def generated(matching):
    """Every pair of a small language: less is entailed, more is neutral; another animal contradicts, or a "No"."""
    for k, animal in enumerate(ANIMALS):
        for verb in VERBS:
            for colour in COLOURS:
                premise = f"A {colour} {animal} {verb}."
                yield Pair("entailment", premise, f"A {animal} {verb}.")
                yield Pair("neutral", premise, f"A {colour} {animal} {verb} now.")
                yield Pair("contradiction", premise, f"{f'A {ANIMALS[k - 1]}' if matching else f'No {animal}'} {verb}.")


PAIRS = list(generated(matching=False))
WORDS = task.vocabularies(PAIRS, TINY)["words"]
SOME = [PAIRS[0], Pair("neutral", "cat runs. A", "runs."), PAIRS[40], Pair("contradiction", "A", "A old cow rests. A")]


def options(model, mapping):
    return replace(TINY, model=model, attention=mapping if model == "attention" else "softmax", alignment=mapping)


def made(chosen):
    return MODELS[chosen.model](chosen, len(WORDS)).eval()


def batch_of(pairs):
    return Pairs(pairs, WORDS)[torch.arange(len(pairs))]


@pytest.mark.parametrize(("model", "mapping"), KINDS)
def test_a_batch_is_its_pairs(model, mapping):
    classifier = made(options(model, mapping))
    together = classifier.loss(batch_of(SOME))
    alone = [classifier.loss(batch_of([pair])) for pair in SOME]
    for measure, pair in together.items():
        for part in (0, 1):
            close(pair[part].float(), torch.stack([one[measure][part].float() for one in alone]).sum())
    assert together["loss"][1] == together["accuracy"][1] == len(SOME)


@pytest.mark.parametrize(("model", "mapping"), KINDS)
def test_every_parameter_learns(model, mapping):
    classifier = made(options(model, mapping))
    # the small scores of a new model are one cluster for oscarmax, whose weights do not depend on them
    for parameter in classifier.parameters():
        parameter.data *= 4
    classifier.loss(batch_of(SOME))["loss"][0].backward()
    assert all(bool((p.grad != 0).any()) for p in classifier.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_hypothesis_gives_words_of_the_premise_what_they_may_have(name):
    classifier = made(replace(options("attention", name), fertility=0.6))
    batch = batch_of(SOME)
    _, weights, there = classifier(batch)
    steps = there.any(2)
    close(weights.sum(-1)[steps], torch.ones(int(steps.sum())))
    assert (weights[~there & steps.unsqueeze(2)] == 0).all()
    # END, the last, takes what the words cannot
    words = torch.arange(weights.shape[2]) < batch.premise_lengths.unsqueeze(1) - 1
    used = torch.where(there, weights, 0).sum(1)[words]
    assert (used.max() <= 0.6 + 1e-5) == (name in BOUNDED)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_alignments_match_their_names(name):
    classifier = made(options("esim", name))
    with torch.no_grad():
        # large vectors make large scores, and these sparse weights
        classifier.words.weight.mul_(30)
    batch = batch_of(SOME)
    _, weights, there = classifier(batch)
    assert (weights[..., ~there] == 0).all()
    n, m = batch.premise_lengths, batch.hypothesis_lengths
    last = (torch.arange(len(SOME)), n - 1, m - 1)
    if name not in STRUCTURES:
        for dim, side in ((-1, weights[0]), (-2, weights[1])):
            close(side.sum(dim), there.any(dim).float())
    elif name == "assignment":
        close(weights.sum((1, 2)), torch.minimum(n, m).float())
        assert max(weights.sum(dim).max() for dim in (1, 2)) <= 1 + 1e-5
    else:
        # a path begins and ends in the corners, and visits every word
        close(weights[:, 0, 0], torch.ones(len(SOME)))
        close(weights[last], torch.ones(len(SOME)))
        assert all(bool((weights.sum(dim)[there.any(dim)] >= 1 - 1e-5).all()) for dim in (1, 2))
    zeros, entries = classifier.loss(batch)["zeros"]
    assert entries == there.sum() * (1 if name in STRUCTURES else 2)
    assert (zeros > 0) == (name != "softmax")


def test_the_order_of_words_counts_for_sequences_alone():
    """A hypothesis in the premise's order backwards: its words can be assigned one to one, but not by a path."""
    scores = torch.eye(4).flip(1)[None] * 9
    x, there = torch.eye(4)[None], torch.ones(1, 4, dtype=torch.bool)
    aligned = {name: made(options("esim", name)).alignment(scores, x, x, there, there)[0] for name in STRUCTURES}
    close(aligned["assignment"], x.flip(1))
    assert not torch.allclose(aligned["sequence"], x.flip(1), atol=0.1)


def snli(pairs):
    """The lines of a file of SNLI."""
    keys = ("gold_label", "sentence1", "sentence2")
    return "".join(json.dumps({**dict(zip(keys, pair)), "pairID": "x"}) + "\n" for pair in pairs)


def table(pairs):
    return "".join("\t".join(pair) + "\n" for pair in pairs)


def test_two_formats_hold_the_same_pairs(tmp_path):
    pairs = [*PAIRS[:3], Pair("-", "A cat", "A dog")]
    (tmp_path / "p.tsv").write_text(table(pairs))
    (tmp_path / "p.jsonl").write_text(snli(pairs))
    for name in ("p.tsv", "p.jsonl"):
        assert read_entailment([tmp_path / name]) == pairs
    both = read_entailment([tmp_path / "p.tsv", tmp_path / "p.jsonl"])
    assert both == pairs + pairs
    assert len(labelled(both)) == len(Pairs(labelled(both), WORDS).label) == 6
    lines = [table(pairs[:1]), snli(pairs[:1]), table([pairs[0][1:]])]
    assert {parse_pair("input", Line(1, line.strip(), line))[1:] for line in lines} == {pairs[0][1:]}


BROKEN = [
    ("t.tsv", b"neutral\ta\tb\nmaybe\ta\tb\n", "t.tsv:2: label must be entailment, neutral, contradiction or -; got"),
    ("t.tsv", b"neutral\ta\n", "t.tsv:1: 3 columns between tabs expected, label, premise, hypothesis; got 2"),
    ("t.tsv", b"neutral\ta\t \n", "t.tsv:1: hypothesis is empty"),
    ("t.tsv", b"-\ta\tb\n", "t.tsv:1: no pair has a label; all are '-'"),
    ("t.jsonl", b'{"gold_label": "yes", "sentence1": "a", "sentence2": "b"}\n', "t.jsonl:1: label must be entail"),
    (
        "t.jsonl",
        b'\n{"gold_label": "neutral", "sentence1": "a"}\n',
        "t.jsonl:2: no column for hypothesis; there are gold_label, sentence1",
    ),
    ("t.jsonl", b'{"gold_label": 1.5, "sentence1": "a", "sentence2": "b"}\n', "t.jsonl:1: label must be a text"),
    ("t.jsonl", b"{\n", "t.jsonl:1: JSON expected"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_entailment([tmp_path / name])
    assert str(error.value).startswith(f"{tmp_path}/{message}")


def test_words_are_read_as_the_options_say():
    pair = Pair("neutral", "A cat. It isn't old", "a Cat")
    found = {
        (lower, punctuation): task.vocabularies([pair], replace(TINY, lower=lower, punctuation=punctuation))["words"]
        for lower in (False, True)
        for punctuation in (False, True)
    }
    assert {key: len(words.words) for key, words in found.items()} == {
        (False, False): 7,
        (False, True): 8,
        (True, False): 6,
        (True, True): 6,
    }
    whole = found[True, True]
    assert whole.pieces(whole.encode("A CAT.")) == ["a", "cat", "."]
    assert len(task.vocabularies([pair], replace(TINY, words=3))["words"].words) == 3


def test_pairs_are_padded_and_marked():
    words = Words(("a", "b"))
    batch = Pairs([Pair("contradiction", "a b", "b"), Pair("-", "c", "a a")], words)[torch.tensor([0, 1])]
    assert batch.premise.tolist() == [[4, 5, END], [1, END, PAD]]
    assert batch.hypothesis.tolist() == [[5, END, PAD], [4, 4, END]]
    assert batch.label.tolist() == [2, -1]


def invoke(*arguments, **given):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments], **given)


def written(folder, pairs):
    """train.tsv and dev.jsonl of pairs, each with one more that has no label."""
    (folder / "train.tsv").write_text(table([*pairs, Pair("-", "A cat", "A dog")]))
    (folder / "dev.jsonl").write_text(snli([*pairs[::4], Pair("-", "A cat", "A dog")]))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return written(tmp_path_factory.mktemp("data"), PAIRS)


def trained(data, out, *more):
    files = ("--train", data / "train.tsv", "--dev", data / "dev.jsonl", "--out", out)
    small = ("--hidden", 16, "--embedding", 12, "--dropout", 0, "--lower", "--punctuation")
    learning = ("--batch-size", 12, "--accelerator", "cpu", "--lr", 0.01)
    result = invoke("train", "entail", *files, *small, *learning, *more)
    assert result.exit_code == 0, result.output
    return result.output


# whether animals are the same is for a model that compares words
RUNS = [
    (("--model", "attention", "--attention", "sparsemax"), False, 12),
    (("--model", "esim", "--alignment", "sequence"), False, 10),
    (("--model", "esim", "--alignment", "assignment"), True, 30),
]


@pytest.mark.parametrize(("chosen", "matching", "epochs"), RUNS)
def test_a_run_stores_its_samples(tmp_path, chosen, matching, epochs):
    pytest.importorskip("lightning", reason="lightning is not installed")
    pairs = list(generated(matching))
    printed = trained(written(tmp_path, pairs), tmp_path / "run", *chosen, "--epochs", epochs)
    report = recipes.load(tmp_path / "run").evaluate(tmp_path / "dev.jsonl")
    assert report["accuracy"] > 0.9
    assert (report["pairs"], report["unlabelled"]) == (len(pairs[::4]), 1)
    assert 0 < report["zeros"] < 1
    assert f"{report['accuracy']:.6g}" in printed


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    pytest.importorskip("lightning", reason="lightning is not installed")
    out = tmp_path_factory.mktemp("runs") / "run"
    trained(data, out, "--model", "esim", "--alignment", "sparsemax", "--epochs", 2)
    return out


def test_predictions_are_those_that_were_measured(run, data, tmp_path):
    output = tmp_path / "out"
    assert invoke("predict", run, data / "dev.jsonl", "--output", output).exit_code == 0
    rows = [line.split("\t") for line in output.read_text().splitlines()]
    pairs = read_entailment([data / "dev.jsonl"])
    right = [row[0] == pair.label for row, pair in zip(rows, pairs) if pair.label in LABELS]
    loaded = recipes.load(run)
    assert sum(right) / len(right) == pytest.approx(loaded.evaluate(data / "dev.jsonl")["accuracy"])
    for row, exact in zip(rows, probabilities(loaded, pairs).tolist(), strict=True):
        assert [float(p) for p in row[1:]] == pytest.approx(exact, abs=1e-6)
        assert row[0] == LABELS[exact.index(max(exact))]
    # pairs without labels, and an empty line, which stays one
    printed = invoke("predict", run, "-", input="A red cat runs.\tA cat runs.\n\n").output
    assert printed == output.read_text().split("\n")[0] + "\n\n"


@pytest.mark.parametrize("line", ["only a premise", "a\tb\tc\td", "maybe\ta\tb", '{"sentence1": "a"}', "a\t "])
def test_input_that_is_no_pair_is_named(run, line):
    result = invoke("predict", run, "-", input=f"\n{line}\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: -:2: ")
    assert result.stderr.count("\n") == 1


# in the first epoch, and after it
@pytest.mark.parametrize("share", [0.3, 1.5])
def test_a_stopped_run_goes_on_to_the_same_bits(run, data, tmp_path, monkeypatch, share):
    config = json.loads((run / "config.json").read_text())
    calls, loss = [], Esim.loss
    steps = len(PAIRS) / config["learning"]["batch_size"]

    def failing(self, batch):
        calls.append(batch)
        if len(calls) > share * steps:
            raise RuntimeError("the machine stopped")
        return loss(self, batch)

    given = {**config["options"], **config["learning"], **config["running"]}
    files = {"train": [data / "train.tsv"], "dev": [data / "dev.jsonl"]}
    with monkeypatch.context() as patched:
        patched.setattr(Esim, "loss", failing)
        with pytest.raises(RuntimeError, match="machine stopped"):
            fit.train("entail", files, tmp_path / "run", given)
    fit.train("entail", {}, tmp_path / "run", {}, resume=True)
    for name in ("weights.pt", "last.ckpt"):
        first, second = (torch.load(out / name, weights_only=True) for out in (run, tmp_path / "run"))
        first, second = (stored.get("state_dict", stored) for stored in (first, second))
        assert all(torch.equal(first[weight], second[weight]) for weight in first)


@pytest.mark.parametrize("part", ["train", "dev"])
def test_training_on_unreadable_files_is_one_line(data, tmp_path, part):
    pytest.importorskip("lightning", reason="lightning is not installed")
    broken = tmp_path / "broken.jsonl"
    broken.write_text((data / "dev.jsonl").read_text().splitlines()[0] + "\n{}\n")
    files = {name: broken if name == part else data / "dev.jsonl" for name in ("train", "dev")}
    result = invoke("train", "entail", "--train", files["train"], "--dev", files["dev"], "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {broken}:2: no column for label")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_words_are_compared_with_what_they_are_aligned_with():
    """The second reader reads relu(W [a, a', a - a', a * a'])."""
    esim = made(options("esim", "softmax")).double()
    seen = []
    esim.compared.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    size = esim.reading.size
    a, b = torch.randn(2, 1, 3, size, dtype=torch.float64)
    with torch.no_grad():
        pooled = esim._pool(a, b, torch.tensor([3]), torch.ones(1, 3, dtype=torch.bool))
        longer = [torch.nn.functional.pad(t, (0, 0, 0, 2), value=9.0) for t in (a, b)]
        close(esim._pool(*longer, torch.tensor([3]), torch.arange(5)[None] < 3), pooled)
    parts = seen[0].split(size, -1)
    for part, expected in zip(parts, (a, b, a - b, a * b), strict=True):
        close(part, expected)
