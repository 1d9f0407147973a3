"""What nobody asks about until it goes wrong: mutation, repetition, threads, forks, pickles, imports."""

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from cases import ROWS, every
from tolerances import close, equal
from torch.utils.data import DataLoader, Dataset

import polymax as pm
from polymax.backend import cpu_rows, numba_team
from polymax.backend.numba_compile import KNOWN
from polymax.backend.numba_math import kernel, rows_at


@every(ROWS)
def test_inputs_are_not_mutated(case, device):
    x = torch.randn(3, 6, dtype=torch.float64, device=device)
    x[1, 2] = -torch.inf
    mask = torch.tensor([True, True, False, True, True, True], device=device)
    direction = torch.randn(3, 6, dtype=torch.float64, device=device)
    before = [t.clone() for t in (x, mask, direction)]
    scores = x.detach().requires_grad_()
    y = case.regularizer().argmax(scores, mask=mask)
    kept = y.detach().clone()
    torch.autograd.grad(y, scores, direction)
    value = case.regularizer().max(scores, mask=mask)
    torch.autograd.grad(value.sum(), scores)
    case.regularizer().omega(kept)
    for now, then in zip((x, mask, direction), before, strict=True):
        assert torch.equal(now, then), "inputs are not mutated"
    equal(y.detach(), kept, "a result does not change afterwards")


@every(ROWS)
def test_gradients_are_not_asked_for(case, device):
    x = torch.randn(3, 6, device=device)
    for method in ("argmax", "max"):
        assert not getattr(case.regularizer(), method)(x).requires_grad, "results need gradients only if inputs do"
        scores = x.clone().requires_grad_()
        assert getattr(case.regularizer(), method)(scores).requires_grad
        with torch.no_grad():
            assert not getattr(case.regularizer(), method)(scores).requires_grad
        with torch.inference_mode():
            equal(
                getattr(case.regularizer(), method)(x),
                getattr(case.regularizer(), method)(x),
                "inference mode",
            )


@every(ROWS)
def test_result_is_new_memory(case, device):
    x = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]], device=device)
    y = case.regularizer().argmax(x)
    assert y.data_ptr() != x.data_ptr(), "a result shares no memory with its input"


@every(ROWS)
def test_repeated_calls_are_bit_equal(case, device):
    x = torch.randn(40, 9, device=device, requires_grad=True)
    runs = []
    for _ in range(3):
        y = case.regularizer().argmax(x)
        (slope,) = torch.autograd.grad(y.square().sum(), x)
        runs.append((y.detach(), slope, case.regularizer().max(x).detach()))
    for run in runs[1:]:
        for first, later in zip(runs[0], run, strict=True):
            equal(later, first, "the same call gives the same bits")


@pytest.fixture
def thread_count(monkeypatch):
    """Sets the number of threads, among which even few rows are divided."""
    monkeypatch.setattr(cpu_rows, "GRAIN", 4096)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every([row for row in ROWS if row.compiles])
def test_number_of_threads(case, thread_count):
    x = torch.randn(300, 200) / 3
    if case.parameters.get("lower"):
        x = x[:, :9].repeat(20, 1)
    results = []
    for threads in (1, 2, 3):
        thread_count(threads)
        scores = x.clone().requires_grad_()
        y = case.regularizer().argmax(scores)
        results.append((y.detach(), torch.autograd.grad(y, scores, x)[0]))
    for y, slope in results[1:]:
        equal(y, results[0][0], "the number of threads does not matter")
        equal(slope, results[0][1], "the number of threads does not matter to gradients")


def test_python_threads(thread_count):
    thread_count(2)
    rows = [torch.randn(1500, 100, generator=torch.Generator().manual_seed(i)) for i in range(8)]

    def work(x):
        scores = x.clone().requires_grad_()
        y = pm.entmax(scores, 1.3) + pm.sparsemax(scores) + pm.fusedmax(scores) + pm.csparsemax(scores, 0.3)
        return y.detach(), torch.autograd.grad(y, scores, x)[0]

    alone = [work(x) for x in rows]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, rows * 2))
    for (y, slope), (expected, expected_slope) in zip(together, alone * 2, strict=True):
        equal(y, expected, "Python threads do not disturb each other")
        equal(slope, expected_slope, "Python threads do not disturb each other")


def test_errors_leave_the_threads(thread_count):
    """What goes wrong in one of them is raised where they were asked for, and the next call works."""
    thread_count(2)

    def kernel(start, stop, rows):
        if start > 0:
            raise ValueError(f"row {start}")
        rows[start:stop] += 1

    with pytest.raises(ValueError, match="row"):
        cpu_rows.run(kernel, 40, 4096, torch.zeros(40))
    x = torch.randn(300, 200)
    close(pm.sparsemax(x).sum(-1), torch.ones(300), "rows sum to 1")


