"""SparseMAP on a GPU by addresses in one piece of memory is SparseMAP by tensors: the same bits, and derivatives."""

import ctypes

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.kernels.response import cuda_kept
from polymax.solvers import mixture
from polymax.solvers.kept import KeptSolution
from polymax.solvers.loops import cuda as gpu
from polymax.solvers.loops import cuda_known
from tests.solvers.test_sparsemap_device import CASES, DEVICE, moved, scores_of

KNOWN = ["trees", "trees of any roots", "assignments", "more rows", "chains", "chains of many steps"]
KNOWN += ["chains of many states", "chains with a budget", "chains of few runs"]


class Interpreted:
    """A kernel of Triton's interpreter, which takes tensors alone: one number long, at the addresses it is given."""

    def __init__(self, launch, grid, args):
        self.launch, self.grid, self.like = launch, grid, args

    def __call__(self, *args):
        self.launch.kernel[self.grid](*map(self.at, self.like, args), **self.launch.options)

    def at(self, like, address):
        if isinstance(like, tuple):
            return tuple(map(self.at, like, address))
        if not isinstance(like, torch.Tensor):
            return address
        if not address:
            return torch.empty(0, dtype=like.dtype)
        memory = (ctypes.c_byte * like.dtype.itemsize).from_address(address)
        return torch.frombuffer(memory, dtype=like.dtype)


@pytest.fixture(autouse=True)
def by_addresses(monkeypatch):
    """Launches by addresses also in the interpreter, and of what is met here for the first time."""
    monkeypatch.setattr(gpu, "_CALLS", gpu.Remembered())
    for name in ("_MEANS", "_CALLS"):
        monkeypatch.setattr(cuda_kept, name, gpu.Remembered())
    if DEVICE == "cpu":
        for module in (gpu, cuda_kept):
            monkeypatch.setattr(module, "possible", lambda: True)
        for module in (cuda_known, cuda_kept):
            monkeypatch.setattr(module, "Ready", Interpreted)


def solved(name, dtype=torch.float64, whole=False, known=True):
    structure = moved(CASES[name][0])
    scores = tuple(x.to(DEVICE, dtype).requires_grad_(whole) for x in scores_of(name))
    with torch.no_grad():
        search = structure.search(*scores)
        if known:
            found = gpu.solve(pm.ActiveSet(), structure, scores, search, None, whole, True)
        else:
            found = gpu._solve(pm.ActiveSet(), structure, scores, search, None, whole, True, False)
    assert found[1] is None, "all have converged"
    return structure, scores, found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KNOWN)
def test_same_as_by_tensors(name, dtype):
    _, _, expected = solved(name, dtype, known=False)
    for _ in range(2):
        _, _, found = solved(name, dtype)
        assert type(found) is KeptSolution
        for field in ("probs", "overlaps", "value", "iterations", "gap"):
            equal(getattr(found, field), getattr(expected, field), f"{field} of a known call")
        equal(found.found.places, expected.found.places, "lists of a known call")
        assert found.found.events == expected.found.events


@pytest.mark.parametrize("small", [1 << 16, 0], ids=["with the solution", "for themselves"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["trees", "more rows", "chains", "chains of many steps"])
def test_means_and_gradients(name, dtype, small, monkeypatch):
    monkeypatch.setattr(cuda_known, "_SMALL", small)
    structure, scores, plain = solved(name, dtype, whole=True, known=False)
    _, again, kept = solved(name, dtype, whole=True)
    expected, found = (mixture.mean(structure, s, x) for s, x in ((plain, scores), (kept, again)))
    once_more = mixture.mean(structure, kept, again)
    for one, two, other in zip(found, once_more, expected, strict=True):
        equal(one, other, "mu")
        equal(two, other, "mu, asked for again")
        assert one.data_ptr() != two.data_ptr(), "in a tensor of its own"
    cotangents = [torch.linspace(-1, 1, m.numel(), dtype=dtype, device=DEVICE).reshape(m.shape) for m in found]
    for used in (slice(0, 1), slice(0, 2), slice(1, 2)):
        if not found[used]:
            continue
        slopes = [
            torch.autograd.grad(mu[used], given, cotangents[used], retain_graph=True)
            for mu, given in ((found, again), (expected, scores))
        ]
        for one, other in zip(*slopes, strict=True):
            assert one.shape == other.shape
            # what is shared is added up before it is rounded
            close(one, other, "gradients")


def test_gradients_of_gradients():
    structure, scores, plain = solved("chains", whole=True, known=False)
    _, again, kept = solved("chains", whole=True)
    seconds = []
    for solution, given in ((plain, scores), (kept, again)):
        (mu, _) = mixture.mean(structure, solution, given)
        slopes = torch.autograd.grad(mu.square().sum(), given, create_graph=True)
        seconds.append(torch.autograd.grad(sum(s.square().sum() for s in slopes), given))
    for one, other in zip(*seconds, strict=True):
        close(one, other, "second derivatives")


def test_tensors_that_are_one_at_first():
    """Rows and columns of a square are the same lengths, and steps may be part of the scores: not in the next call."""
    (scores,) = (x[:, :3, :3].repeat(2, 1, 1).contiguous().to(DEVICE) for x in scores_of("assignments"))
    lengths = tuple(torch.tensor(n, device=DEVICE) for n in ([3, 2], [2, 3]))
    unary = scores_of("chains")[0].to(DEVICE)
    steps = unary.flatten()[:9].reshape(3, 3)
    calls = [(pm.Assignment(), (scores,)), (pm.Assignment(lengths=lengths), (scores,))]
    calls += [(pm.Chain(), (unary, steps)), (pm.Chain(), (unary, -steps))]
    for structure, given in calls:
        args = pm.ActiveSet(), structure, given, structure.search(*given), None, False, True
        found, _ = gpu.solve(*args)
        expected, _ = gpu._solve(*args, False)
        equal(found.value, expected.value, "the value of this call")
        equal(found.probs, expected.probs, "its weights")


def test_large_scores_are_left_to_others():
    scores = (torch.full((1, 3, 3), 1e5, dtype=torch.float64, device=DEVICE),)
    structure = pm.Assignment()
    assert gpu.solve(pm.ActiveSet(), structure, scores, structure.search(*scores), None, False, True) is None


def test_too_few_places(monkeypatch):
    monkeypatch.setattr(gpu, "_ROOM", 4)
    monkeypatch.setattr(gpu, "_LIKELY", 4)
    structure = pm.Assignment()
    scores = (0.3 * scores_of("assignments")[0].to(DEVICE),)
    search = structure.search(*scores)
    for _ in range(2):
        found, converged = gpu.solve(pm.ActiveSet(), structure, scores, search, None, False, True)
        assert converged is None
        assert found.probs.shape[-1] > 4
    ((call,),) = gpu._CALLS.known.values()
    assert not call.suffices, "the next call has places from the start"


def test_replaced_tensors_are_their_own():
    from dataclasses import replace

    structure, scores, found = solved("assignments")
    other = replace(found, value=found.value + 1)
    assert other.memory is None
    for one, two in zip(mixture.mean(structure, other, scores), mixture.mean(structure, found, scores), strict=True):
        equal(one, two, "mu of both")
