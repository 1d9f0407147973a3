"""Build the site into build/website: `make docs`."""

import subprocess
import sys
from pathlib import Path

from website import reference
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
    text = text.replace("@REFERENCE@", pages).replace("@MORE@", unnamed_pages(text))
    config.write_text(text, encoding="utf-8")
    zensical = str(Path(sys.executable).parent / "zensical")
    command = [zensical, "build", "--strict", "--clean", "--config-file", str(config)]
    if code := subprocess.run(command, cwd=BUILD, check=False).returncode:
        sys.exit(code)
    # pages that are opened as files find the index of the search in a script
    index = (BUILD / "website" / "search.json").read_text(encoding="utf-8")
    (BUILD / "website" / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")


def unnamed_pages(template: str) -> str:
    """The documents that the template does not name, by their headings: they come after the guides."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        if f'"{name}"' not in template:
            title = page.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ").replace('"', "'")
            found.append(f'{{ "{title}" = "{name}" }},')
    return "\n    ".join(found)


if __name__ == "__main__":
    main()
