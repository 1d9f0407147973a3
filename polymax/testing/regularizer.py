"""The laws that a regularizer of your own must keep, because the library relies on them."""

from dataclasses import fields, replace

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from polymax.regularizers import Regularizer
from polymax.testing.law import Law, keep


def check_regularizer(regularizer: Regularizer, n: int = 5, seed: int = 0, total: float = 1.0) -> None:
    """Check every law of a regularizer on random rows of n scores; AssertionError names the first broken one.

    The laws are those of `regularizer_laws`.

    Example:
        >>> from polymax import Gini
        >>> check_regularizer(Gini())
    """
    keep(regularizer_laws(regularizer, n, seed=seed, total=total))


def regularizer_laws(regularizer: Regularizer, *sizes: int, seed: int = 0, total: float = 1.0) -> list[Law]:
    """The laws of a regularizer, as tests to be called, on random rows of each of the sizes (5 if none is given).

    The laws: weights are nonnegative and sum to `total`; they are optimal, and max is the optimal value; the gradient
    of max is argmax; a constant added to the scores changes nothing; a mask is a crop; any dim; the result of a row
    does not depend on the other rows, even if these have NaN; rows of length 0, large and tiny scores, and half
    precision; first and second derivatives are those of finite differences, and finite in the parameters of masked
    rows. Parameters are numbers, or tensors of one element.

    Example:
        >>> for law in pm.testing.regularizer_laws(pm.Gini(), 1, 4):
        ...     law()

        In a test file:

            @pytest.mark.parametrize("law", pm.testing.regularizer_laws(MyOmega()))
            def test_my_omega(law):
                law()
    """
    found = []
    for n in sizes or (5,):
        x = generic_scores(regularizer, 3, n, seed)
        found += [Law(regularizer, check, (x, total), str(n) if len(sizes) > 1 else "") for check in _LAWS]
    return found


