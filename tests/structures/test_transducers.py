"""Losses of transducers with durations, and of joint networks that are computed in blocks."""

import itertools
import math
from importlib import import_module

import pytest
import torch
from tolerances import close, equal
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm

BLOCKS = import_module("polymax.transduction_joint")
DURATIONS = [[0, 1], [0, 1, 2, 3, 4], [1], [1, 2], [4, 0, 2], [0, 3]]


def steps_of(token, duration, target, frames, count, blank, durations, sigma):
    """Minus the log of the sum over all paths, by a plain recursion over the cells of one instance."""

    def added(terms):
        return torch.stack(terms).logsumexp(0) if terms else None

    tokens, long = token.log_softmax(-1) - sigma, duration.log_softmax(-1)
    reached = {(0, 0): token.new_zeros(())}
    for t, u in itertools.product(range(frames), range(count + 1)):
        terms = []
        for i, d in enumerate(durations):
            if d > 0 and (t - d, u) in reached:
                terms.append(reached[t - d, u] + tokens[t - d, u, blank] + long[t - d, u, i])
            if (t - d, u - 1) in reached:
                terms.append(reached[t - d, u - 1] + tokens[t - d, u - 1, target[u - 1]] + long[t - d, u - 1, i])
        if terms:
            reached[t, u] = added(terms)
    ends = [
        reached[frames - d, count] + tokens[frames - d, count, blank] + long[frames - d, count, i]
        for i, d in enumerate(durations)
        if d > 0 and (frames - d, count) in reached
    ]
    return -added(ends) if ends else token.new_full((), math.inf)


def problem(durations, batch=4, n=6, m=3, classes=5, dtype=torch.float64):
    tokens = torch.randn(batch, n, m + 1, classes, dtype=dtype, requires_grad=True)
    long = torch.randn(batch, n, m + 1, len(durations), dtype=dtype, requires_grad=True)
    targets = torch.randint(0, classes - 1, (batch, m))
    frames = torch.tensor([max(n - 2 * b, 1) for b in range(batch)])
    counts = torch.tensor([max(m - b, 0) for b in range(batch)])
    return tokens, long, targets, frames, counts


@pytest.mark.parametrize("sigma", [0.0, 0.05])
@pytest.mark.parametrize("durations", DURATIONS, ids=str)
def test_tdt_loss(durations, sigma):
    tokens, long, *given = problem(durations)
    losses = pm.tdt_loss(tokens, long, *given, 4, durations, sigma, "none")
    targets, frames, counts = (t.tolist() for t in given)
    naive = [
        steps_of(tokens[b], long[b], targets[b], frames[b], counts[b], 4, durations, sigma) for b in range(len(frames))
    ]
    close(losses, torch.stack(naive), "the loss is the sum over all paths")
    feasible = torch.stack([x for x in naive if x < torch.inf])
    theirs = torch.autograd.grad(feasible.sum(), (tokens, long))
    ours = torch.autograd.grad(losses.sum(), (tokens, long))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, "and so is its gradient")
    for b, loss in enumerate(naive):
        assert loss < torch.inf or not (ours[0][b].any() or ours[1][b].any()), "no gradient without a path"


@pytest.mark.parametrize("durations", [[0, 1, 2], [2, 1]], ids=str)
def test_derivatives_of_tdt_loss(durations):
    tokens, long, *given = problem(durations, batch=2, n=4, m=2)

    def loss(x, y):
        return pm.tdt_loss(x, y, *given, 4, durations, 0.1, "sum", omega=0.25)

    assert gradcheck(loss, (tokens, long), fast_mode=True)
    assert gradgradcheck(loss, (tokens, long), fast_mode=True)


