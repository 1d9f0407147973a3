"""kernels/sparse_attention on the CPU, which computes in blocks, against its specification, which holds all scores."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tolerances import ABSOLUTE, equal

from polymax.kernels.sparse_attention import cpu, reference, sparse_attention, sparse_attention_backward
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT

FULL, NO_LIMIT = torch.float64, -1


def options(q, k, **changed):
    """The arguments after q, k and v: all of them, with some that are not the usual ones."""
    usual = {
        "alpha": 1.5,
        "alphas": None,
        "mask": None,
        "sinks": None,
        "starts_q": None,
        "starts_k": None,
        "longest_q": q.shape[2],
        "longest_k": k.shape[2],
        "scale": 0.5,
        "softcap": 0.0,
        "left": NO_LIMIT,
        "right": NO_LIMIT,
        "offset": 0,
        "dropout": 0.0,
        "seed": None,
    }
    return tuple({**usual, **changed}.values())


def inputs(queries=65, keys=65, batch=2, heads=4, groups=2, depth=16, values=24, spread=1.0):
    q, g = torch.randn(batch, heads, queries, depth) * spread, torch.randn(batch, heads, queries, values)
    return g, q, torch.randn(batch, groups, keys, depth), torch.randn(batch, groups, keys, values)


def passes(module, g, q, k, v, given, mask_gradient=False):
    """All that both passes give, but for notes, by name."""
    out, mean, tau, support, *notes = module.sparse_attention(q, k, v, *given)
    grads = module.sparse_attention_backward(g, q, k, v, mean, tau, *notes, mask_gradient, *given)
    names = ("dq", "dk", "dv", "dalpha", "dsink", "dmask")
    return {
        "out": out,
        "mean": mean,
        "top": tau[0],
        "depth": tau[1],
        "support": support,
        **dict(zip(names, grads, strict=True)),
    }


def exact(x):
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def agree(tensors, given, law, mask_gradient=False):
    """The kernel against the specification in float64: within tolerances, or twice the specification's own error."""
    found = passes(cpu, *tensors, given, mask_gradient)
    truth = passes(reference, *map(exact, tensors), tuple(map(exact, given)), mask_gradient)
    dtype, rough = tensors[1].dtype, None
    for name, actual in found.items():
        expected = truth[name].double()
        assert actual.shape == expected.shape
        assert actual.is_contiguous()
        assert torch.equal(actual.isnan(), expected.isnan()), f"{law}: {name}"
        # a weight of the size of rounding may be there or not
        slack = 0.02 * expected + 1.5 if name == "support" else ABSOLUTE[dtype] * (1 + expected.abs())
        error = (actual.double() - expected).abs().where(actual != expected, 0)
        if (error > slack).any() and dtype != FULL:
            rough = rough or passes(reference, *tensors, given, mask_gradient)
            slack = 2 * (rough[name].double() - expected).abs().where(rough[name] != expected, 0).max()
        assert not (error > slack).any(), f"{law}: {name} is off by {error.max()}"


