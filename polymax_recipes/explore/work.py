"""The work of the page in a process that computes: pictures, initial scores, and outputs of models, as JSON."""

import json
from dataclasses import dataclass, field
from typing import Any

from polymax_recipes.explore import mappings, scores, structures
from polymax_recipes.explore.numbers import to_lists
from polymax_recipes.serve.models import Given, Models, Source

# temperatures of a request at most
MOST_TEMPERATURES = 64


class PageWork:
    """The work of the page: mapping, scores, structure, or the number of a run."""

    def __init__(self, models: Models) -> None:
        self.models, self.about = models, models.about

    def __call__(self, kind: str, given: list[Any]) -> list[bytes]:
        """The results of inputs, as JSON."""
        if kind not in _MADE:
            return self.models(kind, given)
        return [json.dumps(_MADE[kind](one), ensure_ascii=False, allow_nan=False).encode() for one in given]


@dataclass(frozen=True)
class LoadPage:
    """A callable that loads the models of the page in a process; it can be pickled."""

    sources: tuple[Source | Given, ...] = field(default=())

    def __call__(self) -> PageWork:
        return PageWork(Models(self.sources))


def _mapping(body: dict[str, Any]) -> dict[str, Any]:
    given = _fields_of(body, scores=list, name=str, parameters=dict, labels=list)
    picture = mappings.mapping(
        given["scores"], given["name"], labels=given.get("labels"), **given.get("parameters", {})
    )
    return picture.data


def _scores(body: dict[str, Any]) -> dict[str, Any]:
    given = _fields_of(body, set=str, rows=list, columns=list)
    rows, columns = ([str(one) for one in given.get(name, [])] for name in ("rows", "columns"))
    return {"scores": [to_lists(one) for one in scores.initial_scores(given["set"], rows, columns)]}


def _structure(body: dict[str, Any]) -> dict[str, Any]:
    given = _fields_of(body, set=str, scores=list, rows=list, columns=list, temperatures=list, quick=bool)
    if given["set"] not in structures.SETS:
        raise ValueError(f"set must be one of {', '.join(structures.SETS)}; got {given['set']!r}")
    temperatures = given.get("temperatures")
    if temperatures is not None:
        if len(temperatures) > MOST_TEMPERATURES:
            raise ValueError(f"temperatures must be at most {MOST_TEMPERATURES}; got {len(temperatures)}")
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in temperatures):
            raise ValueError("temperatures must be numbers")
    picture = structures.structure(
        structures.SETS[given["set"]](),
        # null stands for -inf, which JSON does not have
        *(_forbidden(one) for one in given["scores"]),
        rows=given.get("rows"),
        columns=given.get("columns") or None,
        temperatures=temperatures,
        quick=given.get("quick", False),
    )
    return picture.data


def _forbidden(values: Any) -> Any:
    if isinstance(values, list):
        return [_forbidden(one) for one in values]
    return float("-inf") if values is None else values


def _fields_of(body: dict[str, Any], **kinds: type) -> dict[str, Any]:
    """The fields of a body, each of its kind; a ValueError for others."""
    for name, value in body.items():
        if name not in kinds:
            raise ValueError(f"the body has no field {name[:80]!r}; it has {', '.join(kinds)}")
        if not isinstance(value, kinds[name]):
            raise ValueError(f"{name} must be a {kinds[name].__name__}; got {type(value).__name__}")
    for name in list(kinds)[:2]:
        if name not in body:
            raise ValueError(f"the body must have {name}")
    return body


_MADE = {"mapping": _mapping, "scores": _scores, "structure": _structure}
