"""Sparse attention: every kernel of sparse_attention against its reference, and the fused path against all scores."""

import os
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tolerances import close, equal
from torch._dynamo.testing import CompileCounter
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm
from polymax import nn
from polymax.kernels.sparse_attention import reference, tiles
from polymax.kernels.sparse_attention.options import Options
from polymax.nn import attention_obstacles, fused_attention, plain_attention

GPU = torch.cuda.is_available()
# "short" are the kernels of short rows in cuda.py
FILES = ["cpu", *(["cuda", "short"] if find_spec("triton") is not None else [])]
STARTS = torch.tensor([0, 10, 10, 45, 50], dtype=torch.int32)


def keep(rows, columns):
    mask = torch.rand(1, 1, rows, columns) > 0.5
    mask[..., 1, :] = False
    return mask


# shapes (B, H, G, L, S, D, V), then what is not as in plain attention; 1.5 and 2 have formulas of their own
CALLS = {
    "one": ((1, 1, 1, 1, 1, 16, 16), {"right": 0}),
    "causal": ((1, 2, 2, 65, 65, 16, 16), {"right": 0}),
    "spans": ((1, 1, 1, 150, 150, 16, 16), {"right": 0}),
    "full": ((1, 2, 1, 63, 70, 16, 24), {}),
    "sparsemax": ((1, 2, 2, 40, 40, 16, 16), {"alpha": 2.0, "right": 0}),
    "alpha": ((1, 1, 1, 40, 40, 16, 16), {"alpha": 1.3}),
    "alphas": ((1, 2, 2, 40, 40, 16, 16), {"alphas": torch.tensor([1.25, 1.5]), "right": 0}),
    "cache": ((2, 2, 1, 20, 65, 16, 16), {"sinks": torch.tensor([0.5, -1.0]), "right": 0, "offset": 45}),
    "window": ((1, 1, 1, 80, 80, 16, 16), {"left": 9, "right": 3}),
    "long window": ((1, 1, 1, 70, 330, 16, 16), {"left": 150, "right": 20, "offset": 200}),
    "bool mask": ((1, 2, 2, 30, 30, 16, 16), {"mask": keep, "right": 0}),
    "bias": ((1, 2, 2, 30, 40, 16, 16), {"mask": lambda rows, columns: torch.randn(2, 1, columns)[None]}),
    "bias of all": (
        (2, 1, 1, 70, 66, 16, 16),
        {"mask": lambda rows, columns: torch.randn(1, 1, rows, columns), "right": 0, "alpha": 2.0},
    ),
    # the memory of these ends with the last head: rows and channels that fill a block belong to no head
    "bias of heads": (
        (2, 3, 1, 37, 45, 20, 12),
        {"mask": lambda rows, columns: torch.randn(2, 3, rows, columns), "left": 30, "right": 20},
    ),
    "mask of heads": (
        (2, 3, 3, 37, 45, 20, 12),
        {
            "mask": lambda rows, columns: torch.rand(2, 3, rows, columns) > 0.3,
            "alphas": torch.tensor([1.5, 1.75, 2.0]),
            "sinks": torch.tensor([0.5, -1.0, 0.0]),
        },
    ),
    "softcap": ((1, 1, 1, 30, 30, 16, 16), {"softcap": 2.0, "spread": 4.0}),
    "packed": ((1, 2, 2, 52, 50, 16, 16), {"starts": STARTS, "right": 0}),
    "dropout": ((1, 2, 1, 40, 70, 16, 16), {"dropout": 0.4, "offset": 30, "right": 0}),
    "all equal": ((1, 1, 1, 20, 200, 16, 16), {"spread": 0.0}),
    "one huge": ((1, 1, 1, 20, 70, 16, 16), {"spread": 100.0}),
}


def arguments(name, dtype):
    shape, given = CALLS[name]
    B, H, G, L, S, D, V = shape
    generator = torch.Generator().manual_seed(1)
    sizes = ((B, H, L, D), (B, G, S, D), (B, G, S, V), (B, H, L, V))
    q, k, v, grad = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    mask = given["mask"](L, S) if "mask" in given else None
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(dtype)
    starts = given.get("starts")
    longest = (L, S) if starts is None else (int(starts.diff().max()),) * 2
    alphas, sinks = (t if t is None else t.to(dtype) for t in (given.get("alphas"), given.get("sinks")))
    tensors = (alphas, mask, sinks, starts, starts, *longest)
    numbers = (
        D**-0.5,
        given.get("softcap", 0.0),
        given.get("left", -1),
        given.get("right", -1),
        given.get("offset", 0),
        given.get("dropout", 0.0),
        torch.tensor([987654321987]) if "dropout" in given else None,
    )
    return q * given.get("spread", 1.0), k, v, grad, (given.get("alpha", 1.5), *tensors, *numbers)


def both(module, q, k, v, grad, options, bias=False):
    """out, how far tau is below the top, and support, then all gradients."""
    out, mean, tau, support, plan, lists = module.sparse_attention(q, k, v, *options)
    slopes = module.sparse_attention_backward(grad, q, k, v, mean, tau, plan, lists, bias, *options)
    return (out, tau[1], support), slopes


