"""Attention by expected structures: the mean, over enumerated structures, of what each one attends to."""

import copy
import pickle

import pytest
import torch
from tolerances import close
from torch.autograd import gradcheck

import polymax as pm
from polymax import nn

N, D = 2, 3
KEEP = torch.tensor([[True] * 4, [True, True, False, False]])


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def chain_context(tags, values):
    return sum((v for tag, v in zip(tags.tolist(), values) if tag > 0), torch.zeros(D).double())


def tree_context(heads, values):
    """Values with a row for the root."""
    return torch.stack([values[h] for h in heads.tolist()])


def subset_context(chosen, values):
    return sum((values[i] for i in chosen.tolist()), torch.zeros(D).double())


# a structure, the shapes of its scores for n items, and what one of its elements, decoded, attends to
SETS = {
    "chain": (pm.Chain(), lambda n: [(N, n, 2), (2, 2)], chain_context),
    "tags": (pm.Chain(), lambda n: [(N, n, 3), (n - 1, 3, 3)], chain_context),
    "projective": (pm.ProjectiveTree(), lambda n: [(N, n + 1, n + 1)], tree_context),
    "crossing": (pm.SpanningTree(single_root=False), lambda n: [(N, n + 1, n + 1)], tree_context),
    "subset": (pm.Subset(2), lambda n: [(N, n)], subset_context),
}
TREES = ("projective", "crossing")
sets = pytest.mark.parametrize("name", SETS)
SMOOTHINGS = {
    "marginals": pm.Marginals,
    "sparsemap": pm.SparseMap,
    "local": lambda structure: pm.LocalMax(structure, pm.Gini()),
    "hard": pm.HardMax,
}
# the recursion over spanning trees is a determinant, which has no local maxima
MISSING = {("local", "crossing")}


def every(*smoothings):
    """Those of the smoothings that a set has, for all sets."""
    rows = [(name, smoothing) for name in SETS for smoothing in smoothings if (smoothing, name) not in MISSING]
    return pytest.mark.parametrize(("name", "smoothing"), rows)


def problem(name, n=4, smoothing="marginals"):
    structure, shapes, _ = SETS[name]
    attention = nn.StructuredAttention(SMOOTHINGS[smoothing](structure))
    scores = tuple(randn(*shape).requires_grad_() for shape in shapes(n))
    return attention, scores, randn(N, n + (name in TREES), D).requires_grad_()


def cut(scores, name, m):
    """The scores of the first m items."""
    if name in TREES:
        return (scores[0][..., : m + 1, : m + 1],)
    if name == "subset":
        return (scores[0][..., :m],)
    unary, transition = scores
    return unary[..., :m, :], transition if transition.dim() == 2 else transition[..., : m - 1, :, :]


@sets
def test_context_is_an_expectation(name):
    structure, _, context_of = SETS[name]
    smooth = pm.Marginals(structure)
    _, scores, values = problem(name)
    context, mu = nn.StructuredAttention(smooth)(scores, values)
    expected = smooth(*scores)
    close(mu[0] if isinstance(mu, tuple) else mu, expected[0] if isinstance(mu, tuple) else expected, "mu is smooth's")
    vertices = structure.vertices(scores[0].shape[1:])
    vertices = type(vertices)(*(t.double() for t in vertices)) if isinstance(vertices, tuple) else vertices.double()
    for b in range(N):
        own = tuple(x[b] if i == 0 else x for i, x in enumerate(scores))
        p = structure.score(vertices, *own).softmax(0)
        each = torch.stack([context_of(y, values[b]) for y in structure.decode(vertices)])
        close(context[b], torch.einsum("k,k...->...", p, each), "the context is the mean over structures")


