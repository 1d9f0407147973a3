"""The loss of a linear layer over a vocabulary: that of its logits, which are never there as a whole."""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from tolerances import close, equal
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode

import polymax as pm
from polymax.kernels.linear_loss import (
    FLAT,
    linear_loss,
    linear_loss_backward,
    linear_loss_slopes,
    passes,
    reference,
)
from polymax.kernels.linear_loss.problem import Parts

FILES = ["cpu", *(["cuda"] if find_spec("triton") else [])]
GPU = torch.cuda.is_available()
WORDS, SIZE = 90, 6
# few places in lists, and small blocks: all paths of the kernels in few words
CAPACITY = 16


def problem(dtype=torch.float64, scale=2.0, rows=7, bias=True, size=SIZE):
    """Hidden states, weights, targets of which one is left out, and a bias."""
    generator = torch.Generator().manual_seed(1)

    def noise(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    hidden, weight = noise(rows, size), scale / size**0.5 * noise(WORDS, size)
    target = torch.randint(WORDS, (rows,), generator=generator)
    target[2] = -100
    given = [hidden, weight, scale / 2 * noise(WORDS) if bias else None]
    return [None if t is None else t.to(dtype).requires_grad_() for t in given], target


def dense(hidden, weight, bias, target, softcap=None, class_weights=None, **options):
    """The same from all logits."""
    x = linear(hidden, weight, bias)
    x = x if softcap is None else softcap * torch.tanh(x / softcap)
    return pm.entmax_loss(x, target, weight=class_weights, **options)


@pytest.fixture
def small(monkeypatch):
    """Blocks of a few words, and lists of a few places, on each device."""
    monkeypatch.setattr(passes, "capacity", lambda words: min(CAPACITY, words))
    monkeypatch.setattr(passes, "WORDS", 20)
    for file in FILES:
        module = import_module(f"polymax.kernels.linear_loss.{file}")
        size = {"entries": 4 * WORDS} if file == "cpu" else {"words": 16}
        keeping = module.STEPS.keeping._replace(**size)
        monkeypatch.setattr(module, "STEPS", replace(module.STEPS, rows=4, entries=128, flat=128, keeping=keeping))


def outputs(module, given, target, spread, alpha, softcap, scale):
    """Results of all operators, with a gradient of its own for each row."""
    hidden, weight, bias = (None if t is None else t.detach() for t in given)
    inputs = hidden, weight, bias, target, spread, alpha, None, softcap, scale
    found = Parts(*module.linear_loss(*inputs))
    grads = [torch.linspace(1, k, len(hidden), dtype=found.value.dtype, device=hidden.device) for k in (2, 3, 4, 5)]
    grads[1] = grads[1][:, None] * torch.ones_like(found.chosen)
    slopes = module.linear_loss_backward(*grads, *inputs, *found.saved, True, True)
    known = module.linear_loss_slopes(*grads[:3], *inputs, True, True)
    count = 3 if bias is not None else 2
    return found[:5], slopes[:count], found.count, known[: 3 + count]


CASES = {
    "lists": (1.5, 2.0, 0.0, None, 1.0),
    "sparsemax": (2.0, 1.0, 0.0, None, 1.0),
    "another-alpha": (1.3, 3.0, 0.0, "words", 1.0),
    "flat": (1.5, 0.01, 0.0, None, 1.0),
    "flat-sparsemax": (2.0, 0.001, 0.0, None, 1.0),
    "flat-spread": (1.4, 0.02, 0.0, "rows", 1.0),
    "flat-capped": (1.25, 0.05, 3.0, "words", 1.0),
    "capped": (1.5, 3.0, 4.0, None, 1.0),
    "softmax": (1.0, 1.0, 0.0, None, 1.0),
    "softmax-spread": (1.0, 1.0, 2.0, "words", 1.0),
    "softmax-scaled": (1.0, 1.0, 0.0, None, 0.7),
    "softmax-scaled-capped": (1.0, 3.0, 2.5, "rows", 1.3),
    "softmax-rows": (1.0, 2.0, 0.0, "rows", 1.0),
}


def spread_of(kind, rows):
    """Weights of a mean over words: None, the same for all rows, or of each row, half of them 0."""
    if kind is None:
        return None
    each = torch.linspace(0, 1, WORDS, dtype=torch.float64)
    return each if kind == "words" else (each * torch.arange(1, rows + 1)[:, None]) * (torch.arange(WORDS) % 2)


# fewer dimensions than rows (groups of rows), or as many (logits in the memory of the gradient)
@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [2, 6])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("case", CASES)
def test_kernels_are_the_reference(file, case, size):
    alpha, deviation, softcap, spread, scale = CASES[case]
    device = "cuda" if file == "cuda" and GPU else "cpu"
    kernel = import_module(f"polymax.kernels.linear_loss.{file}")
    # the interpreter is slow: its other dtypes are left to a GPU
    for dtype in (torch.float64, torch.float32, torch.bfloat16) if file == "cpu" or GPU else (torch.float32,):
        given, target = problem(dtype, deviation, bias=case != "lists", size=size)
        # any number below 0 stands for no word
        named = target[:, None]
        if spread != "words":
            # lists of targets, some of them short
            more = (named + torch.tensor([[7, 31]])) % WORDS
            named = torch.cat([named, torch.where((named < 0) | (named % 3 == 0), -1, more)], 1)
        of_words = spread_of(spread, len(target))
        moved = [None if t is None else t.to(device) for t in (*given, named, of_words)]
        found, slopes, count, known = outputs(kernel, moved[:3], moved[3], moved[4], alpha, softcap, scale)
        exact = [None if t is None else t.detach().double() for t in given]
        expected, true_slopes, _, true_known = outputs(reference, exact, named, of_words, alpha, softcap, scale)
        counted = target != -100
        listed = alpha > 1 and deviation > 0.1 and not (spread and softcap) and spread != "rows"
        if size == SIZE:
            assert bool((count[counted] >= 0).any()) == listed, "rows of few words have lists"
        for k, (actual, truth) in enumerate(zip((*found, *known[:3]), (*expected, *true_known[:3]), strict=True)):
            # scores that are kept in half precision
            kept = dtype if file == "cuda" and k >= len(found) else actual.dtype
            close(actual.to(kept).cpu()[counted], truth[counted], f"{file}.py == reference.py")
        for actual, truth in zip((*slopes, *known[3:]), (*true_slopes, *true_known[3:]), strict=True):
            assert actual.dtype == (dtype if actual.dim() > 1 else torch.promote_types(dtype, torch.float32))
            # sums of products of half precision
            coarse = actual.to(dtype) if dtype == torch.bfloat16 else actual
            scaled = float(truth.abs().max().clamp(min=1))
            close(coarse.cpu() / scaled, truth / scaled, f"the gradient of {file}.py == reference.py")


OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "weights": {"class_weights": torch.linspace(0.1, 2, WORDS, dtype=torch.float64)},
    "smoothed": {"label_smoothing": 0.1},
    "smoothed-weights": {"label_smoothing": 0.3, "class_weights": torch.linspace(0.1, 2, WORDS, dtype=torch.float64)},
    "capped": {"softcap": 3.0},
    "capped-smoothed": {"softcap": 3.0, "label_smoothing": 0.1},
    "ignored": {"ignore_index": 5},
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.2, 2.5, 0.8, 1.0])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_loss_is_that_of_the_logits(options, alpha):
    options = OPTIONS[options]
    for scale in (2.0, 0.05):
        given, target = problem(scale=scale)
        if "ignore_index" in options:
            target = torch.where(target < 0, 5, target)
        found = pm.linear_entmax_loss(given[0], given[1], target, given[2], alpha=alpha, **options)
        expected = dense(*given, target, alpha=alpha, **options)
        close(found, expected, "the loss is that of the logits")
        for a, b in zip(
            torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), given), strict=True
        ):
            close(a, b, "and its gradient")
        if alpha == 1.0:
            x = linear(*given)
            x = x if "softcap" not in options else options["softcap"] * torch.tanh(x / options["softcap"])
            names = {"class_weights": "weight"}
            same = {names.get(key, key): value for key, value in options.items() if key != "softcap"}
            close(found, cross_entropy(x, target, **same), "alpha = 1 is cross_entropy")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("options", ["plain", "sum", "none", "smoothed-weights", "capped", "ignored"])
