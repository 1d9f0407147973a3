"""Pictures of a mapping of a few scores: weights, the regularization path, the triangle."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import polymax as pm
from polymax_recipes.explore.numbers import to_lists
from polymax_recipes.explore.picture import Picture

# the largest number of scores: more bars cannot be told apart
MOST = 64
STEPS = 61
# the largest value of a parameter
LARGEST = 1e6
# temperatures of the path
COLDEST, WARMEST = 0.05, 20.0


class Range(NamedTuple):
    """A parameter of a mapping: its default value, and the ends of its slider."""

    default: float
    least: float
    most: float


class Choice(NamedTuple):
    """A mapping and its parameters, beside the temperature."""

    function: Callable[..., Tensor]
    parameters: dict[str, Range]
    has_gamma: bool = True
    # arguments of the line of Python between x and the parameters
    before: tuple[str, ...] = ()


def _groupedmax_of_pairs(x: Tensor, strength: float, gamma: float = 1.0) -> Tensor:
    """Groupedmax whose groups are pairs of neighbours."""
    return pm.groupedmax(x, [i // 2 for i in range(x.shape[-1])], strength, gamma=gamma)


MAPPINGS: dict[str, Choice] = {
    "softmax": Choice(pm.softmax, {}),
    "sparsemax": Choice(pm.sparsemax, {}),
    "entmax": Choice(pm.entmax, {"alpha": Range(1.5, 1.0, 4.0)}),
    "normmax": Choice(pm.normmax, {"alpha": Range(2.0, 1.1, 8.0)}),
    "sq_pnorm_max": Choice(pm.sq_pnorm_max, {"p": Range(1.5, 1.1, 4.0)}),
    "fusedmax": Choice(pm.fusedmax, {"strength": Range(0.1, 0.0, 2.0)}),
    "oscarmax": Choice(pm.oscarmax, {"strength": Range(0.05, 0.0, 0.5)}),
    "groupedmax": Choice(
        _groupedmax_of_pairs, {"strength": Range(0.2, 0.0, 2.0)}, before=("[i // 2 for i in range(len(x))]",)
    ),
    "csoftmax": Choice(pm.csoftmax, {"upper": Range(0.4, 0.05, 1.0)}),
    "csparsemax": Choice(pm.csparsemax, {"upper": Range(0.4, 0.05, 1.0)}),
    "budgetmax": Choice(pm.budgetmax, {"k": Range(2.0, 1.0, 5.0)}),
    "hardmax": Choice(pm.hardmax, {}, has_gamma=False),
}


def mapping(
    scores: Sequence[float] | Tensor,
    name: str = "sparsemax",
    *,
    labels: Sequence[str] | None = None,
    **parameters: float,
) -> Picture:
    """A picture of a mapping: weights of scores (n,), their path over temperatures, the triangle of the first three.

    `name` is the name of the mapping, and `parameters` are its parameters: gamma, alpha, p, strength, upper or k. The
    groups of groupedmax are pairs of neighbours.

    Example:
        >>> picture = mapping([-2.0, 0.0, 0.5], "entmax", alpha=2.0)
        >>> picture.data["weights"], picture.data["code"]
        ([0.0, 0.25, 0.75], 'pm.entmax(x, alpha=2.0)')
    """
    x = checked_scores(scores)
    chosen = checked_parameters(name, parameters)
    words = [str(k + 1) for k in range(len(x))] if labels is None else [str(label) for label in labels]
    if len(words) != len(x):
        raise ValueError(f"labels must be as many as scores, {len(x)}; got {len(words)}")
    apply = partial(MAPPINGS[name].function, **chosen)
    weights = apply(x)
    data = {
        "kind": "mapping",
        "name": name,
        "labels": words,
        "scores": to_lists(x),
        "weights": to_lists(weights),
        "support": int((weights > 0).sum()),
        "path": _path(name, chosen, x),
        "triangle": _triangle(name, chosen, x),
        "code": code(name, chosen),
    }
    return Picture(data)


def code(name: str, parameters: dict[str, float]) -> str:
    """The line of Python that gives these weights; parameters with their default value are left out."""
    usual = {"gamma": 1.0}
    said = [f"{key}={value:.6g}" for key, value in parameters.items() if usual.get(key) != value]
    texts = [text if "." in text or "e" in text else f"{text}.0" for text in said]
    return f"pm.{name}({', '.join(['x', *MAPPINGS[name].before, *texts])})"


def checked_scores(scores: Sequence[float] | Tensor) -> Tensor:
    """Scores as (n,) float64; a ValueError for anything else."""
    try:
        x = torch.as_tensor(scores, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError):
        raise ValueError(f"scores must be numbers, (n,); got {type(scores).__name__}") from None
    if x.ndim != 1 or not 1 <= len(x) <= MOST:
        raise ValueError(f"scores must be (n,) with n from 1 to {MOST}; got {tuple(x.shape)}")
    if not torch.isfinite(x).all():
        raise ValueError("scores must be finite")
    return x


def checked_parameters(name: str, given: dict[str, float]) -> dict[str, float]:
    """The parameters of a mapping, each a number; a ValueError for a name that is not known."""
    if name not in MAPPINGS:
        raise ValueError(f"name must be one of {', '.join(MAPPINGS)}; got {name!r}")
    choice = MAPPINGS[name]
    known = [*choice.parameters, *(["gamma"] if choice.has_gamma else [])]
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{key} must be a number; got {value!r}")
        if not abs(value) < LARGEST:
            raise ValueError(f"{key} must be below {LARGEST:g}; got a larger number")
    return {key: float(given.get(key, 1.0 if key == "gamma" else choice.parameters[key].default)) for key in known}


def _path(name: str, parameters: dict[str, float], x: Tensor) -> dict[str, Any] | None:
    """Weights at each of many temperatures: the mapping of scores / gamma, all in one call."""
    if not MAPPINGS[name].has_gamma:
        return None
    gammas = torch.logspace(torch.tensor(COLDEST).log10(), torch.tensor(WARMEST).log10(), STEPS, dtype=torch.float64)
    colder = {key: value for key, value in parameters.items() if key != "gamma"}
    weights = MAPPINGS[name].function(x / gammas.unsqueeze(-1), **colder)
    return {"gamma": parameters["gamma"], "gammas": to_lists(gammas, 4), "weights": to_lists(weights, 4)}


def _triangle(name: str, parameters: dict[str, float], x: Tensor) -> dict[str, Any] | None:
    """The weights of the first three scores without the others, and the weights of a grid of scores around 0."""
    if len(x) < 3 or name == "budgetmax":
        return None
    apply = partial(MAPPINGS[name].function, **parameters)
    reach = torch.linspace(-2.5, 2.5, 15, dtype=torch.float64)
    a, b = torch.meshgrid(reach, reach, indexing="ij")
    # two directions that span the scores up to a shift, which does not change a mapping
    grid = torch.stack([a, -a / 2 + b, -a / 2 - b], -1).flatten(0, 1)
    path = torch.linspace(0, 4, 41, dtype=torch.float64).unsqueeze(-1) * (x[:3] - x[:3].mean())
    try:
        point, dots, line = (apply(part) for part in (x[:3], grid, path))
    except ValueError:
        # for three classes the bounds may be infeasible
        return None
    return {"point": to_lists(point, 4), "dots": to_lists(dots, 3), "path": to_lists(line, 4)}
