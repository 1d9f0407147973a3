"""Grids of trainings: they go on where they were stopped, keep what was measured, and become tables and pictures."""

import gzip
import importlib
import json
import re
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

import polymax as pm
from benchmarks import (
    archive,
    contexts,
    curves,
    grid,
    grid_tables,
    language_model,
    numbers,
    papers,
    pictures,
    softmax_kernels,
    tables,
    vocabulary,
)
from benchmarks.published import NOT_YET, REPRODUCED
from polymax_recipes import cli
from polymax_recipes.lm import sources
from polymax_recipes.lm.repeats import distinct, repeats
from polymax_recipes.training.fit import check_options
from polymax_recipes.training.settings import Learning, Running, made
from polymax_recipes.training.task import named

LINE = "def first(value):\n    return value + 1\n\n\nprint(first(2))\n"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A Python that has three packages, one for each part."""
    home = tmp_path / "site"
    for package in ("torch", "torchgen", "triton"):
        for name in ("one", "two", "three"):
            file = home / package / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# {package} {name}\n" + LINE * 20)
        (home / package / "empty.py").touch()
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda kind: str(home))
    for cached in (contexts._tokens, vocabulary.texts):
        cached.cache_clear()
    yield home
    for cached in (contexts._tokens, vocabulary.texts):
        cached.cache_clear()


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr(archive, "RESULTS", folder)
    return folder


def command(module, monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["grid", *map(str, words), "--machine", "here"])
    return module.main()


def test_parts_of_the_sources_share_no_package(packages):
    found = {part: sources.source_documents(part, 4) for part in sources.PARTS}
    assert {part: {one.text.split()[1] for one in some} for part, some in found.items()} == {
        "train": {"torch"},
        "dev": {"triton"},
        "test": {"torchgen"},
    }
    assert [len(some) for some in found.values()] == [3, 3, 3]
    size = len(found["train"][0].text)
    (one,) = sources.source_documents("train", 4, most=size + 10)
    assert one in found["train"]
    with pytest.raises(ValueError, match="no Python sources for test of at most 5 bytes"):
        sources.source_documents("test", 4, most=5)
    with pytest.raises(ValueError, match="part must be one of train, dev, test; got 'all'"):
        sources.source_documents("all", 4)


def test_this_python_has_sources_for_every_part():
    parts = {sources.part_of(name) for name in sources.installed_packages()}
    assert {"train", "test"} <= parts


def test_sources_are_written_as_texts(packages, tmp_path):
    invoke = partial(CliRunner().invoke, cli.application())
    out = tmp_path / "texts"
    assert invoke(["collect-sources", str(out)]).exit_code == 0
    assert {file.name for file in out.iterdir()} == {"train.txt", "dev.txt", "test.txt"}
    assert (out / "test.txt").read_text().count("# torchgen") == 3
    assert "--force writes over it" in invoke(["collect-sources", str(out)]).stderr
    assert invoke(["collect-sources", str(out), "--most", "2000", "--force"]).exit_code == 0
    assert (out / "train.txt").read_text().count("# torch ") == 1


@pytest.mark.parametrize("within", [1, 3, 20])
def test_repeats_are_words_of_the_context(within):
    torch.manual_seed(0)
    best, inputs = torch.randint(5, (2, 3, 12))
    found = repeats(best, inputs, within)
    for row in range(3):
        for place in range(12):
            seen = inputs[row, max(0, place + 1 - within) : place + 1].tolist()
            assert bool(found[row, place]) == (int(best[row, place]) in seen)


def test_distinct_counts_n_grams():
    assert distinct([[1, 2, 3], [1, 2, 4]], 2) == 0.75
    assert distinct([[1]], 2) is None


TINY = contexts.Shape(
    16, 8, 1, 2, 2, {"steps": (6, 0), "seconds": (0, 0.05)}, ("softmax", "entmax+scaling"), precision="float32"
)


def test_contexts_are_trained_kept_and_drawn(packages, results, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(contexts.PLANS, "cpu", contexts.Plan((TINY,), 4_000, 2_000))
    runs = tmp_path / "runs"
    assert command(contexts, monkeypatch, "cpu", runs, "--budget", "steps", "--seeds", 2, "--keep") == 0
    assert len(list(runs.iterdir())) == 4
    kept = archive.trainings("here", "contexts", "cpu")
    assert {"date", "commit", "recorded", "machine", "plan"} <= set(kept)
    for row in kept["rows"]:
        assert row["steps"] == 6
        assert len(row["curve"]) >= 3
        assert row["curve"][-1]["supports"]["mean_support"][0] >= 1
        assert row["bits_per_byte"] == pytest.approx(row["by_position"]["0"])
        assert row["model"]["length_scaling"] is (row["attention"] == "entmax+scaling")
        assert row["commit"] == kept["rows"][0]["commit"]
    # both learn from the same first weights: before the first step they differ in the attention alone
    assert kept["rows"][0]["train_digest"] == kept["rows"][1]["train_digest"]
    assert "| 16 | 6 steps | entmax+scaling |" in tables.table("contexts here cpu")
    assert "from 0" in tables.table("positions here cpu")
    (name,) = curves.charts()
    assert name == "contexts-here-cpu.svg"
    monkeypatch.setattr(pictures, "attention_time", lambda: ("", ""))
    drawn = pictures.charts()[name]
    assert drawn.count('class="line c') == 2
    assert "entmax+scaling" in drawn
    capsys.readouterr()
    # nothing is left to do by steps; trainings by seconds are others
    assert command(contexts, monkeypatch, "cpu", runs, "--seeds", 1) == 0
    assert len(list(runs.iterdir())) == 6
    shown = capsys.readouterr().out
    assert "training 2 of 4" not in shown
    assert "training 4 of 4" in shown


@pytest.mark.parametrize("shared", [True, False])
def test_trainings_of_a_constant_rate_are_compared_by_steps_and_by_seconds(
    shared, packages, results, tmp_path, monkeypatch
):
    shape = replace(TINY, budgets={"seconds": (0, 0.2)}, every=4, constant=True)
    monkeypatch.setitem(contexts.PLANS, "cpu", contexts.Plan((shape,), 4_000, 2_000))
    more = ["--shared"] * shared
    assert command(contexts, monkeypatch, "cpu", tmp_path / "runs", "--seeds", 1, "--keep", *more) == 0
    rows = archive.trainings("here", "contexts", "cpu")["rows"]
    for row in rows:
        *steps, last = [part["step"] for part in row["curve"]]
        assert steps == list(range(4, last, 4))[: len(steps)]
        assert last - steps[-1] <= 4
        # others used the device
        assert (row["tokens_per_second"] is None) is shared
    (name,) = curves.charts()
    assert name == "contexts-here-cpu-16.svg"
    assert [title for title, _ in curves.charts()[name]][1].count("one seed") == 1
    assert "| 16 | 0.2 s | softmax |" in tables.table("contexts here cpu")
    text = tables.table("equal_steps here cpu 16")
    last = min((row["curve"][-2] for row in rows), key=lambda part: part["step"])
    assert f" {last['step']} steps |\n" in text
    seconds = "" if shared else f"; {last['seconds']:.0f} s"
    assert f"| {last['held_out']:.2f}{seconds} |" in text
    assert "keys a query attends to" in tables.table("equal_steps here cpu 16 supports")
    first = rows[0]["curve"][0]
    mark = "here/contexts:cpu; softmax; 16; seconds"
    assert numbers.number(f"{mark}; held_out@4; .4f") == f"{first['held_out']:.4f}"
    assert numbers.number(f"{mark}; bits_per_byte; .2f") == f"{rows[0]['bits_per_byte']:.2f}"
    with pytest.raises(ValueError, match="has no training of sparsemax, 16, seconds"):
        numbers.number("here/contexts:cpu; sparsemax; 16; seconds; steps; d")


def test_what_is_comparable_by_steps_has_one_rate_and_one_limit():
    kinds = (("softmax", "seconds"), ("softmax", "steps"), ("entmax", "steps"))
    rows = [{"attention": name, "budget": budget, "constant": True} for name, budget in kinds]
    assert grid_tables.comparable(rows) == [rows[0], rows[2]]
    assert grid_tables.comparable([{**row, "constant": False} for row in rows]) == []


@pytest.mark.parametrize("length", [3, 8, 21])
def test_blocks_see_a_window(length, monkeypatch):
    monkeypatch.setattr(softmax_kernels, "WINDOW", 8)
    torch.manual_seed(length)
    inputs = torch.randn(3, 2, 2, length, 4, dtype=torch.float64).unbind()
    for part in inputs:
        part.requires_grad_()
    given = pm.nn.scaled_dot_product_attention(*inputs, is_causal=True, mapping=pm.softmax, window=(7, 0))
    found = softmax_kernels.blocks(*inputs)
    torch.testing.assert_close(found, given)
    grad = torch.randn_like(found)
    torch.testing.assert_close(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(given, inputs, grad))


@pytest.mark.parametrize(("length", "window"), [(100, 8), (700, 256), (513, 300)])
def test_a_mask_of_flex_attention_is_the_window(length, window, monkeypatch):
    monkeypatch.setattr(softmax_kernels, "WINDOW", window)
    at = torch.arange(length)
    behind = at.unsqueeze(-1) - at
    mask = softmax_kernels.window_mask(length, "cpu")
    seen = mask.to_dense()[0, 0].bool().repeat_interleave(128, 0).repeat_interleave(128, 1)[:length, :length]
    found = mask.mask_mod(0, 0, at.unsqueeze(-1), at) & seen
    assert torch.equal(found, (behind >= 0) & (behind < window))


def test_softmax_over_a_window_is_trained_and_measured_by_it(packages, results, tmp_path, monkeypatch):
    monkeypatch.setattr(softmax_kernels, "WINDOW", 4)
    shape = replace(TINY, attentions=("softmax", "softmax+window"))
    monkeypatch.setitem(contexts.PLANS, "cpu", contexts.Plan((shape,), 4_000, 2_000))
    assert command(contexts, monkeypatch, "cpu", tmp_path / "runs", "--budget", "steps", "--seeds", 1, "--keep") == 0
    every, window = archive.trainings("here", "contexts", "cpu")["rows"]
    assert [row["model"]["attention"] for row in (every, window)] == ["softmax", "softmax"]
    # 1, 2, 3 keys, then all before, or 4
    assert every["curve"][-1]["supports"]["mean_support"] == [8.5]
    assert window["curve"][-1]["supports"]["mean_support"] == [(1 + 2 + 3 + 13 * 4) / 16]
    assert window["curve"][-1]["bits"] != every["curve"][-1]["bits"]


def test_a_rate_falls_or_stays():
    falling = language_model.Training("cpu", 100, 0.0, 1, 1e-2, "float32", 0)
    constant = replace(falling, constant=True)
    assert falling.rate(0, 0.0) == pytest.approx(constant.rate(0, 0.0)) == pytest.approx(2e-4)
    assert constant.rate(99, 0.99) == pytest.approx(1e-2)
    assert falling.rate(99, 1.0) == pytest.approx(1e-3)
    tenths = [step for step in range(101) if falling.measures(step, step / 100, max(0, step - 1) // 10)]
    assert tenths == list(range(10, 101, 10))
    assert [step for step in range(101) if replace(falling, every=40).measures(step, step / 100, 0)] == [40, 80, 100]


def test_the_longest_context_needs_enough_text(packages, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(contexts.PLANS, "cpu", contexts.Plan((replace(TINY, context=100_000),), 4_000, 2_000))
    assert command(contexts, monkeypatch, "cpu", tmp_path / "runs") == 1
    assert "too few for a context of 100,000" in capsys.readouterr().err


def test_losses_of_words_are_compared(packages, results, tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    plan = vocabulary.Plan(270, 16, 8, 1, 2, 6, 1e-2, 4_000, 2_000, 3, 4, "float32")
    monkeypatch.setitem(vocabulary.PLANS, "cpu", plan)
    assert command(vocabulary, monkeypatch, "cpu", tmp_path / "runs", "--seeds", 1, "--keep") == 0
    rows = archive.trainings("here", "vocabulary", "cpu")["rows"]
    assert [row["loss_name"] for row in rows] == list(vocabulary.LOSSES)
    # cross-entropy rules out no word
    assert rows[0]["possible_words"] == rows[0]["words"]
    for row in rows:
        assert 0 <= row["wrong_repeats"] <= row["repeats"] <= 1
        assert 0 < row["jensen_shannon"] <= 0.6932
        assert 0 < row["distinct_1"] <= 1
        assert row["step_ms"] > 0
    text = tables.table("vocabulary here cpu")
    assert text.count("\n| ") == 6
    assert "| the text itself |" in text


def test_a_table_of_a_paper_is_trained(results, tmp_path, monkeypatch, capsys):
    pytest.importorskip("lightning")
    folder = tmp_path / "data" / "below"
    folder.mkdir(parents=True)
    sentence = "Ann\tB-person\nsaw\tO\nOslo\tB-location\n\nno\tO\none\tO\n\n"
    for part in ("train", "dev", "test"):
        with gzip.open(folder / f"wnut17.{part}.conll.gz", "wt") as opened:
            opened.write(sentence * 4)
    some = ["--data", tmp_path / "data", "--short", "--seeds", 1, "--method", "crf", "--method", "softmax"]
    assert command(papers, monkeypatch, "entities", tmp_path / "runs", *some, "--keep") == 0
    rows = archive.trainings("here", "papers_entities", "entities")["rows"]
    assert [row["method"] for row in rows] == ["crf", "softmax"]
    assert rows[0]["options"]["epochs"] == papers.PLANS["entities"].short["epochs"]
    assert 0 <= rows[0]["reports"]["test"]["f1"] <= 1
    assert "| crf |" in tables.table("papers here entities")
    assert command(papers, monkeypatch, "parsing", tmp_path / "runs", *some[:2]) == 1
    assert "has no file en_ewt-ud-train.conllu.gz" in capsys.readouterr().err


def test_a_grid_begins_nothing_after_its_minutes(results, tmp_path, capsys):
    ran = []
    jobs = [grid.Job(f"job-{k}", {"k": k}, lambda k=k: ran.append(k) or {"found": k}) for k in range(3)]
    parser = grid.argparse.ArgumentParser()
    grid.add_options(parser, ["plan"])
    assert list(grid.seeds(parser.parse_args(["plan", str(tmp_path), "--seeds", "2"]))) == [0, 1]
    assert list(grid.seeds(parser.parse_args(["plan", str(tmp_path), "--seed", "2", "--seed", "0"]))) == [2, 0]
    options = parser.parse_args(["plan", str(tmp_path), "--minutes", "1e-9", "--machine", "here"])
    assert grid.rows(jobs, options) == []
    options.minutes = 0.0
    assert [row["found"] for row in grid.rows(jobs, options)] == ran == [0, 1, 2]
    assert [row["found"] for row in grid.rows(jobs, options)] == [0, 1, 2]
    assert ran == [0, 1, 2]
    assert "3 of 3 trainings have no file yet" in capsys.readouterr().out
    assert {"date", "commit", "machine", "recorded"} <= set(json.loads((tmp_path / "job-0.json").read_text()))


def test_every_figure_of_a_paper_names_a_command_that_exists():
    for shown in REPRODUCED.values():
        for figure, command_of_it, task in shown:
            for module, plan in re.findall(r"python -m benchmarks\.(\w+) ([\w-]+)", command_of_it):
                found = importlib.import_module(f"benchmarks.{module}")
                assert not hasattr(found, "PLANS") or plan in found.PLANS, figure
            assert task == NOT_YET or re.fullmatch(r"[a-z_]*(:[a-z]+)?", task), figure
    text = grid_tables.reproduced()
    assert text.count("not yet") >= 1
    assert "`h200/parsing`" in text


@pytest.mark.parametrize("plan", contexts.PLANS)
def test_plans_of_contexts_have_heads_that_fit(plan):
    for shape in contexts.PLANS[plan].shapes:
        assert shape.size % (2 * shape.heads) == 0
        assert set(shape.attentions) <= set(contexts.ALL)
        assert contexts.PLANS[plan].held_out > shape.context


@pytest.mark.parametrize("name", papers.PLANS)
def test_methods_of_papers_have_options_that_their_tasks_take(name):
    plan = papers.PLANS[name]
    task = named(plan.task)
    for method, own in plan.methods.items():
        given = {**plan.options, **plan.short, **own}
        check_options(task, given)
        kinds = (task.Options, Learning, Running)
        made_of = [made(kind, {k: v for k, v in given.items() if k in names_of(kind)}) for kind in kinds]
        if plan.task == "listops":
            assert made_of[0].chosen in made_of[0].method or made_of[0].method == "default", method
    assert plan.divided is not None or set(plan.files) == {"train", "dev", "test"}


def names_of(kind):
    return {field.name for field in fields(kind)}


def test_a_file_without_parts_is_divided_once(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    plan = papers.PLANS["listops"]
    for name, count in (("train_generated_d20s.tsv.gz", 50), ("test_d20s.tsv.gz", 1)):
        with gzip.open(folder / name, "wt") as opened:
            opened.writelines(f"{k}\t( [MAX {k} 1 ] )\n" for k in range(count))
    found = papers.data(plan, folder, tmp_path / "runs")
    assert found["test"] == folder / "test_d20s.tsv.gz"
    assert found["train"].parent == found["dev"].parent == tmp_path / "runs" / "data" / "train_generated_d20s"
    assert papers.data(plan, folder, tmp_path / "runs") == found
