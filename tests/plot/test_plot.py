"""Pictures: what is drawn for which weights, and that nothing global is touched."""

import sys

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.tri import TriContourSet

import polymax as pm
from polymax import plot
from polymax.plot.canvas import ZERO
from polymax.plot.matrix import borders, cluster_numbers
from polymax.plot.regularizer import disc

WEIGHTS = [[0.5, 0.5, 0.0, 0.0], [0.25, 0.5, 0.25, 0.0], [1.0, 0.0, 0.0, 1e-9]]
ROWS, COLUMNS = ["x", "y", "z"], ["a", "b", "c", "d"]


def rendered_colours(ax):
    """Facecolours of the cells of an attention picture, (rows, columns, 4), as drawn."""
    ax.figure.canvas.draw()
    mesh = ax.collections[0]
    return mesh.get_facecolors().reshape(len(ROWS), len(COLUMNS), 4)


@pytest.fixture
def no_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    # a plain dict of the settings would ask pyplot for the backend
    before = matplotlib.rcParams.copy()
    yield
    assert dict.__eq__(matplotlib.rcParams, before)


@pytest.mark.usefixtures("no_pyplot")
def test_every_picture_without_pyplot(tmp_path):
    axes = [
        plot.attention(WEIGHTS, ROWS, COLUMNS, clusters=True, values=True, colorbar=True),
        *plot.curves({"Shannon": pm.Shannon(), "Gini": pm.Gini()}),
        plot.simplex(pm.Gini()),
        plot.simplex(pm.Zero(), torch.randn(5, 3, dtype=torch.float32), labels=["a", "b", "c"]),
    ]
    for number, ax in enumerate(axes):
        assert isinstance(ax, Axes)
        ax.figure.savefig(tmp_path / f"{number}.png")


def test_zeros_are_grey_and_tiny_weights_are_not():
    colours = rendered_colours(plot.attention(WEIGHTS, ROWS, COLUMNS))
    grey = np.isclose(colours, to_rgba(ZERO)).all(-1)
    assert (grey == (np.array(WEIGHTS) == 0)).all()


def test_larger_weights_are_darker():
    w = [[0.0, 0.1, 0.3, 0.9]] * 3
    brightness = rendered_colours(plot.attention(w, ROWS, COLUMNS))[0, 1:, :3].sum(-1)
    assert (np.diff(brightness) < 0).all()


def test_no_border_inside_a_fused_group():
    ax = plot.attention(WEIGHTS, ROWS, COLUMNS)
    drawn = {tuple(map(tuple, segment)) for lines in ax.collections[1:] for segment in lines.get_segments()}
    upright = {(int(x), int(y)) for (x, y), (end, _) in drawn if x == end}
    everywhere = {(x, y) for x in range(5) for y in range(3)}
    # between the two halves of row 0, and nowhere else: zeros are separate cells
    assert everywhere - upright == {(1, 0)}


def test_borders_around_positive_weights_are_told_from_those_among_zeros():
    faint, strong = borders(np.array([[0.0, 0.0, 1.0]]))
    assert ((1, 0), (1, 1)) in faint
    assert ((2, 0), (2, 1)) in strong
    assert ((0, 0), (1, 0)) in faint
    assert ((2, 0), (3, 0)) in strong


def test_clusters_number_equal_weights_that_stand_apart():
    w = np.array([[0.1, 0.3, 0.1, 0.3, 0.2], [0.4, 0.4, 0.1, 0.1, 0.0], [0.5, 0.0, 0.5, 0.0, 0.0]])
    assert cluster_numbers(w) == [(0, 1, 1), (0, 3, 1), (0, 0, 2), (0, 2, 2), (2, 0, 1), (2, 2, 1)]
    ax = plot.attention(w, ROWS, list("abcde"), clusters=True)
    assert len(ax.texts) == 6


def test_values_are_written_on_positive_weights():
    ax = plot.attention(WEIGHTS, ROWS, COLUMNS, values=True)
    assert [text.get_text() for text in ax.texts] == [".50", ".50", ".25", ".50", ".25", "1.00", "<.01"]


