"""What times depend on: the machine, the versions, and what else runs meanwhile."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import polymax
from polymax_recipes.demo import speed

PACKAGES = (
    *("triton", "numba", "numpy", "entmax", "adasplash", "jax", "jaxopt"),
    *("pytorch-crf", "torch-struct", "supar", "synjax", "tslearn", "pysdtw"),
)


def describe(device: str, name: str | None = None) -> dict[str, Any]:
    """Processor, threads, GPU and versions; packages that are not installed are None."""
    facts = speed.machine("cpu")
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "name": name or _slug(gpu or facts["device"]),
        "cpu": facts["device"],
        "cores": facts["cores"],
        "threads": facts["threads"],
        "gpu": gpu,
        "system": facts["system"],
        "python": facts["python"],
        "polymax": polymax.__version__,
        "torch": facts["torch"],
        "cuda": torch.version.cuda,
        **{package: _version(package) for package in PACKAGES},
    }


def commit() -> str | None:
    """Return the short hash of the tree that is measured, with "-dirty" if it has changes; None outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def now() -> str:
    """Return the time in UTC, as files of results have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def provenance(known: str | None = None) -> dict[str, str | None]:
    """Return date, commit and time of writing: the first fields of every file of results.

    known: the commit of a tree that is a copy, whose own history may be missing or older
    """
    recorded = now()
    return {"date": recorded[:10], "commit": known or commit(), "recorded": recorded}


class Others:
    """The share of the processors that other processes use; None where the system does not tell."""

    share: float | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure the share while the block runs."""
        start, before = perf_counter(), _others_seconds()
        yield
        after = _others_seconds()
        if before is not None and after is not None:
            capacity = (perf_counter() - start) * (os.cpu_count() or 1)
            self.share = round(min(1.0, max(0.0, after - before) / capacity), 3)


def _others_seconds() -> float | None:
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal
    ticks = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    own = os.times()
    # a case may measure its own children
    used = own.user + own.system + own.children_user + own.children_system
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK") - used


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
