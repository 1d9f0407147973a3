"""Recipes from Python: training, and what models find as objects; and the picture of a parse."""

import pytest
import torch
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax import plot
from polymax.plot.dependencies import arc_levels
from polymax_recipes import cli, results
from polymax_recipes.training.task import Trained, named

CONLLU = """1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tbark\tbark\tVERB\tVBP\t_\t0\troot\t_\t_
3\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\tCats\tcat\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tsleep\tsleep\tVERB\tVBP\t_\t0\troot\t_\t_

"""
# of each task: training data, options that make it small, and two inputs
TINY = {"hidden": 4, "embedding": 4}
CASES = {
    "tag": ("Anna B-PER\nsings O\n\nRome B-LOC\nOtto I-PER\n\n", TINY, ["Anna sings.", ["Rome", "!"]]),
    "parse": (CONLLU, TINY, ["Dogs bark.", ["Cats", "sleep", "a", "lot"]]),
    "bracket": ("(S (NP (N dogs)) (VP (V bark)))\n(NP (D a) (N cat))\n", TINY, ["dogs bark", ["a", "cat", "!"]]),
    "seq2seq": ("a b\tc d\nb\td\n", TINY, ["a b", "b"]),
    "word-align": ("a b\tc d\nb\td\n", {"embedding": 4}, [("a b", "c d"), ["b", "d e"]]),
    "protein-align": (">a\nAC-GT\n>b\nACCGT\n", {}, [("ACG", "AG"), ["ACGT", "A"]]),
    "entail": ("entailment\ta b\tc\nneutral\tb\ta\n", TINY, [("a b", "c"), ("b", "c a b")]),
    "classify": ("x\ta b c\ny\tb\n", {**TINY, "model": "gumbel-tree"}, ["a b c", "b"]),
    "listops": (
        "9\t[MAX 2 9 ]\n1\t[MIN 1 2 ]\n",
        {**TINY, "model": "dependency"},
        ["[MAX 2 9 ]", "[SM 1 [MIN 2 3 ] ]"],
    ),
    "series": ("1,0,0,1\n2,1,1,0,0\n", {}, [[0.0, 0.1, 0.9], torch.ones(5, 1)]),
}
SUFFIX = {"parse": "conllu", "bracket": "ptb", "tag": "txt", "series": "csv", "protein-align": "fa"}


def untrained(name, folder, **chosen):
    """A model of random weights."""
    data, options, inputs = CASES[name]
    file = folder / f"data.{SUFFIX.get(name, 'tsv')}"
    file.write_text(data)
    task = named(name)
    made = task.Options(**options, **chosen)
    examples = task.read([file])
    vocabularies = task.vocabularies(examples, made)
    torch.manual_seed(0)
    model = task.model(made, vocabularies)
    model.start(task.encode(examples, vocabularies))
    return Trained(task, made, vocabularies, model.eval()), inputs


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_lines(name, tmp_path):
    """Results come one for each input, alone as together, and agree with the lines of `predict`."""
    trained, inputs = untrained(name, tmp_path)
    found = trained.results(inputs)
    assert trained.results([]) == []
    assert len(found) == len(inputs)
    for one, alone in zip(found, (trained.results([one])[0] for one in inputs)):
        for key, value in vars(one).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, vars(alone)[key], rtol=1e-4, atol=1e-5)
                assert not value.requires_grad
            elif key not in ("probabilities", "discrepancies"):
                assert str(value) == str(vars(alone)[key])


def lines_of(trained, tokens):
    return [line for line in trained.predict([*tokens, ""]) if line]


@pytest.mark.parametrize("loss", ["crf", "softmax", "sparsemap", "sparse-dp", "perceptron"])
def test_tags_have_their_probabilities(loss, tmp_path):
    trained, inputs = untrained("tag", tmp_path, loss=loss)
    for result in trained.results(inputs):
        assert [f"{a}\t{b}" for a, b in zip(result.tokens, result.tags)] == lines_of(trained, result.tokens)
        if loss == "perceptron":
            assert result.probabilities is None
            continue
        assert result.probabilities.shape == (len(result.tokens), len(result.names))
        torch.testing.assert_close(result.probabilities.sum(-1), torch.ones(len(result.tokens)))


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("loss", ["crf", "sparsemap", "svm"])
def test_parses_have_the_marginals_of_their_arcs(loss, projective, tmp_path):
    trained, inputs = untrained("parse", tmp_path, loss=loss, projective=projective)
    for result in trained.results(inputs):
        n = len(result.tokens)
        assert len(result.heads) == len(result.relations) == n
        assert result.heads.count(0) == 1
        assert result.relations[result.heads.index(0)] == "root"
        if loss == "svm":
            assert result.arcs is None
            continue
        assert result.arcs.shape == (n + 1, n + 1)
        torch.testing.assert_close(result.arcs.sum(0)[1:], torch.ones(n, dtype=torch.float64))
        assert result.arcs[:, 0].sum() == 0
        torch.testing.assert_close(result.arcs[0].sum(), torch.tensor(1.0, dtype=torch.float64))


