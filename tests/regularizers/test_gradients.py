"""Derivatives of every regularizer, first and second, in the scores and in each parameter."""

import pytest
import torch
from cases import CASES, PARAMETERS, ROWS, every
from tolerances import close
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.functional import jacobian

import polymax as pm
from polymax.testing import generic_scores

# inside the range, so that finite differences do not leave it: see test_alpha for what happens at its end
INSIDE = {("alpha", 1.0): 1.05, ("strength", 0.0): 0.03, ("lower", 0.0): 0.02}
parameters = pytest.mark.parametrize(("case", "name"), PARAMETERS)


def two_values(case, name):
    """Two values of a parameter, and for each a row of scores away from kinks."""
    value = 1.3 if name == "gamma" else case.parameters[name]
    value = INSIDE.get((name, value), value)
    values = [value, value * 0.97 if value * 0.97 > INSIDE.get((name, 1.0), 0) else value * 1.02]
    rows = [generic_scores(case.regularizer(**{name: v}), 1, 6, seed)[0] for seed, v in enumerate(values)]
    return torch.tensor(values, dtype=torch.float64), torch.stack(rows)


@every(CASES)
def test_dim(case, device):
    x = case.scores(rows=2, n=5).T.to(device).contiguous().requires_grad_()
    omega = case.regularizer()
    gradcheck(lambda x: omega.argmax(x, dim=0), x, fast_mode=True)
    gradcheck(lambda x: omega.max(x, dim=0), x, fast_mode=True)


@every(CASES)
def test_jacobian(case, device):
    omega = case.regularizer()
    for x in case.scores(rows=3, n=6, seed=1).to(device):
        j = jacobian(omega.argmax, x)
        close(j, j.T, "the Jacobian is symmetric")
        close(j.sum(-1), torch.zeros_like(x), "the rows of the Jacobian sum to 0")
        assert torch.linalg.eigvalsh(j).min() > -1e-9, "the Jacobian is positive semidefinite"
        hessian = torch.autograd.functional.hessian(omega.max, x)
        close(hessian, j, "the Hessian of max is the Jacobian of argmax")


@every(CASES)
def test_float32(case, device):
    x = case.scores(rows=3, n=6, seed=2).to(device).float().double()
    direction = torch.randn(3, 6, device=device)
    exact, single = (
        torch.autograd.functional.vjp(case.regularizer().argmax, scores, direction.to(scores.dtype))[1]
        for scores in (x, x.float())
    )
    assert single.dtype == torch.float32
    assert (single - exact).abs().max() < 1e-4 * (1 + exact.abs().max()), "gradients in float32 are precise"


@parameters
def test_first(case, name, device):
    values, x = (t.to(device) for t in two_values(case, name))
    inputs = x.requires_grad_(), values.unsqueeze(-1).requires_grad_()
    gradcheck(lambda x, t: case.regularizer(**{name: t}).argmax(x), inputs)
    gradcheck(lambda x, t: case.regularizer(**{name: t}).max(x), inputs)


@parameters
def test_second(case, name, device):
    values, x = (t.to(device) for t in two_values(case, name))
    inputs = x.requires_grad_(), values.unsqueeze(-1).requires_grad_()
    gradgradcheck(lambda x, t: case.regularizer(**{name: t}).argmax(x), inputs, fast_mode=True)
    gradgradcheck(lambda x, t: case.regularizer(**{name: t}).max(x), inputs, fast_mode=True)


@pytest.mark.parametrize("method", ["argmax", "max"])
@parameters
def test_broadcast(case, name, method, device):
    """One value per head, wherever heads and rows stand, is a loop over heads; so are the gradients."""
    values, rows = (t.to(device) for t in two_values(case, name))
    # (batch, heads, n)
    x = torch.stack([rows, rows.flip(-1), 2 * rows])
    loop = []
    for head in range(2):
        inputs = x[:, head].clone().requires_grad_(), values[head].clone().requires_grad_()
        out = getattr(case.regularizer(**{name: inputs[1]}), method)(inputs[0])
        loop.append([out.detach(), *torch.autograd.grad(out.square().sum(), inputs)])
    expected, dx, dvalue = (torch.stack(parts, min(parts[0].dim(), 1)) for parts in zip(*loop))
    for order, shape in (("bhn", (2, 1)), ("bnh", (1, 2)), ("hnb", (2, 1, 1)), ("nbh", (2,))):
        dim, back = order.index("n"), [order.index(letter) for letter in "bhn"]
        scores = x.permute(["bhn".index(letter) for letter in order]).clone().requires_grad_()
        value = values.reshape(shape).clone().requires_grad_()
        out = getattr(case.regularizer(**{name: value}), method)(scores, dim=dim)
        slopes = torch.autograd.grad(out.square().sum(), (scores, value))
        out = out.permute(back) if method == "argmax" else out.unsqueeze(dim).permute(back).squeeze(-1)
        close(out, expected, f"a parameter of shape {shape} goes with its heads in {order}")
        close(
            slopes[0].permute(back),
            dx,
            f"gradients of the scores, with a parameter of shape {shape} in {order}",
        )
        close(slopes[1].flatten(), dvalue, f"gradients of a parameter of shape {shape} in {order}")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@parameters
