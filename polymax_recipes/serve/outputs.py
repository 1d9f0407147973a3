"""Results of a model as plain data for JSON: fields of results, and whole structures with their probabilities."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from torch import Tensor

from polymax_recipes.explore.numbers import round_digits, to_lists
from polymax_recipes.readers.trees import Tree
from polymax_recipes.results import token_lists
from polymax_recipes.training.task import Trained


def outputs_of(trained: Trained, inputs: list[Any]) -> list[dict[str, Any]]:
    """The results of a model for these inputs, as dicts."""
    return [plain_result(one) for one in trained.results(inputs)]


def plain_result(result: Any) -> dict[str, Any]:
    """A result of `polymax_recipes.results` as a dict: tensors as lists, trees as text and as spans."""
    found = {}
    for field in fields(result):
        value = getattr(result, field.name)
        found[field.name] = _plain(value)
        if isinstance(value, Tree):
            found["brackets"] = [[span.start, span.last, span.label] for span in value.spans]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return to_lists(value)
    if isinstance(value, float):
        return round_digits(value, 6)
    if isinstance(value, Tree):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def alternatives_of(trained: Trained, inputs: list[Any]) -> list[list[dict[str, Any]]]:
    """Whole structures with their probabilities, most probable first: taggings, dependency trees or constituents.

    Raises ValueError if the task has no alternatives, or if the training loss has no probabilities.
    """
    if not inputs:
        return []
    if trained.task.name not in _ALTERNATIVES:
        raise ValueError(f"alternatives are for {', '.join(_ALTERNATIVES)}; the model is of {trained.task.name}")
    return list(_ALTERNATIVES[trained.task.name](trained, token_lists(inputs)))


def _taggings(trained: Trained, sentences: list[list[str]]) -> Iterator[list[dict[str, Any]]]:
    from polymax_recipes.tag.task import taggings_of, untagged_sentences

    for found in taggings_of(trained, untagged_sentences(trained, sentences)):
        yield [{"probability": round_digits(p, 6), "tags": tags} for p, tags in found]


def _trees(trained: Trained, sentences: list[list[str]]) -> Iterator[list[dict[str, Any]]]:
    from polymax_recipes.parse.task import weighted_trees

    for found in weighted_trees(trained, sentences):
        rows = ((p, list(tree.heads), list(tree.relations)) for p, tree in found)
        yield [{"probability": round_digits(p, 6), "heads": heads, "relations": names} for p, heads, names in rows]


def _brackets(trained: Trained, sentences: list[list[str]]) -> Iterator[list[dict[str, Any]]]:
    from polymax_recipes.bracket.task import parsed

    for found in parsed(trained, sentences, True):
        yield [
            {
                "probability": round_digits(p, 6),
                "tree": str(tree),
                "brackets": [[span.start, span.last, span.label] for span in tree.spans],
            }
            for p, tree in found
        ]


_ALTERNATIVES = {"tag": _taggings, "parse": _trees, "bracket": _brackets}