@every(*SMOOTHINGS)
def test_masked_is_truncated(name, smoothing):
    attention, scores, values = problem(name, smoothing=smoothing)
    context, _ = attention(scores, values, KEEP)
    rows = 2 + (name in TREES)
    short, _ = attention(tuple(x[1:] if i == 0 else x for i, x in enumerate(cut(scores, name, 2))), values[1:, :rows])
    long, _ = attention(tuple(x[:1] if i == 0 else x for i, x in enumerate(scores)), values[:1])
    close(context[:1], long, "without padding it is the same")
    if name in TREES:
        close(context[1:, :2], short, "masked is truncated")
        assert (context[1, 2:] == 0).all()
    else:
        close(context[1:], short, "masked is truncated")
    slopes = torch.autograd.grad(context.square().sum(), (scores[0], values), allow_unused=True)
    assert (slopes[1][1, rows:] == 0).all(), "padding has no gradient"
    if smoothing != "hard":
        assert (slopes[0][1, rows:] == 0).all(), "padding has no gradient"


@pytest.mark.parametrize("name", TREES)
def test_a_root_without_a_value_adds_nothing(name):
    attention, scores, values = problem(name)
    zero = torch.cat([torch.zeros(N, 1, D).double(), values[:, 1:]], 1)
    close(attention(scores, values[:, 1:])[0], attention(scores, zero)[0], "a root without a value adds nothing")


@every("marginals", "sparsemap", "local")
def test_gradients(name, smoothing):
    attention, scores, values = problem(name, n=3, smoothing=smoothing)
    keep = torch.tensor([[True] * 3, [True, True, False]])

    def context(*inputs):
        return attention(inputs[:-1], inputs[-1], keep)[0]

    assert gradcheck(context, (*scores, values))


def test_any_batch():
    unary, transition, values = randn(2, 3, 4, 2), randn(2, 2), randn(2, 1, 4, D)
    attention = nn.StructuredAttention(pm.Marginals(pm.Chain()))
    context, _ = attention((unary, transition), values, KEEP[:, None])
    for b in range(2):
        for t in range(3):
            alone, _ = attention((unary[b, t], transition), values[b, 0], KEEP[b])
            close(context[b, t], alone, "a batch is a loop")
    trees = nn.StructuredAttention(pm.Marginals(pm.SpanningTree()))
    close(trees(torch.zeros(3, 3), torch.eye(2))[0], torch.tensor([[0, 0.5], [0.5, 0]]), "one instance needs no batch")


def test_segments():
    scorer = nn.SegmentScorer(nn.BilinearScorer(3, 4)).double()
    torch.nn.init.normal_(scorer.transition)
    queries, keys = randn(N, 2, 3), randn(N, 4, 4)
    unary, transition = scorer(queries, keys)
    assert unary.shape == (N, 2, 4, 2)
    assert (unary[..., 0] == 0).all()
    close(unary[..., 1], scorer.scorer(queries, keys), "the score of being attended to")
    attention = nn.StructuredAttention(pm.Marginals(pm.Chain()))
    context, mu = attention((unary, transition), keys[:, None], KEEP[:, None])
    for t in range(2):
        step, _ = attention(scorer(queries[:, t], keys), keys, KEEP)
        close(context[:, t], step, "one query is one of many")
    with torch.no_grad():
        scorer.transition.zero_()
    plain = attention(scorer(queries, keys), keys[:, None])[1].unary[..., 1]
    close(plain, unary[..., 1].sigmoid(), "without transitions each key is attended to or not by itself")
    assert not torch.allclose(plain[:1], mu.unary[:1, ..., 1])


def test_arcs():
    scorer = nn.ArcScorer(4, 6).double()
    tokens = randn(N, 3, 4)
    scores = scorer(tokens)
    nodes = scorer.with_root(tokens)
    close(nodes[:, 0], scorer.root.expand(N, 4), "the root is first")
    head, modifier = scorer.head(nodes[0, 2]).tanh(), scorer.modifier(nodes[0, 1]).tanh()
    expected = head @ scorer.pair.key.weight @ modifier + scorer.prior.weight[0] @ head
    close(scores[0, 2, 1], expected, "the score of an arc")
    attention = nn.StructuredAttention(pm.Marginals(pm.SpanningTree()))
    context, _ = attention(scores, nodes, KEEP[:, :3])
    short, _ = attention(scorer(tokens[1:, :2]), scorer.with_root(tokens[1:, :2]))
    close(context[1:, :2], short, "padding does not enter the scores of tokens")
    context.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in scorer.parameters())
    dropped = nn.ArcScorer(4, 6, dropout=0.5).double()
    dropped.load_state_dict(scorer.state_dict())
    assert not dropped(tokens).equal(scores)
    assert dropped.eval()(tokens).equal(scores)


