"""Pictures of smoothings of a structure's scores: expected parts, and whole structures over temperatures."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import polymax as pm
from polymax import Structure
from polymax_recipes.explore.numbers import round_digits, to_lists
from polymax_recipes.explore.picture import Picture

# the largest sides of a grid of scores, and numbers of states of a chain
MOST, MOST_STATES = 40, 12
# whole structures that are listed at most
LISTED = 12
# parts with less weight are not drawn; exact zeros are counted before
FAINTEST = 5e-4
# the lowest and the highest temperature
COLDEST, HOTTEST = 1e-6, 1e6
# limited iterations: at high temperatures, hundreds of structures would have weight, too many to show
SOLVER = pm.ActiveSet(max_iter=400, tol=1e-6)


class Kind(NamedTuple):
    """The drawing of a set of structures, the word for one structure, and the number of usable parts."""

    draws: str
    noun: str
    parts: Callable[[tuple[int, ...]], int]


KINDS: dict[type, Kind] = {
    pm.Chain: Kind("tags", "tag sequences", lambda shape: shape[0] * shape[1]),
    pm.ProjectiveTree: Kind("arcs", "projective trees", lambda shape: (shape[0] - 1) ** 2),
    pm.SpanningTree: Kind("arcs", "spanning trees", lambda shape: (shape[0] - 1) ** 2),
    pm.SpanTree: Kind("brackets", "bracketings", lambda shape: shape[0] * (shape[0] + 1) // 2),
    pm.Alignment: Kind("alignment", "alignments", lambda shape: shape[0] * shape[1]),
    pm.Assignment: Kind("matching", "matchings", lambda shape: shape[0] * shape[1]),
}
SETS: dict[str, Callable[[], Structure]] = {kind.__name__: kind for kind in KINDS}
SMOOTHINGS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "HardMax": (pm.HardMax, "pm.HardMax({set})"),
    "Marginals": (pm.Marginals, "pm.Marginals({set}, gamma=gamma)"),
    "LocalMax": (lambda s: pm.LocalMax(s, pm.Gini()), "pm.LocalMax({set}, pm.Gini(gamma))"),
    "SparseMap": (lambda s: pm.SparseMap(s, SOLVER), "pm.SparseMap({set}, gamma=gamma)"),
}


def structure(
    structure: Structure,
    *scores: Tensor,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    temperatures: Sequence[float] | None = None,
    quick: bool = False,
) -> Picture:
    """A picture of HardMax, Marginals, LocalMax and SparseMap side by side, with a slider of the temperature.

    `rows` names tokens (of trees, without the root), the positions of a chain, or the rows of a grid; `columns` the
    states of a chain or the columns of a grid. Scores are those of one instance, without a batch. A `quick` picture
    lacks the probabilities of whole structures under LocalMax, which take more time than all others together.

    Example:
        >>> scores = torch.tensor([[1.0, 0.0], [0.0, 0.4]]), torch.zeros(2, 2)
        >>> picture = structure(pm.Chain(), *scores, temperatures=[1.0])
        >>> [panel["name"] for panel in picture.data["panels"]]
        ['HardMax', 'Marginals', 'LocalMax', 'SparseMap']
        >>> picture.data["panels"][3]["steps"][0]["size"]
        2
    """
    kind = KINDS.get(type(structure))
    if kind is None:
        known = ", ".join(one.__name__ for one in KINDS)
        raise TypeError(f"structure must be one of {known}; got {type(structure).__name__}")
    if temperatures is None:
        temperatures = torch.logspace(-1, 0.7, 35, dtype=torch.float64).tolist()
    # the comparison also refuses integers too large for a float
    if not len(temperatures) or not all(COLDEST <= one <= HOTTEST for one in temperatures):
        raise ValueError(f"temperatures must be positive, from {COLDEST:g} to {HOTTEST:g}, at least one")
    gammas = torch.tensor([float(one) for one in temperatures], dtype=torch.float64)
    values = checked_scores(structure, scores)
    first = tuple(values[0].shape)
    tokens, names = _names(kind, first, rows, columns)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ActiveSet stopped")
        data = {
            "kind": "structure",
            "set": type(structure).__name__,
            "draws": kind.draws,
            "noun": kind.noun,
            "rows": tokens,
            "columns": names,
            "temperatures": to_lists(gammas, 4),
            "at": int((gammas.log().abs()).argmin()),
            "parts": kind.parts(first),
            **_panels(structure, values, gammas, quick),
        }
    return Picture(data)


def checked_scores(structure: Structure, scores: Sequence[Any]) -> list[Tensor]:
    """Scores in float64, of shapes that the structure takes; a ValueError for other shapes."""
    tensors = []
    for one in scores:
        try:
            tensors.append(torch.as_tensor(one, dtype=torch.float64).detach().cpu())
        except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError):
            raise ValueError("scores must be numbers in rows of one length") from None
    draws = KINDS[type(structure)].draws
    wanted = 2 if draws == "tags" else 1
    if len(tensors) != wanted:
        raise ValueError(f"scores of {type(structure).__name__} must be {wanted} tensors; got {len(tensors)}")
    first = tensors[0]
    square, trees = draws in ("arcs", "brackets"), draws == "arcs"
    if first.ndim != 2 or 0 in first.shape or (square and first.shape[0] != first.shape[1]):
        raise ValueError(f"scores must be {'(n, n)' if square else '(n, m)'}, not empty; got {tuple(first.shape)}")
    if trees and first.shape[0] < 2:
        raise ValueError("scores of trees must be (n + 1, n + 1) with n at least 1, for the root comes first")
    limit = MOST_STATES if draws == "tags" else MOST + trees
    if first.shape[0] > MOST + trees or first.shape[1] > limit:
        raise ValueError(f"scores must be at most {(MOST + trees, limit)}; got {tuple(first.shape)}")
    if wanted == 2 and tensors[1].shape != (first.shape[1],) * 2:
        raise ValueError(f"transition must be {(first.shape[1],) * 2}; got {tuple(tensors[1].shape)}")
    for one in tensors:
        if torch.isnan(one).any() or (one == torch.inf).any():
            raise ValueError("scores must be numbers, or -inf for parts that are forbidden")
    return tensors


def _panels(structure: Structure, scores: list[Tensor], gammas: Tensor, quick: bool) -> dict[str, Any]:
    first = scores[0] / gammas.reshape(-1, 1, 1)
    # transitions are the same at every position
    colder = [first, *(one / gammas.reshape(-1, 1, 1, 1) for one in scores[1:])]
    sparse = _sparse(structure, scores, gammas)
    candidates = _candidates(structure, scores, sparse)
    panels = []
    for name, (make, code) in SMOOTHINGS.items():
        said = code.format(set=f"pm.{type(structure).__name__}()")
        panel: dict[str, Any] = {"name": name, "code": said, "missing": None, "steps": []}
        panels.append(panel)
        if name == "HardMax":
            panel["steps"] = _hard(structure, scores, candidates)
        elif name == "SparseMap":
            panel["steps"] = [_step(d.mean, d.prob(candidates), int(d.support_size)) for d in sparse]
        else:
            try:
                smooth = make(structure)
                found, mean = smooth.distribution(*colder), smooth(*colder)
            except TypeError as error:
                # such as the sum over all assignments
                panel["missing"] = str(error)
                continue
            probs = None if quick and name == "LocalMax" else _probabilities(found, candidates, len(gammas))
            for k in range(len(gammas)):
                own = None if probs is None else probs[:, k]
                panel["steps"].append(_step(_at(mean, k), own))
    return {"structures": [_parts_of(y) for y in _each(candidates)], "panels": panels}


def _sparse(structure: Structure, scores: list[Tensor], gammas: Tensor) -> list[Any]:
    """SparseMap at each temperature, started from the structures of the temperature before, so that supports change
    smoothly.
    """
    found, solution = [], None
    for gamma in gammas.tolist():
        smooth = pm.SparseMap(structure, SOLVER, gamma)
        distribution = smooth.distribution(*scores, start=solution)
        found.append(distribution)
        solution = distribution.solution
    return found


def _candidates(structure: Structure, scores: list[Tensor], sparse: list[Any]) -> Any:
    """The heaviest of the structures that have weight under SparseMap at some temperature, the best first."""
    supports = [one.support() for one in sparse]
    first = torch.cat([y[0] if isinstance(y, tuple) else y for y, _ in supports])
    weights = torch.cat([p for _, p in supports])
    packed = np.packbits(first.flatten(1).numpy() > 0, axis=1)
    _, chosen, place = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    distinct = first[torch.from_numpy(chosen)]
    heaviest = torch.zeros(len(distinct), dtype=weights.dtype)
    heaviest.scatter_reduce_(0, torch.from_numpy(place.reshape(-1)), weights, "amax")
    best = structure.map(*scores)
    top = best[0] if isinstance(best, tuple) else best
    heaviest[(distinct == top).flatten(1).all(1)] = 2.0
    order = heaviest.argsort(descending=True, stable=True)[:LISTED]
    return structure.complete(distinct[order[heaviest[order] > 0]])


def _each(structures: Any) -> list[Tensor]:
    first = structures[0] if isinstance(structures, tuple) else structures
    return list(first)


def _parts_of(y: Tensor) -> list[list[int]]:
    return y.nonzero().tolist()


def _hard(structure: Structure, scores: list[Tensor], candidates: Any) -> list[dict[str, Any]]:
    y = structure.map(*scores)
    first = y[0] if isinstance(y, tuple) else y
    same = torch.tensor([float(torch.equal(one, first)) for one in _each(candidates)])
    return [_step(y, same, 1)]


def _probabilities(found: Any, candidates: Any, count: int) -> Tensor:
    """The probability of each of some structures at each temperature, (structures, temperatures)."""
    return found.log_prob(_map(lambda t: t.unsqueeze(1).expand(-1, count, *t.shape[1:]), candidates)).exp()


def _step(mean: Any, probs: Tensor | None, size: int | None = None) -> dict[str, Any]:
    return {**_drawn_parts(mean), "probabilities": None if probs is None else to_lists(probs, 4), "size": size}


def _drawn_parts(mu: Any) -> dict[str, Any]:
    """Parts that are drawn, as i, j, p one after the other, the pairs of a chain likewise, and how many are not 0."""
    first = mu[0] if isinstance(mu, tuple) else mu
    drawn = {"parts": _flat(first), "positive": int((first > 0).sum())}
    return {**drawn, "links": _flat(mu[1])} if isinstance(mu, tuple) else drawn


def _flat(mu: Tensor) -> list[Any]:
    places = (mu > FAINTEST).nonzero()
    values = mu[tuple(places.T)].tolist()
    return [number for place, p in zip(places.tolist(), values) for number in (*place, round_digits(p, 4))]


def _at(y: Any, k: int) -> Any:
    return _map(lambda t: t[k], y)


def _map(change: Callable[[Tensor], Tensor], y: Any) -> Any:
    return type(y)(*map(change, y)) if isinstance(y, tuple) else change(y)


def _names(
    kind: Kind, shape: tuple[int, ...], rows: Sequence[str] | None, columns: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    count = shape[0] - 1 if kind.draws == "arcs" else shape[0]
    tokens = [str(k + 1) for k in range(count)] if rows is None else [str(one) for one in rows]
    wide = 0 if kind.draws in ("arcs", "brackets") else shape[1]
    names = [str(k + 1) for k in range(wide)] if columns is None else [str(one) for one in columns]
    if len(tokens) != count:
        raise ValueError(f"rows must be {count}, one for each; got {len(tokens)}")
    if len(names) != wide:
        raise ValueError(f"columns must be {wide}, one for each; got {len(names)}")
    return tokens, names
