"""CUDA graphs: operators launch without a look at the device, so that a graph records and replays them."""

import pytest
import torch
from tolerances import close

import polymax as pm

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU"),
]

FEW = pm.ActiveSet(max_iter=60)


def chain(n=6, s=4):
    return (3, n, s), (s, s)


def both(value_and_mean):
    """A number for each instance from the value, and from the mean."""
    return lambda *scores: value_and_mean.max(*scores).sum() + _spread(value_and_mean.argmax(*scores))


def mean(smoothing):
    return lambda *scores: _spread(smoothing.argmax(*scores))


def _spread(parts):
    each = parts if isinstance(parts, tuple) else (parts,)
    return sum((t * torch.linspace(-1, 1, t.numel(), device=t.device).reshape(t.shape)).sum() for t in each)


def transduced(x):
    """Targets, frames and tokens of two instances beside x, without a copy from the host."""
    frames, tokens = torch.full((2,), 6, device=x.device), torch.full((2,), 2, device=x.device)
    return torch.ones(2, 2, dtype=torch.long, device=x.device), frames, tokens


def weights(mapping):
    return lambda x: _spread(mapping(x))


# what is recorded: a number of scores of these shapes
RECORDED = {
    **{
        f.__name__: (weights(f), ((8, 32),))
        for f in (pm.softmax, pm.sparsemax, pm.entmax, pm.normmax, pm.sq_pnorm_max, pm.fusedmax, pm.oscarmax)
    },
    "csparsemax": (weights(lambda x: pm.csparsemax(x, upper=0.2)), ((8, 32),)),
    "csoftmax": (weights(lambda x: pm.csoftmax(x, upper=0.1)), ((8, 32),)),
    "budgetmax": (weights(lambda x: pm.budgetmax(x, k=3)), ((8, 32),)),
    "chain": (both(pm.Marginals(pm.Chain())), chain()),
    "chain, Gini": (both(pm.LocalMax(pm.Chain(), pm.Gini())), chain()),
    "semi-Markov": (both(pm.Marginals(pm.SemiMarkov(3))), ((3, 5, 3, 2), (2, 2))),
    "span tree": (both(pm.Marginals(pm.SpanTree())), ((3, 6, 6),)),
    "projective tree": (both(pm.Marginals(pm.ProjectiveTree())), ((3, 6, 6),)),
    "spanning tree": (both(pm.Marginals(pm.SpanningTree())), ((3, 6, 6),)),
    "soft-DTW": (lambda x: pm.soft_dtw(x.square()).sum(), ((3, 6, 7),)),
    "transducer of durations": (
        lambda x, d: pm.tdt_loss(x, d, *transduced(x), 4, [0, 1, 2]),
        ((2, 6, 3, 5), (2, 6, 3, 3)),
    ),
    "additive transducer": (lambda e, p: pm.additive_rnnt_loss(e, p, *transduced(e)), ((2, 6, 5), (2, 3, 5))),
    "SparseMap of chains": (mean(pm.SparseMap(pm.Chain(), FEW)), chain()),
    "SparseMap of trees": (mean(pm.SparseMap(pm.SpanningTree(), FEW)), ((3, 6, 6),)),
    "SparseMap of assignments": (mean(pm.SparseMap(pm.Assignment(), FEW)), ((3, 5, 5),)),
    "SparseMap of span trees": (mean(pm.SparseMap(pm.SpanTree(), FEW)), ((3, 6, 6),)),
}


def gradients(function, scores):
    value = function(*scores)
    return value, *torch.autograd.grad(value, scores)


@pytest.mark.parametrize("name", RECORDED)
def test_graphs_replay(name):
    function, shapes = RECORDED[name]
    generator = torch.Generator().manual_seed(0)
    first, second = ([torch.randn(*shape, generator=generator).cuda() for shape in shapes] for _ in range(2))
    expected = [gradients(function, [x.clone().requires_grad_() for x in given]) for given in (first, second)]
    scores = [x.clone().requires_grad_() for x in first]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            gradients(function, scores)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(function, scores)
    for given, truth in zip((first, second), expected, strict=True):
        with torch.no_grad():
            for x, y in zip(scores, given, strict=True):
                x.copy_(y)
        graph.replay()
        for actual, wanted in zip(found, truth, strict=True):
            close(actual.cpu(), wanted.cpu(), f"{name} in a graph == outside")


@pytest.mark.parametrize(
    ("shape", "ragged"), [((7, 16, 300, 60), True), ((7, 16, 60, 300), True), ((1, 600, 700), False)]
)
def test_graphs_match_rows_and_columns(shape, ragged):
    """Seven layers of a detector in one call, or a matrix that many programs share."""
    first, second = torch.rand(2, *shape, device="cuda")
    sizes = [torch.randint(5 if k < 100 else k, k + 1, shape[:-2], device="cuda") for k in shape[-2:]]

    def matched(cost):
        return pm.linear_sum_assignment(cost, lengths=tuple(sizes) if ragged else None, infeasible="skip")

    expected = [matched(cost) for cost in (first, second)]
    cost = first.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = matched(cost)
    for given, truth in zip((first, second), expected, strict=True):
        cost.copy_(given)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))
        assert int((found[0] >= 0).sum()) >= 5


# the call is refused before it launches anything
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_graph_records_few_iterations():
    scores = torch.randn(2, 4, 4, device="cuda")
    sparse = pm.SparseMap(pm.SpanningTree())
    sparse(scores)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="max_iter must be at most 255"), torch.cuda.graph(graph):
        sparse(scores)
