"""What the documents show is what happens: their blocks of Python run in order, and print the blocks of text."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Python, and what it prints where that is shown
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
DOCUMENTS = ["README.md", "docs/tour.md", "docs/learning.md", "docs/attention.md", "docs/adding.md", "docs/factors.md"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks(name):
    if name == "docs/attention.md":
        pytest.importorskip("transformers")
    names: dict = {}
    blocks = BLOCKS.findall((ROOT / name).read_text(encoding="utf-8"))
    assert blocks
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), names)
        if shown:
            assert printed.getvalue() == shown
