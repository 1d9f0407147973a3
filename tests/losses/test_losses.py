"""Fenchel-Young losses on the simplex: their laws, and cross_entropy where they reduce to it."""

import pytest
import torch
from tolerances import close
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy

import polymax as pm

REGULARIZERS = {
    "zero": pm.Zero(),
    "shannon": pm.Shannon(),
    "shannon_cold": pm.Shannon(0.5),
    "gini": pm.Gini(),
    "tsallis": pm.Tsallis(1.33),
    "norm": pm.Norm(),
    "squared_norm": pm.SquaredPNorm(),
    "fused": pm.Fused(0.2, 0.7),
    "oscar": pm.Oscar(0.1),
    "custom": pm.Custom(lambda p: p.square().sum(-1)),
}
each = pytest.mark.parametrize("regularizer", REGULARIZERS.values(), ids=REGULARIZERS.keys())


def data(*shape, dtype=torch.float64):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(*shape, generator=g, dtype=dtype) * 2
    return x, torch.randint(0, shape[-1], shape[:-1], generator=g)


def one_hot(y, n):
    return torch.nn.functional.one_hot(y, n).double()


@each
def test_gradient_is_argmax_minus_y(regularizer):
    x, y = data(4, 6)
    x.requires_grad_()
    pm.fenchel_young(regularizer, x, y, reduction="sum").backward()
    torch.testing.assert_close(x.grad, regularizer.argmax(x).detach() - one_hot(y, 6), atol=1e-8, rtol=0)


@each
def test_non_negative_and_zero_at_its_own_prediction(regularizer):
    x, y = data(20, 5)
    losses = pm.fenchel_young(regularizer, x, y, reduction="none")
    assert (losses >= -1e-10).all()
    own = pm.fenchel_young(regularizer, x, regularizer.argmax(x), reduction="none")
    torch.testing.assert_close(own, torch.zeros(20).double(), atol=1e-9, rtol=0)


@each
def test_indices_are_one_hot_distributions(regularizer):
    x, y = data(7, 5)
    a = pm.fenchel_young(regularizer, x, y, reduction="none")
    b = pm.fenchel_young(regularizer, x, one_hot(y, 5), reduction="none")
    torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


@each
def test_convex_along_lines(regularizer):
    a, y = data(30, 5)
    b = a.flip(0) + 1
    mid = pm.fenchel_young(regularizer, (a + b) / 2, y, reduction="none")
    ends = [pm.fenchel_young(regularizer, e, y, reduction="none") for e in (a, b)]
    assert (mid <= (ends[0] + ends[1]) / 2 + 1e-10).all()


@each
def test_gradcheck(regularizer):
    x, y = data(2, 4)
    x.requires_grad_()
    assert gradcheck(lambda x: pm.fenchel_young(regularizer, x, y), (x,))
    if not isinstance(regularizer, pm.Zero):
        assert gradgradcheck(lambda x: pm.fenchel_young(regularizer, x, y), (x,))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_shannon_is_cross_entropy(reduction, smoothing, weighted):
    x, y = data(9, 5)
    y[2] = -100
    y[5] = 3
    weight = torch.rand(5, dtype=torch.float64) if weighted else None
    options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    for ignore in (-100, 3):
        kept = y if ignore == -100 else y.clamp(min=0)
        ours = pm.fenchel_young(pm.Shannon(), x, kept, ignore_index=ignore, **options)
        torch.testing.assert_close(ours, cross_entropy(x, kept, ignore_index=ignore, **options))


def test_distributions_give_cross_entropy_minus_entropy():
    x, _ = data(9, 5)
    q = torch.softmax(x.flip(0), -1)
    entropy = torch.special.entr(q).sum(-1)
    ours = pm.fenchel_young(pm.Shannon(), x, q, reduction="none")
    torch.testing.assert_close(ours, cross_entropy(x, q, reduction="none") - entropy)


def test_classes_along_any_dim():
    x, _ = data(3, 4, 5)
    y = torch.randint(0, 4, (3, 5), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pm.fenchel_young(pm.Shannon(), x, y, dim=1), cross_entropy(x, y))
    flat = x.movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(pm.sparsemax_loss(x, y, dim=1), pm.sparsemax_loss(flat, y.reshape(-1)))


