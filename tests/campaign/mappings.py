"""Trials of mappings on the simplex: weights are feasible and reach the best objective, values and gradients agree."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cases
import numpy as np
import oracles
import torch
from torch import Tensor

import polymax as pm
from polymax.regularizers.bounded import Budget
from tests.campaign import hostile, truths
from tests.campaign.hostile import Draw

LONG = np.longdouble
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 257, 1000)


@dataclass(frozen=True)
class Mapping:
    """A regularizer with parameters that are drawn, and the truth about it at gamma = 1.

    `parameters(draw, n)` are numbers; `best(x, **parameters)` is an upper bound of the objective of a row, `weights`
    the maximizer where it is known, `omega(p, **parameters)` the formula. With `per_row`, parameters may be tensors of
    a number for each row; `rows` is how many rows a trial has where they are short.
    """

    make: Callable[..., pm.Regularizer]
    parameters: Callable[[Draw, int], dict[str, float]]
    omega: Callable[..., Any]
    weights: Callable[..., Any] | None = None
    best: Callable[..., Any] | None = None
    heated: bool = True
    per_row: bool = True
    rows: int = 30


def _oracle(solve):
    """An oracle of tests/oracles.py for one row in extended precision."""

    def weights(x, **parameters):
        return solve(torch.from_numpy(np.asarray(x - x.max(), np.float64)), **parameters).numpy().astype(LONG)

    return weights


def _gini(p):
    return ((p * p).sum() - 1) / 2


def _entropy(p):
    return np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum()


def _tsallis(p, alpha):
    if alpha - 1 < 1e-6:
        # (p^a - 1) / a by its series in a = alpha - 1
        log = np.log(np.where(p > 0, p, 1))
        return (p * log * (1 + LONG(alpha - 1) * log / 2)).sum() / LONG(alpha)
    return ((p ** LONG(alpha)).sum() - 1) / (LONG(alpha) * (LONG(alpha) - 1))


def _norm(p, alpha):
    return (p ** LONG(alpha)).sum() ** (1 / LONG(alpha)) - 1


def _squared_norm(p, exponent):
    return ((p ** LONG(exponent)).sum() ** (2 / LONG(exponent)) - 1) / 2


def _fused(p, strength):
    return _gini(p) + strength * np.abs(np.diff(p)).sum()


def _oscar(p, strength):
    return _gini(p) + strength * (np.sort(p)[::-1] * np.arange(p.size - 1, -1, -1)).sum()


def _one_group(p, strength):
    return _gini(p) + strength * np.sqrt(p.size * (p * p).sum())


def _exponent(*known):
    def draw_exponent(draw: Draw, n: int) -> float:
        return draw.choice(known) if draw.chance(0.7) else draw.random.uniform(min(k for k in known if k > 1), 4)

    return draw_exponent


def _bounds(draw: Draw, n: int) -> dict[str, float]:
    count = max(n, 1)
    return {
        "lower": draw.choice([0.0, 0.0, 0.0, 0.3 / count, 1 / count]),
        "upper": draw.choice([1.0, 1.0, 1.5 / count, 2 / count, 1 / count, 0.4 if count > 2 else 1.0]),
    }


def _fertile(draw: Draw, n: int) -> dict[str, float]:
    return {"k": draw.choice([1.0, 2.0, 2.5, n / 2, float(n), 0.5]) if n > 2 else 1.0}


ENTMAX = _exponent(1.0, 1 + 1e-8, 1 + 1e-4, 1.1, 1.25, 4 / 3, 1.5, 1.5, 1.75, 2.0, 2.5, 3.0, 5.0)
NORMMAX = _exponent(1.25, 1.5, 2.0, 3.0, 5.0)
STRENGTH = (0.0, 1e-3, 0.1, 0.25, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 50.0)

MAPPINGS = {
    "hardmax": Mapping(pm.Zero, lambda d, n: {}, lambda p: 0, best=lambda x: x.max(), heated=False),
    "softmax": Mapping(pm.Shannon, lambda d, n: {}, _entropy, _oracle(oracles.shannon)),
    "sparsemax": Mapping(pm.Gini, lambda d, n: {}, _gini, best=truths.gini_value, weights=_oracle(oracles.gini)),
    "entmax": Mapping(pm.Tsallis, lambda d, n: {"alpha": ENTMAX(d, n)}, _tsallis, _oracle(oracles.tsallis)),
    "normmax": Mapping(pm.Norm, lambda d, n: {"alpha": NORMMAX(d, n)}, _norm, _oracle(oracles.norm)),
    "sq_pnorm_max": Mapping(
        pm.SquaredPNorm,
        lambda d, n: {"p": NORMMAX(d, n)},
        lambda y, p: _squared_norm(y, p),
        _oracle(oracles.squared_norm),
    ),
    "fusedmax": Mapping(
        pm.Fused, lambda d, n: {"strength": d.choice(STRENGTH)}, _fused, best=truths.fused_bound, rows=100
    ),
    "oscarmax": Mapping(
        pm.Oscar, lambda d, n: {"strength": d.choice((*STRENGTH, 0.01))}, _oscar, best=truths.oscar_bound, rows=100
    ),
    "groupedmax": Mapping(
        cases.OneGroup, lambda d, n: {"strength": d.choice(STRENGTH)}, _one_group, best=truths.one_group_bound, rows=20
    ),
    "csoftmax": Mapping(
        cases.bounded_shannon,
        _bounds,
        lambda p, lower, upper: _entropy(p),
        best=lambda x, lower, upper: truths.capped_shannon_bound(x, LONG(lower), LONG(upper)),
    ),
    "csparsemax": Mapping(
        cases.bounded_gini,
        _bounds,
        lambda p, lower, upper: _gini(p),
        best=lambda x, lower, upper: truths.capped_gini_bound(x, LONG(lower), LONG(upper)) + LONG(0.5),
    ),
    "budgetmax": Mapping(
        Budget,
        _fertile,
        lambda p, k: (p * p).sum() / 2,
        best=lambda x, k: truths.capped_gini_bound(x, LONG(0), LONG(1), k),
        per_row=False,
    ),
    "custom": Mapping(
        cases.custom(cases.half_square), lambda d, n: {}, _gini, best=truths.gini_value, heated=True, rows=4
    ),
}


def trial(draw: Draw) -> tuple[int, list[str]]:
    """Call a mapping on hostile rows; how many there were, and what is wrong."""
    mapping = MAPPINGS[draw.operator]
    kind, n = hostile.dtype(draw), draw.choice(SIZES if mapping.rows > 4 else SIZES[:12])
    batch = draw.choice(hostile.BATCHES) if mapping.rows > 4 else (2,)
    if draw.chance(0.4):
        batch = (mapping.rows * 4 if n < 9 else max(1, mapping.rows // (1 + n // 64)),)
    rows = math.prod(batch)
    draw.note(f"{str(kind)[6:]} {(*batch, n)}")
    wild = draw.operator != "custom"
    x = hostile.numbers(draw, rows, n, kind, wild)
    closed = hostile.forbidden(draw, rows, n)
    by_mask = draw.chance(0.4)
    if not by_mask:
        x = x.masked_fill(closed, -torch.inf)
    nan = torch.zeros(rows, dtype=torch.bool)
    if rows and n and draw.chance(0.2):
        row, place = draw.random.randrange(rows), draw.random.randrange(n)
        if not closed[row, place]:
            x[row, place], nan[row] = torch.nan, True
            draw.note("a NaN")
    gamma = draw.choice([*[1.0] * 6, 0.5, 3.0, 1e-3, 1e3]) if mapping.heated and draw.operator != "custom" else 1.0
    # scores that leave their dtype when they are divided are infinite, and infinite scores say something else
    if rows and n and float(x[torch.isfinite(x)].double().abs().sum()) / gamma > torch.finfo(kind).max:
        gamma = 1.0
    parameters, row_wise = _parameters(draw, mapping, n, rows, closed)
    return rows, _judged(draw, mapping, x, closed, by_mask, nan, batch, parameters, row_wise, gamma)


def _parameters(draw, mapping, n, rows, closed):
    """Numbers, or tensors (rows, 1) of a number for each row, feasible for every row; and which of them it is."""
    row_wise = mapping.per_row and draw.chance(0.4)
    drawn = [mapping.parameters(draw, n) for _ in range(rows if row_wise else 1)] or [mapping.parameters(draw, n)]
    names = drawn[0]
    present = (~closed).sum(-1)
    if "lower" in names or "k" in names:
        # bounds that the rows with fewest entries can keep
        fewest = int(present[present > 0].min()) if bool((present > 0).any()) else max(n, 1)
        for one in drawn:
            if "k" in one:
                one["k"] = min(one["k"], float(fewest))
            else:
                one["lower"] = min(one["lower"], 1 / max(n, 1))
                one["upper"] = max(one["upper"], 1 / fewest)
    draw.note(" ".join(f"{k}={drawn[0][k]:.6g}" for k in names) + (" by row" if row_wise else ""))
    return drawn, row_wise


def _judged(draw, mapping, x, closed, by_mask, nan, batch, drawn, row_wise, gamma):
    n, rows, kind = x.shape[-1], x.shape[0], x.dtype
    dim = draw.random.randrange(-len(batch) - 1, len(batch) + 1)
    draw.note(f"dim {dim} gamma {gamma}" + (" mask" if by_mask else ""))

    def along(t: Tensor, size: int) -> Tensor:
        return t.reshape(*batch, size).movedim(-1, dim).to(draw.device)

    scores = hostile.laid_out(draw, along(x, n)).to(draw.device).requires_grad_()
    mask = along(~closed, n) if by_mask else None
    wide = torch.float64 if draw.chance(0.5) else kind
    exact = {name: torch.tensor([[one[name]] for one in drawn], dtype=torch.float64) for name in drawn[0]}
    if row_wise and rows:
        arguments = {name: along(t.to(wide), 1) for name, t in exact.items()}
        # what a narrow dtype rounds is the parameter that counts
        drawn = [{name: float(exact[name][i].to(wide)) for name in exact} for i in range(rows)]
        if "upper" in exact and wide != torch.float64:
            arguments = {name: along(t, 1) for name, t in exact.items()}
            drawn = [{name: float(exact[name][i]) for name in exact} for i in range(rows)]
    else:
        arguments, drawn = dict(drawn[0]), drawn[:1] * max(rows, 1)
    regularizer = mapping.make(**arguments, **({"gamma": gamma} if mapping.heated else {}))
    before = scores.detach().clone()
    y = regularizer.argmax(scores, dim=dim, mask=mask)
    value = regularizer.max(scores, dim=dim, mask=mask)
    faults = []
    if y.shape != scores.shape or y.dtype != kind or value.dtype != kind:
        return [f"the result is {y.dtype} {tuple(y.shape)}"]
    if not torch.equal(before.nan_to_num(0.5), scores.detach().nan_to_num(0.5)):
        faults.append("the scores were changed")
    if draw.chance(0.2) and not torch.equal(
        y.nan_to_num(), regularizer.argmax(scores, dim=dim, mask=mask).nan_to_num()
    ):
        faults.append("a second call gives other bits")
    found = y.detach().movedim(dim, -1).reshape(rows, n).double().cpu()
    values = value.detach().reshape(rows).double().cpu()
    direction = draw.normal(rows, n).to(kind)
    slope = torch.zeros(rows, n)
    if y.requires_grad:
        (slope,) = torch.autograd.grad(y, scores, along(direction, n))
        slope = slope.movedim(dim, -1).reshape(rows, n).double().cpu()
        if kind.itemsize < 4:
            slope = _without_overflow(slope, regularizer, scores, mask, dim, along(direction, n))
    with np.errstate(all="ignore"):
        for i in range(rows):
            faults += [
                f"row {i}: {fault}; x = {_shown(x[i], closed[i])}, {drawn[i]}"
                for fault in _row(draw, mapping, x[i], closed[i], bool(nan[i]), drawn[i], gamma, found[i], values[i])
                + _gradient(draw.operator, found[i], slope[i], direction[i].double(), closed[i], kind, drawn[i], gamma)
            ]
    return faults


def _without_overflow(slope, regularizer, scores, mask, dim, direction):
    """Gradients of half precision; where the gradient in float64 is too large for it, infinity is right."""
    exact = scores.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(regularizer.argmax(exact, dim=dim, mask=mask), exact, direction.double())
    found = found.movedim(dim, -1).reshape(slope.shape).cpu()
    # rounding of weights moves slopes that are powers of them
    right = slope.isinf() & (found.sign() == slope.sign()) & (found.abs() > torch.finfo(scores.dtype).max / 4)
    return torch.where(right, found.clamp(-1e300, 1e300), slope)


def _shown(x, closed):
    return x.masked_fill(closed, -torch.inf).tolist() if len(x) <= 8 else f"{len(x)} entries"


def _row(draw, mapping, x, closed, nan, parameters, gamma, found, value):
    """What is wrong with the weights and the value of one row."""
    keep = ~closed
    if not bool(keep.any()):
        faults = [] if bool((found == 0).all()) else ["a row without entries is not 0"]
        return faults + ([] if value == -math.inf else [f"a row without entries has the value {value}"])
    if nan:
        faults = [] if bool(found.isnan().any()) else ["a NaN gives weights without NaN"]
        return faults + ([] if math.isnan(value) else ["a NaN gives a value"])
    if not bool(torch.isfinite(found).all()):
        return [f"weights are {found.tolist() if len(found) <= 8 else 'not finite'}"]
    if bool((found[closed] != 0).any()):
        return ["a forbidden entry has weight"]
    kind, total = x.dtype, parameters.get("k", 1.0)
    narrow = torch.finfo(kind).eps
    eps = min(narrow, torch.finfo(torch.float32).eps)
    p = found[keep].numpy().astype(LONG)
    z = x[keep].double().numpy().astype(LONG) / LONG(gamma)
    faults = []
    if (p < 0).any():
        faults.append(f"a weight is {float(p.min())}")
    lost = torch.finfo(kind).smallest_normal * len(p)
    off = abs(float(p.sum() - LONG(total)))
    room = narrow * (16 + len(p) / 64) if kind in (torch.float64, torch.float32) else 2 * narrow + lost
    if "upper" in parameters or "k" in parameters:
        # the search for the threshold ends here, and entries that a bound stops take no more of the rest
        room = max(room, 1e-13)
    if off > room * total:
        faults.append(f"weights sum to {float(p.sum())!r}, not {total}")
        return faults
    if "upper" in parameters or "k" in parameters:
        low, high = parameters.get("lower", 0.0), parameters.get("upper", 1.0)
        if (p < low - 2 * narrow * low - lost).any() or (p > high + 2 * narrow * high).any():
            faults.append(f"weights in [{float(p.min())}, {float(p.max())}] leave their bounds")
    return faults + _optimal(mapping, z, p / p.sum() * LONG(total), parameters, gamma, float(value), eps, narrow)


def _optimal(mapping, z, p, parameters, gamma, value, eps, narrow):
    top = z.max()
    centred = z - top
    total = LONG(parameters.get("k", 1.0))

    def reached(q):
        return truths.objective(centred, q, lambda q: mapping.omega(q, **parameters))

    truth = None if mapping.weights is None else mapping.weights(centred, **parameters)
    truth = None if truth is None else truth / truth.sum()
    best = mapping.best(centred, **parameters) if mapping.best else reached(truth)
    sure = p if truth is None else truth
    # scores divided by gamma are rounded, and so are those far below the maximum that have weight all the same
    size = 1 + abs(best) + (sure * np.abs(centred)).sum() + (np.abs(mapping.omega(sure, **parameters)))
    if gamma != 1:
        size = size + np.abs(z[(p > 0) | (sure > 0) | (z == top)]).max()
    if "upper" in parameters or "k" in parameters:
        # what bounds leave is a difference, and its rounding goes to an entry at any distance
        size = size + np.abs(centred[p > 0]).max()
    # above 2, weights at the edge of the support are roots of what rounding leaves, and the objective pays their square
    exponent = max([1.0, *(parameters[name] - 1 for name in ("alpha", "p") if name in parameters)])
    steep = (16 * 2.2e-16) ** min(1.0, 2 / exponent) * size if exponent > 1 else 0
    tolerance = (64 + len(p)) * eps * size + (4 * narrow * size if narrow > 1e-6 else 0) + steep
    # a weight far below rounding is worth much where scores are huge, and means nothing
    gap = best - reached(np.where(p < 1e-30, 0, p))
    faults = []
    # weights that a narrow dtype rounds to 0 are lost to the objective
    if not gap <= tolerance:
        faults.append(f"the objective is {float(gap):.3g} below the best")
    limit = float(np.finfo(np.float64).max)
    expected = LONG(gamma) * (best + total * top)
    room = 64 * narrow * LONG(gamma) * (size + np.abs(total * top)) + np.finfo(np.float64).tiny + LONG(gamma) * steep
    top_of_dtype = {
        2.220446049250313e-16: limit,
        1.1920928955078125e-07: 3.4e38,
        0.0078125: 3.38e38,
        0.0009765625: 65504,
    }
    # a difference of finite scores may be infinite, where bounds give weight to both
    overflows = max(abs(expected), LONG(gamma) * np.abs(centred[p > 0]).max()) > top_of_dtype[narrow] / 4
    if not overflows and not abs(LONG(value) - expected) <= room:
        faults.append(f"the value is {value!r}, not {float(expected)!r}")
    if truth is not None and "lower" not in parameters and "k" not in parameters and np.abs(z).max() < 1e3:
        # above 2, small weights are roots of small numbers
        near = max(
            1e-5 if narrow > 1e-10 else 1e-9, (1e3 * 2.2e-16) ** (1 / exponent), 4 * narrow if narrow > 1e-6 else 0
        )
        near = near + (eps * np.abs(z).max() * 8) ** (1 / exponent) if gamma != 1 else near
        off = np.abs(p - truth).max()
        if not off <= near:
            faults.append(f"a weight is off by {float(off):.3g}")
    return faults


def _gradient(operator, y, slope, direction, closed, kind, parameters, gamma):
    """The vector-Jacobian product, from the weights themselves."""
    if not bool(torch.isfinite(y).all()):
        return []
    if not bool(torch.isfinite(slope).all()):
        return ["the gradient is not finite"]
    if bool((slope[closed] != 0).any()) or (not bool((~closed).any()) and bool((slope != 0).any())):
        return ["the gradient of a forbidden entry is not 0"]
    if kind not in (torch.float64, torch.float32):
        return []
    eps = torch.finfo(kind).eps
    size = 1 + float(max(slope.abs().max(), direction.abs().max() / gamma) if len(slope) else 0)
    steep = any(parameters.get(name, 1.0) > 2 for name in ("alpha", "p"))
    # above 2, slopes of small weights are powers of what is left after rounding
    if not steep and abs(float(slope.sum())) > 256 * eps * size * max(len(slope), 1):
        return [f"the gradient sums to {float(slope.sum()):.3g}, though a shift changes nothing"]
    alpha = {"softmax": 1.0, "sparsemax": 2.0}.get(operator, parameters.get("alpha") if operator == "entmax" else None)
    if alpha is None or not len(y):
        return []
    s = torch.where(y > 0, y.clamp(min=1e-300) ** (2 - alpha), 0)
    if not float(s.sum()) > 0 or alpha > 2:
        # powers of the rounded weights differ from those of the weights
        return []
    expected = s * (direction - (s * direction).sum() / s.sum()) / gamma
    room = (1e-9 if kind == torch.float64 else 1e-4) * (1 + float(expected.abs().max()))
    off = float((slope - expected).abs().max())
    return [] if off <= room else [f"the gradient is off by {off:.3g}"]
