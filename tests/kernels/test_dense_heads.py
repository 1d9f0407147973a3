"""Dense heads of long rows: which heads they are, and that their contexts and gradients are the reference's."""

from importlib.util import find_spec

import pytest
import torch
from tolerances import ABSOLUTE, equal

from polymax.kernels.sparse_attention import reference, tiles
from polymax.kernels.sparse_attention.options import Options

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.device,
]


@pytest.fixture
def small(monkeypatch):
    """Heads may be dense from 64 keys on."""
    from polymax.kernels.sparse_attention import cuda_call

    monkeypatch.setattr(cuda_call, "DENSE_KEYS", 64)
    return monkeypatch


@pytest.fixture
def all_dense(small):
    """All heads are dense, whatever their scores."""
    from polymax.kernels.sparse_attention import cuda_call

    small.setattr(cuda_call, "DENSE_WEIGHTS", -1.0)
    small.setattr(cuda_call, "DENSE_SEEN", -1.0)


def drawn(B, H, G, L, S, D=16, V=16, spread=0.2, dtype=torch.bfloat16):
    """Queries, keys, values and the gradient of the context."""
    generator = torch.Generator().manual_seed(L + S)
    sizes = ((B, H, L, D), (B, G, S, D), (B, G, S, V), (B, H, L, V))
    q, k, v, grad = (torch.randn(size, generator=generator) for size in sizes)
    return [t.to(dtype) for t in (q * spread, k, v, grad)]


def told(q, k, alpha=1.5, **more):
    longest = {"longest_q": q.shape[2], "longest_k": k.shape[2]}
    plain = {"alphas": None, "mask": None, "sinks": None, "starts_q": None, "starts_k": None, **longest}
    plain |= {"scale": q.shape[-1] ** -0.5, "softcap": 0.0, "left": -1, "right": -1, "offset": 0}
    return Options(alpha=alpha, **{**plain, **more})


def on(device, values):
    made = [t.to(device) if isinstance(t, torch.Tensor) else t for t in values]
    return Options(*made) if isinstance(values, Options) else made


def exact(values):
    made = [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in values]
    return Options(*made) if isinstance(values, Options) else made


def run(module, given, options, bias=False):
    """The context, the support, and the gradients; and the fourth bounds of the plan (heads, blocks)."""
    *tensors, grad = given
    out, mean, tau, support, plan, lists = module.sparse_attention(*tensors, *options)
    slopes = module.sparse_attention_backward(grad, *tensors, mean, tau, plan, lists, bias, *options)
    sizes = tiles.layout(options.longest_q, options.longest_k)
    marks = torch.empty(0)
    if plan.numel() > 0:
        start = sizes.blocks * sizes.tiles
        marks = plan.view(-1, sizes.size)[:, start : start + 4 * sizes.blocks].unflatten(1, (-1, 4))[..., 3]
    return [t.cpu() for t in (out, support, *slopes)], marks.cpu()


def by_kernels(given, options, bias=False):
    from polymax.kernels.sparse_attention import cuda

    return run(cuda, on(DEVICE, given), on(DEVICE, options), bias)


def compare(found, true, gap=1.0):
    """Contexts and gradients err as half precision does."""
    for a, b in zip((found[0], *found[2:]), (true[0], *true[2:]), strict=True):
        size = b.norm().clamp(min=1e-9)
        error = (a.double() - b).norm() / size
        assert error < gap * ABSOLUTE[torch.bfloat16] or (a.double() - b).abs().max() < 1e-4, error


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("length", [64, 65, 127, 150, 330])
def test_every_length_is_the_reference(all_dense, length, alpha):
    given = drawn(1, 2, 1, length, length)
    options = told(*given[:2], alpha, right=0)
    found, marks = by_kernels(given, options)
    assert (marks == tiles.DENSE).all()
    compare(found, run(reference, exact(given), exact(options))[0])
    if length in (65, 150):
        for a, b in zip(found, by_kernels(given, options)[0], strict=True):
            equal(a, b, "the same call gives the same bits")


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("spread", [0.0, 0.03, 0.3, 1.0, 3.0, 30.0])
def test_flat_and_peaked_rows_are_the_reference(all_dense, spread, alpha):
    """A guess that is far off costs passes, and no digits."""
    given = drawn(1, 1, 1, 70, 330, spread=spread)
    options = told(*given[:2], alpha)
    found, marks = by_kernels(given, options)
    assert (marks == tiles.DENSE).all()
    compare(found, run(reference, exact(given), exact(options))[0])


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_one_key_far_from_the_others(all_dense, alpha):
    """Of a sampled row's keys the largest is hidden from the sample, and scores have a large mean."""
    given = drawn(1, 1, 1, 70, 330)
    given[0][..., 0], given[1][..., 0] = 1.0, 2.0
    for place in (5, 100, 327):
        given[1][:, :, place] = 12 * given[0][:, :, 3].sign()
    options = told(*given[:2], alpha)
    # the gradient of queries is a difference of large sums
    compare(by_kernels(given, options)[0], run(reference, exact(given), exact(options))[0], gap=2.5)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1])
