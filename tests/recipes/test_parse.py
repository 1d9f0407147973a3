"""Parsing: losses are the library's, probabilities those of enumeration, trees are valid, text keeps its lines."""

import csv
import random
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close as close
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax.structures.compact.heads import crosses, trees
from polymax_recipes import cli
from polymax_recipes.parse import model as parse_model
from polymax_recipes.parse.alternatives import BEST, LONGEST, alternatives, head_probabilities
from polymax_recipes.parse.data import Treebank, vocabularies_of
from polymax_recipes.parse.lifting import crossed, lifted
from polymax_recipes.parse.model import NAMES, SPARSE, Parser, Scored
from polymax_recipes.parse.task import ParseOptions
from polymax_recipes.readers.conllu import Sentence, read_conllu, tree_fault
from polymax_recipes.training import fit
from polymax_recipes.training.measured import to_device

TINY = ParseOptions(hidden=5, embedding=4, characters=3, layers=1, arcs=4, labels=3, dropout=0.0, turns=0)


def conllu(words, comment=""):
    """Rows of form, part of speech, head and relation."""
    rows = (f"{k}\t{form}\t_\t{upos}\t_\t_\t{head}\t{rel}\t_\t_" for k, (form, upos, head, rel) in enumerate(words, 1))
    return "\n".join([*([comment] if comment else []), *rows]) + "\n\n"