def test_tdt_loss_is_hugging_face_s():
    """The case in the tests of Transformers, with the numbers that NeMo gave for it."""
    torch.manual_seed(42)
    logits = torch.randn(2, 8, 5, 11)
    targets = torch.tensor([[4, 2, 2, 1], [0, 4, 2, 4]])
    given = targets, torch.tensor([8, 7]), torch.tensor([4, 3]), 5, [0, 1, 2, 3, 4]

    def loss(reduction, sigma=0.0):
        return pm.tdt_loss(logits[..., :6], logits[..., 6:], *given, sigma, reduction)

    close(loss("none"), torch.tensor([12.923372268676758, 9.054794311523438]), "each loss")
    close(loss("sum"), torch.tensor(21.978166580200195), "sum")
    close(loss("mean"), torch.tensor(3.124553918838501), "mean")
    close(loss("mean", 0.05), torch.tensor(3.1921849250793457), "sigma")
    close(loss("mean_batch"), loss("sum") / 2, "mean of the batch")
    close(loss("mean_volume"), loss("sum") / 7, "mean of the tokens")


@pytest.mark.parametrize("reduction", ["mean", "mean_batch", "mean_volume", "sum", "none"])
def test_tdt_loss_is_that_of_transformers(reduction):
    theirs = pytest.importorskip("transformers.loss.loss_tdt").tdt_loss
    tokens, long, *given = problem([0, 1, 2, 3], batch=3, dtype=torch.float32)
    given[2] = torch.tensor([3, 2, 1])
    found = []
    for loss in (theirs, pm.tdt_loss):
        value = loss(tokens, long, *given, 4, [0, 1, 2, 3], 0.05, reduction)
        found.append((value, *torch.autograd.grad(value.sum(), (tokens, long))))
    for a, b in zip(*found, strict=True):
        close(b, a.detach(), "the loss of Transformers, and its gradient")


def test_durations_0_and_1_and_rnnt_loss():
    """With durations [0, 1], the alignments whose tokens all have duration 0 are those of `rnnt_loss`.

    If all cells have the probabilities 1 - q and q of the durations, the probability of the targets is q^T times a
    polynomial in 1 - q. An alignment with k tokens of duration 1 adds to its coefficient m - k.
    """
    tokens, _, targets, *_ = problem([0, 1], batch=1)
    sizes = torch.tensor([6]), torch.tensor([3])
    points = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)
    sums = []
    for q in points:
        long = torch.stack([1 - q, q]).log().expand(1, 6, 4, 2)
        loss = pm.tdt_loss(tokens, long, targets, *sizes, 4, [0, 1], reduction="none")
        sums.append((-loss[0]).exp() / q**6)
    powers = (1 - points)[:, None] ** torch.arange(4)
    coefficients = torch.linalg.solve(powers, torch.stack(sums))
    close(-coefficients[3].log(), pm.rnnt_loss(tokens, targets, *sizes, 4), "tokens of duration 0 alone")
    assert (coefficients > 0).all()
    # with blanks alone, every step has duration 1
    given = targets[:, :0], torch.tensor([6]), torch.tensor([0]), 4
    first = tokens[:, :, :1]
    blanks = pm.tdt_loss(first, torch.zeros_like(first[..., :1]), *given, [1], reduction="none")
    close(blanks, pm.rnnt_loss(first, *given, reduction="none"), "no token")
    mixed = pm.tdt_loss(tokens, tokens[..., :2], targets, *sizes, 4, [0, 1], omega=1.0, reduction="none")
    close(mixed, pm.rnnt_loss(tokens, targets, *sizes, 4, reduction="none"), "omega 1 is the plain loss")


