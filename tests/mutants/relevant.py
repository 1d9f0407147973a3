"""The tests that are about a line of a file.

A recorded run tells which tests enter the function. Tests that were not recorded are found by names: those of the file
and of the line, and the names of files that import it.
"""

import ast
import json
import math
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

PACKAGES = ("polymax", "polymax_recipes")
# names of a file that imports the mutated one count for so much of its own
FADING = 0.25
DEPTH = 4
# words of paths that say nothing of what a file is about
PLAIN = {"init", "main", "reference", "cpu", "cuda", "base", "polymax", "kernels", "numba", "triton", "forward", "call"}


# rows of these are made from the folders of the kernels
KERNELS = Path("tests/kernels/test_kernels.py")


def words(text: str) -> set[str]:
    """Names in a text, without underscores and capitals: SpanningTree, spanning_tree and spanning-tree are one."""
    return {word.replace("_", "").lower() for word in re.findall(r"[A-Za-z_]\w{2,}", text.replace("-", "_"))}


def sources(home: Path) -> list[Path]:
    """All files of the packages, relative to the tree."""
    return sorted(path.relative_to(home) for name in PACKAGES for path in (home / name).rglob("*.py"))


@cache
def _own(home: Path, path: Path) -> frozenset[str]:
    """Names that a file defines, and the words of its path."""
    named = {
        n.name
        for n in ast.parse((home / path).read_text()).body
        if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")
    }
    place = path.with_suffix("").parts[1:]
    named |= {*place, *(place[-1].removeprefix(p) for p in ("cpu_", "cuda_", "numba_", "triton_"))}
    return frozenset(words(" ".join(named)) - PLAIN)


@cache
def _importers(home: Path) -> dict[Path, set[Path]]:
    """The files that import each file; the files of a device are imported by the folder of their operator."""
    found = defaultdict(set)
    every = set(sources(home))
    for path in every:
        names = set()
        for node in ast.walk(ast.parse((home / path).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
            elif isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
        for name in names:
            place = Path(*name.split("."))
            for used in (place.with_suffix(".py"), place / "__init__.py"):
                if used in every:
                    found[used].add(path)
        if path.parent.parent.name == "kernels" and path.name != "__init__.py":
            found[path].add(path.with_name("__init__.py"))
    return found


def terms(home: Path, path: Path, line: int) -> dict[str, float]:
    """Words that tests of a line of a file use, with how much they say."""
    text = (home / path).read_text()
    # what is computed there: names of the line, and of the functions and classes around it
    weights = dict.fromkeys(words(text.splitlines()[line - 1]), FADING)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= node.end_lineno:
            weights |= dict.fromkeys(words(node.name.strip("_")), 2.0)
    level, seen = {path}, {path}
    for depth in range(DEPTH):
        for one in level:
            for word in _own(home, one):
                weights[word] = max(weights.get(word, 0.0), FADING**depth)
        # a package's file of public names imports all
        level = {user for one in level for user in _importers(home)[one] if len(user.parts) > 2 or depth}
        level -= {Path(name, "__init__.py") for name in PACKAGES} | seen
        seen |= level
    for device in ("cpu", "cuda"):
        if path.parent.parent.name == "kernels" and path.name.startswith(device):
            weights[device] = 4.0
    return weights


@cache
def _tests(home: Path) -> dict[Path, set[str]]:
    """The words of each file of tests, with those of the tables and other modules beside the tests that it imports."""
    tests, own = home / "tests", home / "tests" / "mutants"
    files = {path: path.read_text() for path in sorted(tests.rglob("*.py")) if own not in path.parents}
    beside = {path.stem: words(text) for path, text in files.items() if not path.name.startswith(("test_", "_"))}
    found = {}
    for path, text in files.items():
        if path.name.startswith("test_"):
            imports = " ".join(re.findall(r"^(?:from|import) .*", text, re.MULTILINE))
            used = beside.keys() & set(re.findall(r"\w+", imports))
            found[path.relative_to(home)] = words(f"{path.name} {text}").union(*(beside[name] for name in used))
    return found


@cache
def _recorded(record: Path) -> list[dict]:
    """Tests and the functions that they enter, of a recorded run."""
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text().splitlines() if line.endswith("}")]


def entering(home: Path, path: Path, line: int, record: Path) -> dict[str, float]:
    """Tests that enter the function of a line, more if they enter little else; else tests that enter its file, or its
    folder: compiled functions are not seen.
    """
    names = [""]
    for node in ast.walk(ast.parse((home / path).read_text())):
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= node.end_lineno:
            names.append(node.name)
    for own in (f"{path}:", f"{path}:", f"{path.parent}/"):
        # at first the innermost function
        found = {}
        for test in _recorded(record):
            places = [place for place in test["entered"] if place.startswith(own)]
            if names[-1]:
                places = [place for place in places if names[-1] in re.split(r"[.:]", place)]
            if places:
                found[test["test"].partition("[")[0]] = 1 / math.log(8 + len(test["entered"]) * (1 + test["seconds"]))
        if found:
            return found
        names = [""]
    return {}


def relevant(home: Path, path: Path, line: int, record: Path, most: int = 8) -> tuple[list[Path], dict, dict]:
    """Return the files of tests about a line, the likeliest first, and the weights of words and of recorded tests."""
    texts = _tests(home)
    weights = terms(home, path, line)
    used = {word: sum(word in text for text in texts.values()) for word in weights}
    # a word of every test says little
    weights = {word: weight / used[word] ** 0.5 for word, weight in weights.items() if used[word]}
    room = set(path.parts[1:-1])
    score = {}
    for test, text in texts.items():
        near = 2 if room & set(test.parts[1:-1]) else 1.0
        score[test] = near * sum(weight for word, weight in weights.items() if word in text)
    operators = home / path.with_name("__init__.py")
    if "kernels" in path.parts and KERNELS in score and "Operator(" in operators.read_text():
        score[KERNELS] += max(score.values())
    entered = entering(home, path, line, record)
    # tests that enter little else are most about it, and five of them are enough to name a file
    few = sorted(entered, key=lambda test: -entered[test])[: 5 * most]
    for test in few:
        file = Path(test.partition("::")[0])
        if file in score:
            score[file] += 4 * entered[test]
    best = sorted((test for test in score if score[test] > 0), key=lambda test: (-score[test], test))
    return best[:most], weights, entered
