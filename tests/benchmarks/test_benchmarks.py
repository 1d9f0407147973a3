"""The benchmarks run, their files are complete, and whoever returns the wrong thing gets no speed."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, fields, replace

import pytest
import torch

import polymax as pm
from benchmarks import archive, layers, memory, packed, parity, record, timing, workload
from benchmarks.__main__ import RESULTS, main
from benchmarks.baselines import Competitor, Peer, TorchFunction, ours
from benchmarks.cases import SUITES
from benchmarks.latency.call import CALLS, CallCase
from benchmarks.simplex import oracles, peers
from benchmarks.structures import cases as structures
from benchmarks.structures import oracles as structure_oracles
from benchmarks.workload import BOTH, FORWARD, FunctionCase, Problems, Size

FUNCTION_CASES = [
    pytest.param(case, (40, 24) if len(case.problems.quick) == 2 else case.problems.quick, id=f"{suite}-{case.name}")
    for suite, cases in SUITES.items()
    for case in cases
    if isinstance(case, FunctionCase)
]
FIGURES = ("eager_us", "eager_spread_us", "device_us", "device_spread_us", "extra_bytes", "per_second", "ratio")
HERE = {suite: cases for suite, cases in SUITES.items() if any(case.runs_on("cpu") for case in cases)}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Every suite, once: the file of all, and what was printed."""
    file = tmp_path_factory.mktemp("benchmarks") / "machine.json"
    printed = io.StringIO()
    with redirect_stdout(printed):
        for suite in HERE:
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
    return FunctionCase("sparsemax", ours(call, oracles.sparsemax), problems, base=peers.SOFTMAX)


def chain_case(call, *rivals):
    """The chain, as `call` thinks it is, beside peers that every machine has."""
    return FunctionCase(
        "chain", ours(call, structure_oracles.chain), structures.both(structures.CHAINS, (3, 5, 4), ((),)), rivals
    )


def rival(call, **options):
    return Peer("math.chain", lambda package: TorchFunction(call), **options)


def test_file_has_every_suite_case_and_pass(quick):
    document = json.loads(quick[0].read_text())
    assert document["schema"] == record.SCHEMA
    assert {run["suite"] for run in document["runs"]} == set(HERE)
    for run in document["runs"]:
        assert set(run) == {field.name for field in fields(record.Run)}
        assert run["quick"] is True
        assert run["machine"]["name"] == "here"
        assert run["machine"]["torch"] == torch.__version__
        assert {"cpu", "threads", "gpu", "triton", "numba"} <= set(run["machine"])
        cases = {case.name for case in SUITES[run["suite"]] if case.runs_on("cpu")}
        assert {row["case"] for row in run["rows"]} == cases
        for row in run["rows"]:
            assert set(row) == {field.name for field in fields(record.Row)}
    simplex = next(run for run in document["runs"] if run["suite"] == "simplex")["rows"]
    assert {row["timed"] for row in simplex} == {FORWARD, BOTH}


def test_every_competitor_passes_the_gate_and_is_measured(quick):
    runs = record.load(quick[0])
    assert [row for run in runs for row in run.rows if row.status != record.OK] == []
    for run in runs:
        for row in run.rows:
            if run.suite == "memory":
                assert row.extra_bytes >= 0
            else:
                assert row.eager_us > 0
                assert row.eager_spread_us >= 0
            assert row.device_us is None
            if row.timed != "import":
                assert row.ratio >= 0
                assert row.parity["forward"] <= row.parity["tolerance"]
            assert row.met is None or row.competitor == "polymax" or row.bar_least


def test_bars_are_judged(quick):
    rows = [row for run in record.load(quick[0]) for row in run.rows if row.bar is not None]
    assert {(row.case, row.timed, row.bar) for row in rows} >= {
        ("sparsemax", BOTH, 2.5),
        ("sq_pnorm_max", BOTH, 8.0),
        ("oscarmax", BOTH, 10.0),
        ("sparsemax", FORWARD, 5.0),
        ("import", "import", 0.5e6),
    }
    for row in rows:
        value = getattr(row, row.bar_of)
        assert row.met is (value >= row.bar if row.bar_least else value <= row.bar)


