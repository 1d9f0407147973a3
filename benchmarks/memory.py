"""How much memory a call has in use at its peak, beyond what it was given."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch

from benchmarks.baselines import Competitor
from benchmarks.record import OK, Absent, Bar, Row
from benchmarks.timing import Task
from benchmarks.workload import BOTH, Case, Problems, Shape, gate, judged

REPEATS = 3
# what Linux calls them: the size from which malloc maps memory of its own, and no pages larger than others
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 16
PR_SET_THP_DISABLE = 41
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class MemoryCase(Case):
    """The memory of forward and backward: at most twice that of the scores, and that of `charts` numbers."""

    name: str
    ours: Competitor
    problems: Problems
    charts: Callable[[Shape], int]

    def runs_on(self, device: str) -> bool:
        return bool(self.problems.sizes.get(device)) and (device == "cuda" or RESET.exists())

    def absent(self, device: str) -> list[Absent]:
        return []

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        function, signature = self.ours.function, self.problems.signature
        for size in self.problems.of(device, quick):
            inputs, cotangents = signature.problem(size, torch.Generator(device).manual_seed(0))
            checked = gate(self.name, [self.ours], size, (inputs, cotangents), signature)[self.ours.name]
            known = asdict(checked) | {"timed": BOTH}
            scores = sum(x.numel() * x.element_size() for x in inputs)
            if checked.status == OK:
                task = partial(function.both, function.prepare(inputs, cotangents))
                # what else the process does can only add
                extra = min(peak(task, device) for _ in range(REPEATS))
                known |= {"extra_bytes": extra, "ratio": extra / scores, "ratio_of": "extra_bytes"}
            bar = Bar(2 + self.charts(size.shape) * inputs[0].element_size() / scores)
            yield Row(**known | judged(bar, known))


def peak(task: Task, device: str) -> int:
    """The most bytes in use while the task runs, beyond those in use before."""
    gc.collect()
    return _peak_cuda(task) if device == "cuda" else _peak_cpu(task)


def _peak_cuda(task: Task) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    task()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_cpu(task: Task) -> int:
    """From the pages of the process, for kernels do not allocate through torch alone."""
    _libc().malloc_trim(0)
    RESET.write_text("5")
    before = _bytes("VmRSS")
    # what it returns is in use until the peak is read
    result = task()
    highest = _bytes("VmHWM")
    del result
    return max(0, highest - before)


@cache
def _libc() -> ctypes.CDLL:
    """With a malloc that gives back what is freed: memory that it keeps would hide the next allocation."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    return libc


def _bytes(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])
