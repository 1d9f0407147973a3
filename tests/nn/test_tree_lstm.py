"""Trees as transitions, and Tree-LSTMs: level by level is node by node."""

import itertools

import pytest
import torch
from tolerances import close, equal
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm
from polymax import nn
from polymax.nn.shift_reduce import children, node_depths

D, X = 3, 4


def some_trees(lengths):
    """Transitions of random trees, as wide as the longest needs."""
    n = max(lengths)
    merges = torch.full((len(lengths), max(n - 1, 0)), -1)
    for row, size in zip(merges, lengths, strict=True):
        for s in range(size - 1):
            row[s] = int(torch.randint(size - 1 - s, ()))
    return nn.transitions_of_merges(merges, torch.tensor(lengths))


def some_heads(lengths, n):
    """Heads of random trees: each token hangs from one that came before it in a random order."""
    heads = torch.full((len(lengths), n), -1)
    for row, size in zip(heads, lengths, strict=True):
        order = torch.randperm(size) + 1
        for k, m in enumerate(order.tolist()):
            row[m - 1] = 0 if k == 0 else order[int(torch.randint(k, ()))]
    return heads


def composed(lstm, tokens, steps):
    """The states of nodes, one by one, as a stack machine makes them."""
    d, stack, nodes, at = lstm.cell.hidden_dim, [], [], 0
    for step in steps.tolist():
        if step == 0:
            state = lstm.leaf(tokens[at])
            stack.append((state[:d], state[d:]))
            at += 1
        elif step == 1:
            right, left = stack.pop(), stack.pop()
            w, b = lstm.cell.gates.weight, lstm.cell.gates.bias
            f_l, f_r, i, o, g = (w @ torch.cat([left[0], right[0]]) + b).chunk(5)
            c = f_l.sigmoid() * left[1] + f_r.sigmoid() * right[1] + i.sigmoid() * g.tanh()
            stack.append((o.sigmoid() * c.tanh(), c))
        nodes.append(stack[-1][0] if step >= 0 else torch.zeros(d, dtype=tokens.dtype))
    return (stack[0][0] if stack else torch.zeros(d, dtype=tokens.dtype)), nodes


def summed(lstm, tokens, heads):
    """The states of tokens, and of the root, by recursion."""
    d = lstm.hidden_dim

    def state(j):
        x = lstm.input(tokens[j])
        below = [state(m) for m in range(len(heads)) if heads[m] == j + 1]
        s = sum((h for h, _, _ in below), torch.zeros(d, dtype=tokens.dtype))
        i, o, u = (x[: 3 * d] + lstm.gates.weight @ s).chunk(3)
        c = i.sigmoid() * u.tanh()
        for h, c_m, _ in below:
            c = c + (x[3 * d :] + lstm.forget.weight @ h).sigmoid() * c_m
        return o.sigmoid() * c.tanh(), c, [(j, o.sigmoid() * c.tanh())] + [n for b in below for n in b[2]]

    tops = [state(j) for j in range(len(heads)) if heads[j] == 0]
    found = dict(n for top in tops for n in top[2])
    nothing = torch.zeros(d, dtype=tokens.dtype)
    return sum((t[0] for t in tops), nothing), [found.get(j, nothing) for j in range(len(heads))]


LSTMS = {
    "binary": (nn.BinaryTreeLSTM, composed, some_trees),
    "child-sum": (nn.ChildSumTreeLSTM, summed, lambda lengths: some_heads(lengths, max(lengths))),
}
each = pytest.mark.parametrize(("module", "one_by_one", "draw"), LSTMS.values(), ids=LSTMS.keys())


