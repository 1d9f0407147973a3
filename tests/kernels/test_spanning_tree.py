"""Spanning trees against their enumeration: the best, sums and their derivatives, draws, order, and hard scores."""

import itertools
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from scipy import stats
from tolerances import close, equal
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm
from polymax.hypergraphs.passes import HARD
from polymax.structures.compact.heads import trees
from polymax.structures.spanning_tree import SpanningTree

GPU = torch.cuda.is_available()
SIZES = [0, 1, 2, 3, 4]
roots = pytest.mark.parametrize("single_root", [True, False], ids=["single", "many"])


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def forbid(x, share, seed=1):
    """Some arcs at -inf."""
    generator = torch.Generator().manual_seed(seed)
    return x.masked_fill(torch.rand(x.shape, generator=generator) < share, -torch.inf)


def enumerated(scores, n, single_root):
    """Every tree (count, n + 1, n + 1), and their scores (count, batch)."""
    y = SpanningTree(single_root=single_root).vertices((n + 1, n + 1)).double()
    return y, torch.where(y.unsqueeze(1) == 0, 0, scores.double()).sum((-1, -2))


def marginals(structure, scores):
    return pm.Marginals(structure)(scores)


KINDS = {
    "forbidden": lambda x: forbid(x, 0.4),
    "far apart": lambda x: 300 * x,
    "huge": lambda x: forbid(1e4 * x, 0.2),
    "roots far below": lambda x: torch.cat([x[:, :1] - 1e5, 1e3 * x[:, 1:]], 1),
    "ties": lambda x: x.round(),
}


@roots
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_enumeration(kind, n, single_root, device):
    scores = KINDS[kind](randn(40, n + 1, n + 1))
    y, values = enumerated(scores, n, single_root)
    assert y.shape[0] == (max(n, 1) ** max(n - 1, 0) if single_root else (n + 1) ** max(n - 1, 0)), "Cayley's formula"
    scores = scores.to(device).requires_grad_()
    # what no tree can use does not matter
    with torch.no_grad():
        scores.diagonal(0, 1, 2).fill_(torch.nan)
        scores[:, :, 0] = torch.nan
    structure = SpanningTree(single_root=single_root)
    best = structure.map(scores)
    close(structure.best_score(scores).cpu(), values.amax(0), "the best tree has the highest score")
    some = values.amax(0) > -torch.inf
    close(structure.score(best, scores).cpu()[some], values.amax(0)[some], "map is the best tree")
    assert bool((best.cpu()[~some] == 0).all()), "no tree is zeros"
    known = {tuple(t.flatten().tolist()) for t in y}
    assert all(tuple(t.flatten().tolist()) in known for t in best.detach().cpu()[some]), "map is a tree"
    value = structure.logsumexp(scores)
    close(value.cpu(), values.logsumexp(0), "logsumexp is the sum over all trees")
    p = torch.where(some, values.softmax(0), 0)
    mean = torch.einsum("kb,kij->bij", p, y)
    (slope,) = torch.autograd.grad(torch.where(some.to(device), value, 0).sum(), scores, create_graph=True)
    close(slope.cpu(), mean, "the gradient is the expected tree")
    close(marginals(structure, scores).cpu(), mean, "marginals are the expected tree")
    d = randn(40, n + 1, n + 1, seed=5)
    (second,) = torch.autograd.grad((slope * d.to(device)).sum(), scores)
    along = torch.einsum("kij,bij->kb", y, d)
    covariance = torch.einsum("kb,kij->bij", p * (along - (p * along).sum(0)), y)
    # scores of 1e4 leave eleven digits
    assert float((second.cpu() - covariance).abs().max()) < 1e-8, "the second derivative is the covariance"


