"""How many functions and files of ours a call enters: short routes, each check once, counted by sys.setprofile."""

import re
import sys
from pathlib import Path

import pytest
import torch

import polymax as pm
from polymax.kernels.assignment import assignment
from polymax.structures.base import tensors

UNARY, TRANSITION = torch.randn(4, 6, 3), torch.randn(3, 3)

# the call, and the most functions that it may enter
ROUTES = {
    "Marginals(Chain).max": (pm.Marginals(pm.Chain()).max, (UNARY, TRANSITION), 16),
    "Marginals(Chain)": (pm.Marginals(pm.Chain()), (UNARY, TRANSITION), 20),
}
# the scores, the call, and the most files that it may enter with its gradient
WALKS = {
    "sparsemax": ((torch.randn(4, 10),), pm.sparsemax, 8),
    "Marginals(Chain)": ((UNARY, TRANSITION), pm.Marginals(pm.Chain()), 13),
    "SparseMap(SpanningTree)": ((torch.randn(8, 6, 6),), pm.SparseMap(pm.SpanningTree()), 18),
}


def functions_entered(call):
    """The names of the library's functions that a call enters, in their order."""
    # the first calls import, compile and fill caches
    for _ in range(2):
        call()
    entered = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and "polymax" in code.co_filename.split("/") and "tests" not in code.co_filename.split("/"):
            entered.append(f"{code.co_filename.rpartition('polymax/')[2]}:{code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("derived", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("name", ROUTES)
def test_routes_are_short(name, derived):
    op, scores, most = ROUTES[name]
    inputs = tuple(x.clone().requires_grad_(derived) for x in scores)
    entered = functions_entered(lambda: op(*inputs))
    assert 0 < len(entered) <= most, f"{name} enters {len(entered)} functions, not at most {most}: {entered}"


@pytest.mark.parametrize("name", WALKS)
def test_walks_are_short(name):
    scores, op, most = WALKS[name]
    inputs = tuple(x.clone().requires_grad_() for x in scores)
    entered = functions_entered(lambda: tensors(op(*inputs))[0].square().sum().backward())
    files = {place.partition(":")[0] for place in entered}
    assert 4 < len(files) <= most, f"{name} enters {len(files)} files, not at most {most}: {sorted(files)}"


def test_no_room_asks_for_the_class_of_a_set():
    general = {pm.Structure, pm.Counted, pm.Sampled, pm.DynamicProgram}
    sets = [name for name in pm.__all__ if isinstance(getattr(pm, name), type)]
    sets = [name for name in sets if issubclass(getattr(pm, name), pm.Structure) and getattr(pm, name) not in general]
    asked = re.compile(rf"(isinstance\([^)]*|\bcase )\b({'|'.join(sets)})\b")
    root = Path(pm.__file__).parent
    # modules of nn whose subject is a set, such as attention by trees, may ask; pictures are of a set each
    rooms = [folder for folder in root.iterdir() if folder.name not in ("structures", "nn", "plot")]
    files = [path for room in rooms for path in ([room] if room.suffix == ".py" else room.rglob("*.py"))]
    assert len(sets) > 20
    assert len(files) > 100
    assert not [f"{path.relative_to(root)}: {found[0]}" for path in files for found in asked.finditer(path.read_text())]


class Elsewhere(torch.Tensor):
    """A tensor whose numbers are not in its own memory, as those of a DTensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args = tuple(a.inner if isinstance(a, cls) else a for a in args)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_memory_of_other_classes_of_tensors_is_not_read(place):
    """In whatever place such a tensor stands, torch is asked, and not a kernel: one crashed on a DTensor's lengths."""
    scores = torch.randn(3, 4, 5), torch.tensor([4, 2, 3]), torch.tensor([5, 3, 4])
    given = list(scores)
    given[place] = Elsewhere(given[place])
    for found, expected in zip(assignment(*given), assignment(*scores), strict=True):
        assert torch.equal(found, expected)
