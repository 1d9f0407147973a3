"""The notebooks run from top to bottom, and what their cells end with can be shown."""

import ast
import contextlib
import io
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_three():
    assert [file.stem for file in NOTEBOOKS] == ["1_mappings", "2_structures", "3_latent_structure"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file):
    pytest.importorskip("anywidget")
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    names: dict = {}
    shown = 0
    for cell in stored["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(tree, file.name, "exec"), names)
            value = eval(compile(ast.Expression(last.value), file.name, "eval"), names) if last else None
        if hasattr(value, "_repr_mimebundle_"):
            bundle = value._repr_mimebundle_()
            data = bundle[0] if isinstance(bundle, tuple) else bundle
            assert "application/vnd.jupyter.widget-view+json" in data
            shown += 1
    assert shown >= 1