def test_fastemit():
    """Gradients of tokens are those of the plain loss, times 1 + lambda, on the way through the softmax."""
    tokens, long, *given = problem([0, 1, 2])
    plain = pm.tdt_loss(tokens, long, *given, 4, [0, 1, 2], reduction="none")
    fast = pm.tdt_loss(tokens, long, *given, 4, [0, 1, 2], reduction="none", fastemit_lambda=0.5)
    close(fast, 1.5 * plain, "the value is that of NeMo")
    slopes = [torch.autograd.grad(x.sum(), (tokens, long), retain_graph=True) for x in (plain, fast)]
    close(slopes[1][1], slopes[0][1], "durations have the gradient of the plain loss")
    # the gradient in log-probabilities, of which each row has two entries
    p = tokens.detach().softmax(-1)
    targets, _, counts = given
    g, h = slopes[0][0], slopes[1][0]
    onehot = torch.nn.functional.one_hot(torch.nn.functional.pad(targets, (0, 1)), 5)[:, None].expand(p.shape)
    # g = a onehot(token) + b onehot(blank) - (a + b) p: another class shows a + b
    emitted = (torch.arange(4) < counts[:, None])[:, None, :, None]
    other = (onehot == 0) & (torch.arange(5) != 4) & emitted
    sums = -(g / p)[other.cumsum(-1).eq(1) & other].reshape(-1)
    more = -(h / p)[other.cumsum(-1).eq(1) & other].reshape(-1)
    label = g[(onehot == 1) & emitted] + sums * p[(onehot == 1) & emitted]
    close(more, sums + 0.5 * label, "the token's share is multiplied")


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_padding_and_neighbours(junk):
    tokens, long, *given = problem([0, 1, 2])
    t, u = torch.arange(6)[:, None], torch.arange(4)
    inside = ((t < given[1][:, None, None]) & (u <= given[2][:, None, None])).unsqueeze(-1)

    def found(x, y):
        x, y = (v.detach().requires_grad_() for v in (x, y))
        losses = pm.tdt_loss(x, y, *given, 4, [0, 1, 2], reduction="none", fastemit_lambda=0.1, omega=0.1)
        return losses.detach(), *torch.autograd.grad(losses.sum(), (x, y))

    expected = found(tokens, long)
    for a, b in zip(expected, found(torch.where(inside, tokens, junk), torch.where(inside, long, junk)), strict=True):
        equal(b, a, "padding is not read")
    # a row of one instance
    spoilt = tokens.detach().clone(), long.detach().clone()
    spoilt[0][1, 0, 0] = junk
    for a, b in zip(expected, found(*spoilt), strict=True):
        equal(b[[0, 2, 3]], a[[0, 2, 3]], "neighbours have the bits that they have without it")
    value, *slopes = found(*spoilt)
    if junk == -math.inf:
        assert value[1] == math.inf
        assert not any(g[1].any() for g in slopes)
    else:
        assert value[1].isnan()
    spoilt = tokens.detach().clone(), long.detach().clone()
    spoilt[1][1, 0, 0] = -math.inf
    assert found(*spoilt)[0][1] == math.inf, "without a duration there is no step"


