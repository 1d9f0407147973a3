"""SparseMAP says which loop it takes, and takes a short way to it."""

import pytest
import torch

import polymax as pm
from tests.backend.test_routes import functions_entered

CALLS = {
    "trees": (pm.SpanningTree(), [(4, 6, 6)]),
    "chains": (pm.Chain(), [(4, 5, 3), (3, 3)]),
    "assignments": (pm.Assignment(), [(4, 5, 5)]),
}


@pytest.mark.parametrize("derived", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("name", CALLS)
def test_routes_are_short(name, derived):
    structure, shapes = CALLS[name]
    smooth, scores = pm.SparseMap(structure), [torch.randn(shape, requires_grad=derived) for shape in shapes]
    entered = functions_entered(lambda: smooth(*scores))
    # one function for each array that is read without marking its storage, and one that looks for DTensors
    assert 0 < len(entered) <= 33 + 4 * derived, f"SparseMap of {name} enters {len(entered)} functions: {entered}"


class Corner(pm.Structure):
    """One of the corners of a square: a set of the user's own, without a search of its own."""

    def map(self, *scores):
        return (scores[0] > 0).to(scores[0])

    def event_dims(self, *scores):
        return (1,)


def test_a_call_says_which_loop_it_takes():
    x = torch.zeros(2, 3, 3)
    assert pm.SparseMap(pm.SpanningTree()).path(x) == (
        "A compiled loop for cpu solves each instance, because SpanningTree.search is by arcs."
    )
    assert pm.SparseMap(pm.Alignment()).path(x).endswith("by derivations.")
    labelled = pm.SparseMap(pm.SpanningTree(labelled=True)).path(torch.zeros(3, 3, 2))
    assert labelled.startswith("A loop in torch calls SpanningTree.map for the whole batch at each iteration, because")
    twice = pm.Hypergraph(heads=[1, 2], tails=[(0,), (1, 1)])
    for structure, scores in ((Corner(), torch.zeros(2)), (twice, torch.zeros(2))):
        assert "search is None" in pm.SparseMap(structure).path(scores)
    assert pm.SparseMap(pm.Simplex()).path(x).startswith("argmax is the closed form of Simplex.projection;")
    meta = pm.SparseMap(pm.SpanningTree()).path(x.to("meta"))
    assert "no compiled loop for meta has the rule of ActiveSet" in meta


def test_a_set_that_says_nothing_is_solved():
    x = torch.tensor([0.3, -0.2, 2.0], dtype=torch.float64, requires_grad=True)
    mu = pm.SparseMap(Corner())(x)
    torch.testing.assert_close(mu, x.clamp(0, 1))
    (slope,) = torch.autograd.grad(mu.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))


def test_gradients_of_many_outputs_at_once():
    """Kernels called without torch's dispatcher see what `is_grads_batched` wraps."""
    unary, transition = torch.randn(2, 3, 2, requires_grad=True), torch.randn(2, 2)
    mu = pm.Marginals(pm.Chain())(unary, transition).unary
    basis = torch.eye(mu.numel()).reshape(-1, *mu.shape)
    (together,) = torch.autograd.grad(mu, unary, basis, is_grads_batched=True, retain_graph=True)
    for row, one in zip(together, basis, strict=True):
        torch.testing.assert_close(row, torch.autograd.grad(mu, unary, one, retain_graph=True)[0])
