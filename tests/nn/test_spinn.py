"""SPINN: parsers that compose what they read, and the gradients of their choices."""

import pytest
import torch
from tolerances import close, equal
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm
from polymax import nn
from polymax.nn.choice import choose
from polymax.nn.shift_reduce import check_transitions

X, D, E = 3, 4, 5
SIMPLEX = pm.Simplex()
DRAW, SOFT = pm.Marginals(SIMPLEX), pm.Marginals(SIMPLEX, gamma=0.7)


def every_tree(n):
    """Transitions of all binary trees over n tokens."""
    return nn.transitions_of_spans(pm.SpanTree().vertices((n, n)))


def parser(dtype=torch.float64, dims=(X, D, E)):
    spinn = nn.SPINN(*dims).to(dtype)
    with torch.no_grad():
        # scores that differ
        spinn.reader.action.weight.mul_(4)
    return spinn


def read(spinn, tokens, choice):
    """One sentence, by a machine of lists; choice(t, scores, can) gives y, an indicator that may have a gradient."""
    reader, d = spinn.reader, spinn.reader.cell.hidden_dim
    nothing = torch.zeros(2 * d, dtype=tokens.dtype)
    buffer, stack, memory, steps = [reader.leaf(x) for x in tokens], [], None, []
    log_prob = entropy = torch.zeros((), dtype=tokens.dtype)
    for t in range(max(2 * len(tokens) - 1, 0)):
        seen = [buffer[0] if buffer else nothing] + [stack[-k] if len(stack) >= k else nothing for k in (1, 2)]
        memory = reader.tracker(torch.cat([s[:d] for s in seen])[None], memory)
        can = torch.tensor([len(buffer) > 0, len(stack) > 1])
        scores = reader.action(memory[0][0]).masked_fill(~can, -torch.inf)
        y = choice(t, scores, can)
        p = scores.softmax(-1)
        log_prob = log_prob + p[y.detach() > 0].log().sum()
        entropy = entropy - (p[can] * p[can].log()).sum()
        node = torch.zeros_like(nothing)
        if can[0]:
            node = node + y[0] * buffer[0]
        if can[1]:
            w = reader.cell.gates
            f_l, f_r, i, o, g = w(torch.cat([stack[-2][:d], stack[-1][:d], memory[0][0]])).chunk(5)
            c = f_l.sigmoid() * stack[-2][d:] + f_r.sigmoid() * stack[-1][d:] + i.sigmoid() * g.tanh()
            node = node + y[1] * torch.cat([o.sigmoid() * c.tanh(), c])
        if y[0] > 0:
            buffer, stack = buffer[1:], [*stack, node]
        else:
            stack = [*stack[:-2], node]
        steps.append(int(y.detach().argmax()))
    return (stack[0] if stack else nothing)[:d], steps, log_prob, entropy


def following(transitions):
    return lambda t, scores, can: (torch.arange(2) == transitions[t]).to(scores.dtype)


def slopes(out, spinn, tokens):
    weight = torch.linspace(-1, 1, out.root.numel(), dtype=out.root.dtype).reshape(out.root.shape)
    total = (weight * out.root).sum() + (0.3 * out.log_prob).sum() + (0.1 * out.entropy).sum()
    return torch.autograd.grad(total, [tokens, *spinn.parameters()])


LENGTHS = torch.tensor([4, 1, 0, 3, 5])
TREES = torch.tensor(
    [
        [0, 0, 1, 0, 0, 1, 1, -1, -1],
        [0, -1, -1, -1, -1, -1, -1, -1, -1],
        [-1] * 9,
        [0, 0, 0, 1, 1, -1, -1, -1, -1],
        [0, 0, 1, 0, 1, 0, 0, 1, 1],
    ]
)


def one_by_one(spinn, tokens, choice_of):
    found = [read(spinn, tokens[b, :n], choice_of(b)) for b, n in enumerate(LENGTHS.tolist())]
    root, steps, log_prob, entropy = zip(*found, strict=True)
    rows = torch.tensor([s + [-1] * (9 - len(s)) for s in steps])
    return nn.spinn.Parsed(torch.stack(root), rows, torch.stack(log_prob), torch.stack(entropy), tokens)


