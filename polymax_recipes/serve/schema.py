"""The interface in OpenAPI 3.1: `GET /api/schema` returns it, and tests check requests and answers against it."""

from typing import Any

import polymax
from polymax_recipes.serve.limits import Limits

_NUMBER = {"type": ["number", "null"]}
_STRINGS = {"type": "array", "items": {"type": "string"}}
_INTEGERS = {"type": "array", "items": {"type": "integer"}}
_VECTOR = {"type": "array", "items": _NUMBER}
_MATRIX = {"type": "array", "items": _VECTOR}
_SHARES = {"type": "object", "additionalProperties": _NUMBER}
_SPANS = {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}]}}
_MAYBE_MATRIX = {"anyOf": [_MATRIX, {"type": "null"}], "description": "null if the loss has no probabilities"}
_PROBABILITY = {"probability": _NUMBER}

_TEXT = {"type": "string", "minLength": 1}
_SENTENCE = {"anyOf": [_TEXT, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
_PAIR = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}
_SERIES = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "number"}, {"type": "array"}]}}

_SPOKEN = {
    "type": "array",
    "prefixItems": [{"type": "array", "items": {"type": "number"}, "minItems": 1}, _TEXT],
    "items": False,
    "minItems": 2,
}

INPUTS: dict[str, dict[str, Any]] = {
    "tag": {**_SENTENCE, "description": "a sentence as text, or its tokens"},
    "parse": {**_SENTENCE, "description": "a sentence as text, or its tokens"},
    "bracket": {**_SENTENCE, "description": "a sentence as text, or its tokens"},
    "seq2seq": {**_TEXT, "description": "the text to translate or to summarize"},
    "lm": {"type": "string", "description": "the text to go on with, which may be empty"},
    "word-align": {**_PAIR, "description": "a text and its translation"},
    "entail": {**_PAIR, "description": "a premise and a hypothesis"},
    "classify": {"anyOf": [_TEXT, _PAIR], "description": "a text, or two where the training had two"},
    "listops": {**_TEXT, "description": "an expression"},
    "speech-align": {
        **_SPOKEN,
        "description": "samples at the rate of the training, and tokens between spaces",
    },
    "protein-align": {**_PAIR, "description": "two sequences of letters"},
    "series": {**_SERIES, "description": "a series (n,), or (n, d) as n rows of d values"},
}

OUTPUTS: dict[str, dict[str, Any]] = {
    "tag": {"tokens": _STRINGS, "tags": _STRINGS, "names": _STRINGS, "probabilities": _MAYBE_MATRIX},
    "parse": {"tokens": _STRINGS, "heads": _INTEGERS, "relations": _STRINGS, "arcs": _MAYBE_MATRIX},
    "bracket": {"tokens": _STRINGS, "tree": {"type": "string"}, "brackets": _SPANS, "spans": _MAYBE_MATRIX},
    "seq2seq": {"text": {"type": "string"}, "target": _STRINGS, "source": _STRINGS, "attention": _MATRIX},
    "lm": {"prompt": {"type": "string"}, "text": {"type": "string"}, "tokens": _INTEGERS, "log_probs": _VECTOR},
    "word-align": {"source": _STRINGS, "target": _STRINGS, "links": _SPANS, "weights": _MATRIX},
    "entail": {
        "label": {"type": "string"},
        "probabilities": _SHARES,
        "premise": _STRINGS,
        "hypothesis": _STRINGS,
        "attention": {"type": "array"},
    },
    "speech-align": {"tokens": _STRINGS, "starts": _VECTOR, "ends": _VECTOR, "weights": _MATRIX},
    "protein-align": {
        "first": {"type": "string"},
        "second": {"type": "string"},
        "rows": _PAIR,
        "cigar": {"type": "string"},
        "links": _SPANS,
        "weights": _MAYBE_MATRIX,
    },
    "series": {"label": {"type": "string"}, "discrepancies": _SHARES},
}
OUTPUTS["classify"] = OUTPUTS["listops"] = {
    "label": {"type": "string"},
    "probabilities": _SHARES,
    "tokens": {"type": "array", "items": _STRINGS},
    "spans": {"type": "array", "items": _SPANS},
    "heads": {"type": "array", "items": _INTEGERS},
    "rationales": {"type": "array", "items": _INTEGERS},
}

