"""The losses of chains by their own operator: the maximum less the score, in every derivative and layout."""

import pytest
import torch
from tolerances import close, equal
from torch.func import grad, hessian, jvp, vmap

import polymax as pm

B, N, S = 3, 4, 3
LENGTHS = torch.tensor([4, 2, 0])
SMOOTHINGS = {
    "hard": pm.HardMax,
    "shannon": pm.Marginals,
    "gini": lambda chain: pm.LocalMax(chain, pm.Gini()),
    "tsallis": lambda chain: pm.LocalMax(chain, pm.Tsallis(1.5)),
}
LAYOUTS = {"shared": (S, S), "of steps": (N - 1, S, S), "of instances": (B, 1, S, S), "of both": (B, N - 1, S, S)}
smoothings = pytest.mark.parametrize("smoothing", SMOOTHINGS)


def problem(layout="shared", device="cpu"):
    generator = torch.Generator().manual_seed(3)
    unary = torch.randn(B, N, 2 * S, generator=generator, dtype=torch.float64)[..., ::2]
    transition = torch.randn(LAYOUTS[layout], generator=generator, dtype=torch.float64).mT
    tags = torch.randint(S, (B, N), generator=generator)
    return unary.to(device), transition.to(device), torch.where(torch.arange(N) < LENGTHS[:, None], tags, -1).to(device)


def by_operator(smoothing, tags, lengths):
    smooth = SMOOTHINGS[smoothing](pm.Chain(lengths))
    zeros = [torch.zeros(*shape, device=tags.device) for shape in ((*tags.shape, S), (S, S))]
    assert smooth.loss_at(tags, *zeros) is not None
    return lambda *scores: pm.fenchel_young(smooth, scores, tags, reduction="none")


def by_definition(smoothing, tags, lengths):
    smooth = SMOOTHINGS[smoothing](pm.Chain(lengths))

    def loss(unary, transition):
        within = torch.arange(tags.shape[-1], device=tags.device) < lengths[..., None]
        tag = torch.where(within, tags, 0)
        states = torch.where(within, unary.gather(-1, tag[..., None])[..., 0], 0).sum(-1)
        every = transition.expand(*tags.shape[:-1], tags.shape[-1] - 1, S, S).flatten(-2)
        steps = every.gather(-1, (tag[..., :-1] * S + tag[..., 1:])[..., None])[..., 0]
        return smooth.max(unary, transition) - states - torch.where(within[..., 1:], steps, 0).sum(-1)

    return loss


@smoothings
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_gradients(layout, smoothing, device):
    *scores, tags = problem(layout, device)
    results = []
    for make in (by_operator, by_definition):
        x = [t.detach().requires_grad_() for t in scores]
        losses = make(smoothing, tags, LENGTHS.to(device))(*x)
        weights = torch.arange(1.0, 1 + B, dtype=torch.float64, device=device)
        results.append((losses.detach(), *torch.autograd.grad((losses * weights).sum(), x)))
    for found, expected in zip(*results, strict=True):
        close(found, expected, "the loss is the maximum less the score")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@smoothings
def test_derivatives_of_functions(smoothing, device):
    unary, transition, tags = problem(device=device)
    lengths = LENGTHS.to(device)
    along = torch.ones_like(unary), transition
    results = []
    for make in (by_operator, by_definition):
        loss = make(smoothing, tags, lengths)
        found = [*jvp(loss, (unary, transition), along), grad(lambda w, f=loss: f(unary, w).sum())(transition)]
        if smoothing != "hard":
            found += hessian(lambda *x, f=loss: f(*x).sum(), argnums=(0, 1))(unary, transition)[1]
        mapped = vmap(lambda x, w, y, n, f=make: grad(lambda x: f(smoothing, y, n)(x, w).sum())(x), (0, None, 0, 0))
        results.append([*found, mapped(unary, transition, tags, lengths)])
    for found, expected in zip(*results, strict=True):
        close(found, expected, "transformed losses are the maximum less the score")


@pytest.mark.parametrize("smoothing", ["shannon", "gini"])
def test_third_derivatives(smoothing, device):
    unary, transition, tags = problem(device=device)
    results = []
    for make in (by_operator, by_definition):
        x = [t.detach().requires_grad_() for t in (unary, transition)]
        found = make(smoothing, tags, LENGTHS.to(device))(*x).sum()
        for k in range(2):
            slopes = torch.autograd.grad(found, x, create_graph=True)
            found = sum((s * torch.cos(x_ + k)).sum() for s, x_ in zip(slopes, x, strict=True))
        results.append(torch.autograd.grad(found, x))
    for found, expected in zip(*results, strict=True):
        close(found, expected, "third derivatives are those of the maximum")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@smoothings
def test_forbidden_tags_have_no_derivative(smoothing, device):
    unary, transition, tags = problem(device=device)
    lengths = torch.full((B,), N, device=device)
    tags = tags.clamp(min=0)
    unary[0, 1, tags[0, 1]] = -torch.inf
    loss = by_operator(smoothing, tags, lengths)
    for create_graph in (False, True):
        x = unary.clone().requires_grad_()
        losses = loss(x, transition)
        assert losses[0] == torch.inf
        assert bool(losses[1:].isfinite().all())
        (slope,) = torch.autograd.grad(losses[1:].sum() + losses[0], x, create_graph=create_graph)
        assert not slope[0].any()
        assert bool(slope[1].any())
    moved = jvp(lambda x: loss(x, transition), (unary,), (torch.ones_like(unary),))[1]
    assert moved[0] == 0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_compiled_losses(device):
    unary, transition, tags = problem(device=device)
    loss = by_operator("shannon", tags, LENGTHS.to(device))
    torch._dynamo.reset()
    results = []
    for call in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)):
        x = [t.detach().requires_grad_() for t in (unary, transition)]
        losses = call(*x)
        results.append((losses.detach(), *torch.autograd.grad(losses.sum(), x)))
    for eager, compiled in zip(*results, strict=True):
        close(compiled, eager, "compiled losses are the losses")


def test_batches_of_any_shape():
    unary, transition, tags = problem("of both")
    loss = by_operator("shannon", tags, LENGTHS)(unary, transition)
    wide = unary.expand(2, 1, B, N, S), transition.expand(2, 1, B, N - 1, S, S)
    found = by_operator("shannon", tags.expand(2, 1, B, N), LENGTHS.expand(2, 1, B))(*wide)
    equal(found, loss.expand(2, 1, B), "dimensions of a batch are instances")
    alone = pm.crf_loss(pm.Chain(), (unary[0], transition[0]), tags[0])
    close(alone, loss[0], "a single chain is a batch of one")