def test_other_results(tmp_path):
    trained, inputs = untrained("bracket", tmp_path)
    first, second = trained.results(inputs)
    assert str(first.tree) == next(iter(trained.predict(["dogs bark"])))
    assert second.spans.shape == (3, 3)
    assert second.spans[0, 2] == pytest.approx(1.0, abs=1e-5)
    trained, inputs = untrained("series", tmp_path)
    assert list(trained.results(inputs)[0].discrepancies) == ["1", "2"]
    trained, inputs = untrained("listops", tmp_path)
    assert [len(result.heads[0]) for result in trained.results(inputs)] == [4, 7]
    trained, inputs = untrained("classify", tmp_path)
    assert trained.results(inputs)[0].spans[0][-1] == (0, 2)
    assert sum(trained.results(inputs)[0].probabilities.values()) == pytest.approx(1)
    trained, inputs = untrained("seq2seq", tmp_path)
    result = trained.results(inputs)[0]
    assert result.attention.shape == (len(result.target), len(result.source))
    assert result.text == next(iter(trained.predict(["a b"])))
    trained, inputs = untrained("word-align", tmp_path)
    assert [result.weights.shape for result in trained.results(inputs)] == [(2, 2), (1, 2)]
    trained, inputs = untrained("entail", tmp_path)
    for result in trained.results(inputs):
        assert result.attention.shape == (len(result.hypothesis), len(result.premise))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tag", [""]),
        ("tag", [["a", ""]]),
        ("entail", ["a"]),
        ("word-align", [("a",)]),
        ("protein-align", [("A1", "A")]),
        ("series", [torch.zeros(0)]),
        ("series", [[float("nan")]]),
        ("classify", [" "]),
        ("seq2seq", [7]),
    ],
)
def test_what_is_no_input_is_refused(name, wrong, tmp_path):
    trained, _ = untrained(name, tmp_path)
    with pytest.raises(ValueError, match="inputs must be"):
        trained.results(wrong)


def test_a_training_gives_a_model(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(CASES["tag"][0])
    options = {**TINY, "epochs": 1, "accelerator": "cpu"}
    trained = recipes.train("tag", train=file, dev=[str(file)], test=file, out=tmp_path / "run", **options)
    assert isinstance(trained.results(["Anna"])[0], results.TagResult)
    assert set(trained.reports) == {"dev", "test"}
    assert 0 <= trained.reports["dev"]["accuracy"] <= 1
    assert list(trained.predict(["Anna"])) == list(recipes.load(tmp_path / "run").predict(["Anna"]))
    with pytest.raises(ValueError, match="--hiden is not an option of tag"):
        recipes.train("tag", train=file, dev=file, out=tmp_path / "other", hiden=3)
    with pytest.raises(ValueError, match="task must be one of"):
        recipes.train("tags", train=file, dev=file, out=tmp_path / "other")
    assert pm.recipes is recipes


def test_arcs_that_meet_are_on_different_levels():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        scores = torch.randn(16, 16, generator=generator)
        heads = pm.SpanningTree().decode(pm.SpanningTree().map(scores)).tolist()
        levels = arc_levels([(head, word) for word, head in enumerate(heads, 1) if head])
        spans = [(min(arc), max(arc), level) for arc, level in levels.items()]
        for k, (a, b, level) in enumerate(spans):
            assert all(level != other or b <= c or d <= a for c, d, other in spans[:k])


@pytest.mark.parametrize("n", [1, 12, 40])
def test_labels_of_parses_do_not_overlap(n):
    generator = torch.Generator().manual_seed(n)
    # near heads are likely, as in sentences
    near = -(torch.arange(n + 1.0).unsqueeze(1) - torch.arange(n + 1.0)).abs()
    heads = pm.ProjectiveTree().map(near + torch.randn(n + 1, n + 1, generator=generator))
    heads = pm.ProjectiveTree().decode(heads).tolist()
    words = [f"{'constitution'[: 1 + k % 12]}" for k in range(n)]
    names = [["nmod:poss", "det", "obl:unmarked", "case"][k % 4] for k in range(n)]
    probabilities = torch.rand(n, generator=generator)
    ax = plot.dependencies(heads, words, names, probabilities=probabilities)
    ax.figure.canvas.draw()
    assert len(ax.texts) == n
    for texts in (ax.texts, ax.get_xticklabels()):
        boxes = [text.get_window_extent() for text in texts]
        for k, a in enumerate(boxes):
            for b in boxes[:k]:
                apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
                assert apart, (texts[k].get_text(), n)
    assert ax.figure.get_figwidth() < 1.2 * n + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "heads must be"),
        (([1],), "heads must be words from 1 to 1, none its own"),
        (([2, 3],), "heads must be words from 1 to 2"),
        (([0], ["a", "b"]), "tokens must be 1 labels; got 2"),
        (([0], ["a"], ["x", "y"]), "relations must be 1 labels; got 2"),
    ],
)
def test_trees_that_are_none_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.dependencies(*arguments)
    with pytest.raises(ValueError, match="probabilities must be"):
        plot.dependencies([0], probabilities=[1.5])


def test_the_command_draws_a_parse(tmp_path):
    (tmp_path / "a.conllu").write_text(CONLLU)
    options = {**TINY, "characters": 4, "layers": 1, "arcs": 4, "labels": 4, "epochs": 1, "accelerator": "cpu"}
    recipes.train("parse", train=tmp_path / "a.conllu", dev=tmp_path / "a.conllu", out=tmp_path / "run", **options)

    def invoke(*arguments):
        return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])

    result = invoke("plot-parse", tmp_path / "run", "--source", "Dogs don't bark.", "--out", tmp_path / "a.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert [line.split("\t")[1] for line in result.output.splitlines()[:5]] == ["Dogs", "do", "n't", "bark", "."]
    result = invoke("plot-parse", tmp_path / "run", "--source", "Dogs don't", "--tokens", "--out", tmp_path / "b.png")
    assert result.output.splitlines()[1].split("\t")[1] == "don't"
    raw = tmp_path / "raw.txt"
    raw.write_text("Dogs bark. Cats sleep!\n")
    result = invoke("predict", tmp_path / "run", raw, "--text")
    assert result.output.splitlines()[0] == "# text = Dogs bark."
    assert result.output.splitlines()[5:7] == ["# text = Cats sleep!", result.output.splitlines()[6]]
    assert "SpaceAfter=No" in result.output