MASKS = {
    "none": lambda L, S: {},
    "causal": lambda L, S: {"right": 0},
    "cache": lambda L, S: {"right": 0, "offset": S - L},
    "window": lambda L, S: {"left": 7, "right": 2},
    "future": lambda L, S: {"left": 0, "offset": 3},
    "nothing": lambda L, S: {"right": 0, "offset": -2 * L - 1},
    "keep": lambda L, S: {"mask": torch.rand(2, 1, L, S) > 0.4},
    "padding": lambda L, S: {"mask": (torch.arange(S) < S // 2).reshape(1, 1, 1, S), "right": 0},
    "dead": lambda L, S: {"mask": (torch.arange(L) % 2 == 0).reshape(1, 1, L, 1)},
    "bias": lambda L, S: {"mask": torch.randn(4, L, S), "softcap": 2.0},
    "forbidding": lambda L, S: {"mask": torch.where(torch.rand(1, 4, L, S) < 0.5, -torch.inf, 0.0)},
    "capped": lambda L, S: {"softcap": 0.7, "alpha": 2.0},
    "sinks": lambda L, S: {"sinks": torch.tensor([-9.0, 0.0, 1.0, 9.0]), "left": 3, "right": 3},
    "alphas": lambda L, S: {"alphas": torch.tensor([1.1, 1.5, 1.77, 2.0]), "sinks": torch.zeros(4)},
    "dropout": lambda L, S: {"dropout": 0.3, "seed": torch.tensor([12345678901]), "alphas": torch.full((4,), 1.6)},
    "packed": lambda L, S: {
        "starts_q": torch.tensor([0, L // 3, L // 3, L // 2, max(L - 1, 0)], dtype=torch.int32),
        "starts_k": torch.tensor([0, S // 4, S // 2, S // 2, S], dtype=torch.int32),
        "right": 4,
    },
}
# every length with the usual masks; every mask with one length that is no whole number of blocks
CASES = (
    [("causal", 200, 200)]
    + [(name, 65, 140) for name in MASKS]
    + [
        (name, *lengths)
        for name in ("causal", "sinks", "alphas")
        for lengths in ((0, 5), (5, 0), (1, 1), (1, 63), (63, 1))
    ]
)


@pytest.mark.parametrize(("name", "queries", "keys"), CASES)
def test_masks(name, queries, keys):
    g, q, k, v = inputs(queries, keys)
    given = options(q, k, **MASKS[name](queries, keys))
    for dtype in (torch.float64, torch.float32):
        cast = [t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in given]
        agree([t.to(dtype) for t in (g, q, k, v)], tuple(cast), f"{name} in {dtype}")


@pytest.mark.parametrize("dtype", list(ABSOLUTE))
@pytest.mark.parametrize("alpha", [1.03, 1.25, 1.5, 1.9, 2.0])
def test_precision(dtype, alpha):
    g, q, k, v = (t.to(dtype) for t in inputs(20, 300, batch=1))
    agree((g, q, k, v), options(q, k, alpha=alpha), f"alpha {alpha} in {dtype}")


@pytest.mark.parametrize(
    "shape",
    [
        (65, 40),
        (1, 40),
        (65, 1),
        (4, 65, 40),
        (4, 1, 40),
        (2, 4, 65, 40),
        (2, 1, 65, 40),
        (2, 1, 1, 40),
        (1,),
        (2, 1, 1, 1),
    ],
)
def test_gradient_of_a_mask(shape):
    # heads and batches that share entries of a mask add up their gradients
    tensors = [t.double() for t in inputs(65, 40)]
    given = options(*tensors[1:3], mask=torch.randn(shape, dtype=FULL))
    agree(tensors, given, f"mask {shape}", mask_gradient=True)


HOSTILE = {
    "all equal": lambda q, k: (q * 0, k),
    "nearly equal": lambda q, k: (q * 1e-3, k),
    "one huge": lambda q, k: (q, k.index_fill(2, torch.tensor([17]), 1e4)),
    "a step": lambda q, k: (q.abs(), torch.where(torch.arange(k.shape[2])[:, None] < 30, 0.1, -1e3 * k.abs())),
    "half of the keys": lambda q, k: (q.abs() * 1e-3, k.abs() * (torch.arange(k.shape[2]) % 2)[:, None] * 1e3),
}


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_scores(name, alpha):
    g, q, k, v = (t.double() for t in inputs(20, 300, batch=1, heads=2))
    q, k = (t.contiguous() for t in HOSTILE[name](q, k))
    agree((g, q, k, v), options(q, k, alpha=alpha), name)
    with_alphas = options(
        q, k, alphas=torch.full((2,), alpha, dtype=FULL), softcap=5.0, mask=torch.zeros(20, 1, dtype=FULL)
    )
    agree((g, q, k, v), with_alphas, f"{name}, full tiles with everything", mask_gradient=True)


def test_no_number_stays_in_its_rows():
    g, q, k, v = inputs(70, 70, batch=1)
    q[0, 1, 5] = torch.nan
    k[0, 1, 60, 3] = torch.nan
    v[0, 0, 69] = torch.nan
    given = options(q, k, right=0)
    found = passes(cpu, g, q, k, v, given)
    bad = found["out"].isnan().any(-1)[0]
    expected = torch.zeros(4, 70, dtype=torch.bool)
    expected[1, 5] = True
    expected[2:, 60:] = True
    # key 69 is seen by the last query alone
    expected[:2, 69] = found["support"][0, :2, 69] == 0
    assert torch.equal(bad[:, :69], expected[:, :69])
    assert torch.equal(found["depth"].isnan()[0, :, :69], expected[:, :69])
    assert torch.equal(found["dq"].isnan().any(-1)[0][:, :69], expected[:, :69])
    assert not found["dk"][0, 0, 6:69].isnan().any()
    assert found["dk"][0, 0, :6].isnan().all()


def test_gradcheck():
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, alphas, sinks, mask):
            given = options(q, k, alphas=alphas, sinks=sinks, mask=mask, softcap=3.0, right=4)
            out, mean, tau, _, *notes = cpu.sparse_attention(q, k, v, *given)
            ctx.save_for_backward(q, k, v, mean, tau, *notes)
            ctx.given = given
            return out

        @staticmethod
        def backward(ctx, grad):
            dq, dk, dv, dalpha, dsink, dmask = cpu.sparse_attention_backward(grad, *ctx.saved_tensors, True, *ctx.given)
            return dq, dk, dv, dalpha.sum((0, 2)), dsink.sum((0, 2)), dmask

    _, q, k, v = (t.double() for t in inputs(5, 6, depth=3, values=2))
    alphas, sinks = torch.tensor([1.3, 1.5, 1.7, 1.9], dtype=FULL), torch.randn(4, dtype=FULL)
    arguments = [t.requires_grad_() for t in (q, k, v, alphas, sinks, torch.randn(4, 5, 6, dtype=FULL))]
    assert torch.autograd.gradcheck(Attention.apply, arguments)


def test_bits_do_not_change():
    g, q, k, v = inputs(300, 200, batch=1)
    given = options(q, k, right=30, mask=torch.randn(1, 300, 200))

    def everything(_=None):
        return passes(cpu, g, q, k, v, given, mask_gradient=True)

    first, threads = everything(), torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        again = everything()
    finally:
        torch.set_num_threads(threads)
    with ThreadPoolExecutor(3) as pool:
        for found in (again, *pool.map(everything, range(3))):
            for name, value in found.items():
                equal(value, first[name], f"the same call gives the same bits: {name}")


def test_row_does_not_depend_on_its_block():
    g, q, k, v = inputs(HEIGHT + 9, 200, batch=1)
    whole = passes(cpu, g, q, k, v, options(q, k))
    part = passes(cpu, g[:, :, 7:], q[:, :, 7:], k, v, options(q[:, :, 7:], k))
    for name in ("out", "mean", "top", "depth", "support", "dq"):
        equal(part[name], whole[name][:, :, 7:], f"a query is attention of its own: {name}")


def test_one_tensor_for_all():
    g, q, _, _ = inputs(heads=2, depth=24)
    expected = passes(cpu, g, q, q.clone(), q.clone(), options(q, q))
    for name, value in passes(cpu, g, q, q, q, options(q, q)).items():
        equal(value, expected[name], f"queries may be keys and values: {name}")


def test_any_layout():
    g, q, k, v = inputs()
    spread = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (g, q, k, v)]
    mask = torch.randn(65, 65).T
    expected = passes(cpu, g, q, k, v, options(q, k, mask=mask.contiguous()), True)
    for name, value in passes(cpu, *spread, options(q, k, mask=mask), True).items():
        equal(value, expected[name], f"strides do not matter: {name}")


@pytest.mark.parametrize("name", ["bias", "packed"])
def test_operators(name):
    g, q, k, v = inputs(9, 11)
    given = options(q, k, **MASKS[name](9, 11))
    torch.library.opcheck(sparse_attention.op, (q, k, v, *given))
    _, mean, tau, _, *notes = sparse_attention(q, k, v, *given)
    torch.library.opcheck(sparse_attention_backward.op, (g, q, k, v, mean, tau, *notes, True, *given))