def test_labels_and_given_axes():
    own = plot.attention(WEIGHTS, ROWS, COLUMNS)
    ax = own.figure.add_subplot()
    assert plot.attention(WEIGHTS, ROWS, COLUMNS, ax=ax) is ax
    assert [label.get_text() for label in ax.get_yticklabels()] == ROWS
    assert [label.get_text() for label in ax.get_xticklabels()] == COLUMNS
    assert ax.get_ylim() == (3, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_with_gradients(dtype):
    w = torch.tensor(WEIGHTS, dtype=dtype, requires_grad=True)
    plot.attention(w, ROWS, COLUMNS)


def test_a_matrix_of_zeros_is_all_grey():
    colours = rendered_colours(plot.attention(np.zeros((3, 4)), ROWS, COLUMNS))
    assert np.isclose(colours, to_rgba(ZERO)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 0.5], ROWS, COLUMNS), r"weights must be \(target words, source words\)"),
        ((np.zeros((0, 4)), [], COLUMNS), "weights must be"),
        ((WEIGHTS, ROWS[:2], COLUMNS), "rows must be 3 labels"),
        ((WEIGHTS, ROWS, "abcd"), "columns must be 4 labels"),
        (([[-0.1, 1.1]], ["x"], ["a", "b"]), "weights must be finite and not negative"),
        (([[float("nan"), 1.0]], ["x"], ["a", "b"]), "weights must be finite"),
        (([["p", "q"]], ["x"], ["a", "b"]), "weights must be an array of numbers"),
    ],
)
def test_bad_attention_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.attention(*arguments)


def test_bad_vmax_scores_labels_and_regularizers_are_named():
    with pytest.raises(ValueError, match="vmax"):
        plot.attention(WEIGHTS, ROWS, COLUMNS, vmax=0)
    with pytest.raises(ValueError, match=r"scores must be \(points, 3\)"):
        plot.simplex(pm.Gini(), torch.zeros(3))
    with pytest.raises(ValueError, match="labels"):
        plot.simplex(pm.Gini(), labels=["a", "b"])
    with pytest.raises(ValueError, match="regularizers"):
        plot.curves({})
    with pytest.raises(ValueError, match="reach"):
        plot.curves({"Gini": pm.Gini()}, reach=-1)


def test_curves_draw_max_and_argmax():
    left, right = plot.curves({"Gini": pm.Gini()}, reach=2.0)
    t, weight = right.lines[0].get_data()
    np.testing.assert_allclose(weight, np.clip((np.asarray(t) + 1) / 2, 0, 1), atol=1e-12)
    _, value = left.lines[0].get_data()
    # the slope of the smoothed max is the weight
    np.testing.assert_allclose(np.gradient(value, t)[1:-1], weight[1:-1], atol=5e-3)


def test_simplex_dots_are_grouped_by_support():
    ax = plot.simplex(pm.Gini(), [[5.0, 0, 0], [0, 5.0, 0], [1.0, 1.0, -9], [0, 0, 0]])
    dots = [len(c.get_offsets()) for c in ax.collections if c.get_zorder() > 2]
    assert dots == [2, 1, 1]


def test_values_of_omega_are_shaded_from_mid_grey_to_white():
    """The lowest value is in the middle of the greys: Omega of Gini is -1/3 at the center, and 0 at vertices."""
    ax = plot.simplex(pm.Gini(), [[5.0, 0, 0]])
    (shading,) = (c for c in ax.collections if isinstance(c, TriContourSet))
    assert shading.norm.vmin == pytest.approx(-2 / 3)
    assert shading.norm.vmax >= 0


def test_the_default_scores_fill_a_disc():
    points = disc(radius=2.0, rings=3)
    assert points.shape == (37, 3)
    torch.testing.assert_close(points.sum(-1), torch.zeros(37, dtype=torch.float64))
    assert points.norm(dim=-1).max() <= 2.0 + 1e-8


def test_missing_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'polymax\[plot\]'"):
        plot.attention(WEIGHTS, ROWS, COLUMNS)
