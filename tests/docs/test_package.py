"""What a package index shows of polymax: a description without links or pictures that only the repository has."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKS = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=[\"']?([^\"'>\s]+)")


def settings():
    spec = importlib.util.spec_from_file_location("polymax_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_description_of_the_wheel_has_no_relative_link(tmp_path):
    command = "import sys; from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel(sys.argv[1])"
    run = subprocess.run([sys.executable, "-c", command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (file,) = tmp_path.glob("*.dist-info/METADATA")
    shown = message_from_string(file.read_text(encoding="utf-8"))
    assert shown["Description-Content-Type"] == "text/markdown"
    description = shown.get_payload()
    assert description.startswith("# polymax")
    assert "<!--" not in description
    targets = [a or b for a, b in LINKS.findall(description)]
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "pip install polymax" in description
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["polymax"]["repository"]
    assert len(shown.get_all("Project-URL") or []) == (3 if repository else 0)


def test_links_are_made_from_the_address_of_the_repository():
    made = settings()
    text = "<!-- a -->See ![a](b.png)\n[the docs](docs/a.md#b), [home](https://example.org) and [here](#there)."
    assert made.description(text, "") == "See the docs, [home](https://example.org) and [here](#there)."
    linked = made.description(text, "https://example.org/x/")
    assert "[the docs](https://example.org/x/blob/main/docs/a.md#b)" in linked
    assert "b.png" not in linked
    assert made.links("") == {}
    assert made.links("https://example.org/x")["Issues"] == "https://example.org/x/issues"


def test_the_readme_is_short_and_says_how_to_begin():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert text.count("<!-- number: ") >= 3
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 12


def test_the_citation_is_of_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in text
    assert text.startswith("cff-version: 1.2.0\n")


def test_entries_of_the_changelog_are_short():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (.+)$", text, re.MULTILINE)[:3] == ["Added", "Fixed", "Faster"]
    wide = [line for line in text.splitlines() if len(line) > 170]
    assert wide == []
