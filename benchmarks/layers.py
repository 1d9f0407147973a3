"""What each layer of a small call costs, from the kernel outwards: host time of sparsemax on (8, 32).

    python -m benchmarks layers [--device cuda]

Each line is a whole call that enters one layer more than the line before it, and the difference is what that layer
costs. On CUDA the time is that of the host, which launches and does not wait.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

import polymax as pm
from polymax.kernels.threshold import TSALLIS, threshold

# microseconds that a layer may cost on the CPU, and on the host of a GPU
BUDGETS = {
    "allocation": (1.0, 4.0),
    "kernel and its entry": (2.5, 12.0),
    "dispatch": (1.0, 2.0),
    "checks": (2.5, 4.0),
    "autograd function": (6.0, 12.0),
    "engine and backward kernel": (45.0, 120.0),
}


def profile(device: str) -> str:
    """A table of layers, in microseconds."""
    x = torch.randn(8, 32, device=device)
    leaf, g = x.clone().requires_grad_(), torch.ones_like(x)
    direct = threshold.cpu if device == "cpu" else threshold.cuda

    def both(mapping: Callable[..., Any]) -> None:
        mapping(leaf).backward(g)
        leaf.grad = None

    steps: list[tuple[str, Callable[[], Any]]] = [
        ("allocation", lambda: torch.empty_like(x)),
        ("kernel and its entry", lambda: direct(x, 2.0, TSALLIS)),
        ("dispatch", lambda: threshold(x, 2.0, TSALLIS)),
        ("checks", lambda: pm.sparsemax(x)),
        ("autograd function", lambda: pm.sparsemax(leaf)),
        ("engine and backward kernel", lambda: both(pm.sparsemax)),
    ]
    lines = [f"{'layer':28} {'call':>8} {'layer':>8} {'budget':>8}   (microseconds, {device})"]
    before = 0.0
    for name, call in steps:
        took = _host_time(call)
        lines.append(f"{name:28} {took:8.1f} {took - before:8.1f} {BUDGETS[name][device != 'cpu']:8.1f}")
        before = took
    forward, whole = _host_time(lambda: torch.softmax(x, -1)), _host_time(lambda: both(lambda t: torch.softmax(t, -1)))
    lines.append(f"{'torch.softmax, forward':28} {forward:8.1f}")
    lines.append(f"{'torch.softmax, and backward':28} {whole:8.1f}")
    return "\n".join(lines)


def _host_time(call: Callable[[], Any], count: int = 500, rounds: int = 9) -> float:
    """Microseconds of a call, the best of some rounds of many."""
    for _ in range(20):
        call()
    best = float("inf")
    for _ in range(rounds):
        _wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - start)
    _wait()
    return best / count * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