def test_a_size_may_have_a_bar_of_its_own(monkeypatch, capsys, tmp_path):
    sizes = (Size((4, 16), bar=record.Bar(30.0, "eager_us")), Size((4, 8), bar=record.Bar(50.0, "eager_us")))
    case = replace(sparsemax_case(oracles.sparsemax), problems=Problems({"cpu": sizes}, (BOTH,)))
    times = {"torch.softmax": timing.Times(10.0, 1.0), "polymax": timing.Times(40.0, 1.0)}
    monkeypatch.setattr(workload, "_measured", lambda *_: (times, {}, {}))
    rows = [row for row in case.rows("cpu", quick=False) if row.competitor == "polymax"]
    assert [(row.shape, row.bar, row.met) for row in rows] == [((4, 16), 30.0, False), ((4, 8), 50.0, True)]


def test_throughput_counts_instances(quick):
    rows = {run.suite: run.rows for run in record.load(quick[0])}
    assert {row.per_second for suite in rows.keys() - {"throughput"} for row in rows[suite]} == {None}
    for row in rows["throughput"]:
        assert row.per_second == pytest.approx(1e6 * row.shape[0] / row.eager_us)
    row = replace(rows["throughput"][0], per_second=12345.0)
    assert "12.3k/s" in record.line(row)
    sizes = [size.shape[0] for size in SUITES["throughput"][0].problems.of("cpu", quick=False)]
    assert sizes == [1, 4, 16, 64, 256, 1024]


def test_show_prints_what_run_printed(quick, capsys):
    file, printed = quick
    assert main(["show", str(file)]) == 0
    shown = capsys.readouterr().out
    lines = [record.line(row) for run in record.load(file) for row in run.rows]
    assert all(line in shown and line in printed for line in lines)
    assert all("times mean nothing" in text for text in (shown, printed))


def test_a_run_replaces_the_same_suite_and_device_only(quick, tmp_path):
    first, second = record.load(quick[0])[:2]
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
        assert all(asdict(row)[column] is None for column in FIGURES)
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
    case = replace(sparsemax_case(oracles.sparsemax), peers=peers.SPARSEMAX)
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


@pytest.mark.parametrize(("case", "shape"), FUNCTION_CASES)
def test_oracles_agree_with_float64(case, shape):
    problem = case._pool(Size(shape, torch.float64), "cpu", most=2)[0]
    for competitor in filter(None, (case.base, case.ours)):
        signature = case.problems.signature
        expected = parity.truth(competitor.oracle, *problem, signature.shared, signature.compared)
        found = parity.check(competitor, *problem, expected)
        assert found.holds, f"{competitor.name}: {found}"
        assert found.rows == shape[0]


@pytest.mark.parametrize(
    "case", [case for case in SUITES["latency"] if isinstance(case, CallCase)], ids=lambda c: c.name
)
def test_small_calls_agree_with_float64(case):
    size = Size(case.shape, torch.float64)
    problem = case.signature.problem(size, torch.Generator().manual_seed(1))
    assert workload.gate(case.name, [case.ours], size, problem, case.signature)["polymax"].status == record.OK


def test_small_calls_are_made_in_a_row_and_awaited_once():
    made = []
    tasks = {name: [lambda i=i, name=name: made.append((name, i)) for i in range(CALLS)] for name in "ab"}
    found = timing.calls(tasks, timing.Effort(seconds=0.0, least=2, most=2), lambda: made.append("wait"))
    assert set(found) == {"a", "b"}
    turns = [made[i : i + CALLS + 1] for i in range(0, len(made), CALLS + 1)]
    # two samples before the first that counts
    assert len(turns) == 2 * (2 + 2)
    for turn in turns:
        assert turn == [(turn[0][0], i) for i in range(CALLS)] + ["wait"]


