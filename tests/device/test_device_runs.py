"""The commands for a machine with a GPU: shares of tests, and what becomes of tests that hang, crash and fail."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

import polymax
from tests.device import __main__ as runs
from tests.device import battery, sanitize

HOME = Path(polymax.__file__).parents[1]
TESTS = Path(__file__).parents[1]

SUITE = """
import os
import time

import pytest

pytestmark = pytest.mark.device

@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_passes(device):
    assert device

def test_fails():
    raise AssertionError("1 is not 2")

def test_loses_the_device():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def test_crashes():
    os._exit(3)

def test_hangs():
    time.sleep(600)

def test_is_skipped():
    pytest.skip("there is nothing to do")

def test_comes_last():
    pass
"""


def test_what_hangs_and_crashes_fails_by_its_name(tmp_path, capsys):
    (tmp_path / "test_some.py").write_text(SUITE)
    (tmp_path / "test_others.py").write_text("def test_other():\n    raise AssertionError\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = device: some\n")
    given = ["--device", "cpu", "--no-warm", "--processes", "1", "--limit", "12", "--root", str(tmp_path)]
    assert runs.main([*given, "--out", str(tmp_path / "out"), "."]) == 1
    (path,) = (tmp_path / "out").glob("*.json")
    report = json.loads(path.read_text())
    assert report["counts"] == {"passed": 3, "failed": 2, "crashes": 1, "hangs": 1, "skipped": 1}
    assert report["not run"] == []
    found = {failure["test"].partition("::")[2]: failure for failure in report["failures"]}
    assert {name: f["outcome"] for name, f in found.items()} == {
        "test_fails": "failed",
        "test_loses_the_device": "failed",
        "test_crashes": "crashes",
        "test_hangs": "hangs",
    }
    assert "1 is not 2" in found["test_fails"]["message"]
    assert "ran longer than 12 s" in found["test_hangs"]["message"]
    assert report["functions"]["test_some.py::test_passes"][0] == 2
    assert {"commit", "machine", "date", "recorded", "seconds"} <= report.keys()
    assert path.name.startswith(report["date"])
    assert {"name", "torch", "python"} <= report["machine"].keys()
    assert "test_hangs ran longer than 12 s" in capsys.readouterr().out


def test_a_run_ends_with_its_budget(tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import time, pytest\n@pytest.mark.device\ndef test_a():\n    time.sleep(60)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = device: some\n")
    begun = time.time()
    given = ["--device", "cpu", "--no-warm", "--processes", "1", "--budget", "8", "--root", str(tmp_path), "."]
    assert runs.main([*given, "--out", str(tmp_path / "out")]) == 1
    assert time.time() - begun < 50
    (path,) = (tmp_path / "out").glob("*.json")
    assert json.loads(path.read_text())["not run"] == ["test_some.py::test_a"]


def test_nothing_to_run_is_no_failure(tmp_path):
    (tmp_path / "test_some.py").write_text("def test_a():\n    raise AssertionError\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = device: some\n")
    given = ["--device", "cpu", "--no-warm", "--root", str(tmp_path), "--out", str(tmp_path), "."]
    assert runs.main(given) == 0


def test_a_process_that_is_done_takes_over_tests(tmp_path, monkeypatch):
    """A test that has begun stays where it is; each test runs once."""
    slow = "import time, pytest\npytestmark = pytest.mark.device\n"
    slow += "@pytest.mark.parametrize('k', range(6))\ndef test_slow(k):\n    time.sleep(3)\n"
    quick = "import pytest\n@pytest.mark.device\ndef test_quick():\n    open('quick', 'x')\n"
    (tmp_path / "test_slow.py").write_text(slow)
    (tmp_path / "test_quick.py").write_text(quick)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = device: some\n")
    monkeypatch.setattr(runs, "WORTH", 4.0)
    names = [f"test_slow.py::test_slow[{k}]" for k in range(6)]
    monkeypatch.setattr(runs, "shared_out", lambda *_: [names, ["test_quick.py::test_quick"]])
    taken = []
    take = runs.Run.take
    monkeypatch.setattr(runs.Run, "take", lambda run, tests: (taken.extend(tests), take(run, tests)))
    given = [
        "--device",
        "cpu",
        "--no-warm",
        "--processes",
        "2",
        "--root",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    assert runs.main([*given, "."]) == 0
    (path,) = (tmp_path / "out").glob("*.json")
    report = json.loads(path.read_text())
    assert report["counts"] == {"passed": 7}
    assert report["functions"]["test_slow.py::test_slow"][0] == 6
    assert taken
    assert set(taken) <= set(names[1:])


def test_shares_take_about_as_long():
    tests = [f"a.py::slow[{k}]" for k in range(8)] + [f"b.py::quick[{k}]" for k in range(80)] + ["b.py::new"]
    seconds = {"a.py::slow": 10.0, "b.py::quick": 1.0}
    shares = runs.shared_out(tests, seconds, 4)
    assert sorted(test for share in shares for test in share) == sorted(tests)
    loads = [sum(seconds.get(runs.function_of(test), runs.UNKNOWN) for test in share) for share in shares]
    assert max(loads) - min(loads) < 12
    assert runs.shared_out([], {}, 3) == [[], [], []]
    assert all(len(share) == 1 for share in runs.shared_out(["a.py::x", "b.py::y"], {}, 2))


def test_parameters_say_what_runs_on_the_cpu():
    assert runs.on_cpu("a.py::test[chain-cpu-float32]")
    assert not runs.on_cpu("a.py::test[chain-cuda-float32]")
    assert not runs.on_cpu("a.py::test")


def test_earlier_runs_tell_seconds(tmp_path):
    assert runs.recorded(tmp_path) == {}
    for name, total in (("2026-01-01", 8.0), ("2026-01-02", 4.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"functions": {"a.py::x": [2, total]}}))
    assert runs.recorded(tmp_path) == {"a.py::x": 2.0}


def test_files_that_use_a_device_are_marked():
    """By a parameter that says "cuda", by the fixture `device`, or by the mark."""
    ways = "mark.device", '("cpu", "cuda")', '["cuda"]', ", device)", ", device="
    without = {"test_training.py": "commands choose a device", "test_factors.py": "the interpreter alone"}
    without |= {"test_benchmarks.py": "the interpreter alone", "test_device_runs.py": "no device"}
    files = [p for p in TESTS.rglob("test_*.py") if "cuda.is_available" in p.read_text() and p.name not in without]
    assert len(files) > 10
    assert not [p.name for p in files if not any(way in p.read_text() for way in ways)]


@pytest.mark.parametrize("name", ["mapping gini", "SparseMap chain-by-step", "attention causal", "vocabulary 1.5"])
def test_the_battery_runs(name, capsys):
    assert battery.main(["--device", "cpu", name]) == 0
    assert f"{name}\n1 calls, 0 failed" in capsys.readouterr().out


def test_the_battery_tells_failures(monkeypatch, capsys):
    def broken(device, size):
        raise ValueError("no such thing")

    monkeypatch.setattr(battery, "battery", lambda: {"broken": broken})
    assert battery.main(["--device", "cpu"]) == 1
    assert "FAILED broken: ValueError: no such thing" in capsys.readouterr().out


def test_the_battery_has_all_sets_and_mappings():
    names = set(battery.battery())
    assert {f"mapping {row.name}" for row in battery.cases.ROWS} <= names
    assert {f"SparseMap {row.name}" for row in battery.sets.TABLE} <= names


def test_sanitizers_run_the_battery(tmp_path, capfd):
    """Two processes for each tool take each call once; what the tool says after a name is kept with the name."""
    seen = tmp_path / "seen"
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        f"""#!/bin/sh
test "$1" = --version && echo Version 1 && exit 0
echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $@" >> {seen}
echo "========= COMPUTE-SANITIZER"
tool=$2
shift 8
"$@" --device cpu || exit 3
test $tool = memcheck && echo "========= ERROR SUMMARY: 0 errors" && exit 0
echo "========= Error: Race reported between two writes"
exit 86
"""
    )
    program.chmod(0o755)
    given = ["--sanitizer", str(program), "--no-warm", "--processes", "4", "--out", str(tmp_path / "out")]
    assert sanitize.main([*given, "mapping gini", "ranks"]) == 1
    lines = seen.read_text().splitlines()
    assert len(lines) == 4
    assert sum(line.startswith("1 --tool memcheck --error-exitcode 86") for line in lines) == 2
    assert f"{sys.executable} -m tests.device.battery mapping gini ranks" in lines[0]
    (path,) = (tmp_path / "out").glob("*.json")
    report = json.loads(path.read_text())
    assert report["calls"] == 2
    assert report["sanitizer"] == "Version 1"
    assert report["recorded"].startswith(report["date"])
    assert path.name.startswith(report["date"])
    memory, races = report["tools"]["memcheck"], report["tools"]["racecheck"]
    assert set(memory["seconds"]) == set(races["seconds"]) == {"mapping gini", "ranks"}
    assert memory["statuses"] == {"0": 2}
    assert races["statuses"] == {"86": 2}
    assert not memory["findings"]
    assert set(map(tuple, races["findings"].values())) == {("Error: Race reported between two writes",)}
    assert "memcheck: 2 calls" in capfd.readouterr().out


def test_calls_without_time_are_named(tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.write_text('#!/bin/sh\nshift 8\nexec "$@" --device cpu\n')
    program.chmod(0o755)
    given = ["--sanitizer", str(program), "--no-warm", "--budget", "-1", "--out", str(tmp_path / "out")]
    assert sanitize.main([*given, "--tool", "memcheck", "ranks"]) == 1
    (path,) = (tmp_path / "out").glob("*.json")
    assert json.loads(path.read_text())["tools"]["memcheck"]["not run"] == ["ranks"]
    assert sanitize.main([*given, "no such call"]) == 2


def test_a_machine_without_sanitizers_is_told(monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(HOME))
    assert sanitize.main([]) == 2
    assert "compute-sanitizer is not on the PATH" in capsys.readouterr().out


def test_the_makefile_names_the_commands():
    recipes = (HOME / "Makefile").read_text()
    for target, module in (("test-gpu", "tests.device"), ("sanitize-gpu", "tests.device.sanitize")):
        assert f"{target}:\n\t$(PYTHON) -m {module}\n" in recipes
        assert os.access(HOME / "tests" / "device", os.R_OK)
