"""Constituency parsing: padding changes nothing, charts give trees back, probabilities are those of enumeration."""

import gzip
import random
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.bracket.alternatives import BEST, alternatives
from polymax_recipes.bracket.data import NONE, Charts, chart_of, cleaned, read_brackets, tree_of, vocabularies_of
from polymax_recipes.bracket.model import LOSSES, Bracketer, Scored, used_labels, with_labelled_root
from polymax_recipes.bracket.task import BracketOptions, _merge_equal_trees
from polymax_recipes.bracket.text import sentences, units
from polymax_recipes.readers import parse_tree, read_trees
from polymax_recipes.readers.lines import Line
from polymax_recipes.text.tokens import Tokens
from polymax_recipes.training import fit

TINY = BracketOptions(hidden=5, embedding=4, characters=3, spans=6, dropout=0.0, word_dropout=0.0)
TREES = [
    parse_tree("(S (NP (DT the) (JJ old) (NN dog)) (VP (VBZ sleeps)) (. .))"),
    parse_tree("(NP (NN rain))"),
    parse_tree("(S (NP (PRP it)) (VP (VBZ rains)))"),
    parse_tree("(UH oh)"),
]
KNOWN = vocabularies_of(TREES, 100)
LABELS = KNOWN["labels"].words


def model(options=TINY):
    torch.manual_seed(0)
    return Bracketer(options, KNOWN).eval()


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_charts_give_trees_back(tree):
    spans, tags = chart_of(tree)
    assert len(spans) == 2 * len(tree.words) - 1
    assert tree_of(spans, tree.words, tags) == tree


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(ROOT (S (NP-SBJ-1 (PRP it)) (VP (VB go) (NP (-NONE- *T*-1)))))", "(S (NP (PRP it)) (VP (VB go)))"),
        ("( (IP-MAT (NP-SBJ *pro*) (VB go)) (ID 1_x;JP))", "(IP (VB go))"),
        ("( (S (VB go)) (. .))", "(TOP (S (VB go)) (. .))"),
        ("(NP (SYM *) (NN star))", "(NP (SYM *) (NN star))"),
        ("(S (-NONE- *))", "None"),
    ],
)
def test_trees_are_cleaned(text, wanted):
    assert str(cleaned(parse_tree(text))) == wanted


def test_a_file_of_traces_alone_is_refused(tmp_path):
    (tmp_path / "a.ptb").write_text("(S (-NONE- *T*))\n")
    with pytest.raises(ValueError, match=r"a\.ptb: no tree has a word"):
        read_brackets([tmp_path / "a.ptb"])


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_is_its_sentences(loss):
    made = model(replace(TINY, loss=loss, layers=2 if loss == "crf" else 1))
    charts = Charts(TREES, KNOWN)
    batch = charts[torch.arange(4)]
    together, best = made.loss(batch), made.best(made(Tokens(*batch[:3])))
    assert set(together) == {"loss", "accuracy"}
    alone = [charts[torch.tensor([row])] for row in range(4)]
    for row, one in enumerate(alone):
        n = int(one.lengths)
        assert made.best(made(Tokens(*one[:3])))[0].equal(best[row, :n, :n])
        assert (best[row] >= 0).sum() == 2 * n - 1
    for measure, pair in together.items():
        for part in (0, 1):
            close(pair[part].float(), torch.stack([made.loss(one)[measure][part].float() for one in alone]).sum())
    assert (together["loss"][1], together["accuracy"][1]) == (4, 9 + 1 + 3 + 1)


def test_spans_are_differences_of_states():
    made = model()
    tokens = Charts(TREES, KNOWN).tokens[torch.tensor([0])]
    forward, backward = made.reader(*tokens)[0].chunk(2, -1)
    zero = forward.new_zeros(1, forward.shape[1])
    forward, backward = torch.cat([zero, forward]), torch.cat([backward, zero])
    x = torch.cat([forward[4] - forward[1], backward[1] - backward[4]])
    wanted = made.labels(torch.relu(made.scale(made.changes(x))))
    close(made(tokens).spans[0, 1, 3], wanted)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_parameter_learns(loss):
    made = model(replace(TINY, loss=loss)).train()
    measured = made.loss(Charts(TREES, KNOWN)[torch.arange(4)])
    assert set(measured) == {"loss"}
    measured["loss"][0].backward()
    assert all(bool((p.grad != 0).any()) for p in made.parameters())


