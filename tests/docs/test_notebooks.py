"""The notebooks run from top to bottom, and what their cells end with can be shown."""

import ast
import contextlib
import io
import json
from pathlib import Path

import pytest

from website import shown

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_three():
    assert [file.stem for file in NOTEBOOKS] == ["1_mappings", "2_structures", "3_latent_structure"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file):
    pytest.importorskip("anywidget")
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    names: dict = {}
    moving = 0
    for cell in stored["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        assert cell["metadata"]["code"] == shown.digest(source), (
            "python -m website.shown keeps the outputs of today's code"
        )
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, file.name, "exec"), names)
            value = eval(compile(ast.Expression(last.value), file.name, "eval"), names) if last else None
        kept = ["".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"]
        assert kept == ([printed.getvalue()] if printed.getvalue() else [])
        results = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
        assert len(results) == (value is not None)
        if hasattr(value, "_repr_mimebundle_"):
            bundle = value._repr_mimebundle_()
            data = bundle[0] if isinstance(bundle, tuple) else bundle
            assert "application/vnd.jupyter.widget-view+json" in data
            # places that run no code have a picture to show
            assert results[0]["image/png"]
            moving += 1
    assert moving >= 1
