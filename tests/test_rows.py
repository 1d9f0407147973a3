"""Instances of a batch are independent: what stands beside one changes no bit of its result and its gradient."""

import warnings

import estimators_table
import pytest
import sets
import torch
from cases import ROWS, Case, every
from functions_table import FUNCTIONS
from sets import BY_NAME, TABLE
from tolerances import close, equal

import polymax as pm
from polymax.structures.base import tensors

# the order of the batch, in which instance 0 is the one that is looked at
ORDERS = ([0], [0, 1, 2, 3, 4, 5], [3, 5, 2, 0, 1, 4])
# a user's function, and the general loop of SparseMAP: torch adds up all instances in one call, and the order of a sum
# depends on the batch
ROUNDED = {"custom-squared-norm", "cuts", "gapped-local", "hypergraph", "spanning-tree-labelled"}
LOSSES = {
    "marginals": (pm.Marginals, ("segments", "ctc", "spanning-tree")),
    "sparse": (pm.SparseMap, ("chain", "assignment", "ranking")),
    "local": (lambda structure: pm.LocalMax(structure, pm.Gini()), ("alignment", "projective-tree")),
    "hard": (pm.HardMax, ("span-tree", "subset")),
}


def batch_of(x, other):
    """An instance x (*event), and neighbours of it that are ordinary, NaN, hard, forbidden and equal: (6, *event)."""
    hard = torch.where(torch.arange(x.numel()).reshape(x.shape) % 3 == 1, -torch.inf, 1e8 * other)
    poisoned = other.clone().flatten()
    poisoned[: 1 + poisoned.numel() // 2] = torch.nan
    return torch.stack([x, other, poisoned.reshape(x.shape), hard, x - torch.inf, torch.zeros_like(x)])


def problem(row):
    """Scores of an instance and of its neighbours, and which score tensors all instances share."""
    own, other = row.scores(seed=3), row.scores(seed=4)
    shared = [k > 0 and x.dim() == 2 for k, x in enumerate(own)]
    return [x if s else batch_of(x, o) for x, o, s in zip(own, other, shared, strict=True)], shared


def check(function, batch, shared=(False,), same=equal):
    """Values and gradients of instance 0 are the same in every batch: bit for bit, or within the tolerance."""
    found = []
    for order in ORDERS:
        x = [(t if s else t[order]).clone().requires_grad_() for t, s in zip(batch, shared, strict=True)]
        with warnings.catch_warnings():
            # solvers say of NaN and of hard instances that they did not converge
            warnings.simplefilter("ignore")
            outputs = function(*x)
            # weights of the gradient are the same for an instance in every order
            weights = [torch.linspace(1, 2, t[0].numel()).to(t).reshape(t[0].shape).expand(t.shape) for t in outputs]
            derived = [(t, w) for t, w in zip(outputs, weights, strict=True) if t.requires_grad]
            alone = [t for t, s in zip(x, shared, strict=True) if not s]
            outs, slopes = [t for t, _ in derived], [w for _, w in derived]
            grads = torch.autograd.grad(outs, alone, slopes, allow_unused=True) if derived else ()
        at = order.index(0)
        found.append([t[at].detach() for t in (*outputs, *grads) if t is not None])
    for later in found[1:]:
        for beside, alone in zip(later, found[0], strict=True):
            same(beside, alone, "an instance does not depend on its neighbours")


def same_of(name):
    return close if name in ROUNDED else equal


def overlapping(strength, gamma=1.0):
    return pm.Grouped([(0, 1, 2), (2, 3), (3, 4, 5, 6), (0, 6)], strength, gamma)


GROUPED = Case("grouped-overlapping", overlapping, None, None, {"strength": 0.2})


@every([*ROWS, GROUPED])
def test_rows_of_regularizers(case):
    # lower bounds leave no room for long rows
    n = 7 if case.parameters.get("lower") or case is GROUPED else 40
    generator = torch.Generator().manual_seed(n)
    x, other = torch.randn(2, n, generator=generator, dtype=torch.float64)
    omega = case.regularizer()
    batch = batch_of(x, other)
    if case.parameters.get("upper", 1) < 1 or case.total > 1:
        # bounds need entries that are not forbidden
        batch = torch.where(batch == -torch.inf, -1e8, batch)
    check(lambda x: (omega.argmax(x), omega.max(x)), [batch], same=same_of(case.name))


@pytest.mark.parametrize("kind", ["sparse", "other"])
@sets.every(TABLE)
def test_instances_of_sets(row, kind):
    """SparseMAP, and the sums or, for sets that have none, the best structure; recursions smoothed by Gini()."""
    batch, shared = problem(row)
    other = pm.Marginals if row.able("count") else pm.HardMax
    smoothing = (pm.SparseMap if kind == "sparse" else other)(row.structure)
    same = same_of(row.name) if kind == "sparse" else equal
    if kind == "other" and row.able("local"):
        local = pm.LocalMax(row.structure, pm.Gini())
        check(lambda *x: (*tensors(local(*x)), local.max(*x)), batch, shared)
    check(lambda *x: (*tensors(smoothing(*x)), smoothing.max(*x)), batch, shared, same)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, (_, names) in LOSSES.items() for name in names])
def test_instances_of_losses(name, kind):
    row, smooth = BY_NAME[name], LOSSES[kind][0](BY_NAME[name].structure)
    batch, shared = problem(row)
    best = row.structure.map(*row.scores(seed=8))

    def losses(*x):
        y = [t.expand(len(x[0]), *t.shape) for t in tensors(best)]
        y = y[0] if len(y) == 1 else type(best)(*y)
        return (pm.fenchel_young(smooth, x if len(x) > 1 else x[0], y, reduction="none"),)

    check(losses, batch, shared)


@estimators_table.every([case for case in estimators_table.ESTIMATORS if not case.draws])
@sets.every([row for row in TABLE if row.name in ("chain", "assignment", "spanning-tree")])
def test_instances_of_estimators(row, case):
    if not case.fits(row):
        pytest.skip("this estimator needs sums")
    batch, shared = problem(row)
    estimator = case.make(row.structure)
    check(lambda *x: tensors(estimator(*x)), batch, shared)


# products of matrices, whose sums torch orders by the size of the batch
PRODUCTS = {"linear", "attention"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_instances_of_functions(name):
    function, event = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(5)
    x, other = torch.randn(2, *event, generator=generator, dtype=torch.float64)
    same = close if PRODUCTS & set(name.replace("_", " ").split()) else equal
    check(lambda x: (function(x),), [batch_of(x, other)], same=same)


def test_instances_of_modules():
    """A tagger's loss by sentence and attention of batches: parameters are shared, sentences are not."""
    crf = pm.nn.CRF(4).double()
    heads = pm.nn.MultiheadAttention(4, 2, batch_first=True, mapping=pm.sparsemax).double()
    x, other = torch.randn(2, 5, 4, dtype=torch.float64)
    batch = batch_of(x, other)
    tags = torch.tensor([0, 1, 2, 3, 0])
    check(lambda x: (crf(x, tags.expand(len(x), 5), reduction="none"), crf.marginals(x)), [batch])
    check(lambda x: (heads(x, x, x, need_weights=False)[0],), [batch], same=close)