@pytest.mark.parametrize("keep", [False, True])
def test_a_nan_that_is_read_shows_in_gradients(keep):
    """Also in a gradient that is a function of the logits, from which padding is left out."""
    tokens, _, *given = problem([0, 1, 2])
    x = tokens.detach().clone()
    x[1, 0, 0] = math.nan
    x.requires_grad_()
    losses = pm.rnnt_loss(x, *given, 4, reduction="none")
    (g,) = torch.autograd.grad(losses.sum(), x, create_graph=keep)
    assert losses[1].isnan()
    assert bool(g[1, 0, 0].isnan().all())
    assert bool(g[[0, 2, 3]].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    tokens, long, *given = problem([0, 1, 2], dtype=dtype)
    losses = pm.tdt_loss(tokens, long, *given, 4, [0, 1, 2], reduction="none")
    exact = pm.tdt_loss(tokens.double(), long.double(), *given, 4, [0, 1, 2], reduction="none")
    assert losses.dtype == dtype
    close(losses, exact, "the loss in half precision")
    slopes = torch.autograd.grad(losses.sum(), (tokens, long))
    for a, b in zip(slopes, torch.autograd.grad(exact.sum(), (tokens, long)), strict=True):
        assert a.dtype == dtype
        close(a, b, "and its gradient")


def test_odd_problems_of_tdt_loss():
    none = pm.tdt_loss(
        torch.zeros(0, 3, 2, 4), torch.zeros(0, 3, 2, 2), torch.zeros(0, 1).long(), [], [], 3, [0, 1], reduction="none"
    )
    assert none.shape == (0,)
    tokens, long, *given = problem([0, 1, 2], batch=2)
    expected = pm.tdt_loss(tokens, long, *given, 4, [0, 1, 2])
    both = torch.cat([tokens, long], -1).transpose(1, 2).contiguous().transpose(1, 2)
    close(pm.tdt_loss(both[..., :5], both[..., 5:], *given, 4, [0, 1, 2]), expected, "slices of NeMo's logits")
    empty = pm.tdt_loss(tokens[:, :0], long[:, :0], given[0], [0, 0], [0, 1], 4, [0, 1, 2], reduction="none")
    equal(empty, torch.tensor([0.0, math.inf], dtype=torch.float64), "no frame: no token")
    clamped = pm.tdt_loss(tokens, long, *given, 4, [0, 1, 2], reduction="sum", clamp=0.01)
    assert torch.autograd.grad(clamped, tokens)[0].abs().max() == 0.01
    equal(clamped, pm.tdt_loss(tokens, long, *given, 4, [0, 1, 2], reduction="sum"), "clamp leaves the value")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_tdt_loss_is_compiled_and_mapped():
    tokens, long, *given = problem([0, 1, 2], batch=2, n=3, m=1)

    def loss(x, y):
        return pm.tdt_loss(x, y, *given, 4, [0, 1, 2], 0.05, omega=0.1)

    plain = loss(tokens, long)
    slopes = torch.autograd.grad(plain, (tokens, long))
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(tokens, long)
    close(compiled, plain, "compiled")
    for a, b in zip(torch.autograd.grad(compiled, (tokens, long)), slopes, strict=True):
        close(a, b, "the gradient of compiled code")
    close(torch.vmap(loss)(torch.stack([tokens, tokens]), torch.stack([long, long]))[1], plain, "mapped")
    for a, b in zip(torch.func.jacrev(loss, (0, 1))(tokens, long), slopes, strict=True):
        close(a, b, "the gradient of torch.func")


LOGITS = torch.zeros(1, 2, 2, 3)
ONE = torch.tensor([[1]]), [2], [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pm.tdt_loss(LOGITS, LOGITS, *ONE, 2, [0, 1]), r"duration_logits must be \(1, 2, 2, 2\)"),
        (lambda: pm.tdt_loss(LOGITS, LOGITS, *ONE, 2, [0, 1, 1]), "durations must be different integers"),
        (lambda: pm.tdt_loss(LOGITS, LOGITS[..., :1], *ONE, 2, [0]), "one of them positive"),
        (lambda: pm.tdt_loss(LOGITS, LOGITS[..., :2], *ONE, 7, [0, 1]), "blank must be one of 3 classes; got 7"),
        (lambda: pm.tdt_loss(LOGITS, LOGITS[..., :2], *ONE, 2, [0, 1], omega=2.0), r"omega must be in \[0, 1\]"),
        (lambda: pm.tdt_loss(LOGITS, LOGITS[..., :2], *ONE, 2, [0, 1], reduction="all"), "reduction must be one of"),
        (lambda: pm.tdt_loss(LOGITS[0], LOGITS[0], *ONE, 2, [0, 1, 2]), r"token_logits must be \(N, T, U \+ 1, V\)"),
        (
            lambda: pm.joint_rnnt_loss(
                LOGITS[0], LOGITS[0], torch.zeros(4, 2), torch.ones(2, 1).long(), [2, 2], [1, 1]
            ),
            r"encoder must be \(N, T, 2\), as the weight has it; got \(2, 2, 3\)",
        ),
        (
            lambda: pm.joint_rnnt_loss(LOGITS[0], LOGITS[0], torch.zeros(4, 3), *ONE, bias=torch.zeros(3)),
            r"bias must be \(4,\)",
        ),
        (lambda: pm.joint_rnnt_loss(LOGITS, LOGITS[0], torch.zeros(4, 3), *ONE), r"encoder must be \(N, T, H\)"),
        (
            lambda: pm.joint_rnnt_loss(
                LOGITS[0], LOGITS[0, :1], torch.zeros(4, 3), torch.ones(2, 1).long(), [2, 2], [1, 1]
            ),
            r"predictor must be \(2, U \+ 1, 3\)",
        ),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


TERMS = torch.zeros(1, 2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pm.rnnt_loss(LOGITS, *ONE, blank=1.0), "blank must be an integer; got float"),
        (lambda: pm.rnnt_loss(LOGITS, *ONE, clamp="a"), "clamp must be a number or a tensor; got str"),
        (lambda: pm.rnnt_loss(LOGITS, ONE[0], [1.5], [1]), "logit_lengths must be integers; got torch.float32"),
        (lambda: pm.rnnt_loss(LOGITS[0, 0], ONE[0], [1], [1.5]), "target_lengths must be integers"),
        (lambda: pm.tdt_loss(LOGITS, LOGITS[..., :2], *ONE, 2, 2), "durations must be a list of integers; got int"),
        (lambda: pm.tdt_loss(LOGITS, LOGITS[..., :2], *ONE, 2, [0, 1.5]), "each of durations must be an integer"),
        (lambda: pm.additive_rnnt_loss(None, TERMS, *ONE), "encoder must be a tensor; got NoneType"),
        (
            lambda: pm.joint_rnnt_loss(TERMS, TERMS, torch.zeros(4, 3), *ONE, activation="tanh"),
            "activation must be a function; got 'tanh'",
        ),
        (
            lambda: pm.joint_rnnt_loss(TERMS, TERMS, torch.zeros(4, 3).double(), *ONE),
            "weight must be torch.float32, as the encoder; got torch.float64",
        ),
        (
            lambda: pm.joint_rnnt_loss(TERMS, TERMS, torch.zeros(4, 3), *ONE, bias=torch.zeros(4).half()),
            "bias must be torch.float32, as the encoder; got torch.float16",
        ),
    ],
)
def test_wrong_types_are_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_activations_keep_the_shape():
    with pytest.raises(ValueError, match=r"activation must return .* got \(1, 2, 2\) for \(1, 2, 2, 3\)"):
        pm.joint_rnnt_loss(TERMS, TERMS, torch.zeros(4, 3), *ONE, activation=lambda x: x.sum(-1))


