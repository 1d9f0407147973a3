"""The routes of predictions: runs are loaded when the server starts, never by a request."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polymax_recipes.serve.errors import Refused
from polymax_recipes.serve.limits import MOST_SHARES, Limits, Share, share_of, work_of
from polymax_recipes.serve.schema import ALTERNATIVES, INPUTS, input_schema, schema
from polymax_recipes.serve.server import Answer, Routes
from polymax_recipes.serve.workers import Pool

FIELDS = ("inputs", "run", "alternatives")


@dataclass(frozen=True)
class Served:
    """A run that is served: its name, its task, and a summary, as reported by a process that loaded it."""

    name: str
    task: str
    summary: str = ""

    def description(self, limits: Limits) -> dict[str, Any]:
        """The description of this run that clients are given."""
        return {
            "name": self.name,
            "task": self.task,
            "summary": self.summary,
            "input": input_schema(self.task),
            "words_of_an_input": work_of(self.task, limits.words).words,
            "alternatives": self.task in ALTERNATIVES,
        }


ENDS = {
    "GET /": "this list",
    "POST /api/predict": 'predictions: {"inputs": [...], "run": 0, "alternatives": false}',
    "GET /api/runs": "the runs, their inputs, and the limits",
    "GET /api/schema": "the interface as an OpenAPI document",
    "GET /api/health": "a test that the server runs",
}


def routes(pool: Pool | None, runs: Sequence[Served], limits: Limits) -> Routes:
    """GET /, /api/health, /api/runs and /api/schema, and POST /api/predict."""
    bounds = {
        "body_bytes": limits.body,
        "inputs": limits.inputs,
        "characters_of_an_input": limits.characters,
        "seconds": limits.computing,
    }
    document = Answer.of(schema([run.task for run in runs], limits))
    listed = Answer.of({"runs": [run.description(limits) for run in runs], "limits": bounds})
    ends = Answer.of({"polymax": [f"{run.name}: {run.task}" for run in runs], "endpoints": ENDS})

    async def predict(rest: list[str], body: Any) -> Answer:
        def judged() -> tuple[int, list[Any], bool, list[Share]]:
            number, inputs, alternatives = checked(runs, limits, body)
            return number, inputs, alternatives, shares_of(runs[number].task, inputs, limits)

        # words are counted by a tokenizer: other requests need not wait for it
        number, inputs, alternatives, shares = await asyncio.to_thread(judged)
        assert pool is not None
        given = [(one, alternatives) for one in inputs]
        outputs = await pool.answers(str(number), given, shares, limits.computing) if inputs else []
        head = Answer.of({"task": runs[number].task}).body[:-1]
        return Answer(head + b', "outputs": [' + b", ".join(outputs) + b"]}")

    return {
        ("GET", "/"): lambda rest, body: ends,
        ("GET", "/api/health"): lambda rest, body: Answer.of({"status": "ok"}),
        ("GET", "/api/runs"): lambda rest, body: listed,
        ("GET", "/api/schema"): lambda rest, body: document,
        ("POST", "/api/predict"): predict,
    }


def shares_of(task: str, inputs: list[Any], limits: Limits) -> list[Share]:
    """The share of the work of each input; raises `Refused` if one input, or the sum of all, is too large."""
    shares = [share_of(task, one, place, limits.words) for place, one in enumerate(inputs)]
    if sum(share.size for share in shares) > MOST_SHARES:
        most, power, _ = work_of(task, limits.words)
        raise Refused(
            413,
            f"these {len(inputs)} inputs are too much work for one request; send fewer at once: "
            f"{MOST_SHARES:g} of {most} words, or more that are shorter (the work grows as words ** {power})",
        )
    return shares


def checked(runs: Sequence[Served], limits: Limits, body: Any) -> tuple[int, list[Any], bool]:
    """The number of the run, the inputs, and True for alternatives; a ValueError for an invalid request."""
    if not isinstance(body, dict):
        raise ValueError(f"the body must be an object with {', '.join(FIELDS)}; got {type(body).__name__}")
    for name in body:
        if name not in FIELDS:
            raise ValueError(f"the body has no field {name!r}; it has {', '.join(FIELDS)}")
    if not runs:
        raise Refused(404, "no run is served: start with `polymax explore RUN`")
    number, alternatives = body.get("run", 0), body.get("alternatives", False)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(runs):
        raise ValueError(f"run must be the number of a run, from 0 to {len(runs) - 1}; got {number!r}")
    if not isinstance(alternatives, bool):
        raise ValueError(f"alternatives must be true or false; got {alternatives!r}")
    inputs = body.get("inputs")
    if not isinstance(inputs, list):
        raise ValueError(f"inputs must be a list; got {type(inputs).__name__}")
    if len(inputs) > limits.inputs:
        raise Refused(413, f"a request may have {limits.inputs} inputs; got {len(inputs)}")
    task = runs[number].task
    for place, one in enumerate(inputs):
        if not _is_input(task, one):
            raise ValueError(f"inputs[{place}] must be {input_schema(task)['description']}; got {_short(one)}")
        if _size(one) > limits.characters:
            raise Refused(413, f"inputs[{place}] may have {limits.characters} characters or values; got {_size(one)}")
    return number, inputs, alternatives


def _is_input(task: str, one: Any) -> bool:
    if task not in INPUTS:
        # tasks of other packages check their inputs themselves
        return True
    is_list = isinstance(one, list) and bool(one)
    texts = is_list and all(isinstance(part, str) for part in one)
    if task == "series":
        rows = is_list and all(map(_is_row, one)) and len({len(row) for row in one}) == 1
        return is_list and (rows or all(map(_is_number, one)))
    if task == "speech-align":
        spoken = is_list and len(one) == 2 and _is_row(one[0]) and isinstance(one[1], str)
        return spoken and bool(one[1].strip())
    if task in ("word-align", "protein-align", "entail"):
        return texts and len(one) == 2 and all(part.strip() for part in one)
    if task == "lm":
        return isinstance(one, str)
    if isinstance(one, str):
        return bool(one.strip())
    if task == "classify":
        return texts and len(one) == 2 and all(part.strip() for part in one)
    return task in ("tag", "parse", "bracket") and texts and all(part.strip() for part in one)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _size(one: Any) -> int:
    return sum(map(_size, one)) + len(one) if isinstance(one, list) else len(one) if isinstance(one, str) else 0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."
