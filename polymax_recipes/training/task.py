"""The base of tasks: a name, options, and functions to read data, make the model, measure and predict."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymax_recipes.doubts import skipped_of
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.tables import Role, Row, is_table, read_table, rows_in_memory
from polymax_recipes.text.tokenizer import RawSentence
from polymax_recipes.training.batches import Encoded
from polymax_recipes.training.vocabulary import Vocabulary

# dev examples for measures of each epoch that take longer than the loss
LOGGED = 500
# the module of each task, in which it is the object `task`
MODULES: dict[str, str] = {}


def register(name: str, module: str) -> None:
    """Register a task under a name; its module is imported when the task is first used.

    Example:
        >>> register("tag", "polymax_recipes.tag.task")
        >>> named("tag").name
        'tag'
    """
    MODULES[name] = module


def register_file(file: str | PathLike[str]) -> str:
    """Run a Python file that has an object `task`, register the task under its name, and return that name.

    Example:
        >>> # name = pm.recipes.register_file("rating.py")
        >>> # pm.recipes.train(name, train="train.tsv", dev="dev.tsv", out="run")
    """
    path = Path(file).absolute()
    spec = spec_from_file_location(f"polymax_task_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"--task must be a Python file; got {file}")
    module = module_from_spec(spec)
    # dataclasses and pickles look their module up by its name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, "task", None)
    if not isinstance(found, Task):
        raise ValueError(f"--task: {file} must have an object `task` of a class of Task; got {found!r}")
    register(found.name, spec.name)
    named.cache_clear()
    return found.name


Vocabularies = dict[str, Vocabulary]
Report = dict[str, float]
# for each measure, its sum over a batch and the divisor
Measured = dict[str, tuple[Tensor, Tensor]]


class Part(NamedTuple):
    """Parameters that learn together, at `rate` times the learning rate."""

    parameters: list[nn.Parameter]
    rate: float = 1.0


class Model(nn.Module, ABC):
    """A module that can be trained: it has its own loss, first values and optimiser."""

    # True if a step takes all training data at once, for optimisers with a line search
    whole = False
    # False if `start` alone learns from the data: then one epoch measures the result
    learns = True

    @abstractmethod
    def loss(self, batch: Any) -> Measured:
        """Return sums over the batch and the counts that divide them; "loss" is minimised."""

    def start(self, data: Encoded) -> None:
        """Initialize weights from the training data, for models that do not start from random weights."""

    def start_epoch(self, epoch: int) -> None:
        """Called at the start of each epoch of the training, with its number from 0."""

    def optimizer(self, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """Return the optimiser of the loss: Adam by default."""
        return torch.optim.AdamW(self.parameters(), lr, weight_decay=weight_decay)


class Alternating(Model):
    """A model of two parts that learn in turns, each with an optimiser of its own."""

    @abstractmethod
    def parts(self) -> tuple[Part, Part]:
        """The parameters of the first part and of the second, and the factors of their learning rates."""

    @abstractmethod
    def turns(self, batch: Any) -> Iterator[Measured]:
        """Yield the result of `loss` for a step of the first part, then losses for steps of the second part, one by
        one.

        Each step is taken before the next loss is computed.
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
    # measures of the latest training, by part of the data
    reports: dict[str, Report] = field(default_factory=dict)

    def evaluate(self, *data: Any) -> Report:
        """Return the task's measures on data like those of the training: files, or rows in memory.

        Rows are lists of dicts or of tuples, frames of pandas or datasets of Hugging Face, as `train` takes them.
        """
        if len(data) == 1 and in_memory(data[0]):
            names = "data"
            rows = rows_in_memory(data[0], names, self.task.roles, columns_of(self.options))
            examples = self.task.of_rows(rows, self.options)
        else:
            names = ", ".join(map(str, data))
            examples = self.task.read_as([Path(file) for file in data], self.options)
        try:
            return measured(self, examples)
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

        Inputs are texts or lists of tokens for tag, parse and bracket; texts for seq2seq, lm and listops; pairs of
        texts for entail, word-align and protein-align; either for classify; arrays (n,) or (n, d) for series; and pairs
        of samples (n,) and a text of tokens for speech-align.
        """
        given = list(inputs)
        return self.task.results(self, given) if given else []


def measured(trained: Trained, examples: list[Any]) -> Report:
    """Return the measures of a task on examples, and the number of examples left out by --skip-bad, if any."""
    skipped = skipped_of(examples)
    report = trained.task.evaluate(trained, examples)
    return {**report, "skipped": len(skipped)} if skipped else report


class Task(ABC):
    """A kind of data with its model; files, epochs, devices and flags are the same for all tasks.

    `Options` is a frozen dataclass whose fields are made by `option`: they are the flags of `polymax train NAME`.
    `encode` and `model` are functions of their arguments alone, so that a run can be continued and loaded.
    """

    name: str
    summary: str
    Options: type[Any]
    # measures that choose the best epoch on dev: the first one that the model has
    monitor: tuple[str, ...] = ("loss",)
    # measures of which smaller values are better
    falling: tuple[str, ...] = ("loss",)

    # names of measures of `evaluate` that are logged after each epoch, on the first LOGGED examples of dev
    logged: tuple[str, ...] = ()
    # the columns of tables, such as CSV and JSON lines, in the order in which a table without names has them
    roles: tuple[Role, ...] = ()

    @abstractmethod
    def read(self, files: Sequence[Path]) -> list[Any]:
        """Return the examples of files in the task's own formats; a ValueError begins with FILE:LINE."""

    def read_as(self, files: Sequence[Path], options: Any) -> list[Any]:
        """Return the examples of files: of tables by their columns, of others by `read`."""
        found: list[Any] = []
        for tables, group in groupby(files, key=lambda file: self.takes_table(file, options)):
            if not tables:
                found += self.read(list(group))
                continue
            for file in group:
                found += self.of_rows(read_table(file, self.roles, columns_of(options)), options)
        return found

    def takes_table(self, file: Path, options: Any) -> bool:
        """Return True if a file is read as a table: by its name, or because columns are named."""
        return bool(self.roles) and (is_table(file) or bool(columns_of(options)))

    def of_rows(self, rows: Iterable[Row], options: Any) -> list[Any]:
        """Return the examples of the rows of a table; a ReadError names the first invalid row."""
        found = [self.of_row(row, options) for row in rows]
        if not found:
            raise ValueError(f"{self.name}: no rows in this table")
        return found

    def of_row(self, row: Row, options: Any) -> Any:
        """Return the example of a row of a table."""
        raise row.error(f"{self.name} reads no tables")

    def lines_of_rows(self, trained: Trained, rows: Iterable[Row]) -> Iterator[Line]:
        """Return the lines of input that the rows of a table stand for in `polymax predict`."""
        for row in rows:
            yield from (Line(row.number, text, text + "\n") for text in self.lines_of_row(trained, row))

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        """Return the lines of input that a row of a table stands for."""
        raise row.error(f"{self.name} predicts no tables; give it lines, as docs/recipes.md says")

    def sample(self, example: Any) -> Any:
        """Return an example in the form of the inputs of `Trained.results`; None if the task cannot show examples."""
        return None

    def used(self, examples: list[Any], part: str, options: Any) -> list[Any]:
        """Return the examples of "train" or "dev" that a training uses; a ValueError if they do not fit the options."""
        return examples

    @abstractmethod
    def vocabularies(self, examples: list[Any], options: Any) -> Vocabularies:
        """The vocabularies of the examples of the training files."""

    @abstractmethod
    def encode(self, examples: list[Any], vocabularies: Vocabularies) -> Encoded:
        """Examples as the model takes them."""

    def tokens(self, data: Any) -> Tensor | None:
        """Return the number of tokens of each encoded example, (count,), for the speed in the log; None without
        tokens.
        """
        return None

    @abstractmethod
    def model(self, options: Any, vocabularies: Vocabularies) -> Model:
        """Return an untrained model; random weights come from torch's generator."""

    def begin(self, model: Any, options: Any) -> None:
        """Load pretrained weights into a new model, if the task has some."""
        return

    @abstractmethod
    def evaluate(self, trained: Trained, examples: list[Any]) -> Report:
        """Measures, in the order in which they are printed."""

    def units(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        """Yield the lines of input that belong together: by default each line alone."""
        return ([line] for line in lines)

    @abstractmethod
    def parse(self, file: str, unit: list[Line]) -> Any:
        """Return the input that a unit of lines stands for; a ReadError names the file and the line if there is
        none.
        """

    def unread(self, unit: list[Line]) -> list[str]:
        """Return the lines that `polymax predict --skip-bad` writes for a unit that cannot be read."""
        return [""]

    def accept(self, trained: Trained, file: str, unit: list[Line]) -> Any:
        """Return the input of a unit in this model's form; a ReadError if it cannot be read."""
        return self.parse(file, unit)

    def stands_alone(self, trained: Trained, given: Any) -> bool:
        """Return True if an input can be predicted without the inputs before it: a piece may end before it."""
        return True

    def from_text(self, trained: Trained, sentence: RawSentence) -> list[str]:
        """Return the lines of input of a sentence of raw text; a ValueError if the task takes no raw text."""
        raise ValueError(f"--text is for tag, parse and bracket; {self.name} takes lines as docs/recipes.md says")

    def measures_to_log(self, trained: Trained, dev: list[Any]) -> Report:
        """Return further measures on dev for the log of an epoch, besides the means of the loss."""
        report = self.evaluate(trained, dev[:LOGGED])
        return {name: report[name] for name in self.logged if name in report}

    def fitted(self, count: int) -> dict[str, Any]:
        """Return defaults of the training, such as the batch size, that fit so many training examples."""
        return {}

    def doubts(self, log: Sequence[dict[str, str]], dev: Any) -> Iterator[str]:
        """Return warnings about a training, by the rows of its log."""
        return iter(())

    def results(self, trained: Trained, inputs: list[Any]) -> list[Any]:
        """Return the result of each input, as objects; a ValueError if a task has no such objects."""
        raise ValueError(f"{self.name} has no results as objects; predict gives lines")

    @abstractmethod
    def predict(self, trained: Trained, inputs: list[Any], before: int) -> Iterator[str]:
        """The lines of output of parsed units, in their order; `before` is the number of units before them."""


def option(
    default: Any, help: str, *, choices: Sequence[str] = (), least: float = 0, most: float = inf, late: bool = False
) -> Any:
    """A field of Options: a flag with its help; a `late` option may be changed at each use of a trained model."""
    known = {"help": help, "choices": tuple(choices), "least": least, "most": most, "late": late}
    return field(default=default, metadata=known)


@dataclass(frozen=True)
class Reading:
    """The option of the columns of tables, the first option of every task."""

    columns: str = option(
        "",
        "Columns of tables, such as token=0,tag=3 or text=review: by number from 0, from -1 at the end, or by name.",
        late=True,
    )


def columns_of(options: Any) -> str:
    """Return the columns that options name; none for user-defined tasks without that option."""
    return getattr(options, "columns", "")


def in_memory(data: Any) -> bool:
    """Return True if data are rows in memory, False if they are a file or a list of files.

    Example:
        >>> in_memory("train.txt"), in_memory([Path("a")]), in_memory([{"token": ["a"]}])
        (False, False, True)
    """
    if isinstance(data, str | PathLike):
        return False
    if isinstance(data, list | tuple):
        return bool(data) and not all(isinstance(file, str | PathLike) for file in data)
    return True


@cache
def named(name: str) -> Task:
    """The task that has this name.

    Example:
        >>> named("seq2seq").name
        'seq2seq'
    """
    if name not in MODULES:
        own = "; --task FILE gives a task of your own"
        raise ValueError(f"task must be one of {', '.join(MODULES)}; got {name!r}{own}")
    return import_module(MODULES[name]).task
