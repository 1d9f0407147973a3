"""Any strictly convex Omega written in torch: projected gradient forward, implicit differentiation backward."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import has_values, refuse_trace, tracing
from polymax.backend.widen import wide
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold import threshold as project
from polymax.regularizers.base import Regularizer
from polymax.regularizers.custom_traced import traced_argmax
from polymax.regularizers.entropies import positive


@dataclass(frozen=True)
class Custom(Regularizer):
    """A user's own Omega: `fn` maps `(*batch, n)` to `(*batch,)`, strictly convex and differentiable on the simplex.

        argmax over p in the simplex of <x, p> - gamma fn(p)

    fn is evaluated row by row: the value of a row may not depend on the others. Tensors that fn closes over get
    first derivatives too. For torch.compile, fn must be made outside of the compiled function. The solver stops when
    Newton's next step would change p by less than `tol`, or after `max_iter` steps, with a warning.

    Example:
        >>> Custom(lambda p: p.square().sum(-1) / 2).argmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 0.7500])

    See: Niculae and Blondel 2017, Proposition 1, for the Jacobian.
    """

    closes_over_tensors = True
    fn: Callable[[Tensor], Tensor]
    gamma: float | Tensor = 1.0
    max_iter: int = 200
    tol: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn must be callable; got {type(self.fn).__name__}")
        positive(self.gamma, "gamma")
        _check.number(self.max_iter, "max_iter", "positive", lambda m: m > 0)

    def argmax_rows(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not has_values(x):
            return traced_argmax(self, x)
        if tracing():
            refuse_trace()
        if torch.is_inference_mode_enabled():
            # the solver needs the derivatives of fn
            with torch.inference_mode(False), torch.no_grad():
                return self.argmax_rows(x.clone())
        scores = wide(x)
        p = _solve(self, scores.detach())
        learned = self.fn(p).requires_grad
        if not (learned or scores.requires_grad):
            return p.to(x.dtype)
        # x - grad Omega(p) carries the graph of x and of fn's own tensors; Implicit turns it into that of p
        gradient = _gradient(self.fn, p)
        residual = torch.where(scores > -torch.inf, scores, 0) - (gradient if learned else gradient.detach())
        return Implicit.apply(residual, p, self.fn).to(x.dtype)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        value = self.fn(p)
        if value.shape != p.shape[:-1]:
            raise ValueError(f"fn must map {tuple(p.shape)} to {tuple(p.shape[:-1])}; got {tuple(value.shape)}")
        return value


class Implicit(Function):
    """The solution p as a function of the residual r = x - grad Omega(p): dp = J dr with (I + A (B - I)) J = A.

    A is the Jacobian of the projection, B the Hessian of Omega. On the face of p, A is the orthogonal projection
    on directions that sum to 0, so w = J v solves A B w = A v there: conjugate gradients, without forming B or J.
    """

    @staticmethod
    def forward(ctx: Any, residual: Tensor, p: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.fn = fn
        out = p.clone()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        (p,) = ctx.saved_tensors
        return _jacobian(ctx.fn, p, v), None, None


class _LinearSolve(Function):
    """J r at a fixed point p: linear and symmetric in r."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, p: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.fn, ctx.p = fn, p
        return conjugate_gradients(fn, p, r)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, None, None]:
        return _LinearSolve.apply(u, ctx.p, ctx.fn), None, None


def _jacobian(fn: Callable[[Tensor], Tensor], p: Tensor, v: Tensor) -> Tensor:
    """J v; differentiable in p and v if gradients are enabled."""
    w = conjugate_gradients(fn, p.detach(), v.detach())
    if not torch.is_grad_enabled():
        return w
    # w + J (v - B(p) w) has the value w, and the derivatives of the solution of the linear system
    return w + _LinearSolve.apply(v - _hessian_product(fn, p, w), p.detach(), fn)


def conjugate_gradients(fn: Callable[[Tensor], Tensor], p: Tensor, v: Tensor) -> Tensor:
    """w on the support of p with sum 0 and B w = v up to a constant."""
    # row sums are the diagonal of a separable Omega's Hessian, which makes one step exact; otherwise a scale
    diagonal = _hessian_product(fn, p, (p > 0).to(p.dtype)).detach()
    # where the curvature overflows, nothing moves
    support = (p > 0) & torch.isfinite(diagonal)
    usable = support & (diagonal > 0)
    inverse = torch.where(usable, 1 / torch.where(usable, diagonal, 1), support.to(p.dtype))
    mass = inverse.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)

    def centre(r: Tensor) -> Tensor:
        # a constant is the multiplier of the sum; without the constant, r goes to 0 and inverse * r sums to 0
        return torch.where(support, r - (inverse * r).sum(-1, keepdim=True) / mass, 0)

    r = centre(torch.where(support, v, 0))
    w, z = torch.zeros_like(r), inverse * r
    d = z
    rz = (r * z).sum(-1, keepdim=True)
    floor = rz * torch.finfo(p.dtype).eps ** 2
    for _ in range(2 * p.shape[-1] + 10):
        bd = torch.where(support, _hessian_product(fn, p, d).detach(), 0)
        curvature = (d * bd).sum(-1, keepdim=True)
        active = (rz > floor) & (curvature > 0)
        if not bool(active.any()):
            break
        step = torch.where(active, rz / torch.where(active, curvature, 1), 0)
        w, r = w + step * d, centre(r - step * bd)
        z = inverse * r
        new = torch.where(active, (r * z).sum(-1, keepdim=True), 0)
        d = z + torch.where(active, new / torch.where(active, rz, 1), 0) * d
        rz = new
    return w


