"""The kernels of short rows: every length and all options together, rows that are hard, launches, and routes."""

from importlib.util import find_spec

import pytest
import torch
from tolerances import ABSOLUTE, close, equal

import polymax as pm
from polymax import nn
from polymax.kernels.sparse_attention import reference, shared_memory, short_rows, sparse_attention
from polymax.kernels.sparse_attention.options import Options
from polymax.nn.attention_call import AttentionCall, Route

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.device,
]


def drawn(B, H, G, L, S, D=16, V=16, spread=1.0, dtype=torch.float32):
    """Queries, keys, values and the gradient of the context."""
    generator = torch.Generator().manual_seed(L + S)
    sizes = ((B, H, L, D), (B, G, S, D), (B, G, S, V), (B, H, L, V))
    q, k, v, grad = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    return q * spread, k, v, grad


def told(q, k, alpha=1.5, **more):
    """Options of a call by short rows; a tensor among them goes to the device."""
    longest = {"longest_q": q.shape[2], "longest_k": k.shape[2]}
    plain = {"alphas": None, "mask": None, "sinks": None, "starts_q": None, "starts_k": None, **longest}
    plain |= {"scale": q.shape[-1] ** -0.5, "softcap": 0.0, "left": -1, "right": -1, "offset": 0}
    return Options(alpha=alpha, **{**plain, **more}, short=True)


def on(device, values):
    return [t.to(device) if isinstance(t, torch.Tensor) else t for t in values]


def exact(values):
    return [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in values]


def run(module, given, options, bias=False):
    """The context, how far tau is below the top, the support, and the gradients."""
    *tensors, grad = given
    out, mean, tau, support, plan, lists = module.sparse_attention(*tensors, *options)
    slopes = module.sparse_attention_backward(grad, *tensors, mean, tau, plan, lists, bias, *options)
    return [t.cpu() for t in (out, tau[1], support, *slopes)]


def by_kernels(given, options, bias=False):
    from polymax.kernels.sparse_attention import cuda

    return run(cuda, on(DEVICE, given), on(DEVICE, options), bias)


def same(found, true, law, gap=4):
    """Contexts, thresholds and gradients agree, relative to the largest number of each."""
    for a, b in zip((*found[:2], *found[3:]), (*true[:2], *true[3:]), strict=True):
        size = gap * max(1.0, b[b.isfinite()].abs().max().item()) if b.isfinite().any() else 1.0
        close(a / size, b / size, law)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 150, 330, 513])
def test_every_length_is_the_reference(length, alpha):
    given = drawn(1, 2, 1, length, length)
    options = told(*given[:2], alpha, right=0)
    found = by_kernels(given, options)
    true = run(reference, exact(given), exact(options))
    equal(found[2], true[2], "the support is the reference's")
    same(found, true, f"short rows of {length} keys are the reference's")
    if length in (65, 150):
        for a, b in zip(found, by_kernels(given, options), strict=True):
            equal(a, b, "the same call gives the same bits")


def padding(B, H, L, S):
    return (torch.arange(S) < torch.tensor([S, S - 70])[:B, None])[:, None, None]


def all_padding(B, H, L, S):
    return torch.tensor([True, False]).expand(S, B).T[:, None, None] & (torch.arange(S) != S - 1)


def in_between(B, H, L, S):
    """Padding on both sides of one sequence, and holes in the other."""
    at = torch.arange(S)
    return torch.stack([(at >= 20) & (at < 141), at % 3 > 0])[:, None, None]


def bias_of_heads(B, H, L, S):
    return torch.randn(B, H, L, S, generator=torch.Generator().manual_seed(3))


def rows_of_mask(B, H, L, S):
    mask = torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(2)) > 0.3
    mask[:, :, 5] = False
    return mask


def added(B, H, L, S):
    return torch.randn(H, 1, S, generator=torch.Generator().manual_seed(2))


