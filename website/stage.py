"""The input of Zensical: documents with their links, mathematics and pictures made ready, and pages made by code."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from website import charts, gallery, history, listing, reference, shown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# files of the repository that are pages of the site, and their names there
PAGES = {"CHANGELOG.md": "changelog.md", "benchmarks/README.md": "measuring.md", "CONTRIBUTING.md": "contributing.md"}
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
# marks of figures, which readers do not need
MARKS = re.compile(r"<!-- (?:number|table): .*?-->\n?|\n?<!-- end -->", re.DOTALL)


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
    write(staged, "history.md", history.page())
    write(staged, "examples.md", shown.examples())
    for file in shown.ordered():
        write(staged, f"examples/{file.stem}.md", shown.example(file))
    for group in reference.groups():
        write(staged, f"reference/{group.page}", reference.page_of(group))
    write(staged, "reference/index.md", reference_index())
    write(staged, "notebooks.md", mathematics(shown.notebooks(staged)))
    listing.write_listings(staged / "source")
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
    text = inlined(tabbed(MARKS.sub("", text)), ROOT / source if source else DOCS / name)
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
        if inside.startswith("examples/") and inside.endswith(".py"):
            return f"]({up}{inside.removesuffix('.py')}.md)"
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


def tabbed(text: str) -> str:
    """Return the text with blocks of code that stand side by side as tabs, named by the heading and by polymax."""
    heading = ""

    def tabs(found: re.Match[str]) -> str:
        blocks = re.findall(r"```\w*\n.*?```", found[1], re.DOTALL)
        names = [heading, "polymax"] if len(blocks) == 2 else [f"{heading} {k + 1}" for k in range(len(blocks))]
        return "\n\n".join(
            f'=== "{name}"\n\n' + re.sub(r"^", "    ", block, flags=re.M) for name, block in zip(names, blocks)
        )

    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    for place in range(1, len(parts), 2):
        heading = parts[place].replace('"', "'")
        parts[place + 1] = re.sub(r'<div class="side" markdown>\n(.*?)</div>', tabs, parts[place + 1], flags=re.DOTALL)
        parts[place] = f"## {parts[place]}"
    return "".join(parts)


def inlined(text: str, page: Path) -> str:
    """Return the text with its SVG pictures as part of the page, so that they have the page's colours."""

    def drawn(found: re.Match[str]) -> str:
        file = (page.parent / found[1]).resolve()
        picture = re.sub(r"<style>.*?</style>", "", file.read_text(encoding="utf-8").strip(), flags=re.DOTALL)
        return f'<figure class="chart">{picture}</figure>'

    return re.sub(r"!\[[^\]]*\]\(([^)\s]+\.svg)\)", drawn, text)


def mathematics(text: str) -> str:
    """Formulas between dollars as MathML, which browsers typeset by themselves.

    Example:
        >>> "<mi>x</mi>" in mathematics("the score $x$")
        True
    """
    from latex2mathml.converter import convert

    def block(found: re.Match[str]) -> str:
        return f'\n<div class="formula">{convert(_limits(found[1].strip()), display="block")}</div>\n'

    text = re.sub(r"\$\$(.+?)\$\$", block, text, flags=re.DOTALL)
    return re.sub(r"(?<![\w$\\])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])", lambda found: convert(found[1]), text)


def _limits(formula: str) -> str:
    """Return a formula in which what stands in braces below argmax, max or min stands below them."""
    found = re.search(r"\\(?:operatorname\*\{(\w+)\}|(max|min))_\{", formula)
    if not found:
        return formula
    depth, end = 1, found.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(formula[end], 0)
        end += 1
    below = formula[found.end() : end - 1]
    rest = _limits(formula[end:])
    return f"{formula[: found.start()]}\\underset{{{below}}}{{\\operatorname{{{found[1] or found[2]}}}}}{rest}"


def reference_index() -> str:
    """All names on one page."""
    parts = [
        "# Reference\n",
        "`import polymax as pm`. What people use first comes first; the search finds every name.\n",
    ]
    for group in reference.groups():
        names = " · ".join(f"[`{group.prefix}.{name}`]({group.page}#{name})" for name in group.names)
        parts.append(f"## [{group.title}]({group.page})\n\n{names}\n")
    return "\n".join(parts)