def _gradient(fn: Callable[[Tensor], Tensor], p: Tensor) -> Tensor:
    """grad Omega(p) on the support, with a graph to fn's own tensors and, if p has one, to p."""
    return _derivatives(fn, p, None)


def _hessian_product(fn: Callable[[Tensor], Tensor], p: Tensor, w: Tensor) -> Tensor:
    """B(p) w on the support, where B is the Hessian of Omega."""
    return _derivatives(fn, p, w)


def _derivatives(fn: Callable[[Tensor], Tensor], p: Tensor, w: Tensor | None) -> Tensor:
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        point = p.view_as(p) if p.requires_grad else p.detach().requires_grad_()
        # an entry of exactly 0 is outside the face: use a constant slightly above 0, where derivatives are finite
        inside = torch.where(p > 0, point, torch.finfo(p.dtype).eps ** 2)
        (out,) = torch.autograd.grad(fn(inside).sum(), point, create_graph=graph or w is not None)
        if w is not None:
            if not out.requires_grad:
                return torch.zeros_like(p)
            (out,) = torch.autograd.grad(out, point, w.detach(), create_graph=graph, materialize_grads=True)
    return torch.where(p > 0, out, 0)


@torch.no_grad()
def _solve(omega: Custom, x: Tensor) -> Tensor:
    """Projected gradient finds the face, Newton on the face finds the point: they take turns.

    The projected steps are spectral (Birgin, Martinez and Raydan 2000); Newton's system is that of the backward pass.
    Both search along a feasible direction, so that a step short of 1 keeps entries positive: the way back from a
    boundary where the slope of Omega is infinite.
    """
    broken = x.isnan().any(-1, keepdim=True)
    keep = (x > -torch.inf) & ~broken
    if not x.numel():
        return x.clone()
    top = torch.where(keep, x, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    # no weight is left that far below the top, and products with the scores do not overflow
    scores = torch.where(keep, x - top, 0).clamp(min=-(torch.finfo(x.dtype).max ** 0.5))
    eps = torch.finfo(x.dtype).eps
    # the last Newton step is taken, too, and squares the remaining error
    tol = omega.tol if omega.tol is not None else eps**0.75
    p = torch.where(keep, 1.0, 0.0).to(x.dtype) / keep.sum(-1, keepdim=True).clamp(min=1)
    omega.omega_rows(p)

    def objective(p: Tensor) -> Tensor:
        return (omega.fn(p) - (scores * p).sum(-1)).unsqueeze(-1)

    def slope(p: Tensor) -> Tensor:
        with torch.enable_grad():
            point = p.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(omega.fn(point).sum(), point)
        return torch.where(keep, gradient.detach() - scores, 0)

    value, g = objective(p), slope(p)
    size = torch.ones_like(value)
    for iteration in range(omega.max_iter):
        # a vanishing entry would shorten Newton's steps: it is left to the projection
        vanishing = (p < eps**2) & (g > (g * p).sum(-1, keepdim=True))
        newton = conjugate_gradients(omega.fn, torch.where(vanishing, 0, p), -g)
        residual = torch.maximum(newton.abs().amax(-1, keepdim=True), _outside(p, g, keep))
        busy = residual > tol
        if not bool(busy.any()):
            p = (p + newton).clamp(min=0)
            break
        if iteration % 2:
            shrinks = newton < 0
            reach = torch.where(shrinks, -p / torch.where(shrinks, newton, 1), torch.inf)
            direction = newton * reach.amin(-1, keepdim=True).clamp(max=1)
        else:
            moved = (p - size * g).masked_fill(~keep, -torch.inf)
            direction = project(moved, 2.0, TSALLIS, None) - p
        direction = torch.where(torch.isfinite(direction) & busy, direction, 0)
        descent = (g * direction).sum(-1, keepdim=True)
        step = torch.ones_like(value)
        for shrink in (0.99, *[0.5] * 30):
            trial = (p + step * direction).clamp(min=0)
            trial_value, trial_g = objective(trial), slope(trial)
            bound = value + 1e-4 * step * descent + 4 * eps * (value.abs() + 1)
            fails = ~(trial_value <= bound) | ~torch.isfinite(trial_g).all(-1, keepdim=True)
            if not bool(fails.any()):
                break
            step = torch.where(fails, step * shrink, step)
        trial, trial_g = torch.where(fails, p, trial), torch.where(fails, g, trial_g)
        change = trial - p
        curvature = (change * (trial_g - g)).sum(-1, keepdim=True)
        size = torch.where(curvature > 0, change.square().sum(-1, keepdim=True) / curvature, size)
        p, g, value = trial, trial_g, torch.where(fails, value, trial_value)
    else:
        warnings.warn(
            f"Custom stopped after {omega.max_iter} steps at a residual of {float(residual.max()):.1e}, "
            f"above its tol of {tol:.1e}",
            stacklevel=4,
        )
    p = p / p.sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.where(broken, torch.nan, p)


def _outside(p: Tensor, g: Tensor, keep: Tensor) -> Tensor:
    """The steepest descent of the objective from p towards an entry of weight 0; at most 0 at the optimum."""
    best = (-g).masked_fill(~keep | (p > 0), -torch.inf).amax(-1, keepdim=True)
    return best + (g * p).sum(-1, keepdim=True)