def slopes(states, module, tokens):
    out = torch.cat([states[0].flatten(), states[1].flatten()])
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype)
    return torch.autograd.grad((weight * out).sum(), [tokens, *module.parameters()])


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_level_by_level_is_node_by_node(module, one_by_one, draw, dtype):
    lengths = [7, 1, 0, 5, 7, 2, 3]
    trees = draw(lengths)
    lstm = module(X, D).to(dtype)
    tokens = torch.randn(len(lengths), 7, X, dtype=dtype, requires_grad=True)
    found = lstm(tokens, trees)
    alone = [one_by_one(lstm, tokens[b], trees[b]) for b in range(len(lengths))]
    expected = torch.stack([a[0] for a in alone]), torch.stack([torch.stack(a[1]) for a in alone])
    assert found.root.dtype == dtype
    torch.testing.assert_close(found.root, expected[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(found.nodes, expected[1], rtol=0, atol=1e-6)
    for a, b in zip(slopes(found, lstm, tokens), slopes(expected, lstm, tokens), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6 if dtype == torch.float64 else 1e-5, atol=1e-6)


@each
def test_gradients(module, one_by_one, draw):
    lstm = module(2, 2).double()
    trees = draw([3, 2])
    tokens = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: tuple(lstm(x, trees)), tokens)
    assert gradgradcheck(lambda x: lstm(x, trees).root, tokens)


@each
def test_padding_is_a_shorter_sentence(module, one_by_one, draw):
    lstm = module(X, D).double()
    trees = draw([6, 4, 1])
    tokens = torch.randn(3, 6, X, dtype=torch.float64)
    tokens[1, 4:] = torch.nan
    tokens[2, 1:] = torch.inf
    tokens.requires_grad_()
    found = lstm(tokens, trees)
    width = 4 if trees.shape[1] == 6 else 7
    short = lstm(tokens[1:2, :4], trees[1:2, :width])
    close(found.root[1:2], short.root, "padding is not composed")
    close(found.nodes[1:2, :width], short.nodes, "padding is not composed")
    assert (found.nodes[1:, width:] == 0).all()
    grads = slopes(found, lstm, tokens)
    assert all(g.isfinite().all() for g in grads)
    assert (grads[0][1, 4:] == 0).all()
    assert (grads[0][2, 1:] == 0).all()


@each
def test_nan_stays_in_its_tree(module, one_by_one, draw):
    lstm = module(X, D)
    tokens, trees = torch.randn(3, 4, X), draw([4, 4, 3])
    spoiled = tokens.clone()
    spoiled[1, 2] = torch.nan
    clean, found = lstm(tokens, trees), lstm(spoiled, trees)
    assert found.root[1].isnan().all()
    equal(found.nodes[[0, 2]], clean.nodes[[0, 2]], "NaN stays in its tree")
    equal(lstm(tokens, trees).nodes, clean.nodes, "the same call gives the same bits")


@each
def test_trees_of_a_support(module, one_by_one, draw):
    lstm = module(X, D).double()
    tokens = torch.randn(3, 5, X, dtype=torch.float64, requires_grad=True)
    at = torch.tensor([2, 0, 2, 2, 1])
    trees = draw([4, 5, 4, 4, 3])
    packed, apart = lstm(tokens, trees, at), lstm(tokens[at], trees)
    close(packed.root, apart.root, "trees of one instance share its tokens")
    close(packed.nodes, apart.nodes, "trees of one instance share its tokens")
    for a, b in zip(slopes(packed, lstm, tokens), slopes(apart, lstm, tokens), strict=True):
        close(a, b, "gradients of trees of one instance add up")
    plan = (nn.binary_plan(trees, 5, at) if module is nn.BinaryTreeLSTM else nn.heads_plan(trees, at)).to("cpu")
    equal(lstm(tokens, plan).nodes, packed.nodes, "a plan is the trees it was made of")


@each
def test_empty(module, one_by_one, draw):
    lstm = module(X, D)
    width = 0
    assert lstm(torch.zeros(2, 0, X), torch.zeros(2, width, dtype=torch.long)).root.tolist() == [[0.0] * D] * 2
    assert lstm(torch.zeros(0, 3, X), draw([3])[:0]).root.shape == (0, D)


def test_a_latent_tree():
    """The expected loss of a downstream model over the few trees that SparseMAP selects, gradients on both sides."""
    scores = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [0.0, 0.0, 0.0]], dtype=torch.float64)
    scores = torch.stack([scores, scores.T.flip(0, 1)]).triu().requires_grad_()
    tokens = torch.randn(2, 3, X, dtype=torch.float64, requires_grad=True)
    lstm = nn.BinaryTreeLSTM(X, D).double()

    def loss_fn(y, at):
        return lstm(tokens, nn.transitions_of_spans(y), at).root.square().sum(-1)

    loss = pm.SparseExpectation(pm.SpanTree())(loss_fn, scores)
    trees = pm.SpanTree().vertices((3, 3)).double()
    mu = pm.SparseMap(pm.SpanTree()).distribution(scores)
    each_loss = torch.stack([loss_fn(trees, torch.full((2,), b)) for b in range(2)])
    p = torch.stack([torch.stack([mu.prob(y.expand(2, 3, 3))[b] for y in trees]) for b in range(2)])
    close(loss, (p * each_loss).sum(-1).mean(), "the expected loss is the sum over trees")
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(loss, [scores, tokens]))