def kernels(file, options):
    """The module of a file's kernels, their options, and the device on which they run."""
    short = file == "short"
    module = import_module(f"polymax.kernels.sparse_attention.{'cuda' if short else file}")
    return module, (*options, True) if short else options, "cpu" if file == "cpu" or not GPU else "cuda"


def on(device, values):
    return tuple(t.to(device) if isinstance(t, torch.Tensor) else t for t in values)


def exact(values):
    return tuple(t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in values)


# cases in which blocks of few tiles have no lists
BY_TILES = ("full", "alpha", "window", "bias of all", "mask of heads", "dropout", "packed")
# the interpreter is slow: lists of a few rows at once, and one dtype
PARITY = [
    (file, name, dtype)
    for file in FILES
    for name in CALLS
    for dtype in ([torch.float64, torch.float32, torch.bfloat16] if file == "cpu" else [torch.float32, torch.bfloat16])
    if file == "cpu" or GPU or dtype == torch.float32 or name == "causal" or (file == "short" and name == "sparsemax")
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("file", "name", "dtype"), PARITY, ids=[f"{f}-{n}-{str(d)[6:]}" for f, n, d in PARITY])
@pytest.mark.device
def test_kernels_are_the_reference(file, name, dtype, monkeypatch):
    if file == "cuda" and name not in BY_TILES:
        # lists, though blocks have few tiles
        monkeypatch.setattr("polymax.kernels.sparse_attention.cuda_call.FEW_IN_ALL", 0)
    if file == "cuda" and name == "causal":
        # blocks of the scan are larger where there are many rows
        monkeypatch.setattr("polymax.kernels.sparse_attention.cuda_call._programs", lambda q, resident: 1)
    if file == "cuda" and name == "spans":
        # where there are many rows, those that see a key are packed in spans
        monkeypatch.setattr("polymax.kernels.sparse_attention.cuda_call.PACK", 16)
        monkeypatch.setattr("polymax.kernels.sparse_attention.cuda_call.SPAN", 96)
    *given, options = arguments(name, dtype)
    bias = "bias" in name
    module, told, device = kernels(file, options)
    found, slopes = both(module, *on(device, given), on(device, told), bias)
    true, true_slopes = both(reference, *exact(given), exact(options), bias)
    assert torch.equal(found[2].cpu(), true[2]), "the support is the reference's"
    # scores of hundreds have few digits behind the point
    gap = 20 if name == "one huge" else 4
    for a, b in zip((*found[:2], *slopes), (*true[:2], *true_slopes), strict=True):
        scale = gap * max(1.0, b[b.isfinite()].abs().max().item()) if b.isfinite().any() else 1.0
        close(a.cpu().to(dtype) / scale, b / scale, f"{file}.py == reference.py for {name}")
    if file != "cpu" and not GPU:
        return
    again, slopes_again = both(module, *on(device, given), on(device, told), bias)
    for a, b in zip((*found, *slopes), (*again, *slopes_again), strict=True):
        equal(a, b, "the same call gives the same bits")


@pytest.mark.skipif("cuda" not in FILES, reason="there is no Triton")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("which", "size"), [("key", 1e4), ("key", 1e10), ("key", 1e30), ("query", 1e6), ("query", 1e12)]
)
@pytest.mark.parametrize("file", FILES)
def test_huge_scores_keep_the_digits_of_others(file, which, size):
    """A huge key takes all weight where it is the best, and none elsewhere; a huge query has one key alone."""
    q, k, v, grad, options = arguments("sparsemax", torch.float32)
    (q if which == "query" else k)[:, :, 20] *= size
    module, told, device = kernels(file, options)
    found, slopes = both(module, *on(device, (q, k, v, grad)), on(device, told))
    true, true_slopes = both(reference, *exact((q, k, v, grad)), exact(options))
    assert torch.equal(found[2].cpu(), true[2])
    assert which == "key" or (true[2][:, :, 20] == 1).all()
    for a, b in zip((found[0], *slopes[1:3]), (true[0], *true_slopes[1:3]), strict=True):
        close(a.cpu(), b, f"{file}.py == reference.py")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FILES)
