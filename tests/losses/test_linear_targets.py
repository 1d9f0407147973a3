"""Losses of a linear layer whose targets are distributions, log-probabilities of its words, and distillation."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tolerances import close, equal
from torch.nn.functional import cross_entropy, linear

import polymax as pm
from polymax.losses.linear_operator import LinearTotal

ROWS, SIZE, WORDS = 6, 5, 70


def layer(deviation=1.0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(3)
    shapes = (ROWS, SIZE), (WORDS, SIZE), (WORDS,)
    return [
        (deviation * torch.randn(s, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_() for s in shapes
    ]


def teacher(dtype=torch.float64, empty=True):
    """Lists of a few words, one row of which is empty, and the probabilities of all words."""
    draw = torch.Generator().manual_seed(4)
    dense = pm.entmax(2 * torch.randn(ROWS, WORDS, generator=draw, dtype=torch.float64))
    probs, ids = dense.topk(40)
    ids = torch.where(probs > 0, ids, -1)
    if empty:
        ids[2] = -1
        probs[2] = 0
    return pm.WordDistribution(ids, probs.to(dtype), WORDS), dense


def rows_of(hidden, weight, bias, q, alpha, smoothing=0.0, weights=None, softcap=None):
    """The loss of each row from all logits and all probabilities."""
    x = linear(hidden, weight, bias)
    x = x if softcap is None else softcap * torch.tanh(x / softcap)
    return pm.entmax_loss(x, q, alpha, "none", label_smoothing=smoothing, weight=weights)


OPTIONS = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.2},
    "weights": {"class_weights": torch.linspace(0.1, 2, WORDS, dtype=torch.float64)},
    "both": {"label_smoothing": 0.2, "class_weights": torch.linspace(0.1, 2, WORDS, dtype=torch.float64)},
    "capped": {"softcap": 2.0},
    "capped-smoothed": {"softcap": 2.0, "label_smoothing": 0.1},
}


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("deviation", [1.0, 0.02])
def test_losses_of_distributions_are_those_of_all_logits(options, alpha, deviation):
    options = OPTIONS[options]
    given = layer(deviation)
    lists, dense = teacher()
    names = {"label_smoothing": "smoothing", "class_weights": "weights"}
    each = rows_of(*given, dense, alpha, **{names.get(k, k): v for k, v in options.items()})
    counted = torch.arange(ROWS) != 2
    for target, truth in ((lists, torch.where(counted, each, 0)), (dense, each)):
        count = counted.sum() if target is lists else ROWS
        for reduction, expected in (("none", truth), ("sum", truth.sum()), ("mean", truth.sum() / count)):
            found = pm.linear_entmax_loss(
                given[0], given[1], target, given[2], alpha=alpha, reduction=reduction, **options
            )
            close(found, expected, "the loss is that of all logits")
            slope = torch.linspace(1, 2, ROWS).double() if reduction == "none" else 3.0
            ours = torch.autograd.grad((found * slope).sum(), given)
            theirs = torch.autograd.grad((expected * slope).sum(), given, retain_graph=True)
            for a, b in zip(ours, theirs, strict=True):
                close(a, b, "and its gradient")


def test_a_distribution_of_the_layer_itself_has_no_loss():
    given = layer()
    for alpha in (1.5, 2.0):
        itself = pm.linear_entmax(*given, alpha=alpha)
        detached = pm.WordDistribution(itself.ids, itself.probs.detach(), WORDS)
        loss = pm.linear_entmax_loss(given[0], given[1], detached, given[2], alpha=alpha)
        assert abs(float(loss.detach())) < 1e-12
        for slope in torch.autograd.grad(loss, given):
            close(slope, torch.zeros_like(slope), "no gradient")


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives_with_lists(alpha, reduction):
    given = layer()
    lists, _ = teacher()

    keep = [t[:3].detach().requires_grad_() if k == 0 else t for k, t in enumerate(given)]
    lists = pm.WordDistribution(lists.ids[:3], lists.probs[:3], WORDS)
    inputs = (*keep, torch.linspace(-1, 1, lists.ids.numel()).double().reshape(lists.ids.shape).requires_grad_())

    def rows(hidden, weight, bias, raw):
        held = raw.where(lists.ids >= 0, torch.full_like(raw, -1e30))
        q = torch.softmax(held, -1) * (lists.ids >= 0)
        target = pm.WordDistribution(lists.ids, q, WORDS)
        return pm.linear_entmax_loss(hidden, weight, target, bias, alpha=alpha, reduction=reduction)

    assert torch.autograd.gradcheck(rows, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(rows, inputs, fast_mode=True)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("deviation", [1.0, 0.02])
def test_gradients_are_the_same_each_time_they_are_asked(alpha, deviation):
    given = layer(deviation)
    target = torch.arange(ROWS)
    loss = pm.linear_entmax_loss(given[0], given[1], target, given[2], alpha=alpha)
    first = torch.autograd.grad(3 * loss, given, retain_graph=True)
    second = torch.autograd.grad(loss, given, retain_graph=True)
    third = torch.autograd.grad(loss, given)
    for a, b, c in zip(first, second, third, strict=True):
        close(a, 3 * b, "a multiple of the loss has a multiple of the gradient")
        equal(b, c, "a gradient that was taken is computed again")


def test_gradients_that_are_computed_with_the_value_are_freed():
    given = layer()
    loss = pm.linear_cross_entropy(given[0], given[1], torch.arange(ROWS), given[2])
    node = loss.grad_fn
    while node is not None and not node.name().startswith(LinearTotal.__name__):
        node = node.next_functions[0][0]
    assert node is not None, "the loss computes its gradient with its value"
    assert node.found is not None
    loss.backward()
    assert node.found is None


def test_losses_without_a_gradient_compute_none(monkeypatch):
    def refused(*_):
        raise AssertionError("no gradient was asked for")

    monkeypatch.setattr("polymax.losses.linear_operator.linear_loss_slopes", refused)
    given = layer()
    with torch.no_grad():
        pm.linear_cross_entropy(given[0], given[1], torch.arange(ROWS))
    plain = [t.detach() for t in given]
    pm.linear_cross_entropy(plain[0], plain[1], torch.arange(ROWS))
    with pytest.raises(AssertionError, match="no gradient"):
        pm.linear_cross_entropy(given[0], given[1], torch.arange(ROWS))


def test_cross_entropy_is_that_of_torch():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        given = layer(dtype=dtype)
        exact = [t.detach().double().requires_grad_() for t in given]
        target = torch.tensor([3, -100, 5, 0, 69, 3])
        found = pm.linear_cross_entropy(given[0], given[1], target, given[2], label_smoothing=0.1)
        truth = cross_entropy(linear(*exact), target, label_smoothing=0.1)
        assert found.dtype == dtype
        close(found, truth, "linear_cross_entropy is cross_entropy")
        for a, b in zip(torch.autograd.grad(found, given), torch.autograd.grad(truth, exact), strict=True):
            close(a, b, "and its gradient")
    loss, normalizer = pm.linear_cross_entropy(*exact[:2], target, z_loss=0.1, return_normalizer=True)
    expected, lse = pm.linear_entmax_loss(*exact[:2], target, alpha=1, z_loss=0.1, return_normalizer=True)
    close(loss, expected, "z_loss is handed on")
    close(normalizer, lse, "and the normalizer")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_log_probabilities(temperature, softcap):
    given = layer()
    ids = torch.tensor([[3, 3, 5]]).repeat(ROWS, 1) + torch.arange(ROWS)[:, None]
    x = linear(*given)
    x = (x if softcap is None else softcap * torch.tanh(x / softcap)) / temperature
    logs = x.log_softmax(-1)
    options = {"temperature": temperature, "softcap": softcap}
    found, entropy = pm.linear_log_prob(given[0], given[1], ids, given[2], entropy=True, **options)
    close(found, logs.gather(1, ids), "log-probabilities")
    close(entropy, -(logs.exp() * logs).sum(-1), "entropies")
    one = pm.linear_log_prob(given[0], given[1], ids[:, 0], given[2], **options)
    close(one, found[:, 0], "a word for each row")
    slope = torch.linspace(0, 1, 3).double()
    ours = (found * slope).sum() + entropy.sin().sum()
    theirs = (logs.gather(1, ids) * slope).sum() + (-(logs.exp() * logs).sum(-1)).sin().sum()
    for a, b in zip(torch.autograd.grad(ours, given), torch.autograd.grad(theirs, given), strict=True):
        close(a, b, "and their gradients")

    def both(*given):
        return pm.linear_log_prob(given[0], given[1], ids[:2], given[2], entropy=True, **options)

    few = [given[0][:2].detach().requires_grad_(), *given[1:]]
    assert torch.autograd.gradcheck(both, few, fast_mode=True)
    assert torch.autograd.gradgradcheck(both, few, fast_mode=True)


def test_log_probabilities_of_half_precision_are_float32():
    given = layer(dtype=torch.bfloat16)
    found, entropy = pm.linear_log_prob(*given[:2], torch.arange(ROWS), entropy=True)
    assert found.dtype == entropy.dtype == torch.float32
    exact = linear(*(t.detach().double() for t in given[:2])).log_softmax(-1)
    close(found, exact.gather(1, torch.arange(ROWS)[:, None])[:, 0], "log-probabilities of half precision")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_all_compile():
    given = layer(dtype=torch.float32)
    lists, dense = teacher(torch.float32)
    calls = {
        "classes": lambda *t: pm.linear_cross_entropy(t[0], t[1], torch.arange(ROWS), t[2]),
        "lists": lambda *t: pm.linear_entmax_loss(t[0], t[1], lists, t[2]),
        "dense": lambda *t: pm.linear_cross_entropy(t[0], t[1], dense.float(), t[2]),
        "log-prob": lambda *t: sum(p.sum() for p in pm.linear_log_prob(t[0], t[1], torch.arange(ROWS), entropy=True)),
    }
    for name, call in calls.items():
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        found, truth = compiled(*given), call(*given)
        close(found, truth, f"{name} compiled")
        wanted = given if name != "log-prob" else given[:2]
        for a, b in zip(torch.autograd.grad(found, wanted), torch.autograd.grad(truth, wanted), strict=True):
            close(a, b, "and its gradient")


def test_transforms_of_lists():
    given = [t.detach() for t in layer()]
    lists, _ = teacher(empty=False)

    def loss(hidden, ids, probs):
        return pm.linear_entmax_loss(hidden, given[1], pm.WordDistribution(ids, probs, WORDS), given[2])

    found = torch.func.vmap(torch.func.grad(loss))(given[0], lists.ids, lists.probs)
    hidden = given[0].clone().requires_grad_()
    truth = torch.autograd.grad(pm.linear_entmax_loss(hidden, given[1], lists, given[2], reduction="sum"), hidden)[0]
    close(found, truth, "rows by themselves")


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 1.0, 2.5])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_listed_probabilities_have_gradients(alpha, softcap):
    given = layer()
    found = pm.linear_entmax(*given, alpha=alpha, softcap=softcap).dense()
    x = linear(*given)
    truth = pm.entmax(x if softcap is None else softcap * torch.tanh(x / softcap), alpha=alpha)
    close(found, truth, "the distribution is entmax of the logits")
    slope = torch.randn(found.shape, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad((found * slope).sum(), given),
        torch.autograd.grad((truth * slope).sum(), given),
        strict=True,
    ):
        close(a, b, "and its gradient")


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_distillation(alpha, beta):
    given = layer(0.3 if beta == 0 else 1.0)
    lists, dense = teacher()
    if beta == 0 and alpha > 1:
        # the student has all of the teacher's words
        given = layer(0.003)
    if beta == 1:
        if alpha == 1:
            with pytest.raises(ValueError, match="beta must be below 1"):
                pm.distillation_loss(*given[:2], lists, alpha=alpha, beta=beta)
            return
        dense = pm.softmax(2 * torch.randn(ROWS, WORDS, dtype=torch.float64))
        probs, ids = dense.sort(descending=True)
        lists = pm.WordDistribution(torch.where(torch.arange(ROWS)[:, None] == 2, -1, ids), probs, WORDS)
    p = pm.entmax(linear(*given), alpha=alpha)
    m = beta * dense + (1 - beta) * p

    def divergence(a, b):
        safe = torch.where(a > 0, a, 1)
        return torch.where(a > 0, a * torch.log(safe / torch.where(a > 0, b, 1)), 0).sum(-1)

    each = beta * divergence(dense, m) + (1 - beta) * divergence(p, m)
    each = divergence(dense, p) if beta == 0 else divergence(p, dense) if beta == 1 else each
    truth = torch.where(torch.arange(ROWS) == 2, 0, each)
    found = pm.distillation_loss(given[0], given[1], lists, given[2], alpha=alpha, beta=beta, reduction="none")
    close(found, truth, "the divergence of all words")
    mean = pm.distillation_loss(given[0], given[1], lists, given[2], alpha=alpha, beta=beta)
    close(mean, truth.sum() / (ROWS - 1), "the mean over rows that count")
    for a, b in zip(
        torch.autograd.grad(mean, given), torch.autograd.grad(truth.sum() / (ROWS - 1), given), strict=True
    ):
        close(a, b, "and its gradient")


def test_a_divergence_may_be_infinite():
    """The student leaves out a word of the teacher, or the teacher one of the student."""
    hidden, weight = torch.ones(1, 1), torch.tensor([[9.0], [0.0], [8.9]])
    left_out = pm.WordDistribution(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.5]]), 3)
    assert pm.distillation_loss(hidden, weight, left_out, alpha=2.0, beta=0.0) == torch.inf
    assert pm.distillation_loss(hidden, weight, left_out, alpha=2.0, beta=1.0) == torch.inf
    assert pm.distillation_loss(hidden, weight, left_out, alpha=2.0, beta=0.5).isfinite()


def test_targets_are_checked():
    hidden, weight, _ = layer()
    ids, probs = torch.tensor([[0, 1]]).repeat(ROWS, 1), torch.full((ROWS, 2), 0.5, dtype=torch.float64)
    for error, match, target in (
        (TypeError, "target must be a tensor of words or of probabilities", [1, 2]),
        (TypeError, "target must be words.* got torch.bool", torch.ones(ROWS, dtype=torch.bool)),
        (TypeError, "target.ids must be integers", (ids.double(), probs)),
        (ValueError, "a list for each row", (ids[:2], probs[:2])),
        (ValueError, r"target.ids must be in \[0, 70\)", (ids + 69, probs)),
        (ValueError, "list a word once in each row; got word 0 twice", (0 * ids, probs)),
        (ValueError, "target.probs must sum to 1 .* got a sum of 0.8", (ids, 0.8 * probs)),
        (ValueError, "target.probs must not be negative; got -0.5", (ids, torch.tensor([[1.5, -0.5]]).repeat(ROWS, 1))),
        (ValueError, "target must sum to 1", torch.full((ROWS, WORDS), 0.1, dtype=torch.float64)),
        (ValueError, "the probabilities of all words for each row", torch.full((ROWS, 3), 1 / 3)),
        (ValueError, "must not require a gradient", torch.full((ROWS, WORDS), 1 / WORDS, requires_grad=True)),
    ):
        given = pm.WordDistribution(*target, WORDS) if isinstance(target, tuple) else target
        with pytest.raises(error, match=match):
            pm.linear_entmax_loss(hidden, weight, given)
    with pytest.raises(ValueError, match="over the 70 words of weight; got a distribution over 9"):
        pm.linear_entmax_loss(hidden, weight, pm.WordDistribution(ids, probs, 9))
    for error, match, call in (
        (TypeError, "ids must be a tensor of words", lambda: pm.linear_log_prob(hidden, weight, ids.double())),
        (ValueError, r"ids must be words in \[0, 70\); got -1", lambda: pm.linear_log_prob(hidden, weight, ids - 1)),
        (ValueError, r"ids must be \(6,\), or", lambda: pm.linear_log_prob(hidden, weight, ids[:2])),
        (ValueError, "temperature must be", lambda: pm.linear_log_prob(hidden, weight, ids, temperature=0.0)),
        (TypeError, "temperature must be a number", lambda: pm.linear_log_prob(hidden, weight, ids, temperature=probs)),
        (TypeError, "teacher must be a WordDistribution", lambda: pm.distillation_loss(hidden, weight, probs)),
    ):
        with pytest.raises(error, match=match):
            call()


def test_rows_with_hostile_scores():
    """A NaN in one row, scores of -inf by the bias, and scores that are huge or equal."""
    lists, _ = teacher(empty=False)
    for alpha in (1.0, 1.5, 2.0):
        hidden, weight, bias = (t.detach().clone() for t in layer())
        hidden[1] = torch.nan
        each = pm.linear_entmax_loss(hidden, weight, lists, alpha=alpha, reduction="none")
        assert each.isnan().tolist() == [k == 1 for k in range(ROWS)]
        assert pm.linear_entmax_loss(hidden.requires_grad_(), weight, lists, alpha=alpha).isnan()
        hidden = layer()[0].detach()
        unlisted = next(w for w in range(WORDS) if not (lists.ids == w).any())
        bias[unlisted] = -torch.inf
        for scale in (1e-30, 1.0, 1e4):
            inputs = [hidden.clone().requires_grad_(), (scale * weight).requires_grad_(), bias.clone().requires_grad_()]
            found = pm.linear_entmax_loss(inputs[0], inputs[1], lists, inputs[2], alpha=alpha, reduction="sum")
            truth = rows_of(*inputs, lists.dense(), alpha).sum()
            close(found / scale, truth / scale, "a word of -inf has no part")
            for a, b in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(truth, inputs), strict=True):
                close(a / scale, b / scale, "and its gradient")


def test_distributions_on_disk(tmp_path):
    lists, _ = teacher(torch.float32)
    other = pm.WordDistribution(torch.tensor([[7]]), torch.tensor([[1.0]]), WORDS)
    for dtype, room in ((torch.float16, 1e-3), (torch.float32, 1e-6)):
        folder = tmp_path / str(dtype)
        pm.WordDistribution.save(folder, (d for d in (lists, other)), dtype)
        stored = pm.WordDistribution.load(folder)
        assert (len(stored), stored.words, stored.length(0), stored.length(-1)) == (2, WORDS, ROWS, 1)
        for copied in (stored, copy.deepcopy(stored), pickle.loads(pickle.dumps(stored))):
            torch.testing.assert_close(copied[0].dense(), lists.dense(), atol=room, rtol=0)
            torch.testing.assert_close(copied[1].dense(), other.dense())
        chosen = stored.at(torch.tensor([[0, 1], [0, 0]]), torch.tensor([[4, 0], [-1, 2]]))
        assert chosen.ids.shape[:2] == (2, 2)
        torch.testing.assert_close(chosen.dense()[0, 0], lists.dense()[4], atol=room, rtol=0)
        assert (chosen.ids[1] < 0).all(), "no position, and a row without words"
        hidden, weight, _ = (t.detach().float() for t in layer())
        losses = [pm.linear_entmax_loss(hidden, weight, target) for target in (stored[0], lists)]
        torch.testing.assert_close(*losses, rtol=0.01, atol=0)
    with pytest.raises(IndexError):
        stored[2]
    with pytest.raises(IndexError, match=r"positions of document 1 must be in \[0, 1\), or -1; got 1"):
        stored.at(torch.tensor([1]), torch.tensor([1]))
    with pytest.raises(TypeError, match="documents must be integers"):
        stored.at(torch.ones(1), torch.ones(1))
    with pytest.raises(FileExistsError, match="not an empty folder"):
        pm.WordDistribution.save(folder, [lists])


@pytest.mark.parametrize("wrong", [-5, 2**40])
@pytest.mark.parametrize("name", ["starts", "documents"])
def test_numbers_of_a_damaged_folder_are_checked(name, wrong, tmp_path):
    lists, _ = teacher(torch.float32)
    pm.WordDistribution.save(tmp_path, [lists])
    numbers = np.fromfile(tmp_path / f"{name}.bin", np.int64)
    numbers[1] = wrong
    numbers.tofile(tmp_path / f"{name}.bin")
    stored = pm.WordDistribution.load(tmp_path)
    for read in (lambda: stored[0], lambda: stored.at(torch.tensor([0]), torch.tensor([0]))):
        with pytest.raises(ValueError, match=f"{name}.bin must rise from 0 to .* the folder is damaged"):
            read()


def test_folders_that_are_damaged(tmp_path):
    lists, _ = teacher(torch.float32)

    def broken():
        yield lists
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pm.WordDistribution.save(tmp_path / "stopped", broken())
    with pytest.raises(FileNotFoundError, match="was not finished"):
        pm.WordDistribution.load(tmp_path / "stopped")
    pm.WordDistribution.save(tmp_path / "cut", [lists])
    with open(tmp_path / "cut" / "ids.bin", "ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match=r"ids.bin must have \d+ bytes; got \d+: the folder is damaged"):
        pm.WordDistribution.load(tmp_path / "cut")
    (tmp_path / "cut" / "contents.json").write_text('{"format": "polymax.words.1", "words": -3}')
    with pytest.raises(ValueError, match=r"contents.json is damaged"):
        pm.WordDistribution.load(tmp_path / "cut")
    (tmp_path / "cut" / "contents.json").write_text("[")
    with pytest.raises(ValueError, match="must be JSON"):
        pm.WordDistribution.load(tmp_path / "cut")
    mixed = [lists, pm.WordDistribution(lists.ids, lists.probs, WORDS + 1)]
    with pytest.raises(ValueError, match="document 1 must be over 70 words"):
        pm.WordDistribution.save(tmp_path / "mixed", mixed)
    with pytest.raises(ValueError, match="document 0 must have finite probabilities"):
        pm.WordDistribution.save(tmp_path / "nan", [pm.WordDistribution(lists.ids, lists.probs * torch.nan, WORDS)])
    with pytest.raises(ValueError, match="at least one WordDistribution"):
        pm.WordDistribution.save(tmp_path / "none", [])


def test_a_softmax_student_of_a_teacher_of_all_words():
    """KL(student, teacher) is finite if the teacher lists every word."""
    hidden, weight, bias = layer()
    q = torch.softmax(torch.randn(ROWS, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(5)), -1)
    whole = pm.WordDistribution(torch.arange(WORDS).expand(ROWS, -1), q, WORDS)
    found = pm.distillation_loss(hidden, weight, whole, bias, alpha=1.0, beta=1.0)
    logs = linear(hidden, weight, bias).log_softmax(-1)
    expected = (logs.exp() * (logs - q.log())).sum(-1).mean()
    close(found, expected, "KL(p || q)")
    for a, b in zip(*(torch.autograd.grad(loss, (hidden, weight, bias)) for loss in (found, expected))):
        close(a, b, "gradient")
