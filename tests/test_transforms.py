"""torch.compile, torch.func and torch.library see through every mapping: they agree with plain loops."""

from importlib import import_module

import pytest
import torch
from cases import KERNEL_CALLS, ROWS, every
from tolerances import close
from torch.func import grad, jacfwd, jacrev, vmap

import polymax as pm

# torch's own code warns about itself when it traces and when it differentiates forwards
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]
MAPPINGS = {
    "hardmax": pm.hardmax,
    "softmax": pm.softmax,
    "sparsemax": pm.sparsemax,
    "entmax": pm.entmax,
    "entmax-1.3": lambda x, **options: pm.entmax(x, 1.3, **options),
    "normmax": pm.normmax,
    "sq_pnorm_max": pm.sq_pnorm_max,
    "fusedmax": pm.fusedmax,
    "oscarmax": lambda x, **options: pm.oscarmax(x, 0.1, **options),
    "csoftmax": lambda x, **options: pm.csoftmax(x, 0.4, **options),
    "csparsemax": lambda x, **options: pm.csparsemax(x, 0.4, **options),
    "budgetmax": lambda x, **options: pm.budgetmax(x, 2, **options),
}
# functions of torch.func cannot enter a solver that asks how far it is
FUNCTIONAL = [row for row in ROWS if row.compiles]


@pytest.mark.parametrize("call", KERNEL_CALLS)
def test_opcheck(call, device):
    name = call.partition("-")[0]
    import_module(f"polymax.kernels.{name.removesuffix('_backward')}")
    arguments = KERNEL_CALLS[call](5)
    # opcheck does not know that NaN is NaN
    arguments = [a.nan_to_num(0, neginf=-torch.inf) if isinstance(a, torch.Tensor) else a for a in arguments]
    arguments = [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
    torch.library.opcheck(getattr(torch.ops.polymax, name).default, tuple(arguments))


@pytest.mark.parametrize("call", KERNEL_CALLS)
def test_vmap_of_operators(call, device):
    """Whichever tensors are mapped over, an operator does what a loop would."""
    name = call.partition("-")[0]
    import_module(f"polymax.kernels.{name.removesuffix('_backward')}")
    op = getattr(torch.ops.polymax, name).default
    arguments = [a.to(device) if isinstance(a, torch.Tensor) else a for a in KERNEL_CALLS[call](5)]
    places = [k for k, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
    for mapped in ([places[0]], [places[-1]], places):
        # rows of another order are other rows
        both = [torch.stack([a, a.flip(1)]) if k in mapped else a for k, a in enumerate(arguments)]
        dims = tuple(0 if k in mapped else None for k in range(len(arguments)))
        found = vmap(op, in_dims=dims)(*both)
        loop = [op(*(a[j] if k in mapped else a for k, a in enumerate(both))) for j in range(2)]
        # how many rows a program of the GPU takes depends on the batch, and so does the order of its sums
        slack = 1e-14 if device == "cuda" else 0
        for out, each in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, _stacked(loop))), strict=True):
            torch.testing.assert_close(out, each, rtol=slack, atol=slack, equal_nan=True)


def _stacked(results):
    if isinstance(results[0], tuple):
        return tuple(torch.stack(r) for r in zip(*results, strict=True))
    return torch.stack(results)


def compiled(fn):
    torch._dynamo.reset()
    return torch.compile(fn, fullgraph=True, backend="aot_eager", dynamic=False)


@pytest.mark.parametrize("name", MAPPINGS)
def test_compile(name, device):
    x = torch.randn(3, 6, dtype=torch.float64, device=device)
    direction = torch.randn(3, 6, dtype=torch.float64, device=device)
    keep = torch.tensor([True, True, False, True, True, True], device=device)

    def loss(x):
        y = MAPPINGS[name](x) + MAPPINGS[name](x.T, dim=0, mask=keep[:, None]).T
        return y, (y * direction).sum()

    results = []
    for fn in (loss, compiled(loss)):
        scores = x.clone().requires_grad_()
        y, value = fn(scores)
        results.append((y.detach(), torch.autograd.grad(value, scores)[0]))
    (y, slope), (compiled_y, compiled_slope) = results
    close(compiled_y, y, f"compiled {name} is {name}")
    close(compiled_slope, slope, f"the gradient of compiled {name}")


@pytest.mark.parametrize("name", ["Tsallis", "Fused", "Bounded"])
def test_compile_max_with_parameters(name, device):
    make = {
        "Tsallis": lambda t: pm.Tsallis(1 + t, gamma=t),
        "Fused": lambda t: pm.Fused(t, gamma=t),
        "Bounded": lambda t: pm.Bounded(pm.Gini(t), upper=t),
    }[name]
    x = torch.randn(3, 6, dtype=torch.float64, device=device)
    value = torch.full((3, 1), 0.45, dtype=torch.float64, device=device)

    def loss(x, t):
        return make(t).max(x).sum()

    results = []
    for fn in (loss, compiled(loss)):
        inputs = x.clone().requires_grad_(), value.clone().requires_grad_()
        out = fn(*inputs)
        results.append((out.detach(), *torch.autograd.grad(out, inputs)))
    for eager, traced in zip(*results, strict=True):
        close(traced, eager, f"compiled {name}.max is {name}.max")