def joint(batch=4, n=6, m=3, hidden=4, classes=5, bias=True, dtype=torch.float64):
    shapes = (batch, n, hidden), (batch, m + 1, hidden), (classes, hidden), *([(classes,)] if bias else [])
    tensors = tuple(torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)
    targets = torch.randint(0, classes - 1, (batch, m))
    frames = torch.tensor([max(n - 2 * b, 1) for b in range(batch)])
    counts = torch.tensor([max(m - b, 0) for b in range(batch)])
    return tensors, (targets, frames, counts)


def dense(encoder, predictor, weight, bias, given, activation=torch.tanh, **options):
    logits = torch.nn.functional.linear(activation(encoder.unsqueeze(2) + predictor.unsqueeze(1)), weight, bias)
    return pm.rnnt_loss(logits, *given, **options)


@pytest.mark.parametrize("entries", [1, 30, 10**6])
@pytest.mark.parametrize("activation", [torch.tanh, torch.nn.functional.silu])
@pytest.mark.parametrize("bias", [True, False])
def test_joint_rnnt_loss(monkeypatch, bias, activation, entries):
    """In blocks of a cell, of some cells, and of all cells of several instances."""
    monkeypatch.setattr(BLOCKS, "LEAST", entries)
    monkeypatch.setattr(BLOCKS, "SHARE", 0)
    tensors, given = joint(bias=bias)

    def ours(e, p, w, b=None):
        return pm.joint_rnnt_loss(e, p, w, *given, bias=b, activation=activation)

    def theirs(e, p, w, b=None):
        return dense(e, p, w, b, given, activation)

    close(ours(*tensors), theirs(*tensors), "the loss of the logits")
    slopes = [torch.autograd.grad(f(*tensors), tensors, create_graph=True) for f in (ours, theirs)]
    for a, b in zip(*slopes, strict=True):
        close(a, b, "the gradients of the logits")
    second = [torch.autograd.grad(sum(g.square().sum() for g in s), tensors) for s in slopes]
    for a, b in zip(*second, strict=True):
        close(a, b, "the second derivatives of the logits")


