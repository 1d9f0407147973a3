"""Run all tests that use a CUDA device, in several processes that share one cache of kernels.

    python -m tests.device [--device cuda|cpu] [--processes N] [--budget SECONDS] [--limit SECONDS] [-k EXPRESSION]

Plain Python with torch and pytest is enough. Tests are those marked `device`. Kernels that most of them need are
compiled first, then tests are shared out by the seconds that earlier runs recorded; a process that is done takes over
the last tests of another one. A test that runs longer than the limit, or ends its process, fails by its name, and the
rest of its share goes on in another process. The result is a file of JSON in benchmarks/results/gpu-tests. With
`--device cpu` kernels run in Triton's interpreter: a trial of the command itself.
"""

import argparse
import collections
import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.device.recorder import claimed

HOME = Path(__file__).resolve().parents[2]
RESULTS = HOME / "benchmarks" / "results" / "gpu-tests"
# seconds of a test that no run has recorded, and seconds between two looks at the processes
UNKNOWN, LOOK = 2.0, 0.5
# seconds of tests that are worth a process that takes over half of them
WORTH = 40.0
PLUGIN = "tests.device.recorder"


def main(arguments: list[str] | None = None) -> int:
    given = options().parse_args(arguments)
    given.out = given.out or (RESULTS if given.device == "cuda" else given.cache / "trials")
    begun = time.time()
    folder = Path(tempfile.mkdtemp(prefix="polymax-device-"))
    environment = surroundings(given)
    say("collecting tests")
    try:
        tests = collected(given, folder, environment)
    except RuntimeError as error:
        say(str(error))
        return 2
    say(f"{len(tests)} tests")
    if tests and given.warm:
        say("compiling the kernels that most tests need")
        warm(given, environment, begun + given.budget / 4)
    seconds = recorded(given.out)
    shares = shared_out(tests, seconds, given.processes)
    runs = [Run(k, share, folder, given, environment) for k, share in enumerate(shares) if share]
    results = watched(runs, begun + given.budget, seconds)
    report = reported(given, tests, results, time.time() - begun)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{time.strftime('%Y-%m-%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    for failure in report["failures"]:
        say(f"{failure['outcome']}: {failure['test']}")
    say(f"{report['counts']} in {report['seconds']:.0f} s; {path}")
    return 0 if not report["failures"] and not report["not run"] else 1


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=900.0, help="seconds for everything")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one test")
    parser.add_argument("-k", dest="expression", help="the tests to run, as pytest has it")
    parser.add_argument("--out", type=Path, help="the folder of the result")
    parser.add_argument("--cache", type=Path, default=HOME / "build" / "gpu-tests", help="the folder of kernels")
    parser.add_argument("--commit", help="of a tree that is a copy without its history")
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="compile no kernels before the tests")
    parser.add_argument("--root", type=Path, default=HOME, help="the folder in which pytest runs")
    parser.add_argument("paths", nargs="*", help="files and folders of tests; all of them")
    return parser


def surroundings(given: argparse.Namespace) -> dict[str, str]:
    """The environment of all processes: one cache, one thread each, and no interpreter where there is a device."""
    found = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES")}
    if given.device == "cpu":
        found |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    elif "CUDA_VISIBLE_DEVICES" in os.environ:
        found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    found.setdefault("TRITON_CACHE_DIR", str(given.cache / "triton"))
    path = os.pathsep.join((str(HOME), found.get("PYTHONPATH", "")))
    return found | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments]


def collected(given: argparse.Namespace, folder: Path, environment: dict[str, str]) -> list[str]:
    """The names of all tests for the device."""
    record = folder / "collected"
    chosen = ["-k", given.expression] if given.expression else []
    paths = given.paths or ["tests"]
    # a file that needs a package which is missing leaves out its own tests alone
    asked = ["--collect-only", "--continue-on-collection-errors", "-qq", "-m", "device", *chosen]
    command = pytest(*asked, f"--record={record}", *paths)
    found = subprocess.run(command, cwd=given.root, env=environment, capture_output=True, text=True)
    # 1: files that cannot be imported; 5: no test was collected
    if found.returncode not in (0, 1, 5) or not record.exists():
        raise RuntimeError(f"tests cannot be collected:\n{found.stdout[-4000:]}{found.stderr[-4000:]}")
    for line in found.stdout.splitlines():
        if line.startswith("ERROR "):
            say(f"cannot be imported: {line.removeprefix('ERROR ')}")
    (line,) = record.read_text().splitlines()
    tests = json.loads(line)["collected"]
    # a device is there: what runs on the CPU beside it is left to the suite
    return [test for test in tests if given.device == "cpu" or not on_cpu(test)]