# an input of each task, used to compile its kernels ahead
EXAMPLES: dict[str, Any] = {
    "tag": ["a", "b"],
    "parse": ["a", "b"],
    "bracket": ["a", "b"],
    "seq2seq": "a",
    "lm": "a",
    "word-align": ["a b", "a"],
    "entail": ["a b", "a"],
    "classify": "a b",
    "listops": "[MAX 2 ]",
    "protein-align": ["AC", "A"],
    "series": [0.0, 1.0, 0.5],
}

# inputs and outputs of tasks outside of this library are unknown: they are those of `Trained.results`
UNKNOWN: dict[str, Any] = {"description": "what the task takes"}


def input_schema(task: str) -> dict[str, Any]:
    """The JSON schema of an input of a task."""
    return INPUTS.get(task, UNKNOWN)


ALTERNATIVES: dict[str, dict[str, Any]] = {
    "tag": {**_PROBABILITY, "tags": _STRINGS},
    "parse": {**_PROBABILITY, "heads": _INTEGERS, "relations": _STRINGS},
    "bracket": {**_PROBABILITY, "tree": {"type": "string"}, "brackets": _SPANS},
}


def schema(tasks: list[str], limits: Limits) -> dict[str, Any]:
    """The OpenAPI document of a server with runs of these tasks, in their order."""
    errors = {
        "400": "malformed JSON, or inputs that the model does not take",
        "403": "a Host header of another machine",
        "404": "no such path",
        "405": "a method that the path does not support",
        "411": "no Content-Length, or a body in chunks",
        "413": "a body or an input that is too large",
        "415": "a Content-Type other than application/json",
        "500": "the server failed",
        "503": "too many requests or connections wait",
        "504": "the result took too long",
    }
    refusals = {status: _content(text, "Error") for status, text in errors.items()}
    kinds = sorted(set(tasks))
    schemas: dict[str, Any] = {
        "Error": _object({"error": {"type": "string"}}),
        "Request": _object(
            {
                "inputs": {
                    "type": "array",
                    "maxItems": limits.inputs,
                    "items": _any([input_schema(task) for task in kinds]),
                },
                "run": {"type": "integer", "minimum": 0, "maximum": max(len(tasks) - 1, 0), "default": 0},
                "alternatives": {
                    "type": "boolean",
                    "default": False,
                    "description": "also list whole structures with their probabilities; for tag, parse and bracket",
                },
            },
            required=["inputs"],
        ),
        "Response": _object(
            {
                "task": {"type": "string", "enum": kinds},
                "outputs": {
                    "type": "array",
                    "items": _any([{"$ref": f"#/components/schemas/{_title(k)}"} for k in kinds]),
                },
            }
        ),
        "Runs": _object({"runs": {"type": "array", "items": {"type": "object"}}, "limits": {"type": "object"}}),
    }
    for task in kinds:
        if task not in OUTPUTS:
            schemas[_title(task)] = {"type": "object"}
            continue
        fields = dict(OUTPUTS[task])
        required = list(fields)
        if task in ALTERNATIVES:
            fields["alternatives"] = {"type": "array", "items": _object(ALTERNATIVES[task])}
        schemas[_title(task)] = _object(fields, required)
    return {
        "openapi": "3.1.0",
        "info": {"title": "polymax serve", "version": polymax.__version__},
        "paths": {
            "/api/predict": {
                "post": {
                    "summary": "Predictions of a trained model for each input",
                    "requestBody": {"required": True, "content": _json("Request")},
                    "responses": {"200": _content("an output for each input", "Response"), **refusals},
                }
            },
            "/api/runs": {
                "get": {
                    "summary": "The runs that are served, their inputs, and the limits",
                    "responses": {"200": _content("the runs", "Runs")},
                }
            },
            "/api/schema": {"get": {"summary": "This document", "responses": {"200": {"description": "OpenAPI"}}}},
            "/": {"get": {"summary": "The end points", "responses": {"200": {"description": "a list"}}}},
            "/api/health": {"get": {"summary": "Is the server there", "responses": {"200": {"description": "it is"}}}},
        },
        "components": {"schemas": schemas},
    }


def _title(task: str) -> str:
    return "".join(part.title() for part in task.split("-"))


def _any(options: list[dict[str, Any]]) -> dict[str, Any]:
    return options[0] if len(options) == 1 else {"anyOf": options}


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _content(description: str, name: str) -> dict[str, Any]:
    return {"description": description, "content": _json(name)}
