"""Modules under the names they had in earlier versions: what was saved with those names loads, and old imports work.

A pickle names the module of each class. Modules that have moved are found here under their old names, with the
same classes; nothing is imported before an old name is asked for.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

NAMES = {
    "polymax.distribution": "polymax.distributions",
    "polymax.perturbed": "polymax.smoothing.perturbed",
    "polymax.sparsemap": "polymax.smoothing.sparse_map",
    "polymax.top_k": "polymax.smoothing.top_k",
    "polymax.kernels.graph": "polymax.hypergraphs.graph",
    "polymax.kernels.levels": "polymax.hypergraphs.levels",
    "polymax.solvers.base": "polymax.solvers.rules",
    "polymax.solvers.lockstep": "polymax.kernels.active_set.reference",
    "polymax.solvers.device": "polymax.kernels.active_set.cuda",
    "polymax.solvers.response": "polymax.kernels.response",
    "polymax.structures.entropy": "polymax.hypergraphs.entropy",
    "polymax.structures.faults": "polymax.structures.compact.faults",
    "polymax.structures.heads": "polymax.structures.compact.heads",
    "polymax.structures.level_passes": "polymax.hypergraphs.smoothed",
    "polymax.structures.passes": "polymax.hypergraphs.passes",
    "polymax.structures.temperature": "polymax.smoothing.temperature",
    "polymax.structures.tree_faults": "polymax.structures.compact.tree_faults",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module by its old name: an empty one, whose attributes are those of the module under its new name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name in NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        new = NAMES[module.__name__]
        module.__getattr__ = lambda name: getattr(import_module(new), name)  # type: ignore[method-assign]


def install() -> None:
    """Make the old names of modules importable.

    Ours is asked before the other finders, to which a folder that an upgrade has left behind would be a package.
    """
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