def test_what_was_never_seen_has_no_label():
    tree = parse_tree("(SQ (S (NP (NN rain)) (VP (NEW x))) (ADJP (X y)) (NP (NX (NN z))))")
    batch = Charts([tree], KNOWN)[torch.tensor([0])]
    found = {(i, j): label for i, j, label in batch.spans[0].tolist()}
    assert found[0, 3] == found[2, 2] == LABELS.index(NONE) == 0
    # of a chain the top is left
    assert found[3, 3] == found[0, 0] == LABELS.index("NP")
    assert batch.tags[0].tolist() == [KNOWN["tags"].words.index("NN"), -1, -1, KNOWN["tags"].words.index("NN")]
    assert model().loss(batch)["loss"][0].isfinite()


def charts(scale=1.0):
    torch.manual_seed(0)
    return Scored(pm.SpanTree(torch.tensor([3, 1])), scale * torch.randn(2, 3, 3, 2), torch.zeros(2, 3, 1))


def test_the_best_trees_are_those_of_enumeration():
    scored = charts()
    for scores, n, found in zip(with_labelled_root(scored), (3, 1), alternatives("crf", scored)):
        trees = pm.SpanTree().vertices((n, n, 2))
        totals = torch.where(trees > 0, scores[:n, :n], 0).sum((1, 2, 3))
        probabilities, order = totals.softmax(0).sort(descending=True)
        # a whole sentence has a label
        assert (n == 1) == bool((totals > -torch.inf).all())
        close(torch.tensor([p for p, _ in found]), probabilities[:BEST])
        assert all(labels.equal(used_labels(trees[k])) for (_, labels), k in zip(found, order))


def test_sparse_trees_are_all_there_is():
    scored = charts()
    made = model(replace(TINY, loss="sparsemap"))
    sizes = []
    for scores, n, found in zip(with_labelled_root(scored), (3, 1), alternatives("sparsemap", scored)):
        assert sum(p for p, _ in found) == pytest.approx(1.0, abs=1e-5)
        mu = sum(p * torch.nn.functional.one_hot(labels + 1, 3)[..., 1:] for p, labels in found)
        close(mu, pm.SparseMap(pm.SpanTree(labelled=True))(scores[:n, :n]))
        sizes.append(len(found))
    assert max(sizes) > 1
    sharp = charts(50.0)
    assert made.single(sharp).all()
    assert [len(found) for found in alternatives("sparsemap", sharp)] == [1, 1]


def test_the_best_of_a_long_sentence_is_there():
    flat = Scored(pm.SpanTree(torch.tensor([120])), torch.zeros(1, 120, 120, 4), torch.zeros(1, 120, 1))
    (found,) = alternatives("crf", flat)
    assert [probability for probability, _ in found] == [0.0]
    assert (found[0].labels >= 0).sum() == 239


def test_binary_trees_that_are_written_alike_are_one():
    first, second = parse_tree("(X a)"), parse_tree("(Y a)")
    assert _merge_equal_trees([(0.4, first), (0.3, second), (0.2, second)]) == [(0.5, second), (0.4, first)]


def test_losses_without_probabilities_are_named():
    with pytest.raises(ValueError, match=r"--distribution needs a loss with probabilities, crf, sparsemap; got svm"):
        next(alternatives("svm", charts()))


def numbered(*texts):
    return [Line(k, text, text) for k, text in enumerate(texts, 1)]


def test_input_is_words_or_trees():
    lines = numbered("a dog", "", "(NP (DT a)", "  (NN dog))", "(X b) (X c)", " -LRB- d )")
    found = [sentences("input", unit) for unit in units(lines)]
    assert found == [[["a", "dog"]], [], [["a", "dog"]], [["b"], ["c"]], [["-LRB-", "d", ")"]]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("a", "(NP (DT a)"), "input:2: the tree that begins in line 2 is not closed"),
        (("(NP (DT a)", "", "(NN b))"), "input:2: a blank line inside of the tree that begins in line 1"),
        (("(NP)",), "input:1: nothing under the label 'NP'"),
    ],
)
def test_input_that_is_no_tree_is_named(texts, message):
    with pytest.raises(ValueError) as error:
        [sentences("input", unit) for unit in units(numbered(*texts))]
    assert str(error.value) == message