def test_thresholds_lead_to_one_sum_of_values(small, spread, alpha):
    """Thresholds of flat rows leave an error of the sum of weights that the pass over values corrects or tolerates."""
    from polymax.kernels.sparse_attention import cuda_call

    given = drawn(1, 1, 1, 64, 2048, spread=spread)
    options = told(*given[:2], alpha)
    q, k, v = on(DEVICE, given[:3])
    call = cuda_call.Call(q, k, v, None, options, True)
    plan = torch.full((call.plan.size,), tiles.DENSE, dtype=torch.int32, device=DEVICE)
    top, depth = torch.full((2, 64), torch.nan, device=DEVICE)
    support = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    call.dense_thresholds(q, k, *[q] * 5, plan, top, depth, support)
    u = (alpha - 1) * options.scale * (q.double() @ k.double().mT)[0, 0]
    w = (u - ((alpha - 1) * options.scale * top - depth)[:, None]).clamp(min=0)
    # by how much s changes in the last step: half as much as p at alpha 1.5, times the size of the support
    off = ((w ** (1 / (alpha - 1))).sum(1) - 1).abs()
    if alpha == 1.5:
        off *= (w > 0).sum(1) / (2 * w.sum(1) ** 2)
    assert off.max() < 1 / 256


def padding(B, H, L, S):
    return (torch.arange(S) < torch.tensor([S, S - 70])[:B, None])[:, None, None]


def bias_of_heads(B, H, L, S):
    return torch.randn(B, H, L, S, generator=torch.Generator().manual_seed(3))


def rows_of_mask(B, H, L, S):
    mask = torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(2)) > 0.3
    mask[:, :, 5] = False
    return mask


def added(B, H, L, S):
    return torch.randn(H, L, S, generator=torch.Generator().manual_seed(2)) * 0.2


TOGETHER = {
    "padding, window, offset": {"mask": padding, "left": 70, "right": 10, "offset": 20},
    "mask, window, offset": {"mask": rows_of_mask, "left": 70, "right": 10, "offset": 20, "alpha": 2.0},
    "bias of heads": {"mask": bias_of_heads},
    "bias, window, offset, softcap": {"mask": added, "left": 70, "right": 10, "offset": 20, "softcap": 3.0},
    "mask, sinks, dropout": {
        "mask": rows_of_mask,
        "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0]),
        "dropout": 0.3,
        "seed": torch.tensor([123456789]),
        "right": 30,
    },
    "offset before the keys": {"offset": -40, "right": 0},
}


@pytest.mark.parametrize("name", TOGETHER)
def test_options_together_are_the_reference(all_dense, name):
    more = dict(TOGETHER[name])
    given = drawn(2, 4, 2, 80, 150, D=24, V=40)
    if "mask" in more:
        more["mask"] = more["mask"](2, 4, 80, 150)
    options = told(*given[:2], **more)
    bias = more.get("mask") is not None and more["mask"].dtype != torch.bool
    found, marks = by_kernels(given, options, bias)
    assert (marks == tiles.DENSE).all()
    true, _ = run(reference, exact(given), exact(options), bias)
    compare(found, true)
    assert all(t.isfinite().all() for t in (found[0], *found[2:]))


def test_packed_sequences_of_which_one_is_short(small):
    """Heads are dense by sequence; a short sequence keeps its lists."""
    starts = torch.tensor([0, 130, 160, 300])
    given = drawn(1, 2, 1, 310, 310, spread=0.1)
    options = told(*given[:2], starts_q=starts, starts_k=starts, right=0)
    options = options._replace(longest_q=140, longest_k=140)
    found, marks = by_kernels(given, options)
    assert marks.view(3, 2, -1)[:, :, 0].tolist() == [[2, 2], [0, 0], [2, 2]]
    compare(found, run(reference, exact(given), exact(options))[0])
    assert (found[0][:, :, 300:] == 0).all()