def test_soft_children_of_a_tree_are_its_children():
    lstm = nn.ChildSumTreeLSTM(X, D).double()
    lengths = torch.tensor([5, 3, 0])
    heads = some_heads(lengths.tolist(), 5)
    tokens = torch.randn(3, 5, X, dtype=torch.float64, requires_grad=True)
    y = pm.SpanningTree().encode(heads).double()
    hard, soft = lstm(tokens, heads), lstm.soft(tokens, y, 5, lengths)
    close(soft.root, hard.root, "rounds on a tree are the tree")
    close(soft.nodes, hard.nodes, "rounds on a tree are the tree")
    for a, b in zip(slopes(soft, lstm, tokens), slopes(hard, lstm, tokens), strict=True):
        close(a, b, "rounds on a tree are the tree")
    chain = pm.SpanningTree().encode(torch.tensor([[0, 1, 2, 3, 4]])).double()
    few = [lstm.soft(tokens[:1], chain, k).root for k in (1, 4, 5, 6)]
    assert (few[0] - few[2]).abs().max() > 1e-3
    assert (few[1] - few[2]).abs().max() > 1e-6
    equal(few[2], few[3], "more rounds than levels change nothing")


def test_soft_children():
    lstm = nn.ChildSumTreeLSTM(2, 2).double()
    scores = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    tokens = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    mu = pm.Marginals(pm.SpanningTree())
    assert gradcheck(lambda s, x: tuple(lstm.soft(x, mu(s), 3)), (scores, tokens))
    padded = torch.cat([tokens, torch.full((2, 2), torch.nan)])
    wide = torch.nn.functional.pad(scores, (0, 2, 0, 2), value=3.0)
    found = lstm.soft(padded, mu.with_lengths(torch.tensor(3))(wide), 3, torch.tensor(3))
    close(found.root, lstm.soft(tokens, mu(scores), 3).root, "padding is no child")
    assert (found.nodes[3:] == 0).all()


# trees as transitions


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_spans_and_transitions(n):
    trees = pm.SpanTree().vertices((n, n))
    steps = nn.transitions_of_spans(trees)
    assert len({tuple(s) for s in steps.tolist()}) == len(trees)
    spans = nn.tree_spans(steps)
    equal(pm.SpanTree().encode(spans, n, n), trees, "spans of transitions of spans are the spans")
    for row, row_spans in zip(steps.tolist(), spans.tolist(), strict=True):
        stack, at = [], 0
        for step, span in zip(row, row_spans, strict=True):
            if step == 0:
                stack.append([at, at])
                at += 1
            else:
                right, left = stack.pop(), stack.pop()
                stack.append([left[0], right[1]])
            assert stack[-1] == span
    left, right = children(steps)
    depth = node_depths(steps)
    for child in (left, right):
        inner = child >= 0
        assert (depth.gather(-1, child.clamp(min=0))[inner] == depth[inner] + 1).all()
    equal(nn.tree_depth(steps), depth.amax(-1), "the depth of a tree is that of its deepest node")


def test_merges():
    found = set()
    for merges in itertools.product(range(3), range(2), range(1)):
        steps = nn.transitions_of_merges(torch.tensor(merges))
        nodes = [[i, i] for i in range(4)]
        y = torch.eye(4)
        for p in merges:
            nodes[p : p + 2] = [[nodes[p][0], nodes[p + 1][1]]]
            y[tuple(nodes[p])] = 1
        equal(nn.transitions_of_spans(y), steps, "merges make the spans that they make")
        found.add(tuple(steps.tolist()))
    assert len(found) == 5
    ragged = nn.transitions_of_merges(
        torch.tensor([[[1, 0], [0, -1]], [[-1, -1], [-1, -1]]]), torch.tensor([[3, 2], [1, 0]])
    )
    assert ragged.tolist() == [[[0, 0, 0, 1, 1], [0, 0, 1, -1, -1]], [[0, -1, -1, -1, -1], [-1] * 5]]


def test_known_trees():
    lengths = torch.tensor([[5, 1], [0, 4]])
    for make, depth in (
        (nn.left_branching, [4, 0, 0, 3]),
        (nn.right_branching, [4, 0, 0, 3]),
        (nn.balanced, [3, 0, 0, 2]),
    ):
        steps = make(lengths)
        assert steps.shape == (2, 2, 9)
        assert nn.tree_depth(steps).flatten().tolist() == depth
        equal((steps == 0).sum(-1), lengths, "each token is shifted")
    assert nn.balanced(torch.tensor(9)).tolist().count(1) == 8
    spans = nn.tree_spans(nn.left_branching(torch.tensor(4)))
    assert sorted(spans.tolist()) == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 1], [2, 2], [3, 3]]


