"""Pictures of structures: which lines, widths and words are drawn for which marginals."""

import sys

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from polymax import plot
from polymax.plot.canvas import ZERO
from polymax.plot.sequence import BLUE, token_axis
from polymax.plot.tree import heights

MU = [[1.0, 0.25, 0.0], [0.0, 1.0, 1.0]]
PATH = [[1, 0, 0], [0, 1, 1]]
UNARY = [[1.0, 0.0], [0.75, 0.25], [0.75, 0.25]]
TRANSITION = [[[0.75, 0.25], [0.0, 0.0]], [[0.75, 0.0], [0.0, 0.25]]]
# ((the cat) sleeps), and a quarter of (the (cat sleeps))
TREE = [[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
SPANS = [[1.0, 0.75, 1.0], [0.0, 1.0, 0.25], [0.0, 0.0, 1.0]]
# the <- cat <- sleeps <- root, and a quarter of the -> cat, both from sleeps
HEADS = [[0, 0, 0, 1.0], [0, 0, 0.25, 0], [0, 0.75, 0, 0], [0, 0.25, 0.75, 0]]
WORDS = ["the", "cat", "sleeps"]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def points_per_unit(ax):
    ax.figure.canvas.draw()
    return ax.get_window_extent().width * 72 / ax.figure.dpi / np.ptp(ax.get_xlim())


def all_pictures(dtype=torch.float64, **options):
    def leaf(values):
        return torch.tensor(values, dtype=dtype, requires_grad=True)

    labelled = torch.stack([leaf(SPANS), torch.zeros(3, 3, dtype=dtype)], -1)
    return [
        plot.alignment(leaf(MU), leaf([1.0, 2.0]), torch.randn(3, 4, dtype=dtype), path=torch.tensor(PATH), **options),
        plot.sequence(leaf(UNARY), leaf(TRANSITION), WORDS, ["D", "N"], path=torch.tensor([0, 0, 1]), **options),
        plot.tree(leaf(TREE), WORDS, **options),
        plot.tree(leaf(SPANS), WORDS, **options),
        plot.tree(labelled, WORDS, labels=["NP", "VP"], **options),
        plot.arcs(leaf(HEADS), WORDS, **options),
    ]


def test_every_picture_without_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    before = matplotlib.rcParams.copy()
    for ax in all_pictures():
        assert isinstance(ax, Axes)
        ax.figure.canvas.draw()
    assert dict.__eq__(matplotlib.rcParams, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_given_axes(dtype):
    ax = Figure().subplots()
    assert all(drawn is ax for drawn in all_pictures(dtype, ax=ax))


def test_alignment_has_grey_zeros_and_cells_at_their_indices():
    ax = plot.alignment([[1.0, 1e-9, 0.0], [0.0, 1.0, 1.0]])
    ax.figure.canvas.draw()
    mesh = ax.collections[0]
    grey = np.isclose(mesh.get_facecolors(), to_rgba(ZERO)).all(-1).reshape(2, 3)
    assert grey.tolist() == [[False, False, True], [True, False, False]]
    assert mesh.get_coordinates()[0, 0].tolist() == [-0.5, -0.5]
    assert ax.get_xlim() == (-0.5, 2.5)
    assert ax.get_ylim() == (1.5, -0.5)
    assert len(ax.lines) == len(ax.child_axes) == 0


def test_alignment_draws_the_path_through_its_cells():
    ax = plot.alignment(MU, path=PATH)
    (line,) = ax.lines
    assert line.get_xydata().tolist() == [[0, 0], [1, 1], [2, 1]]


def test_alignment_puts_the_series_on_the_sides():
    x, y = torch.tensor([5.0, 7.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    ax = plot.alignment(MU, x, y)
    left, above = ax.child_axes
    assert [line.get_xydata().tolist() for line in left.lines] == [[[5, 0], [7, 1]]]
    assert [line.get_ydata().tolist() for line in above.lines] == [[1, 3, 5], [2, 4, 6]]
    # with the cells, and outside of them
    assert left.get_ylim() == ax.get_ylim()
    assert above.get_xlim() == ax.get_xlim()
    ax.figure.canvas.draw()
    matrix, side, head = (axes.get_window_extent() for axes in (ax, left, above))
    assert side.x1 <= matrix.x0
    assert head.y0 >= matrix.y1
    np.testing.assert_allclose([side.y0, side.y1, head.x0, head.x1], [matrix.y0, matrix.y1, matrix.x0, matrix.x1])


def test_cells_have_borders_only_while_they_are_few():
    few, many = (plot.alignment(np.eye(n)).collections[0] for n in (40, 41))
    assert few.get_edgecolors().tolist() == [[1, 1, 1, 1]]
    assert len(many.get_edgecolors()) == 0


def test_sequence_draws_positive_nodes_and_edges_alone():
    ax = plot.sequence(UNARY, TRANSITION, WORDS, ["D", "N"])
    lines, nodes = ax.collections
    assert [segment.tolist() for segment in lines.get_segments()] == [
        [[0, 0], [1, 0]],
        [[0, 0], [1, 1]],
        [[1, 0], [2, 0]],
        [[1, 1], [2, 1]],
    ]
    widths = np.array(lines.get_linewidths())
    np.testing.assert_allclose(widths / widths[0], [1, 1 / 3, 1, 1 / 3])
    assert nodes.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1]]
    areas = nodes.get_sizes()
    np.testing.assert_allclose(areas / areas[0], [1, 0.75, 0.25, 0.75, 0.25])
    assert len(ax.lines) == 0
    assert [label.get_text() for label in ax.get_xticklabels()] == WORDS
    assert [label.get_text() for label in ax.get_yticklabels()] == ["D", "N"]


def test_sequence_emphasises_the_path_up_to_its_padding():
    ax = plot.sequence(UNARY, TRANSITION, path=[0, 1, -1])
    assert ax.lines[0].get_xydata().tolist() == [[0, 0], [1, 1]]
    rings = ax.collections[2]
    assert rings.get_offsets().tolist() == [[0, 0], [1, 1]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "2"]


def test_one_word_and_nothing_at_all():
    ax = plot.sequence([[0.5, 0.5]], np.zeros((0, 2, 2)), ["word"], path=[1])
    assert len(ax.collections[1].get_offsets()) == 2
    plot.sequence(np.zeros((2, 2)), np.zeros((1, 2, 2)))
    plot.alignment([[0.0]])
    assert texts(plot.tree([[0.5]])) == []
    assert texts(plot.tree(np.zeros((2, 2, 1)))) == []
    assert len(plot.tree([[1.0]], ["word"]).collections[0].get_segments()) == 0
    assert len(plot.arcs(np.zeros((3, 3))).collections[0].get_paths()) == 0


def test_one_bracketing_is_a_tree():
    ax = plot.tree(TREE, WORDS)
    lines = {tuple(map(tuple, segment)) for segment in ax.collections[0].get_segments()}
    root, inner = (1, 2), (0.5, 1)
    assert lines == {(root, inner), (root, (2, 0)), (inner, (0, 0)), (inner, (1, 0))}
    assert ax.collections[1].get_offsets().tolist() == [[0.5, 1], [1, 2]]
    assert texts(ax) == []


def test_a_tree_has_its_labels_at_its_nodes():
    mu = np.zeros((2, 2, 3))
    mu[0, 0, 0] = mu[1, 1, 1] = mu[0, 1, 2] = 1
    ax = plot.tree(mu, ["the", "cat"], labels=["D", "N", "NP"])
    assert {text.get_text(): text.get_position() for text in ax.texts} == {"D": (0, 0), "N": (1, 0), "NP": (0.5, 1)}


def test_a_tree_with_many_children_has_no_crossing_lines():
    mu = np.eye(6)
    mu[0, 5] = mu[0, 1] = mu[2, 4] = 1
    parents = [tuple(segment[0]) for segment in plot.tree(mu).collections[0].get_segments()]
    assert {parent: parents.count(parent) for parent in parents} == {(2.5, 5): 3, (0.5, 1): 2, (3, 2): 3}


def test_marginals_of_spans_are_brackets():
    ax = plot.tree(SPANS, WORDS)
    (lines,) = ax.collections
    brackets = lines.get_segments()
    # the feet are in the words at the ends, and the overlapping spans of two words on two levels
    assert [np.round(bracket[[0, -1], 0]).tolist() for bracket in brackets] == [[0, 1], [0, 2], [1, 2]]
    assert [bracket[1, 1] for bracket in brackets] == [2, 4, 3]
    widths, opacity = np.array(lines.get_linewidths()), lines.get_colors()[:, 3]
    np.testing.assert_allclose(widths / widths[1], [0.75, 1, 0.25])
    assert opacity[1] == 1
    assert opacity[2] < opacity[0] < 1
    assert texts(ax) == [".75", ".25"]


def test_heights_are_widths_unless_brackets_overlap():
    assert heights([(0, 1), (2, 3), (0, 3)]) == {(0, 1): 2, (2, 3): 2, (0, 3): 4}
    assert heights([(0, 1), (1, 2), (2, 3), (0, 2)]) == {(0, 1): 2, (1, 2): 3, (2, 3): 2, (0, 2): 4}


def test_labelled_brackets_name_the_likely_labels_that_fit():
    mu = np.zeros((2, 2, 3))
    mu[0, 0], mu[1, 1], mu[0, 1] = (0.5, 0.5, 0), (0, 1, 0), (0.01, 0.3, 0.69)
    ax = plot.tree(mu, ["the", "cat"], labels=["D", "N", "NP"])
    assert texts(ax) == ["D .50", "NP .69  N .30", "N"]
    # words have labels, not brackets
    assert len(ax.collections[0].get_segments()) == 1


def test_arcs_go_from_heads_to_modifiers():
    ax = plot.arcs(HEADS, WORDS)
    curves, tips = ax.collections
    ends = [tuple(np.round(path.vertices[[0, -1], 0]).astype(int)) for path in curves.get_paths()]
    # from the least probable; the root is above its modifier
    assert ends == [(1, 2), (3, 1), (2, 1), (3, 2), (3, 3)]
    widths = np.array(curves.get_linewidths())
    np.testing.assert_allclose(widths / widths[-1], [0.25, 0.25, 0.75, 0.75, 1])
    np.testing.assert_allclose(tips.get_offsets()[:, 0], [path.vertices[-1, 0] for path in curves.get_paths()])
    assert (np.diff(curves.get_edgecolors()[:, 3]) >= 0).all()
    np.testing.assert_allclose(curves.get_edgecolors()[-1], to_rgba(BLUE))
    assert texts(ax) == [".25", ".25", ".75", ".75", "root"]
    assert [label.get_text() for label in ax.get_xticklabels()] == WORDS
    assert ax.get_xticks().tolist() == [1, 2, 3]


def test_arcs_that_contain_others_are_higher_and_opposites_apart():
    curves = plot.arcs(HEADS, WORDS).collections[0].get_paths()
    right, outer, left, _, root = (path.vertices[:, 1].max() for path in curves)
    assert left > right
    assert outer > right
    assert root > 0.75 * outer


def test_numbers_are_left_out_where_they_say_nothing():
    mu = np.zeros((3, 3))
    mu[0, 1], mu[2, 1], mu[0, 2], mu[1, 2] = 0.9999, 0.0001, 0.04, 0.96
    ax = plot.arcs(mu)
    assert len(ax.collections[0].get_paths()) == 4
    assert texts(ax) == [".96", "root"]


@pytest.mark.parametrize(
    "tokens", [WORDS, ["東京都", "は", "大きな都市", "です"] * 2, ["antidisestablishment"] * 40, ["a"] * 90]
)
@pytest.mark.filterwarnings("ignore:no font that is installed")
def test_tokens_stay_apart(tokens):
    n = len(tokens)
    ax = plot.arcs(np.eye(n + 1, k=1), tokens)
    labels = ax.get_xticklabels()
    size, slanted = labels[0].get_fontsize(), labels[0].get_rotation() == 45
    # a character is as wide as the font is high, or two thirds of that
    widths = [size * sum(1 if c > "\u2e80" else 0.6 for c in token) for token in tokens]
    if slanted:
        needed = size * 2**0.5
    else:
        needed = max((a + b) / 2 for a, b in zip(widths, widths[1:]))
    # text of another alphabet needs its font to be drawn, not to be measured
    spacing = ax.figure.get_figwidth() * 72 / n if "東京都" in tokens else points_per_unit(ax)
    assert needed <= spacing
    assert slanted == (len(tokens[0]) > 10)


def test_tokens_are_made_to_fit_given_axes():
    mu, tokens = np.eye(6), ["constituent"] * 5
    wide, narrow, narrower = (Figure(figsize=(width, 2)).subplots() for width in (8, 5.5, 2))
    looks = [plot.arcs(np.eye(6, k=1), tokens, ax=ax).get_xticklabels()[0] for ax in (wide, narrow, narrower)]
    assert [look.get_rotation() for look in looks] == [0, 0, 45]
    assert looks[0].get_fontsize() == 10 > looks[1].get_fontsize() >= 7.5
    plot.tree(mu, [*tokens, "x"], ax=narrow)
    assert len(narrow.get_xticklabels()) == 6


def test_tokens_are_not_formulas():
    ax = Figure().subplots()
    token_axis(ax, ["$x$", "$$", r"\frac"], 50)
    ax.figure.canvas.draw()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["$x$", "$$", r"\frac"]
    assert not any(label.get_parse_math() for label in ax.get_xticklabels())


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plot.alignment([1.0]), r"mu must be \(n, m\), not empty; got \(1,\)"),
        (lambda: plot.alignment([[float("nan")]]), "mu must be finite and not negative"),
        (lambda: plot.alignment(MU, x=[1.0]), r"x must be \(2,\) or \(2, d\)"),
        (lambda: plot.alignment(MU, y=np.zeros((3, 0))), r"y must be \(3,\) or \(3, d\)"),
        (lambda: plot.alignment(MU, y=[0, 1, float("inf")]), "y must be finite"),
        (lambda: plot.alignment(MU, path=[[1, 0], [0, 1]]), r"path must be \(2, 3\)"),
        (lambda: plot.alignment(MU, path=[[1, 0, 1], [0, 0, 1]]), "path must be 0 except"),
        (lambda: plot.alignment(MU, path=[[0, 1, 0], [1, 0, 0]]), "path must be 0 except"),
        (lambda: plot.alignment(MU, path=[[1, 0.5, 0], [0, 1, 1]]), "path must be 0 except"),
        (lambda: plot.alignment(MU, path=np.zeros((2, 3))), "path must be 0 except"),
        (lambda: plot.sequence([0.5, 0.5], TRANSITION), r"unary must be \(n, s\)"),
        (lambda: plot.sequence(UNARY, TRANSITION[:1]), r"transition must be \(n-1, s, s\) = \(2, 2, 2\)"),
        (lambda: plot.sequence(UNARY, -np.array(TRANSITION)), "transition must be finite and not negative"),
        (lambda: plot.sequence(UNARY, TRANSITION, WORDS[:2]), "tokens must be 3 labels; got 2"),
        (lambda: plot.sequence(UNARY, TRANSITION, tags="DN"), "tags must be 2 labels; got a string"),
        (lambda: plot.sequence(UNARY, TRANSITION, path=[0, 1]), r"path must be \(n,\) = \(3,\)"),
        (lambda: plot.sequence(UNARY, TRANSITION, path=[0, 1, 2]), "path must hold tags from 0 to 1"),
        (lambda: plot.sequence(UNARY, TRANSITION, path=[0, -1, 1]), "path must hold tags"),
        (lambda: plot.tree(np.zeros((2, 3))), r"mu must be \(n, n\) or \(n, n, labels\)"),
        (lambda: plot.tree(np.transpose(SPANS)), "mu must be 0 below the diagonal"),
        (lambda: plot.tree(SPANS, labels=["NP"]), r"labels need mu of shape \(n, n, labels\)"),
        (lambda: plot.tree(np.ones((1, 1, 2)), labels=["NP"]), "labels must be 2 labels; got 1"),
        (lambda: plot.arcs([[0.0]]), r"mu must be \(n\+1, n\+1\)"),
        (lambda: plot.arcs(np.transpose(HEADS)), "mu must be 0 in column 0"),
        (lambda: plot.arcs(np.eye(3)), "on the diagonal"),
        (lambda: plot.arcs(HEADS, ["root", *WORDS]), "tokens must be 3 labels; got 4"),
    ],
)
def test_bad_arguments_are_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
