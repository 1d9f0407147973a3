"""The benchmarks run, their files are complete, and whoever returns the wrong thing gets no speed."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, fields, replace

import pytest
import torch

from benchmarks import baselines, oracles, parity, record, timing, workload
from benchmarks.__main__ import main
from benchmarks.cases import SUITES
from benchmarks.workload import BOTH, FORWARD, FunctionCase, Problems, Size

FUNCTION_CASES = [
    pytest.param(case, id=f"{suite}-{case.name}")
    for suite, cases in SUITES.items()
    for case in cases
    if isinstance(case, FunctionCase)
]
TIMES = ("eager_us", "eager_spread_us", "device_us", "device_spread_us", "ratio")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Every suite, once: the file of all, and what was printed."""
    file = tmp_path_factory.mktemp("benchmarks") / "machine.json"
    printed = io.StringIO()
    with redirect_stdout(printed):
        for suite in SUITES:
            assert main(["run", suite, "--quick", "--out", str(file), "--machine", "here"]) == 0
    return file, printed.getvalue()


def only(case, monkeypatch, capsys, tmp_path):
    """Run a suite of one case: its run, and what was printed."""
    monkeypatch.setitem(SUITES, "latency", [case])
    file = tmp_path / "one.json"
    assert main(["run", "latency", "--quick", "--out", str(file)]) == 0
    return record.load(file)[0], capsys.readouterr().out


def sparsemax_case(call):
    """Sparsemax, as `call` thinks it is."""
    problems = Problems({"cpu": (Size((4, 16)),)})
    return FunctionCase("sparsemax", baselines.ours(call, oracles.sparsemax), problems)


def test_file_has_every_suite_case_and_pass(quick):
    document = json.loads(quick[0].read_text())
    assert document["schema"] == record.SCHEMA
    assert {run["suite"] for run in document["runs"]} == set(SUITES)
    for run in document["runs"]:
        assert set(run) == {field.name for field in fields(record.Run)}
        assert run["quick"] is True
        assert run["machine"]["name"] == "here"
        assert run["machine"]["torch"] == torch.__version__
        assert {"cpu", "threads", "gpu", "triton", "numba"} <= set(run["machine"])
        assert {row["case"] for row in run["rows"]} == {case.name for case in SUITES[run["suite"]]}
        for row in run["rows"]:
            assert set(row) == {field.name for field in fields(record.Row)}
    simplex = next(run for run in document["runs"] if run["suite"] == "simplex")["rows"]
    assert {row["timed"] for row in simplex} == {FORWARD, BOTH}


def test_every_competitor_passes_the_gate_and_is_timed(quick):
    rows = [row for run in record.load(quick[0]) for row in run.rows]
    assert [row for row in rows if row.status != record.OK] == []
    for row in rows:
        assert row.eager_us > 0
        assert row.eager_spread_us >= 0
        assert row.device_us is None
        if row.timed != "import":
            assert row.ratio > 0
            assert row.parity["forward"] <= row.parity["tolerance"]
        assert row.met is None or row.competitor == "polymax"


def test_bars_are_judged(quick):
    rows = [row for run in record.load(quick[0]) for row in run.rows if row.bar is not None]
    assert {(row.case, row.timed, row.bar) for row in rows} >= {
        ("sparsemax", BOTH, 4.0),
        ("sq_pnorm_max", BOTH, 8.0),
        ("oscarmax", BOTH, 20.0),
        ("sparsemax", FORWARD, 40.0),
        ("import", "import", 0.5e6),
    }
    for row in rows:
        assert row.met is (getattr(row, row.bar_of) <= row.bar)


def test_show_prints_what_run_printed(quick, capsys):
    file, printed = quick
    assert main(["show", str(file)]) == 0
    shown = capsys.readouterr().out
    lines = [record.line(row) for run in record.load(file) for row in run.rows]
    assert all(line in shown and line in printed for line in lines)
    assert all("times mean nothing" in text for text in (shown, printed))


def test_a_run_replaces_the_same_suite_and_device_only(quick, tmp_path):
    first, second = record.load(quick[0])
    file = tmp_path / "results" / "machine.json"
    for run in (first, second, replace(first, rows=()), replace(second, device="cuda")):
        record.save(file, run)
    found = {(run.suite, run.device): run for run in record.load(file)}
    assert len(found) == 3
    assert found[first.suite, "cpu"].rows == ()
    assert found[second.suite, "cpu"] == second


def wrong_gradient(x):
    y = torch.relu(x - (x - oracles.sparsemax(x.double()).float()).detach())
    return y + 0.1 * (x - x.detach())


@pytest.mark.parametrize(
    "wrong",
    [lambda x: torch.softmax(x, -1), wrong_gradient, lambda x: oracles.sparsemax(x) * torch.nan],
    ids=["output", "gradient", "nan"],
)
def test_the_gate_refuses_a_wrong_competitor(wrong, monkeypatch, capsys, tmp_path):
    run, printed = only(sparsemax_case(wrong), monkeypatch, capsys, tmp_path)
    refused = [row for row in run.rows if row.competitor == "polymax"]
    assert [row.timed for row in refused] == [FORWARD, BOTH]
    for row in refused:
        assert row.status == record.PARITY_FAILED
        assert all(asdict(row)[column] is None for column in TIMES)
        line = record.line(row)
        assert line in printed
        assert "PARITY FAILED: error" in line
    # the baseline is right and stays
    assert all(row.ratio == 1 for row in run.rows if row.competitor == "torch.softmax")


