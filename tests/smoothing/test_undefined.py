"""NaN among the scores of an instance, and an instance without any structure: each shows, in that instance alone."""

import math
import warnings

import pytest
import torch
from estimators_table import ESTIMATORS
from sets import BY_NAME, TABLE, every
from tolerances import equal

import polymax as pm
from polymax.structures.base import tensors

NAN, INF = math.nan, math.inf
SOLVERS = [pm.ActiveSet(), pm.FrankWolfe(max_iter=30), pm.AwayStep(max_iter=30), pm.Pairwise(max_iter=30)]
# a structure of the empty set of parts, or of parts that no score forbids
NEVER_DEAD = ("subset-at-most", "explicit", "ranking", "gapped", "gapped-local")


def operators(structure):
    """Every smoothing that the structure has."""
    yield pm.HardMax(structure)
    yield from (pm.SparseMap(structure, solver, gamma=0.7) for solver in SOLVERS)
    if isinstance(structure, pm.Counted):
        yield pm.Marginals(structure, gamma=0.7)
    if isinstance(structure, pm.DynamicProgram):
        for regularizer in (pm.Gini(), pm.Tsallis(1.5), pm.SquaredPNorm()):
            yield pm.LocalMax(structure, regularizer)
    if isinstance(structure, pm.DynamicProgram | pm.SpanningTree):
        yield pm.TopKSparsemax(structure, 3)


