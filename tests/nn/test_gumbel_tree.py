"""Gumbel Tree-LSTMs: trees that grow by merging neighbours; and graph convolution over expected trees."""

import itertools

import pytest
import torch
from tolerances import close, equal
from torch.autograd import gradcheck

import polymax as pm
from polymax import nn
from polymax.nn.shift_reduce import check_transitions

X, D = 3, 4
SIMPLEX = pm.Simplex()
LENGTHS = torch.tensor([4, 1, 0, 3, 5])


def grower(dtype=torch.float64):
    return nn.GumbelTreeLSTM(X, D).to(dtype)


def grown(tree, tokens, choice):
    """One sentence, by a list of nodes; choice(scores) gives y, an indicator that may have a gradient."""
    nodes, merges, log_prob = list(tree.leaf(tokens)), [], torch.zeros((), dtype=tokens.dtype)
    while len(nodes) > 1:
        made = []
        for left, right in itertools.pairwise(nodes):
            h, c = tree.cell(torch.stack([left[:D], right[:D]]), torch.stack([left[D:], right[D:]]))
            made.append(torch.cat([h, c]))
        scores = torch.stack([m[:D] @ tree.query for m in made])
        y = choice(scores)
        at = int(y.detach().argmax())
        log_prob = log_prob + scores.log_softmax(-1)[at]
        # each node of the next layer is the left one, the right one, or the composed one, by how far y has come
        nodes = [
            (1 - y[: i + 1].sum()) * nodes[i] + y[i] * made[i] + y[:i].sum() * nodes[i + 1] for i in range(len(made))
        ]
        merges.append(at)
    root = nodes[0][:D] if nodes else torch.zeros(D, dtype=tokens.dtype)
    return root, merges, log_prob


def check(found, tree, tokens, choice_of):
    alone = [grown(tree, tokens[b, :n], choice_of(b)) for b, n in enumerate(LENGTHS.tolist())]
    merges = torch.tensor([a[1] + [-1] * (4 - len(a[1])) for a in alone])
    equal(found.merges, merges, "merges, one by one")
    equal(check_transitions(found.transitions, LENGTHS), found.transitions, "merges make trees")
    root, log_prob = torch.stack([a[0] for a in alone]), torch.stack([a[2] for a in alone])
    close(found.root, root, "roots, one by one")
    close(found.log_prob, log_prob, "log-probabilities, one by one")
    weight = torch.linspace(-1, 1, root.numel(), dtype=root.dtype).reshape(root.shape)
    inputs = [tokens, *tree.parameters()]
    first, second = (
        torch.autograd.grad((r * weight).sum() + (0.3 * p).sum(), inputs)
        for r, p in ((found.root, found.log_prob), (root, log_prob))
    )
    for a, b in zip(first, second, strict=True):
        close(a, b, "gradients, one by one")


def test_best_pairs():
    tree = grower().eval()
    tokens = torch.randn(5, 5, X, dtype=torch.float64, requires_grad=True)

    def best(scores):
        return torch.nn.functional.one_hot(scores.detach().argmax(), len(scores)).to(scores.dtype)

    found = tree(tokens, LENGTHS)
    check(found, tree, tokens, lambda b: best)
    composed = nn.BinaryTreeLSTM(X, D).double()
    composed.leaf, composed.cell = tree.leaf, tree.cell
    close(composed(tokens, found.transitions).root, tree(tokens, LENGTHS).root, "the root is that of the tree")


