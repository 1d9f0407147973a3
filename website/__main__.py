"""Build the site into build/website: `make docs`."""

import subprocess
import sys
import tomllib
from pathlib import Path

from website import reference, search, shown
from website.stage import DOCS, ROOT, stage

BUILD = ROOT / "build"
# Zensical reads a file; the pages of the reference, and documents without a place of their own, are filled in
TEMPLATE = Path(__file__).parent / "zensical.toml"


def main() -> None:
    """Stage all pages, then build them; a warning is an error."""
    BUILD.mkdir(exist_ok=True)
    stage(BUILD / "website-source")
    pages = ", ".join(f'{{ "{group.title.split(":")[0]}" = "reference/{group.page}" }}' for group in reference.groups())
    config, text = BUILD / "zensical.toml", TEMPLATE.read_text(encoding="utf-8")
    filled = {"REFERENCE": pages, "MORE": unnamed_pages(text), "DESIGN": design_pages(), "EXAMPLES": example_pages()}
    filled["REPOSITORY"] = f'repo_url = "{address}"' if (address := repository()) else ""
    for name, found in filled.items():
        text = text.replace(f"@{name}@", found)
    config.write_text(text, encoding="utf-8")
    zensical = str(Path(sys.executable).parent / "zensical")
    command = [zensical, "build", "--strict", "--clean", "--config-file", str(config)]
    if code := subprocess.run(command, cwd=BUILD, check=False).returncode:
        sys.exit(code)
    # pages that are opened as files find the index of the search in a script
    index = BUILD / "website" / "search.json"
    index.write_text(search.prepared(index.read_text(encoding="utf-8")), encoding="utf-8")
    script = f"var __index = {index.read_text(encoding='utf-8')};\n"
    (BUILD / "website" / "search.js").write_text(script, encoding="utf-8")


def repository() -> str:
    """Return the address of the repository, or nothing before it is published."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["polymax"]["repository"]


def design_pages() -> str:
    """Return the entries of the design pages, named by their headings."""
    found = []
    for page in sorted((DOCS / "design").glob("*.md")):
        title = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# Design: ")
        found.append(f'{{ "{title[0].upper()}{title[1:]}" = "design/{page.name}" }}')
    return ", ".join(found)


def example_pages() -> str:
    """Return the entries of the examples, named by their subjects."""
    entries = []
    for file in shown.ordered():
        name = shown.title(file)[0].split(":")[0].replace('"', "'")
        entries.append(f'{{ "{name}" = "examples/{file.stem}.md" }}')
    return ", ".join(entries)


def unnamed_pages(template: str) -> str:
    """The documents that the template does not name, by their headings: they come after the guides."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        if f'"{name}"' not in template and not name.startswith("design/"):
            title = page.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ").replace('"', "'")
            found.append(f'{{ "{title}" = "{name}" }},')
    return "\n    ".join(found)


if __name__ == "__main__":
    main()
