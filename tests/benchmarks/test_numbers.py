"""Figures of the documents are those of the results files; runs are kept apart, and can be compared."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import archive, machine, numbers, record, tables
from benchmarks.__main__ import main
from website import history

ROOT = Path(__file__).parents[2]
# a time, a rate, a size of memory or a share; tables and sentences of user pages have none that is typed
TYPED = re.compile(
    r"\d(?:\.\d+)? (?:ms|µs|us|seconds|minutes|GiB|MiB|MB)\b|\d (?:words|tokens)(?:/s| a second)|\d ?%"
    r"|\d times (?:as (?:long|fast)|faster|slower)|(?:half|third|quarter) of the time|twice as (?:fast|long)"
)
# settings and sizes, which nothing measures
SETTINGS = (
    *("differ by up to 5 % in pitch", "a third, 15 % or 5 % of the tiles", "all pages matter, or 5 %"),
    "two sines of 60 to 300 ms",
    "| 1 MiB; 32 MiB of all bodies at a time |",
    "| 4 GiB | `--memory` |",
)


def a_run(**changes):
    fields = {"case": "sparsemax", "timed": "forward", "competitor": "polymax", "shape": (8, 32), "dtype": "float32"}
    row = record.Row(**fields, eager_us=100.0, eager_spread_us=1.0)
    run = record.Run("simplex", "cpu", False, "2026-11-01", "abc", "2026-11-01T10:00:00Z", {"name": "here"}, (), (row,))
    return replace(run, rows=tuple(replace(row, **{**changes}) for row in run.rows))


def kept(file, run):
    record.save(file, run)
    return file


def test_documents_have_the_figures_of_the_results():
    assert main(["numbers", "--check"]) == 0


def test_a_figure_that_differs_is_found(monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    mark = "<!-- number: h200/attention; gaussian scores; 16x65536x64; polymax; ratio; .2f -->"
    page.write_text(f"It takes {mark}0.1<!-- end --> of the time.\n")
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    monkeypatch.setattr(numbers, "documents", lambda: [page])
    monkeypatch.setattr(numbers.pictures, "charts", dict)
    assert main(["numbers", "--check"]) == 1
    assert "page.md" in capsys.readouterr().out
    assert main(["numbers"]) == 0
    assert main(["numbers", "--check"]) == 0
    assert re.search(rf"{mark}0\.\d\d<!-- end --> of", page.read_text())


def test_marks_that_name_no_result_are_errors():
    for mark, message in (
        ("<!-- number: h200/attention; gaussian; 1x2; polymax; ratio; .2f --><!-- end -->", "no row"),
        ("<!-- number: h200/attention; ratio --><!-- end -->", "six or seven parts"),
        ("<!-- number: nowhere/attention; a; b; c; d; e --><!-- end -->", "no results of nowhere"),
        ("<!-- table: nothing --><!-- end -->", "no table"),
    ):
        with pytest.raises(ValueError, match=message):
            numbers.filled(mark)


def test_tables_of_speed_tell_what_failed(monkeypatch):
    fields = {"timed": tables.BOTH, "dtype": "bfloat16", "status": record.PARITY_FAILED, "eager_us": None}
    rows = [
        a_run(case="flat scores", competitor="polymax", shape=(16, 4096, 64), **fields).rows[0],
        a_run(case="sparsemax", competitor="polymax", shape=(1, 2, 3), **fields).rows[0],
        a_run(case="sparsemax", competitor="torch cross_entropy(linear)", shape=(1, 2, 3)).rows[0],
    ]
    for name, some in (("attention", rows[:1]), ("linear_loss", rows[1:])):
        run = replace(a_run(), machine={"name": "h200", "gpu": "GPU", "cpu": "CPU"}, rows=tuple(some))
        monkeypatch.setattr(archive, "latest", lambda *asked, run=run: run)
        assert "| parity failed |" in tables.table(f"{name} h200")


def test_user_pages_have_no_typed_figure_of_speed():
    found = []
    for file in numbers.documents():
        if "design" in file.relative_to(ROOT).parts or file.name == "design.md":
            continue
        text = re.sub(r"```.*?```", "", numbers.MARK.sub("", file.read_text(encoding="utf-8")), flags=re.DOTALL)
        for words in SETTINGS:
            text = text.replace(words, "")
        found += [f"{file.name}: {hit[0]}" for hit in TYPED.finditer(" ".join(text.split()))]
    assert found == []


def test_every_table_can_be_made_from_its_results():
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8") + tables.summary()
    assert text.count("commit ") >= 8
    assert "| none |" in text


def test_a_page_shows_the_newest_whole_run_on_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(archive, "RESULTS", tmp_path)
    assert tables.table("gpu_tests") == "No run is kept yet."
    assert "table: gpu_tests" in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    run = {
        "date": "2026-11-01",
        "commit": "abc",
        "changed": False,
        "machine": {"name": "a GPU", "torch": "2.11.0+cu130"},
        "processes": 16,
        "seconds": 500.2,
        "selection": {"expression": None, "paths": []},
        "counts": {"passed": 1200, "failed": 2, "crashes": 1, "skipped": 3, "xfailed": 4},
        "not run": ["a"],
    }
    (tmp_path / "gpu-tests").mkdir()
    for day, changes in ((1, {}), (2, {"selection": {"expression": "chain", "paths": []}})):
        file = tmp_path / "gpu-tests" / f"2026-11-0{day}-100000.json"
        file.write_text(json.dumps({**run, **changes}), encoding="utf-8")
    text = tables.table("gpu_tests")
    assert "| 1,200 | 3 | 7 | 1 | 16 | 500 |" in text
    assert "a GPU, torch 2.11.0, Triton unknown, 2026-11-01, commit abc: " in text
    assert text.endswith("gpu-tests/2026-11-01-100000.json`.")


def test_a_run_adds_a_file(monkeypatch, tmp_path):
    monkeypatch.setattr(archive, "RESULTS", tmp_path)
    first = archive.new_file(a_run())
    assert first.relative_to(tmp_path).as_posix() == "here/simplex/2026-11-01-abc.json"
    kept(first, a_run())
    assert archive.new_file(a_run()).name == "2026-11-01-abc-2.json"


def test_every_results_file_says_where_it_is_from():
    files = sorted((ROOT / "benchmarks" / "results").rglob("*.json"))
    assert len(files) > 50
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        for run in document.get("runs", [document]):
            assert {"date", "commit", "recorded", "machine"} <= set(run), file
            assert file.name.startswith(run["date"] or "unknown"), file
            # the newest run counts, so that all must have an age
            assert run["recorded"], file
            if "recorded" not in file.name:
                assert run["date"], file
                assert run["commit"], file
                assert run["machine"]["torch"], file


def test_the_newest_run_counts():
    runs = [run for run in archive.runs() if (run.machine["name"], run.suite) == ("epyc-2core", "simplex")]
    assert len(runs) > 1
    assert archive.latest("epyc-2core", "simplex") is runs[-1]
    assert archive.age(runs[-1]) == max(map(archive.age, runs))


@pytest.mark.parametrize(("factor", "code"), [(1.05, 0), (1.2, 1), (0.5, 0)])
def test_compare_finds_what_is_slower(factor, code, tmp_path, capsys):
    old = kept(tmp_path / "old.json", a_run())
    new = kept(tmp_path / "new.json", a_run(eager_us=100 * factor))
    assert main(["compare", str(old), str(new)]) == code
    assert ("20 % slower" in capsys.readouterr().out) is bool(code)


def test_a_page_draws_each_benchmark_over_time():
    runs = [
        a_run(eager_us=2000.0),
        replace(a_run(), date="2026-11-02"),
        replace(a_run(eager_us=50.0), date="2026-11-03"),
    ]
    (name, series), *others = history.histories(runs).items()
    assert not others
    assert [value for _, value in series] == [2.0, 0.1, 0.05]
    drawn = history.chart(name, series)
    assert drawn.count("<circle") == 3
    assert "2026-11-02, commit abc: 100 µs" in drawn
    assert "sparsemax" in history.page()


def test_a_copy_without_history_is_told_its_commit(monkeypatch):
    for found in ("def", None):
        monkeypatch.setattr(machine, "commit", lambda found=found: found)
        assert machine.provenance("abc")["commit"] == "abc"
        assert machine.provenance()["commit"] == found


def test_compare_counts_failures_and_takes_folders(tmp_path, capsys):
    kept(tmp_path / "old" / "a.json", a_run(eager_us=1.0))
    kept(tmp_path / "old" / "b.json", replace(a_run(), recorded="2026-11-02T10:00:00Z", date="2026-11-02"))
    kept(tmp_path / "new" / "a.json", a_run(eager_us=105.0))
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    failed = kept(tmp_path / "c.json", a_run(status=record.PARITY_FAILED, note="error 1"))
    assert main(["compare", str(tmp_path / "old"), str(failed)]) == 1
    assert "PARITY FAILED: error 1" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "old" / "nothing")]) == 1