def on_cpu(test: str) -> bool:
    """True if a test has the device among its parameters, and it is the CPU."""
    parameters = test.partition("[")[2].rstrip("]").split("-")
    return "cpu" in parameters and "cuda" not in parameters


def warm(given: argparse.Namespace, environment: dict[str, str], end: float) -> None:
    for dtype in ("float32", "float64"):
        command = [sys.executable, "-m", "polymax", "warmup", "--device", given.device, "--dtype", dtype]
        command += ["--jobs", str(given.processes)]
        # what is not compiled yet, tests compile
        with contextlib.suppress(subprocess.TimeoutExpired):
            rest = max(end - time.time(), 1.0)
            done = subprocess.run(command, cwd=HOME, env=environment, timeout=rest, capture_output=True, text=True)
            if done.returncode:
                say(f"warmup failed, and tests compile their kernels: {done.stderr[-500:]}")


def function_of(test: str) -> str:
    return test.partition("[")[0]


def recorded(folder: Path) -> dict[str, float]:
    """Seconds of a test of each function, of the latest run."""
    known: dict[str, float] = {}
    for path in sorted(folder.glob("*.json")):
        known.update(
            {name: total / count for name, (count, total) in json.loads(path.read_text())["functions"].items()}
        )
    return known


def shared_out(tests: list[str], seconds: dict[str, float], processes: int) -> list[list[str]]:
    """Tests for each process; those of one function stay together in pieces, the longest pieces first."""
    by_function: dict[str, list[str]] = collections.defaultdict(list)
    for test in tests:
        by_function[function_of(test)].append(test)
    each = {name: seconds.get(name, UNKNOWN) for name in by_function}
    # a piece is at most a quarter of what a process has to do
    largest = sum(each[name] * len(group) for name, group in by_function.items()) / max(4 * processes, 1)
    pieces: list[tuple[float, list[str]]] = []
    for name, group in by_function.items():
        size = max(int(largest / max(each[name], 1e-3)), 1)
        pieces += [(each[name] * len(group[i : i + size]), group[i : i + size]) for i in range(0, len(group), size)]
    loads = [0.0] * processes
    shares: list[list[str]] = [[] for _ in range(processes)]
    for load, piece in sorted(pieces, key=lambda p: (-p[0], p[1])):
        k = loads.index(min(loads))
        loads[k] += load
        shares[k] += piece
    return shares


