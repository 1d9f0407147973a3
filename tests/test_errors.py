"""Errors name the argument, what was expected and what came."""

import numpy as np
import pytest
import torch
from cases import ROWS, every

import polymax as pm

X = torch.zeros(2, 4)
NAN = float("nan")
# what is called, what is raised, and what its message must contain
REFUSED = {
    "scores-list": (lambda: pm.sparsemax([1.0, 2.0]), TypeError, ["x", "tensor", "list"]),
    "scores-numpy": (lambda: pm.softmax(np.zeros(3)), TypeError, ["x", "ndarray: use torch.from_numpy(x)"]),
    "scores-integers": (lambda: pm.entmax(torch.arange(3)), TypeError, ["x", "float32", "int64"]),
    "scores-bool": (lambda: pm.softmax(torch.ones(3, dtype=torch.bool)), TypeError, ["x", "float32", "bool"]),
    "scores-complex": (lambda: pm.softmax(X + 0j), TypeError, ["x", "float32", "complex64"]),
    "max-integers": (lambda: pm.Gini().max(torch.arange(3)), TypeError, ["x", "float32", "int64"]),
    "omega-integers": (lambda: pm.Gini().omega(torch.arange(3)), TypeError, ["p", "float32", "int64"]),
    "alpha-zero": (lambda: pm.entmax(X, 0.0), ValueError, ["alpha", "positive", "0.0"]),
    "alpha-infinite": (lambda: pm.entmax(X, torch.inf), ValueError, ["alpha", "finite", "inf"]),
    "alpha-nan": (lambda: pm.entmax(X, NAN), ValueError, ["alpha", "positive", "nan"]),
    "alpha-tensor": (
        lambda: pm.entmax(X, torch.tensor([[1.5], [-0.25]])),
        ValueError,
        ["alpha", "positive", "-0.25"],
    ),
    "alpha-integers": (lambda: pm.entmax(X, torch.tensor(2)), TypeError, ["alpha", "float32", "int64"]),
    "alpha-string": (lambda: pm.entmax(X, "2"), TypeError, ["alpha", "number", "str"]),
    "second-entmax": (lambda: pm.entmax(X, 1), TypeError, ["entmax(x, 1)", "dim=1", "alpha=1", "by name"]),
    "second-normmax": (lambda: pm.normmax(X, 2), TypeError, ["normmax(x, 2)", "dim=2", "alpha=2"]),
    "second-sq-pnorm": (lambda: pm.sq_pnorm_max(X, 2), TypeError, ["sq_pnorm_max(x, 2)", "dim=2", "p=2"]),
    "second-fused": (lambda: pm.fusedmax(X, -1), TypeError, ["fusedmax(x, -1)", "dim=-1", "strength=-1"]),
    "second-oscar": (lambda: pm.oscarmax(X, np.int64(0)), TypeError, ["oscarmax(x, 0)", "dim=0", "strength=0"]),
    "second-csoftmax": (lambda: pm.csoftmax(X, 1), TypeError, ["csoftmax(x, 1)", "dim=1", "upper=1"]),
    "second-csparsemax": (lambda: pm.csparsemax(X, 1), TypeError, ["csparsemax(x, 1)", "dim=1", "upper=1"]),
    "alpha-bool": (lambda: pm.entmax(X, True), TypeError, ["alpha", "number", "bool"]),
    "alpha-shape": (lambda: pm.entmax(X, torch.full((2, 4), 1.5)), ValueError, ["alpha", "(2, 4)"]),
    "alpha-batch": (lambda: pm.entmax(X, torch.full((3, 1), 1.5)), ValueError, ["alpha", "(3, 1)"]),
    "norm-alpha": (lambda: pm.normmax(X, 1.0), ValueError, ["alpha", "greater than 1", "1.0"]),
    "norm-shape": (lambda: pm.normmax(X, torch.full((3, 1), 1.5)), ValueError, ["alpha", "(3, 1)"]),
    "p": (lambda: pm.sq_pnorm_max(X, 0.9), ValueError, ["p", "greater than 1", "0.9"]),
    "p-nan": (lambda: pm.sq_pnorm_max(X, NAN), ValueError, ["p", "greater than 1", "nan"]),
    "strength-fused": (lambda: pm.fusedmax(X, -0.1), ValueError, ["strength", "at least 0", "-0.1"]),
    "strength-grouped": (
        lambda: pm.groupedmax(X, [0] * X.shape[-1], torch.inf),
        ValueError,
        ["strength must be at least 0 and finite", "inf"],
    ),
    "alpha-norm": (lambda: pm.normmax(X, torch.inf), ValueError, ["alpha must be greater than 1 and finite", "inf"]),
    "p-norm": (lambda: pm.sq_pnorm_max(X, torch.inf), ValueError, ["p must be greater than 1 and finite", "inf"]),
    "strength-oscar": (lambda: pm.oscarmax(X, strength=-1), ValueError, ["strength", "at least 0", "-1"]),
    "strength-tensor": (
        lambda: pm.oscarmax(X, torch.tensor(-0.5)),
        ValueError,
        ["strength", "at least 0", "-0.5"],
    ),
    "strength-shape": (lambda: pm.fusedmax(X, torch.full((3, 1), 0.5)), ValueError, ["strength", "(3, 1)"]),
    # kernels read memory by its address: those of another device ended the process
    "strength-device": (
        lambda: pm.fusedmax(X, torch.tensor(0.5, device="meta")),
        TypeError,
        ["strength must be on cpu, like the scores; got meta"],
    ),
    "alpha-device": (
        lambda: pm.entmax(X, torch.full((2, 1), 1.5, device="meta")),
        TypeError,
        ["alpha must be on cpu", "got meta"],
    ),
    "barycenter-size": (
        lambda: pm.soft_dtw_barycenter(torch.zeros(2, 3, 1), size=0),
        ValueError,
        ["size must be a positive integer", "got 0"],
    ),
    "words-dense": (
        lambda: pm.WordDistribution(torch.tensor([[0, 7]]), torch.tensor([[0.5, 0.5]]), 7).dense(),
        ValueError,
        ["ids must be below 7", "got 7"],
    ),
    "scores-devices": (
        lambda: pm.Marginals(pm.Chain())(torch.zeros(3, 2), torch.zeros(2, 2, device="meta")),
        TypeError,
        ["scores must have one dtype and one device", "float32 on cpu, torch.float32 on meta"],
    ),
    "mask-device": (
        lambda: pm.nn.scaled_dot_product_attention(
            *3 * [torch.zeros(1, 1, 1100, 4)], torch.zeros(1100, 1100, device="meta"), mapping=pm.sparsemax
        ),
        RuntimeError,
        ["expects all tensors on cpu", "got meta"],
    ),
    "bias-device": (
        lambda: pm.linear_entmax_loss(X, torch.zeros(5, 4), torch.tensor([0, 1]), torch.zeros(5, device="meta")),
        RuntimeError,
        ["expects all tensors on cpu", "got meta"],
    ),
    "gamma-zero": (lambda: pm.softmax(X, gamma=0.0), ValueError, ["gamma", "positive", "0.0"]),
    "gamma-negative": (lambda: pm.sparsemax(X, gamma=-2.0), ValueError, ["gamma", "positive", "-2.0"]),
    "gamma-infinite": (lambda: pm.entmax(X, gamma=torch.inf), ValueError, ["gamma", "finite", "inf"]),
    "gamma-tensor": (
        lambda: pm.normmax(X, gamma=torch.tensor([[1.0], [-3.0]])),
        ValueError,
        ["gamma", "positive", "-3"],
    ),
    "gamma-shape": (lambda: pm.softmax(X, gamma=torch.ones(3, 1)), ValueError, ["gamma", "(3, 1)"]),
    "gamma-along-dim": (lambda: pm.softmax(X, gamma=torch.ones(4)), ValueError, ["gamma", "(4,)"]),
    "lower-sum": (lambda: pm.csoftmax(X, 1.0, lower=0.3), ValueError, ["lower", "at most 1", "1.2"]),
    "upper-sum": (lambda: pm.csparsemax(X, 0.2), ValueError, ["upper", "at least 1", "0.8"]),
    "upper-sum-masked": (
        lambda: pm.csparsemax(X, 0.4, mask=torch.tensor([True, True, False, False])),
        ValueError,
        ["upper", "at least 1", "0.8"],
    ),
    "lower-above-upper": (lambda: pm.csoftmax(X, 0.3, lower=0.4), ValueError, ["lower", "upper"]),
    "lower-negative": (lambda: pm.csoftmax(X, 0.5, lower=-0.1), ValueError, ["lower", "at least 0", "-0.1"]),
    "upper-negative": (lambda: pm.csoftmax(X, -0.5), ValueError, ["upper", "at least 0", "-0.5"]),
    "upper-shape": (lambda: pm.csoftmax(X, torch.ones(3)), ValueError, ["upper", "(2, 4)", "(3,)"]),
    "base": (lambda: pm.Bounded(pm.Tsallis()), TypeError, ["base", "Shannon or Gini", "Tsallis"]),
    "k-negative": (lambda: pm.budgetmax(X, -1), ValueError, ["k must be at least 0", "-1"]),
    "k-large": (lambda: pm.budgetmax(X, 5), ValueError, ["k must be at most", "entries that are not masked", "4", "5"]),
    "k-row": (lambda: pm.budgetmax(X, torch.tensor([[2], [6]])), ValueError, ["k must be at most", "4", "6"]),
    "k-shape": (lambda: pm.budgetmax(X, torch.ones(3, 1)), ValueError, ["k", "(3, 1)"]),
    "k-bool": (lambda: pm.budgetmax(X, torch.ones(2, 1) > 0), TypeError, ["k", "bool"]),
    "k-masked": (
        lambda: pm.budgetmax(X, 2, mask=torch.tensor([True, False, False, False])),
        ValueError,
        ["k must be at most", "1", "got 2"],
    ),
    "fn": (lambda: pm.Custom(3), TypeError, ["fn", "callable", "int"]),
    "fn-shape": (lambda: pm.Custom(lambda p: p).argmax(X), ValueError, ["fn", "(2,)", "(2, 4)"]),
    "mask-numbers": (lambda: pm.softmax(X, mask=torch.ones(4)), TypeError, ["mask", "bool", "float32"]),
    "mask-list": (lambda: pm.softmax(X, mask=[True] * 4), TypeError, ["mask", "bool", "list"]),
    "mask-shape": (
        lambda: pm.softmax(X, mask=torch.ones(3, dtype=torch.bool)),
        ValueError,
        ["mask", "(2, 4)", "(3,)"],
    ),
    "mask-large": (
        lambda: pm.softmax(X, mask=torch.ones(5, 2, 4, dtype=torch.bool)),
        ValueError,
        ["mask", "(2, 4)", "(5, 2, 4)"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert word in message, f"the message should contain {word!r}: {message}"


@pytest.mark.parametrize("dim", [2, -3, 17])
@pytest.mark.parametrize("method", ["argmax", "max", "omega"])
@every(ROWS)
def test_unknown_dim(case, method, dim):
    with pytest.raises(IndexError, match="range"):
        getattr(case.regularizer(), method)(torch.full((5, 5), 0.2), dim=dim)


@every(ROWS)
def test_scores_of_the_wrong_type(case):
    for method in ("argmax", "max", "omega"):
        with pytest.raises(TypeError, match="tensor"):
            getattr(case.regularizer(), method)([0.5, 0.5])
        with pytest.raises(TypeError, match="int64"):
            getattr(case.regularizer(), method)(torch.arange(5))


# names of other packages, and what the error must advise
ELSEWHERE = {
    "CRF": "pm.nn.CRF",
    "entmax15": "pm.entmax(x, alpha=1.5)",
    "sparsemax15": "pm.sparsemax",
    "entmax15_loss": "pm.entmax_loss",
    "LinearChainCRF": "pm.Marginals(pm.Chain())",
    "SparseMAP": "pm.SparseMap",
    "softmx": "pm.softmax",
    "MultiheadAttention": "pm.nn.MultiheadAttention",
    "xor": "pm.factors.xor",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_of_other_packages(name):
    with pytest.raises(AttributeError) as caught:
        getattr(pm, name)
    assert str(caught.value).endswith(f"did you mean {ELSEWHERE[name]}?")
    assert not hasattr(pm, "_private"), "names that nobody looks for are not there either"


def test_custom_says_that_it_stopped():
    slow = pm.Custom(lambda p: (p**4).sum(-1), max_iter=1)
    with pytest.warns(UserWarning, match=r"stopped after 1 steps at a residual of .* above its tol"):
        slow.argmax(torch.tensor([0.3, 0.1, -0.2]))
