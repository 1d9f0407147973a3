"""What a suite is made of: a case measures itself and yields rows."""

import math
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

import polymax
from benchmarks import parity, timing
from benchmarks.baselines import Competitor, Peer, Tensors
from benchmarks.machine import Others
from benchmarks.record import ERROR, OK, PARITY_FAILED, Absent, Bar, Row
from benchmarks.timing import EFFORTS, QUICK, Effort, Task, Times

FORWARD, BOTH = "forward", "forward+backward"
# inputs in rotation are together larger than any cache, but no more than it takes to say so
POOL_BYTES = 64 << 20
POOL_MOST = 256

Shape = tuple[int, ...]
Bars = Mapping[tuple[str, str], Bar]


class Size(NamedTuple):
    """A problem's shape and dtype, and a bar of its own, if it has one."""

    shape: Shape
    dtype: torch.dtype = torch.float32
    bar: Bar | None = None


class Case(ABC):
    """A named workload."""

    name: str

    @abstractmethod
    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        """Measure, and yield a row for each competitor and problem."""

    @abstractmethod
    def absent(self, device: str) -> list[Absent]:
        """Peers that cannot take part."""

    @abstractmethod
    def runs_on(self, device: str) -> bool:
        """Whether the case has anything to measure there."""


def gaussian(shape: Shape, generator: torch.Generator) -> Tensors:
    """Standard Gaussian scores."""
    return (torch.randn(shape, generator=generator, device=generator.device),)


def like_scores(shape: Shape) -> tuple[Shape, ...]:
    """One output, shaped like the scores."""
    return (shape,)


@dataclass(frozen=True)
class Signature:
    """What a function takes and returns: inputs of which the last `shared` serve the whole batch.

    `outputs` gives the shapes of the outputs of a problem, which are those of the cotangents; none where the
    outputs have no derivative. `compared` takes inputs and outputs to what the gate compares, if not the outputs.
    """

    inputs: Callable[[Shape, torch.Generator], Tensors] = gaussian
    outputs: Callable[[Shape], tuple[Shape, ...]] = like_scores
    shared: int = 0
    compared: parity.Compared | None = None

    def problem(self, size: Size, generator: torch.Generator) -> tuple[Tensors, Tensors]:
        """Inputs and cotangents."""
        inputs = self.inputs(size.shape, generator)
        cotangents = [gaussian(shape, generator)[0] for shape in self.outputs(size.shape)]
        return tuple(x.to(size.dtype) for x in inputs), tuple(v.to(size.dtype) for v in cotangents)


@dataclass(frozen=True)
class Problems:
    """Where and on what a case is measured: a signature, and sizes for each device."""

    sizes: Mapping[str, tuple[Size, ...]]
    timed: tuple[str, ...] = (FORWARD, BOTH)
    signature: Signature = Signature()
    quick: Shape = (4, 16)

    def of(self, device: str, quick: bool) -> tuple[Size, ...]:
        """The sizes of a device, or one tiny size for each of its dtypes."""
        sizes = self.sizes.get(device, ())
        if not quick:
            return sizes
        return tuple(dict.fromkeys(Size(self.quick, size.dtype) for size in sizes))


