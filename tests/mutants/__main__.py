"""The command: python -m tests.mutants --seed S --count N [--number K] [--only PATH] [--show]."""

import argparse
import ast
import contextlib
import difflib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import Change, changes
from tests.mutants.relevant import relevant, sources

HOME = Path(__file__).resolve().parents[2]
COPIED = ("polymax", "polymax_recipes", "tests", "docs", "examples", "benchmarks", "website")
# the recorded run, in the folder of the results
RECORD = "record.jsonl"
# of the mutants that are drawn, so many have to die
BAR = 0.9
# by the clock, tests may take so many times the processor time that they are given
PATIENCE = 4


@dataclass(frozen=True)
class Mutant:
    """A change of a file of the tree."""

    path: Path
    change: Change

    def diff(self, home: Path) -> str:
        source = (home / self.path).read_bytes()
        old, new = (x.decode().splitlines(keepends=True) for x in (source, self.change.apply(source)))
        return "".join(difflib.unified_diff(old, new, f"a/{self.path}", f"b/{self.path}", n=2))

    def line(self, home: Path) -> int:
        return (home / self.path).read_bytes()[: self.change.start].count(b"\n") + 1


def draw(home: Path, seed: int, count: int, only: str = "") -> list[Mutant]:
    """Return mutants of files of all rooms; large rooms have more, and kinds of changes are equally likely."""
    chance = random.Random(seed)
    rooms = defaultdict(list)
    for path in sources(home):
        if only in path.as_posix():
            rooms["/".join(path.parts[:2])].append(path)
    lines = {path: len((home / path).read_bytes().splitlines()) + 1 for paths in rooms.values() for path in paths}
    sizes = [sum(lines[p] for p in paths) ** 0.5 for paths in rooms.values()]
    found: list[Mutant] = []
    for _ in range(100 * count):
        if len(found) == count:
            break
        paths = chance.choices(list(rooms.values()), sizes)[0]
        path = chance.choices(paths, [lines[p] for p in paths])[0]
        source = (home / path).read_bytes()
        kinds = changes(source)
        if not kinds:
            continue
        mutant = Mutant(path, chance.choice(kinds[chance.choice(sorted(kinds))]))
        if mutant not in found and _differs(source, mutant.change.apply(source)):
            found.append(mutant)
    return found


def _differs(old: bytes, new: bytes) -> bool:
    try:
        return ast.dump(ast.parse(old)) != ast.dump(ast.parse(new))
    except SyntaxError:
        return False


def copy(home: Path, to: Path) -> None:
    """Copy what tests need, with compiled kernels."""
    to.mkdir(parents=True)
    for name in COPIED:
        if (home / name).exists():
            shutil.copytree(home / name, to / name, ignore=shutil.ignore_patterns("*.pyc"))
    for path in home.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, to)


def keep_compiled(tree: Path, base: Path) -> None:
    """Copy kernels that a run has compiled into the copy from which trees are made; a kernel knows its sources."""
    for path in tree.rglob("*.nb[ic]"):
        if not (kept := base / path.relative_to(tree)).exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, kept)


def run(tree: Path, tests: list[str], asked: dict, limit: float) -> tuple[str, list[str]]:
    """Run tests of a tree until one fails: "passed", "failed" or "hung", and the tests in question."""
    with tempfile.TemporaryDirectory() as folder:
        running = Path(folder) / "running"
        own = {"POLYMAX_MUTANT": json.dumps(asked), "POLYMAX_RUNNING": str(running), "OMP_NUM_THREADS": "1"}
        own["PYTHONPATH"] = os.pathsep.join((str(tree), str(HOME)))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "tests.mutants.order"]
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *tests],
            cwd=tree,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: os.nice(10),
        )
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "hung", [running.read_text()] if running.exists() else []
        finally:
            # what tests have started ends with them
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode in (0, 5):
            return "passed", []
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
        return "failed", failed or [running.read_text()] if running.exists() or failed else [said[-300:]]


def judge(mutant: Mutant, base: Path, seconds: float, record: Path) -> tuple[str, str]:
    """Return "killed", "hung" or "survived" and the test that tells, which passes without the change."""
    tests, weights, entered = relevant(base, mutant.path, mutant.line(base), record)
    names = [str(mutant.path), *map(str, tests)]
    asked = {"weights": weights, "entered": entered, "seconds": seconds, "path": str(mutant.path)}
    left: list[str] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            copy(base, tree)
            source = (tree / mutant.path).read_bytes()
            (tree / mutant.path).write_bytes(mutant.change.apply(source))
            options = [x for name in left for x in ("--deselect", name)]
            end, told = run(tree, names + options, asked, PATIENCE * seconds + 60)
            keep_compiled(tree, base)
        if end == "passed":
            return "survived", ", ".join(map(str, tests))
        # a test that fails without the change says nothing about it
        sound, _ = run(base, told, asked, PATIENCE * seconds + 60) if told and "::" in told[0] else ("passed", [])
        if sound == "passed":
            return ("killed" if end == "failed" else "hung"), (told or ["collection"])[0]
        left += told
    return "survived", "tests of the file fail without the change: " + ", ".join(left)


def recorded(home: Path, record: Path) -> int:
    """Run a row of each test, and write which functions it enters."""
    record.unlink(missing_ok=True)
    own = {"POLYMAX_RECORD": str(record), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(home)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=line",
        "-p",
        "tests.mutants.record",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run([*command, "tests"], cwd=home, env={**os.environ, **own}).returncode


def main(arguments=None) -> int:
    """Draw mutants, run their tests, and print what lives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the draw; the clock's by default")
    parser.add_argument("--count", type=int, default=50, help="how many mutants")
    parser.add_argument("--number", type=int, action="append", help="run this one of them alone; may be repeated")
    parser.add_argument("--only", default="", help="files whose paths have this in them")
    parser.add_argument("--show", action="store_true", help="print the changes, and run nothing")
    parser.add_argument("--record", action="store_true", help="record the functions that tests enter, for later runs")
    parser.add_argument("--seconds", type=float, default=120, help="processor time for the tests of a mutant")
    parser.add_argument("--out", type=Path, default=Path("build/mutants"), help="folder for results")
    parser.add_argument("--home", type=Path, default=HOME, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.record:
        return recorded(given.home, (given.out / RECORD).resolve())
    seed = int(time.time()) if given.seed is None else given.seed
    mutants = draw(given.home, seed, given.count, given.only)
    chosen = [(k, m) for k, m in enumerate(mutants) if given.number is None or k in given.number]
    print(f"seed {seed}: {len(chosen)} mutants", flush=True)
    if given.show:
        for k, mutant in chosen:
            print(f"{k} {mutant.change.kind}\n{mutant.diff(given.home)}")
        return 0
    record = given.out / f"survivors-{seed}.txt"
    record.write_text("")
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        copy(given.home, base)
        for k, mutant in chosen:
            start = time.monotonic()
            end, told = judge(mutant, base, given.seconds, given.out / RECORD)
            counts[end] += 1
            place = f"{mutant.path}:{mutant.line(base)}"
            took = time.monotonic() - start
            print(f"{k:3} {end:9}{took:6.0f} s  {mutant.change.kind:18} {place}  {told}", flush=True)
            if end == "survived":
                with record.open("a") as file:
                    file.write(f"{k} {mutant.change.kind}, not noticed by {told}\n{mutant.diff(base)}\n")
    died = counts["killed"] + counts["hung"]
    print(f"{counts['killed']} killed, {counts['hung']} hung, {counts['survived']} survived; the diffs: {record}")
    return 0 if died >= BAR * len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
