"""What surrounds a call: torch's default device and dtype, inference mode, anomaly detection, modes that watch.

Results are the same in all of them, and what a call keeps for the next one does not depend on them.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cases import ROWS, every
from sets import TABLE
from tolerances import equal
from torch.utils.flop_counter import FlopCounterMode

import polymax as pm
from polymax.structures.base import tensors


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# tensors of a default device without values, which no result may come from
SURROUNDINGS = {
    "device": lambda: torch.device("meta"),
    "double": lambda: default_dtype(torch.float64),
    "half": lambda: default_dtype(torch.bfloat16),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "counter": lambda: FlopCounterMode(display=False),
}
surrounded = pytest.mark.parametrize("name", SURROUNDINGS)
# Lightning and others switch it on, and torch says so
quiet = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")


def everything(call, scores):
    """A result, with its gradient in the scores if it has one."""
    x = [t.clone().requires_grad_() for t in scores]
    out = tensors(call(*x))
    if not out[0].requires_grad:
        return out
    total = sum((y * torch.linspace(0, 1, y.numel(), dtype=y.dtype, device="cpu").reshape(y.shape)).sum() for y in out)
    return [*out, *torch.autograd.grad(total, x)]


def same(name, call, scores):
    expected = everything(call, scores)
    with SURROUNDINGS[name]():
        found = everything(call, scores)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        equal(a, b, f"the same with another {name}")


@quiet
@surrounded
@every(ROWS)
def test_mappings(case, name):
    for method in ("argmax", "max"):
        same(name, getattr(case.regularizer(), method), [torch.randn(3, 6)])


@quiet
@surrounded
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_sets(row, name):
    first, *others = row.events(row.shape)
    scores = [torch.randn(2, *first), *(torch.randn(event) for event in others)]
    for op in row.smoothings():
        same(name, op, scores)


LATER = """
import torch, polymax as pm
from sets import TABLE
from cases import ROWS
from polymax.structures.base import tensors

calls = [(row.name, op, row.events(row.shape)) for row in TABLE for op in (row.smoothing(), row.smoothing().max)]
calls += [(row.name, row.regularizer().argmax, [(6,)]) for row in ROWS]
for name, op, (first, *others) in calls:
    scores = [torch.randn(2, *first), *(torch.randn(event) for event in others)]
    with torch.inference_mode():
        op(*scores)
    x = [t.requires_grad_() for t in scores]
    try:
        sum(y.sum() for y in tensors(op(*x))).backward()
    except RuntimeError as error:
        print(name, error)
print("done")
"""


def test_what_inference_has_kept_serves_training():
    """A fresh process, which has kept nothing yet, evaluates first."""
    here = Path(pm.__file__).parents[1]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here / "tests")])}
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, env=place, timeout=240)
    assert done.stdout == "done\n", done.stdout + done.stderr
