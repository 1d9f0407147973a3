"""Measuring: competitors in turns, inputs in rotation, the median and how far it may be trusted.

A competitor is a list of tasks: the same work on different inputs, so that none finds its input in a cache.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

import torch

Task = Callable[[], object]

# more than the second-level cache of any GPU
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Effort:
    """How long to measure: seconds for each competitor, within limits on the number of samples."""

    seconds: float = 0.2
    least: int = 5
    most: int = 100
    # a sample of many calls hides the cost of reading the clock
    block_us: float = 1000.0


# a GPU that nobody shares repeats itself
EFFORTS = {"cpu": Effort(), "cuda": Effort(seconds=0.1)}
QUICK = Effort(seconds=0.0, least=1, most=1, block_us=0.0)


@dataclass(frozen=True)
class Times:
    """Median, and the range between the quartiles, in microseconds per task."""

    median_us: float
    spread_us: float


@dataclass(frozen=True)
class Sampler:
    """`sample(i)` takes the i-th sample, microseconds per task, and lasts about `seconds`."""

    sample: Callable[[int], float]
    seconds: float


def wall(tasks: Mapping[str, Sequence[Task]], effort: Effort) -> dict[str, Times]:
    """The time on the clock, for work that is done when the call returns."""

    def sampler(own: Sequence[Task]) -> Sampler:
        seconds = _seconds(own[0])
        calls = max(1, min(1000, int(1e-6 * effort.block_us / seconds)))

        def sample(place: int) -> float:
            block = [own[(place * calls + i) % len(own)] for i in range(calls)]
            start = perf_counter()
            for task in block:
                task()
            return 1e6 * (perf_counter() - start) / calls

        return Sampler(sample, seconds * calls)

    return interleaved({name: sampler(own) for name, own in tasks.items()}, effort)


def calls(tasks: Mapping[str, Sequence[Task]], effort: Effort, wait: Task) -> dict[str, Times]:
    """The time of the host for a call: a sample makes every call once, then reads the clock, then waits."""

    def sampler(own: Sequence[Task]) -> Sampler:
        def sample(place: int) -> float:
            start = perf_counter()
            for task in own:
                task()
            took = perf_counter() - start
            wait()
            return 1e6 * took / len(own)

        # what is loaded, compiled or set aside at first use is no part of a sample
        sample(0)
        return Sampler(sample, _seconds(lambda: sample(0)))

    return interleaved({name: sampler(own) for name, own in tasks.items()}, effort)


def eager(tasks: Mapping[str, Sequence[Task]], effort: Effort) -> dict[str, Times]:
    """The time between device events around one call on an idle GPU: launches count."""
    flush = _flush()

    def sampler(own: Sequence[Task]) -> Sampler:
        def sample(place: int) -> float:
            flush()
            torch.cuda.synchronize()
            return _between_events(own[place % len(own)])

        return Sampler(sample, _seconds(lambda: sample(0)))

    return interleaved({name: sampler(own) for name, own in tasks.items()}, effort)


def device(tasks: Mapping[str, Sequence[Task]], effort: Effort) -> tuple[dict[str, Times], dict[str, str]]:
    """The time of replaying a CUDA graph of all tasks, per task: launches do not count.

    Also, for each competitor that cannot be captured, why.
    """
    flush = _flush()
    samplers: dict[str, Sampler] = {}
    refused: dict[str, str] = {}

    def sampler(graph: torch.cuda.CUDAGraph, count: int) -> Sampler:
        def sample(place: int) -> float:
            # not awaited: while the flush runs, the replay is launched
            flush()
            return _between_events(graph.replay) / count

        return Sampler(sample, _seconds(lambda: sample(0)))

    for name, own in tasks.items():
        try:
            samplers[name] = sampler(_captured(own), len(own))
        except (RuntimeError, ValueError) as error:
            refused[name] = str(error).partition("\n")[0]
            torch.cuda.synchronize()
    return interleaved(samplers, effort), refused


def interleaved(samplers: Mapping[str, Sampler], effort: Effort) -> dict[str, Times]:
    """Take samples of all competitors in turns, so that a disturbance meets them all."""
    counts = {name: _count(sampler, effort) for name, sampler in samplers.items()}
    taken: dict[str, list[float]] = {name: [] for name in samplers}
    rounds = max(counts.values(), default=0)
    with _no_collection():
        for turn in range(rounds):
            # the slow take part in some turns only, evenly spread; who goes first alternates
            present = [name for name in samplers if turn * counts[name] % rounds < counts[name]]
            for name in present if turn % 2 else reversed(present):
                taken[name].append(samplers[name].sample(len(taken[name])))
    return {name: Times(median(own), _spread(own)) for name, own in taken.items()}


def _count(sampler: Sampler, effort: Effort) -> int:
    # a competitor that takes a second is known well enough from two samples
    least = effort.least if sampler.seconds < effort.seconds else 3 if sampler.seconds < 1 else 2
    return min(effort.most, max(least, int(effort.seconds / sampler.seconds)))


def _seconds(task: Task) -> float:
    start = perf_counter()
    task()
    return perf_counter() - start


def _between_events(task: Task) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    task()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


def _captured(own: Sequence[Task]) -> torch.cuda.CUDAGraph:
    # what is compiled or tuned at first use must be so before the capture
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for task in own[:2]:
            task()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for task in own:
            task()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _flush() -> Callable[[], object]:
    buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    return buffer.zero_


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high - low


@contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
