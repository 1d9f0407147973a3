"""The time of every mapping, forward and backward, beside torch.softmax."""

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.demo.catalogue import MAPPINGS, name

Mapping = Callable[[Tensor], Tensor]
# share of the processors used by others, from which times are unreliable: it slows threads that wait for each other
BUSY = 0.2
SHAPES: tuple[tuple[int, ...], ...] = ((64, 32), (256, 512), (16, 8192))


@dataclass(frozen=True)
class Timing:
    """Median time of one forward and backward pass, and how many times that of torch.softmax it is.

    `others` is the share of the processors that other processes used meanwhile; 0 if the system does not report it.
    """

    mapping: str
    shape: tuple[int, ...]
    milliseconds: float
    ratio: float
    others: float

    def __str__(self) -> str:
        return f"{self.milliseconds:.3f} ({self.ratio:.{1 if self.ratio >= 1 else 2}f}×)"


def measure(
    mappings: Sequence[Mapping] = MAPPINGS,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    *,
    device: str = "cpu",
    seconds: float = 0.2,
) -> Iterator[Timing]:
    """Time the mappings on float32 Gaussian scores, about `seconds` each.

    Each round runs torch.softmax, then the mapping: a busy machine slows both. The ratio is of medians.
    """
    for shape in shapes:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        g = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
        for mapping in mappings:
            # the first calls compile kernels
            for _ in range(3):
                _seconds(_softmax, x, g)
                _seconds(mapping, x, g)
            base: list[float] = []
            own: list[float] = []
            before = _others_seconds()
            start = perf_counter()
            while len(own) < 5 or sum(own) + sum(base) < seconds:
                base.append(_seconds(_softmax, x, g))
                own.append(_seconds(mapping, x, g))
            capacity = (perf_counter() - start) * (os.cpu_count() or 1)
            others = max(0.0, _others_seconds() - before) / capacity
            yield Timing(name(mapping), shape, 1e3 * median(own), median(own) / median(base), others)


def caution(timings: Sequence[Timing]) -> str:
    """Return a warning to print beside unreliable times; empty if the times are reliable."""
    share = max(timing.others for timing in timings)
    if share < BUSY:
        return ""
    return f"Other processes used up to {share:.0%} of the processors meanwhile: times and ratios are rough."


def available(device: str) -> str:
    """The device itself, or a ValueError that says why torch cannot use it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {device!r} cannot be used: {reason}") from error
    return device


def machine(device: str = "cpu") -> dict[str, Any]:
    """A description of the machine that the times were measured on."""
    on_gpu = torch.device(device).type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def results(timings: Iterable[Timing], device: str = "cpu") -> dict[str, Any]:
    """Timings and the machine as one JSON object."""
    return {
        "machine": machine(device),
        "measures": "forward and backward, float32, median; ratio to torch.softmax",
        "timings": [asdict(timing) for timing in timings],
    }


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _seconds(mapping: Mapping, x: Tensor, g: Tensor) -> float:
    _wait(x)
    start = perf_counter()
    torch.autograd.grad(mapping(x), x, g)
    _wait(x)
    return perf_counter() - start


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def _others_seconds() -> float:
    """Processor time that other processes have used since the system started, by Linux's counters."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    # user, nice, system, idle, iowait, irq, softirq, steal
    ticks = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK") - process_time()


def _processor() -> str:
    # platform.processor() is empty on many Linux systems; this file has the name
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
