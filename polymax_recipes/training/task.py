"""What a task is to the command: a name, its options, how to read, model, measure and predict."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.text.tokenizer import RawSentence
from polymax_recipes.training.batches import Encoded
from polymax_recipes.training.vocabulary import Vocabulary

# the module of each task, which has it as an object `task`
MODULES: dict[str, str] = {}


def register(name: str, module: str) -> None:
    """Register a task under a name; its module is imported when the task is first asked for.

    Example:
        >>> register("tag", "polymax_recipes.tag.task")
        >>> named("tag").name
        'tag'
    """
    MODULES[name] = module


Vocabularies = dict[str, Vocabulary]
Report = dict[str, float]
# sums over a batch, and what they are to be divided by
Measured = dict[str, tuple[Tensor, Tensor]]


class Part(NamedTuple):
    """Parameters that learn together, at `rate` times the learning rate."""

    parameters: list[nn.Parameter]
    rate: float = 1.0


class Model(nn.Module, ABC):
    """A module that can be trained: it knows its own loss, where it begins and how it is minimised."""

    # whether a step takes all training data at once: an optimiser that searches along a line needs one function
    whole = False

    @abstractmethod
    def loss(self, batch: Any) -> Measured:
        """Sums over the batch, and what they are to be divided by; "loss" is what is minimised."""

    def start(self, data: Encoded) -> None:
        """Take first values from the training data, where random ones will not do."""

    def start_epoch(self, epoch: int) -> None:
        """Told at the start of each epoch of the training, counted from 0."""

    def optimizer(self, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """What minimises the loss: Adam, unless a model knows better."""
        return torch.optim.AdamW(self.parameters(), lr, weight_decay=weight_decay)


class Alternating(Model):
    """A model of two parts that learn in turns, each with an optimiser of its own."""

    @abstractmethod
    def parts(self) -> tuple[Part, Part]:
        """The parameters of the first part and of the second, and how their learning rates relate to that of --lr."""

    @abstractmethod
    def turns(self, batch: Any) -> Iterator[Measured]:
        """First what `loss` gives, for a step of the first part; then losses for steps of the second, one by one.

        A step is taken before the next loss is asked for.
        """


@dataclass
class Trained:
    """A trained model, ready for use, as `polymax_recipes.load` returns it.

    Example:
        >>> from polymax_recipes import load
        >>> load("nowhere").results(["Anna sings."])
        Traceback (most recent call last):
        FileNotFoundError: nowhere is not a run: there is no nowhere/config.json
    """

    task: "Task"
    options: Any
    vocabularies: Vocabularies
    model: Model
    # measures of a training that was just run, by the part of the data
    reports: dict[str, Report] = field(default_factory=dict)

    def evaluate(self, *files: str | Path) -> Report:
        """The task's measures on files like those it was trained on; a ValueError that names what is not like them."""
        names = ", ".join(map(str, files))
        examples = self.task.read_as([Path(file) for file in files], self.options)
        try:
            return self.task.evaluate(self, examples)
        except ReadError:
            raise
        except ValueError as error:
            raise ValueError(f"{names}: {error}") from error

    def predict(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines of output of lines of input."""
        from polymax_recipes.training.predict import predictions

        return predictions(self, lines)

    def results(self, inputs: Iterable[Any]) -> list[Any]:
        """The prediction for each input, as objects of `polymax_recipes.results`: structures and probabilities.

        Inputs are texts or lists of tokens for tag, parse and bracket, texts for seq2seq, lm and listops, pairs of
        texts for entail, word-align and protein-align, either for classify, arrays (n,) or (n, d) for series, and
        pairs of samples (n,) and a text of tokens for speech-align.
        """
        given = list(inputs)
        return self.task.results(self, given) if given else []


class Task(ABC):
    """One kind of data and model; everything about files, epochs, devices and flags is the same for all.

    `Options` is a frozen dataclass whose fields are made by `option`: they are the flags of `polymax train NAME`.
    `encode` and `model` are functions of their arguments alone, so that a run can be continued and loaded.
    """

    name: str
    summary: str
    Options: type[Any]
    # measures by which dev decides which epoch is best: the first that the model has
    monitor: tuple[str, ...] = ("loss",)
    # those that are better where they are less
    falling: tuple[str, ...] = ("loss",)

    @abstractmethod
    def read(self, files: Sequence[Path]) -> list[Any]:
        """The examples of files; a ValueError that begins with FILE:LINE where they cannot be read."""

    def read_as(self, files: Sequence[Path], options: Any) -> list[Any]:
        """The examples of files as the options say that they are to be read."""
        return self.read(files)

    def used(self, examples: list[Any], part: str, options: Any) -> list[Any]:
        """The examples of "train" or "dev" that a training uses; a ValueError where they are not what it needs."""
        return examples

    @abstractmethod
    def vocabularies(self, examples: list[Any], options: Any) -> Vocabularies:
        """The vocabularies of the examples of the training files."""

    @abstractmethod
    def encode(self, examples: list[Any], vocabularies: Vocabularies) -> Encoded:
        """Examples as the model takes them."""

    def tokens(self, data: Any) -> Tensor | None:
        """How many tokens each encoded example has, (count,), for the speed in the log; None where there are none."""
        return None

    @abstractmethod
    def model(self, options: Any, vocabularies: Vocabularies) -> Model:
        """An untrained model; its random numbers are torch's."""

    def begin(self, model: Any, options: Any) -> None:
        """Give a model the weights that its training begins with, where these are not the random ones it has."""
        return

    @abstractmethod
    def evaluate(self, trained: Trained, examples: list[Any]) -> Report:
        """Measures, in the order in which they are printed."""

    def units(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        """The lines of input that belong together: each by itself, where a task does not say otherwise."""
        return ([line] for line in lines)

    @abstractmethod
    def parse(self, file: str, unit: list[Line]) -> Any:
        """What a unit is an input to; a ReadError with the file and the line where it is none."""

    def accept(self, trained: Trained, file: str, unit: list[Line]) -> Any:
        """What a unit is an input to this model; a ReadError where it is none."""
        return self.parse(file, unit)

    def stands_alone(self, trained: Trained, given: Any) -> bool:
        """True if an input can be predicted without those before it, so that a piece of the work may end there."""
        return True

    def from_text(self, trained: Trained, sentence: RawSentence) -> list[str]:
        """The lines of input of a sentence of raw text; a ValueError where a task takes none."""
        raise ValueError(f"--text is for tag, parse and bracket; {self.name} takes lines as docs/recipes.md says")

    def doubts(self, log: Sequence[dict[str, str]], dev: Any) -> Iterator[str]:
        """What looks wrong about a training, by the rows of its log."""
        return iter(())

    def results(self, trained: Trained, inputs: list[Any]) -> list[Any]:
        """What is found for each of some inputs, as objects; a ValueError where a task has none."""
        raise ValueError(f"{self.name} has no results as objects; predict gives lines")

    @abstractmethod
    def predict(self, trained: Trained, inputs: list[Any], before: int) -> Iterator[str]:
        """The lines of output of parsed units, in their order; `before` is how many came before them."""


def option(
    default: Any, help: str, *, choices: Sequence[str] = (), least: float = 0, most: float = inf, late: bool = False
) -> Any:
    """A field of Options: a flag with its help; a `late` one may be another at each use of a trained model."""
    known = {"help": help, "choices": tuple(choices), "least": least, "most": most, "late": late}
    return field(default=default, metadata=known)


@cache
def named(name: str) -> Task:
    """The task that has this name.

    Example:
        >>> named("seq2seq").name
        'seq2seq'
    """
    if name not in MODULES:
        raise ValueError(f"task must be one of {', '.join(MODULES)}; got {name!r}")
    return import_module(MODULES[name]).task