def test_one_value(case, name, shape, device):
    values, x = (t.to(device) for t in two_values(case, name))
    number, tensor = float(values[0]), values[:1].reshape(shape).clone().requires_grad_()
    plain, learned = case.regularizer(**{name: number}), case.regularizer(**{name: tensor})
    close(learned.argmax(x), plain.argmax(x), "a tensor parameter is the number in it")
    close(learned.max(x), plain.max(x), "a tensor parameter is the number in it")
    p = plain.argmax(x).detach()
    close(learned.omega(p), plain.omega(p), "a tensor parameter is the number in it")
    (slope,) = torch.autograd.grad(learned.max(x).sum(), tensor)
    assert slope.shape == tensor.shape


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@every([case for case in ROWS if case.gamma is not None and case.least == 1])
def test_gamma_beside_a_forbidden_score(case, shape, device):
    """A score of -inf leaves the gradient in gamma as it is without that score."""
    x = case.scores(rows=2, n=6)
    gamma = torch.full(shape, 0.7, dtype=torch.float64, device=device, requires_grad=True)
    omega = case.regularizer(gamma=gamma)
    slopes = []
    for row in (x, torch.cat([x, torch.full((2, 1), -torch.inf, dtype=torch.float64)], -1)):
        p, best = omega.argmax(row.to(device)), omega.max(row.to(device))
        weights = torch.arange(7, dtype=torch.float64, device=device)[: p.shape[-1]]
        slopes.append(torch.autograd.grad((p * weights).sum() + best.sum(), gamma)[0])
    close(slopes[1], slopes[0], "the gradient in gamma beside a forbidden score")


@pytest.mark.parametrize("base", [pm.Shannon, pm.Gini], ids=lambda base: base.__name__)
def test_bound_of_each_entry(base, device):
    lower = torch.tensor([0.05, 0.0, 0.1, 0.02, 0.3], dtype=torch.float64, device=device)
    upper = torch.tensor([[0.2, 0.9, 0.3, 0.25, 0.6]], dtype=torch.float64, device=device)
    x = generic_scores(pm.Bounded(base(), lower.cpu(), upper.cpu()[0]), 2, 5).to(device)
    # finite differences need room below
    inputs = x.requires_grad_(), (lower + 0.01).requires_grad_(), upper.requires_grad_()

    def argmax(x, lower, upper):
        return pm.Bounded(base(), lower, upper).argmax(x)

    def value(x, lower, upper):
        return pm.Bounded(base(), lower, upper).max(x)

    for fn in (argmax, value):
        gradcheck(fn, inputs)
        gradgradcheck(fn, inputs)


def weighted(weight):
    """A user's regularizer with a tensor of its own."""
    return pm.Custom(lambda p: (weight * p.square()).sum(-1) / 2 - 0.1 * torch.special.entr(p).sum(-1))


@pytest.mark.parametrize("method", ["argmax", "max"])
def test_tensors_of_a_custom_function(method, device):
    x = torch.tensor([[0.3, -0.2, 0.5], [1.0, 0.1, -0.4]], dtype=torch.float64, device=device)
    weight = torch.tensor([1.0, 2.0, 1.5], dtype=torch.float64, device=device)
    inputs = x.requires_grad_(), weight.requires_grad_()
    gradcheck(lambda x, weight: getattr(weighted(weight), method)(x), inputs)


@every(CASES)
def test_gradients_are_functions_of_the_scores(case, device):
    """A gradient under create_graph is part of the graph, and can be derived again and again, also where it is 0."""
    omega = case.regularizer()
    x = case.scores(rows=2, n=5, seed=4).to(device).requires_grad_()
    direction = torch.randn(2, 5, dtype=x.dtype, device=device)
    (first,) = torch.autograd.grad(omega.argmax(x), x, direction, create_graph=True)
    assert first.requires_grad, "the gradient of argmax depends on the scores"
    (second,) = torch.autograd.grad(first, x, direction, create_graph=True)
    assert second.requires_grad, "and so does the second derivative"
    (third,) = torch.autograd.grad(second, x, direction)
    assert second.shape == third.shape == x.shape
    assert bool(third.isfinite().all())
    (slope,) = torch.autograd.grad(omega.max(x).sum(), x, create_graph=True)
    (change,) = torch.autograd.grad(slope, x, direction, create_graph=True)
    assert change.requires_grad, "the second derivative of max depends on the scores"