def drawn(draw):
    """A sentence of a small grammar."""
    noun = f"(NP (DT {draw.choice(['the', 'a'])}) (NN {draw.choice(['dog', 'cat', 'bird'])}))"
    if draw.random() < 0.4:
        noun = f"(NP {noun} (PP (IN near) (NP (DT the) (NN {draw.choice(['house', 'tree'])}))))"
    verb = f"(VP (VBZ {draw.choice(['sleeps', 'sings'])}))"
    if draw.random() < 0.4:
        verb = f"(VP (VBZ sees) (NP-OBJ (PRP {draw.choice(['it', 'me'])})))"
    return f"(ROOT\n  (S\n    {noun}\n    {verb}\n    (. .)))\n\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("trees"), random.Random(0)
    (folder / "train.ptb").write_text("".join(drawn(draw) for _ in range(60)))
    (folder / "dev.ptb.gz").write_bytes(gzip.compress("".join(drawn(draw) for _ in range(12)).encode()))
    return folder


SMALL = {"hidden": 16, "embedding": 12, "characters": 6, "spans": 16, "batch_size": 8, "lr": 0.02, "dropout": 0.1}


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


def trained(files, out, **options):
    parts = {"train": [files / "train.ptb"], "dev": [files / "dev.ptb.gz"]}
    return fit.train("bracket", parts, out, {**SMALL, "accelerator": "cpu", **options})


def test_trees_are_learned_and_written(files, tmp_path):
    report = trained(files, tmp_path / "run", epochs=4)["dev"]
    assert report["f1"] == report["unlabelled_f1"] == report["exact"] == report["tags"] == 1.0
    assert "single" not in report
    output = tmp_path / "out.ptb"
    assert invoke("predict", tmp_path / "run", files / "dev.ptb.gz", "--output", output).exit_code == 0
    assert list(read_trees(output)) == read_brackets([files / "dev.ptb.gz"])
    listed = list(recipes.load(tmp_path / "run", distribution="true").predict(["the cat sings .", "", "it"]))
    rows = [line.split("\t") for line in listed]
    assert {row[0] for row in rows} == {"1", "3"}
    assert 1 < len({row[2] for row in rows if row[0] == "1"}) == sum(row[0] == "1" for row in rows) <= BEST
    assert rows[0][2] == "(S (NP (DT the) (NN cat)) (VP (VBZ sings)) (. .))"
    one = recipes.load(tmp_path / "run", batch=1)
    lines = ["a bird sees me .", "", "dog :)"]
    assert list(one.predict(lines)) == list(recipes.load(tmp_path / "run").predict(lines))
    assert list(one.predict(lines))[1] == ""
    assert parse_tree(list(one.predict(lines))[2]).words == ["dog", ":-RRB-"]


def test_a_stopped_run_goes_on_to_the_same_bits(files, tmp_path, monkeypatch):
    trained(files, tmp_path / "whole", epochs=2, loss="sparsemap")
    calls, loss = [], Bracketer.loss

    def failing(self, batch):
        calls.append(batch)
        if len(calls) == 12:
            raise RuntimeError("the machine stopped")
        return loss(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Bracketer, "loss", failing)
        with pytest.raises(RuntimeError, match="machine stopped"):
            trained(files, tmp_path / "stopped", epochs=2, loss="sparsemap")
    assert invoke("train", "bracket", "--out", tmp_path / "stopped", "--resume").exit_code == 0
    first, second = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("whole", "stopped"))
    assert all(first[name].equal(second[name]) for name in first)
    report = recipes.load(tmp_path / "stopped").evaluate(files / "dev.ptb.gz")
    assert 0.0 <= report["single"] <= 1.0
    assert report["f1"] > 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NP (NN a)))\n(S (NP\n", "FILE:2: the tree that begins in line 2 is not closed"),
        ("(X a)\n\n(S (A::B b))", "FILE:3: labels must not hold '::' or end in '|<'; got 'A::B'"),
        ("no tree", "FILE:1: ( expected; got 'no'"),
    ],
)
def test_files_that_are_no_trees_are_one_line(files, tmp_path, text, message):
    broken = tmp_path / "broken.ptb"
    broken.write_text(text)
    result = invoke("train", "bracket", "--train", broken, "--dev", files / "dev.ptb.gz", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stderr == f"error: {message.replace('FILE', str(broken))}\n"
    assert not (tmp_path / "run").exists()
