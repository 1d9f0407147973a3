"""The passes of every dynamic program: kernel files against their reference on odd shapes, and torch around them."""

import math
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from tolerances import close, equal
from torch.func import grad, vmap

import polymax as pm

GPU = torch.cuda.is_available()
ALPHAS = [1.0, 2.0, 1.5, math.inf]


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chain(batch, n, shared=True, s=5):
    transition = (1, 1) if shared else (batch, max(n - 1, 0))
    return (randn(batch, n, s), randn(*transition, s, s, seed=1)), (lengths(batch, n),), ()


def chain_by_step(batch, n):
    return chain(batch, n, shared=False)


def chain_in_groups(batch, n):
    # two groups of instances share their transitions
    return (randn(2 * batch, n, 3), randn(2, 1, 3, 3, seed=1)), (lengths(2 * batch, n),), ()


def chain_of_many_states(batch, n):
    return chain(batch, n, s=37)


def chain_loss(make):
    def problem(batch, n):
        scores, index, options = make(batch, n)
        instances, _, s = scores[0].shape
        tags = (torch.arange(instances)[:, None] + 3 * torch.arange(n) + 1) % s
        return scores, (*index, tags), options

    return problem


def alignment(batch, n):
    return (randn(batch, n, n + 2),), (lengths(batch, n), lengths(batch, n + 2)), ()


def gapped(batch, n):
    shape = batch, n, n + 2
    return (randn(*shape), randn(*shape, seed=1), randn(*shape, seed=2)), (lengths(batch, n), lengths(batch, n + 2)), ()


def gapped_by_numbers(batch, n):
    one = batch, 1, 1
    given = randn(batch, n + 2, n), randn(*one, seed=1), randn(*one, seed=2)
    return given, (lengths(batch, n + 2), lengths(batch, n)), ()


def transducer(batch, n):
    return (randn(batch, n, 4), randn(batch, n, 3, seed=1)), (lengths(batch, n), lengths(batch, 3)), ()


def duration_transducer(batch, n):
    shape = batch, n, 4
    given = randn(*shape), randn(batch, n, 3, seed=1), randn(*shape, 4, seed=2)
    return given, (lengths(batch, n), lengths(batch, 3)), ([0, 1, 2, 4],)


def duration_transducer_without_zero(batch, n):
    # tokens take frames: short instances have no path
    given = randn(batch, n, 3), randn(batch, n, 2, seed=1), randn(batch, n, 3, 2, seed=2)
    return given, (lengths(batch, n), lengths(batch, 2)), ([3, 2],)


def span_tree(batch, n):
    return (randn(batch, n, n, 1),), (lengths(batch, n),), ()


def span_tree_labelled(batch, n):
    return (randn(batch, n, n, 3),), (lengths(batch, n),), ()


def projective_tree(batch, n):
    return (randn(batch, n + 1, n + 1),), (lengths(batch, n),), (True,)


def projective_tree_of_many_roots(batch, n):
    return (randn(batch, n + 1, n + 1),), (lengths(batch, n),), (False,)


def head_automaton(order, single_root=True):
    def make(batch, n):
        pairs = randn(batch, 2 if order == 3 else 1, n + 1, n + 1, n + 1, seed=1)
        return (randn(batch, n + 1, n + 1), pairs), (lengths(batch, n),), (single_root, order)

    return make


def hypergraph(batch, n):
    from polymax.kernels.span_tree.reference import as_graph

    flat, graph, roots = as_graph(randn(batch, n, n, 2), lengths(batch, n))
    return (flat,), (*graph.arrays, roots), ()


def lengths(batch, n):
    """The whole, then shorter and shorter ones."""
    return torch.tensor([max(n - k, 0) for k in range(batch)], dtype=torch.long)


