"""Limits of one request and of all of them: bytes, seconds, connections, and the work of an input.

The work of an input is a share of the largest input that a task takes. A parser is cubic in words, so that an input of
half the words is an eighth of the work. Shares decide which inputs are computed together, and how much one request may
ask for.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from polymax_recipes.serve.errors import Refused
from polymax_recipes.text.tokenizer import tokens as tokens_of_text

# the largest work of a request, in inputs of the largest size
MOST_SHARES = 16.0
# characters of a word at which a tokenizer of word pieces may cut it
PIECE = 8


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    body is in bytes, arrival and computing in seconds. inputs is per request, characters per input; words=0 takes the
    limit of the task. waiting is the size of all bodies in memory, in bytes; memory is the limit of one process beyond
    its models, in bytes, 0 for no limit.
    """

    body: int = 1 << 20
    arrival: float = 10.0
    computing: float = 30.0
    inputs: int = 256
    characters: int = 20_000
    words: int = 0
    connections: int = 512
    waiting: int = 32 << 20
    memory: int = 4 << 30


class Work(NamedTuple):
    """The most words of an input of a task, and the power of the words with which its work grows.

    An input of up to `light` words never waits behind longer ones.
    """

    words: int
    power: int
    light: int


WORK: dict[str, Work] = {
    "tag": Work(2_000, 1, 200),
    "parse": Work(200, 3, 40),
    "bracket": Work(200, 3, 40),
    "seq2seq": Work(1_000, 2, 100),
    "lm": Work(5_000, 1, 500),
    "word-align": Work(1_000, 2, 100),
    "entail": Work(1_000, 2, 100),
    "classify": Work(200, 3, 40),
    "listops": Work(500, 3, 100),
    "speech-align": Work(20_000, 1, 4_000),
    "protein-align": Work(2_000, 2, 200),
    "series": Work(2_000, 2, 200),
}
# tasks outside of this library
OTHER = Work(20_000, 1, 1_000)


def work_of(task: str, words: int = 0) -> Work:
    """The work of a task, with another limit of words if that is not 0."""
    known = WORK.get(task, OTHER)
    return known._replace(words=words) if words else known


def words_of(task: str, given: Any) -> int:
    """The number of words of an input; for a pair, of its longer part.

    Example:
        >>> words_of("parse", "Anna sings."), words_of("protein-align", ["ACG", "AG"]), words_of("tag", ["New York"])
        (3, 3, 1)
    """
    if task in ("tag", "parse", "bracket"):
        return len(tokens_of_text(given)) if isinstance(given, str) else len(given)
    if task in ("lm", "protein-align"):
        return max(map(len, [given] if isinstance(given, str) else given))
    if task == "series":
        return len(given)
    if task == "speech-align":
        return max(len(given[0]), len(given[1].split()))
    if isinstance(given, str):
        return max(len(given.split()), len(given) // PIECE)
    return max((words_of(task, part) for part in given), default=0) if isinstance(given, list) else 0


class Share(NamedTuple):
    """The work of an input as a share of the largest input, at most 1, and True if it may go before heavy inputs."""

    size: float
    light: bool


def share_of(task: str, given: Any, place: int, words: int = 0) -> Share:
    """The share of an input; raises `Refused` if the input has more words than the task takes."""
    most, power, light = work_of(task, words)
    found = words_of(task, given)
    if found > most:
        raise Refused(413, f"inputs[{place}] may have {most} words for {task}; got {found}")
    return Share((found / most) ** power, found <= light)
