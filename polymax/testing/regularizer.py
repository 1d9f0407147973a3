"""Does a regularizer of your own keep the laws that the rest of the library relies on?"""

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from polymax.regularizers import Regularizer


def check_regularizer(regularizer: Regularizer, n: int = 5, seed: int = 0, total: float = 1.0) -> None:
    """Check every law of a regularizer on random rows of n scores; AssertionError names the first broken one.

    The laws: weights are nonnegative and sum to `total`; they are optimal, and max is the optimal value; the
    gradient of max is argmax; a constant added to the scores changes nothing; a mask is a crop; any dim;
    first and second derivatives are those of finite differences. Parameters are numbers, or tensors of one element.

    Example:
        >>> from polymax import Gini
        >>> check_regularizer(Gini())
    """
    x = generic_scores(regularizer, 3, n, seed)
    for law in _LAWS:
        name = (law.__doc__ or "").rstrip(".")
        try:
            broken = law(regularizer, x, total)
        except Exception as error:
            raise AssertionError(f"{regularizer} breaks a law: {name}; {error}") from error
        if broken is not None:
            raise AssertionError(f"{regularizer} breaks a law: {name}; {broken}")


def generic_scores(regularizer: Regularizer, rows: int, n: int, seed: int = 0, margin: float = 1e-2) -> Tensor:
    """Random float64 scores `(rows, n)` at which finite differences make sense: no kink is near.

    A kink is where a weight starts to move, or two weights start to differ, when a score moves by the margin.

    Example:
        >>> generic_scores(pm.Gini(), 2, 3).shape
        torch.Size([2, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    steps = margin * torch.eye(n, dtype=torch.float64)
    found: list[Tensor] = []
    for _ in range(1000):
        x = torch.randn(n, dtype=torch.float64, generator=generator)
        y, up, down = (regularizer.argmax(z) for z in (x, x + steps, x - steps))
        order = [torch.sign(z.unsqueeze(-1) - z.unsqueeze(-2)) for z in (y, up, down)]
        smooth = bool(
            ((up != y) == (down != y)).all() and (order[1] == order[0]).all() and (order[2] == order[0]).all()
        )
        if smooth:
            found.append(x)
        if len(found) == rows:
            return torch.stack(found)
    raise AssertionError(f"{regularizer} has a kink within {margin} of almost every row of {n} scores")


def _simplex(r: Regularizer, x: Tensor, total: float) -> str | None:
    """Weights are nonnegative, sum to the total and keep shape and dtype."""
    for scores in (x, x.float(), x[0]):
        y = r.argmax(scores)
        if y.shape != scores.shape or y.dtype != scores.dtype:
            return f"{scores.dtype} {tuple(scores.shape)} became {y.dtype} {tuple(y.shape)}"
        if not bool((y >= 0).all()):
            return f"a weight is {float(y.detach().min()):g}"
        if problem := _apart(y.sum(-1), torch.full_like(y.sum(-1), total)):
            return problem
    return None


def _fenchel_young(r: Regularizer, x: Tensor, total: float) -> str | None:
    """max(x) + omega(y) == <x, y> at y = argmax(x)."""
    y = r.argmax(x)
    return _apart(r.max(x) + r.omega(y), (x * y).sum(-1))


def _optimal(r: Regularizer, x: Tensor, total: float) -> str | None:
    """<x, q> - omega(q) is at most max(x) at any other point q."""
    points = r.argmax(torch.cat([x.roll(1, 0), x + 0.1 * x.roll(1, -1), 3 * x, 0 * x]))
    values = (x.unsqueeze(-2) * points).sum(-1) - r.omega(points)
    excess = float((values - r.max(x).unsqueeze(-1)).detach().max())
    return f"a point is better by {excess:g}" if excess > 1e-8 else None


def _envelope(r: Regularizer, x: Tensor, total: float) -> str | None:
    """The gradient of max is argmax."""
    scores = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(r.max(scores).sum(), scores)
    return _apart(gradient, r.argmax(x))


def _shift(r: Regularizer, x: Tensor, total: float) -> str | None:
    """argmax(x + c) == argmax(x), and max(x + c) == max(x) + c times the total."""
    return _apart(r.argmax(x + 3), r.argmax(x)) or _apart(r.max(x + 3), r.max(x) + 3 * total)


def _mask(r: Regularizer, x: Tensor, total: float) -> str | None:
    """A masked entry is an absent entry, and so is a score of -inf."""
    n = x.shape[-1]
    if n < 2:
        return None
    keep = torch.arange(n) != n // 2
    crop, gone = x[:, keep], x.masked_fill(~keep, -torch.inf)
    expected = torch.zeros_like(x)
    expected[:, keep] = r.argmax(crop)
    return (
        _apart(r.argmax(x, mask=keep), expected)
        or _apart(r.argmax(gone), expected)
        or _apart(r.max(x, mask=keep), r.max(crop))
    )


def _dead(r: Regularizer, x: Tensor, total: float) -> str | None:
    """A row of -inf gets zeros, and -inf as its max."""
    dead = torch.full_like(x[0], -torch.inf)
    return _apart(r.argmax(dead), torch.zeros_like(dead)) or _apart(r.max(dead), dead[0])


def _dim(r: Regularizer, x: Tensor, total: float) -> str | None:
    """The row can be along any dim."""
    return _apart(r.argmax(x.T, dim=0).T, r.argmax(x)) or _apart(r.max(x.T, dim=0), r.max(x))


def _first(r: Regularizer, x: Tensor, total: float) -> str | None:
    """First derivatives are those of finite differences."""
    gradcheck(r.argmax, x[:2].clone().requires_grad_())
    gradcheck(r.max, x[:2].clone().requires_grad_())
    return None


def _second(r: Regularizer, x: Tensor, total: float) -> str | None:
    """Second derivatives are those of finite differences."""
    gradgradcheck(r.argmax, x[:2].clone().requires_grad_())
    gradgradcheck(r.max, x[:2].clone().requires_grad_())
    return None


_LAWS = (_simplex, _fenchel_young, _optimal, _envelope, _shift, _mask, _dead, _dim, _first, _second)


def _apart(actual: Tensor, expected: Tensor) -> str | None:
    tolerance = 1e-5 if actual.dtype == torch.float32 else 1e-8
    if torch.allclose(actual, expected, rtol=tolerance, atol=tolerance):
        return None
    return f"{actual.tolist()} is not {expected.tolist()}"
