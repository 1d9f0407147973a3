"""Dependency trees with labels: what the arcs of the table cannot say, their compact form, draws and k best."""

import pytest
import torch
from tolerances import close, equal
from torch.distributions import kl_divergence

import polymax as pm

TREES = [pm.SpanningTree(labelled=True), pm.SpanningTree(single_root=False, labelled=True)]
TREES += [pm.ProjectiveTree(labelled=True), pm.ProjectiveTree(single_root=False, labelled=True)]
trees = pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{type(t).__name__}-{t.single_root}")


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def without(tree):
    return type(tree)(tree.lengths, tree.single_root)


@trees
def test_labels_are_a_choice_at_each_arc(tree):
    x = randn(2, 5, 5, 3)
    best, total = x.amax(-1), x.logsumexp(-1)
    y = tree.map(x)
    equal(y.sum(-1), without(tree).map(best), "the best tree is that of the best labels")
    close(tree.score(y, x), without(tree).best_score(best), "with their scores")
    close(tree.logsumexp(x), without(tree).logsumexp(total), "sums are those of the sums over labels")
    mu = pm.Marginals(tree)(x)
    close(mu, without(tree).marginals(total).unsqueeze(-1) * x.softmax(-1), "an arc, then its label")
    one = pm.Marginals(tree)(x[..., :1])
    close(one.squeeze(-1), pm.Marginals(without(tree))(x[..., 0]), "one label is none")


@trees
def test_k_best_and_draws(tree):
    x = randn(4, 4, 2)
    d = pm.Marginals(tree).distribution(x)
    vertices = tree.vertices((4, 4, 2)).double()
    p = d.prob(vertices)
    close(p.sum(), 1.0, "probabilities sum to 1")
    best, probs = d.topk(7)
    close(probs, p.sort(descending=True).values[:7], "the k best, in order")
    close(d.prob(best), probs, "and their structures")
    everything, weights = d.support()
    assert weights.shape == p.shape
    assert len({tuple(y.flatten().tolist()) for y in everything}) == len(vertices)
    drawn = d.sample((4000,), generator=torch.Generator().manual_seed(0))
    assert float((drawn.mean(0) - d.mean).abs().max()) < 0.04
    assert bool(torch.isin((drawn.flatten(1) @ 2.0 ** torch.arange(32.0).double()),
                           vertices.flatten(1) @ 2.0 ** torch.arange(32.0).double()).all())  # fmt: skip
    other = pm.Marginals(tree).distribution(randn(4, 4, 2, seed=1))
    close(kl_divergence(d, other), (p * (p.log() - other.prob(vertices).log())).sum(), "divergence")


@trees
def test_k_best_of_shorter_sentences(tree):
    lengths = torch.tensor([3, 1, 0])
    x = randn(3, 4, 4, 2)
    x[1, 2:] = torch.nan
    x[2] = torch.nan
    best, probs = pm.Marginals(tree.with_lengths(lengths)).distribution(x).topk(4)
    one, two = pm.Marginals(tree).distribution(x[0]), pm.Marginals(tree).distribution(x[1, :2, :2])
    close(probs[0], one.topk(4)[1], "padding does not change the order")
    close(probs[1], two.topk(4)[1], "padding does not change the order")
    close(probs[2], [1.0, 0.0, 0.0, 0.0], "nothing is one structure")
    assert bool((best[1, :, 2:] == 0).all())
    assert bool((best[2] == 0).all())


@trees
def test_compact_form_and_targets(tree):
    x = randn(2, 4, 4, 3).requires_grad_()
    index = torch.tensor([[[2, 1], [0, 0], [2, 2]], [[0, 2], [1, 0], [2, 1]]])
    y = tree.encode(index, 3)
    assert y.shape == (2, 4, 4, 3)
    equal(tree.decode(y), index, "decode undoes encode")
    loss = pm.crf_loss(tree, x, index, reduction="none")
    close(loss, -pm.Marginals(tree).distribution(x).log_prob(y.double()), "the loss is the negative log-likelihood")
    (slope,) = torch.autograd.grad(loss.sum(), x)
    close(slope, (pm.Marginals(tree)(x) - y).detach(), "its gradient is mu - y")
    unlabelled = index.clone()
    unlabelled[..., 1] = -2
    partial = pm.crf_loss(tree, x, pm.Partial(unlabelled), reduction="none")
    expected = pm.crf_loss(without(tree), x.logsumexp(-1), index[..., 0], reduction="none")
    close(partial, expected, "labels that are not known are summed over")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([[0, 3], [1, 0]], r"token 1 has label 3, not one in \[0, 3\)"),
        ([[0, -1], [1, 0]], "token 1 has label -1"),
        ([[2, 0], [1, 0]], "in a cycle"),
        ([0, 1], r"heads and labels of tokens, \(\*batch, n, 2\)"),
    ],
)
def test_what_is_no_labelled_tree(index, message):
    tree, x = pm.SpanningTree(labelled=True), torch.zeros(3, 3, 3)
    with pytest.raises(ValueError, match=message):
        tree.encode(torch.tensor(index), 3)
    with pytest.raises(ValueError, match=message):
        pm.crf_loss(tree, x, torch.tensor(index))


def test_wrong_shapes():
    with pytest.raises(ValueError, match=r"scores must be \(\*batch, n \+ 1, n \+ 1, labels\); got \(4, 4\)"):
        pm.SpanningTree(labelled=True).map(torch.zeros(4, 4))
    with pytest.raises(TypeError, match="the number of labels"):
        pm.ProjectiveTree(labelled=True).encode(torch.tensor([[0, 1]]))