def test_a_bias_of_the_least_number_is_the_same_for_all(file):
    q, k, v, grad, options = arguments("bias", torch.float32)
    mask = torch.zeros(30, 40)
    mask[3] = torch.finfo(torch.float32).min
    mask[4] = -torch.inf
    module, told, device = kernels(file, (*options[:2], mask, *options[3:]))
    found, slopes = both(module, *on(device, (q, k, v, grad)), on(device, told))
    assert all(t.isfinite().all() for t in (found[0], *slopes[:3]))
    close(found[0][:, :, 3].cpu(), v.mean(2).expand(2, 2, 16)[None, 0], "uniform weights")
    assert found[2].cpu()[0, :, 3:5].tolist() == [[40, 0], [40, 0]]
    assert (found[0][:, :, 4] == 0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.device
def test_balls_rule_tiles_out(monkeypatch):
    from polymax.kernels.sparse_attention import cuda, cuda_call
    from polymax.kernels.sparse_attention.options import Options

    monkeypatch.setattr(cuda_call, "FAR_KEYS", 0)
    monkeypatch.setattr(cuda_call, "FEW_SEEN", 0)
    generator = torch.Generator().manual_seed(3)
    noise = 0.3 * torch.randn(3, 1, 2, 250, 16, generator=generator)
    # tiles of keys in turn around two centres, of which queries look for the second
    centres = 4 * torch.eye(16)[(torch.arange(250) // 64) % 2]
    q, k = (noise[0] + centres[64])[:, :, :70], (noise[1] + centres)[:, :1]
    v, grad = torch.randn(1, 1, 250, 16, generator=generator), torch.randn(1, 2, 70, 16, generator=generator)
    options = Options(1.5, None, None, None, None, None, 70, 250, 0.25, 0.0, 240, 191, 0)
    given = on("cuda" if GPU else "cpu", (q, k, v, grad))
    call = cuda_call.call_of(*given[:3], None, options)
    notes = torch.zeros(call.heads, call.plan.size, dtype=torch.int32, device=given[0].device)
    centre, radius = notes.new_empty(4, 16, dtype=k.dtype), notes.new_empty(4, dtype=torch.float32)
    call.find_balls(given[1], *[given[0]] * 2, centre, radius)
    call.find_candidates(*given[:2], *[given[0]] * 5, centre, radius, notes)
    bounds = notes[:, 8:16].reshape(2, 2, 4)
    # the last tile is seen by some queries only
    assert (notes[:, :3] == torch.tensor([1, 3, 0], device=notes.device)).all()
    assert (bounds[..., 3] == -1).all()
    assert (bounds[:, 0, :3] == torch.tensor([0, 1, 2], device=notes.device)).all()

    found, slopes = both(cuda, *given, options)
    true, true_slopes = both(reference, *exact((q, k, v, grad)), options)
    equal(found[2].cpu(), true[2], "the support is the reference's")
    for a, b in zip((*found[:2], *slopes), (*true[:2], *true_slopes), strict=True):
        scale = 4 * max(1.0, b.abs().max().item()) if b.numel() else 1.0
        close(a.cpu() / scale, b / scale, "what balls rule out has no weight")


@pytest.mark.skipif("cuda" not in FILES, reason="there is no Triton")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.device
def test_plain_calls_are_the_operator():
    from polymax.kernels.sparse_attention import cuda
    from polymax.kernels.sparse_attention.cuda_plain import Plain
    from polymax.kernels.sparse_attention.options import Options

    *given, grad, options = arguments("causal", torch.float32)
    q, k, v, grad = on("cuda" if GPU else "cpu", (*given, grad))
    options = Options(*options)
    known = Plain(q, k, v, q[0].shape, options)
    for _ in range(2 if GPU else 1):
        # the second call knows compiled kernels
        out, notes = known.forward(q[0], k[0], v[0])
        slopes = known.backward(grad[0], q[0], k[0], v[0], notes)
    (right, *_), right_slopes = both(cuda, q, k, v, grad, options)
    for a, b in zip((out, *slopes), (right, *right_slopes[:3]), strict=True):
        equal(a, b[0], "a plain call is the operator's")


@pytest.mark.skipif("cuda" not in FILES, reason="there is no Triton")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.device
def test_plain_calls_have_derivatives(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    xs = [torch.randn(1, 20, 16, device="cuda" if GPU else "cpu", requires_grad=True) for _ in range(3)]
    known = plain_attention.known_call(*xs, pm.entmax, (True, None, False, None, None, 0))

    if GPU:
        called = nn.scaled_dot_product_attention(*xs, is_causal=True, mapping=pm.entmax)
        assert type(called.grad_fn).__name__ == "PlainAttentionBackward"

    def attention(*tensors):
        return plain_attention.attend(*tensors, known)

    wide = [x.detach().double().requires_grad_() for x in xs]
    right = attend(False, monkeypatch, *wide, is_causal=True, mapping=pm.entmax)
    first = torch.autograd.grad(right.square().sum(), wide, create_graph=True)
    second = torch.autograd.grad(sum(s.square().sum() for s in first), wide)
    once = torch.autograd.grad(attention(*xs).square().sum(), xs)
    recorded = torch.autograd.grad(attention(*xs).square().sum(), xs, create_graph=True)
    twice = torch.autograd.grad(sum(s.square().sum() for s in recorded), xs)
    found = (attention(*xs), *once, *recorded, *twice)
    for a, b in zip(found, (right, *first, *first, *second), strict=True):
        size = 20 * max(1.0, b.abs().max().item())
        close(a / size, b / size, "a plain call is that of all scores")


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "cache": {"is_causal": True, "causal_offset": 20},
    "window": {"window": (7, 2)},
    "causal window": {"is_causal": True, "window": (9, -1)},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.3, -0.2])},
    "bool mask": {"attn_mask": torch.rand(1, 1, 17, 37) > 0.4},
    "padding": {"attn_mask": (torch.arange(37) < 30).expand(2, 1, 1, 37)},
    "bias": {"attn_mask": torch.randn(2, 1, 37), "is_causal": True},
    "scale": {"scale": 0.7},
}
MAPPINGS = {
    "sparsemax": pm.sparsemax,
    "entmax": pm.entmax,
    "entmax 1.3": partial(pm.entmax, alpha=1.3),
    "regularizer": pm.Tsallis(1.75),
    "adaptive": nn.AdaptiveEntmax(2),
}