PAIRS = {
    "paths": pm.Marginals(pm.Alignment()),
    "sparse paths": pm.LocalMax(pm.Alignment(), pm.Gini()),
    "sparse mean of paths": pm.SparseMap(pm.Alignment()),
    "matchings": pm.SparseMap(pm.Assignment()),
}
pairs = pytest.mark.parametrize("smooth", PAIRS.values(), ids=PAIRS.keys())
X_KEEP, Y_KEEP = torch.tensor([[True] * 3, [True, True, False]]), torch.tensor([[True] * 4, [True, True, True, False]])


@pairs
def test_two_sequences(smooth):
    attention = nn.AlignmentAttention(smooth)
    scores, x, y = randn(N, 3, 4).requires_grad_(), randn(N, 3, D).requires_grad_(), randn(N, 4, 5).requires_grad_()
    first, second, mu = attention(scores, x, y)
    close(mu, smooth(scores), "mu is smooth's")
    rows, columns = mu.sum(2, keepdim=True), mu.sum(1, keepdim=True)
    if isinstance(smooth.structure, pm.Assignment):
        close(rows, torch.ones(N, 3, 1), "every row has its column")
        close(first, mu @ y, "rows get the mean of their columns")
        close(second, mu.transpose(1, 2) @ x, "a column gets what it is matched with")
    else:
        assert (rows >= 1 - 1e-9).all()
        assert (columns >= 1 - 1e-9).all()
        close(first, mu / rows @ y, "rows get the mean of their columns")
        close(second, (mu / columns).transpose(1, 2) @ x, "columns get the mean of their rows")
    turned = attention(scores.transpose(1, 2), y, x)
    close(turned.first, second, "the sequences may change places")
    close(turned.second, first, "the sequences may change places")


@pairs
def test_masked_pairs_are_truncated(smooth):
    attention = nn.AlignmentAttention(smooth)
    scores, x, y = randn(N, 3, 4).requires_grad_(), randn(N, 3, D), randn(N, 4, 5)
    found = attention(scores, x, y, X_KEEP, Y_KEEP)
    short = attention(scores[1:, :2, :3], x[1:, :2], y[1:, :3])
    close(found.first[1:, :2], short.first, "masked is truncated")
    close(found.second[1:, :3], short.second, "masked is truncated")
    assert (found.first[1, 2:] == 0).all()
    assert (found.second[1, 3:] == 0).all()
    close(attention(scores, x, y, x_mask=X_KEEP).mu[1, :2], smooth(scores[1, :2]), "one mask alone")
    close(attention(scores, x, y, y_mask=Y_KEEP).mu[1, :, :3], smooth(scores[1, :, :3]), "one mask alone")
    (slope,) = torch.autograd.grad(found.first.square().sum(), scores)
    assert (slope[1, 2:] == 0).all()
    assert (slope[1, :, 3:] == 0).all()