def test_named_losses():
    x, y = data(9, 5)
    torch.testing.assert_close(pm.sparsemax_loss(x, y), pm.fenchel_young(pm.Gini(), x, y))
    torch.testing.assert_close(pm.entmax_loss(x, y, 1.3), pm.fenchel_young(pm.Tsallis(1.3), x, y))
    torch.testing.assert_close(pm.entmax_loss(x, y, 1.0), cross_entropy(x, y))
    torch.testing.assert_close(pm.entmax_loss(x, y, 2.0), pm.sparsemax_loss(x, y))


def test_margin_cost_bounds_the_zero_one_loss():
    x, y = data(50, 5)
    cost = 1 - one_hot(y, 5)
    hinge = pm.fenchel_young(pm.Zero(), x, y, cost=cost, reduction="none")
    margin = torch.where(one_hot(y, 5) > 0, -torch.inf, x).amax(-1) - x.gather(-1, y[:, None])[:, 0]
    torch.testing.assert_close(hinge, (1 + margin).clamp(min=0))


@pytest.mark.parametrize("loss", [pm.sparsemax_loss, pm.entmax_loss])
def test_shifted_scores(loss):
    # quarters are exact at 1e6 in float32
    x = torch.randint(-12, 12, (6, 5), generator=torch.Generator().manual_seed(0)).float() / 4
    y = torch.arange(6) % 5
    a, b = x.requires_grad_(), (x.detach() + 1e6).requires_grad_()
    torch.testing.assert_close(loss(a, y), loss(b, y), atol=0, rtol=0)
    loss(a, y).backward()
    loss(b, y).backward()
    torch.testing.assert_close(a.grad, b.grad, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    x, y = data(16, 40, dtype=torch.float32)
    half = x.to(dtype).requires_grad_()
    loss = pm.entmax_loss(half, y)
    exact = pm.entmax_loss(half.detach().double(), y)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), exact, atol=0, rtol=torch.finfo(dtype).eps)
    sparse = pm.sparsemax_loss(half.detach().double(), y)
    for function, truth in ((pm.entmax_loss, exact), (pm.sparsemax_loss, sparse)):
        found = function(half, y, dtype=torch.float32)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), truth, atol=0, rtol=1e-5)
    loss.backward()
    assert half.grad.isfinite().all()


def test_forbidden_classes():
    x, _ = data(4, 5)
    x[:, 2] = -torch.inf
    y = torch.tensor([0, 1, 3, 4])
    cropped = x[:, [0, 1, 3, 4]].clone().requires_grad_()
    x.requires_grad_()
    loss = pm.sparsemax_loss(x, y)
    torch.testing.assert_close(loss, pm.sparsemax_loss(cropped, torch.arange(4)))
    loss.backward()
    pm.sparsemax_loss(cropped, torch.arange(4)).backward()
    torch.testing.assert_close(x.grad[:, [0, 1, 3, 4]], cropped.grad)
    assert (x.grad[:, 2] == 0).all()
    assert pm.sparsemax_loss(x.detach(), torch.full((4,), 2)) == torch.inf


