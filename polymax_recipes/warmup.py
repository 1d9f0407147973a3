"""Kernels compiled ahead of time: small problems of every kind, computed once with their gradients.

Numba and Triton compile a kernel at its first call, and keep it on disk for all later processes. Run this before a
first experiment, or while a container image is built, to avoid waiting later.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch
from torch import Tensor

import polymax as pm
from polymax import Counted

# computes a small problem, and returns the gradient of its scores
Problem = Callable[[torch.dtype, str], Tensor | None]


def _mapping(function: Callable[[Tensor], Tensor], n: int = 16) -> Problem:
    def run(dtype: torch.dtype, device: str) -> Tensor | None:
        x = torch.randn(2, n, dtype=dtype, device=device, requires_grad=True)
        function(x).square().sum().backward()
        return x.grad

    return run


def _structure(structure: pm.Structure, *shapes: tuple[int, ...]) -> Problem:
    def run(dtype: torch.dtype, device: str) -> Tensor | None:
        scores = [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes]
        structure.map(*scores)
        smoothings: list[pm.Smoothing] = [pm.SparseMap(structure)]
        if isinstance(structure, Counted):
            smoothings.insert(0, pm.Marginals(structure))
        for smooth in smoothings:
            smooth.max(*scores).sum().backward()
            mu = smooth(*scores)
            (mu if isinstance(mu, Tensor) else mu[0]).square().sum().backward()
        return scores[0].grad

    return run


def _attention(dtype: torch.dtype, device: str) -> Tensor | None:
    # the fused kernel runs for at least this number of keys
    q = torch.randn(1, 1, 1024, 16, dtype=dtype, device=device, requires_grad=True)
    pm.nn.scaled_dot_product_attention(q, q, q, mapping=pm.entmax).square().sum().backward()
    return q.grad


def _vocabulary(dtype: torch.dtype, device: str) -> Tensor | None:
    hidden = torch.randn(2, 8, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(64, 8, dtype=dtype, device=device, requires_grad=True)
    pm.linear_entmax_loss(hidden, weight, torch.tensor([3, 5], device=device)).backward()
    return hidden.grad


def _graph(dtype: torch.dtype, device: str) -> Tensor | None:
    graph = pm.FactorGraph(4, [pm.factors.xor([0, 1, 2]), pm.factors.budget([1, 2, 3], 1)])
    x = torch.randn(2, 4, dtype=dtype, device=device, requires_grad=True)
    pm.SparseMap(graph)(x).variables.square().sum().backward()
    return x.grad


# dtypes of scores for which kernels are compiled; half precision is computed in float32
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# problems to compile, by the name that the command prints
PROBLEMS: dict[str, Problem] = {
    "softmax": _mapping(pm.softmax),
    "sparsemax": _mapping(pm.sparsemax),
    "entmax 1.5": _mapping(pm.entmax),
    "entmax": _mapping(lambda x: pm.entmax(x, 1.3)),
    "normmax": _mapping(pm.normmax),
    "fusedmax": _mapping(pm.fusedmax),
    "oscarmax": _mapping(pm.oscarmax),
    "groupedmax": _mapping(lambda x: pm.groupedmax(x, [i // 2 for i in range(x.shape[-1])])),
    "csparsemax": _mapping(lambda x: pm.csparsemax(x, 0.5)),
    "chains": _structure(pm.Chain(), (2, 4, 3), (3, 3)),
    "alignments": _structure(pm.Alignment(), (2, 4, 3)),
    "span trees": _structure(pm.SpanTree(), (2, 4, 4)),
    "projective trees": _structure(pm.ProjectiveTree(), (2, 4, 4)),
    "spanning trees": _structure(pm.SpanningTree(), (2, 4, 4)),
    "assignments": _structure(pm.Assignment(), (2, 3, 3)),
    "gaps": _structure(pm.GappedAlignment(), (2, 4, 3), (1, 1), (1, 1)),
    "factor graphs": _graph,
    "attention": _attention,
    "vocabularies": _vocabulary,
}


def warm_up(
    names: list[str], dtype: torch.dtype = torch.float32, device: str = "cpu", jobs: int | None = None
) -> Iterator[tuple[str, float]]:
    """Compile the kernels of the named problems, several at once; yield each name and its seconds as it is done."""
    unknown = sorted(set(names) - set(PROBLEMS))
    if unknown:
        raise ValueError(f"names must be of {', '.join(PROBLEMS)}; got {unknown[0]!r}")
    jobs = jobs or os.cpu_count() or 1
    # a process for each: compilers hold a lock that threads of one process wait for
    with ProcessPoolExecutor(min(jobs, max(len(names), 1)), mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_timed, name, dtype, device): name for name in names}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _timed(name: str, dtype: torch.dtype, device: str) -> float:
    torch.set_num_threads(1)
    # compilers allocate much that lives long: looking through it for garbage takes a sixth of their time
    gc.freeze()
    gc.set_threshold(50_000, 5, 5)
    start = time.perf_counter()
    PROBLEMS[name](dtype, device)
    return time.perf_counter() - start
