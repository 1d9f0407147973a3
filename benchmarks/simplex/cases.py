"""Mappings on Gaussian scores, beside torch.softmax."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

import polymax as pm
from benchmarks.baselines import ours
from benchmarks.record import Bar
from benchmarks.simplex import oracles, peers
from benchmarks.workload import BOTH, FORWARD, Bars, Case, FunctionCase, Problems, Shape, Size

MappingCase = partial(FunctionCase, base=peers.SOFTMAX)

CPU_SHAPES: tuple[Shape, ...] = ((1024, 64), (512, 512), (4096, 1024), (64, 32000))
CUDA_SHAPES: tuple[Shape, ...] = ((65536, 64), (65536, 1024), (4096, 32768))
CUDA_DTYPES = (torch.float32, torch.bfloat16)


def simplex_sizes(cuda_shapes: tuple[Shape, ...] = CUDA_SHAPES) -> Mapping[str, tuple[Size, ...]]:
    return {
        "cpu": tuple(map(Size, CPU_SHAPES)),
        "cuda": tuple(Size(shape, dtype) for shape in cuda_shapes for dtype in CUDA_DTYPES),
    }


def ratios(cpu: float, cuda: float, cuda_forward: float | None = None) -> Bars:
    """Bars on the ratio to torch.softmax: forward and backward, and forward alone."""
    bars = {("cpu", BOTH): Bar(cpu), ("cuda", BOTH): Bar(cuda)}
    return bars if cuda_forward is None else bars | {("cuda", FORWARD): Bar(cuda_forward)}


def csoftmax(x: Tensor) -> Tensor:
    # twice the uniform weight holds back an eighth of Gaussian scores, whatever the length of the row
    return pm.csoftmax(x, upper=2.0 / x.shape[-1])


SHORT = Problems(simplex_sizes(CUDA_SHAPES[:2]))
LONG = Problems(simplex_sizes())
CHEAP = ratios(cpu=2.5, cuda=1.1, cuda_forward=1.5)

SIMPLEX: list[Case] = [
    MappingCase("softmax", ours(pm.softmax, oracles.softmax), LONG),
    MappingCase("sparsemax", ours(pm.sparsemax, oracles.sparsemax), LONG, peers.SPARSEMAX, CHEAP),
    MappingCase("entmax 1.5", ours(pm.entmax, oracles.entmax(1.5)), LONG, peers.ENTMAX15, CHEAP),
    *(
        MappingCase(
            f"entmax {alpha}",
            ours(partial(pm.entmax, alpha=alpha), oracles.entmax(alpha)),
            LONG,
            peers.entmax(alpha),
            bars,
        )
        for alpha, bars in {
            1.33: CHEAP,
            1.1: {("cuda", BOTH): Bar(1.1), ("cuda", FORWARD): Bar(1.5)},
        }.items()
    ),
    MappingCase(
        "sq_pnorm_max",
        ours(pm.sq_pnorm_max, oracles.sq_pnorm_max(1.5)),
        LONG,
        bars=ratios(cpu=8.0, cuda=1.1, cuda_forward=1.5),
    ),
    MappingCase("normmax", ours(pm.normmax, oracles.normmax(2.0)), LONG, peers.NORMMAX),
    MappingCase("fusedmax", ours(pm.fusedmax, oracles.fusedmax(0.1)), SHORT, bars=ratios(10.0, 3.0)),
    MappingCase("oscarmax", ours(pm.oscarmax, oracles.oscarmax(0.01)), SHORT, bars=ratios(10.0, 6.0)),
    MappingCase(
        "csparsemax", ours(partial(pm.csparsemax, upper=0.15), oracles.csparsemax(0.15)), LONG, bars=ratios(10.0, 4.0)
    ),
    MappingCase("csoftmax", ours(csoftmax, oracles.csoftmax(2.0)), LONG, bars=ratios(20.0, 4.0)),
]
