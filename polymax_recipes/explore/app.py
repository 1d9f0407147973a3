"""The routes of the page: pictures of mappings and structures, weights of attention, and the files of the page."""

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import polymax as pm
from polymax_recipes.explore import mappings, scores, structures
from polymax_recipes.explore.attention_file import AttentionFile
from polymax_recipes.explore.work import LoadPage
from polymax_recipes.serve.limits import Limits, Share
from polymax_recipes.serve.models import Given, Source
from polymax_recipes.serve.predictions import Served
from polymax_recipes.serve.predictions import routes as predictions
from polymax_recipes.serve.server import Answer, Route, Routes, Server
from polymax_recipes.serve.workers import Pool

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def server(
    sources: Sequence[Source | Given] = (),
    attention: AttentionFile | None = None,
    address: tuple[str, int] = ("127.0.0.1", 0),
    limits: Limits | None = None,
    threads: int = 0,
) -> Server:
    """Return the server of the page, with trained runs and a file of attention weights if given."""
    # the first requests compile kernels, and the page has only one user
    bounds = limits or Limits(computing=180.0)
    # one thread, since the problems are small
    pool = Pool(LoadPage(tuple(sources)), 2, memory=bounds.memory, threads=threads or 1, wait=0.0)
    try:
        served = [Served(**about) for about in pool.about]
        routes = {**predictions(pool, served, bounds), **_routes(pool, attention, bounds)}
        return Server(address, routes, page_files(), bounds, [pool.close])
    except BaseException:
        pool.close()
        raise


def page_files() -> dict[str, Answer]:
    """The files of the page by their paths; no other file can be requested."""
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


def _routes(pool: Pool, attention: AttentionFile | None, limits: Limits) -> Routes:
    def computed(kind: str) -> Route:
        async def route(rest: list[str], body: Any) -> Answer:
            if not isinstance(body, dict):
                raise ValueError(f"the body must be an object; got {type(body).__name__}")
            # requests for many temperatures are heavy: requests for one must not wait behind them
            heavy = len(body.get("temperatures") or ()) > 1 if isinstance(body.get("temperatures"), list) else False
            found = await pool.answers(kind, [body], [Share(1.0, not heavy)], limits.computing)
            return Answer(found[0])

        return route

    async def head(rest: list[str], body: Any) -> Answer:
        if attention is None:
            raise ValueError("no weights were given: start with `polymax explore --attention FILE`")
        if not rest:
            return Answer.of(attention.header())
        if len(rest) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 7 for part in rest):
            raise ValueError(f"the path must be /api/attention/LAYER/HEAD; got {'/'.join(rest)[:80]}")
        found = await asyncio.to_thread(attention.bytes, int(rest[0]), int(rest[1]))
        return Answer(found, "application/octet-stream")

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
        ("POST", "/api/mapping"): computed("mapping"),
        ("POST", "/api/scores"): computed("scores"),
        ("POST", "/api/structure"): computed("structure"),
    }