@dataclass
class Run:
    """A process with its share of tests; another one takes up what is left where it ends early."""

    number: int
    tests: list[str]
    folder: Path
    given: argparse.Namespace
    environment: dict[str, str]
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    starts: int = 0
    running: str | None = None
    since: float = 0.0
    process: Any = None
    _read: int = 0

    def start(self) -> None:
        left = self.left()
        self.starts += 1
        self.running, self.since, self._read = None, time.time(), 0
        chosen = self.folder / f"{self.number}-{self.starts}.tests"
        chosen.write_text("\n".join(left))
        files = sorted({test.partition("::")[0] for test in left})
        self._claims().mkdir()
        own = f"--chosen={chosen}", f"--record={self._record()}", f"--claims={self._claims()}"
        command = pytest("-q", "--tb=short", *own, *files)
        with self._log().open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.given.root,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def left(self) -> list[str]:
        """Return the tests that have no result."""
        return [test for test in self.tests if test not in self.results]

    def give(self, seconds: dict[str, float]) -> list[str]:
        """Claim the last tests that have not begun, up to half of the seconds that are left, for another process."""
        left, load = self.left(), self.load(seconds)
        found: list[str] = []
        given = 0.0
        while load >= WORTH and (given := given + seconds.get(function_of(left[-1]), UNKNOWN)) <= load / 2:
            if not claimed(self._claims(), left[-1]):
                break
            found.append(left.pop())
        taken = set(found)
        self.tests = [test for test in self.tests if test not in taken]
        return found[::-1]

    def load(self, seconds: dict[str, float]) -> float:
        """Return the seconds that the tests without a result take."""
        return sum(seconds.get(function_of(test), UNKNOWN) for test in self.left())

    def take(self, tests: list[str]) -> None:
        """Run tests that another process gave, besides what is done."""
        self.tests = [*self.results, *tests]
        self.start()

    def look(self) -> bool:
        """Note what has happened; False if there is no more to do."""
        ended = self.process.poll() is not None
        self._note()
        if not ended and time.time() - self.since > self.given.limit:
            self.stop()
            if self.running is None:
                return self._again("did not begin its tests", None)
            return self._again(f"ran longer than {self.given.limit:.0f} s", "hangs")
        if not ended:
            return True
        if self.running is not None:
            return self._again(f"ended its process by {self.process.returncode}", "crashes")
        if len(self.results) < len(self.tests):
            return self._again("left out tests", None)
        return False

    def stop(self) -> None:
        """End the process and what it has started."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._note()

    def _again(self, why: str, outcome: str | None) -> bool:
        """Go on with the next tests; False where nothing more is done by trying again."""
        log = self._log().read_text(errors="replace")[-4000:]
        if outcome is not None and self.running is not None:
            message = f"{why}\n{log}"
            self.results[self.running] = {"outcome": outcome, "seconds": time.time() - self.since, "message": message}
            say(f"{self.running} {why}")
        elif not self._read:
            say(f"process {self.number} {why}:\n{log}")
            return False
        if len(self.results) == len(self.tests):
            return False
        self.start()
        return True

    def _note(self) -> None:
        path = self._record()
        if not path.exists():
            return
        lines = path.read_text().split("\n")[:-1]
        for line in lines[self._read :]:
            found = json.loads(line)
            if "begins" in found:
                self.running, self.since = found["begins"], found["at"]
            elif "ends" in found:
                self.results[found.pop("ends")] = found
                self.running, self.since = None, time.time()
        self._read = len(lines)

    def _claims(self) -> Path:
        return self.folder / f"{self.number}-{self.starts}.claims"

    def _record(self) -> Path:
        return self.folder / f"{self.number}-{self.starts}.jsonl"

    def _log(self) -> Path:
        return self.folder / f"{self.number}-{self.starts}.log"


def watched(runs: list[Run], end: float, seconds: dict[str, float]) -> dict[str, dict[str, Any]]:
    """What became of all tests, by name; processes are stopped at the end of the budget."""
    for run in runs:
        run.start()
    at_work, told = list(runs), time.time()
    try:
        while at_work and time.time() < end:
            time.sleep(LOOK)
            idle = [run for run in at_work if not run.look()]
            at_work = [run for run in at_work if run not in idle]
            for run in idle:
                # the process with the most to do gives half of it
                slowest = max(at_work, key=lambda other: other.load(seconds), default=None)
                tests = [] if slowest is None else slowest.give(seconds)
                if tests:
                    run.take(tests)
                    at_work.append(run)
            if time.time() - told > 10:
                told = time.time()
                done, failed = sum(len(run.results) for run in runs), sum(len(failures(run.results)) for run in runs)
                names = ", ".join(sorted(function_of(run.running) for run in at_work if run.running))
                say(f"{done} done, {failed} failed, {len(at_work)} processes at {names}")
    finally:
        for run in at_work:
            run.stop()
    return {name: result for run in runs for name, result in run.results.items()}


def failures(results: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, found in results.items() if found["outcome"] not in ("passed", "skipped", "xfailed")]


def reported(
    given: argparse.Namespace, tests: list[str], results: dict[str, dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """The result as it is written."""
    functions: dict[str, list[float]] = {}
    for name, found in results.items():
        entry = functions.setdefault(function_of(name), [0, 0.0])
        entry[0] += 1
        entry[1] = round(entry[1] + found["seconds"], 3)
    bad = failures(results)
    now = time.gmtime()
    return {
        "date": time.strftime("%Y-%m-%d", now),
        "recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
        **versions(given.device, given.commit),
        "processes": given.processes,
        "seconds": round(seconds, 1),
        "selection": {"expression": given.expression, "paths": given.paths},
        "counts": dict(collections.Counter(found["outcome"] for found in results.values())),
        "failures": [{"test": name, **{k: results[name][k] for k in ("outcome", "message")}} for name in sorted(bad)],
        "not run": [test for test in tests if test not in results],
        "functions": functions,
    }


def versions(device: str, known: str | None = None) -> dict[str, Any]:
    """The commit, whether the tree differs from it, and the machine with its packages; `known` is a copy's commit."""

    def run(*command: str) -> str:
        found = subprocess.run(command, cwd=HOME, capture_output=True, text=True)
        return found.stdout.strip() if found.returncode == 0 else ""

    packages = {}
    for name in ("torch", "triton", "numba", "numpy", "pytest"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    machine = "a CPU, in Triton's interpreter"
    if device == "cuda":
        machine = run(sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())")
    # the history beside a copy may be an older one
    commit = known or run("git", "rev-parse", "HEAD")
    changed = not known and bool(run("git", "status", "--porcelain", "--untracked-files=no"))
    facts = {"name": machine, "cores": os.cpu_count(), "python": sys.version.split()[0], **packages}
    return {"commit": commit, "changed": changed, "machine": facts}


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