TOGETHER = {
    "padding": {"mask": padding},
    "all padding": {"mask": all_padding},
    "padding on both sides": {"mask": in_between},
    "padding on both sides, window, offset": {"mask": in_between, "left": 50, "right": 40, "offset": 30},
    "padding, window, offset": {"mask": padding, "left": 70, "right": 10, "offset": 20},
    "mask, window, offset": {"mask": rows_of_mask, "left": 70, "right": 10, "offset": 20, "alpha": 2.0},
    "bias of heads": {"mask": bias_of_heads},
    "bias, window, offset, softcap": {"mask": added, "left": 70, "right": 10, "offset": 20, "softcap": 3.0},
    "mask, sinks, alphas, dropout": {
        "mask": rows_of_mask,
        "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0]),
        "alphas": torch.tensor([1.25, 1.5, 1.75, 2.0]),
        "dropout": 0.3,
        "seed": torch.tensor([123456789]),
        "right": 30,
    },
    "offset before the keys": {"offset": -100, "right": 0},
    "offset behind the keys": {"offset": 150, "right": 0, "left": 90},
}


@pytest.mark.parametrize("name", TOGETHER)
def test_options_together_are_the_reference(name):
    more = dict(TOGETHER[name])
    shape = (2, 4, 2, 80, 150)
    given = drawn(*shape, D=24, V=40)
    if "mask" in more:
        more["mask"] = more["mask"](2, 4, 80, 150)
    if "alphas" in more:
        more["alpha"] = 0.0
    options = told(*given[:2], **more)
    bias = more.get("mask") is not None and more["mask"].dtype != torch.bool
    found = by_kernels(given, options, bias)
    true = run(reference, exact(given), exact(options), bias)
    equal(found[2], true[2], "the support is the reference's")
    same(found, true, f"{name} is the reference's")
    assert all(t.isfinite().all() for t in (found[0], *found[3:]))


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.2])
@pytest.mark.parametrize("spread", [0.0, 0.03, 0.3, 3.0, 100.0])
def test_flat_and_peaked_rows_are_the_reference(spread, alpha):
    given = drawn(1, 1, 1, 40, 330, spread=spread)
    options = told(*given[:2], alpha)
    found = by_kernels(given, options)
    true = run(reference, exact(given), exact(options))
    equal(found[2], true[2], "the support is the reference's")
    # scores of hundreds have few digits behind the point
    same(found, true, f"rows with a deviation of {spread} are the reference's", 20 if spread > 10 else 4)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 10.0])
def test_half_precision_errs_as_its_rounding(spread, alpha):
    """A rough threshold is repeated until its error is below the rounding of half precision."""
    given = drawn(1, 1, 1, 70, 330, spread=spread, dtype=torch.bfloat16)
    # one large key among many small ones: small weights are the most of s
    given[1][:, :, 100] = 12 * given[0][:, :, 3].sign()
    options = told(*given[:2], alpha)
    found = by_kernels(given, options)
    true = run(reference, exact(given), exact(options))
    for a, b in zip((found[0], *found[3:6]), (true[0], *true[3:6]), strict=True):
        error = (a.double() - b).norm() / b.norm().clamp(min=1e-9)
        assert error < ABSOLUTE[torch.bfloat16], error


def test_hidden_and_broken_rows_stay_alone():
    """A row without keys is 0, and so are its gradients; a row with NaN is NaN, and no other row."""
    given = drawn(1, 2, 2, 70, 70)
    mask = torch.ones(70, 70, dtype=torch.bool).tril()
    mask[7] = False
    options = told(*given[:2], mask=mask)
    found = by_kernels(given, options)
    assert all(t.isfinite().all() for t in found)
    assert (found[0][:, :, 7] == 0).all()
    assert (found[3][:, :, 7] == 0).all()
    assert (found[2][:, :, 7] == 0).all()
    same(found, run(reference, exact(given), exact(options)), "rows without keys are the reference's")

    given[0][0, 0, 3] = torch.nan
    out = by_kernels(given, options)[0]
    assert out[0, 0, 3].isnan().all()
    assert out.isnan().sum() == 16


@pytest.mark.parametrize("size", [1e4, 1e10, 1e30])
def test_a_huge_key_takes_all_weight(size):
    given = drawn(1, 1, 1, 66, 66)
    given[1][:, :, 20] *= size
    options = told(*given[:2], right=0)
    found = by_kernels(given, options)
    true = run(reference, exact(given), exact(options))
    equal(found[2], true[2], "the support is the reference's")
    for a, b in zip((found[0], *found[4:6]), (true[0], *true[4:6]), strict=True):
        close(a, b, "a huge key does not disturb others")