@pytest.mark.parametrize(("multiple", "met"), [(2.0, [True, True]), (4.0, [True, False]), (6.0, [False, False])])
def test_small_calls_are_judged_by_the_bars_of_their_device_and_pass(monkeypatch, multiple, met):
    bars = {("cpu", FORWARD): record.Bar(5.0), ("cpu", BOTH): record.Bar(2.5), ("cuda", FORWARD): record.Bar(0.1)}
    case = CallCase("sparsemax", ours(pm.sparsemax, oracles.sparsemax), bars=bars)

    def timed(tasks, *rest):
        return {name: timing.Times(multiple if name == "polymax" else 1.0, 0.0) for name in tasks}

    monkeypatch.setattr(timing, "calls", timed)
    rows = {(row.competitor, row.timed): row for row in case.rows("cpu", quick=True)}
    judged = [rows["polymax", part] for part in (FORWARD, BOTH)]
    assert [(row.ratio, row.bar) for row in judged] == [(multiple, 5.0), (multiple, 2.5)]
    assert [row.met for row in judged] == met
    # the baseline has no bar
    assert {row.met for (name, _), row in rows.items() if name != "polymax"} == {None}


def test_every_small_call_has_a_bar_on_each_device():
    for case in SUITES["latency"]:
        if isinstance(case, CallCase) and case.bars:
            assert {device for device, _ in case.bars} == {"cpu", "cuda"}, case.name
            assert all(bar.limit > 0 for bar in case.bars.values())


def test_layers_are_shown_for_each_kind_of_call(monkeypatch, capsys):
    def once(call):
        call()
        return 1.0

    monkeypatch.setattr(layers, "_host_time", once)
    assert main(["layers"]) == 0
    printed = capsys.readouterr().out
    for title in ("sparsemax (8, 32)", "log-partition of a chain", "SparseMAP of a chain", "torch.softmax"):
        assert title in printed


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


def wrong_shared_gradient(unary, transition):
    return structure_oracles.chain(unary, 0.9 * transition + 0.1 * transition.detach())


def test_the_gate_compares_the_gradient_of_what_is_shared(monkeypatch, capsys, tmp_path):
    run, printed = only(chain_case(wrong_shared_gradient), monkeypatch, capsys, tmp_path)
    assert [row.status for row in run.rows] == [record.PARITY_FAILED]
    assert run.rows[0].parity["forward"] < 1e-5 < run.rows[0].parity["gradient"]
    assert "PARITY FAILED" in printed


def test_the_gate_compares_tags_by_their_score():
    case = next(case for case in structures.STRUCTURES if case.name == "viterbi")
    (unary, transition), cotangents = case._pool(Size((5, 6, 3)), "cpu", most=1)[0]
    assert cotangents == ()
    # in the first instance the last two states are the best, and equally good
    transition.zero_()
    unary[0] = torch.tensor([0.0, 1.0, 1.0])
    expected = parity.truth(structure_oracles.best_tags, (unary, transition), (), 1, structures.score_alone)
    last = TorchFunction(lambda u, t: (u.shape[-1] - 1 - u.flip(-1).argmax(-1)).tolist())
    for function, holds in ((last, True), (TorchFunction(lambda u, t: u.argmin(-1)), False)):
        found = parity.check(Competitor("tags", function, None), (unary, transition), (), expected)
        assert found.holds is holds
        assert found.rows == 5


def test_slack_is_for_peers_alone(monkeypatch, capsys, tmp_path):
    def rough(unary, transition):
        return 1.0003 * structure_oracles.chain(unary, transition)

    case = chain_case(rough, rival(rough, slack=10.0))
    run, _ = only(case, monkeypatch, capsys, tmp_path)
    assert {row.competitor: row.status for row in run.rows} == {
        "polymax": record.PARITY_FAILED,
        "math.chain": record.OK,
    }
    assert [row.parity["tolerance"] for row in run.rows] == pytest.approx([1e-4, 1e-3])