@roots
def test_derivatives(single_root):
    structure = SpanningTree(torch.tensor([3, 2, 0]), single_root)
    scores = forbid(randn(3, 4, 4), 0.1)
    free = torch.isfinite(scores)

    def filled(entries):
        return scores.masked_scatter(free, entries)

    x = scores[free].requires_grad_()
    gradcheck(lambda e: structure.logsumexp(filled(e)), x)
    gradgradcheck(lambda e: structure.logsumexp(filled(e)), x)
    gradcheck(lambda e: marginals(structure, filled(e)), x)
    gradgradcheck(lambda e: marginals(structure, filled(e)), x)
    gradcheck(lambda e: structure.best_score(filled(e)), x)


@roots
@pytest.mark.parametrize("deviation", [1.0, 20.0, 40.0])
def test_float32(deviation, single_root, device):
    """A hundred tokens: float32 scores give the marginals of the same scores in float64."""
    scores = (deviation * randn(8, 101, 101, seed=int(deviation))).float().to(device)
    structure = SpanningTree(single_root=single_root)
    mu, exact = marginals(structure, scores), marginals(structure, scores.double())
    assert float((mu - exact).abs().max()) < 1e-6
    sums = exact[:, :, 1:].sum(1)
    close(sums, torch.ones_like(sums), "every token has one head")
    total = exact[:, 0].sum(-1)
    if single_root:
        close(total, torch.ones_like(total), "one token hangs from the root symbol")
    value, exact = structure.logsumexp(scores), structure.logsumexp(scores.double())
    assert float(((value - exact) / exact).abs().max()) < 1e-6


@roots
def test_determinant(single_root):
    """The matrix-tree theorem itself, where the determinant is accurate."""
    scores = randn(4, 31, 31)
    w = scores.exp()
    w.diagonal(0, 1, 2).fill_(0)
    inner, root = w[:, 1:, 1:], w[:, 0, 1:]
    laplacian = torch.diag_embed(inner.sum(1) + (0 if single_root else 1) * root) - inner
    if single_root:
        laplacian[:, 0] = root
    value = SpanningTree(single_root=single_root).logsumexp(scores)
    close(value, torch.linalg.slogdet(laplacian).logabsdet, "the sum over trees is a determinant")


@roots
def test_the_best_of_many(single_root):
    """Marginals of cold scores are the best tree."""
    scores = randn(6, 41, 41, seed=3)
    structure = SpanningTree(single_root=single_root)
    best = structure.map(scores)
    close(marginals(structure, 1e6 * scores), best, "cold marginals are the best tree")
    close(structure.best_score(scores), structure.score(best, scores), "best_score is the score of map")
    equal(best, structure.map(scores), "the same call gives the same tree")
    large = scores.clone()
    # a root must lose no digits of what is compared under it
    large[:, 0] += 1e12
    close(SpanningTree().map(large)[:, 0].sum(-1), torch.ones(6), "one root, whatever it scores")


@roots
@pytest.mark.parametrize("kind", ["forbidden", "peaked"])
def test_draws(kind, single_root):
    scores = randn(1, 4, 4, seed=4)
    if kind == "forbidden":
        scores[0, 2, 1] = scores[0, 0, 3] = -torch.inf
    if kind == "peaked":
        # a cycle of two that is far better than all else
        scores[0, 1, 2] += 900
        scores[0, 2, 1] += 900
    y, values = enumerated(scores, 3, single_root)
    p = values[:, 0].softmax(0)
    draws = 20000
    generator = torch.Generator().manual_seed(0)
    structure = SpanningTree(single_root=single_root)
    sample = structure.sample((scores,), (draws,), generator)[:, 0]
    found = (sample.flatten(1).unsqueeze(1) == y.flatten(1)).all(-1).sum(0)
    assert int(found.sum()) == draws, "draws are trees"
    likely = p * draws > 5
    assert bool((found[p == 0] == 0).all()), "what is forbidden is not drawn"
    expected = p[likely] / p[likely].sum() * found[likely].sum()
    assert stats.chisquare(found[likely].numpy(), expected.numpy()).pvalue > 1e-3
    again = structure.sample((scores,), (draws,), torch.Generator().manual_seed(0))[:, 0]
    equal(sample, again, "a generator decides the draws")