def same(found, expected, spinn, tokens, law):
    for a, b in zip(found[:4], expected[:4], strict=True):
        close(a, b, law) if a.is_floating_point() else equal(a, b, law)
    for a, b in zip(slopes(found, spinn, tokens), slopes(expected, spinn, tokens), strict=True):
        close(a, b, f"gradients: {law}")


def inputs(dtype=torch.float64):
    return torch.randn(5, 5, X, dtype=dtype, requires_grad=True)


def test_given_transitions():
    spinn, tokens = parser(), inputs()
    found = spinn(tokens, LENGTHS, TREES)
    equal(found.transitions, TREES, "what is given is done")
    expected = one_by_one(spinn, tokens, lambda b: following(TREES[b]))
    same(found, expected, spinn, tokens, "a batch is its sentences, one by one")
    assert (found.log_prob[1:3] == 0).all()
    assert (found.root[2] == 0).all()
    few = spinn.float()(tokens.float(), LENGTHS, TREES)
    torch.testing.assert_close(few.root.double(), found.root, rtol=0, atol=1e-6)


def test_best_action():
    spinn, tokens = parser(), inputs()
    found = spinn(tokens, LENGTHS)

    def best(t, scores, can):
        return torch.nn.functional.one_hot(scores.detach().argmax(), 2).to(scores.dtype)

    same(found, one_by_one(spinn, tokens, lambda b: best), spinn, tokens, "the best action at each step")
    equal(spinn(tokens, LENGTHS).root, found.root, "the same call gives the same bits")


def test_straight_through():
    """y is the best action, and has the gradient of softmax."""
    spinn, tokens = parser(), inputs()
    found = spinn(tokens, LENGTHS, policy=pm.StraightThrough(SIMPLEX, through=SOFT))

    def through(t, scores, can):
        p = (scores / 0.7).softmax(-1)
        return torch.nn.functional.one_hot(scores.detach().argmax(), 2).to(p) + p - p.detach()

    same(found, one_by_one(spinn, tokens, lambda b: through), spinn, tokens, "straight-through at each step")
    score = spinn.reader.action.weight
    found = spinn(tokens, LENGTHS, policy=pm.StraightThrough(SIMPLEX))
    assert torch.autograd.grad(found.root.sum(), score)[0].abs().sum() > 0
    plain = spinn(tokens, LENGTHS)
    assert torch.autograd.grad(plain.root.sum(), score, allow_unused=True)[0] is None