PROBLEMS = {
    "chain": ("chain", chain),
    "chain-by-step": ("chain", chain_by_step),
    "chain-in-groups": ("chain", chain_in_groups),
    "chain-of-many-states": ("chain", chain_of_many_states),
    "chain-loss": ("chain_loss", chain_loss(chain)),
    "chain-loss-by-step": ("chain_loss", chain_loss(chain_by_step)),
    "chain-loss-in-groups": ("chain_loss", chain_loss(chain_in_groups)),
    "alignment": ("alignment", alignment),
    "gapped": ("gapped", gapped),
    "gapped-by-numbers": ("gapped", gapped_by_numbers),
    "transducer": ("transducer", transducer),
    "duration-transducer": ("duration_transducer", duration_transducer),
    "duration-transducer-without-zero": ("duration_transducer", duration_transducer_without_zero),
    "span-tree": ("span_tree", span_tree),
    "span-tree-labelled": ("span_tree", span_tree_labelled),
    "projective-tree": ("projective_tree", projective_tree),
    "projective-tree-of-many-roots": ("projective_tree", projective_tree_of_many_roots),
    "siblings": ("head_automaton", head_automaton(1)),
    "grandparents": ("head_automaton", head_automaton(2)),
    "both-of-many-roots": ("head_automaton", head_automaton(3, False)),
    "hypergraph": ("hypergraph", hypergraph),
}
SIZES = {"cpu": [0, 1, 2, 9, 21], "cuda": [0, 2, 21] if GPU else [1, 4]}


def sizes(folder, file):
    """The lengths that are tried: fewer in Triton's interpreter, the fewest where many programs are launched."""
    if folder != "head_automaton":
        return SIZES[file]
    # their reference computes the fourth power of a length
    return [0, 1, 2, 13] if file == "cpu" else [0, 13] if GPU else [3]


def passes_of(folder, file, scores, index, options, alpha, tangents, g):
    """Value, expectation, and both tangents, by one kernel file."""
    module = import_module(f"polymax.kernels.{folder}.{file}")
    inside, outside, tangent = (getattr(module, f"{folder}_{name}") for name in ("inside", "outside", "tangent"))
    value, chart = inside(*scores, *index, *options, alpha)
    mu = outside(*scores, *index, chart, g, *options, alpha)
    slope, *second = tangent(*scores, *index, chart, g, *tangents, *options, alpha)
    return value, *(mu if isinstance(mu, tuple) else (mu,)), slope, *second


def alphas(n, dtype):
    """Those that the interpreter, which takes seconds for a pass, is asked for."""
    if dtype == torch.float64:
        return [1.0]
    return ALPHAS if n == 1 else [1.0, 2.0, math.inf]


def spread_out(t):
    """The same values, with strides that are not those of a contiguous tensor."""
    return t.repeat_interleave(2, -1)[..., ::2] if t.numel() else t


def has(folder, file):
    return find_spec(f"polymax.kernels.{folder}.{file}") is not None


TABLE = [
    pytest.param(name, file, dtype, n, id=f"{name}-{file}-{str(dtype)[6:]}-{n}")
    for name, (folder, _) in PROBLEMS.items()
    for file in ("cpu", "cuda")
    if has(folder, file) and (file == "cpu" or find_spec("triton") is not None)
    for dtype in (torch.float64, torch.float32)
    for n in sizes(folder, file)
    if GPU
    # compiled kernels of float32 differ from those of float64 in the type alone: one length shows it
    or (file == "cpu" and (dtype == torch.float64 or n == sizes(folder, file)[-1]))
    or (file == "cuda" and dtype == torch.float32)
    # kernels that leave float64 to the general hypergraph show that by the other smoothings
    or (file == "cuda" and n == SIZES["cuda"][-1] and folder not in ("gapped", "transducer"))
]


# the interpreter computes the lanes that a GPU would mask, with NumPy's warnings about them
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "file", "dtype", "n"), TABLE)
def test_parity(name, file, dtype, n):
    folder, make = PROBLEMS[name]
    device = "cuda" if file == "cuda" and GPU else "cpu"
    scores, index, options = make(3, n)
    # a forbidden part, and an instance in which all are
    scores[0].flatten()[::7] = -torch.inf
    if scores[0].shape[0] > 2:
        scores[0][2] = -torch.inf
    scores = tuple(x.to(dtype) for x in scores)
    tangents = tuple(randn(*x.shape, seed=7 + k).to(dtype) for k, x in enumerate(scores))
    g = torch.linspace(-1, 2, scores[0].shape[0], dtype=dtype)
    interpreted = file == "cuda" and not GPU
    # compiled kernels compute in float64, and have files of their own for float32 under alpha 1 alone
    chosen = alphas(n, dtype) if interpreted else ALPHAS if GPU or dtype == torch.float64 else [1.0]
    for alpha in chosen:
        exact = passes_of(
            folder, "reference", [x.double() for x in scores], index, options, alpha,
            [x.double() for x in tangents], g.double(),
        )  # fmt: skip
        for layout in (torch.Tensor.contiguous,) if interpreted else (torch.Tensor.contiguous, spread_out):
            moved = [[layout(x).to(device) for x in xs] for xs in (scores, tangents)]
            found = passes_of(
                folder, file, moved[0], [i.to(device) for i in index], options, alpha, moved[1], g.to(device)
            )
            for k, (actual, truth) in enumerate(zip(found, exact, strict=True)):
                assert actual.shape == truth.shape
                assert actual.dtype == dtype
                assert actual.is_contiguous()
                close(actual.cpu(), truth, f"{file}.py == reference.py for {name}, alpha {alpha}, output {k}")


