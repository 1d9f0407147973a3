"""Code in documents and examples is at most 84 columns wide, so that no page of the site cuts it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").rglob("*.md")]
WIDTH = 84


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_of_documents_is_narrow(page):
    """Output and diffs wrap on the site, and show what is printed or stands in a file."""
    blocks = re.split(r"```(\w*)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    fenced = [code for kind, code in zip(blocks[1::3], blocks[2::3]) if kind not in ("text", "diff")]
    lines = [line for code in fenced for line in code.splitlines()]
    # text outside of fences is code if it is indented by four
    lines += [line[4:] for prose in blocks[0::3] for line in prose.splitlines() if re.match(r" {4}\S", line)]
    assert [line for line in lines if len(line) > WIDTH] == []


def test_examples_are_narrow():
    files = sorted((ROOT / "examples").glob("*.py"))
    assert files
    wide = [f"{file.name}: {line}" for file in files for line in file.read_text().splitlines() if len(line) > WIDTH]
    assert wide == []
