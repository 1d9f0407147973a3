"""The site: it builds without a warning, needs nothing from elsewhere, and its pictures draw."""

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import CHROMIUM, plain_failure

from website.stage import mathematics


@plain_failure
def test_the_site():
    """All in one test: parallel tests would build it twice, in one place."""
    pytest.importorskip("zensical", reason="zensical is not installed: pip install 'polymax[docs]'")
    root, start = Path(__file__).parents[2], seconds_of_children()
    built = subprocess.run([sys.executable, "-m", "website"], cwd=root, capture_output=True, text=True, check=False)
    said = built.stdout + built.stderr
    assert built.returncode == 0, said
    assert "No issues found" in said
    assert "arning" not in said
    assert seconds_of_children() - start < 120
    pages_need_nothing_from_elsewhere(root / "build" / "website")
    if CHROMIUM is not None:
        pictures_draw(root / "build" / "website")


def seconds_of_children():
    """Seconds of a processor, which do not depend on what else runs."""
    spent = os.times()
    return spent.children_user + spent.children_system


def pages_need_nothing_from_elsewhere(site):
    """Pages are there, and what they load is beside them."""
    pages = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    for wanted in (
        "index",
        "getting-started",
        "gallery",
        "benchmarks",
        "migrating",
        "changelog",
        "history",
        "speed",
        "design/kernels",
        "examples/06_own_dynamic_program",
        "reference/structures",
        "source/polymax.mappings",
    ):
        assert f"{wanted}.html" in pages
    for name, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="?([^" >]+)|<link[^>]* href="?([^" >]+)', text)
        outside = [a or b for a, b in loaded if re.match(r"(?:https?:)?//", a or b)]
        assert outside == [], name
        # what Markdown did not take for Markdown
        body = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert "](" not in body, name
        # torch's own sentence on forward
        assert "Define the computation performed" not in body, name
        # marks of figures
        assert "<!-- number" not in text, name
    links_lead_somewhere(pages, site)
    structures = pages["reference/structures.html"]
    assert 'id="Chain"' in structures
    assert "(*batch, n, s)" in structures
    assert "<em>batch" not in structures
    assert structures.index('id="Chain"') < structures.index('id="Counted"')
    assert pages["index.html"].count('class="card"') >= 6
    assert "pip install polymax" in re.sub(r"<[^>]+>", "", pages["index.html"])
    assert "tabbed-set" in pages["migrating.html"]
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    assert [item["location"] for item in index if item["location"].startswith("design")] == []
    the_search_finds_names_of_others(index)
    assert pages["benchmarks.html"].count('<svg role="img"') > 10
    assert "<math" in pages["concepts.html"]


def the_search_finds_names_of_others(index):
    """Names in the table of docs/migrating.md, and common words for pages, are in the index."""
    texts = {item["location"]: unescape(re.sub(r"<[^>]+>", "", item["text"])) for item in index}
    page = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \|$", page.partition("## entmax")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`(]+)", row)]
    assert len(named) > 20
    assert [name for name in named if name not in texts["migrating.html#you-call-it-we-call-it"]] == []
    for words, place in (
        ("Hungarian matcher", "how-to/match.html"),
        ("BERT-CRF", "how-to/hugging-face.html"),
        ("onnxruntime", "how-to/onnx.html"),
        ("word timestamps", "alignments.html#times-of-words"),
    ):
        assert words in texts[place]


def links_lead_somewhere(pages, site):
    """Pages and files that are linked exist, and so do headings and lines."""
    anchors = {name: set(re.findall(r'\bid="?([^" >]+)', text)) for name, text in pages.items()}
    broken = []
    for name, text in pages.items():
        for target in re.findall(r'<a [^>]*href="?([^" >]+)', text):
            # the page for missing addresses has links from the root
            if re.match(r"[a-z]+:|/", target):
                continue
            path, _, part = target.partition("#")
            file = (site / name).parent / path if path else site / name
            linked = Path(os.path.normpath(file)).relative_to(site).as_posix()
            if not file.exists() or (part and linked in anchors and unquote(part) not in anchors[linked]):
                broken.append((name, target))
    assert broken == []


def test_limits_stand_below():
    assert "<munder><mrow><mo>argmax</mo>" in mathematics(
        "$$\\operatorname*{argmax}_{\\mu \\in \\operatorname{conv}(Y)} x$$"
    )
    assert "<munder>" in mathematics("$$\\max_{x \\in Y} x$$")


def test_formulas_are_mathml():
    assert "<mi>x</mi>" in mathematics("the score $x$ of a part")
    assert 'display="block"' in mathematics("$$\\sum_i p_i$$")
    assert mathematics("it costs $5, or $6") == "it costs $5, or $6"


def pictures_draw(site):
    """Pages open as files, without a server."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        faults = []
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        for name in ("index", "gallery", "concepts", "how-to/align", "benchmarks"):
            page.goto((site / f"{name}.html").as_uri())
            drawn = page.locator(".polymax-picture").evaluate_all(
                "all => all.map(e => e.querySelectorAll('svg').length)"
            )
            assert all(drawn), name
            assert len(drawn) >= {"benchmarks": 0, "gallery": 6}.get(name, 1)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), name
        browser.close()
    assert faults == []
