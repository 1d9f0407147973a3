"""The measure of the house: signatures, names of classes, and how many mechanisms there are of a kind."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

HOME = Path(__file__).parents[1] / "polymax"
PARAMETERS = 12
LINES = 80
# longer lists of parameters, and the signatures that they follow
SIGNATURES = {
    "nn/attention.py:scaled_dot_product_attention": "torch's function, with the options of FlashAttention's",
    "nn/packed_attention.py:varlen_attention": "flash_attn_varlen_func",
    "losses/linear.py:linear_cross_entropy": "the fused linear cross-entropy of Liger-Kernel",
    "losses/linear.py:linear_entmax_loss": "the fused linear cross-entropy of Liger-Kernel",
    "integrations/transformers/forward.py:attention": "the attention functions of Transformers",
}
FILE = 400
# longer files, which are to be divided
LONG = {"kernels/sparse_attention/cuda_dense.py"}
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


@cache
def nodes(kinds):
    """Pairs of a path below the package and a node of these kinds."""
    found = []
    for path in sorted(HOME.rglob("*.py")):
        place = path.relative_to(HOME).as_posix()
        found += [(place, node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return found


def parameters(function):
    """The names that a caller may give, the instance left out."""
    a = function.args
    named = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None]
    return named[1:] if named[:1] in (["self"], ["cls"]) else named


def test_functions_have_few_parameters():
    functions = [(place, f) for place, f in nodes(FUNCTIONS) if not place.startswith("kernels/")]
    many = {f"{place}:{f.name}" for place, f in functions if len(parameters(f)) > PARAMETERS}
    assert many == set(SIGNATURES)


def test_functions_are_short():
    """Lines of a function outside kernels, its docstring left out."""
    functions = [(place, f) for place, f in nodes(FUNCTIONS) if not place.startswith("kernels/")]
    lengths = {}
    for place, f in functions:
        text = f.body[0] if ast.get_docstring(f, clean=False) is not None else None
        told = text.end_lineno - text.lineno + 1 if text else 0
        lengths[f"{place}:{f.name}:{f.lineno}"] = f.end_lineno - f.lineno + 1 - told
    assert len(lengths) > 1500
    assert not {name: length for name, length in lengths.items() if length > LINES}


def test_files_are_short():
    lengths = {p.relative_to(HOME).as_posix(): len(p.read_text().splitlines()) for p in HOME.rglob("*.py")}
    assert len(lengths) > 500
    assert not {place for place, length in lengths.items() if length > FILE} - LONG


def test_overviews_are_short():
    docs = HOME.parent / "docs"
    assert len((docs / "design.md").read_text().splitlines()) <= 200
    assert len((HOME.parent / "CHANGELOG.md").read_text().splitlines()) <= 120


def test_no_two_classes_have_a_name():
    places = defaultdict(list)
    for place, node in nodes(ast.ClassDef):
        places[node.name].append(f"{place}:{node.lineno}")
    assert len(places) > 300
    assert not {name: found for name, found in places.items() if len(found) > 1}


def classes(pattern):
    return [node for place, node in nodes(ast.ClassDef) if Path(place).match(pattern)]


def test_launches_have_few_classes():
    """Kernels, their arguments and the memory of their results: all launches are made by these."""
    assert {node.name for node in classes("backend/triton_*.py")} == {"Entry", "Launch", "Bound", "Array", "Arena"}


def test_dispatchers_are_two():
    """An operator, and what does the work of several operators."""
    kinds = [n for n in classes("backend/*.py") if any(getattr(b, "id", None) == "ByDevice" for b in n.bases)]
    assert {node.name for node in kinds} == {"Operator", "Shortcut"}