def attend(fused, monkeypatch, *args, **options):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0 if fused else 1 << 30)
    monkeypatch.setattr(fused_attention, "CUDA_QUERIES", 0 if fused else 1 << 30)
    path = nn.attention_path(*args, **options)
    assert ("fused" in path) == fused, path
    return nn.scaled_dot_product_attention(*args, **options)


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS.keys())
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_fused_is_all_scores(options, mapping, device, monkeypatch):
    mapping = mapping.to(device) if isinstance(mapping, torch.nn.Module) else mapping
    dtype = torch.float32 if device == "cuda" else torch.float64
    shapes = ((2, 2, 17, 16), (2, 1, 37, 16), (2, 1, 37, 16))
    inputs = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes]
    options = {n: t.to(device) if torch.is_tensor(t) else t for n, t in options.items()}
    learned = list(mapping.parameters()) if isinstance(mapping, torch.nn.Module) else []
    for name in ("sinks", "attn_mask"):
        if name in options and options[name].is_floating_point():
            options[name] = options[name].to(dtype).requires_grad_(device == "cpu")
            learned += [options[name]] if device == "cpu" else []
    results = []
    for fused in (True, False):
        out = attend(fused, monkeypatch, *inputs, enable_gqa=True, mapping=mapping, **options)
        weight = torch.linspace(-1, 1, out.numel(), device=device, dtype=dtype).reshape(out.shape)
        results.append((out, *torch.autograd.grad((weight * out).sum(), (*inputs, *learned))))
    for a, b in zip(*results, strict=True):
        scale = max(1.0, b.abs().max().item()) * 4
        close(a / scale, b / scale, "the fused path is the other path")


@pytest.mark.parametrize("fused", [True, False])
def test_positions_may_be_as_far_away_as_integers_go(fused, monkeypatch):
    q = torch.randn(1, 2, 5, 8)
    full = attend(fused, monkeypatch, q, q, q, mapping=pm.entmax)
    for far in (2**62, sys.maxsize, 2**70):
        for options in ({"window": (far, far)}, {"is_causal": True, "causal_offset": far}):
            equal(attend(fused, monkeypatch, q, q, q, mapping=pm.entmax, **options), full, "all keys are seen")
        out = attend(fused, monkeypatch, q, q, q, mapping=pm.entmax, is_causal=True, causal_offset=-far)
        equal(out, torch.zeros_like(out), "no key is seen")


@pytest.mark.parametrize("mapping", [pm.softmax, pm.entmax, pm.fusedmax])
def test_a_bias_may_have_more_digits_than_scores(mapping):
    q, bias = torch.randn(1, 2, 5, 8), torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    out = nn.scaled_dot_product_attention(q, q, q, bias, mapping=mapping)
    close(out, nn.scaled_dot_product_attention(q, q, q, bias.float(), mapping=mapping), "a bias is added to scores")
    out.square().sum().backward()
    assert bias.grad.dtype == torch.float64


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_derivatives(alpha, monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, bias):
        return nn.scaled_dot_product_attention(q, k, v, bias, is_causal=True, mapping=partial(pm.entmax, alpha=alpha))

    assert gradcheck(call, (q, k, v, bias))
    assert gradgradcheck(call, (q, k, v, bias))


SEEN = {
    "all": {},
    "causal": {"is_causal": True},
    "window": {"window": (1, 0), "causal_offset": 1},
    "mask": {"attn_mask": torch.tensor([[True, False], [False, True], [True, True]])[:, [0, 1, 0, 1]]},
    "nothing": {"attn_mask": torch.tensor([[True], [False], [True]])},
    "bias": {"attn_mask": torch.randn(3, 4, dtype=torch.float64)},
}


@pytest.mark.parametrize("options", SEEN.values(), ids=SEEN.keys())
def test_softmax_is_torch_s_and_has_a_second_derivative(options, device):
    dtype = torch.float64 if device == "cpu" else torch.float32
    options = {n: t.to(device) if torch.is_tensor(t) else t for n, t in options.items()}
    q = torch.randn(1, 2, 3, 4, dtype=dtype, device=device, requires_grad=True)
    k, v = (torch.randn(1, 1, 4, 4, dtype=dtype, device=device, requires_grad=True) for _ in range(2))
    inputs = [q, k, v]
    if "attn_mask" in options and options["attn_mask"].is_floating_point():
        options["attn_mask"] = options["attn_mask"].to(dtype).requires_grad_()
        inputs.append(options["attn_mask"])
    call = partial(nn.scaled_dot_product_attention, q, k, v, enable_gqa=True, **options)
    assert "torch's" in nn.attention_path(q, k, v, enable_gqa=True, **options)
    results = []
    # a partial function is none that is known, and goes through all scores
    for mapping in (pm.softmax, lambda x, dim: pm.softmax(x, dim)):
        out = call(mapping=mapping)
        weight = torch.linspace(-1, 1, out.numel(), device=device, dtype=dtype).reshape(out.shape)
        first = torch.autograd.grad((weight * out).sum(), inputs, retain_graph=True)
        again = torch.autograd.grad((weight * out).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(s.square().sum() for s in again), inputs)
        results.append((out, *first, *again, *second))
    for a, b in zip(*results, strict=True):
        close(a / 4, b / 4, "softmax by torch's kernel is softmax of all scores")