@pytest.mark.parametrize("name", PROBLEMS)
def test_opcheck(name, device):
    folder, make = PROBLEMS[name]
    package = import_module(f"polymax.kernels.{folder}")
    scores, index, options = make(2, 4)
    scores, index = [[t.to(device) for t in ts] for ts in (scores, index)]
    inside, outside, tangent = (getattr(package, f"{folder}_{pass_}") for pass_ in ("inside", "outside", "tangent"))
    g = torch.ones(scores[0].shape[0], dtype=torch.float64, device=device)
    _, chart = inside(*scores, *index, *options, 2.0)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(inside.op, (*scores, *index, *options, 2.0), test_utils=checks)
    torch.library.opcheck(outside.op, (*scores, *index, chart, g, *options, 2.0), test_utils=checks)
    torch.library.opcheck(tangent.op, (*scores, *index, chart, g, *scores, *options, 2.0), test_utils=checks)


OPERATORS = {
    "chain": (pm.Chain(), [(2, 4, 3), (3, 3)]),
    "alignment": (pm.Alignment(), [(2, 4, 5)]),
    "span-tree": (pm.SpanTree(), [(2, 4, 4)]),
    "projective-tree": (pm.ProjectiveTree(), [(2, 4, 4)]),
    "segments": (pm.SemiMarkov(2), [(2, 4, 2, 3), (3, 3)]),
    "dag": (pm.Dag([(0, 1), (0, 2), (1, 2)]), [(2, 3)]),
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", OPERATORS)
def test_compile(name, device):
    structure, sizes = OPERATORS[name]
    scores = [randn(*size, seed=k).to(device) for k, size in enumerate(sizes)]

    def loss(*scores):
        op = pm.Marginals(structure)
        mean = op(*(x.detach() for x in scores))
        first = mean if isinstance(mean, torch.Tensor) else mean[0]
        return op.max(*scores).sum() + pm.LocalMax(structure, pm.Gini()).max(*scores).square().sum() + first.sum()

    torch._dynamo.reset()
    results = []
    for fn in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)):
        inputs = [x.clone().requires_grad_() for x in scores]
        value = fn(*inputs)
        results.append((value.detach(), *torch.autograd.grad(value, inputs)))
    for a, b in zip(*results, strict=True):
        close(b, a, f"compiled {name} is {name}")


@pytest.mark.parametrize("name", OPERATORS)
def test_vmap_is_a_loop(name, device):
    structure, sizes = OPERATORS[name]
    scores = [randn(3, *size, seed=k).to(device) for k, size in enumerate(sizes)]
    op = pm.Marginals(structure)
    mapped = vmap(op.max)(*scores)
    close(mapped, torch.stack([op.max(*(x[k] for x in scores)) for k in range(3)]), "vmap is a loop")
    slopes = vmap(grad(lambda *x: op.max(*x).sum()))(*scores)
    each = torch.stack([grad(lambda *x: op.max(*x).sum())(*(x[k] for x in scores)) for k in range(3)])
    close(slopes, each, "vmap of a gradient is a loop")


@pytest.mark.parametrize("name", OPERATORS)
def test_threads_do_not_matter(name):
    structure, sizes = OPERATORS[name]
    scores = [randn(40, *size[1:], seed=k) if k == 0 else randn(*size, seed=k) for k, size in enumerate(sizes)]
    scores = [x.requires_grad_() for x in scores]
    runs = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            value = pm.Marginals(structure).max(*scores)
            runs.append((value.detach(), *torch.autograd.grad(value.sum(), scores)))
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*runs, strict=True):
        equal(a, b, "the number of threads does not change a bit")
