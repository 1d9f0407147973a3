"""No operator changes the tensors of its caller: neither values nor versions, storages, strides or flags."""

import warnings

import estimators_table
import pytest
import sets
import torch
from cases import ROWS, every
from sets import TABLE

import polymax as pm
from polymax.structures.base import tensors


def state(t):
    """What a caller can see of a tensor beside its values."""
    storage = t.untyped_storage()
    flags = t.requires_grad, t.is_leaf, t.grad is None, t.dtype
    return t._version, t.data_ptr(), t.shape, t.stride(), storage.nbytes(), storage.resizable(), flags


def untouched(function, *given):
    """Call a function of tensors, derive its outputs, and look at the tensors again."""
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in given]
    before, values = [state(t) for t in leaves], [t.detach().clone() for t in leaves]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = [t for t in tensors(function(*leaves)) if t.requires_grad]
        wanted = [t for t in leaves if t.requires_grad]
        slopes = [torch.randn(t.shape, dtype=t.dtype) for t in outputs]
        of_slopes = [state(t) for t in slopes]
        if outputs:
            torch.autograd.grad(outputs, wanted, slopes, allow_unused=True)
    for t, expected, value in zip(leaves, before, values, strict=True):
        assert state(t) == expected, "the caller's tensor is as it was"
        assert torch.equal(t.detach(), value), "the caller's values are as they were"
        t.untyped_storage().resize_(0)
    assert [state(t) for t in slopes] == of_slopes, "the gradient that came in is as it was"


@every(ROWS)
def test_regularizers(case):
    untouched(lambda x: (case.regularizer().argmax(x), case.regularizer().max(x)), case.scores())


def smoothings(row):
    return [*row.smoothings(), pm.SparseMap(row.structure), pm.Perturbed(row.structure)]


@sets.every(TABLE)
def test_sets(row):
    for smoothing in smoothings(row):
        untouched(smoothing, *row.scores(batch=(2,)))
        untouched(lambda *x, s=smoothing: (s.max(*x),), *row.scores(batch=(2,)))
    if row.able("sample"):
        gibbs = pm.Marginals(row.structure)
        untouched(lambda *x: (gibbs.distribution(*x).entropy(),), *row.scores(batch=(2,)))
        untouched(lambda *x: tensors(gibbs.distribution(*x).sample()), *row.scores(batch=(2,)))
        untouched(lambda *x: gibbs.distribution(*x).topk(2)[1], *row.scores(batch=(2,)))


@estimators_table.every(estimators_table.ESTIMATORS)
def test_estimators(case):
    row = sets.BY_NAME["spanning-tree"]
    untouched(case.make(row.structure), *row.scores(batch=(2,)))