@pairs
def test_gradients_of_pairs(smooth):
    attention = nn.AlignmentAttention(smooth)
    inputs = [t.requires_grad_() for t in (randn(2, 3), randn(2, D), randn(3, D))]
    assert gradcheck(lambda *inputs: attention(*inputs)[:2], inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtypes(dtype):
    for name in SETS:
        attention, scores, values = problem(name)
        context, mu = attention(tuple(x.to(dtype) for x in scores), values.to(dtype), KEEP)
        assert context.dtype == dtype
        assert (mu[0] if isinstance(mu, tuple) else mu).dtype == dtype
        reference = attention(tuple(x.to(dtype).double() for x in scores), values.to(dtype).double(), KEEP)[0]
        assert torch.allclose(context.double(), reference, atol=1e-5 if dtype == torch.float32 else 5e-2)


def test_copies():
    attention, scores, values = problem("projective")
    for other in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
        assert torch.equal(other(scores, values)[0], attention(scores, values)[0])
    assert repr(attention) == "StructuredAttention(Marginals(ProjectiveTree))"
    assert repr(nn.AlignmentAttention(PAIRS["matchings"])) == "AlignmentAttention(SparseMap(Assignment))"


def test_a_chain_learns_to_attend_to_a_segment():
    """Keys tell where a segment starts and ends; the middle is found by transitions alone."""
    scorer = nn.SegmentScorer(nn.DotScorer())
    attention = nn.StructuredAttention(pm.Marginals(pm.Chain()))
    keys = torch.tensor([[[-2.0], [2.0], [0.0], [2.0], [-2.0]]])
    optimizer = torch.optim.Adam(scorer.parameters(), 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        _, mu = attention(scorer(torch.ones(1, 1), keys), keys)
        (-mu.unary[0, [1, 2, 3], 1].log().sum()).backward()
        optimizer.step()
    assert mu.unary[0, 2, 1] > 0.95


# SparseMAP asks how far it is, and does not compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["chain", "projective", "crossing", "paths"])
def test_compile(name):
    torch._dynamo.reset()
    if name == "paths":
        inputs = [t.requires_grad_() for t in (randn(N, 3, 4), randn(N, 3, D), randn(N, 4, D))]
        aligner = nn.AlignmentAttention(PAIRS["paths"])

        def attend(scores, x, y):
            first, second, _ = aligner(scores, x, y, X_KEEP, Y_KEEP)
            return torch.cat([first, second], 1)
    else:
        attention, scores, values = problem(name)
        inputs = [*scores, values]

        def attend(*inputs):
            return attention(inputs[:-1], inputs[-1], KEEP)[0]

    results = []
    for fn in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=False)):
        out = fn(*inputs)
        results.append((out.detach(), *torch.autograd.grad(out.square().sum(), inputs)))
    for a, b in zip(*results, strict=True):
        close(b, a, f"compiled {name} is {name}")


def test_errors():
    attention, scores, values = problem("chain")
    with pytest.raises(TypeError, match=r"smooth must be a Smoothing, such as Marginals.*; got Chain"):
        nn.StructuredAttention(pm.Chain())
    with pytest.raises(TypeError, match=r"smooth must range over a chain, dependency trees or items; got Alignment"):
        nn.StructuredAttention(pm.Marginals(pm.Alignment()))(randn(3, 4), randn(4, D))
    with pytest.raises(TypeError, match=r"smooth must range over Alignment or Assignment; got Chain"):
        nn.AlignmentAttention(pm.Marginals(pm.Chain()))
    with pytest.raises(ValueError, match=r"values must be \(\*batch, 4, d\); got \(2, 3, 3\)"):
        attention(scores, values[:, :3])
    with pytest.raises(ValueError, match=r"values must be \(\*batch, 4, d\); got \(2, 2, 3\)"):
        nn.StructuredAttention(pm.Marginals(pm.SpanningTree()))(randn(N, 5, 5), randn(N, 2, D))
    with pytest.raises(ValueError, match=r"mask must be True from the left: tokens first, then padding"):
        attention(scores, values, KEEP.flip(1))
    with pytest.raises(ValueError, match=r"mask must broadcast to \(2, 4\); got \(2, 3\)"):
        attention(scores, values, KEEP[:, :3])
    with pytest.raises(TypeError, match=r"mask must be a bool tensor \(True = token\); got torch.int64"):
        attention(scores, values, KEEP.long())
    with pytest.raises(ValueError, match=r"y_mask must be True from the left"):
        nn.AlignmentAttention(PAIRS["paths"])(randn(N, 3, 4), randn(N, 3, D), randn(N, 4, D), X_KEEP, Y_KEEP.flip(1))