def test_z_loss_and_normalizer_are_those_of_the_logits(options, mapped):
    options = OPTIONS[options] | {"alpha": 1, "z_loss": 0.3, "return_normalizer": True}
    given, target = problem()
    if "ignore_index" in options:
        target = torch.where(target < 0, 5, target)

    def loss(*given):
        return pm.linear_entmax_loss(*given[:2], target, given[2], **options)

    if mapped:
        found, pull = torch.func.vjp(loss, *given)
        slopes = pull((torch.ones_like(found[0]), found[1].cos().detach()))
    else:
        found = loss(*given)
        slopes = torch.autograd.grad(found[0].sum() + found[1].sin().sum(), given)
    expected = dense(*given, target, **options)
    x = linear(*given)
    x = x if "softcap" not in options else options["softcap"] * torch.tanh(x / options["softcap"])
    normalizer = torch.where(target == options.get("ignore_index", -100), 0, x.logsumexp(-1))
    close(found[1], normalizer, "the normalizer is that of the logits")
    close(found[0], expected[0], "the loss is that of the logits")
    truth = torch.autograd.grad(expected[0].sum() + normalizer.sin().sum(), given)
    for a, b in zip(slopes, truth, strict=True):
        close(a, b, "and its gradient")


@pytest.mark.usefixtures("small")
def test_derivatives_of_the_normalizer():
    given, target = problem(rows=3)

    def loss(*given):
        return pm.linear_entmax_loss(
            *given[:2], target, given[2], alpha=1, reduction="none", z_loss=0.3, return_normalizer=True
        )

    assert torch.autograd.gradcheck(loss, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(loss, given, fast_mode=True)


@pytest.mark.usefixtures("small")
def test_derivatives():
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    for scale in (2.0, 0.05):
        given, target = problem(scale=scale, rows=4)

        def loss(hidden, weight, bias, alpha, target=target):
            return pm.linear_entmax_loss(
                hidden, weight, target, bias, alpha=alpha, reduction="none", softcap=9.0, label_smoothing=0.1
            )

        assert torch.autograd.gradcheck(loss, (*given, alpha), fast_mode=True)
        assert torch.autograd.gradgradcheck(loss, (*given, alpha), fast_mode=True)
        # the gradient that comes in depends on the inputs too
        assert torch.autograd.gradgradcheck(lambda *t: loss(*t).square(), (*given, alpha), fast_mode=True)
        slope = torch.autograd.grad(pm.linear_entmax_loss(*given[:2], target, given[2], alpha=alpha), alpha)[0]
        truth = torch.autograd.grad(dense(*given, target, alpha=alpha), alpha)[0]
        close(slope, truth, "alpha has its gradient")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("frozen", [0, 1])
def test_what_is_frozen_has_no_gradient(frozen):
    """A frozen head, as under adapters, costs no memory for its gradient."""
    for scale in (2.0, 0.05):
        given, target = problem(scale=scale)
        truth = torch.autograd.grad(dense(*given, target, label_smoothing=0.1), given)
        for t in given[:1] if frozen == 0 else given[1:]:
            t.requires_grad_(False)
        asked = [k for k, t in enumerate(given) if t.requires_grad]
        loss = pm.linear_entmax_loss(*given[:2], target, given[2], label_smoothing=0.1)
        for k, slope in zip(asked, torch.autograd.grad(loss, [given[k] for k in asked]), strict=True):
            close(slope, truth[k], "the others keep theirs")


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_words_of_a_row_with_a_nan(alpha):
    """A NaN is not hidden, and stays in its row: what the dense mapping gives, and draws of all other rows."""
    hidden, weight = torch.randn(3, 4), torch.randn(20, 4)
    hidden[1, 0] = torch.nan
    found = pm.linear_entmax(hidden, weight, alpha=alpha)
    torch.testing.assert_close(found.dense(), pm.entmax(hidden @ weight.T, alpha=alpha), equal_nan=True)
    assert (found.support_size > 0).tolist() == [True, False, True], "no word of a NaN has weight"
    assert found.prob(torch.tensor([0, 1, 2])).isnan().tolist() == [False, True, False]
    drawn = found.sample((5,))
    assert (drawn[:, 1] == -1).all()
    assert (drawn[:, [0, 2]] >= 0).all()


def test_half_precision():
    for dtype in (torch.bfloat16, torch.float16):
        given, target = problem(dtype)
        exact = [t.detach().double().requires_grad_() for t in given]
        found, truth = pm.linear_entmax_loss(*given[:2], target, given[2]), dense(*exact, target)
        assert found.dtype == dtype
        close(found, truth, "the loss in half precision")
        exactly = pm.linear_entmax_loss(*given[:2], target, given[2], dtype=torch.float32)
        assert exactly.dtype == torch.float32
        equal(exactly.to(dtype), found, "the loss before it is rounded")
        for a, b in zip(torch.autograd.grad(found, given), torch.autograd.grad(truth, exact), strict=True):
            assert a.dtype == dtype
            close(a, b, "the gradient in half precision")


def test_autocast():
    given, target = problem(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = pm.linear_entmax_loss(*given[:2], target, given[2])
        expected = pm.linear_entmax_loss(*(t.bfloat16() for t in given[:2]), target, given[2])
    assert found.dtype == torch.float32
    close(found.bfloat16(), expected, "products are those of half precision")
    assert torch.autograd.grad(found, given[1])[0].dtype == torch.float32


@pytest.mark.usefixtures("small")
def test_rising_logits_have_lists():
    """Each block has larger logits than all before: the bound rises with them, and lists stay short."""
    hidden = torch.ones(3, 1, dtype=torch.float64)
    weight = torch.linspace(-40, 40, WORDS, dtype=torch.float64)[:, None]
    target = torch.tensor([WORDS - 1, 0, 3])
    found = Parts(*linear_loss(hidden, weight, None, target[:, None], None, 1.5, None, 0.0, 1.0))
    assert (found.count >= 1).all()
    assert (found.count < 5).all()
    close(pm.linear_entmax_loss(hidden, weight, target), dense(hidden, weight, None, target), "exact")


@pytest.mark.usefixtures("small")
def test_rows_that_do_not_count_are_no_part_of_the_sample():
    """Padding has equal scores of all words; the other rows have lists."""
    given, target = problem(scale=3.0, rows=40)
    hidden, weight = (t.detach() for t in given[:2])
    left_out = torch.arange(40) % 4 > 0
    hidden[left_out], target[2] = 0, 0
    for named, listed in ((torch.where(left_out, -1, target), True), (target, False)):
        found = Parts(*linear_loss(hidden, weight, None, named[:, None], None, 1.5, None, 0.0, 1.0))
        assert bool((found.count[~left_out] > 0).all()) == listed


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shift", [0.0, 1e4, -1e6])
def test_a_shift_of_all_logits_changes_nothing(shift):
    given, target = problem()
    plain = pm.linear_entmax_loss(*given[:2], target, given[2])
    close(pm.linear_entmax_loss(*given[:2], target, given[2] + shift), plain, "shifts change nothing")


@pytest.mark.usefixtures("small")
def test_forbidden_words_and_rows_that_are_no_numbers():
    given, target = problem()
    hidden, weight, bias = (t.detach() for t in given)
    bias[::3] = -torch.inf
    target = torch.where(target % 3 == 0, 1, target)
    for scale in (1.0, 0.01):
        inputs = [t.clone().requires_grad_() for t in (hidden, scale * weight, bias)]
        found, expected = pm.linear_entmax_loss(*inputs[:2], target, inputs[2]), dense(*inputs, target)
        close(found, expected, "a word of -inf has no part")
        close(torch.autograd.grad(found, inputs)[1], torch.autograd.grad(expected, inputs)[1], "nor a gradient")
    bad = hidden.clone()
    bad[1, 0] = torch.nan
    each = pm.linear_entmax_loss(bad, weight, target, given[2].detach(), reduction="none")
    assert each.isnan().tolist() == [k == 1 for k in range(len(bad))], "NaN stays in its row"
    alone = pm.linear_entmax_loss(hidden[:1], weight, target[:1], torch.full((WORDS,), -torch.inf).double())
    assert alone.isnan(), "no word is possible"
    none = torch.full((2,), -100)
    assert pm.linear_entmax_loss(hidden[:2], weight, none, reduction="sum") == 0
    empty = pm.linear_entmax_loss(hidden[:0], given[1], target[:0], reduction="none")
    assert empty.shape == (0,)
    assert (torch.autograd.grad(empty.sum(), given[1])[0] == 0).all()


class _Largest(TorchDispatchMode):
    """The most entries of a tensor that an operation gives."""

    def __init__(self):
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tensors = out if isinstance(out, tuple | list) else (out,)
        sizes = [t.numel() for t in tensors if isinstance(t, torch.Tensor)]
        self.found = max(self.found, *sizes) if sizes else self.found
        return out


@pytest.mark.parametrize(("alpha", "scale"), [(1.5, 3.0), (1.5, 0.001), (1.0, 1.0)])
def test_logits_are_never_stored(alpha, scale, monkeypatch):
    cpu = import_module("polymax.kernels.linear_loss.cpu")
    keeping = cpu.STEPS.keeping._replace(entries=2**17)
    monkeypatch.setattr(cpu, "STEPS", replace(cpu.STEPS, rows=128, entries=2**15, flat=2**15, keeping=keeping))
    rows, words = 256, 3000
    hidden, weight = torch.randn(rows, 4), scale * torch.randn(words, 4)
    inputs = hidden, weight, None, torch.randint(words, (rows, 1)), None, alpha, None, 0.0, 1.0
    with _Largest() as seen:
        found = Parts(*cpu.linear_loss(*inputs))
        grads = [torch.ones(rows), torch.ones(rows, 1), torch.ones(rows)]
        cpu.linear_loss_backward(*grads, None, *inputs, *found.saved, True, True)
        cpu.linear_loss_slopes(*grads, *inputs, True, True)
    assert bool((found.count == FLAT).all()) == (scale < 0.1 or alpha == 1)
    # the longest lists, or a block
    assert seen.found <= max(2**17, rows * 513)
    assert seen.found < rows * words / 4


def test_the_same_call_gives_the_same_bits():
    given, target = problem(torch.float32)
    first, second = (pm.linear_entmax_loss(*given[:2], target, given[2]) for _ in range(2))
    equal(first, second, "the loss is the same")
    for a, b in zip(torch.autograd.grad(first, given), torch.autograd.grad(second, given), strict=True):
        equal(a, b, "and its gradient")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_operators_are_sound_and_compile():
    given, target = problem(torch.float32)
    inputs = (*(t.detach() for t in given), torch.where(target < 0, -1, target)[:, None], None, 1.5, None, 0.0, 1.0)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(linear_loss.op, inputs, test_utils=checks)
    found = Parts(*linear_loss(*inputs))
    grads = [torch.ones(len(target)), torch.ones(len(target), 1), torch.ones(len(target))]
    slopes = (*grads, None, *inputs, *found.saved, True, True)
    torch.library.opcheck(linear_loss_backward.op, slopes, test_utils=checks)
    torch.library.opcheck(linear_loss_slopes.op, (*grads, *inputs, True, True), test_utils=checks)
    torch._dynamo.reset()

    def loss(hidden, weight, bias):
        return pm.linear_entmax_loss(hidden, weight, target, bias)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    close(compiled(*given), loss(*given), "compiled is the same")
    for a, b in zip(
        torch.autograd.grad(compiled(*given), given), torch.autograd.grad(loss(*given), given), strict=True
    ):
        close(a, b, "and its gradient")


def test_transforms():
    given, target = problem()
    weight, bias = given[1].detach(), given[2].detach()

    def loss(hidden, target):
        return pm.linear_entmax_loss(hidden, weight, target, bias)

    rows = torch.func.vmap(torch.func.grad(loss))(given[0].detach()[:2], target[:2])
    for k in range(2):
        close(rows[k], torch.autograd.grad(loss(given[0][k], target[k]), given[0])[0][k], "a row by itself")


def test_errors():
    (hidden, weight, bias), target = problem()
    for match, call in {
        r"hidden must be \(\*batch, d\) and weight": lambda: pm.linear_entmax_loss(hidden[:, :2], weight, target),
        r"bias must be \(90,\)": lambda: pm.linear_entmax_loss(hidden, weight, target, bias[:3]),
        r"target must be \(7,\)": lambda: pm.linear_entmax_loss(hidden, weight, target[:2]),
        r"target must hold words in \[0, 90\)": lambda: pm.linear_entmax_loss(hidden, weight, target.clamp(min=90)),
        r"alpha must be positive": lambda: pm.linear_entmax_loss(hidden, weight, target, alpha=0.0),
        r"alpha must be a number or": lambda: pm.linear_entmax_loss(hidden, weight, target, alpha=torch.ones(2) * 1.5),
        r"softcap must be positive": lambda: pm.linear_entmax_loss(hidden, weight, target, softcap=-1.0),
        r"softcap must be positive and finite; got 0": lambda: pm.linear_cross_entropy(
            hidden, weight, target, softcap=0.0
        ),
        r"softcap must be positive and finite; got inf": lambda: pm.linear_entmax(hidden, weight, softcap=torch.inf),
        r"label_smoothing must be in": lambda: pm.linear_entmax_loss(hidden, weight, target, label_smoothing=2.0),
        r"class_weights must be \(90,\)": lambda: pm.linear_entmax_loss(hidden, weight, target, class_weights=bias[:2]),
        r"reduction must be": lambda: pm.linear_entmax_loss(hidden, weight, target, reduction="max"),
        r"k must be a positive integer": lambda: pm.linear_entmax(hidden, weight).topk(0),
        r"epsilon must be at least 0": lambda: pm.epsilon_perplexity(pm.linear_entmax(hidden, weight), target, -1.0),
    }.items():
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(TypeError, match=r"hidden and weight must have one dtype"):
        pm.linear_entmax_loss(hidden.float(), weight, target)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.0])
