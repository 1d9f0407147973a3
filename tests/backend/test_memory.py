"""Arrays of a call in one piece of memory, and the few classes that launch kernels."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import polymax as pm

memory = pytest.importorskip("polymax.backend.triton_memory", reason="there is no Triton")
ARRAYS = [
    memory.Array(torch.float32, (3, 5)),
    memory.Array(torch.int16, (0, 4)),
    memory.Array(torch.float64, ()),
    memory.Array(torch.int32, (200, 3)),
    memory.Array(torch.float64, (2, 0)),
]


@pytest.mark.parametrize("start", [0, 1024])
def test_arrays_lie_apart(start):
    arena = memory.Arena(ARRAYS, start)
    held = arena.memory(torch.device("cpu"))
    tensors = arena.tensors(held)
    assert [(t.dtype, tuple(t.shape)) for t in tensors] == [tuple(a) for a in ARRAYS]
    used = [t for t in tensors if t.numel()]
    for k, t in enumerate(used):
        t.fill_(k + 1)
    assert all(bool((t == k + 1).all()) for k, t in enumerate(used)), "no array is in another"
    at = arena.addresses(held)
    assert all(address == t.data_ptr() for address, t in zip(at, tensors, strict=True) if t.numel())
    assert all((address - held.data_ptr()) % memory.ALIGNED == 0 for address in at)
    assert all(one <= other for one, other in pairwise(at))
    assert at[0] == held.data_ptr() + start
    assert held.numel() == arena.end >= arena.starts[-1]


def test_new_arrays_share_one_piece():
    tensors = memory.new(ARRAYS, torch.device("cpu"))
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == 1


def test_launches_have_five_classes():
    """Entry, Launch and Bound launch; Array and Arena say where arrays are. Operators plan their calls with these."""
    files = sorted(Path(pm.__file__).parent.glob("backend/triton_*.py"))
    classes = {n.name for p in files for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.ClassDef)}
    assert classes == {"Entry", "Launch", "Bound", "Array", "Arena"}
