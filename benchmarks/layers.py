"""What each layer of a small call costs, from the kernel outwards: host time of a mapping, a chain and SparseMAP.

    python -m benchmarks layers [--device cuda]

Each line is a whole call that enters one layer more than the line before it, and the difference is what that layer
costs. On CUDA the time is that of the host, which launches and does not wait, but where a call reads a number.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import polymax as pm
from polymax.kernels.chain import chain_inside
from polymax.kernels.threshold import TSALLIS, threshold
from polymax.solvers.loops import solve

Call = Callable[[], Any]


class Layer(NamedTuple):
    """A call that enters one layer more than the one before, and the microseconds that the layer may cost.

    The budget has two numbers: on the CPU, and on the host of a GPU.
    """

    name: str
    call: Call
    budget: tuple[float, float]


def profile(device: str) -> str:
    """Tables of layers, in microseconds."""
    x, transition = torch.randn(8, 32, device=device), torch.randn(5, 5, device=device)
    unary = torch.randn(8, 10, 5, device=device)
    tables = {
        "sparsemax (8, 32)": _mapping(x),
        "log-partition of a chain (8, 10, 5)": _chain(unary, transition),
        "SparseMAP of a chain (8, 10, 5)": _sparse_chain(unary, transition),
        "torch.softmax (8, 32)": [
            Layer("forward", lambda: torch.softmax(x, -1), (0.0, 0.0)),
            Layer("engine and backward kernel", _both(lambda t: torch.softmax(t, -1), x), (0.0, 0.0)),
        ],
    }
    lines = []
    for title, layers in tables.items():
        lines.append(f"{title:36} {'call':>8} {'layer':>8} {'budget':>8}   (microseconds, {device})")
        before = 0.0
        for name, call, budgets in layers:
            took, budget = _host_time(call), budgets[device != "cpu"]
            lines.append(f"  {name:34} {took:8.1f} {took - before:8.1f} {f'{budget:8.1f}' if budget else ''}".rstrip())
            before = took
    return "\n".join(lines)


def _mapping(x: Tensor) -> list[Layer]:
    leaf = x.clone().requires_grad_()
    direct = threshold.cpu if x.is_cpu else threshold.cuda
    return [
        Layer("allocation", lambda: torch.empty_like(x), (1.0, 4.0)),
        Layer("kernel and its entry", lambda: direct(x, 2.0, TSALLIS), (2.5, 12.0)),
        Layer("dispatch", lambda: threshold(x, 2.0, TSALLIS), (1.0, 2.0)),
        Layer("checks", lambda: pm.sparsemax(x), (2.5, 4.0)),
        Layer("autograd function", lambda: pm.sparsemax(leaf), (6.0, 12.0)),
        Layer("engine and backward kernel", _both(pm.sparsemax, x), (45.0, 120.0)),
    ]


def _chain(unary: Tensor, transition: Tensor) -> list[Layer]:
    leaves = tuple(x.clone().requires_grad_() for x in (unary, transition))
    matrices, lengths = transition.view(1, 1, 5, 5), torch.full((8,), 10, device=unary.device)
    direct = chain_inside.cpu if unary.is_cpu else chain_inside.cuda

    def value(*scores: Tensor) -> Tensor:
        return pm.Marginals(pm.Chain()).max(*scores)

    return [
        Layer("allocations", lambda: (unary.new_empty(8), unary.new_empty(8, 10, 2, 5)), (2.0, 8.0)),
        Layer("kernel and its entry", lambda: direct(unary, matrices, lengths, 1.0), (10.0, 16.0)),
        Layer("dispatch", lambda: chain_inside(unary, matrices, lengths, 1.0), (1.5, 3.0)),
        Layer("objects, checks and lengths", lambda: value(unary, transition), (8.0, 16.0)),
        Layer("autograd function", lambda: value(*leaves), (6.0, 12.0)),
        Layer("engine and backward kernel", _both(value, unary, transition), (45.0, 200.0)),
    ]


def _sparse_chain(unary: Tensor, transition: Tensor) -> list[Layer]:
    leaves = tuple(x.clone().requires_grad_() for x in (unary, transition))
    structure, solver = pm.Chain(), pm.ActiveSet()

    def mean(*scores: Tensor) -> Tensor:
        return pm.SparseMap(pm.Chain())(*scores).unary

    return [
        Layer("search", lambda: structure.search(unary, transition), (5.0, 12.0)),
        Layer(
            "loop and its host", lambda: solve(solver, structure, (unary, transition), None, False, True), (70.0, 400.0)
        ),
        Layer("solver and mean", lambda: mean(unary, transition), (15.0, 80.0)),
        Layer("face and autograd function", lambda: mean(*leaves), (25.0, 120.0)),
        Layer("engine and response", _both(mean, unary, transition), (70.0, 250.0)),
    ]


def _both(function: Callable[..., Tensor], *scores: Tensor) -> Call:
    """A call with its gradient."""
    leaves = tuple(x.clone().requires_grad_() for x in scores)
    g = torch.ones_like(function(*scores))

    def call() -> None:
        torch.autograd.grad(function(*leaves), leaves, g)

    return call


def _host_time(call: Call, count: int = 30, rounds: int = 100) -> float:
    """Microseconds of a call, the best of some rounds of a few, which no queue of launches is too short for."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - start)
        _wait()
    return best / count * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