def test_the_distribution_is_entmax_of_the_logits(alpha):
    for scale in (3.0, 0.02):
        given, target = problem(scale=scale, bias=False)
        found = pm.linear_entmax(*given[:2], alpha=alpha)
        truth = pm.entmax(linear(*given[:2]), alpha)
        close(found.dense(), truth, "the distribution is entmax of the logits")
        assert torch.equal(found.support_size, (truth > 0).sum(-1))
        assert (found.probs[..., 1:] <= found.probs[..., :-1]).all(), "the likeliest first"
        assert ((found.ids < 0) == (found.probs == 0)).all()
        target = target.clamp(min=0)
        close(found.prob(target), truth.gather(1, target[:, None])[:, 0], "probabilities of words")
        close(found.entropy(), torch.special.entr(truth).sum(-1), "entropies")
        best = truth.topk(min(3, WORDS), -1)
        close(found.topk(3)[1], best.values, "the likeliest words")
        assert found.topk(WORDS + 2)[0].shape == (7, WORDS + 2)
        for measure in (pm.epsilon_perplexity, pm.sparsemax_score, pm.jensen_shannon):
            close(measure(found, target), measure(truth, target), "measures of lists and of all words")


def test_samples_follow_the_distribution():
    given, _ = problem(rows=3, bias=False)
    found = pm.linear_entmax(*given[:2])
    drawn = found.sample((4000,), torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 3)
    shares = torch.nn.functional.one_hot(drawn, WORDS).double().mean(0)
    assert (shares[found.dense() == 0] == 0).all(), "words without probability are never drawn"
    torch.testing.assert_close(shares, found.dense(), atol=0.05, rtol=0)


