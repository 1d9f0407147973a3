"""What Zensical gets: documents with their links, mathematics and pictures made ready, and pages made by code."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from website import charts, gallery, reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# files of the repository that are pages of the site, and their names there
PAGES = {"CHANGELOG.md": "changelog.md", "benchmarks/README.md": "measuring.md", "CONTRIBUTING.md": "contributing.md"}
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def stage(staged: Path) -> None:
    """Fill a folder with all pages."""
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    shutil.copytree(DOCS / "pictures", staged / "pictures")
    for file in sorted(DOCS.rglob("*.md")):
        name = file.relative_to(DOCS).as_posix()
        write(staged, name, prepared(file.read_text(encoding="utf-8"), name, staged))
    for source, name in PAGES.items():
        write(staged, name, prepared((ROOT / source).read_text(encoding="utf-8"), name, staged, source))
    write(staged, "benchmarks.md", charts.page())
    write(staged, "examples.md", examples())
    for group in reference.groups():
        write(staged, f"reference/{group.page}", reference.page_of(group))
    write(staged, "reference/index.md", reference_index())
    notebooks(staged)
    gallery.write_drawing(staged)
    shutil.copy(Path(__file__).parent / "site.css", staged / "assets" / "site.css")
    shutil.copy(ROOT / "polymax_recipes" / "explore" / "page" / "icon.svg", staged / "assets" / "icon.svg")


def write(staged: Path, name: str, text: str) -> None:
    """Write a page."""
    file = staged / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def prepared(text: str, name: str, staged: Path, source: str | None = None) -> str:
    """A document as a page: pictures drawn, formulas as MathML, links to files of the repository as links to pages."""
    text = gallery.with_pictures(text, name, staged)
    up = "../" * name.count("/")

    def link(found: re.Match[str]) -> str:
        target = found[1]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_, part = target.partition("#")
        place = (ROOT / source).parent if source else (DOCS / name).parent
        whole = (place / path).resolve()
        if not whole.is_relative_to(ROOT) or (whole.is_relative_to(DOCS) and not source):
            return found[0]
        inside = whole.relative_to(ROOT).as_posix()
        if inside in PAGES:
            return f"]({up}{PAGES[inside]}{hash_}{part})"
        if inside.startswith("docs/"):
            return f"]({up}{inside.removeprefix('docs/')}{hash_}{part})"
        if inside.startswith("examples"):
            return f"]({up}examples.md)"
        if inside == "benchmarks/results":
            return f"]({up}benchmarks.md)"
        # other files of the repository are named, and not linked
        return "]()"

    def prose(change: Callable[[str], str]) -> str:
        return "".join(part if part.startswith("`") else change(part) for part in CODE.split(text))

    text = prose(lambda part: re.sub(r"\]\(([^)\s]+)\)", link, part))
    text = re.sub(r"\[([^\]\n]*)\]\(\)", r"\1", text)
    return prose(mathematics)


def mathematics(text: str) -> str:
    """Formulas between dollars as MathML, which browsers typeset by themselves.

    Example:
        >>> "<mi>x</mi>" in mathematics("the score $x$")
        True
    """
    from latex2mathml.converter import convert

    def shown(found: re.Match[str]) -> str:
        return f'\n<div class="formula">{convert(found[1].strip(), display="block")}</div>\n'

    text = re.sub(r"\$\$(.+?)\$\$", shown, text, flags=re.DOTALL)
    return re.sub(r"(?<![\w$\\])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])", lambda found: convert(found[1]), text)


def examples() -> str:
    """A page of the numbered examples, each with what it says of itself."""
    parts = ["# Examples\n", "Single files that run in under a minute: `python examples/01_sparse_classifier.py`.\n"]
    for file in sorted((ROOT / "examples").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        about = re.match(r'"""(.*?)"""\n+', text, re.DOTALL)
        title = file.stem.split("_", 1)[1].replace("_", " ")
        code = text[about.end() :] if about else text
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{about[1].strip() if about else ''}\n\n```py\n{code}```\n")
    return "\n".join(parts)


def reference_index() -> str:
    """All names on one page."""
    parts = ["# Reference\n", "`import polymax as pm`. Every public name, with its shapes and an example.\n"]
    for group in reference.groups():
        names = " · ".join(f"[`{group.prefix}.{name}`]({group.page}#{name})" for name in group.names)
        parts.append(f"## [{group.title}]({group.page})\n\n{names}\n")
    return "\n".join(parts)


def notebooks(staged: Path) -> None:
    """Notebooks as pages: their text and code."""
    import json

    parts = ["# Notebooks\n", "They are in `docs/notebooks`, and run from top to bottom in the tests.\n"]
    for file in sorted((DOCS / "notebooks").glob("*.ipynb")):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        body = []
        for cell in cells:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                body.append(mathematics(re.sub(r"^#", "##", source, flags=re.MULTILINE)))
            else:
                body.append(f"```py\n{source}\n```")
        parts.append("\n\n".join(body) + "\n")
    write(staged, "notebooks.md", "\n".join(parts))