@pytest.mark.parametrize("mapping", [pm.softmax, pm.entmax], ids=["softmax", "entmax"])
def test_checkpointed_attention_has_its_gradient(mapping, monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    call = partial(nn.scaled_dot_product_attention, is_causal=True, mapping=mapping)
    whole = torch.autograd.grad(call(q, k, v).square().sum(), (q, k, v))
    out = torch.utils.checkpoint.checkpoint(call, q, k, v, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), whole, strict=True):
        equal(a, b, "what is computed again is the same")


def test_inference_mode_computes_the_same(device, monkeypatch):
    q, k, v = (torch.randn(1, 2, 70, 16, device=device) for _ in range(3))
    expected = attend(True, monkeypatch, q, k, v, is_causal=True, mapping=pm.entmax)
    with torch.inference_mode():
        found = attend(True, monkeypatch, q, k, v, is_causal=True, mapping=pm.entmax)
    equal(found, expected, "inference computes the same")


REPLICA = """
import os, torch, polymax as pm
from polymax.nn import fused_attention

fused_attention.CPU_KEYS = 0
torch.set_num_threads(1)
module = pm.nn.MultiheadAttention(8, 2, mapping=pm.entmax, batch_first=True)
x = torch.randn(2, 7, 8)
module(x, x, x, need_weights=False)[0].square().sum().backward()
expected = [p.grad.clone() for p in module.parameters()]
module.zero_grad()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
replica = torch.nn.parallel.DistributedDataParallel(module)
replica(x, x, x, need_weights=False)[0].square().sum().backward()
for p, g in zip(module.parameters(), expected, strict=True):
    torch.testing.assert_close(p.grad, g)
print("equal", flush=True)
# a process group that is destroyed may wait for its own threads for ever
os._exit(0)
"""


