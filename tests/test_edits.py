"""Edit distances and alignment scores: equal to naive loops over cells."""

import itertools
import math

import pytest
import torch
from tolerances import close

import polymax as pm

SIZES = [(0, 0), (0, 4), (3, 0), (1, 1), (4, 6), (7, 5)]
GAPS = [(-1.0, None), (-0.5, -2.0)]


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def naive(x, extend, opening, local=False):
    """The best score, by the best alignment that ends in each cell with a pair, or with a gap before it."""
    n, m = x.shape
    first = extend if opening is None else opening

    def gap(size):
        return first + (size - 1) * extend if size else 0.0

    best = 0.0 if local else gap(n) + gap(m)
    end = {}
    for i, j in itertools.product(range(n), range(m)):
        starts = [0.0 if local else gap(i) + gap(j)]
        before = itertools.product(range(i), range(j))
        starts += [end[a, b] + gap(i - a - 1) + gap(j - b - 1) for a, b in before]
        end[i, j] = float(x[i, j]) + max(starts)
        best = max(best, end[i, j] + (0.0 if local else gap(n - i - 1) + gap(m - j - 1)))
    return best


def naive_soft(cost, gap, gamma):
    """The smoothed distance, by the sum over alignments of the rest of both sequences."""
    n, m = cost.shape
    total = {}
    for i, j in itertools.product(reversed(range(n + 1)), reversed(range(m + 1))):
        total[i, j] = math.exp(-gap * (n - i + m - j) / gamma)
        for a, b in itertools.product(range(i, n), range(j, m)):
            skipped = gap * (a - i + b - j)
            total[i, j] += math.exp(-(skipped + float(cost[a, b])) / gamma) * total[a + 1, b + 1]
    return -gamma * math.log(total[0, 0])


def naive_edits(a, b):
    """The edit distance and the length of the longest common subsequence, by rows."""
    edits, common = list(range(len(b) + 1)), [0] * (len(b) + 1)
    for i, x in enumerate(a):
        next_edits, next_common = [i + 1], [0]
        for j, y in enumerate(b):
            next_edits.append(min(edits[j] + (x != y), edits[j + 1] + 1, next_edits[j] + 1))
            next_common.append(max(common[j] + (x == y), common[j + 1], next_common[j]))
        edits, common = next_edits, next_common
    return edits[-1], common[-1]


@pytest.mark.parametrize(("extend", "opening"), GAPS)
def test_alignment_scores(extend, opening):
    for size in SIZES:
        x = torch.randn(size, dtype=torch.float64)
        close(pm.needleman_wunsch(x, extend, opening), exact(naive(x, extend, opening)), "the best global score")
        close(pm.smith_waterman(x, extend, opening), exact(naive(x, extend, opening, True)), "the best local score")
    x = torch.randn(len(SIZES), 7, 6, dtype=torch.float64)
    lengths = tuple(torch.tensor(t) for t in zip(*SIZES, strict=True))
    for function, local in ((pm.needleman_wunsch, False), (pm.smith_waterman, True)):
        known = [naive(row[:n, :m], extend, opening, local) for row, (n, m) in zip(x, SIZES, strict=True)]
        close(function(x, extend, opening, lengths), exact(known), "lengths are shorter problems")


def test_gradients_are_pairs():
    x = torch.tensor([[2.0, -1.0, -1.0], [-1.0, -1.0, 2.0]], requires_grad=True)
    extend = torch.tensor(-1.0, requires_grad=True)
    for function in (pm.needleman_wunsch, pm.smith_waterman):
        pairs, gaps = torch.autograd.grad(function(x, extend), (x, extend))
        assert pairs.tolist() == [[1, 0, 0], [0, 0, 1]]
        assert gaps == 1
    with pytest.raises(ValueError, match=r"extend must be a single number; got \(3,\)"):
        pm.needleman_wunsch(x, torch.zeros(3))
    for wrong in ("a", None, torch.tensor(-1)):
        with pytest.raises(TypeError, match="extend must be"):
            pm.needleman_wunsch(x, wrong)
        with pytest.raises(TypeError, match="gap must be"):
            pm.soft_edit_distance(x, 1.0, wrong)
    with pytest.raises(ValueError, match="open must be a number; got nan"):
        pm.smith_waterman(x, -1.0, math.nan)


def test_distances_of_tokens():
    lengths = tuple(torch.tensor(t) for t in zip(*SIZES, strict=True))
    first, second = torch.randint(3, (len(SIZES), 7)), torch.randint(3, (len(SIZES), 6))
    found = pm.edit_distance(first, second, lengths), pm.lcs_length(first, second, lengths)
    for k, (n, m) in enumerate(SIZES):
        a, b = first[k, :n], second[k, :m]
        known = naive_edits(a.tolist(), b.tolist())
        assert (int(found[0][k]), int(found[1][k])) == known
        assert (int(pm.edit_distance(a, b)), int(pm.lcs_length(a, b))) == known
    with pytest.raises(ValueError, match=r"first and second must be"):
        pm.edit_distance(first, second[:2])
    with pytest.raises(TypeError, match=r"second must be a tensor of tokens.*got str"):
        pm.lcs_length(first, "sitting")


def test_soft_edit_distance():
    for size in SIZES:
        cost = torch.rand(size, dtype=torch.float64)
        for gap, gamma in ((1.0, 0.5), (0.4, 2.0)):
            known = exact(naive_soft(cost, gap, gamma))
            close(pm.soft_edit_distance(cost, gamma, gap), known, "the sum over alignments")
    cost = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pm.soft_edit_distance, cost)