def test_gumbel():
    """y is the best action of noisy scores, and has the gradient of softmax at the same."""
    spinn, tokens = parser(), inputs()
    policy = pm.PerturbAndMap(SIMPLEX, through=SOFT)
    found = spinn(tokens, LENGTHS, policy=policy, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    noise = [pm.Gumbel().sample(tokens[:, 0, :2], generator=generator) for _ in range(9)]

    def drawn(b):
        def choice(t, scores, can):
            z = scores + noise[t][b]
            p = (z / 0.7).softmax(-1)
            return torch.nn.functional.one_hot(z.detach().argmax(), 2).to(p) + p - p.detach()

        return choice

    same(found, one_by_one(spinn, tokens, drawn), spinn, tokens, "straight-through Gumbel-softmax at each step")


def test_gradients():
    spinn = parser(dims=(2, 2, 2))
    tokens = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    trees, lengths = torch.tensor([[0, 0, 1, 0, 1], [0, 0, 1, -1, -1]]), torch.tensor([3, 2])

    def call(x):
        found = spinn(x, lengths, trees)
        return found.root, found.log_prob, found.entropy

    assert gradcheck(call, tokens)
    assert gradgradcheck(lambda x: call(x)[:2], tokens)
    found = spinn(tokens, lengths, trees)
    (all_at_once,) = torch.autograd.grad(found.root.sum() + found.log_prob.sum(), tokens, retain_graph=True)
    parts = [torch.autograd.grad(t.sum(), tokens, retain_graph=True)[0] for t in (found.root, found.log_prob)]
    close(sum(parts), all_at_once, "a graph can be walked several times")
    for t in (1, 3):
        (one,) = torch.autograd.grad(found.scores[0, t, 0], tokens, retain_graph=True)
        assert one.isfinite().all()
    again = torch.autograd.grad(found.root.sum() + found.log_prob.sum(), tokens)[0]
    equal(again, all_at_once, "walking part of a graph leaves nothing behind")


@pytest.mark.parametrize("policy", [None, DRAW, pm.StraightThrough(SIMPLEX)], ids=["given", "drawn", "through"])
def test_padding_is_a_shorter_sentence(policy):
    spinn = parser()
    tokens = torch.randn(2, 4, X, dtype=torch.float64)
    tokens[1, 2:] = torch.nan
    tokens.requires_grad_()
    lengths = torch.tensor([4, 2])
    given = {"transitions": nn.balanced(lengths)} if policy is None else {"policy": policy}
    found = spinn(tokens, lengths, **given)
    equal(found.transitions[1], torch.tensor([0, 0, 1, -1, -1, -1, -1]), "two tokens have one tree")
    short = spinn(tokens[1:, :2], transitions=torch.tensor([[0, 0, 1]]))
    close(found.root[1:], short.root, "padding is not read")
    assert found.log_prob[1] == found.entropy[1] == 0
    grads = slopes(found, spinn, tokens)
    assert all(g.isfinite().all() for g in grads)
    assert (grads[0][1, 2:] == 0).all()


@pytest.mark.parametrize(
    "policy", [pm.HardMax(SIMPLEX), DRAW, pm.StraightThrough(SIMPLEX)], ids=lambda p: type(p).__name__
)
def test_nan_stays_in_its_sentence(policy):
    spinn, tokens = parser(torch.float32), torch.randn(3, 4, X)
    spoiled = tokens.clone()
    spoiled[1, 1] = torch.nan
    a, b = (spinn(x, policy=policy, generator=torch.Generator().manual_seed(0)) for x in (tokens, spoiled))
    assert b.root[1].isnan().all()
    equal(a.root[[0, 2]], b.root[[0, 2]], "NaN stays in its sentence")


def test_never_an_invalid_action():
    spinn = parser(torch.float32)
    with torch.no_grad():
        spinn.reader.action.bias.copy_(torch.tensor([-50.0, 50.0]))
    lengths = torch.arange(7).repeat(20)
    tokens = torch.randn(140, 6, X)
    for policy in (pm.HardMax(SIMPLEX), DRAW, pm.PerturbAndMap(SIMPLEX)):
        steps = spinn(tokens, lengths, policy=policy).transitions
        equal(check_transitions(steps, lengths), steps, "actions make a tree")
    equal(steps, nn.left_branching(lengths), "reducing as soon as it can be done branches to the left")
    spinn.reader.action.bias.data.neg_()
    equal(spinn(tokens, lengths).transitions, nn.right_branching(lengths), "shifting first branches to the right")


def test_probabilities_of_trees():
    spinn, tokens = parser(), torch.randn(1, 4, X, dtype=torch.float64)
    trees = every_tree(4)
    log_prob = spinn(tokens.expand(5, -1, -1), transitions=trees).log_prob
    close(log_prob.exp().sum(), 1.0, "transition sequences are trees, and their probabilities add up to 1")
    generator = torch.Generator().manual_seed(0)
    count = 4000
    steps = spinn(tokens.expand(count, -1, -1), policy=DRAW, generator=generator).transitions
    share = (steps.unsqueeze(1) == trees).all(-1).double().mean(0)
    p = log_prob.exp().detach()
    assert ((share - p).abs() < 4 * (p * (1 - p) / count).sqrt() + 1e-9).all()
    cold = spinn(tokens, transitions=trees[:1], policy=SOFT)
    scores = cold.scores[0]
    close(cold.log_prob[0], (scores / 0.7).log_softmax(-1).gather(1, trees[0][:, None]).sum(), "gamma divides scores")


def expected_loss(spinn, tokens, loss):
    """E[L] by enumeration of all trees of a sentence."""
    trees = every_tree(tokens.shape[1])
    found = spinn(tokens.expand(len(trees), -1, -1), transitions=trees)
    return (found.log_prob.exp() * loss(found)).sum()


def a_loss(found):
    spread = torch.linspace(-1, 2, D, dtype=found.root.dtype)
    return (found.root * spread).sum(-1).square() + 0.1 * found.transitions[..., 2]


BASELINES = {
    "none": lambda: None,
    "moving average": lambda: pm.MovingAverage(),
    "self-critical": lambda: pm.SelfCritical(),
    "learned": lambda: pm.Learned(torch.nn.Sequential(torch.nn.Linear(X, 1), torch.nn.Flatten(0)).double()),
}


@pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES.keys())
def test_score_function(baseline):
    """Weighed by the probabilities of all trees, the estimator is the derivative of the expected loss."""
    spinn, tokens = parser(), torch.randn(1, 4, X, dtype=torch.float64)
    expected = nn.PolicyGradient(baseline())
    expected(torch.tensor([2.0]).double(), torch.zeros(1).double(), tokens[:, 0], lambda: torch.ones(1))
    expected.eval()
    parameters = list(spinn.parameters())
    truth = torch.autograd.grad(expected_loss(spinn, tokens, a_loss), parameters)
    total = [torch.zeros_like(p) for p in parameters]
    for tree in every_tree(4):
        found = spinn(tokens, transitions=tree[None])
        value = expected(a_loss(found), found.log_prob, tokens[:, 0], lambda: a_loss(spinn(tokens)))
        close(value, a_loss(found).mean(), "the value is the loss")
        grads = torch.autograd.grad(value, parameters)
        total = [t + found.log_prob.exp().detach() * g for t, g in zip(total, grads, strict=True)]
    for a, b in zip(total, truth, strict=True):
        close(a, b, "the score function is unbiased")


