"""Run the battery of all operators under compute-sanitizer, memcheck and racecheck, in several processes.

    python -m tests.device.sanitize [--tool memcheck|racecheck] [--processes N] [--budget SECONDS] [NAME ...]

First all calls run without the sanitizer, so that their kernels are compiled, once for all processes. Then each process
takes the next call that no other has taken. Each tensor has memory of its own, so that a read beside one is seen:
torch's cache of memory is off. The result is a file of JSON in benchmarks/results/gpu-tests/sanitizer: the calls that
ran, their seconds, what the sanitizer said after their names, and the calls for which there was no time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.device.__main__ import RESULTS, say, versions

HOME = Path(__file__).resolve().parents[2]
# the exit status of compute-sanitizer where it finds something
FOUND = 86
# seconds between two looks at the processes
LOOK = 0.2


def main(arguments: list[str] | None = None) -> int:
    given = options().parse_args(arguments)
    if given.sanitizer is None:
        print("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit; --sanitizer names it")
        return 2
    begun = time.time()
    names = listed(given)
    if not names:
        print("no call has such a name")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="polymax-sanitizer-"))
    end = begun + given.budget
    rounds = []
    if given.warm:
        # half of the time at most: what is not compiled then, the sanitizer sees compiled
        rounds.append([Battery("plain", given, names, folder, min(end, begun + given.budget / 2))])
    rounds.append([Battery(tool, given, names, folder, end) for tool in given.tool or ["memcheck", "racecheck"]])
    for batteries in rounds:
        work(batteries, given.processes)
        for battery in batteries:
            say(battery.summary())
    now = time.gmtime()
    report = {
        "date": time.strftime("%Y-%m-%d", now),
        "recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
        **versions("cuda", given.commit),
        "sanitizer": version(given.sanitizer),
        "processes": given.processes,
        "seconds": round(time.time() - begun, 1),
        "calls": len(names),
        "tools": {battery.tool: battery.report() for batteries in rounds for battery in batteries},
    }
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{time.strftime('%Y-%m-%d-%H%M%S', now)}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    clean = all(battery.clean() for battery in rounds[-1])
    say(f"{'clean' if clean else 'not clean'} after {report['seconds']:.0f} s; {path}")
    return 0 if clean else 1


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.device.sanitize", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tool", choices=("memcheck", "racecheck"), action="append", help="both")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--budget", type=float, default=1800.0, help="seconds for everything")
    parser.add_argument("--grace", type=float, default=45.0, help="seconds after these, for calls that began in them")
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="compile no kernels before")
    parser.add_argument("--cache", type=Path, default=HOME / "build" / "gpu-tests", help="the folder of kernels")
    parser.add_argument("--out", type=Path, default=RESULTS / "sanitizer", help="the folder of the result")
    parser.add_argument("--commit", help="of a tree that is a copy without its history")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer"), help="its path")
    parser.add_argument("names", nargs="*", help="parts of names of calls; all of them")
    return parser


def listed(given: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "tests.device.battery", "--list", *given.names]
    found = subprocess.run(command, cwd=HOME, env=environment(given), capture_output=True, text=True, check=True)
    return found.stdout.splitlines()


def version(sanitizer: str) -> str:
    found = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False)
    return next((line for line in found.stdout.splitlines() if line.startswith("Version")), "")


def environment(given: argparse.Namespace) -> dict[str, str]:
    path = os.pathsep.join((str(HOME), os.environ.get("PYTHONPATH", "")))
    own = {"PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    return {"TRITON_CACHE_DIR": str(given.cache / "triton"), **os.environ, **own}


@dataclass
class Battery:
    """The calls under one tool, by processes that claim them one by one; the tool "plain" is no sanitizer."""

    tool: str
    given: argparse.Namespace
    names: list[str]
    folder: Path
    end: float
    processes: list[Any] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.claims = self.folder / self.tool
        self.claims.mkdir()

    def command(self) -> list[str]:
        battery = [sys.executable, "-m", "tests.device.battery", *self.given.names]
        battery += [f"--claims={self.claims}", f"--until={self.end}"]
        # the sanitizer attaches when CUDA begins, after imports, which take longer than its 10 s side by side
        options = ["--tool", self.tool, "--error-exitcode", str(FOUND), "--target-processes", "application-only"]
        options += ["--launch-timeout", "600"]
        return battery if self.tool == "plain" else [self.given.sanitizer, *options, *battery]

    def start(self) -> None:
        self.logs.append(self.folder / f"{self.tool}-{len(self.logs)}.log")
        with self.logs[-1].open("w") as log:
            self.processes.append(
                subprocess.Popen(
                    self.command(), cwd=HOME, env=environment(self.given), stdout=log, stderr=subprocess.STDOUT
                )
            )

    def unclaimed(self) -> int:
        return len(self.names) - len(list(self.claims.glob("*.begun"))) if time.time() < self.end else 0

    def at_work(self) -> list[Any]:
        return [process for process in self.processes if process.poll() is None]

    def ended(self) -> dict[str, dict[str, Any]]:
        """What each call that ended wrote, by name."""
        return {found.pop("name"): found for found in map(_read, sorted(self.claims.glob("*.ended")))}

    def findings(self) -> dict[str, list[str]]:
        """The first lines that the sanitizer wrote after the name of each call, its sums left out."""
        found: dict[str, list[str]] = {}
        for log in self.logs:
            name = "at the start"
            for line in log.read_text(errors="replace").splitlines():
                if line in self.names:
                    name = line
                elif line.startswith("=========") and not _is_plain(line):
                    found.setdefault(name, []).append(line.strip("= "))
        return {name: lines[:12] for name, lines in found.items()}

    def report(self) -> dict[str, Any]:
        ended = self.ended()
        return {
            "statuses": dict(Counter(str(process.returncode) for process in self.processes)),
            "failures": {name: found["failed"] for name, found in ended.items() if found["failed"]},
            "findings": self.findings(),
            "not run": [name for name in self.names if name not in ended],
            "kernels not reached": self.missed(),
            "seconds": {name: found["seconds"] for name, found in ended.items()},
        }

    def missed(self) -> list[str]:
        left = [set(found["missed"]) for found in map(_read, self.claims.glob("*.process"))]
        return sorted(set.intersection(*left)) if left and not self.given.names else []

    def clean(self) -> bool:
        found = self.report()
        bad = found["failures"], found["findings"], found["not run"], found["kernels not reached"]
        return not any(bad) and set(found["statuses"]) == {"0"}

    def summary(self) -> str:
        found = self.report()
        said = [f"{self.tool}: {len(found['seconds'])} calls, {sum(found['seconds'].values()):.0f} s of processes"]
        said += [f"{len(found[name])} {name}" for name in ("failures", "findings", "not run") if found[name]]
        said += [f"statuses {found['statuses']}"] if set(found["statuses"]) != {"0"} else []
        return "; ".join(said)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _is_plain(line: str) -> bool:
    """True of the lines that compute-sanitizer writes where it finds nothing."""
    said = line.strip("= ")
    sums = "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards"
    return not said or said.startswith(("COMPUTE-SANITIZER", *sums))


def work(batteries: list[Battery], processes: int) -> None:
    """Keep so many processes at work, on the battery that has the most calls left for each of its processes."""
    latest = max(battery.end + battery.given.grace for battery in batteries)
    started = 0
    while time.time() < latest:
        busy = sum(len(battery.at_work()) for battery in batteries)
        waiting = [b for b in batteries if b.unclaimed() > len(b.at_work())]
        # a process that ended takes seconds to be replaced, which pays if there is more than one call for each
        if waiting and busy < processes and started < 3 * processes:
            max(waiting, key=lambda b: b.unclaimed() / (1 + len(b.at_work()))).start()
            started += 1
        elif busy:
            time.sleep(LOOK)
        else:
            break
    for battery in batteries:
        for process in battery.at_work():
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
