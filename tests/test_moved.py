"""What was saved by earlier versions loads: modules are found under the names they had."""

import pickle
from importlib import import_module

import pytest
import torch

import polymax as pm
from polymax._moved import NAMES


@pytest.mark.parametrize("old", sorted(NAMES))
def test_an_old_name_leads_to_the_module(old: str) -> None:
    new = import_module(NAMES[old])
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", "") == new.__name__]
    assert names or hasattr(new, "__path__")
    assert all(getattr(import_module(old), name) is getattr(new, name) for name in names)


def test_an_old_pickle_loads() -> None:
    smoothing = pm.SparseMap(pm.Chain(torch.tensor([2, 3])), pm.ActiveSet(max_iter=7), 0.5)
    now = pickle.dumps(smoothing, protocol=0)
    then = now.replace(b"polymax.smoothing.sparse_map", b"polymax.sparsemap").replace(b"solvers.rules", b"solvers.base")
    assert then != now
    loaded = pickle.loads(then)
    assert type(loaded) is pm.SparseMap
    assert loaded.solver.max_iter == 7
    assert loaded.structure.lengths.tolist() == [2, 3]