def test_ignored_rows_get_no_gradient():
    x, y = data(5, 4)
    y[1] = -100
    x.requires_grad_()
    pm.entmax_loss(x, y).backward()
    assert (x.grad[1] == 0).all()
    assert (x.grad[0] != 0).any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"smooth": torch.softmax}, TypeError, "smooth must be a Regularizer"),
        ({"scores": torch.zeros(3, 4, dtype=torch.long)}, TypeError, "scores must be float"),
        ({"y": [0, 1, 2]}, TypeError, "y must be a tensor"),
        ({"y": torch.zeros(4, dtype=torch.long)}, ValueError, r"y must be \(3,\)"),
        ({"y": torch.tensor([0, 1, 4])}, ValueError, r"classes in \[0, 4\).*got 4"),
        ({"y": torch.zeros(3, 5)}, ValueError, "distributions shaped like the scores"),
        ({"reduction": "avg"}, ValueError, "reduction must be"),
        ({"weight": torch.ones(3)}, ValueError, r"weight must be \(4,\)"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing must be"),
        ({"cost": torch.ones(5)}, ValueError, "cost must broadcast"),
        ({"dim": 2}, IndexError, "[Dd]im"),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {"smooth": pm.Gini(), "scores": torch.zeros(3, 4), "y": torch.tensor([0, 1, 2])} | change
    with pytest.raises(error, match=message):
        pm.fenchel_young(**arguments)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_z_loss_and_normalizer(reduction):
    x, _ = data(3, 4, 5)
    x.requires_grad_()
    y = torch.arange(15).reshape(3, 5) % 4
    # classes stand in the middle; a row that is left out holds a NaN
    y[1, 2] = -100
    given = x.detach().clone()
    given[1, :, 2] = torch.nan
    given.requires_grad_()
    weight = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64)
    options = {"dim": 1, "weight": weight, "label_smoothing": 0.1, "reduction": reduction}
    loss, normalizer = pm.entmax_loss(given, y, 1.0, z_loss=0.3, return_normalizer=True, **options)
    counted = y >= 0
    truth = torch.where(counted, x.logsumexp(1), 0)
    each = 0.3 * truth.square()
    del options["dim"]
    expected = cross_entropy(x, y, **options) + {
        "mean": each.sum() / counted.sum(), "sum": each.sum(), "none": each,
    }[reduction]  # fmt: skip
    close(normalizer, truth, "the normalizer is logsumexp")
    close(loss, expected, "z_loss adds the square of the normalizer")
    close(pm.entmax_loss(given, y, 1.0, z_loss=0.3, dim=1, **options), loss, "with or without the normalizer")
    found = torch.autograd.grad(loss.sum() + normalizer.sin().sum(), given)[0]
    slope = torch.autograd.grad(expected.sum() + truth.sin().sum(), x)[0]
    close(found, slope, "the gradient of loss and normalizer")


def test_z_loss_of_distributions_and_of_half_precision():
    x, y = data(6, 5)
    q = torch.softmax(x.flip(0), -1)
    plain, z = pm.entmax_loss(x, q, 1, reduction="none"), 0.3 * x.logsumexp(-1).square()
    close(pm.entmax_loss(x, q, 1, z_loss=0.3), (plain + z).mean(), "the mean over all rows")
    close(pm.entmax_loss(x.T, q.T, 1, z_loss=0.3, dim=0), (plain + z).mean(), "along another dim")
    half = x.bfloat16()
    loss, normalizer = pm.entmax_loss(half, y, 1, z_loss=0.3, return_normalizer=True, dtype=torch.float32)
    truth = half.double().logsumexp(-1)
    assert (loss.dtype, normalizer.dtype) == (torch.float32, torch.float32)
    close(normalizer, truth, "the normalizer of half precision is float32")
    close(loss, cross_entropy(half.double(), y) + 0.3 * truth.square().mean(), "and the loss, if asked for")
    assert pm.entmax_loss(half, y, 1, z_loss=0.3).dtype == torch.bfloat16


@pytest.mark.parametrize("options", [{"z_loss": 0.1}, {"return_normalizer": True}])
def test_normalizers_need_softmax(options):
    x, y = data(6, 5)
    for alpha in (1.5, torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"z_loss and return_normalizer need alpha=1"):
            pm.entmax_loss(x, y, alpha, **options)
        with pytest.raises(ValueError, match=r"z_loss and return_normalizer need alpha=1"):
            pm.linear_entmax_loss(x, x[:, :5], y, alpha=alpha, **options)
    with pytest.raises(ValueError, match=r"z_loss must be at least 0 and finite"):
        pm.entmax_loss(x, y, 1, z_loss=-0.1)


@pytest.mark.parametrize(
    "option", [{"label_smoothing": 0.1}, {"dim": 0}, {"weight": torch.ones(3)}, {"ignore_index": 0}], ids=str
)
def test_options_of_classes_are_refused_for_structures(option):
    scores, y = (torch.zeros(2, 4, 3), torch.zeros(3, 3)), torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(TypeError, match="label_smoothing belong to a Regularizer; smooth is a Smoothing"):
        pm.fenchel_young(pm.Marginals(pm.Chain()), scores, y, **option)