def sentence(draw):
    """Someone does something, perhaps to something; what it is made of may come late and cross the arc to the verb."""
    subject, thing = draw.choice(["cat", "dog"]), draw.choice(["house", "boat"])
    rows = [
        ("the", "DET", 2, "det"),
        (subject, "NOUN", 3, "nsubj"),
        (draw.choice(["sees", "likes"]), "VERB", 0, "root"),
    ]
    if draw.random() < 0.5:
        rows += [("a", "DET", 5, "det"), (thing, "NOUN", 3, "obj:x" if thing == "boat" else "obj")]
    if draw.random() < 0.5:
        rows += [("of", "ADP", len(rows) + 2, "case"), ("gold", "NOUN", 2, "nmod")]
    return [*rows, (".", "PUNCT", 3, "punct")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Train and dev, about half of whose trees have crossing arcs."""
    folder, draw = tmp_path_factory.mktemp("trees"), random.Random(0)
    for part, count in (("train", 80), ("dev", 20)):
        made = (conllu(sentence(draw), f"# sent_id = {part}-{k}") for k in range(count))
        (folder / f"{part}.conllu").write_text("".join(made))
    return folder


@pytest.fixture(scope="module")
def treebank(files):
    examples = list(read_conllu(files / "dev.conllu"))[:6]
    return examples, vocabularies_of(examples, 100)


def model(treebank, options=TINY, scale=1.0):
    """A model of random weights, with scores `scale` times what they would be."""
    made = Parser(options, treebank[1]).eval()
    with torch.no_grad():
        made.arcs.pair.key.weight.mul_(scale)
    return made


def test_lifted_trees_are_the_nearest_without_crossings():
    for n in range(6):
        for heads in trees(n, True):
            found = lifted(heads)
            assert bool(crossed(heads)) == crosses(heads)
            assert tree_fault(found) is None
            assert not crosses(tuple(found))
            assert (found == list(heads)) == (not crosses(heads))
            # every word hangs from an ancestor of its own
            for word, (head, above) in enumerate(zip(heads, found), 1):
                while head != above:
                    assert head, f"word {word} of {heads}"
                    head = heads[head - 1]


@pytest.mark.parametrize(
    ("order", "loss"),
    [("siblings", "crf"), ("grandparents", "margin-sparsemap"), ("both", "crf"), ("both", "margin-sparsemap")],
)
def test_pairs_of_arcs_are_scored(treebank, order, loss, monkeypatch):
    """A parser begins as one of first order, learns scores of pairs, and finds the trees that they make best."""
    options = replace(TINY, projective=True, order=order, loss=loss, rank=3)
    torch.manual_seed(0)
    made = model(treebank, options)
    batch = Treebank(*treebank)[torch.arange(2)]
    scored = made(batch)
    assert all(bool((pairs == 0).all()) for pairs in scored.pairs)
    first = pm.ProjectiveTree(batch.lengths).map(scored.arcs)
    assert made.best(scored)[0].equal(pm.ProjectiveTree().decode(first))
    made.loss(batch)["loss"][0].backward()
    assert len(made.pairs) == (2 if order == "both" else 1)
    for pairs in made.pairs:
        assert bool((pairs.third.weight.grad != 0).any())
        torch.nn.init.normal_(pairs.third.weight, std=3.0)
    scored = made(batch)
    heads = made.best(scored)[0]
    value = scored.trees.best_score(*scored.scores)
    close(scored.trees.score(scored.trees.encode(heads), *scored.scores), value)
    listed = next(alternatives(loss, scored))
    assert len(listed.heads) == len(listed.probabilities) > 0
    # of a long sentence the best tree alone
    monkeypatch.setitem(LONGEST, type(scored.trees), 1)
    if loss == "crf":
        best = next(alternatives(loss, scored))
        assert torch.equal(best.heads, listed.heads[:1])
        close(best.probabilities, listed.probabilities[:1])
    for given, message in (({"projective": False}, "--projective"), ({"loss": "softmax-heads"}, "loss of trees")):
        with pytest.raises(ValueError, match=message):
            replace(options, **given)


KINDS = [(loss, projective) for loss in NAMES for projective in (False, True)]


@pytest.mark.parametrize(("loss", "projective"), KINDS)
def test_a_batch_is_its_sentences(treebank, loss, projective):
    made = model(treebank, replace(TINY, loss=loss, projective=projective))
    encoded = Treebank(*treebank)
    batch = encoded[torch.arange(6)]
    assert bool((batch.heads != batch.lifted).any())
    together, (heads, relations) = made.loss(batch), made.best(made(batch))
    assert set(together) == {"loss", "uas", "las", *(["single"] if loss in SPARSE else [])}
    assert (heads == -1).equal(batch.heads == -1)
    assert (relations == -1).equal(batch.heads == -1)
    alone = [encoded[torch.tensor([row])] for row in range(6)]
    for row, one in enumerate(alone):
        assert made.best(made(one))[0][0].equal(heads[row, : one.lengths[0]])
    for measure, pair in together.items():
        for part in (0, 1):
            close(pair[part].float(), torch.stack([made.loss(one)[measure][part].float() for one in alone]).sum())


@pytest.mark.parametrize(("loss", "projective"), KINDS)
def test_every_parameter_learns(treebank, loss, projective, device):
    made = model(treebank, replace(TINY, loss=loss, projective=projective)).train().to(device)
    batch = to_device(Treebank(*treebank)[torch.arange(6)], made)
    measured = made.loss(batch)
    assert set(measured) == ({"loss", "lifted"} if projective else {"loss"})
    measured["loss"][0].backward()
    assert all(bool((p.grad != 0).any()) for p in made.parameters())
    with torch.autocast(device, torch.bfloat16):
        close(made.loss(batch)["loss"][0], measured["loss"][0], atol=1.0, rtol=0.05)


@pytest.mark.parametrize(
    ("loss", "same"), [("sparsemap", pm.sparsemap_loss), ("margin-sparsemap", pm.margin_sparsemap_loss)]
)
@pytest.mark.parametrize("kind", [pm.SpanningTree, pm.ProjectiveTree])
def test_sparse_losses_are_those_of_the_library(treebank, loss, same, kind):
    batch = Treebank(*treebank)[torch.arange(6)]
    arcs = 2 * torch.randn(6, batch.heads.shape[1] + 1, batch.heads.shape[1] + 1)
    scored = Scored(kind(batch.lengths), arcs, arcs)
    exact = model(treebank, replace(TINY, loss=loss)).arc_loss(scored, batch.lifted)
    close(exact, same(scored.trees, arcs, batch.lifted, reduction="sum"), atol=1e-3, rtol=1e-4)
    # fewer trees reach less
    assert model(treebank, replace(TINY, loss=loss, turns=1)).arc_loss(scored, batch.lifted) < exact - 1e-3


def test_heads_one_by_one(treebank):
    batch = Treebank(*treebank)[torch.arange(6)]
    made = model(treebank, replace(TINY, loss="softmax-heads"), scale=9.0)
    scored = made(batch)
    total = torch.zeros(())
    for arcs, heads, length in zip(scored.arcs, batch.heads, batch.lengths):
        for word, head in enumerate(heads[:length].tolist(), 1):
            others = [k for k in range(length + 1) if k != word]
            total = total - arcs[others, word].log_softmax(0)[others.index(head)]
    close(made.arc_loss(scored, batch.heads), total)


def scored_at(scale, kind=pm.SpanningTree, single_root=True, device="cpu"):
    torch.manual_seed(0)
    arcs = (scale * torch.randn(5, 5, 5)).to(device)
    return Scored(kind(torch.tensor([4, 4, 3, 1, 2], device=device), single_root=single_root), arcs, arcs)


@pytest.mark.parametrize("kind", [pm.SpanningTree, pm.ProjectiveTree])
def test_single_trees_are_found_at_once(treebank, kind, device):
    made, seen = model(treebank, replace(TINY, loss="sparsemap")), set()
    for scale in (0.1, 1.0, 3.0, 30.0):
        scored = scored_at(scale, kind, device=device)
        wanted = [len(found.heads) == 1 for found in alternatives("sparsemap", scored)]
        assert made.single(scored).tolist() == wanted
        seen |= set(wanted)
    assert seen == {True, False}


@pytest.mark.parametrize("kind", [pm.SpanningTree, pm.ProjectiveTree])
@pytest.mark.parametrize("single_root", [True, False])
def test_trees_have_the_probabilities_of_enumeration(kind, single_root, device):
    scored = scored_at(1.0, kind, single_root, device)
    for arcs, n, found in zip(scored.arcs.double().cpu(), scored.trees.lengths.tolist(), alternatives("crf", scored)):
        listed = [heads for heads in trees(n, single_root) if kind is pm.SpanningTree or not crosses(heads)]
        scores = torch.stack([sum(arcs[head, m] for m, head in enumerate(heads, 1)) for heads in listed])
        probabilities, order = scores.softmax(0).sort(descending=True)
        assert found.heads.tolist() == [list(listed[k]) for k in order[:BEST]]
        close(found.probabilities, probabilities[:BEST])
    seen = []
    for arcs, n, found in zip(scored.arcs.cpu(), scored.trees.lengths.tolist(), alternatives("sparsemap", scored)):
        assert len({tuple(heads) for heads in found.heads.tolist()}) == len(found.heads)
        assert found.probabilities.sum().item() == pytest.approx(1.0)
        assert (found.probabilities.diff() <= 0).all()
        mu = (found.probabilities[:, None, None] * scored.trees.encode(found.heads)).sum(0)
        exact = pm.SparseMap(kind(single_root=single_root))(arcs[: n + 1, : n + 1].double())
        close(mu, exact, atol=1e-6, rtol=1e-6)
        seen.append(mu)
    for n, row, mu in zip(scored.trees.lengths.tolist(), head_probabilities("sparsemap", scored).cpu(), seen):
        close(row[: n + 1, : n + 1], mu, atol=1e-6, rtol=1e-6)


def test_losses_without_probabilities_are_named():
    with pytest.raises(ValueError, match=r"--distribution needs a loss with probabilities, crf, .*; got svm"):
        next(alternatives("svm", scored_at(1.0)))
    with pytest.raises(ValueError, match=r"ambiguous needs .*; got perceptron"):
        head_probabilities("perceptron", scored_at(1.0))


def test_only_the_root_is_named_so(treebank):
    made = model(treebank)
    batch = Treebank(*treebank)[torch.arange(6)]
    names = treebank[1]["relations"].words
    nodes = made(batch).nodes
    for heads in (batch.heads, torch.where(batch.heads == 0, 1, batch.heads), torch.zeros_like(batch.heads)):
        named = made.named(nodes, heads)
        assert ((named == names.index("root")) == (heads == 0)).all()


def test_unknown_relations_are_wrong_and_cost_nothing(treebank):
    examples, known = treebank
    made, encoded = model(treebank), Treebank(examples, known)
    heads = examples[0].heads
    strange = Treebank([examples[0].with_tree(heads, ["strange"] * len(heads))], known)[torch.tensor([0])]
    assert (strange.relations == -2).all()
    measured = made.loss(strange)
    assert measured["las"][0] == 0
    trees_alone = made.arc_loss(made(strange), strange.heads)
    close(measured["loss"][0], trees_alone)
    made.options = replace(TINY, weight=3.0)
    close(made.loss(strange)["loss"][0], 3 * trees_alone)
    # of a relation with a subtype that was never seen the rest is known
    subtypes = [f"{universal}:never" for universal in (rel.partition(":")[0] for rel in examples[0].deprels)]
    finer = Treebank([examples[0].with_tree(heads, subtypes)], known)[torch.tensor([0])]
    assert finer.universals.equal(encoded[torch.tensor([0])].universals)


@pytest.mark.parametrize("projective", [False, True])
def test_long_sentences_are_parsed(treebank, projective):
    made = model(treebank, replace(TINY, projective=projective), scale=30.0)
    short = treebank[0][0]
    words = (short.words[0]._replace(head=k, deprel="nmod" if k else "root") for k in range(500))
    batch = Treebank([Sentence(tuple(words), (), ()), short], treebank[1])[torch.arange(2)]
    heads, _ = made.best(made(batch))
    for row, length in zip(heads.tolist(), batch.lengths.tolist()):
        assert tree_fault(row[:length]) is None
        assert not projective or not crossed(row[:length])
    assert made.loss(batch)["loss"][0].isfinite()
    if projective:
        long, other = alternatives("crf", made(batch))
        assert long.heads.equal(heads[:1])
        assert len(other.heads) == BEST


def invoke(*arguments, **options):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments], **options)


SMALL = {"hidden": 16, "embedding": 12, "characters": 8, "layers": 1, "arcs": 16, "labels": 12, "batch_size": 8}
SMALL |= {"lr": 0.02, "decay": "linear", "accelerator": "cpu", "dropout": 0.1}


def flags(**options):
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    """A run of SparseMAP: its directory and what was printed."""
    out = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("--train", files / "train.conllu", "--dev", files / "dev.conllu", "--out", out)
    result = invoke("train", "parse", *arguments, *flags(**SMALL, loss="sparsemap", epochs=4))
    assert result.exit_code == 0, result.output
    return out, result.output


def test_trees_are_learned_sparsely(run, files, tmp_path):
    out, printed = run
    report = recipes.load(out).evaluate(files / "dev.conllu")
    assert report["uas"] == report["las"] == report["uas_without_punctuation"] == 1.0
    assert report["nonprojective"] > 5
    assert report["single"] > 0.5
    assert {"las_without_punctuation", "sentences_per_second", "words"} <= report.keys()
    assert "uas_without_punctuation" in printed
    with (out / "log.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert float(rows[-1]["dev_single"]) > float(rows[0]["dev_single"])
    output = tmp_path / "out.conllu"
    assert invoke("predict", out, files / "dev.conllu", "--output", output).exit_code == 0
    assert output.read_text() == (files / "dev.conllu").read_text()
    picture = tmp_path / "log.png"
    drawn = invoke("plot-log", out, out, "--measure", "single", "--out", picture)
    assert drawn.exit_code == 0, drawn.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = invoke("plot-log", out, "--measure", "speed", "--out", picture)
    assert wrong.stderr.startswith(f"error: --measure: {out / 'log.csv'} has no column speed; there are epoch, ")


RICH = (
    "# text = du chat\r\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\r\n1\tde\tde\tADP\tP\tA=b\t_\t_\t3:case\tX=1\r\n"
    "2\tle\t_\tDET\t_\t_\t9\tdet\t_\t_\n2.1\te\t_\t_\t_\t_\t_\t_\t1:x\t_\n3\tcat\t_\tNOUN\t_\t_\t3\troot\t_\t_\n"
    "\n# nothing here\n\n\n1\t.\t_\t_\t_\t_\t_\t_\t_\t_\n"
)


def test_text_keeps_its_lines(run, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(RICH.encode())
    assert invoke("predict", run[0], source, "--output", output).exit_code == 0
    before, after = (file.read_bytes().decode().split("\n") for file in (source, output))
    assert len(after) == len(before)
    for old, new in zip(before, after):
        old, new = old.split("\t"), new.split("\t")
        assert [*new[:6], *new[8:]] == [*old[:6], *old[8:]]
        if old[0].isdecimal():
            assert new[6].isdecimal()
            assert (new[7] == "root") == (new[6] == "0")
        else:
            assert new == old
    assert (
        tree_fault([int(line.split("\t")[6]) for line in after if line.split("\t")[0] in ("1", "2", "3")][:3]) is None
    )


def test_distributions_and_ambiguous_attachments_are_listed(run, files, tmp_path):
    listed = list(recipes.load(run[0], distribution=True).predict(["1\t?\t_\t_\t_\t_\t_\t_\t_\t_", "", *WORDS]))
    rows = [line.split("\t") for line in listed]
    assert rows[0] == ["1", "1", "0", "root"]
    assert len(rows) > 2
    assert sum(float(row[1]) for row in rows[1:]) == pytest.approx(1.0, abs=1e-4)
    assert len({row[2] for row in rows[1:]}) == len(rows) - 1
    assert all(row[0] == "2" and tree_fault(list(map(int, row[2].split()))) is None for row in rows[1:])
    text, output = tmp_path / "in", tmp_path / "ambiguous.tsv"
    text.write_text("\n".join([*WORDS, "", "# sent_id = named", *WORDS]) + "\n")
    result = invoke("ambiguous", run[0], text, "--output", output, "--most", 5)
    assert result.exit_code == 0, result.output
    header, *lines = (line.split("\t") for line in output.read_text().splitlines())
    assert header == ["sentence", "id", "word", "bits", "heads"]
    assert len(lines) == 5
    assert {line[0] for line in lines} == {"1", "named"}
    bits = [float(line[3]) for line in lines]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > 0
    for line in lines:
        heads = [head.split(" ") for head in line[4].split(" | ")]
        assert len(heads) > 1
        assert sum(float(head[2]) for head in heads) == pytest.approx(1.0, abs=0.05)
        assert all(
            head[1] == "ROOT" if head[0] == "0" else f"{head[0]}\t{head[1]}" in text.read_text() for head in heads
        )


# nothing that was learned
WORDS = [f"{k}\tw{k}{'x' * k}\t_\t_\t_\t_\t_\t_\t_\t_" for k in range(1, 9)]


def test_a_projective_run_lifts_and_says_so(files, tmp_path):
    out = tmp_path / "run"
    parts = {part: [files / f"{part}.conllu"] for part in ("train", "dev")}
    fit.train("parse", parts, out, {**SMALL, "projective": True, "roots": "multi", "epochs": 2})
    with (out / "log.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert 0 < float(rows[0]["train_lifted"]) < 0.2
    (tmp_path / "out.conllu").write_text("\n".join(recipes.load(out).predict(WORDS)) + "\n")
    (parsed,) = read_conllu(tmp_path / "out.conllu", trees=False)
    assert not crossed(parsed.heads)


@pytest.mark.parametrize("step", [3, 14])
def test_a_stopped_run_goes_on_to_the_same_bits(run, files, tmp_path, monkeypatch, step):
    out, calls, loss = tmp_path / "run", [], Parser.loss

    def failing(self, batch):
        calls.append(batch)
        if len(calls) == step:
            raise RuntimeError("the machine stopped")
        return loss(self, batch)

    parts = {part: [files / f"{part}.conllu"] for part in ("train", "dev")}
    with monkeypatch.context() as patched:
        patched.setattr(parse_model.Parser, "loss", failing)
        with pytest.raises(RuntimeError, match="machine stopped"):
            fit.train("parse", parts, out, {**SMALL, "loss": "sparsemap", "epochs": 4})
    assert invoke("train", "parse", "--out", out, "--resume").exit_code == 0
    first, second = (torch.load(folder / "weights.pt", weights_only=True) for folder in (out, run[0]))
    assert all(first[name].equal(second[name]) for name in second)


GOOD = [("a", "DET", 2, "det"), ("cat", "NOUN", 0, "root")]
BROKEN = [
    ([("a", "DET", 2, "det"), ("cat", "NOUN", 1, "x"), ("!", "X", 0, "root")], 4, "word 1 is its own ancestor"),
    ([("a", "DET", 0, "root"), ("cat", "NOUN", 0, "root")], 5, "one root expected; word 1 is one already"),
    ([("a", "DET", "_", "det"), ("cat", "NOUN", 0, "root")], 4, "head must be a number; got '_'"),
    ([("a", "DET", 3, "det"), ("cat", "NOUN", 0, "root")], 4, "head must be from 0 to 2"),
]


@pytest.mark.parametrize(("words", "line", "message"), BROKEN)
def test_what_is_no_tree_is_not_trained_on(tmp_path, words, line, message):
    bad, good = tmp_path / "bad.conllu", tmp_path / "good.conllu"
    good.write_text(conllu(GOOD))
    bad.write_text(conllu(GOOD) + conllu(words))
    for train, dev in ((bad, good), (good, bad)):
        result = invoke("train", "parse", "--train", train, "--dev", dev, "--out", tmp_path / "run", *flags(**SMALL))
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {bad}:{line}: {message}")
        assert not (tmp_path / "run").exists()


def test_what_comes_before_a_fault_is_parsed(run, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(conllu(GOOD) * 2 + "1\ta\n")
    result = invoke("predict", run[0], source, "--output", output)
    assert result.exit_code == 1
    assert result.stderr.strip().startswith(f"error: {source}:7: 10 columns between tabs expected; got 2")
    assert len(list(read_conllu(tmp_path / "out.part"))) == 2


def test_a_run_of_another_task_has_no_attachments(files, tmp_path):
    fit.train(
        "tag", {p: [files / f"{p}.conllu"] for p in ("train", "dev")}, tmp_path / "run", {"hidden": 4, "epochs": 1}
    )
    result = invoke("ambiguous", tmp_path / "run", files / "dev.conllu", "--output", tmp_path / "a.tsv")
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path / 'run'} is a run of tag; only parse has attachments\n"