def test_f1():
    trees = nn.transitions_of_spans(pm.SpanTree().vertices((5, 5)))
    a, b = trees.unsqueeze(1).expand(-1, len(trees), -1), trees.unsqueeze(0).expand(len(trees), -1, -1)
    for whole in (False, True):
        found = nn.bracket_f1(a, b, whole)
        for i, j in itertools.product(range(len(trees)), repeat=2):
            sets = [{tuple(s) for s in nn.tree_spans(trees[k]).tolist() if s[0] < s[1]} for k in (i, j)]
            sets = sets if whole else [s - {(0, 4)} for s in sets]
            assert found[i, j] == pytest.approx(len(sets[0] & sets[1]) / len(sets[0]))
    assert nn.bracket_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1])) == 1


MALFORMED = {
    "low stack": ([[0, 0, 1], [0, 1, 0]], r"step 1 of instance \(1,\) reduces a stack of 1"),
    "empty stack": ([1, 0, 0], r"step 0 reduces a stack of 0"),
    "left over": ([[0, 0, 1], [0, 0, 0]], r"3 nodes of instance \(1,\) are left on the stack at the end, not one"),
    "gap": ([[0, -1, 0]], r"step 2 of instance \(0,\) follows padding"),
    "unknown": ([[0, 2, 1]], r"step 1 of instance \(0,\) is 2, not 0, 1, or -1"),
}


@pytest.mark.parametrize(("steps", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_transitions(steps, message):
    with pytest.raises(ValueError, match=message):
        nn.shift_reduce.check_transitions(torch.tensor(steps))


def test_errors():
    lstm, other = nn.BinaryTreeLSTM(X, D), nn.ChildSumTreeLSTM(X, D)
    tokens, steps = torch.randn(2, 3, X), torch.tensor([[0, 0, 1]])
    with pytest.raises(TypeError, match=r"transitions must be a tensor of integers.*got torch.float32"):
        nn.shift_reduce.check_transitions(steps.float())
    with pytest.raises(ValueError, match=r"1 tokens of instance \(1,\) are shifted, not 2"):
        nn.shift_reduce.check_transitions(torch.tensor([[0, 0, 1], [0, -1, -1]]), torch.tensor([2, 2]))
    with pytest.raises(ValueError, match=r"trees must be \(2, ...\), or come with at; got \(1, 3\)"):
        lstm(tokens, steps)
    with pytest.raises(ValueError, match=r"at must be in \[0, 2\); got values in \[5, 5\]"):
        lstm(tokens, steps, torch.tensor([5]))
    with pytest.raises(ValueError, match=r"at must be integers \(1,\).*got \(2,\)"):
        lstm(tokens, steps, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"at is part of a plan"):
        lstm(tokens, nn.binary_plan(steps, 3), torch.tensor([1]))
    with pytest.raises(ValueError, match=r"transitions of instance \(0,\) shift 4 tokens, of which there are 3"):
        lstm(tokens[:1], nn.balanced(torch.tensor([4])))
    with pytest.raises(ValueError, match=r"tokens must be \(B, n, dim\); got \(3, 4\)"):
        lstm(tokens[0], steps)
    with pytest.raises(ValueError, match=r"token 1 of instance \(1,\) is in a cycle"):
        other(tokens, torch.tensor([[2, 0, 1], [2, 1, 0]]))
    with pytest.raises(ValueError, match=r"heads must be \(count, 3\); got \(2, 4\)"):
        other(tokens, torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"mu must be \(\*batch, n \+ 1, n \+ 1\).*got \(2, 3, 3\)"):
        other.soft(tokens, torch.zeros(2, 3, 3), 2)
    with pytest.raises(ValueError, match=r"rounds must be a positive integer; got 0"):
        other.soft(tokens, torch.zeros(2, 4, 4), 0)
    with pytest.raises(ValueError, match=r"merges are not a tree: merge 0 of instance \(0,\) is 2, of 3 nodes"):
        nn.transitions_of_merges(torch.tensor([[2, 0]]))
    crossing = torch.eye(4)
    crossing[0, 1] = crossing[1, 2] = crossing[0, 3] = 1
    with pytest.raises(ValueError, match=r"spans are not a tree: span \[1, 2\] of instance \(0,\) does not fit"):
        nn.transitions_of_spans(crossing[None])
    with pytest.raises(ValueError, match=r"gold must be trees over the same tokens"):
        nn.bracket_f1(steps, torch.tensor([[0, -1, -1]]))
