"""An interactive picture: data for the drawing module of the page, in a notebook or in one HTML file."""

import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

# modules of the page that draw, each before those that import it
DRAWING = ("svg", "mapping", "shapes", "structure", "matrix", "draw")


class Picture:
    """An interactive picture: `data` is plain JSON with the `kind` of picture.

    In a notebook a picture shows itself as a widget (`pip install polymax[explore]`); `write("picture.html")` keeps it
    as one file that needs nothing else.

    Example:
        >>> from polymax import explore
        >>> explore.mapping([1.0, 0.0])
        Picture(kind='mapping')
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)

    def __repr__(self) -> str:
        return f"Picture(kind={self.data['kind']!r})"

    def json(self) -> str:
        """The data of the picture as one line of JSON."""
        return json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def html(self, title: str = "polymax") -> str:
        """An HTML page that draws the picture, and needs nothing else."""
        # data must not contain the end tag of the script
        data = self.json().replace("<", "\\u003c")
        return (
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(title, quote=False)}</title>\n"
            f"<style>body{{margin:0;padding:1.5rem}}\n{drawing_style()}</style>\n"
            f'<body><div class="pmx" id="picture"></div>\n'
            f'<script type="application/json" id="data">{data}</script>\n'
            f'<script type="module">\n{drawing_module()}\n'
            f'draw(document.getElementById("picture"), JSON.parse(document.getElementById("data").textContent));\n'
            f"</script></body></html>\n"
        )

    def write(self, file: str | PathLike[str], title: str = "polymax") -> None:
        """Write the picture as one HTML file."""
        Path(file).write_text(self.html(title), encoding="utf-8")

    def widget(self) -> Any:
        """A widget for notebooks: `pip install polymax[explore]`."""
        from polymax_recipes.explore.widget import widget

        return widget(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        try:
            shown = self.widget()
        except ImportError:
            return {"text/plain": repr(self)}
        return shown._repr_mimebundle_(include=include, exclude=exclude)


@cache
def drawing_module() -> str:
    """The drawing modules joined to one module, without imports, which exports `draw`."""
    texts = []
    for name in DRAWING:
        text = page_file(f"draw/{name}.js").decode()
        kept = [line for line in text.splitlines() if not line.startswith("import ")]
        texts.append("\n".join(kept))
    return "\n".join(texts)


@cache
def drawing_style() -> str:
    """The style sheet of the pictures, for light and dark pages."""
    return page_file("draw.css").decode()


def page_file(name: str) -> bytes:
    """A file of the page, which is part of the package."""
    return files("polymax_recipes.explore").joinpath("page", *name.split("/")).read_bytes()