def test_joint_loss_draws_the_same_again(monkeypatch):
    """Dropout in the activation: the backward pass has the mask of the forward pass."""
    monkeypatch.setattr(BLOCKS, "LEAST", 30)
    (encoder, predictor, weight, bias), given = joint()
    kept = []

    def dropped(x):
        kept.append(torch.rand_like(x) < 0.5)
        return torch.where(kept[-1], torch.relu(x), 0)

    loss = pm.joint_rnnt_loss(encoder, predictor, weight, *given, bias=bias, activation=dropped)
    blocks = len(kept)
    loss.backward()
    assert len(kept) == 2 * blocks > 4
    again = kept[blocks:]
    for mask in kept[:blocks]:
        assert any(mask.shape == other.shape and torch.equal(mask, other) for other in again)


def test_joint_padding_and_neighbours():
    tensors, given = joint()
    rows = [torch.arange(k) < n[:, None] for k, n in ((6, given[1]), (4, given[2] + 1))]

    def found(e, p):
        leaves = [x.detach().requires_grad_() for x in (e, p, *tensors[2:])]
        losses = pm.joint_rnnt_loss(*leaves[:3], *given, bias=leaves[3], reduction="none")
        return losses.detach(), torch.autograd.grad(losses.sum(), leaves)

    value, slopes = found(*tensors[:2])
    for junk in (math.nan, math.inf):
        padded = [torch.where(m.unsqueeze(-1), x, junk) for x, m in zip(tensors[:2], rows)]
        again, other = found(*padded)
        equal(again, value, "padding is not read")
        for a, b in zip(other, slopes, strict=True):
            equal(a, b, "nor by gradients")
    spoilt = tensors[0].detach().clone()
    spoilt[1, 0, 0] = math.nan
    again, other = found(spoilt, tensors[1])
    assert again[1].isnan()
    equal(again[[0, 2, 3]], value[[0, 2, 3]], "neighbours have the bits that they have without it")
    for a, b in zip(other[:2], slopes[:2], strict=True):
        equal(a[[0, 2, 3]], b[[0, 2, 3]], "and so have their gradients")
    for x, m in zip(slopes[:2], rows):
        assert not x[~m].any()


def test_joint_loss_in_half_precision_and_of_nothing():
    tensors, given = joint(dtype=torch.bfloat16)
    loss = pm.joint_rnnt_loss(*tensors[:3], *given, bias=tensors[3])
    exact = pm.joint_rnnt_loss(*(x.double() for x in tensors[:3]), *given, bias=tensors[3].double())
    assert loss.dtype == torch.bfloat16
    assert abs(loss - exact) < 0.05 * exact
    assert all(g.dtype == torch.bfloat16 for g in torch.autograd.grad(loss, tensors))
    nothing = torch.zeros(0, 3, 2), torch.zeros(0, 2, 2), torch.zeros(4, 2), torch.zeros(0, 1).long(), [], []
    assert pm.joint_rnnt_loss(*nothing, reduction="none").shape == (0,)
    assert pm.joint_rnnt_loss(*nothing, reduction="sum") == 0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_joint_loss_is_compiled_and_mapped():
    tensors, given = joint(batch=2, n=3, m=1)

    def loss(e, p, w, b):
        return pm.joint_rnnt_loss(e, p, w, *given, bias=b)

    plain = loss(*tensors)
    slopes = torch.autograd.grad(plain, tensors)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(*tensors)
    close(compiled, plain, "compiled")
    for a, b in zip(torch.autograd.grad(compiled, tensors), slopes, strict=True):
        close(a, b, "the gradient of compiled code")
    close(torch.vmap(loss)(*(torch.stack([t, t]) for t in tensors))[1], plain, "mapped")
    for a, b in zip(torch.func.jacrev(loss, (0, 1, 2, 3))(*tensors), slopes, strict=True):
        close(a, b, "the gradient of torch.func")