def results(op, scores):
    """The value, mu, and the derivatives of both: tensors of (batch, ...)."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in scores)
    with warnings.catch_warnings():
        # solvers that are stopped early
        warnings.simplefilter("ignore")
        value, mu = op.max(*inputs), tensors(op(*inputs))
        slopes = torch.autograd.grad(torch.where(value == -INF, 0, value).sum(), inputs)
        found = [value, *mu, *slopes]
        if any(m.requires_grad for m in mu):
            found += torch.autograd.grad(sum((m * _weights(m)).sum() for m in mu), inputs, materialize_grads=True)
    return [t.detach() for t in found]


def _weights(m):
    return torch.linspace(-1, 1, m[0].numel(), dtype=m.dtype).reshape(m.shape[1:])


def used(row):
    """The parts that some structure uses."""
    return [(v != 0).any(0) for v in row.vertices()]


@every(TABLE)
def test_nan_shows_in_its_instance(row):
    scores = tuple(x.clone() for x in row.structure.full(*row.scores(batch=(3,))))
    masks = used(row)
    for op in operators(row.structure):
        clean = results(op, scores)
        for k, x in enumerate(scores):
            broken = list(scores)
            broken[k] = x.clone()
            broken[k][1][tuple(masks[k].nonzero()[-1])] = NAN
            found = results(op, broken)
            assert bool(found[0][1].isnan()), f"the value of {op} is NaN"
            for i, (t, before) in enumerate(zip(found, clean, strict=True)):
                equal(t[::2], before[::2], f"result {i} of {op}: other instances are what they are without NaN")
                parts = masks[(i - 1) % len(masks)] if i else torch.tensor(True)
                equal(t[1].isnan(), parts, f"result {i} of {op}: NaN in all parts that a structure can use")
                assert bool((t[1][~parts] == 0).all()), f"result {i} of {op}: 0 elsewhere"


@every([row for row in TABLE if row.name != "ranking"])
def test_infinite_scores_are_no_answer(row):
    # no structure is best: the sparse smoothings say so, as sparsemax does, and their searches end
    scores = tuple(x.clone() for x in row.structure.full(*row.scores(batch=(3,))))
    used_parts = used(row)[0]
    scores[0][1][tuple(used_parts.nonzero()[-1])] = INF
    op = pm.SparseMap(row.structure)
    value, mu = op.max(*scores), tensors(op(*scores))[0]
    assert bool(value[1].isnan())
    assert bool(value[::2].isfinite().all())
    equal(mu[1].isnan(), used_parts, "NaN in all parts that a structure can use")
    assert bool(mu[::2].isfinite().all())


@every([row for row in TABLE if row.name != "ranking"])
def test_dead_instances_stop_no_batch(row):
    if row.name in NEVER_DEAD:
        pytest.skip("scores of -inf leave a structure")
    scores = tuple(x.clone() for x in row.structure.full(*row.scores(batch=(3,))))
    forbidden = list(scores)
    forbidden[0] = scores[0].clone()
    forbidden[0][1] = -INF
    for op in operators(row.structure):
        found, clean = results(op, forbidden), results(op, scores)
        assert found[0][1] == -INF, f"the value of {op} is -inf"
        for i, (t, before) in enumerate(zip(found, clean, strict=True)):
            equal(t[::2], before[::2], f"result {i} of {op}: other instances are what they are")
            assert i == 0 or bool((t[1] == 0).all()), f"result {i} of {op}: zeros without a structure"


@every([row for row in TABLE if row.name != "ranking"])
@pytest.mark.parametrize("score", [NAN, -INF], ids=["nan", "dead"])
def test_distributions(row, score):
    if row.name in NEVER_DEAD and score == -INF:
        pytest.skip("scores of -inf leave a structure")
    scores = tuple(x.clone() for x in row.structure.full(*row.scores(batch=(3,))))
    some = row.structure.map(*scores)
    scores[0][1] = score
    dead = score == -INF
    for op in operators(row.structure):
        if isinstance(op, pm.HardMax) or (isinstance(op, pm.SparseMap) and not isinstance(op.solver, pm.ActiveSet)):
            continue
        d = op.distribution(*scores)
        checked = {"entropy": d.entropy(), "prob": d.prob(some)}
        if isinstance(op, pm.SparseMap | pm.TopKSparsemax):
            checked["probs"] = d.probs
            checked["mean"], checked["mode"] = (tensors(y)[0] for y in (d.mean, d.mode))
            checked["sample"] = tensors(d.sample((2,)))[0].transpose(0, 1)
            listed, checked["topk"] = d.topk(2)
            checked["vertices"] = tensors(listed)[0]
        for name, t in checked.items():
            shown = (t[1] == 0).all() if dead else t[1].isnan().any()
            assert bool(shown), f"{name} of {op} shows {score}"
            assert not bool(t[::2].isnan().any()), f"{name} of {op}: other instances have no NaN"
        assert d.log_prob(some)[1] == -INF if dead else bool(d.log_prob(some)[1].isnan())


@every([row for row in TABLE if row.name != "ranking"])
def test_losses(row):
    scores = tuple(x.clone() for x in row.structure.full(*row.scores(batch=(3,))))
    y = row.structure.map(*row.scores(batch=(3,), seed=5))
    scores[0][1][tuple(used(row)[0].nonzero()[0])] = NAN
    inputs = tuple(x.requires_grad_() for x in scores)
    losses = [pm.perceptron_loss, pm.sparsemap_loss]
    if isinstance(row.structure, pm.Counted):
        losses.append(pm.crf_loss)
    if row.name != "explicit":
        losses.append(pm.svm_loss)
    for loss in losses:
        value = loss(row.structure, inputs, y, reduction="none")
        slopes = torch.autograd.grad(value.sum(), inputs)
        for t in (value, slopes[0]):
            shown = t.isnan().reshape(3, -1).any(-1).tolist()
            assert shown == [False, True, False], f"{loss.__name__}: NaN shows in its instance alone"


@pytest.mark.parametrize("name", ["chain", "spanning-tree", "assignment", "subset"])
def test_estimators(name):
    row = BY_NAME[name]
    scores = tuple(x.clone() for x in row.structure.full(*row.scores(batch=(3,))))
    scores[0][1][tuple(used(row)[0].nonzero()[0])] = NAN
    inputs = tuple(x.requires_grad_() for x in scores)
    for case in ESTIMATORS:
        if not case.fits(row):
            continue
        estimator = case.make(row.structure)
        y = tensors(
            estimator(*inputs, generator=torch.Generator().manual_seed(0)) if case.draws else estimator(*inputs)
        )
        (slope, *_) = torch.autograd.grad(sum((t * _weights(t)).sum() for t in y), inputs, materialize_grads=True)
        for t in (y[0], slope):
            shown = t.isnan().reshape(3, -1).any(-1).tolist()
            assert shown == [False, True, False], f"{case.name}: NaN shows in its instance alone"


def test_a_subset_of_too_few():
    scores = torch.tensor([[0.0, 1.0, 2.0], [0.0, -INF, -INF]], requires_grad=True)
    op = pm.SparseMap(pm.Subset(2))
    value, mu = op.max(scores), op(scores)
    assert value[1] == -INF
    assert bool((mu[1] == 0).all())
    equal(mu[0], op(scores[:1])[0], "the other row is what it is alone")
    (slope,) = torch.autograd.grad(mu.square().sum(), scores)
    assert bool(slope.isfinite().all())


def test_warm_start_after_nan():
    row = BY_NAME["chain"]
    scores = row.scores(batch=(2,))
    broken = scores[0].clone()
    broken[0, 1, 1] = NAN
    op = pm.SparseMap(row.structure)
    start = op.solve(broken, scores[1])
    equal(start.value.isnan(), torch.tensor([True, False]), "NaN shows")
    for solver in (pm.ActiveSet(), pm.Pairwise()):
        again = pm.SparseMap(row.structure, solver).solve(*scores, start=start)
        assert bool(again.value.isfinite().all()), "an instance without weights starts from its best structure"


@pytest.mark.parametrize("n", [5, 100, 1000])
@pytest.mark.parametrize("alpha", [1.33, 1.5, 2.0])
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_gradients_that_are_not_finite_are_not_lost(alpha, n, bad):
    """A gradient of no use beside the support has no weight; the row says so, and the others do not notice."""
    x = torch.linspace(0, 3 * n, n).repeat(2, 1).requires_grad_()
    v = torch.ones(2, n)
    v[0, 0] = bad
    (found,) = torch.autograd.grad(pm.entmax(x, alpha=alpha), x, v)
    assert found[0, -1].isnan()
    assert (found[1] == 0).all()
