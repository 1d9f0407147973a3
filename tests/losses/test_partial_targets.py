"""Targets known in part, and targets between structures: against enumeration, and the divergence from a teacher."""

import pytest
import torch
from loss_table import INDICATORS, ROWS, grad, problem
from sets import BY_NAME, every
from tolerances import close

import polymax as pm
from polymax.losses import Partial, crf_loss, fenchel_young, perceptron_loss, sparsemap_loss, svm_loss
from polymax.structures.base import tensors


def constrained(row, scores, allowed):
    """Every structure, and the scores of those that agree (count, *batch), -inf for the others."""
    vertices, values = row.enumerated(scores)
    forbidden = torch.einsum("kx,bx->kb", vertices[0].flatten(1), (~allowed).double().flatten(1))
    return vertices, values, torch.where(forbidden > 0, -torch.inf, values)


@every([row for row in INDICATORS if row.name != "hypergraph"])
def test_partial_is_the_sum_over_what_agrees(row):
    scores, y = problem(row, (3,))
    allowed = (torch.rand(tensors(y)[0].shape, generator=torch.Generator().manual_seed(1)) < 0.6) | (tensors(y)[0] > 0)
    vertices, values, known = constrained(row, scores, allowed)
    target = Partial(allowed)
    hard = perceptron_loss(row.structure, scores, target, "none")
    close(hard, values.amax(0) - known.amax(0), "the perceptron takes the best that agrees")
    if isinstance(row.structure, pm.Counted):
        losses = crf_loss(row.structure, scores, target, "none")
        close(losses, values.logsumexp(0) - known.logsumexp(0), "the CRF sums over all that agree")
    best = known.argmax(0)
    completed = row.structure.named(*(v[best] for v in vertices))
    losses = sparsemap_loss(row.structure, scores, target, "none")
    close(losses, sparsemap_loss(row.structure, scores, completed, "none"), "SparseMAP takes the best that agrees")
    wrong = torch.einsum("kx,bx->kb", vertices[0].flatten(1), (~allowed).double().flatten(1))
    hinge = svm_loss(row.structure, scores, target, reduction="none")
    close(hinge, (values + wrong).amax(0) - known.amax(0), "costs count what does not agree")


UNKNOWN = [BY_NAME[name] for name in ("chain", "projective-tree", "spanning-tree", "assignment-wide", "simplex")]


@every(UNKNOWN)
def test_partial_indices(row, device):
    scores, y = problem(row, (4,), device=device)
    index = row.structure.decode(y)
    first = tensors(y)[0]
    closest = perceptron_loss(row.structure, scores, Partial(index), "none")
    close(closest, perceptron_loss(row.structure, scores, index, "none"), "all known is an ordinary target")
    nothing = Partial(torch.full_like(index, -2))
    assert bool((perceptron_loss(row.structure, scores, nothing, "none") == 0).all()), "nothing known costs nothing"
    if index.dim() == 1:
        return
    index[:, 0] = -2
    choice = -2 if isinstance(row.structure, pm.ProjectiveTree | pm.SpanningTree) else -1
    mask = first.movedim(choice, -1) > 0
    place = 1 if choice == -2 else 0
    mask[:, place] = True
    loss = perceptron_loss(row.structure, scores, Partial(index), "none")
    close(loss, perceptron_loss(row.structure, scores, Partial(mask.movedim(-1, choice)), "none"), "-2 allows all")


def test_partial_gradient_is_a_difference_of_expectations():
    row = BY_NAME["chain"]
    scores = tuple(x.requires_grad_() for x in row.scores(batch=(3,)))
    tags = torch.tensor([[0, -2, 1, -2, 2]] * 3)
    (slope, _) = grad(crf_loss(row.structure, scores, Partial(tags), "sum"), scores)
    allowed = (tags[..., None] == torch.arange(3)) | (tags == -2)[..., None]
    held = pm.Marginals(row.structure)(scores[0].masked_fill(~allowed, -torch.inf), scores[1]).unary
    close(slope, (pm.Marginals(row.structure)(*scores).unary - held).detach(), "the gradient is argmax - argmax")


@every([BY_NAME[n] for n in ("chain", "chain-by-step", "segments", "dag", "simplex")])
def test_soft_targets(row):
    scores, teacher = row.scores(batch=(3,)), row.scores(batch=(3,), seed=5)
    scores = tuple(x.requires_grad_() for x in scores)
    smooth = pm.Marginals(row.structure)
    mu = smooth(*teacher)
    losses = fenchel_young(smooth, scores, mu, reduction="none")
    kl = torch.distributions.kl_divergence(smooth.distribution(*teacher), smooth.distribution(*scores))
    close(losses, kl, "with expectations of a teacher the loss is the divergence from it")
    own = fenchel_young(smooth, scores, row.structure.named(*(m.detach() for m in tensors(smooth(*scores)))))
    assert abs(float(own.detach())) < 1e-12
    local = pm.LocalMax(row.structure, pm.Gini())
    own = fenchel_young(local, scores, row.structure.named(*(m.detach() for m in tensors(local(*scores)))))
    assert abs(float(own.detach())) < 1e-12, "a smoothed recursion knows its Omega as well"


@every([row for row in ROWS if isinstance(row.structure, pm.Counted)])
def test_targets_of_a_teacher(row):
    """By its expectations the loss is known up to a constant, by its distribution it is known."""
    scores, teacher = row.scores(batch=(3,)), row.scores(batch=(3,), seed=5)
    scores = tuple(x.requires_grad_() for x in scores)
    smooth = pm.Marginals(row.structure, 0.7)
    p, q = smooth.distribution(*teacher), smooth.distribution(*scores)
    mu = smooth(*teacher)
    divergence = fenchel_young(smooth, scores, p, reduction="none")
    close(divergence, 0.7 * torch.distributions.kl_divergence(p, q), "a distribution is a target: its divergence")
    losses = fenchel_young(smooth, scores, mu, reduction="none")
    missing = (losses - divergence).detach()
    constant = 0.7 * p.entropy() if float(missing.abs().max()) > 1e-9 else torch.zeros(3, dtype=torch.float64)
    close(missing, constant, "the loss lacks nothing, or the entropy of its target")
    expected = torch.autograd.grad((smooth.max(*scores) - row.structure.score(mu, *scores)).sum(), scores)
    for loss in (losses, divergence):
        for s, e in zip(torch.autograd.grad(loss.sum(), scores, retain_graph=True), expected, strict=True):
            close(s, e, "the gradient is argmax - y")


def test_what_a_gradient_of_the_target_would_be_is_not_known():
    mu = pm.Marginals(pm.SpanningTree())(torch.randn(4, 4)).requires_grad_()
    with pytest.raises(ValueError, match=r"y must not require a gradient.*SpanningTree"):
        crf_loss(pm.SpanningTree(), torch.randn(4, 4), mu)


@every([row for row in ROWS if row.name != "explicit"])
def test_soft_targets_of_sparsemap(row):
    scores = row.scores(batch=(3,))
    smooth = pm.SparseMap(row.structure)
    losses = fenchel_young(smooth, scores, smooth(*scores), reduction="none")
    assert float(losses.abs().max()) < 1e-9, "the loss is 0 at its own prediction"