CLASSES = torch.tensor([0, 3])
FRAMES, TOKENS = torch.tensor([4, 3]), torch.tensor([2, 1])
LABELS = torch.tensor([[1, 2], [3, 0]])
# functions of tensors, and the shapes of their tensors of floats; integers come as they are
FUNCTIONS = {
    "entmax_loss": (pm.entmax_loss, (2, 5), CLASSES),
    "sparsemax_loss": (pm.sparsemax_loss, (2, 5), CLASSES),
    "linear_entmax_loss": (pm.linear_entmax_loss, (2, 3), (5, 3), CLASSES, (5,)),
    "linear_sparsemax_loss": (pm.linear_sparsemax_loss, (2, 3), (5, 3), CLASSES, (5,)),
    "linear_softmax": (lambda *x: pm.linear_entmax_loss(*x, alpha=1.0), (2, 3), (5, 3), CLASSES, (5,)),
    "linear_entmax": (lambda h, w: pm.linear_entmax(h, w).probs, (2, 3), (5, 3)),
    "crf_loss": (lambda u, t, y: pm.crf_loss(pm.Chain(), (u, t), y), (2, 3, 5), (5, 5), CLASSES[:, None].expand(2, 3)),
    "svm_loss": (lambda u, t, y: pm.svm_loss(pm.Chain(), (u, t), y), (2, 3, 5), (5, 5), CLASSES[:, None].expand(2, 3)),
    "perceptron_loss": (
        lambda u, t, y: pm.perceptron_loss(pm.Chain(), (u, t), y), (2, 3, 5), (5, 5), CLASSES[:, None].expand(2, 3)
    ),
    "smoothed_dp_loss": (
        lambda u, t, y: pm.smoothed_dp_loss(pm.Chain(), pm.Gini(), (u, t), y),
        (2, 3, 5), (5, 5), CLASSES[:, None].expand(2, 3),
    ),
    "sparsemap_loss": (
        lambda u, t, y: pm.sparsemap_loss(pm.Chain(), (u, t), y), (2, 3, 5), (5, 5), CLASSES[:, None].expand(2, 3)
    ),
    "ctc_loss": (pm.ctc_loss, (4, 2, 5), LABELS, FRAMES, TOKENS),
    "rnnt_loss": (lambda x, y, n, m: pm.rnnt_loss(x, y, n, m, blank=4), (2, 4, 3, 5), LABELS, FRAMES, TOKENS),
    "additive_rnnt_loss": (
        lambda *x: pm.additive_rnnt_loss(*x, blank=4), (2, 4, 5), (2, 3, 5), LABELS, FRAMES, TOKENS
    ),
    "tdt_loss": (
        lambda x, d, *t: pm.tdt_loss(x, d, *t, 4, [0, 1, 2]), (2, 4, 3, 5), (2, 4, 3, 3), LABELS, FRAMES, TOKENS
    ),
    "joint_rnnt_loss": (
        lambda *x: pm.joint_rnnt_loss(*x, blank=4), (2, 4, 3), (2, 3, 3), (5, 3), LABELS, FRAMES, TOKENS
    ),
    "soft_dtw": (pm.soft_dtw, (2, 4, 3)),
    "dtw": (pm.dtw, (2, 4, 3)),
    "soft_rank": (pm.soft_rank, (2, 5)),
    "soft_sort": (pm.soft_sort, (2, 5)),
    "soft_sort-kl": (lambda x: pm.soft_sort(x, regularization="kl"), (2, 5)),
    "fused attention": (
        lambda q, k, v: pm.nn.scaled_dot_product_attention(q, k, v, mapping=pm.entmax),
        (1, 2, 7, 4), (1, 2, 1100, 4), (1, 2, 1100, 4),
    ),
    "forced_align": (lambda x: pm.forced_align(x, LABELS, blank=4)[1], (2, 4, 5)),
    "groupedmax": (lambda x: pm.groupedmax(x, [[0, 1], [1, 2]]), (2, 5)),
    "factor graph": (
        lambda x: pm.SparseMap(pm.FactorGraph(4, [pm.factors.xor([0, 1, 2]), pm.factors.budget([1, 2, 3], 2)]))(x)[0],
        (2, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function, *shapes = FUNCTIONS[name]
    given = [s.clone() if isinstance(s, torch.Tensor) else torch.randn(s) for s in shapes]
    untouched(function, *given)


MODULES = {
    "LinearEntmaxLoss": (lambda: pm.nn.LinearEntmaxLoss(4, 6, bias=True), (2, 4), CLASSES),
    "CRF": (lambda: pm.nn.CRF(5), (2, 3, 5), CLASSES[:, None].expand(2, 3)),
    "attention": (lambda: pm.nn.MultiheadAttention(8, 2, batch_first=True, mapping=pm.sparsemax), *[(2, 5, 8)] * 3),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_their_parameters(name):
    """Parameters as well: a wrapper such as FSDP resizes their storages between the steps."""
    make, *shapes = MODULES[name]
    module = make()
    given = [s.clone() if isinstance(s, torch.Tensor) else torch.randn(s) for s in shapes]
    names, parameters = zip(*module.named_parameters(), strict=True)

    def call(*t):
        own, x = t[: len(names)], t[len(names) :]
        out = torch.func.functional_call(module, dict(zip(names, own, strict=True)), x)
        return out[0] if isinstance(out, tuple) else out

    untouched(call, *(p.detach() for p in parameters), *given)
