"""Losses of a linear layer relative to a reference over words, against all logits in float64."""

from importlib import import_module

import pytest
import torch
from tolerances import close
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import linear

import polymax as pm

ROWS, SIZE, WORDS = 6, 5, 70
DRAW = torch.Generator().manual_seed(8)
REFERENCES = {
    "shared": torch.rand(WORDS, dtype=torch.float64, generator=DRAW) ** 2 + 0.01,
    "rows": torch.rand(ROWS, WORDS, dtype=torch.float64, generator=DRAW) ** 2 + 0.01,
}
WEIGHTS = torch.rand(WORDS, dtype=torch.float64, generator=DRAW) + 0.2
WANTED = torch.tensor([3, 17, -100, 0, 69, 8])
OPTIONS = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"class_weights": WEIGHTS},
    "both": {"label_smoothing": 0.2, "class_weights": WEIGHTS, "reduction": "sum"},
    "rows": {"reduction": "none"},
    "capped": {"softcap": 2.0},
}


def layer(deviation=1.0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(3)
    shapes = (ROWS, SIZE), (WORDS, SIZE), (WORDS,)
    return [
        (deviation * torch.randn(s, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_() for s in shapes
    ]


def teacher():
    """Lists of a few words, of which one is empty, and the probabilities of all words."""
    draw = torch.Generator().manual_seed(4)
    whole = pm.entmax(2 * torch.randn(ROWS, WORDS, generator=draw, dtype=torch.float64))
    probs, ids = whole.topk(40)
    probs[2] = 0
    return pm.WordDistribution(torch.where(probs > 0, ids, -1), probs, WORDS), whole


def dense(hidden, weight, bias, target, alpha, reference, softcap=None, class_weights=None, **options):
    """The loss from all logits, in which rows of an empty list have no part."""
    x = linear(hidden, weight, bias)
    x = x if softcap is None else softcap * torch.tanh(x / softcap)
    if not isinstance(target, pm.WordDistribution):
        return pm.fenchel_young(pm.AlphaDivergence(reference, alpha), x, target, weight=class_weights, **options)
    there = (target.ids >= 0).any(1)
    own = reference if reference.dim() == 1 else reference[there]
    losses = pm.fenchel_young(
        pm.AlphaDivergence(own, alpha), x[there], target.dense()[there], weight=class_weights, **options
    )
    if options.get("reduction") != "none":
        return losses
    return torch.zeros_like(x[:, 0]).index_put((there.nonzero().squeeze(1),), losses)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["words", "lists", "probabilities"])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0])
def test_the_loss_and_its_gradients_are_those_of_all_logits(alpha, reference, kind, options, monkeypatch):
    # blocks of four rows
    monkeypatch.setattr(import_module("polymax.kernels.relative_loss.reference"), "ENTRIES", 4 * WORDS)
    inputs, q = layer(), REFERENCES[reference]
    lists, whole = teacher()
    target = {"words": WANTED, "lists": lists, "probabilities": whole}[kind]
    hidden, weight, bias = inputs
    found = pm.linear_entmax_loss(hidden, weight, target, bias, alpha=alpha, reference=q, **OPTIONS[options])
    expected = dense(*inputs, target, alpha, q, **OPTIONS[options])
    close(found, expected, "loss")
    direction = torch.linspace(0.5, 1, found.numel(), dtype=torch.float64).reshape(found.shape)
    for ours, theirs in zip(*(torch.autograd.grad(loss, inputs, direction) for loss in (found, expected))):
        close(ours, theirs, "gradient")


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_first_and_second_derivatives(alpha, reference):
    inputs = [t[:, :2].detach().requires_grad_() if t.dim() == 2 else t for t in layer(0.3)]
    q = REFERENCES[reference]

    def loss(hidden, weight, bias):
        return pm.linear_entmax_loss(hidden, weight, WANTED, bias, alpha=alpha, reference=q, softcap=3.0)

    assert gradcheck(loss, inputs, fast_mode=True)
    assert gradgradcheck(loss, inputs, fast_mode=True)