def test_straight_through_gumbel():
    tree = nn.GumbelTreeLSTM(X, D, gamma=0.7).double()
    tokens = torch.randn(5, 5, X, dtype=torch.float64, requires_grad=True)
    found = tree(tokens, LENGTHS, generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(2)
    noise = [pm.Gumbel().sample(torch.zeros(5, 4 - k, dtype=torch.float64), generator=generator) for k in range(4)]

    def drawn(b):
        steps = iter(noise)

        def choice(scores):
            z = scores + next(steps)[b, : len(scores)]
            p = (z / 0.7).softmax(-1)
            return torch.nn.functional.one_hot(z.detach().argmax(), len(p)).to(p) + p - p.detach()

        return choice

    check(found, tree, tokens, drawn)
    again = tree(tokens, LENGTHS, generator=torch.Generator().manual_seed(2))
    equal(again.root, found.root, "the same generator gives the same bits")


def test_padding_is_a_shorter_sentence():
    tree = grower()
    tokens = torch.randn(3, 5, X, dtype=torch.float64)
    tokens[1, 3:] = torch.nan
    tokens[2, 1:] = torch.inf
    tokens.requires_grad_()
    lengths = torch.tensor([5, 3, 1])
    found = tree(tokens, lengths, policy=pm.HardMax(SIMPLEX))
    short = tree(tokens[1:2, :3], policy=pm.HardMax(SIMPLEX))
    close(found.root[1:2], short.root, "padding is not merged")
    close(found.log_prob[1:2], short.log_prob, "padding is not merged")
    close(found.entropy[1:2], short.entropy, "padding is not merged")
    grads = torch.autograd.grad(found.root.sum() + found.log_prob.sum(), [tokens, *tree.parameters()])
    assert all(g.isfinite().all() for g in grads)
    assert (grads[0][1, 3:] == 0).all()
    equal(found.merges[2], torch.full((4,), -1), "one token is its own tree")
    close(found.root[2:], tree.leaf(tokens[2:, 0])[:, :D], "one token is its own tree")
    nothing = tree(tokens[:, :0])
    assert nothing.root.tolist() == [[0.0] * D] * 3
    assert nothing.transitions.shape == (3, 0)


def test_orders_of_merges_are_a_distribution():
    tree, tokens = grower(), torch.randn(1, 4, X, dtype=torch.float64)

    def following(merges):
        steps = iter(merges)
        return lambda scores: torch.nn.functional.one_hot(torch.tensor(next(steps)), len(scores)).double()

    orders = list(itertools.product(range(3), range(2), range(1)))
    p = torch.stack([grown(tree, tokens[0], following(m))[2] for m in orders]).exp().detach()
    close(p.sum(), 1.0, "orders of merges have probabilities that add up to 1")
    count = 4000
    policy, generator = pm.Marginals(SIMPLEX), torch.Generator().manual_seed(0)
    found = tree(tokens.expand(count, -1, -1), policy=policy, generator=generator)
    share = (found.merges.unsqueeze(1) == torch.tensor(orders)).all(-1).double().mean(0)
    assert ((share - p).abs() < 4 * (p * (1 - p) / count).sqrt() + 1e-9).all()


def test_score_function_of_merges():
    tree, tokens = grower(), torch.randn(1, 3, X, dtype=torch.float64)
    parameters = list(tree.parameters())
    both = []
    for first in (0, 1):
        y = torch.nn.functional.one_hot(torch.tensor(first), 2).double()
        root, _, log_prob = grown(tree, tokens[0], lambda scores, y=y: y if len(scores) == 2 else y[:1] * 0 + 1)
        both.append((root.square().sum(), log_prob))
    truth = torch.autograd.grad(sum(p.exp() * loss for loss, p in both), parameters, retain_graph=True)
    expected = nn.PolicyGradient()
    total = [torch.zeros_like(p) for p in parameters]
    for loss, log_prob in both:
        value = expected(loss[None], log_prob[None])
        grads = torch.autograd.grad(value, parameters, retain_graph=True)
        total = [t + log_prob.exp().detach() * g for t, g in zip(total, grads, strict=True)]
    for a, b in zip(total, truth, strict=True):
        close(a, b, "the score function is unbiased")


def test_training_draws_and_evaluation_does_not():
    tree, tokens = grower(torch.float32), torch.randn(8, 6, X)
    draws = torch.stack([tree(tokens).merges for _ in range(4)])
    assert (draws != draws[0]).any()
    tree.eval()
    equal(tree(tokens).merges, tree(tokens, policy=pm.HardMax(SIMPLEX)).merges, "in evaluation the best pairs merge")
    with pytest.raises(TypeError, match=r"policy must be HardMax, Marginals or an estimator"):
        tree(tokens, policy=pm.softmax)


def test_graph_convolution():
    layers = nn.GraphConvolution(X, D, layers=2).double()
    scores = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    tokens = torch.randn(2, 4, X, dtype=torch.float64, requires_grad=True)
    mu = pm.Marginals(pm.SpanningTree())(scores)
    found = layers(tokens, mu)
    x = tokens
    for layer, r in zip(layers.layers, layers.roots, strict=True):
        parts = layer(x).reshape(2, 4, 3, D)
        rows = []
        for b, j in itertools.product(range(2), range(4)):
            total = parts[b, j, 0] + mu[b, 0, j + 1] * r
            for k in range(4):
                total = total + mu[b, k + 1, j + 1] * parts[b, k, 1] + mu[b, j + 1, k + 1] * parts[b, k, 2]
            rows.append(total.clamp(min=0))
        x = torch.stack(rows).reshape(2, 4, D)
    close(found, x, "graph convolution by its formula")
    assert gradcheck(lambda s, t: layers(t, pm.Marginals(pm.SpanningTree())(s)), (scores, tokens))
    lengths = torch.tensor([4, 2])
    spoiled = tokens.detach().clone()
    spoiled[1, 2:] = torch.nan
    padded = layers(spoiled, pm.Marginals(pm.SpanningTree(lengths))(scores), lengths)
    short = layers(tokens[1:, :2], pm.Marginals(pm.SpanningTree())(scores[1:, :3, :3]))
    close(padded[1:, :2], short, "padding has no arcs")
    assert (padded[1, 2:] == 0).all()
    with pytest.raises(ValueError, match=r"layers must be a positive integer; got 0"):
        nn.GraphConvolution(X, D, 0)
