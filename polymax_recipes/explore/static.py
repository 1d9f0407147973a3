"""The page of mappings without a server: one HTML file, in which the browser computes the mappings."""

import json
import re
from os import PathLike
from pathlib import Path

import torch

from polymax_recipes.explore.picture import drawing_module, drawing_style, page_file
from polymax_recipes.explore.scores import OTHER, SENTENCE, TAGS, initial_scores
from polymax_recipes.explore.structures import KINDS, SETS, structure

# sets whose pictures are computed ahead
AHEAD = ("ProjectiveTree", "Chain", "SpanTree", "Alignment", "Assignment")
TEMPERATURES = torch.logspace(-1, 0.7, 25, dtype=torch.float64).tolist()
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>polymax explore: a demo</title>
<style>
{style}
</style>
</head>
<body class="pmx">
<main>
<h1>Sparse and structured inference, to play with</h1>
<p class="lead">This demo runs in your browser. <code>polymax explore</code> has all mappings and sets, with scores of
your own, trained models and attention.</p>
<h2>The simplex: drag scores, and see which weights are exactly zero</h2>
<div id="simplex"></div>
<h2>Structures: one sentence, four smoothings; move the temperature</h2>
<div id="structures"></div>
</main>
<noscript><p>This demo needs JavaScript.</p></noscript>
<script type="application/json" id="ahead">{ahead}</script>
<script type="module">
{script}
</script>
</body>
</html>
"""


def write(out: str | PathLike[str]) -> Path:
    """Write index.html into a directory, which is made if it is not there, and return the file.

    The file makes no requests, so that it also opens from a disk.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    file.write_text(html(), encoding="utf-8")
    return file


def html() -> str:
    """The page as text."""
    ahead = {name: _picture(name) for name in AHEAD}
    # data must not contain the end tag of the script
    data = json.dumps(ahead, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    own = re.sub(r"^(import .*|export )", "", page_file("static.js").decode(), flags=re.MULTILINE)
    style = f"{drawing_style()}\n{page_file('page.css').decode()}"
    return PAGE.format(style=style, ahead=data, script=f"{drawing_module()}\n{own}")


def _picture(name: str) -> dict[str, object]:
    rows, kind = SENTENCE.split(), KINDS[type(SETS[name]())]
    columns = {"tags": list(TAGS), "alignment": OTHER.split(), "matching": OTHER.split()}.get(kind.draws, [])
    scores = initial_scores(name, rows, columns)
    return structure(SETS[name](), *scores, rows=rows, columns=columns or None, temperatures=TEMPERATURES).data