@pytest.mark.parametrize(
    ("call", "times", "met"),
    [
        (structure_oracles.chain, 25.0, True),
        (structure_oracles.chain, 15.0, False),
        (wrong_shared_gradient, 25.0, False),
    ],
)
def test_a_peer_should_be_far_behind(call, times, met, monkeypatch, capsys, tmp_path):
    found = {"polymax": timing.Times(10.0, 1.0), "math.chain": timing.Times(10.0 * times, 1.0)}
    monkeypatch.setattr(workload, "_measured", lambda tasks, *_: ({name: found[name] for name in tasks}, {}, {}))
    case = chain_case(call, rival(structure_oracles.chain).behind(20))
    run, printed = only(case, monkeypatch, capsys, tmp_path)
    row = next(row for row in run.rows if row.competitor == "math.chain")
    assert (row.bar, row.bar_least, row.met) == (20, True, met)
    assert f"≥20 {'yes' if met else ' NO'}" in printed
    assert f"bars met: {int(met)} of 1" in printed


def test_a_peer_without_a_time_is_no_bar(monkeypatch, capsys, tmp_path):
    gone = replace(rival(structure_oracles.chain).behind(20), name="nowhere.chain")
    case = chain_case(structure_oracles.chain, rival(wrong_shared_gradient).behind(20), gone)
    _, printed = only(case, monkeypatch, capsys, tmp_path)
    assert "bars met: 0 of 0" in printed
    assert "parity failed: math.chain" in printed
    assert "ABSENT nowhere.chain" in printed


needs_proc = pytest.mark.skipif(not memory.RESET.exists(), reason="memory is read from /proc")


@needs_proc
def test_memory_counts_what_is_freed_and_what_numpy_takes():
    def hungry():
        part = torch.ones(4 << 20)
        both = (part + 1, part.numpy().copy())
        del part
        return both[1]

    for _ in range(2):
        assert memory.peak(hungry, "cpu") == pytest.approx(48 << 20, rel=0.1)


@needs_proc
@pytest.mark.parametrize(("copies", "met"), [(1, True), (8, False)])
def test_memory_is_judged(copies, met, monkeypatch, capsys, tmp_path):
    def call(scores):
        return torch.cat([scores] * copies, 1).sum((1, 2)) / copies

    problems = structures.both(structures.TREES, (16, 256, 256), ((),))
    case = memory.MemoryCase("sum", ours(call, lambda scores: scores.sum((1, 2))), problems, lambda shape: 0)
    (row,) = only(case, monkeypatch, capsys, tmp_path)[0].rows
    assert (row.bar, row.ratio_of, row.met) == (2, "extra_bytes", met)
    assert row.ratio == pytest.approx(row.extra_bytes / (4 * 16 * 256 * 256))


def test_results_can_be_shown(capsys):
    for run in archive.runs():
        if run is archive.latest(run.machine["name"], run.suite):
            assert "bars met" in record.table(run)
    (file,) = (RESULTS / "h200" / "factors").glob("*.json")
    assert main(["show", str(file)]) == 0
    assert "bars met" in capsys.readouterr().out


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
        pytest.param(
            ["run", "latency", "--device", "cuda"],
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
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
    blocked = ["rich", "typer", "matplotlib", "scipy", "cvxpy", "entmax", "lightning", "tokenizers", "transformers"]
    modules = "benchmarks.__main__, benchmarks.language_model"
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_packed_documents_have_the_loss_of_padded_ones(tmp_path, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    file = tmp_path / "packed.json"
    sizes = ["--documents", "4", "--longest", "24", "--size", "16", "--layers", "1", "--heads", "2", "--steps", "1"]
    assert packed.main([*sizes, "--out", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["loss_difference"] < 1e-6
    assert min(found["padded_per_second"], found["packed_per_second"]) > 0
    assert "times as fast" in capsys.readouterr().out
    assert packed.main(["--documents", "3"]) == 1
    assert "--documents must be an even number" in capsys.readouterr().err
    rows = packed.documents(6, 30)
    assert sum(map(len, rows)) == 90, "half of a padded batch is padding"