def test_compile_with_changing_shapes(device):
    torch._dynamo.reset()
    fn = torch.compile(lambda x: pm.entmax(x, 1.3) + pm.fusedmax(x), fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((3, 6), (2, 9), (5, 4)):
        x = torch.randn(shape, dtype=torch.float64, device=device)
        close(fn(x), pm.entmax(x, 1.3) + pm.fusedmax(x), "compiled with dynamic shapes")


@every(FUNCTIONAL)
def test_vmap(case, device):
    x = torch.randn(3, 4, 6, dtype=torch.float64, device=device)
    omega = case.regularizer()
    for method in ("argmax", "max"):
        fn = getattr(omega, method)
        close(vmap(fn)(x), fn(x), f"vmap of {method} is a batch")
        close(vmap(vmap(fn))(x), fn(x), f"vmap of vmap of {method} is a batch")
        close(vmap(fn, in_dims=1)(x), fn(x.transpose(0, 1)), f"vmap of {method} over another dim is a batch")


@every(FUNCTIONAL)
def test_functional_gradients(case, device):
    x = case.scores(rows=3, n=5).to(device)
    omega = case.regularizer()
    close(vmap(grad(omega.max))(x), omega.argmax(x), "torch.func.grad of max is argmax")
    loop = torch.stack([torch.autograd.functional.jacobian(omega.argmax, row) for row in x])
    close(vmap(jacrev(omega.argmax))(x), loop, "torch.func.jacrev is the Jacobian")
    close(torch.stack([jacrev(omega.argmax)(row) for row in x]), loop, "torch.func.jacrev is the Jacobian")
    if case.forward:
        close(vmap(jacfwd(omega.argmax))(x), loop, "torch.func.jacfwd is the Jacobian")
    second = vmap(grad(lambda row: grad(omega.max)(row).square().sum()))(x)
    close(second, 2 * torch.einsum("bij,bj->bi", loop, omega.argmax(x)), "torch.func.grad of grad")


@pytest.mark.parametrize("name", ["alpha", "gamma", "strength", "upper"])
def test_vmap_over_parameters(name, device):
    make = {
        "alpha": lambda t: pm.Tsallis(t),
        "gamma": lambda t: pm.Gini(t),
        "strength": lambda t: pm.Fused(t),
        "upper": lambda t: pm.Bounded(pm.Shannon(), upper=t),
    }[name]
    x = torch.randn(3, 6, dtype=torch.float64, device=device)
    values = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64, device=device)
    out = vmap(lambda row, t: make(t).argmax(row))(x, values)
    close(out, torch.stack([make(t).argmax(row) for row, t in zip(x, values)]), f"vmap over {name} is a loop")
    slopes = vmap(grad(lambda t, row: make(t).max(row)))(values, x)
    loop = torch.stack([grad(lambda t, row=row: make(t).max(row))(t) for row, t in zip(x, values)])
    close(slopes, loop, f"gradients under vmap over {name}")


def test_forward_mode_in_alpha(device):
    x = torch.randn(6, dtype=torch.float64, device=device)
    alpha = torch.tensor(1.4, dtype=torch.float64, device=device)
    for make in (pm.Tsallis, pm.Norm, pm.SquaredPNorm):
        forward = jacfwd(lambda a, make=make: make(a).argmax(x))(alpha)
        reverse = jacrev(lambda a, make=make: make(a).argmax(x))(alpha)
        close(forward, reverse, f"forward and reverse derivatives of {make.__name__} in alpha")


TRACED = {
    "custom": pm.Custom(lambda p: p.square().sum(-1)).argmax,
    "marginals": pm.Marginals(pm.Alignment()),
    "set": pm.SparseMap(pm.Assignment()),
    "relaxation": lambda x: pm.SparseMap(pm.FactorGraph(4, [pm.factors.xor([0, 1, 2, 3])]))(x).variables,
    "program": pm.HardMax(pm.FactorGraph(4, [pm.factors.xor([0, 1, 2, 3])])),
    "warping": pm.soft_dtw,
    "gaps": lambda x: pm.Marginals(pm.GappedAlignment(gap="linear"))(x, -1.0).pairs,
    "loss": lambda x: pm.sparsemax_loss(x, torch.tensor([0, 3])),
    "attention": lambda x: pm.nn.scaled_dot_product_attention(x, x, x),
    "straight": lambda x: pm.StraightThrough(pm.Subset(2))(x),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", [*MAPPINGS, *TRACED])
def test_torch_s_tracer_is_right_or_refused(name, gradient):
    """torch.jit.trace sees operations of torch: what kernels computed for the example would be constants."""
    call = {**MAPPINGS, **TRACED}[name]
    shape = (2, 3, 4) if name in ("marginals", "set", "warping", "gaps", "attention") else (2, 4)
    example, x = torch.randn(2, *shape)
    example.requires_grad_(gradient)
    if name == "hardmax":
        traced = torch.jit.trace(call, example, check_trace=False)
        close(traced(x), call(x), "a traced mapping is the mapping")
        return
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot record the kernels and solvers of polymax"):
        torch.jit.trace(lambda x: call(x), example, check_trace=False)