def generic_scores(regularizer: Regularizer, rows: int, n: int, seed: int = 0, margin: float = 1e-2) -> Tensor:
    """Random float64 scores `(rows, n)` at which finite differences make sense: no kink is near.

    At a kink a weight starts to move, or two weights start to differ, if a score moves by the margin.

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


def _weights_are_on_the_simplex(r: Regularizer, x: Tensor, total: float) -> str | None:
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


def _fenchel_young_equality(r: Regularizer, x: Tensor, total: float) -> str | None:
    """max(x) + omega(y) == <x, y> at y = argmax(x)."""
    y = r.argmax(x)
    return _apart(r.max(x) + r.omega(y), (x * y).sum(-1))


def _weights_are_optimal(r: Regularizer, x: Tensor, total: float) -> str | None:
    """<x, q> - omega(q) is at most max(x) at any other point q."""
    points = r.argmax(torch.cat([x.roll(1, 0), x + 0.1 * x.roll(1, -1), 3 * x, 0 * x]))
    values = (x.unsqueeze(-2) * points).sum(-1) - r.omega(points)
    excess = float((values - r.max(x).unsqueeze(-1)).detach().max())
    return f"a point is better by {excess:g}" if excess > 1e-8 else None


def _gradient_of_max_is_argmax(r: Regularizer, x: Tensor, total: float) -> str | None:
    """The gradient of max is argmax."""
    scores = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(r.max(scores).sum(), scores)
    return _apart(gradient, r.argmax(x))


def _shifts_change_nothing(r: Regularizer, x: Tensor, total: float) -> str | None:
    """argmax(x + c) == argmax(x), and max(x + c) == max(x) + c times the total."""
    return _apart(r.argmax(x + 3), r.argmax(x)) or _apart(r.max(x + 3), r.max(x) + 3 * total)


def _a_mask_is_a_crop(r: Regularizer, x: Tensor, total: float) -> str | None:
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


def _rows_without_an_entry(r: Regularizer, x: Tensor, total: float) -> str | None:
    """A row of -inf gets zeros, and -inf as its max."""
    dead = torch.full_like(x[0], -torch.inf)
    return _apart(r.argmax(dead), torch.zeros_like(dead)) or _apart(r.max(dead), dead[0])


def _any_dim(r: Regularizer, x: Tensor, total: float) -> str | None:
    """The row can be along any dim."""
    return _apart(r.argmax(x.T, dim=0).T, r.argmax(x)) or _apart(r.max(x.T, dim=0), r.max(x))


def _first_derivatives(r: Regularizer, x: Tensor, total: float) -> str | None:
    """First derivatives are those of finite differences."""
    gradcheck(r.argmax, x[:2].clone().requires_grad_())
    gradcheck(r.max, x[:2].clone().requires_grad_())
    return None


def _second_derivatives(r: Regularizer, x: Tensor, total: float) -> str | None:
    """Second derivatives are those of finite differences."""
    gradgradcheck(r.argmax, x[:2].clone().requires_grad_())
    gradgradcheck(r.max, x[:2].clone().requires_grad_())
    return None


def _rows_are_independent(r: Regularizer, x: Tensor, total: float) -> str | None:
    """A row has the same weights alone, in another order, and beside a row of NaN, which has weights of NaN."""
    whole = r.argmax(x)
    beside = torch.cat([x[:1], torch.full_like(x[:1], torch.nan), x[1:]])
    if not bool(r.argmax(beside)[1].isnan().all()) or not bool(r.max(beside)[1].isnan()):
        return f"a row of NaN has weights {r.argmax(beside)[1].tolist()}"
    one = beside.clone()
    one[1] = x[0]
    one[1, -1] = torch.nan
    if not bool(r.argmax(one)[1].isnan().any()):
        return f"a row with one NaN has weights {r.argmax(one)[1].tolist()}"
    kept = [0, *range(2, len(beside))]
    return (
        _apart(r.argmax(beside)[kept], whole)
        or _apart(r.max(one)[kept], r.max(x))
        or _apart(r.argmax(x.flip(0)).flip(0), whole)
        or _apart(torch.cat([r.argmax(row.unsqueeze(0)) for row in x]), whole)
    )


def _rows_of_no_scores(r: Regularizer, x: Tensor, total: float) -> str | None:
    """Rows of length 0 have no weights, and their max is -inf; a batch without rows has an empty result."""
    empty = x[:, :0]
    if r.argmax(empty).shape != empty.shape or r.argmax(x[:0]).shape != x[:0].shape:
        return f"{tuple(empty.shape)} became {tuple(r.argmax(empty).shape)}"
    return _apart(r.max(empty), torch.full_like(x[:, 0], -torch.inf))


def _large_and_tiny_scores(r: Regularizer, x: Tensor, total: float) -> str | None:
    """Scores of 1e4 and of -1e30 have finite weights that sum to the total, and finite gradients."""
    low = x.clone()
    low[:, 0] = -1e30
    for scores in (1e4 * x, 1e4 * x.float(), *((low,) if x.shape[-1] > 1 else ())):
        given = scores.clone().requires_grad_()
        y = r.argmax(given)
        if not bool(y.isfinite().all()) or not bool((y >= 0).all()):
            return f"the weights are {y.tolist()}"
        if problem := _apart(y.sum(-1), torch.full_like(y.sum(-1), total)):
            return problem
        (slope,) = torch.autograd.grad((y * torch.arange(y.shape[-1], dtype=y.dtype)).sum(), given)
        if not bool(slope.isfinite().all()):
            return f"the gradient is {slope.tolist()}"
        if not bool(r.max(scores).isfinite().all()):
            return f"max is {r.max(scores).tolist()}"
    return None


def _half_precision(r: Regularizer, x: Tensor, total: float) -> str | None:
    """Weights of float16 and bfloat16 scores are those of the same scores in float64, rounded."""
    for dtype, tolerance in ((torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        half = x.to(dtype)
        y, value = r.argmax(half), r.max(half)
        if y.dtype != dtype or value.dtype != dtype:
            return f"{dtype} became {y.dtype} and {value.dtype}"
        for came, exact in ((y, r.argmax(half.double())), (value, r.max(half.double()))):
            if not torch.allclose(came.double(), exact, rtol=tolerance, atol=tolerance):
                return f"{came.tolist()} is not {exact.tolist()}"
    return None


def _parameters_beside_masked_rows(r: Regularizer, x: Tensor, total: float) -> str | None:
    """A parameter that is learned has the same finite gradient if a row of -inf stands beside the others."""
    dead = torch.cat([x, torch.full_like(x[:1], -torch.inf)])
    part = dead.clone()
    part[0, :1] = -torch.inf
    weights = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    for field in fields(r):  # type: ignore[arg-type]
        value = getattr(r, field.name)
        if not isinstance(value, float):
            continue
        slopes = []
        for scores in (x, dead, part):
            learned = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            try:
                own = replace(r, **{field.name: learned})  # type: ignore[type-var]
            except TypeError:
                break
            y = own.argmax(scores)
            kept = own.max(scores)
            total_of = (y * weights).sum() + torch.where(kept == -torch.inf, 0, kept).sum()
            if not total_of.requires_grad:
                break
            (slope,) = torch.autograd.grad(total_of, learned)
            slopes.append(slope)
        if not all(bool(s.isfinite()) for s in slopes):
            return f"the gradient of {field.name} is {[float(s) for s in slopes]}"
        if len(slopes) == 3 and (problem := _apart(slopes[1], slopes[0])):
            return f"{field.name}: {problem}"
    return None


_LAWS = (
    _weights_are_on_the_simplex,
    _fenchel_young_equality,
    _weights_are_optimal,
    _gradient_of_max_is_argmax,
    _shifts_change_nothing,
    _a_mask_is_a_crop,
    _rows_without_an_entry,
    _any_dim,
    _first_derivatives,
    _second_derivatives,
    _rows_are_independent,
    _rows_of_no_scores,
    _large_and_tiny_scores,
    _half_precision,
    _parameters_beside_masked_rows,
)


def _apart(actual: Tensor, expected: Tensor) -> str | None:
    tolerance = 1e-5 if actual.dtype == torch.float32 else 1e-8
    if torch.allclose(actual, expected, rtol=tolerance, atol=tolerance):
        return None
    return f"{actual.tolist()} is not {expected.tolist()}"
