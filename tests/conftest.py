"""What all tests share: kernels that run without a GPU, outputs that show what was not written, a seed."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # read by triton when it is imported
    os.environ["TRITON_INTERPRET"] = "1"

# tensors here are small: threads would only wait for each other. test_surprises asks for more where it counts
torch.set_num_threads(1)
# the same for commands and examples that tests start: their threads would spin while others of this machine work
os.environ.setdefault("OMP_NUM_THREADS", "1")

# tables and oracles are plain modules beside the tests
sys.path.insert(0, str(Path(__file__).parent))

from interpreted import check_accesses  # noqa: E402


def pytest_collection_finish():
    """Leave twenty thousand collected tests out of every later collection of garbage, and collect rarely."""
    gc.collect()
    gc.freeze()
    # compilers and tracers allocate much that lives long: looking through it took a sixth of their time
    gc.set_threshold(50_000, 5, 5)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests that use a CUDA device: by a parameter that says so, or by the mark `device` in their file."""
    for item in items:
        if "cuda" in (p for p in getattr(getattr(item, "callspec", None), "params", {}).values() if isinstance(p, str)):
            item.add_marker("device")


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])


def pytest_runtest_call():
    check_accesses()


@pytest.fixture(autouse=True)
def seed():
    # torch.manual_seed writes down the stack for each kind of device that has not started: a millisecond for each test
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def one_thread():
    """Whatever an earlier test, or a library it called, has made of the number of threads."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def unwritten_is_nan(monkeypatch):
    """Memory that the library asks for comes filled with NaN, or an index out of range."""

    def filled(allocate):
        def call(*args, **kwargs):
            out = allocate(*args, **kwargs)
            if sys._getframe(1).f_globals.get("__name__", "").startswith(("polymax.", "polymax_recipes.")):
                out.fill_(torch.nan if out.is_floating_point() else torch.iinfo(out.dtype).max)
            return out

        return call

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))