def test_baselines_learn():
    net = torch.nn.Linear(X, 1)
    expected = nn.PolicyGradient(pm.Learned(torch.nn.Sequential(net, torch.nn.Flatten(0))))
    losses, features = torch.tensor([1.0, 3.0]), torch.randn(2, X)
    expected(losses, torch.zeros(2, requires_grad=True), features).backward()
    (slope,) = torch.autograd.grad((losses - net(features)[:, 0]).square().mean(), net.weight)
    close(net.weight.grad, slope, "a learned baseline is fitted by least squares")
    with pytest.raises(ValueError, match=r"best_losses must be given"):
        nn.PolicyGradient(pm.SelfCritical())(losses, torch.zeros(2))
    with pytest.raises(ValueError, match=r"log_prob must be \(2,\); got \(3,\)"):
        nn.PolicyGradient()(losses, torch.zeros(3))
    with pytest.raises(TypeError, match=r"baseline must be a Baseline or None; got float"):
        nn.PolicyGradient(0.5)


def test_clipped_steps():
    spinn, tokens = parser(), torch.randn(6, 4, X, dtype=torch.float64)
    old = spinn(tokens, policy=DRAW, generator=torch.Generator().manual_seed(1))
    advantages = a_loss(old).detach() - a_loss(old).mean().detach()
    again = spinn(tokens, transitions=old.transitions)
    close(again.log_prob, old.log_prob, "given actions are as probable as when they were drawn")
    parameters = list(spinn.parameters())
    first = torch.autograd.grad(
        nn.clipped_surrogate(again.log_prob, old.log_prob, advantages), parameters, allow_unused=True
    )
    score = torch.autograd.grad((advantages * old.log_prob).mean(), parameters, allow_unused=True)
    for a, b in zip(first, score, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b, "the first step is the score function")
    r = torch.tensor([0.5, 0.9, 1.1, 1.5], dtype=torch.float64)
    for a in (-2.0, 3.0):
        each = torch.maximum(r * a, r.clamp(0.7, 1.3) * a)
        close(
            nn.clipped_surrogate(r.log(), torch.zeros(4), torch.full((4,), a), 0.3), each.mean(), "clipped as defined"
        )
    with pytest.raises(ValueError, match=r"clip must be between 0 and 1; got 1"):
        nn.clipped_surrogate(r, r, r, 1)