def test_measures_by_their_definitions():
    p, y = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]]).double(), torch.tensor([0, 0])
    smoothed = (p + 0.01) / 1.03
    close(pm.epsilon_perplexity(p, y, 0.01), torch.exp(-smoothed[:, 0].log().mean()), "epsilon perplexity")
    one = torch.nn.functional.one_hot(y, 3).double()
    close(pm.sparsemax_score(p, y), 1 - (one - p).square().sum(-1).mean() / 2, "sparsemax score")
    m = (one + p) / 2
    safe = torch.where(m > 0, m, 1)
    divergence = (torch.xlogy(one, one / safe) + torch.xlogy(p, p / safe)).sum(-1) / 2
    close(pm.jensen_shannon(p, y), divergence.mean(), "Jensen-Shannon divergence")


def test_the_module():
    given, target = problem(torch.float32)
    head = pm.nn.LinearEntmaxLoss(SIZE, WORDS, alpha=1.5, label_smoothing=0.1)
    layer = torch.nn.Linear(SIZE, WORDS)
    head.load_state_dict(layer.state_dict())
    expected = pm.linear_entmax_loss(given[0], layer.weight, target, layer.bias, label_smoothing=0.1)
    close(head(given[0], target), expected, "the module is the function")
    close(head.distribution(given[0]).dense(), pm.entmax(layer(given[0])), "and its distribution")
    head = pm.nn.LinearEntmaxLoss(SIZE, WORDS, alpha=1, z_loss=0.2)
    head.load_state_dict(layer.state_dict())
    expected = pm.linear_entmax_loss(given[0], layer.weight, target, layer.bias, alpha=1, z_loss=0.2)
    close(head(given[0], target), expected, "z_loss is handed on")
    embedding = torch.nn.Embedding(WORDS, SIZE)
    head.weight = embedding.weight
    head(given[0], target).backward()
    assert embedding.weight.grad is not None