def test_replicas_of_a_module_get_its_gradients():
    """DistributedDataParallel, with one process: hooks wait for the gradient of every parameter."""
    place = {**os.environ, "PYTHONPATH": str(Path(pm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", REPLICA], capture_output=True, text=True, env=place, timeout=240)
    assert done.stdout == "equal\n", done.stderr


def test_dropped_weights_are_those_of_the_seed(device, monkeypatch):
    q, k, v = (torch.randn(2, 2, 200, 16, device=device, requires_grad=True) for _ in range(3))
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        out = attend(True, monkeypatch, q, k, v, dropout_p=0.3, mapping=pm.entmax)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for a, b in zip(*results, strict=True):
        equal(a, b, "the same seed drops the same weights")
    assert not torch.equal(out, attend(True, monkeypatch, q, k, v, dropout_p=0.3, mapping=pm.entmax))
    ones = torch.ones_like(v)
    share = attend(True, monkeypatch, q, k, ones, dropout_p=0.3, mapping=pm.entmax).mean().item()
    assert abs(share - 1) < 0.02, "weights sum to 1 on average"


def test_dropout_has_a_second_derivative(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def call(q, k, v):
        torch.manual_seed(0)
        return nn.scaled_dot_product_attention(q, k, v, dropout_p=0.4, mapping=pm.entmax)

    assert gradcheck(call, (q, k, v))
    assert gradgradcheck(call, (q, k, v))


def test_a_learned_alpha_comes_back_from_its_limit(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(1, 6, 4) for _ in range(3))
    alpha = torch.tensor(1.0, requires_grad=True)
    out = nn.scaled_dot_product_attention(q, k, v, mapping=partial(pm.entmax, alpha=alpha))
    (slope,) = torch.autograd.grad(out.square().sum(), alpha)
    assert slope != 0
    assert (out - nn.scaled_dot_product_attention(q, k, v)).abs().max() < 1e-6, "the least alpha is softmax"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("alpha", [1.00001, 1.002, 1.05, 1.9])
def test_alpha_has_its_gradient_near_1(alpha, dtype, monkeypatch):
    q, k, v, grad = (torch.randn(2, 12, 8).to(dtype) for _ in range(4))
    alphas = torch.full((2, 1, 1), alpha, dtype=torch.promote_types(dtype, torch.float32), requires_grad=True)
    found = [
        torch.autograd.grad(attend(fused, monkeypatch, q, k, v, mapping=partial(pm.entmax, alpha=alphas)), alphas, grad)
        for fused in (True, False)
    ]
    scale = 4 * max(1.0, found[1][0].abs().max().item())
    close(found[0][0].to(dtype) / scale, found[1][0].double() / scale, "alpha of the kernel is that of all scores")


def test_alpha_above_2_is_never_wrong(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(2, 12, 8) for _ in range(3))
    alpha = torch.tensor([3.0, 1.5])[:, None, None]
    out = nn.scaled_dot_product_attention(q, k, v, mapping=partial(pm.entmax, alpha=alpha))
    weights = pm.entmax(q @ k.mT / 8**0.5, alpha)
    close(out, weights @ v, "all scores at once take any alpha")
    # where values cannot be read, as on an accelerator, the head is NaN
    monkeypatch.setattr(attention_obstacles._check, "readable", lambda t: False)
    out = nn.scaled_dot_product_attention(q, k, v, mapping=partial(pm.entmax, alpha=alpha))
    assert out[0].isnan().all()
    close(out[1], (weights @ v)[1], "other heads are what they are")


def test_alpha_of_each_head_has_a_gradient(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(2, 4, 3, dtype=torch.float64) for _ in range(3))

    def call(alpha):
        return nn.scaled_dot_product_attention(q, k, v, mapping=partial(pm.entmax, alpha=alpha[:, None, None]))

    assert gradcheck(call, torch.tensor([1.4, 1.8], dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("mapping", [pm.entmax, pm.softmax], ids=["entmax", "softmax"])
def test_packed_sequences_are_attended_one_by_one(mapping, device, monkeypatch):
    monkeypatch.setattr(fused_attention, "CUDA_QUERIES", 0)
    q, k, v = (torch.randn(n, h, 16, device=device) for n, h in ((12, 2), (15, 1), (15, 1)))
    starts_q, starts_k = (torch.tensor(t, device=device) for t in ([0, 4, 4, 12], [0, 5, 9, 15]))
    options = {"is_causal": True, "causal_offset": 1, "window": (3, -1), "mapping": mapping}
    packed = nn.varlen_attention(q, k, v, starts_q, starts_k, **options)
    for i in range(3):
        rows, keys = slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i + 1])
        alone = nn.scaled_dot_product_attention(
            *(t.transpose(0, 1) for t in (q[rows], k[keys], v[keys])), enable_gqa=True, **options
        )
        close(packed[rows].transpose(0, 1), alone, "a packed sequence is a sequence")


def test_nested_tensors(device):
    parts = [torch.randn(n, 2, 8, device=device) for n in (3, 5)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    out = nn.scaled_dot_product_attention(nested, nested, nested, is_causal=True, mapping=pm.sparsemax)
    for a, part in zip(out.unbind(), parts, strict=True):
        x = part.transpose(0, 1)
        close(a, nn.scaled_dot_product_attention(x, x, x, is_causal=True, mapping=pm.sparsemax), "nested is ragged")
    assert "each sequence by itself" in nn.attention_path(nested, nested, nested, mapping=pm.softmax)
    # sequences with holes between them
    starts, lengths = (torch.tensor(t, device=device) for t in ([0, 2], [3, 5]))
    padded = torch.randn(2, 8, 2, 8, device=device)
    narrow = torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged).transpose(1, 2)
    out = nn.scaled_dot_product_attention(narrow, narrow, narrow, mapping=pm.sparsemax)
    for a, row, start, length in zip(out.unbind(), padded, starts, lengths, strict=True):
        x = row[start : start + length].transpose(0, 1)
        close(a, nn.scaled_dot_product_attention(x, x, x, mapping=pm.sparsemax), "what is between is not read")


def test_sinks_without_a_batch(monkeypatch):
    q, k, v = (torch.randn(n, 4) for n in (3, 5, 5))
    sinks = torch.tensor([0.3])
    whole = nn.scaled_dot_product_attention(q[None], k[None], v[None], sinks=sinks, mapping=pm.sparsemax)[0]
    for fused in (True, False):
        close(attend(fused, monkeypatch, q, k, v, sinks=sinks, mapping=pm.sparsemax), whole, "no batch is a batch of 1")


@pytest.mark.parametrize("mapping", [pm.entmax, pm.softmax], ids=["entmax", "softmax"])
def test_scores_of_0_are_a_mean(mapping, monkeypatch):
    q, k, v = (torch.randn(1, 1, 5, 3, dtype=torch.float64) for _ in range(3))
    means = v.cumsum(2) / torch.arange(1, 6)[:, None]
    for keys in (0, 1 << 30):
        monkeypatch.setattr(fused_attention, "CPU_KEYS", keys)
        for given, scale in (((q, k), 0.0), ((q[..., :0], k[..., :0]), None)):
            out = nn.scaled_dot_product_attention(*given, v, is_causal=True, scale=scale, mapping=mapping)
            close(out, means, "a scale of 0, or vectors without channels, give equal weights")


def test_multihead_attention_without_weights_is_fused(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    module = nn.MultiheadAttention(8, 2, batch_first=True, mapping=nn.AdaptiveEntmax(2))
    x = torch.randn(2, 9, 8)
    padding = torch.arange(9) >= torch.tensor([[9], [6]])
    for options in ({}, {"is_causal": True}, {"key_padding_mask": padding}):
        out, weights = module(x, x, x, need_weights=False, **options)
        assert weights is None
        close(out, module(x, x, x, **options)[0], "the result does not depend on need_weights")


def test_nan_stays_in_its_row(device, monkeypatch):
    q, k, v = (torch.randn(1, 2, 20, 16, device=device) for _ in range(3))
    q[0, 0, 3] = torch.nan
    out = attend(True, monkeypatch, q, k, v, mapping=pm.entmax)
    assert out[0, 0, 3].isnan().all()
    assert out.isnan().sum() == 16


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_compiled_call(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3))
    call = partial(nn.scaled_dot_product_attention, is_causal=True, mapping=pm.entmax)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        (compiled(q, k, v), *torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))),
        (call(q, k, v), *torch.autograd.grad(call(q, k, v).sum(), (q, k, v))),
        strict=True,
    ):
        close(a, b, "compiled is eager")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_one_graph_serves_all_lengths(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    graphs = CompileCounter()
    compiled = torch.compile(
        lambda x: nn.scaled_dot_product_attention(x, x, x, dropout_p=0.1, is_causal=True, mapping=pm.entmax),
        fullgraph=True,
        backend=graphs,
    )
    for length in (5, 6, 7, 9):
        # one tensor for queries, keys and values, as in self-attention
        assert compiled(torch.randn(1, 2, length, 4, requires_grad=True)).shape[2] == length
    assert graphs.frame_count == 2, "the second length makes the graph a general one"


def test_operators_pass_opcheck():
    q, k, v, grad, options = arguments("causal", torch.float32)
    torch.library.opcheck(torch.ops.polymax.sparse_attention.default, (q, k, v, *options))
    _, mean, tau, _, plan, lists = torch.ops.polymax.sparse_attention(q, k, v, *options)
    inputs = (grad, q, k, v, mean, tau, plan, lists, False, *options)
    torch.library.opcheck(torch.ops.polymax.sparse_attention_backward.default, inputs)


def test_declared_plans_have_room_for_all_sequences():
    """What a traced call of packed sequences on a GPU allocates: a plan for each sequence and head."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    _, _, _, _, options = arguments("causal", torch.float32)
    with FakeTensorMode():
        q = torch.empty(1, 2, 300, 4, device="cuda")
        starts = torch.empty(4, dtype=torch.int32, device="cuda")
        packed = Options(*options)._replace(starts_q=starts, starts_k=starts, longest_q=130, longest_k=200)
        *_, plan, lists = torch.ops.polymax.sparse_attention(q, q, q, *packed)
        *_, dense, _ = torch.ops.polymax.sparse_attention(q, q, q, *packed._replace(starts_q=None, starts_k=None))
    size = tiles.layout(130, 200).size
    # three sequences, two heads
    assert plan.shape == (6 * size,)
    assert dense.shape == (2 * size,)
    assert lists.shape == (600 * tiles.LONGEST,)


def test_autocast_computes_in_its_dtype(monkeypatch):
    monkeypatch.setattr(fused_attention, "CPU_KEYS", 0)
    q, k, v = (torch.randn(2, 9, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.scaled_dot_product_attention(q, k, v, mapping=pm.entmax).dtype == torch.bfloat16


REASONS = {
    "softmax with dropout": {"dropout_p": 0.1, "mapping": pm.softmax},
    "is softmax": {"mapping": pm.softmax},
    "alpha is 2.5": {"mapping": pm.Tsallis(2.5)},
    "none of softmax": {"mapping": pm.fusedmax},
    "scale is not positive": {"scale": -1.0},
    "scale is a tensor": {"scale": torch.tensor(0.5)},
    "alpha is not in [1, 2] for all heads": {"mapping": partial(pm.entmax, alpha=torch.tensor([[[1.5]], [[2.5]]]))},
    "fewer than": {},
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_path_has_a_reason(reason):
    q = torch.randn(2, 9, 8)
    assert reason in nn.attention_path(q, q, q, **{"mapping": pm.entmax, **REASONS[reason]})


def test_statistics_count_zeros_tiles_and_supports():
    q, k = 4 * torch.randn(2, 3, 20, 8), torch.randn(2, 3, 20, 8)
    weights = nn.attention_weights(q, k, is_causal=True, mapping=pm.sparsemax)
    found = nn.attention_statistics(q, k, is_causal=True, mapping=pm.sparsemax, tile=4)
    visible = torch.ones(20, 20).tril().bool()
    zeros = ((weights == 0) & visible).sum((0, 2, 3)).double() / (2 * visible.sum())
    close(found.zeros, zeros, "zeros are among what is visible")
    tiles = (weights != 0).unflatten(-1, (5, 4)).unflatten(-3, (5, 4)).any(-1).any(-2)
    close(found.empty_tiles, 1 - tiles.sum((0, 2, 3)).double() / (2 * 15), "tiles without a weight")
    close(found.mean_support, (weights != 0).sum(-1).double().mean((0, 2)), "the mean support")
    assert torch.equal(found.max_support.long(), (weights != 0).sum(-1).amax((0, 2)))


REFUSED = {
    "query must be a tensor; got list": lambda q: ([1.0], q, q, {}),
    "value must be a tensor; got list": lambda q: (q, q, [1.0], {}),
    "query must be (*batch, L, E); got (8,)": lambda q: (q[0, 0], q, q, {}),
    "key must be (*batch, S, 8), as query has it; got (2, 9, 7)": lambda q: (q, q[..., :7], q, {}),
    "value must be (*batch, 9, V), one for each key; got (2, 4, 8)": lambda q: (q, q, q[:, :4], {}),
    "that of query (2, 9, 8); got (3, 9, 8); enable_gqa=True": lambda q: (q, q[:1].repeat(3, 1, 1), q, {}),
    "value must have a batch that broadcasts": lambda q: (q, q, q[:1].repeat(3, 1, 1), {}),
    "key must have the dtype of query, torch.float32; got torch.float64": lambda q: (q, q.double(), q, {}),
    "value must have the dtype of query, torch.float32; got torch.float64": lambda q: (q, q, q.double(), {}),
    "dropout_p must be a number from 0 to 1; got -0.5": lambda q: (q, q, q, {"dropout_p": -0.5}),
    "dropout_p must be a number from 0 to 1; got nan": lambda q: (q, q, q, {"dropout_p": torch.nan}),
    "scale must be finite; got nan": lambda q: (q, q, q, {"scale": torch.nan}),
    "scale must be a number or None; got str": lambda q: (q, q, q, {"scale": "1"}),
    "attn_mask must broadcast to the scores (2, 9, 9); got (9, 8)": lambda q: (q, q, q, {"attn_mask": q[0]}),
}


@pytest.mark.parametrize("mapping", [pm.entmax, pm.softmax], ids=["entmax", "softmax"])
@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message, mapping):
    query, key, value, options = REFUSED[message](torch.randn(2, 9, 8))
    for call in (nn.scaled_dot_product_attention, nn.attention_path):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            call(query, key, value, mapping=mapping, **options)


def test_errors():
    q = torch.randn(2, 9, 8)
    call = partial(nn.scaled_dot_product_attention, q, q, q, mapping=pm.entmax)
    with pytest.raises(ValueError, match=r"window must be \(left, right\), integers .*; got \(3,\)"):
        call(window=(3,))
    with pytest.raises(TypeError, match=r"causal_offset must be an integer; got 1.5"):
        call(causal_offset=1.5)
    with pytest.raises(ValueError, match=r"softcap must be a positive number or None; got 0"):
        call(softcap=0)
    with pytest.raises(ValueError, match=r"sinks must be \(2,\), a score for each head; got \(3,\)"):
        call(sinks=torch.zeros(3))
    with pytest.raises(ValueError, match=r"query must be \(tokens, heads, channels\); got \(9, 8\)"):
        nn.varlen_attention(q[0], q, q, torch.tensor([0, 9]), torch.tensor([0, 9]))
    with pytest.raises(ValueError, match=r"cu_seqlens_q must be \(sequences \+ 1,\) integers"):
        nn.varlen_attention(q, q, q, torch.tensor([0.0, 9.0]), torch.tensor([0, 9]))
    starts = torch.tensor([0, 2])
    for wrong in ([0, 3], [0, 1], [1, 2], [0, 2, 1]):
        with pytest.raises(ValueError, match=r"cu_seqlens_q .*from 0 on, in order, up to 2; got \["):
            nn.varlen_attention(q, q, q, torch.tensor(wrong), starts)
    with pytest.raises(ValueError, match=r"value must have the 2 tokens of key; got \(1, 9, 8\)"):
        nn.varlen_attention(q, q, q[:1], starts, starts)
    nested = [
        torch.nested.nested_tensor([torch.ones(n, 1, 2) for n in m], layout=torch.jagged) for m in ((3, 4), (5, 2))
    ]
    with pytest.raises(ValueError, match=r"value must have sequences as long as those of key; got \[5, 2\]"):
        nn.scaled_dot_product_attention(*(nested[i].transpose(1, 2) for i in (0, 0, 1)), mapping=pm.entmax)
    heads = [t.transpose(1, 2) for t in nested]
    plain = torch.randn(2, 1, 4, 2)
    for mapping in (pm.softmax, pm.entmax):
        with pytest.raises(ValueError, match="query, key and value must all be nested tensors"):
            nn.scaled_dot_product_attention(plain, heads[0], heads[0], mapping=mapping)
        with pytest.raises(ValueError, match="query, key and value must all be nested tensors"):
            nn.scaled_dot_product_attention(plain, plain, heads[0], mapping=mapping)
    more = torch.nested.nested_tensor([torch.ones(1, 1, 2)] * 3, layout=torch.jagged).transpose(1, 2)
    with pytest.raises(ValueError, match="key must have the 2 sequences of query; got 3"):
        nn.scaled_dot_product_attention(heads[0], more, more)
    flat = torch.nested.nested_tensor([torch.ones(n, 4) for n in (2, 3)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"query must be \(batch, heads, tokens of each, channels\) where it"):
        nn.scaled_dot_product_attention(flat, flat, flat)
    with pytest.raises(ValueError, match="need_weights must be False if query is a nested tensor"):
        nn.MultiheadAttention(4, 2, batch_first=True)(flat, flat, flat)
    with pytest.raises(ValueError, match=r"tile must be a positive integer; got 0"):
        nn.attention_statistics(q, q, tile=0)


def test_wide_heads_of_float32_do_not_fit_into_any_gpu(monkeypatch):
    from polymax.kernels.sparse_attention import shared_memory

    monkeypatch.setattr(shared_memory, "_bytes_of", lambda device: 100_000)
    device = torch.device("cuda")
    assert shared_memory.fits(torch.bfloat16, 64, device)
    assert not shared_memory.fits(torch.bfloat16, 128, device)
    assert not shared_memory.fits(torch.float32, 64, device)
    monkeypatch.setattr(shared_memory, "_bytes_of", lambda device: shared_memory.MOST)
    assert shared_memory.fits(torch.float32, 128, device)
    assert not shared_memory.fits(torch.float32, 129, device)