def test_threads_call_kernels_by_address(thread_count):
    """A kernel of numbers is divided among torch's threads without the interpreter, and one that fails is run by it."""
    thread_count(2)

    @kernel
    def fill(start, stop, at, most, real, nothing):
        if stop > most:
            raise ValueError("too far")
        out = rows_at(at, 1, stop, real)[0]
        for i in range(start, stop):
            out[i] = i + (1 if nothing is None else 0)

    out = torch.zeros(4000)
    args = out.data_ptr(), 4000, np.float32(0), None
    assert numba_team.task(fill, args) is not None or not numba.__version__.startswith(KNOWN)
    cpu_rows.run(fill, 4000, 4096, *args)
    equal(out, torch.arange(1, 4001).float(), "every piece is done once")
    with pytest.raises(ValueError, match="too far"):
        cpu_rows.run(fill, 4000, 4096, out.data_ptr(), 3000, np.float32(0), None)
    assert numba_team.task(fill, (np.zeros(3), 4000, np.float32(0), None)) is None, "an array is no number"


class Rows(Dataset):
    """Maps inside the dataset, and hence inside the workers."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = torch.randn(1500, 100, generator=torch.Generator().manual_seed(index))
        return pm.sparsemax(x) + pm.fusedmax(x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*DataLoader will create:UserWarning")
# Python 3.12 and later warn that a process with threads forks: that it works is the point
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_workers(thread_count):
    thread_count(2)
    expected = [Rows()[index] for index in range(6)]
    loader = DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    for y, truth in zip(loader, expected, strict=True):
        equal(y, truth, "a forked worker works")
    again = Rows()[0]
    equal(again, expected[0], "the parent works after its workers")


@every(ROWS)
def test_pickle_and_deepcopy(case):
    omega = case.regularizer()
    x = torch.randn(2, 6)
    for twin in (pickle.loads(pickle.dumps(omega)), copy.deepcopy(omega), copy.copy(omega)):
        assert twin == omega, "a copy equals its original"
        equal(twin.argmax(x), omega.argmax(x), "a copy does what its original does")


@every(ROWS)
def test_immutable(case):
    omega = case.regularizer()
    assert repr(omega) == repr(case.regularizer())
    assert hash(omega) == hash(case.regularizer()), "equal regularizers hash equally"
    for name in (*case.parameters, "gamma"):
        with pytest.raises(AttributeError):
            setattr(omega, name, 2.0)


def test_tensor_parameters_survive_deepcopy():
    alpha = torch.nn.Parameter(torch.tensor(1.5))
    twin = copy.deepcopy(pm.Tsallis(alpha))
    assert twin.alpha is not alpha
    assert twin.alpha.requires_grad


def test_import_is_light():
    script = (
        "import sys, polymax\n"
        "print([m for m in ('numba', 'triton', 'matplotlib', 'scipy', 'rich', 'typer') if m in sys.modules])"
    )
    place = {**os.environ, "PYTHONPATH": str(Path(pm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=place, check=True)
    assert done.stdout.strip() == "[]", "importing polymax imports neither compilers nor pictures"


def test_unknown_names():
    with pytest.raises(AttributeError, match="no_such_thing"):
        pm.no_such_thing  # noqa: B018


def test_public_names():
    """What `import polymax` names is what it lists; its files are no names, and modules that need extras come late."""
    script = (
        "import types, polymax as pm\n"
        "own = {name: value for name, value in vars(pm).items() if not name.startswith('_')}\n"
        "print(sorted(own.keys() - set(pm.__all__)))\n"
        "print(sorted(set(pm.__all__) - own.keys()))\n"
        "print([name for name in pm.__all__ if isinstance(own[name], types.ModuleType)])\n"
        "print(set(dir(pm)) >= {*pm.__all__, 'plot', 'recipes', 'testing', '__version__'})\n"
        "print([getattr(pm, name).__name__ for name in ('recipes', 'testing', 'structures')])\n"
        "print([name for name in ('Any', 'top_k', 'sparsemap', 'perturbed') if hasattr(pm, name)])\n"
        "import polymax.smoothing.top_k as module; print(module.__name__)\n"
    )
    place = {**os.environ, "PYTHONPATH": str(Path(pm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=place, check=True)
    assert done.stdout.splitlines() == [
        "['backend', 'distributions', 'estimators', 'graphs', 'hypergraphs', 'kernels', 'losses', 'regularizers',"
        " 'sharding', 'smoothing', 'solvers', 'structures']",
        "[]",
        "['distributed', 'factors', 'nn']",
        "True",
        "['polymax_recipes', 'polymax.testing', 'polymax.structures']",
        "[]",
        "polymax.smoothing.top_k",
    ]


def test_star_import():
    names = {}
    exec("from polymax import *", names)
    assert names.keys() - {"__builtins__"} == set(pm.__all__)