def test_a_beam_of_all_trees():
    spinn = parser()
    tokens = torch.randn(3, 4, X, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 3, 0])
    found = nn.BeamSPINN(spinn, 6)(tokens, lengths)
    assert (found.log_prob > -torch.inf).sum(-1).tolist() == [5, 2, 1]
    assert (found.log_prob[:, 1:] <= found.log_prob[:, :-1]).all()
    close(found.log_prob.exp().sum(-1), torch.ones(3), "a beam that is wide enough has all trees")
    for b, n, count in ((0, 4, 5), (1, 3, 2)):
        steps = found.transitions[b, :count, : 2 * n - 1]
        alone = spinn(tokens[b : b + 1, :n].expand(count, -1, -1), transitions=steps)
        close(found.log_prob[b, :count], alone.log_prob, "scores of parses are those of their actions")
        close(found.roots[b, :count], alone.root, "roots of parses are those of their trees")
        close(found.root[b], alone.root[0], "the best parse is chosen")
        weight = torch.linspace(-1, 1, D, dtype=torch.float64)
        p = alone.log_prob.softmax(-1)
        soft = (p.unsqueeze(-1) * alone.root.detach()).sum(0) + alone.root[0]
        parameters = [tokens, *spinn.parameters()]
        truth = torch.autograd.grad((soft * weight).sum(), parameters)
        grads = torch.autograd.grad((found.root[b] * weight).sum(), parameters, retain_graph=True)
        for a, e in zip(grads, truth, strict=True):
            close(a, e, "the gradient is that of softmax over the beam, and of the chosen root")
    assert (found.root[2] == 0).all()
    assert (found.transitions[2] == -1).all()


def test_narrow_beams():
    spinn, tokens = parser(), inputs().detach()
    greedy, one = spinn(tokens, LENGTHS), nn.BeamSPINN(spinn, 1)(tokens, LENGTHS)
    equal(one.transitions[:, 0], greedy.transitions, "a beam of one is greedy")
    close(one.root, greedy.root, "a beam of one is greedy")
    wide = nn.BeamSPINN(spinn, 3)(tokens, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        there = wide.log_prob[b] > -torch.inf
        steps = wide.transitions[b, there]
        assert len({tuple(s) for s in steps.tolist()}) == int(there.sum())
        equal(check_transitions(steps, torch.full((len(steps),), n)), steps, "every parse is a tree")
    short = nn.BeamSPINN(spinn, 3)(tokens[3:4, :3])
    close(wide.log_prob[3:4], short.log_prob, "padding is not read")
    close(wide.roots[3:4], short.roots, "padding is not read")


def test_choices():
    scores = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf], [1.0, 1.0]])
    for policy in (pm.HardMax(SIMPLEX), DRAW, pm.StraightThrough(SIMPLEX)):
        y = choose(policy, scores)
        assert y[:2].tolist() == [[1.0, 0.0], [0.0, 0.0]]
        assert y[2].sum() == 1
    assert choose(pm.HardMax(SIMPLEX), scores)[2].tolist() == [1.0, 0.0]


def test_errors():
    spinn, tokens = parser(torch.float32), torch.randn(2, 3, X)
    with pytest.raises(TypeError, match=r"policy must be HardMax, Marginals or an estimator.*got 'greedy'"):
        spinn(tokens, policy="greedy")
    with pytest.raises(TypeError, match=r"policy must be .* of Simplex\(\)"):
        spinn(tokens, policy=pm.Marginals(pm.Chain()))
    with pytest.raises(ValueError, match=r"transitions are not a tree: 2 tokens of instance \(1,\) are shifted, not 3"):
        spinn(tokens, transitions=torch.tensor([[0, 0, 1, 0, 1], [0, 0, 1, -1, -1]]))
    with pytest.raises(ValueError, match=r"transitions must be \(2, 5\); got \(2, 3\)"):
        spinn(tokens, torch.tensor([2, 2]), torch.tensor([[0, 0, 1], [0, 0, 1]]))
    with pytest.raises(ValueError, match=r"lengths must be in \[0, 3\]; got values in \[1, 4\]"):
        spinn(tokens, torch.tensor([1, 4]))
    with pytest.raises(ValueError, match=r"tokens must be \(B, n, dim\); got \(3, 3\)"):
        spinn(tokens[0])
    with pytest.raises(ValueError, match=r"beam must be a positive integer; got 0"):
        nn.BeamSPINN(spinn, 0)
    assert spinn(tokens[:0]).root.shape == (0, D)
    assert spinn(tokens[:, :0]).root.tolist() == [[0.0] * D] * 2
    assert nn.BeamSPINN(spinn, 2)(tokens[:, :0]).root.tolist() == [[0.0] * D] * 2
