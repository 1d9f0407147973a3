"""The command that tries the tests: changes are small and real, and what tests notice is told from what they do not."""

import ast
import re
from pathlib import Path

import pytest

from tests.mutants.__main__ import HOME, draw, main
from tests.mutants.changes import changes
from tests.mutants.relevant import relevant, sources

CASES = [
    ("y = a < b", "comparison", ["y = a <= b"]),
    ("y = a not in b", "comparison", ["y = a in b"]),
    ("y = (a) + (b)", "arithmetic", ["y = (a) - (b)"]),
    ("y = a * b // c", "arithmetic", ["y = a * b * c", "y = a / b // c"]),
    ("y = a + b", "dropped term", ["y = a"]),
    ("y = a and b or c", "dropped term", ["y = a and b", "y = a or c"]),
    ("y = a & b", "mask", ["y = a | b"]),
    ("y = x.clamp(min=0)", "mask", ["y = x"]),
    ("y = torch.where(m, a, b)", "mask", ["y = (a)", "y = (b)"]),
    ("y = f(a, b)", "swapped arguments", ["y = f(b, a)"]),
    ("y = x.sum(-1)", "axis", ["y = x.sum(-2)"]),
    ("y = x.amax(dim=0)", "axis", ["y = x.amax(dim=1)"]),
    ("y = x.amax(d)", "function", ["y = x.amin(d)"]),
    ("y = x[i:n]", "off by one", ["y = x[i + 1:n]", "y = x[i:n - 1]"]),
    ("y = 3", "off by one", ["y = 2", "y = 4"]),
    ("y = 0.5", "constant", ["y = 1.0"]),
    ("y = -x", "sign", ["y = x"]),
    ("if a:\n    b()", "condition", ["if not (a):\n    b()"]),
    ("y += 1", "dropped statement", ["pass"]),
]


@pytest.mark.parametrize(("source", "kind", "expected"), CASES, ids=[f"{kind}: {s}" for s, kind, _ in CASES])
def test_changes(source, kind, expected):
    found = changes(source.encode())[kind]
    assert sorted(c.apply(source.encode()).decode() for c in found) == sorted(expected)


def test_words_and_errors_are_left_alone():
    source = '''"""Text < 1."""
import a
@cut(1)
def f(x: int = y, *, z: "list[1]" = w) -> Literal[1]:
    """Text > 2."""
    assert x < 1, f"{x + 1}"
    raise ValueError(f"{x < 1}" + "b")
    zip(x, strict=True)
def __repr__(self):
    return 1
'''
    assert changes(source.encode()) == {}


def test_limits_of_speed_are_left_alone():
    """Faults that change no result are not drawn, where the name of a constant or an option tells."""
    source = """
_TILE, LARGEST_ROWS = 64, 1 << 12
def f(n):
    n < LARGEST
    n >= limits.MOST
    kernel[grid](num_warps=4)
"""
    assert changes(source.encode()) == {}
    # other limits decide results, and a condition may say which kernel is right
    assert set(changes(b"EPSILON, MOST = 1e-6, 3")) == {"constant", "off by one"}
    assert [c.kind for each in changes(b"if n < MOST:\n    f()").values() for c in each] == ["condition"]


def test_text_beside_the_change_stays():
    source = "é = 'ü'  # a < b\ny = a < b  # a < b\n"
    (change,) = changes(source.encode())["comparison"]
    assert change.apply(source.encode()).decode() == "é = 'ü'  # a < b\ny = a <= b  # a < b\n"


def test_draws_are_of_all_rooms_and_the_same_for_a_seed():
    mutants = draw(HOME, 3, 60)
    assert mutants[:8] == draw(HOME, 3, 8)
    assert mutants[:8] != draw(HOME, 4, 8)
    rooms = {mutant.path.parts[:2] for mutant in mutants}
    assert len(rooms) > 15
    assert {"polymax", "polymax_recipes"} == {room[0] for room in rooms}
    for mutant in mutants:
        source = (HOME / mutant.path).read_bytes()
        changed = ast.dump(ast.parse(mutant.change.apply(source)))
        assert changed != ast.dump(ast.parse(source))
        assert len(re.findall(r"^@@", mutant.diff(HOME), re.MULTILINE)) == 1


def test_tests_are_those_of_the_file(tmp_path):
    for path, expected in {
        "polymax/matching.py": "tests/test_matching.py",
        "polymax/elastic.py": "tests/test_elastic.py",
        "polymax_recipes/serve/server.py": "tests/recipes/test_serve.py",
        "polymax/nn/tree_lstm.py": "tests/nn/test_tree_lstm.py",
        "polymax/kernels/spanning_tree/cpu_log.py": "tests/kernels/test_spanning_tree.py",
        # what its test computes stands in a module beside it
        "polymax/sharding/placements.py": "tests/distributed/test_distributed.py",
    }.items():
        assert Path(path) in sources(HOME)
        found, weights, _ = relevant(HOME, Path(path), 40, tmp_path / "none")
        assert Path(expected) in found
        assert weights


@pytest.fixture
def tree(tmp_path):
    """A package of one function with a test that looks at half of it, and a test that never passes."""
    home = tmp_path / "home"
    for name in ("polymax", "polymax_recipes", "tests"):
        (home / name).mkdir(parents=True)
    (home / "polymax" / "__init__.py").write_text("")
    (home / "polymax" / "first.py").write_text("def halve(x, limit):\n    return x / 2 if x < limit else limit\n")
    (home / "tests" / "test_first.py").write_text(
        "from polymax.first import halve\n\n\ndef test_halve():\n    assert halve(4, 9) == 2\n\n\n"
        "def test_halve_of_nothing():\n    assert halve is None\n"
    )
    return home


def test_mutants_are_run_and_counted(tree, tmp_path, capsys):
    given = ["--home", str(tree), "--out", str(tmp_path / "out"), "--seed", "5", "--count", "2", "--seconds", "30"]
    before = (tree / "polymax" / "first.py").read_text()
    assert main([*given, "--only", "first"]) == 1
    said = capsys.readouterr().out
    # the boundary of the comparison is changed, and the division, which a test sees
    survivors = (tmp_path / "out" / "survivors-5.txt").read_text()
    assert "x <= limit" in survivors
    assert "x * 2" not in survivors
    killed, hung, survived = map(int, re.search(r"(\d+) killed, (\d+) hung, (\d+) survived", said).groups())
    assert (killed + survived, hung) == (2, 0)
    assert survived == survivors.count("@@ -")
    assert said.count("test_halve") >= killed
    assert "test_halve_of_nothing" not in re.sub("fail without.*", "", said), "a test that fails anyway kills none"
    assert (tree / "polymax" / "first.py").read_text() == before
    assert main([*given, "--only", "first", "--show"]) == 0
    assert "x <= limit" in capsys.readouterr().out