def test_draws_of_a_long_sentence():
    scores = 40 * randn(2, 61, 61)
    structure = SpanningTree()
    mean = structure.sample((scores,), (500,), torch.Generator().manual_seed(1)).mean(0)
    assert float((mean - marginals(structure, scores)).abs().max()) < 0.12


@roots
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_k_best(n, single_root):
    scores = forbid(randn(6, n + 1, n + 1), 0.4)
    y, values = enumerated(scores, n, single_root)
    best, found = SpanningTree(single_root=single_root).kbest((scores,), 20)
    expected = values.sort(0, descending=True).values[:20].T
    expected = torch.nn.functional.pad(expected, (0, 20 - expected.shape[1]), value=-torch.inf)
    close(found, expected, "kbest gives the highest scores, in order")
    for b, place in itertools.product(range(6), range(20)):
        if found[b, place] > -torch.inf:
            close((best[b, place] * scores[b].nan_to_num(neginf=0)).sum(), found[b, place], "kbest gives their trees")
            assert bool((y == best[b, place]).all(-1).all(-1).any())
        else:
            assert bool((best[b, place] == 0).all())
    for b in range(6):
        listed = [tuple(t.flatten().tolist()) for t, v in zip(best[b], found[b], strict=True) if v > -torch.inf]
        assert len(set(listed)) == len(listed), "no tree twice"


def test_k_best_of_a_long_sentence():
    scores = randn(1, 21, 21)
    best, values = SpanningTree().kbest((scores,), 8)
    assert bool((values.diff() <= 0).all())
    equal(best[:, 0], SpanningTree().map(scores), "the first is the best")
    assert len({tuple(t) for t in SpanningTree().decode(best[0]).tolist()}) == 8


FILES = [f for f in ("cpu", "cuda") if find_spec(f"polymax.kernels.spanning_tree.{f}") is not None]


def spread_out(t):
    """The same values, with strides that are not those of a contiguous tensor."""
    return t.repeat_interleave(2, -1)[..., ::2] if t.numel() else t


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@roots
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("file", FILES)
def test_parity(file, dtype, single_root):
    device = "cuda" if file == "cuda" and GPU else "cpu"
    tree, kernels, exact = (
        import_module(f"polymax.kernels.{name}")
        for name in (f"arborescence.{file}", f"spanning_tree.{file}", "spanning_tree.reference")
    )
    best = import_module("polymax.kernels.arborescence.reference")
    # the interpreter is slow
    interpreted = file == "cuda" and not GPU
    for n in (0, 4) if interpreted else (0, 1, 2, 9, 21):
        lengths = torch.tensor([max(n - k, 0) for k in range(5)])
        scores = forbid(randn(5, n + 1, n + 1), 0.15)
        scores[2] = -torch.inf
        scores[3] *= 1000
        scores, d, g = scores.to(dtype), randn(5, n + 1, n + 1, seed=7).to(dtype), torch.linspace(-1, 2, 5, dtype=dtype)
        value, chart = exact.spanning_tree_inside(scores.double(), lengths, single_root)
        mu = exact.spanning_tree_outside(scores.double(), lengths, chart, g.double(), single_root)
        second = exact.spanning_tree_tangent(scores.double(), lengths, chart, g.double(), d.double(), single_root)
        for layout in (spread_out,) if interpreted else (torch.Tensor.contiguous, spread_out):
            x, u = layout(scores).to(device), layout(d).to(device)
            inner, weights = lengths.to(device), g.to(device)
            heads = tree.arborescence(x, inner, single_root)
            equal(heads.cpu(), best.arborescence(scores, lengths, single_root), f"{file}.py == reference.py: heads")
            v, c = kernels.spanning_tree_inside(x, inner, single_root)
            found = (
                v,
                kernels.spanning_tree_outside(x, inner, c, weights, single_root),
                *kernels.spanning_tree_tangent(x, inner, c, weights, u, single_root),
            )
            for actual, truth in zip(found, (value, mu, *second), strict=True):
                assert actual.shape == truth.shape
                assert actual.dtype == dtype
                assert actual.is_contiguous()
                close(actual.cpu(), truth, f"{file}.py == reference.py")


