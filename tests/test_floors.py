"""The law of the house: which room may import which, and which names stay inside of a room."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]

# floors from the ground up; rooms of one floor may use each other
FLOORS = (
    ("backend",),
    ("graphs",),
    ("kernels",),
    ("sharding",),
    ("_check", "_parts", "_ragged", "distinct", "noise"),
    ("regularizers",),
    ("hypergraphs",),
    ("distributions",),
    ("structures",),
    ("solvers",),
    ("factors", "smoothing"),
    ("estimators", "losses"),
    (
        "bands",
        "edits",
        "elastic",
        "likelihoods",
        "mappings",
        "matching",
        "selection",
        "sequences",
        "speech",
        "transduction",
        "transduction_durations",
        "transduction_joint",
        "vocabulary",
        "warping",
        "warping_pairs",
    ),
    ("nn",),
    ("distributed", "integrations", "plot", "testing"),
    ("__init__", "__main__"),
)
FLOOR_OF = {room: k for k, rooms in enumerate(FLOORS) for room in rooms}
# what torch, Triton, Numba and Python do not promise to keep
INSIDES = (
    "torch._",
    "torch.utils._",
    "triton.compiler",
    "triton.runtime",
    "triton.backends",
    "numba.core",
    "ctypes",
    "_ctypes",
)
KINDS = ast.Import, ast.ImportFrom, ast.Attribute
LEAVES = ("cpu", "cuda", "numba_", "triton_")


@cache
def files(package):
    """Imports and attributes in the files of a package, by the names of their modules."""
    found = {}
    for path in sorted((HOME / package).rglob("*.py")):
        parts = path.relative_to(HOME).with_suffix("").parts
        nodes = [x for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, KINDS)]
        found[".".join(parts)] = nodes
    return found


def is_module(name):
    return any(x in files(name.partition(".")[0]) for x in (name, f"{name}.__init__"))


def imports(module, nodes):
    """Line, module and name, None for the module itself, of each import in a file, wherever it stands."""
    here = module.split(".")
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name, None) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level], node.module] if node.level else [node.module]
            source = ".".join(x for x in base if x)
            for a in node.names:
                whole = f"{source}.{a.name}"
                inner = whole.startswith("polymax") and is_module(whole)
                yield (node.lineno, whole, None) if inner else (node.lineno, source, a.name)


def dotted(node):
    """The name that an expression of attributes spells, None for any other expression."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else None


def room(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_leaf(module):
    """True for the files of a device, which can be deleted."""
    parts = module.split(".")
    return parts[1] == "kernels" and parts[-1].startswith(LEAVES)


def test_every_room_has_a_floor():
    assert {room(module) for module in files("polymax")} == set(FLOOR_OF)


def test_imports_go_downwards():
    up = [
        f"{module}:{line} imports {source}"
        for module, nodes in files("polymax").items()
        for line, source, _ in imports(module, nodes)
        if source.partition(".")[0] == "polymax" and FLOOR_OF[room(source)] > FLOOR_OF[room(module)]
    ]
    assert not up, "\n".join(up)


def test_files_of_devices_import_graphs_backend_and_kernels_alone():
    wrong = [
        f"{module}:{line} imports {source}"
        for module, nodes in files("polymax").items()
        if is_leaf(module)
        for line, source, _ in imports(module, nodes)
        if source.partition(".")[0] == "polymax" and room(source) not in ("graphs", "backend", "kernels")
    ]
    assert not wrong, "\n".join(wrong)


def test_operators_do_not_import_each_other_in_a_circle():
    uses = defaultdict(set)
    for module, nodes in files("polymax").items():
        if room(module) == "kernels" and module.count(".") > 2:
            own = module.split(".")[2]
            for _, source, _ in imports(module, nodes):
                parts = source.split(".")
                if parts[:2] == ["polymax", "kernels"] and len(parts) > 2 and parts[2] != own:
                    uses[own].add(parts[2])
    for _ in range(len(uses)):
        # what uses nothing that is left cannot be in a circle
        uses = {a: {b for b in used if b in uses} for a, used in uses.items()}
        uses = {a: used for a, used in uses.items() if used}
    assert not uses, f"these operators import each other: { {a: sorted(b) for a, b in uses.items()} }"


def test_insides_of_others_are_named_in_the_backend_alone():
    wrong = []
    for module, nodes in files("polymax").items():
        if room(module) == "backend":
            continue
        named = [(line, f"{source}.{name}" if name else source) for line, source, name in imports(module, nodes)]
        named += [(n.lineno, dotted(n) or "") for n in nodes if isinstance(n, ast.Attribute)]
        wrong += [f"{module}:{line} names {name}" for line, name in named if name.startswith(INSIDES)]
    assert not wrong, "\n".join(wrong)


def test_devices_are_asked_for_in_kernels_backend_and_nn_alone():
    wrong = [
        f"{module}:{node.lineno} asks {node.attr}"
        for module, nodes in files("polymax").items()
        if room(module) not in ("kernels", "backend", "nn")
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in ("is_cuda", "is_cpu")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_library_does_not_import_the_recipes():
    wrong = [
        f"{module}:{line}"
        for module, nodes in files("polymax").items()
        for line, source, _ in imports(module, nodes)
        if source.partition(".")[0] == "polymax_recipes"
    ]
    assert not wrong, "\n".join(wrong)


@cache
def public():
    """Where each public name is imported from, by its file: the package, else its room."""
    found = {}
    for module, nodes in files("polymax").items():
        if module.count(".") == 2 and module.endswith(".__init__") and room(module) not in ("kernels", "backend"):
            for _, source, name in imports(module, nodes):
                if name and not name.startswith("_"):
                    found.setdefault((source, name), module.removesuffix(".__init__"))
    for _, source, name in imports("polymax.__init__", files("polymax")["polymax.__init__"]):
        if name and not name.startswith("_"):
            # the room may hand on what a file of it defines
            for (inner, same), place in list(found.items()):
                if place == source and same == name:
                    found[inner, name] = "polymax"
            found[source, name] = "polymax"
    return found


@pytest.mark.parametrize("package", ["polymax_recipes"])
def test_recipes_use_public_names(package):
    wrong = []
    for module, nodes in files(package).items():
        for line, source, name in imports(module, nodes):
            if source.partition(".")[0] != "polymax":
                continue
            if any(x.startswith("_") for x in source.split(".")) or room(source) in ("backend", "graphs", "kernels"):
                wrong.append(f"{module}:{line} imports {name} from {source}, which is not public")
            elif name and public().get((source, name), source) != source:
                wrong.append(f"{module}:{line} imports {name} from {source}; it is {public()[source, name]}.{name}")
    assert not wrong, "\n".join(wrong)