@pytest.mark.device
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 11, 5, 37), (2, 1, 1, 1), (1, 9, 17, 70), (2, 0, 2, 3)], ids=str)
def test_kernels_of_sums(shape, dtype):
    """Triton's kernels of `additive_classes` against the reference in float64, with -inf, NaN and padding."""
    pytest.importorskip("triton")
    reference, cuda = (import_module(f"polymax.kernels.additive_classes.{file}") for file in ("reference", "cuda"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, n, k, classes = shape
    e, p = (3 * torch.randn(batch, rows, classes).to(dtype) for rows in (n, k))
    if n > 8:
        e[0, 0], p[0, 1, :30], e[-1, 2, 3], e[-1, -2:] = -torch.inf, -torch.inf, torch.nan, torch.nan
    at = torch.randint(0, classes, (batch, k))
    frames, states = (torch.tensor([max(size - 2 * b, 1) for b in range(batch)]).clamp(max=size) for size in (n, k))
    given = at, frames, states
    exact = reference.additive_classes(e.double(), p.double(), *given, classes - 1)
    g, h = (torch.randn(batch, n, k, dtype=torch.float64) for _ in range(2))
    slopes = reference.additive_classes_backward(e.double(), p.double(), *given, exact[2], g, h, classes - 1)
    for module in (reference, cuda):
        place = device if module is cuda else "cpu"
        moved = [t.to(place) for t in (e, p, *given)]
        found = module.additive_classes(*moved, classes - 1)
        back = [t.to(found[0]) for t in (g, h)]
        found = *found, *module.additive_classes_backward(*moved, found[2], *back, classes - 1)
        for a, b in zip(found, (*exact, *slopes), strict=True):
            close(a.cpu(), b, "sums by a kernel are those of the reference")


def test_kernels_of_sums_are_operators():
    from polymax.kernels.additive_classes import additive_classes, additive_classes_backward

    e, p, at = torch.randn(2, 3, 5), torch.randn(2, 2, 5), torch.tensor([[1, 2], [0, 4]])
    given = e, p, at, torch.tensor([3, 2]), torch.tensor([2, 1])
    g = torch.randn(2, 3, 2)
    checks = "test_schema", "test_faketensor"
    torch.library.opcheck(additive_classes.op, (*given, 4), test_utils=checks)
    total = additive_classes(*given, 4)[2]
    torch.library.opcheck(additive_classes_backward.op, (*given, total, g, g, 4), test_utils=checks)


def most_bytes(call):
    """The most memory that tensors made by a call have at a time, by torch's own count of its allocations."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def test_memory_of_the_joint_loss(monkeypatch):
    """Less than a twentieth of what the logits and their gradient take."""
    # blocks are a share of all logits, as they are of larger problems
    monkeypatch.setattr(BLOCKS, "LEAST", 1 << 10)
    batch, n, m, hidden, classes = 4, 100, 31, 8, 700
    shapes = (batch, n, hidden), (batch, m + 1, hidden), (classes, hidden)
    tensors = [torch.randn(s, requires_grad=True) for s in shapes]
    given = torch.randint(0, classes - 1, (batch, m)), torch.tensor([100, 90, 80, 70]), torch.tensor([31, 20, 31, 0])
    ours = most_bytes(lambda: pm.joint_rnnt_loss(*tensors, *given).backward())
    assert ours < 2 * 4 * batch * n * (m + 1) * classes / 20
    # the count sees the blocks, which are larger than all cells
    assert ours > 4 * batch * n * (m + 1)


@pytest.mark.device
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_slices_of_rows_are_not_copied():
    pytest.importorskip("triton")
    cuda, reference = (import_module(f"polymax.kernels.two_classes.{file}") for file in ("cuda", "reference"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = torch.randn(2, 3, 4, 9).to(device)
    at, g = torch.randint(0, 6, (2, 3, 4)).to(device), torch.randn(2, 3, 4).to(device)
    for x, copied in ((whole[..., :6], False), (whole[:, 1:, :, :6], True), (whole.transpose(1, 2), True)):
        at_x, g_x = at[:, : x.shape[1]], g[:, : x.shape[1]]
        if x.shape[1] == 4:
            at_x, g_x = at.transpose(1, 2), g.transpose(1, 2)
        assert (cuda.apart_rows(x)[0].data_ptr() != x.data_ptr()) == copied
        found, exact = (module.two_classes(x, at_x, 5) for module in (cuda, reference))
        for a, b in zip(found, exact, strict=True):
            close(a, b, "two classes of a slice")
        back = [module.two_classes_backward(x, at_x, exact[2], g_x, g_x, 5) for module in (cuda, reference)]
        close(*back, "and its gradient")
