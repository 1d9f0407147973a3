"""Weights are optimal an ulp from a tie, and at the largest and smallest scores that a float can be."""

import os
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # read by triton when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from hostile_mappings import KINDS, MAPPINGS, worst
from tolerances import close

import polymax as pm
from polymax.kernels.capped import reference as capped_reference
from polymax.kernels.oscarmax import reference as oscar_reference
from polymax.kernels.tv_prox import reference as tv_reference

# in units of rounding; the worst of some hundred thousand rows was 3
LIMIT = 32


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MAPPINGS)
def test_weights_are_optimal(name, kind, dtype):
    for seed in range(4):
        miss, row = worst(name, kind, dtype, seed, rows=150)
        assert miss < LIMIT, f"{name} misses the optimum by {miss:.3g} units of rounding at {row.tolist()}"


def test_an_ulp_from_a_tie():
    x = torch.tensor([-5.000000000000002, -2.000000000000001, 0.0], dtype=torch.float64)
    close(pm.fusedmax(x, strength=2.0), torch.tensor([0.0, 0.5, 0.5]), "fusedmax is continuous")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("gamma", [0.25, 1.0, 4.0])
def test_largest_scores(gamma, dtype):
    m = torch.finfo(dtype).max
    x = torch.tensor([[m, -m, 0.0], [m, m, -m], [-m, -m, -m], [m, m, m]], dtype=dtype, requires_grad=True)
    mean = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3, [1 / 3] * 3], dtype=dtype)
    for mapping in (pm.softmax, pm.sparsemax, pm.entmax, pm.normmax, pm.sq_pnorm_max, pm.fusedmax, pm.oscarmax):
        y = mapping(x, gamma=gamma)
        close(y, mean, f"{mapping.__name__} of the largest scores")
        (slope,) = torch.autograd.grad(y.square().sum(), x)
        assert torch.isfinite(slope).all()
    for omega in (pm.Shannon(gamma), pm.Gini(gamma), pm.Fused(0.1, gamma), pm.Oscar(0.01, gamma)):
        close(omega.max(x), torch.tensor([m, m, -m, m], dtype=dtype), "their smoothed max")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_references_of_hostile_rows(dtype):
    """The specification says the same as the kernels, in any size."""
    rng = np.random.default_rng(0)
    for make in KINDS.values():
        x = torch.from_numpy(make(rng, 200, 6, np.dtype(str(dtype)[6:]).type))
        s = torch.from_numpy(rng.choice([0, 0.5, 1], 200)).to(dtype)
        share = torch.from_numpy(rng.integers(0, 7, 200)).to(dtype)
        z, expected = (f(x, s, True) for f in (torch.ops.polymax.tv_prox, tv_reference.tv_prox))
        close(pm.sparsemax(z / 8), pm.sparsemax(expected / 8), "tv_prox == reference")
        y, expected = (f(x / 8, s / 32)[0] for f in (torch.ops.polymax.oscarmax, oscar_reference.oscarmax))
        close(y, expected, "oscarmax == reference")
        bounds = torch.zeros_like(x), torch.ones_like(x)
        close(
            torch.ops.polymax.capped(x, *bounds, share, False),
            capped_reference.capped(x, *bounds, share, False),
            "capped == reference",
        )


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.device
def test_triton_on_hostile_rows(kind, dtype):
    rng = np.random.default_rng(1)
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.from_numpy(KINDS[kind](rng, 8, 5, np.dtype(str(dtype)[6:]).type))
    s = torch.from_numpy(rng.choice([0, 0.5, 1, 2], 8)).to(dtype)
    k = torch.from_numpy(rng.integers(0, 6, 8)).to(dtype)
    alphas = torch.from_numpy(rng.choice([0.25, 1, 1.3, 2, 3], 8))

    def triton(name, *args):
        function = getattr(import_module(f"polymax.kernels.{name}.cuda"), name)
        out = function(*(a.to(gpu) if isinstance(a, torch.Tensor) else a for a in args))
        return (out[0] if isinstance(out, tuple) else out).cpu()

    close(triton("fusedmax", x, s), pm.fusedmax(x, s[:, None]), "fusedmax on the device")
    close(triton("oscarmax", x, s / 4), pm.oscarmax(x, s[:, None] / 4), "oscarmax on the device")
    close(triton("threshold", x, 0.0, 0, alphas), pm.entmax(x, alphas[:, None]), "entmax on the device")
    budget = triton("capped", x, torch.zeros_like(x), torch.ones_like(x), k, False)
    close(budget, pm.budgetmax(x, k[:, None]), "budgetmax on the device")
    half = torch.full_like(x, 0.5)
    close(triton("capped", x, 0 * half, half, 0 * k + 1, True), pm.csoftmax(x, 0.5), "csoftmax on the device")
