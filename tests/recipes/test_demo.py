"""The command: the demo writes a complete report, the benchmark its JSON, and errors are one line."""

import io
import json
import os
import re
import sys
from dataclasses import replace
from math import comb
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import polymax as pm
from polymax_recipes import cli
from polymax_recipes.demo import pictures, speed, tagged, terminal, translation
from polymax_recipes.demo import run as recipe
from polymax_recipes.demo.catalogue import MAPPINGS, call, name
from polymax_recipes.demo.corpus import pairs
from polymax_recipes.demo.lexicon import Lexicon
from polymax_recipes.demo.sentence import counts, shown_sentence
from polymax_recipes.demo.structured import shown_structures
from polymax_recipes.seq2seq import numbers

FAST = ((2, 8),)
SHORT = translation.Lesson(pairs=96, unseen=8, epochs=1)


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The demo, run once: its directory and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    printed = io.StringIO()
    console = Console(file=printed, width=80)
    report = recipe.demo(out, shapes=FAST, seconds=0.0, lesson=SHORT, console=console)
    assert report == out / "report.html"
    return out, printed.getvalue()


def test_demo_writes_pictures_and_a_report(run):
    out, _ = run
    pictures = ("attention", "curves", "simplex", "alignment", "tags", "trees", "speed", "translation")
    files = {"report.html", *(f"{picture}.png" for picture in pictures)}
    assert {file.name for file in out.iterdir()} == files
    for picture in out.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_report_is_self_contained_and_complete(run):
    page = (run[0] / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]{0,30})""", page)
    assert len(sources) == 8
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    for mapping in MAPPINGS:
        assert f"<code>{call(mapping)}</code>" in page
        assert f"<code>{name(mapping)}</code>" in page
    for mapping in translation.ATTENTIONS:
        assert f"<code>{call(mapping)}</code>" in page
    for shown in shown_structures():
        assert f"<code>pm.{type(shown.structure).__name__}()</code>" in page
    # every placeholder was filled
    assert not re.search(r"\$[a-z]", page)


def test_demo_prints_a_row_for_every_mapping(run):
    _, printed = run
    for mapping in MAPPINGS:
        rows = [line for line in printed.splitlines() if line.startswith(name(mapping) + " ")]
        assert len(rows) == 2, f"{name(mapping)}: weights and speed"
        *cells, zeros, groups = rows[0].removeprefix(name(mapping)).split()
        weights = shown_sentence().weights()[name(mapping)]
        assert [0.0 if cell == "·" else float(cell) for cell in cells] == pytest.approx(weights, abs=0.0051)
        assert (int(zeros), int(groups)) == counts(weights)
        assert int(zeros) == cells.count("·")
        milliseconds, multiple = re.findall(r"[0-9.]+", rows[1].removeprefix(name(mapping)))
        assert float(milliseconds) >= 0
        assert float(multiple) > 0
    assert max(map(len, printed.splitlines()[:20])) <= 80
    assert "wrote" in printed


def test_demo_prints_a_row_for_every_structure(run):
    lines = run[1].splitlines()
    for shown in shown_structures():
        (row,) = [line.split() for line in lines if line.startswith(shown.name + " ")]
        assert row == [shown.name, shown.count(), *map(str, shown.positive())]
        assert max(len(line) for line in lines if line.startswith(shown.name)) <= 80


def test_demo_prints_the_attention_and_the_measures_of_every_model(run):
    lines = run[1].splitlines()
    (titles,) = [line for line in lines if all(call(mapping) in line for mapping in translation.ATTENTIONS)]
    assert len(titles) <= 80
    for mapping in translation.ATTENTIONS:
        (row,) = [line.split() for line in lines if re.match(re.escape(call(mapping)) + r" +[0-9.]+% ", line)]
        zeros, groups, training, translating = row[-4:]
        # after so few steps sparse mappings are still flat
        assert re.fullmatch("0%" if name(mapping) == "softmax" else r"\d+%", zeros)
        assert float(groups) >= 1
        assert all(float(speed.replace(",", "")) > 0 for speed in (training, translating))


def test_shown_number_is_not_learned_from(tmp_path):
    lesson = translation.LESSON
    learned, unseen = numbers.write(tmp_path, lesson.pairs, lesson.unseen)
    shown = f"{numbers.english(translation.SHOWN)}\t{numbers.french(translation.SHOWN)}"
    assert shown not in learned.read_text(encoding="utf-8").splitlines()
    assert shown in unseen.read_text(encoding="utf-8").splitlines()


def test_attention_as_text():
    weights = torch.tensor([[0.2, 0.8, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    model = translation.Learned(translation.ATTENTIONS[1], {}, 1.0, weights, ["un", "deux", "."], ["a", "b", "."])
    assert terminal.panel(model).splitlines() == [
        "pm.sparsemax(x)",
        "     1 2 3",
        "  un░░██ ·",
        "deux▒▒▒▒ ·",
        "   . · ·██",
    ]


def test_translation_is_left_out_where_packages_are_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    printed = io.StringIO()
    assert recipe.trained(Console(file=printed, width=40), SHORT) == []
    assert printed.getvalue() == "translation is left out; it needs lightning: pip install 'polymax[train]'\n\n"


def test_interrupting_the_training_leaves_a_report_of_the_rest(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(translation, "train", interrupted)
    monkeypatch.setattr(recipe, "_save", lambda figure, file: file)
    monkeypatch.setattr(recipe, "page", lambda *parts: f"{len(parts)} parts")
    with pytest.raises(KeyboardInterrupt):
        recipe.demo(tmp_path, shapes=FAST, seconds=0.0, lesson=SHORT, console=Console(file=io.StringIO()))
    assert (tmp_path / "report.html").read_text() == "4 parts"


def test_structures_are_counted():
    counts = {shown.name: shown.count() for shown in shown_structures()}
    # tags to the power of words, a Catalan number, and that of projective trees
    assert counts["tags"] == f"{len(tagged.TAGS) ** len(tagged.SHOWN):,}"
    assert counts["constituents"] == str(comb(12, 6) // 7)
    assert counts["dependencies"] == f"{comb(19, 6) // 7:,}"


def test_gini_leaves_few_parts_and_marginals_all():
    for shown in shown_structures():
        best, sparse, dense = shown.positive()
        assert best < sparse < dense
    aligned, tags, constituents, dependencies = shown_structures()
    assert aligned.positive()[2] == aligned.scores[0].numel()
    assert tags.positive()[2] == sum(mu.numel() for mu in tags.expected()[2])
    # both readings are left: she has the telescope, or the man
    _, spans, _ = constituents.expected()
    assert 0 < spans[2, 6] < 1
    assert spans[1, 3] == pytest.approx(1 - float(spans[2, 6]))
    _, arcs, _ = dependencies.expected()
    assert 0 < arcs[2, 5] < 1
    assert arcs[4, 5] == pytest.approx(1 - float(arcs[2, 5]))


def test_tag_model_is_normalised():
    unary, transition = tagged.tag_scores(tagged.SHOWN)
    assert unary.shape == (len(tagged.SHOWN), len(tagged.TAGS))
    torch.testing.assert_close(transition.exp().sum(1), torch.ones(len(tagged.TAGS), dtype=torch.float64))
    assert all(tag in tagged.TAGS for sentence in tagged.tagged_sentences() for _, tag in sentence)
    best = pm.Chain().decode(pm.Chain().map(unary, transition))
    assert [tagged.TAGS[k] for k in best] == ["NOUN", "VERB", "ADP", "DET", "NOUN"]


def test_weights_of_the_sentence():
    shown = shown_sentence()
    assert shown.scores.shape == (len(shown.target), len(shown.source))
    weights = shown.weights()
    for mapping, row in weights.items():
        assert sum(row) == pytest.approx(2 if mapping == "budgetmax" else 1)
    zeros = {mapping: counts(row)[0] for mapping, row in weights.items()}
    assert zeros["softmax"] == 0
    assert zeros["sparsemax"] > 0
    # fusedmax gives one weight to "does not want"
    fused = weights["fusedmax"]
    assert fused[2] == fused[3] == fused[4] > 0
    assert counts(fused) == (12, 1)


def test_lexicon_is_normalised_and_finds_translations():
    lexicon = Lexicon(pairs(), rounds=10)
    torch.testing.assert_close(lexicon.probabilities.sum(1), torch.ones(len(lexicon.source), dtype=torch.float64))
    french = list(lexicon.target)
    for english, word in {"apple": "pomme", "girl": "fille", "book": "livre", "not": "pas"}.items():
        assert french[int(lexicon.probabilities[lexicon.source[english]].argmax())] == word


def test_softmax_of_the_scores_is_the_posterior():
    corpus = pairs()
    lexicon = Lexicon(corpus, rounds=2)
    source, target = corpus[3]
    t = [[float(lexicon.probabilities[lexicon.source[e], lexicon.target[f]]) for e in source] for f in target]
    expected = torch.tensor(t, dtype=torch.float64)
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(torch.softmax(lexicon.scores(corpus[3]), -1), expected)


def test_timings_cover_mappings_and_shapes():
    timings = list(speed.measure(MAPPINGS[:2], ((2, 4), (3, 5)), seconds=0.0))
    assert [(t.mapping, t.shape) for t in timings] == [
        ("softmax", (2, 4)),
        ("entmax", (2, 4)),
        ("softmax", (3, 5)),
        ("entmax", (3, 5)),
    ]
    assert all(t.milliseconds > 0 and t.ratio > 0 and t.others >= 0 for t in timings)


def test_times_of_a_busy_machine_come_with_a_caution():
    calm = speed.Timing("softmax", (2, 4), 1.0, 1.0, others=0.02)
    assert speed.caution([calm]) == ""
    assert "up to 80%" in speed.caution([calm, replace(calm, others=0.8)])


def test_bench_writes_json(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "SHAPES", FAST)
    file = tmp_path / "speed.json"
    result = invoke("bench", "--out", file)
    assert result.exit_code == 0, result.output
    stored = json.loads(file.read_text())
    assert [row["mapping"] for row in stored["timings"]] == [name(mapping) for mapping in MAPPINGS]
    assert stored["machine"]["torch"] == torch.__version__


def test_demo_command_runs_the_recipe(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(recipe, "demo", asked.append)
    assert invoke("demo", "--out", tmp_path).exit_code == 0
    assert asked == [tmp_path]


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_an_impossible_out_is_one_line(tmp_path, command):
    (tmp_path / "file").write_text("")
    under_a_file = tmp_path / "file" / "below"
    wrong_kind = tmp_path / "file" if command == "demo" else tmp_path
    for out in (under_a_file, wrong_kind):
        result = invoke(command, "--out", out)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: --out")
        assert str(out) in result.stderr or str(out.parent) in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_an_unwritable_out_is_one_line(tmp_path, command, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    result = invoke(command, "--out", tmp_path / "new")
    assert result.exit_code == 1
    assert "no permission" in result.stderr


@pytest.mark.parametrize("name", ["abacus", "cuda:99"])
def test_an_impossible_device_is_one_line(name):
    result = invoke("bench", "--device", name)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: --device: device '{name}' cannot be used")
    assert result.stderr.count("\n") == 1


def test_an_interrupt_keeps_written_output(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pictures, "curve_panels", interrupted)
    result = invoke("demo", "--out", tmp_path)
    assert result.exit_code == 130
    assert str(tmp_path) in result.stderr
    assert (tmp_path / "attention.png").exists()


def full_disk():
    """A file that takes nothing."""
    return Path("/dev/full").open("w")


def closed_pipe():
    """A file whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


@pytest.mark.parametrize(
    ("stdout", "said"),
    [(full_disk, "error: no space left on device\n"), (closed_pipe, "")],
)
def test_what_cannot_be_printed_is_one_line_or_none(stdout, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["polymax", "--help"])
    with stdout() as file:
        monkeypatch.setattr(sys, "stdout", file)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
    assert stop.value.code == 1
    assert capsys.readouterr().err == said


def test_missing_packages_are_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert capsys.readouterr().err == "error: the command polymax needs typer, rich: pip install 'polymax[cli]'\n"
