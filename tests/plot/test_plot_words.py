"""Whatever words are in a picture, they are drawn as they are spelled; a warning names letters that no font has."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text

import polymax as pm
from polymax import plot
from polymax.plot.words import Lettering
from polymax_recipes.series.pictures import centroid_panels
from polymax_recipes.training.log import plot_measure

# which fonts there are is a matter of the machine
pytestmark = pytest.mark.filterwarnings("ignore:no font that is installed")

# formulas, whole and broken; what LaTeX, legends and lines read in their own way; letters that fonts lack; lengths
HOSTILE = {
    "formula": r"$\frac{1}{$",
    "two signs": "$$",
    "price": "$5 and $6",
    "script": "x_{1^",
    "escape": r"\frac",
    "underscore": "_leading",
    "LaTeX": "50% & #1 ~ {}",
    "lines": "two\nlines\r\n",
    "tabs": "a\tb\x00\x1b\x7f",
    "separator": "a\u2028b\u2029c",
    "surrogate": "\ud800",
    "empty": "",
    "space": " \u3000\u00a0",
    "Japanese": "東京都",
    "Amharic": "አማርኛ",
    "family": "👨‍👩‍👧 \U000e0041",
    "marks": "e\u0301\ufe0f\u20e3",
    "Arabic": "שלום العربية",
    "unassigned": "\u0378\U0010ffff",
    "long": "https://example.org/" + "x" * 400,
    "number": 7,
}


def log(run):
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "log.csv").write_text("epoch,dev_loss\n0,1.0\n1,0.5\n")
    return run


def chain(n, s):
    return np.full((n, s), 1 / s), np.full((n - 1, s, s), 1 / s**2)


# each draws three words; all functions of polymax.plot that take words, and the pictures of recipes that show names
PICTURES = {
    "attention": lambda w: plot.attention(np.eye(3), w, w, values=True, clusters=True, colorbar=True),
    "curves": lambda w: plot.curves(dict(zip(w, (pm.Gini(), pm.Shannon(), pm.Zero()))))[0],
    "simplex": lambda w: plot.simplex(pm.Gini(), torch.randn(4, 3), labels=w),
    "sequence": lambda w: plot.sequence(*chain(3, 3), w, w),
    "tree": lambda w: plot.tree(np.triu(np.ones((3, 3))) / 2, w),
    "labelled tree": lambda w: plot.tree(np.triu(np.ones((3, 3)))[..., None] * [0.5, 0.3, 0.2], w, labels=w),
    "one tree": lambda w: plot.tree(np.eye(3)[..., None] * [1, 0, 0], w, labels=w),
    "arcs": lambda w: plot.arcs(np.eye(4, k=1), w),
    "dependencies": lambda w: plot.dependencies([2, 0, 2], w, w),
    "matching": lambda w: plot.matching(np.eye(3), w, w),
    "support": lambda w: plot.support(pm.SparseMap(pm.Assignment()).distribution(torch.eye(3)), w, w)[0],
    "centroids": lambda w: centroid_panels(torch.zeros(3, 1, 4, 1), {x: [torch.zeros(4, 1)] for x in w}).axes[0],
}


def texts(figure):
    return [text for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize("picture", PICTURES)
def test_words_are_literal(picture):
    for words in zip(*[iter(HOSTILE.values())] * 3, strict=True):
        figure = PICTURES[picture](words).figure
        # warnings are errors here, and matplotlib warns of letters when it draws them
        figure.canvas.draw()
        shown = texts(figure)
        for text in Lettering(words).texts:
            # what is written beside a word may leave less room for it
            found = [one for one in shown if text[:25] in one.get_text()]
            assert found or not text, "every word is in the picture"
            assert "$" not in text or not any(one.get_parse_math() for one in found)
        assert all("\n" not in text.get_text() for text in shown)


def test_names_of_runs_are_literal(tmp_path):
    runs = [log(tmp_path / name) for name in ("_run", "$a_$", "$")]
    ax = plot_measure(runs, "loss")
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == Lettering(runs).texts


def test_every_picture_is_in_the_table():
    without = {"alignment", "attention_supports"}
    assert {name.split()[-1] for name in PICTURES} | without >= set(plot.__all__)


def test_words_are_spelled_the_same():
    kept = ["$x$", "_a", "naïve", "50%", r"\frac", "Ωμέγα", "слово", "→"]
    assert Lettering(kept).texts == kept
    assert Lettering(["a\nb", "\ud800", "\x00"]).texts == [r"a\nb", r"\ud800", r"\x00"]
    assert Lettering(["x" * 61]).texts[0].count("x") == 59


def test_letters_come_from_a_font_that_has_them(monkeypatch):
    plain = frozenset(get_font(findfont(FontProperties())).get_charmap())
    assert ord("東") not in plain, "the default font has no Japanese letters"
    monkeypatch.setattr("polymax.plot.words._plain_fonts", lambda: [("Mincho", "mincho.ttf")])
    monkeypatch.setattr("polymax.plot.words._charmap", lambda f: frozenset({ord("東")}) if f == "mincho.ttf" else plain)
    with pytest.warns(UserWarning, match="no font that is installed has the letters 京, and boxes stand for them"):
        words = Lettering(["東京"])
    assert words.texts == ["東□"]
    assert words.look["fontfamily"][-1] == "Mincho"


def test_settings_of_latex_do_not_reach_words():
    with matplotlib.rc_context({"text.usetex": True}):
        ax = Figure().subplots()
        FigureCanvasAgg(ax.figure)
        plot.arcs(np.eye(3, k=1), ["50%", "_"], ax=ax)
        assert not any(label.get_usetex() for label in ax.get_xticklabels())