@roots
def test_parity_of_lists(single_root):
    from polymax.kernels.spanning_tree import cpu, reference

    scores, lengths = forbid(randn(3, 5, 5), 0.2), torch.tensor([4, 3, 0])
    for a, b in zip(
        cpu.spanning_tree_kbest(scores, lengths, 9, single_root),
        reference.spanning_tree_kbest(scores, lengths, 9, single_root),
        strict=True,
    ):
        close(a.double(), b.double(), "cpu.py == reference.py: kbest")
    # one tree is left: every draw is that
    only = torch.full((1, 5, 5), -torch.inf)
    only[0][(0, 3, 1, 3), (3, 1, 2, 4)] = 0.0
    seeds = torch.arange(4).unsqueeze(0)
    for module in (cpu, reference):
        heads = module.spanning_tree_sample(only, torch.tensor([4]), seeds, single_root)
        equal(heads, torch.tensor([3, 1, 0, 3]).expand(1, 4, 4), "the only tree is drawn")


@roots
def test_operators(single_root, device):
    package, best = (import_module(f"polymax.kernels.{name}") for name in ("spanning_tree", "arborescence"))
    scores, lengths = randn(2, 4, 4).to(device), torch.tensor([3, 2], device=device)
    g = torch.ones(2, dtype=torch.float64, device=device)
    _, chart = package.spanning_tree_inside(scores, lengths, single_root)
    seeds = torch.arange(4, device=device).view(2, 2)
    for op, *args in (
        (best.arborescence, scores, lengths),
        (package.spanning_tree_inside, scores, lengths),
        (package.spanning_tree_outside, scores, lengths, chart, g),
        (package.spanning_tree_tangent, scores, lengths, chart, g, scores),
        (package.spanning_tree_sample, scores, lengths, seeds),
        (package.spanning_tree_kbest, scores, lengths, 3),
    ):
        torch.library.opcheck(op.op, (*args, single_root), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_torch_around_it(device):
    structure = SpanningTree()
    scores = randn(3, 2, 5, 5).to(device)

    def loss(x):
        return structure.logsumexp(x).sum() + (structure.map(x.detach()) * x).sum()

    close(torch.func.vmap(structure.logsumexp)(scores), structure.logsumexp(scores), "vmap is a batch")
    close(torch.func.vmap(structure.map)(scores), structure.map(scores), "vmap is a batch")
    slopes = torch.func.vmap(torch.func.grad(lambda x: structure.logsumexp(x).sum()))(scores)
    close(slopes, marginals(structure, scores), "vmap of a gradient is a batch")
    torch._dynamo.reset()
    results = []
    for fn in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)):
        x = scores.clone().requires_grad_()
        value = fn(x)
        results.append((value.detach(), *torch.autograd.grad(value, x)))
    for a, b in zip(*results, strict=True):
        close(b, a, "compiled is the same")


def test_errors():
    structure = SpanningTree()
    assert len(trees(3, False)) == 16
    x = randn(2, 5, 5).half()
    assert structure.sample((x,)).dtype == structure.kbest((x,), 2)[1].dtype == torch.float16
    with pytest.raises(ValueError, match=r"must be \(\*batch, n \+ 1, n \+ 1\)"):
        structure.map(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="positive integer"):
        structure.kbest((torch.zeros(3, 3),), 0)
    with pytest.raises(TypeError, match="not a dynamic program"):
        structure.problem(torch.zeros(3, 3)).value(2.0)
    assert structure.problem(torch.zeros(3, 3)).value(HARD) == 0
    assert structure.sample((torch.zeros(0, 3, 3),), (2,)).shape == (2, 0, 3, 3)
