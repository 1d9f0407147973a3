"""The routes of the page: pictures of mappings and structures, weights of attention, and the files of the page."""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import polymax as pm
from polymax_recipes.explore import mappings, scores, structures
from polymax_recipes.explore.attention_file import AttentionFile
from polymax_recipes.explore.numbers import to_lists
from polymax_recipes.serve.batches import Batcher
from polymax_recipes.serve.predictions import Served
from polymax_recipes.serve.predictions import routes as predictions
from polymax_recipes.serve.server import Answer, Limits, Route, Server
from polymax_recipes.training.settings import use_threads

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# temperatures that a request may ask for at once
MOST_TEMPERATURES = 64


def server(
    runs: Sequence[Served] = (),
    attention: AttentionFile | None = None,
    address: tuple[str, int] = ("127.0.0.1", 0),
    limits: Limits | None = None,
) -> Server:
    """A server of the page, with runs and a file of attention weights where they are given."""
    # kernels that are not compiled yet take their time, and whoever waits here is alone
    bounds = limits or Limits(computing=180.0)
    return Server(address, {**_routes(attention, bounds), **predictions(runs, bounds)}, page_files(), bounds)


def page_files() -> dict[str, Answer]:
    """The files of the page by their paths: all that can be asked for."""
    found: dict[str, Answer] = {}

    def add(folder: Any, path: str) -> None:
        for file in folder.iterdir():
            if file.is_dir():
                add(file, f"{path}{file.name}/")
            elif file.name.rsplit(".", 1)[-1] in KINDS:
                found[f"{path}{file.name}"] = Answer(file.read_bytes(), KINDS[file.name.rsplit(".", 1)[-1]])

    add(files("polymax_recipes.explore").joinpath("page"), "/")
    found["/"] = found["/index.html"]
    return found


def _routes(attention: AttentionFile | None, limits: Limits) -> Mapping[tuple[str, str], Route]:
    worker = Batcher(_work, most=1, wait=0.0)

    def computed(make: Callable[[dict[str, Any]], Any]) -> Route:
        def route(rest: list[str], body: Any) -> Answer:
            if not isinstance(body, dict):
                raise ValueError(f"the body must be an object; got {type(body).__name__}")
            return Answer.of(worker([lambda: make(body)], limits.computing)[0])

        return route

    def head(rest: list[str], body: Any) -> Answer:
        if attention is None:
            raise ValueError("no weights were given: start with `polymax explore --attention FILE`")
        if not rest:
            return Answer.of(attention.header())
        if len(rest) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 7 for part in rest):
            raise ValueError(f"the path must be /api/attention/LAYER/HEAD; got {'/'.join(rest)[:80]}")
        return Answer(attention.bytes(int(rest[0]), int(rest[1])), "application/octet-stream")

    offered = Answer.of(
        {
            "version": pm.__version__,
            "attention": attention is not None,
            "mappings": {
                name: {"gamma": choice.has_gamma, "parameters": {k: v._asdict() for k, v in choice.parameters.items()}}
                for name, choice in mappings.MAPPINGS.items()
            },
            "sets": {
                kind.__name__: {"draws": about.draws, "noun": about.noun} for kind, about in structures.KINDS.items()
            },
            "most": structures.MOST,
            "sentence": scores.SENTENCE,
            "other": scores.OTHER,
            "tags": list(scores.TAGS),
        }
    )
    return {
        ("GET", "/api/offers"): lambda rest, body: offered,
        ("GET", "/api/attention"): head,
        ("POST", "/api/mapping"): computed(_mapping),
        ("POST", "/api/scores"): computed(_scores),
        ("POST", "/api/structure"): computed(_structure),
    }


def _work(jobs: list[Callable[[], Any]]) -> list[Any]:
    # what is drawn is small: threads would only wait for each other, and for those of other programs
    with use_threads(1):
        return [job() for job in jobs]


def _mapping(body: dict[str, Any]) -> dict[str, Any]:
    given = _fields_of(body, scores=list, name=str, parameters=dict, labels=list)
    return mappings.mapping(
        given["scores"], given["name"], labels=given.get("labels"), **given.get("parameters", {})
    ).data


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
            raise ValueError(f"the body has no field {name!r}; it has {', '.join(kinds)}")
        if not isinstance(value, kinds[name]):
            raise ValueError(f"{name} must be a {kinds[name].__name__}; got {type(value).__name__}")
    for name in list(kinds)[:2]:
        if name not in body:
            raise ValueError(f"the body must have {name}")
    return body