def test_a_missed_gate_is_a_missed_bar(monkeypatch, capsys, tmp_path):
    case = replace(sparsemax_case(torch.sigmoid), bars={("cpu", BOTH): record.Bar(1e9)})
    run, printed = only(case, monkeypatch, capsys, tmp_path)
    assert [row.met for row in run.rows if row.bar] == [False]
    assert "bars met: 0 of 1" in printed


def test_a_competitor_that_raises_does_not_stop_the_others(monkeypatch, capsys, tmp_path):
    def broken(x):
        raise RuntimeError("out of luck")

    run, printed = only(sparsemax_case(broken), monkeypatch, capsys, tmp_path)
    assert {row.status for row in run.rows} == {record.OK, record.ERROR}
    assert "ERROR: RuntimeError: out of luck" in printed


def test_an_absent_peer_is_reported(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "entmax", None)
    case = replace(sparsemax_case(oracles.sparsemax), peers=baselines.SPARSEMAX)
    run, printed = only(case, monkeypatch, capsys, tmp_path)
    reasons = {absent.peer: absent.reason for absent in run.absent}
    assert "ModuleNotFoundError" in reasons["entmax.sparsemax"]
    assert reasons["adasplash.triton_entmax"] == "runs on cuda only"
    assert "ABSENT entmax.sparsemax: ModuleNotFoundError" in printed
    assert "entmax.sparsemax" not in {row.competitor for row in run.rows}


def test_ratios_are_of_device_times_where_both_have_one(monkeypatch, capsys, tmp_path):
    eager = {"torch.softmax": timing.Times(10.0, 1.0), "polymax": timing.Times(40.0, 1.0)}
    graphs = {"torch.softmax": timing.Times(5.0, 0.1), "polymax": timing.Times(6.0, 0.1)}
    case = replace(sparsemax_case(oracles.sparsemax), bars={("cpu", FORWARD): record.Bar(1.5)})
    for devices, refused, ratio, column in (
        (graphs, {}, 1.2, "device_us"),
        ({"torch.softmax": graphs["torch.softmax"]}, {"polymax": "no graph: it waits"}, 4.0, "eager_us"),
    ):
        monkeypatch.setattr(workload, "_measured", lambda *_, d=devices, r=refused: (eager, d, r))
        run, printed = only(case, monkeypatch, capsys, tmp_path)
        row = next(row for row in run.rows if row.bar is not None)
        assert (row.ratio, row.ratio_of) == (pytest.approx(ratio), column)
        assert row.met is (ratio <= 1.5)
        assert all(reason in printed for reason in refused.values())


@pytest.mark.parametrize("case", FUNCTION_CASES)
def test_oracles_agree_with_float64(case):
    problem = case._pool(Size((40, 24), torch.float64), "cpu", most=2)[0]
    for competitor in (case.base, case.ours):
        found = parity.check(competitor, *problem, parity.truth(competitor.oracle, *problem))
        assert found.holds, f"{competitor.name}: {found}"
        assert found.rows == 40


def test_kinks_are_left_out_of_the_gradient():
    # the second entry of the first row is exactly at the threshold
    x = torch.tensor([[1.0, 0.0], [0.5, 0.0], [3.0, 0.0]])
    found = parity.truth(oracles.sparsemax, (x,), (torch.tensor([[1.0, -1.0]] * 3),))
    assert found.smooth.tolist() == [False, True, True]


def test_long_batches_are_compared_in_rows_from_first_to_last():
    x = torch.randn(5000, 64)
    found = parity.truth(oracles.softmax, (x,), (x,))
    assert (found.rows[0], found.rows[-1]) == (0, 4999)
    assert len(found.rows) == parity.ENTRIES // 64


def test_samples_are_interleaved_and_the_slow_get_fewer():
    order = []

    def sampler(name, value, seconds):
        def sample(place):
            order.append(name)
            return value + place

        return timing.Sampler(sample, seconds)

    effort = timing.Effort(seconds=0.2, least=5, most=20)
    samplers = {"fast": sampler("fast", 1.0, 1e-3), "slow": sampler("slow", 9.0, 2.0)}
    found = timing.interleaved(samplers, effort)
    assert found["fast"] == timing.Times(10.5, 9.5)
    assert found["slow"] == timing.Times(9.5, 0.5)
    assert order.count("slow") == 2
    first, last = (i for i, name in enumerate(order) if name == "slow")
    assert last - first > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "simplex", "--only", "median"], "has no case 'median'"),
        (["run", "latency", "--device", "cuda"], "cuda"),
        (["show", "nowhere.json"], "nowhere.json"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_foreign_file_is_refused(tmp_path, capsys):
    file = tmp_path / "other.json"
    for text in ("{", "[]", '{"schema": 0}'):
        file.write_text(text)
        assert main(["show", str(file)]) == 1
        assert str(file) in capsys.readouterr().err


def test_torch_is_enough():
    blocked = ["rich", "typer", "matplotlib", "scipy", "cvxpy", "entmax"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import benchmarks.__main__"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