@pytest.mark.parametrize("far", [False, True])
def test_dense_heads_beside_others(small, far):
    """A flat head, and a peaked head with other keys, in one call; with tiles that balls rule out, and without."""
    from polymax.kernels.sparse_attention import cuda_call

    if far:
        small.setattr(cuda_call, "FAR_KEYS", 128)
        small.setattr(cuda_call, "FEW_SEEN", 1)
    given = drawn(1, 4, 2, 300, 300, spread=0.1)
    given[0][:, 2:] *= 80
    options = told(*given[:2], right=0)
    found, marks = by_kernels(given, options)
    assert (marks[:2] == tiles.DENSE).all()
    assert (marks[2:] != tiles.DENSE).all()
    compare(found, run(reference, exact(given), exact(options))[0])


def test_hidden_and_broken_rows_stay_alone(all_dense):
    """A row without keys is 0, and so are its gradients; a row with NaN is NaN, and no other row."""
    given = drawn(1, 2, 2, 70, 70)
    mask = torch.ones(70, 70, dtype=torch.bool).tril()
    mask[7] = False
    options = told(*given[:2], mask=mask)
    found, marks = by_kernels(given, options)
    assert (marks == tiles.DENSE).all()
    assert all(t.isfinite().all() for t in found)
    for at in (0, 1, 2):
        assert (found[at][:, :, 7] == 0).all()
    compare(found, run(reference, exact(given), exact(options))[0])

    given[0][0, 0, 3] = torch.nan
    out = by_kernels(given, options)[0][0]
    assert out[0, 0, 3].isnan().all()
    assert out.isnan().sum() == 16


@pytest.mark.parametrize("size", [1e4, 1e10, 1e30])
def test_a_huge_key_takes_all_weight(all_dense, size):
    given = drawn(1, 1, 1, 66, 66, spread=1.0)
    given[1][:, :, 20] *= size
    options = told(*given[:2], right=0)
    found, _ = by_kernels(given, options)
    true, _ = run(reference, exact(given), exact(options))
    compare((found[0], found[1], *found[3:5]), (true[0], true[1], *true[3:5]))


def test_which_heads_are_dense(small):
    """Flat heads are dense; heads with short supports, clusters and windows are not."""
    from polymax.kernels.sparse_attention import cuda

    def marks(given, alpha=1.5, **more):
        options = told(*given[:2], alpha, **{"right": 0, **more})
        *_, plan, _ = cuda.sparse_attention(*on(DEVICE, given[:3]), *on(DEVICE, options))
        sizes = tiles.layout(options.longest_q, options.longest_k)
        return plan.view(-1, sizes.size)[:, sizes.blocks * sizes.tiles + 3].tolist()

    flat, usual = drawn(1, 2, 1, 1024, 1024, spread=0.05), drawn(1, 2, 1, 1024, 1024, spread=2.0)
    assert marks(flat) == marks(flat, 2.0) == [2, 2]
    assert 2 not in marks(usual, 2.0)
    assert 2 not in marks(usual)
    assert 2 not in marks(flat, left=100)
    clustered = drawn(1, 2, 1, 1024, 1024, spread=1.0)
    centre = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).bfloat16() * 3
    clustered[0], clustered[1] = (t + centre.repeat(2, 1).repeat_interleave(64, 0) for t in clustered[:2])
    assert 2 not in marks(clustered)
    # float32 and other alphas have none
    single = [t.float() for t in flat]
    assert 2 not in marks(single)
    assert 2 not in marks(flat, 1.4)


def test_a_plain_call_is_the_operators(all_dense):
    from polymax.kernels.sparse_attention.cuda_plain import Plain

    given = drawn(1, 2, 1, 200, 200)
    options = told(*given[:2], right=0)
    found, _ = by_kernels(given, options)
    q, k, v, grad = on(DEVICE, given)
    known = Plain(q, k, v, q[0].shape, options)
    for _ in range(2 if GPU else 1):
        # the second call knows compiled kernels
        out, notes = known.forward(q[0], k[0], v[0])
        slopes = known.backward(grad[0], q[0], k[0], v[0], notes)
    for a, b in zip((out, *slopes), (found[0], *found[2:5]), strict=True):
        equal(a.cpu(), b[0], "a plain call is the operator's")


def test_nothing_is_compiled_for_a_length():
    from polymax.kernels.sparse_attention.cuda_dense import dense_heads
    from polymax.kernels.sparse_attention.cuda_dense_rows import dense_contexts, dense_thresholds
    from polymax.kernels.sparse_attention.cuda_short_rows import NUMBERS
    from polymax.kernels.sparse_attention.cuda_short_slopes import short_key_gradients, short_query_gradients

    for entry in (dense_heads, dense_thresholds, dense_contexts, short_key_gradients, short_query_gradients):
        names = entry.kernel.arg_names
        numbers = set(names[names.index("heads") : names.index("a1")]) | {"left", "right", "offset"}
        assert numbers <= set(NUMBERS)