def test_a_call_is_three_launches(monkeypatch):
    from polymax.backend import triton_launch
    from polymax.kernels.sparse_attention.cuda_short_plain import ShortPlain

    launched = []
    on_grid = triton_launch.Bound.on

    def noted(self, grid, tensors, numbers):
        launched.append(self.launch.kernel.__name__)
        on_grid(self, grid, tensors, numbers)

    monkeypatch.setattr(triton_launch.Bound, "on", noted)
    given = drawn(1, 2, 1, 70, 70)
    options = told(*given[:2], right=0)
    found = by_kernels(given, options)
    three = ["short_contexts", "short_query_gradients", "short_key_gradients"]
    assert launched == three, "one forward, two backward"

    q, k, v, grad = on(DEVICE, given)
    known = ShortPlain(q, k, v, q[0].shape, options)
    for _ in range(2 if GPU else 1):
        # the second call knows compiled kernels
        launched.clear()
        out, notes = known.forward(q[0], k[0], v[0])
        slopes = known.backward(grad[0], q[0], k[0], v[0], notes)
        assert launched == three
    for a, b in zip((out, *slopes), (found[0], *found[3:6]), strict=True):
        equal(a.cpu(), b[0], "a plain call is the operator's")


def test_nothing_is_compiled_for_a_length():
    """Lengths, heads and strides of masks are numbers of which Triton takes no notice."""
    from polymax.kernels.sparse_attention.cuda_short_contexts import short_contexts
    from polymax.kernels.sparse_attention.cuda_short_rows import NUMBERS
    from polymax.kernels.sparse_attention.cuda_short_slopes import short_key_gradients, short_query_gradients

    for entry in (short_contexts, short_query_gradients, short_key_gradients):
        names = entry.kernel.arg_names
        numbers = set(names[names.index("heads") : names.index("a1")]) | {"left", "right", "offset", "drop"}
        assert numbers <= set(NUMBERS)
        assert {"mask_b", "mask_h", "mask_l"} <= set(NUMBERS)


def test_views_that_32_bits_cannot_count_are_copied():
    wide = torch.empty_strided((1, 1, 100, 64), (1 << 40, 1 << 33, 1 << 25, 1), device="meta")
    assert not short_rows.near(wide)
    assert short_rows.near(wide[:, :, :60])
    assert short_rows.near(wide.contiguous())
    assert not short_rows.near(wide[:, :, :60].mT)


def test_the_route_depends_on_sizes_and_options_alone(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(shared_memory, "_bytes_of", lambda device: shared_memory.MOST)
    with FakeTensorMode():

        def route(keys, channels=64, dtype=torch.bfloat16, **more):
            q, k = (torch.empty(1, 2, n, channels, device="cuda", dtype=dtype) for n in (300, keys))
            return AttentionCall(q, k, k, **{"mapping": pm.entmax, **more})

        for alpha, most in short_rows.MOST_KEYS.items():
            mapping = pm.Tsallis(alpha or 1.3)
            short, long = route(most, mapping=mapping), route(most + 1, mapping=mapping)
            assert short.decide().route is Route.SHORT
            assert long.decide().route is Route.SPARSE
            assert short.options(short.query, short.key).short
            assert not long.options(long.query, long.key).short
        mask = torch.ones(300, 200, dtype=torch.bool, device="cuda")
        assert route(200, attn_mask=mask, dropout_p=0.1, softcap=2.0, window=(3, 3)).decide().route is Route.SHORT
        assert route(200, channels=129).decide().route is Route.SPARSE
        single = short_rows.MOST_SINGLE_KEYS
        assert route(single, dtype=torch.float32).decide().route is Route.SHORT
        assert route(single + 1, dtype=torch.float32).decide().route is Route.SPARSE
        assert route(200, channels=65, dtype=torch.float32).decide().route is Route.SPARSE
        call = route(200, is_causal=True)
        assert "short rows" in nn.attention_path(call.query, call.key, call.value, mapping=pm.entmax)
        # what the operator says that it saves
        q = torch.empty(1, 2, 300, 16, device="cuda")
        *_, plan, lists = sparse_attention(q, q, q, *told(q, q))
        assert plan.numel() == lists.numel() == 0
