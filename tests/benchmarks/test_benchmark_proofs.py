"""What the oracles of trees, assignments and SparseMAP accept, and what they refuse."""

import pytest
import torch
from torch.nn.functional import one_hot

from benchmarks import parity
from benchmarks.baselines import Competitor, TorchFunction
from benchmarks.sparsemap import oracles
from benchmarks.sparsemap.cases import SPARSEMAP
from benchmarks.sparsemap.face import Face


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("arborescence", [[2, 1, 0]]),
        ("arborescence", [[0, 0, 1]]),
        ("arborescence", [[0, -1, 1]]),
        ("assignment", [[0, 0, 0]]),
        ("assignment", [[0, 1, 3]]),
    ],
    ids=["cycle", "two roots", "no head", "column taken", "no column"],
)
def test_the_gate_refuses_what_is_no_structure(name, wrong):
    case = next(case for case in SPARSEMAP if case.name == name)
    n = 4 if name == "arborescence" else 3
    # all entries are equally good, so that a score alone would accept what is wrong
    inputs = (torch.ones(1, n, n),)
    expected = parity.truth(case.ours.oracle, inputs, (), 0, case.problems.signature.compared)
    assert parity.check(case.ours, inputs, (), expected).holds
    assert not parity.check(
        Competitor("no", TorchFunction(lambda x: torch.tensor(wrong)), None), inputs, (), expected
    ).holds


def cyclic():
    """Three of the six permutations of three, whose mean is that of all."""
    return torch.stack([torch.eye(3, dtype=torch.float64).roll(k, 1) for k in range(3)])[None]


PERMUTATIONS = Face(oracles.inner, lambda x: one_hot(oracles.assignment(x), 3))


def test_a_face_has_more_structures_than_its_mean():
    scores = torch.zeros(1, 3, 3, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mu = PERMUTATIONS.mean(scores, cyclic(), torch.full((1, 3), 1 / 3, dtype=torch.float64))
    (found,) = torch.autograd.grad(mu, scores, v)
    torch.testing.assert_close(mu, torch.full_like(mu, 1 / 3))
    # around the mean of all permutations, sums of rows and columns are all that is fixed
    torch.testing.assert_close(found, v - v.mean(1, keepdim=True) - v.mean(2, keepdim=True) + v.mean())


@pytest.mark.parametrize(
    ("scores", "weights"),
    [([0.0, 0.0, 0.0], [0.5, 0.3, 0.2]), ([0.3, 0.0, 0.0], [1 / 3] * 3), ([0.0] * 3, [2 / 3, 2 / 3, -1 / 3])],
    ids=["weights", "scores", "sign"],
)
def test_a_mean_that_is_not_optimal_is_refused(scores, weights):
    x = torch.diag_embed(torch.tensor([scores], dtype=torch.float64))
    with pytest.raises(ValueError, match="no optimum"):
        PERMUTATIONS.mean(x, cyclic(), torch.tensor([weights], dtype=torch.float64))
