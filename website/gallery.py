"""Pictures of pages: blocks of Python that leave a `picture` behind are run, and it is shown above them."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from polymax_recipes.explore import Picture
from polymax_recipes.explore.picture import drawing_module, drawing_style

BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)

# draws every picture of a page; a plain script, so that pages can be read without a server, too
BOOT = """
const pictures = window.polymaxPictures = window.polymaxPictures || {};
const start = () => document.querySelectorAll("[data-picture]").forEach((element) => {
  const data = pictures[element.dataset.picture];
  if (data && !element.dataset.drawn) {
    element.dataset.drawn = "true";
    draw(element, data);
  }
});
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
addEventListener("load", start);
"""


def with_pictures(text: str, name: str, staged: Path) -> str:
    """The page with the pictures of its blocks; where no block draws, nothing is run.

    A block draws if it assigns `picture`: a `Picture` moves, and axes of matplotlib are kept as SVG.
    """
    if not re.search(r"^picture = ", text, re.MULTILINE):
        return text
    names: dict[str, Any] = {}
    count = 0

    def shown(block: re.Match[str]) -> str:
        nonlocal count
        names.pop("picture", None)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block[1], name, "exec"), names)
        drawn = names.get("picture")
        if drawn is None:
            return block[0]
        count += 1
        stem = f"{Path(name).stem}-{count}"
        up = "../" * name.count("/")
        return f"{_kept(drawn, stem, staged, up)}\n\n{block[0]}"

    return BLOCKS.sub(shown, text)


def _kept(drawn: Any, stem: str, staged: Path, up: str) -> str:
    if isinstance(drawn, Picture):
        file = staged / "assets" / "pictures" / f"{stem}.js"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"(window.polymaxPictures = window.polymaxPictures || {{}})[{stem!r}] = {drawn.json()};\n", encoding="utf-8"
        )
        drawn_here = f'<div class="pmx polymax-picture" data-picture="{stem}"></div>'
        return f'{drawn_here}\n<script src="{up}assets/pictures/{stem}.js"></script>'
    file = staged / "pictures" / f"{stem}.svg"
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.figure.savefig(file, bbox_inches="tight", transparent=False)
    return f'<img class="plot" src="{up}pictures/{stem}.svg" alt="The picture that the code below draws">'


def write_drawing(staged: Path) -> None:
    """The drawing module of the page, and its style, for the site."""
    folder = staged / "assets"
    folder.mkdir(parents=True, exist_ok=True)
    plain = re.sub(r"^export ", "", drawing_module(), flags=re.MULTILINE)
    (folder / "drawing.js").write_text("(() => {\n" + plain + BOOT + "})();\n", encoding="utf-8")
    (folder / "drawing.css").write_text(drawing_style(), encoding="utf-8")