def test_named_functions_and_the_normalizer():
    hidden, weight, bias = layer()
    q = REFERENCES["rows"]
    x = linear(hidden, weight, bias) + torch.log(q)
    loss, normalizer = pm.linear_cross_entropy(
        hidden, weight, WANTED, bias, reference=q, z_loss=0.1, return_normalizer=True
    )
    plain = torch.nn.functional.cross_entropy(x, WANTED)
    there = WANTED >= 0
    close(loss, plain + 0.1 * x.logsumexp(-1)[there].square().mean(), "cross-entropy with z_loss")
    close(normalizer, torch.where(there, x.logsumexp(-1), 0), "logsumexp with the logarithm of the reference")
    ours = pm.linear_sparsemax_loss(hidden, weight, WANTED, bias, reference=q)
    close(ours, dense(hidden, weight, bias, WANTED, 2.0, q), "sparsemax")


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_words_without_weight_in_the_reference(alpha):
    """They have no gradient, and as targets an infinite loss."""
    hidden, weight, _ = layer()
    q = REFERENCES["shared"].clone()
    q[5] = 0
    loss = pm.linear_entmax_loss(hidden, weight, WANTED, alpha=alpha, reference=q)
    assert (torch.autograd.grad(loss, weight)[0][5] == 0).all()
    close(loss, dense(hidden, weight, None, WANTED, alpha, q), "loss")
    lost = pm.linear_entmax_loss(hidden, weight, torch.full((ROWS,), 5), alpha=alpha, reference=q, reduction="none")
    assert (lost == torch.inf).all()


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_a_row_with_nan_leaves_others_alone(alpha):
    hidden, weight, _ = layer()
    broken = hidden.detach().clone()
    broken[0, 0] = torch.nan
    q = REFERENCES["rows"]
    found = pm.linear_entmax_loss(broken, weight, WANTED, alpha=alpha, reference=q, reduction="none")
    plain = pm.linear_entmax_loss(hidden, weight, WANTED, alpha=alpha, reference=q, reduction="none")
    assert found[0].isnan()
    close(found[1:], plain[1:], "other rows")


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_half_precision(alpha):
    """Blocks of words are widened, and the loss is that of the rounded layer."""
    hidden, weight, _ = (t.detach().bfloat16().requires_grad_() for t in layer())
    q = REFERENCES["rows"].float()
    options = {"alpha": alpha, "reference": q, "dtype": torch.float32}
    found = pm.linear_entmax_loss(hidden, weight, WANTED, **options)
    exact = pm.linear_entmax_loss(hidden.double(), weight.double(), WANTED, **options | {"dtype": None})
    close(found, exact, "loss")
    for ours, theirs in zip(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (found, exact))):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_it_compiles(alpha):
    hidden, weight, bias = layer(dtype=torch.float32)
    q = REFERENCES["rows"].float()

    def loss(hidden, weight, target, bias, q):
        return pm.linear_entmax_loss(hidden, weight, target, bias, alpha=alpha, reference=q)

    given = hidden, weight, WANTED, bias, q
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(*given)
    close(found, loss(*given), "compiled == eager")
    for ours, theirs in zip(*(torch.autograd.grad(one, (hidden, weight, bias)) for one in (found, loss(*given)))):
        close(ours, theirs, "gradient")
    ours = torch.func.grad(lambda h: loss(h, weight.detach(), WANTED, bias.detach(), q))(hidden.detach())
    close(ours, torch.autograd.grad(loss(*given), hidden)[0], "torch.func")


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"reference": torch.ones(WORDS - 1)}, ValueError, r"reference must be \(70,\) or \(6, 70\); got \(69,\)"),
        ({"reference": -torch.ones(WORDS)}, ValueError, "reference must be at least 0 and finite"),
        ({"reference": [1.0] * WORDS}, TypeError, "reference must be a tensor of weights of words; got list"),
        ({"reference": torch.ones(WORDS, requires_grad=True)}, ValueError, "must not require a gradient: detach"),
        ({"reference": torch.ones(WORDS), "alpha": torch.tensor(1.5)}, TypeError, "alpha must be a number beside"),
    ],
)
def test_errors(options, kind, message):
    hidden, weight, _ = layer()
    with pytest.raises(kind, match=message):
        pm.linear_entmax_loss(hidden, weight, WANTED, **options)


def test_the_operators():
    hidden, weight, bias = (t.detach() for t in layer())
    named = WANTED.clamp(min=-1).unsqueeze(1)
    given = hidden, weight, bias, REFERENCES["rows"], named, None, 1.5, 0.0, 1.0
    torch.library.opcheck(torch.ops.polymax.relative_loss.default, given)
    value, chosen, _, top, root = torch.ops.polymax.relative_loss(*given)
    slopes = torch.ones_like(value), torch.ones_like(chosen), torch.zeros_like(value)
    torch.library.opcheck(torch.ops.polymax.relative_loss_backward.default, (*slopes, *given, top, root))
    assert hidden.shape == (ROWS, SIZE)
