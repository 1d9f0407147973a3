"""The routes of predictions: runs that were loaded when the server started, and never by a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polymax_recipes.serve.batches import Batcher
from polymax_recipes.serve.errors import Refused
from polymax_recipes.serve.outputs import alternatives_of, outputs_of
from polymax_recipes.serve.schema import ALTERNATIVES, INPUTS, input_schema, schema
from polymax_recipes.serve.server import Answer, Limits, Route
from polymax_recipes.training.task import Trained

FIELDS = ("inputs", "run", "alternatives")


@dataclass(frozen=True)
class Served:
    """A run that is served: its name, its model, and what batches requests to it."""

    name: str
    trained: Trained
    batcher: Batcher

    @classmethod
    def of(cls, path: Path, trained: Trained, most: int = 64) -> "Served":
        """A run with a batcher of its own."""

        def compute(items: list[tuple[Any, bool]]) -> list[dict[str, Any]]:
            found = outputs_of(trained, [one for one, _ in items])
            wanted = [k for k, (_, asked) in enumerate(items) if asked]
            for k, listed in zip(wanted, alternatives_of(trained, [items[k][0] for k in wanted])):
                found[k]["alternatives"] = listed
            return found

        return cls(path.resolve().name, trained, Batcher(compute, most))

    def description(self) -> dict[str, Any]:
        """The description of this run that clients are given."""
        task = self.trained.task
        return {
            "name": self.name,
            "task": task.name,
            "summary": task.summary,
            "input": input_schema(task.name),
            "alternatives": task.name in ALTERNATIVES,
        }


def routes(runs: Sequence[Served], limits: Limits) -> Mapping[tuple[str, str], Route]:
    """GET /api/health, /api/runs and /api/schema, and POST /api/predict."""
    bounds = {
        "body_bytes": limits.body,
        "inputs": limits.inputs,
        "characters_of_an_input": limits.characters,
        "seconds": limits.computing,
    }
    document = Answer.of(schema([run.trained.task.name for run in runs], limits))
    listed = Answer.of({"runs": [run.description() for run in runs], "limits": bounds})

    def predict(rest: list[str], body: Any) -> Answer:
        run, inputs, alternatives = checked(runs, limits, body)
        outputs = run.batcher([(one, alternatives) for one in inputs], limits.computing) if inputs else []
        return Answer.of({"task": run.trained.task.name, "outputs": outputs})

    return {
        ("GET", "/api/health"): lambda rest, body: Answer.of({"status": "ok"}),
        ("GET", "/api/runs"): lambda rest, body: listed,
        ("GET", "/api/schema"): lambda rest, body: document,
        ("POST", "/api/predict"): predict,
    }


def checked(runs: Sequence[Served], limits: Limits, body: Any) -> tuple[Served, list[Any], bool]:
    """The run, the inputs, and whether alternatives are asked for; a ValueError that names what is wrong."""
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
    task = runs[number].trained.task.name
    for place, one in enumerate(inputs):
        if not _is_input(task, one):
            raise ValueError(f"inputs[{place}] must be {input_schema(task)['description']}; got {_short(one)}")
        if _size(one) > limits.characters:
            raise Refused(413, f"inputs[{place}] may have {limits.characters} characters or values; got {_size(one)}")
    return runs[number], inputs, alternatives


def _is_input(task: str, one: Any) -> bool:
    if task not in INPUTS:
        # a task of somebody else's refuses for itself
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