@dataclass(frozen=True)
class FunctionCase(Case):
    """A function of ours beside peers of the same function, and a baseline, which is ours where there is none.

    `before` is called before anything is measured on a GPU.
    """

    name: str
    ours: Competitor
    problems: Problems
    peers: tuple[Peer, ...] = ()
    bars: Bars = field(default_factory=dict)
    base: Competitor | None = None
    before: Callable[[], None] | None = None

    def runs_on(self, device: str) -> bool:
        return bool(self.problems.sizes.get(device))

    def absent(self, device: str) -> list[Absent]:
        found = [(peer.name, peer.competitor(device, self.ours.oracle)) for peer in self.peers]
        return [Absent(name, peer) for name, peer in found if isinstance(peer, str)]

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        loaded = [peer.competitor(device, self.ours.oracle) for peer in self.peers]
        base = self.base or self.ours
        competitors = [*dict.fromkeys([base, self.ours]), *(peer for peer in loaded if isinstance(peer, Competitor))]
        effort = QUICK if quick else EFFORTS[device]
        if self.before is not None and device == "cuda" and not quick:
            self.before()
        for size in self.problems.of(device, quick):
            pool = self._pool(size, device, most=2 if quick else POOL_MOST)
            checked = gate(self.name, competitors, size, pool[0], self.problems.signature)
            fit = [c for c in competitors if checked[c.name].status == OK]
            for timed in self.problems.timed:
                tasks = {c.name: tasks_of(c, timed, pool) for c in fit}
                others = Others()
                with others.watched():
                    found, devices, refused = _measured(tasks, device, effort)
                for competitor in competitors:
                    known = asdict(checked[competitor.name]) | {"timed": timed, "others": others.share}
                    if competitor in fit:
                        known |= times_of(competitor.name, base.name, found, devices)
                        known["note"] = refused.get(competitor.name, "")
                    yield Row(**known | judged(self._bar(competitor, device, timed, size, known["status"]), known))

    def _pool(self, size: Size, device: str, most: int) -> list[tuple[Tensors, Tensors]]:
        """Inputs and cotangents in rotation."""
        generator = torch.Generator(device).manual_seed(0)
        first = self.problems.signature.problem(size, generator)
        used = sum(t.numel() * t.element_size() for t in first[0])
        count = max(2, min(most, POOL_BYTES // max(1, used)))
        return [first, *(self.problems.signature.problem(size, generator) for _ in range(count - 1))]

    def _bar(self, competitor: Competitor, device: str, timed: str, size: Size, status: str) -> Bar | None:
        """That of a size or case is on our row; how far a peer should be behind is on the peer's, if it has a time."""
        if competitor is self.ours:
            return size.bar or self.bars.get((device, timed))
        if competitor.margin is None or status != OK:
            return None
        return Bar(competitor.margin, least=True)


def gate(
    case: str, competitors: list[Competitor], size: Size, problem: tuple[Tensors, Tensors], signature: Signature
) -> dict[str, Row]:
    """A row without figures for each competitor: whether its outputs and gradients are right."""
    truths: dict[Any, parity.Truth] = {}
    found: dict[str, Row] = {}
    for c in competitors:
        known: dict[str, Any] = {}
        try:
            if c.oracle not in truths:
                truths[c.oracle] = parity.truth(c.oracle, *problem, signature.shared, signature.compared)
            result = parity.check(c, *problem, truths[c.oracle])
        # whatever a competitor raises is a result of this competitor alone
        except Exception as error:
            known = {"status": ERROR, "note": f"{type(error).__name__}: {error}".partition("\n")[0]}
        else:
            # JSON has no NaN
            known["parity"] = {k: v if math.isfinite(v) else None for k, v in asdict(result).items()}
            if not result.holds:
                known |= {"status": PARITY_FAILED, "note": str(result)}
        dtype = str(size.dtype).removeprefix("torch.")
        found[c.name] = Row(case, "", c.name, size.shape, dtype, **known)
    return found


@dataclass(frozen=True)
class ImportCase(Case):
    """The time to import polymax once torch is there, in a fresh process."""

    name: str
    bar: Bar
    repeats: int = 5

    def runs_on(self, device: str) -> bool:
        return device == "cpu"

    def absent(self, device: str) -> list[Absent]:
        return []

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        others = Others()
        with others.watched():
            samples = [_import_seconds() for _ in range(1 if quick else self.repeats)]
        torch_seconds, own_seconds = zip(*samples, strict=True)
        for package, seconds, bar in (("torch", torch_seconds, None), ("polymax", own_seconds, self.bar)):
            known: dict[str, Any] = {
                "eager_us": 1e6 * median(seconds),
                "eager_spread_us": 1e6 * (max(seconds) - min(seconds)),
                "others": others.share,
            }
            yield Row(self.name, "import", package, (), "", **known | judged(bar, known))


def tasks_of(competitor: Competitor, timed: str, pool: list[tuple[Tensors, Tensors]]) -> list[Task]:
    """Calls of a competitor, one for each problem."""
    function = competitor.function
    run = function.forward if timed == FORWARD else function.both

    def task(problem: Any) -> Task:
        return lambda: run(problem)

    return [task(function.prepare(*problem)) for problem in pool]


def _measured(
    tasks: Mapping[str, list[Task]], device: str, effort: Effort
) -> tuple[dict[str, Times], dict[str, Times], dict[str, str]]:
    """Eager times, device times, and why some have none of the latter."""
    if device == "cpu":
        return timing.wall(tasks, effort), {}, {}
    found = timing.eager(tasks, effort)
    devices, refused = timing.device(tasks, effort)
    return found, devices, {name: f"no graph: {reason}" for name, reason in refused.items()}


def times_of(name: str, base: str, found: Mapping[str, Times], devices: Mapping[str, Times]) -> dict[str, Any]:
    """The figures of a competitor, and its ratio to the baseline."""
    known: dict[str, Any] = {
        "eager_us": found[name].median_us,
        "eager_spread_us": found[name].spread_us,
    }
    if name in devices:
        known |= {"device_us": devices[name].median_us, "device_spread_us": devices[name].spread_us}
    for column, times in (("device_us", devices), ("eager_us", found)):
        if name in times and base in times:
            return known | {"ratio": times[name].median_us / times[base].median_us, "ratio_of": column}
    return known


def judged(bar: Bar | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """The bar, and whether it is met: not without a number."""
    if bar is None:
        return {}
    met = bar.holds(known.get(bar.column))
    return {"bar": bar.limit, "bar_of": bar.column, "bar_least": bar.least, "met": met}


def _import_seconds() -> tuple[float, float]:
    """Seconds for torch, and for polymax after it."""
    clock = "from time import perf_counter as t; a = t(); import torch; b = t(); import polymax; c = t()"
    paths = [str(Path(polymax.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", f"{clock}; print(b - a, c - b)"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    torch_seconds, own_seconds = map(float, done.stdout.split())
    return torch_seconds, own_seconds
