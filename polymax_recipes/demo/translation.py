"""The training of the demo: numbers in words from English to French, by models that differ only in their attention."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from torch import Tensor

import polymax as pm
from polymax_recipes.demo.catalogue import call, name
from polymax_recipes.seq2seq import numbers
from polymax_recipes.seq2seq.task import attended
from polymax_recipes.training.fit import train
from polymax_recipes.training.run import Run, load
from polymax_recipes.training.task import Report

# at this strength whole segments of the learned attention share a weight
ATTENTIONS: tuple["partial[Tensor]", ...] = (
    partial(pm.softmax),
    partial(pm.sparsemax),
    partial(pm.fusedmax, strength=1.0),
)
# options of `polymax train seq2seq` with which all three models learn the task in less than half a minute each
OPTIONS = {"hidden": 64, "embedding": 64, "lr": 0.005, "longest": 12, "accelerator": "cpu"}
# not among the numbers of a whole lesson: "ninety eight" is "quatre vingt dix huit", four twenty ten eight
SHOWN = 2698


@dataclass(frozen=True)
class Lesson:
    """Numbers of pairs to learn from and to test on, and of epochs."""

    pairs: int = 4000
    unseen: int = 500
    epochs: int = 5


LESSON = Lesson()


@dataclass(frozen=True)
class Learned:
    """A trained model: the mapping of its attention, its measures on unseen numbers, its weights for one of them.

    Shapes: weights (target words, source words), the end of the sentence included
    """

    mapping: "partial[Tensor]"
    report: Report
    trained_per_second: float
    weights: Tensor
    target: list[str]
    source: list[str]

    def measures(self) -> dict[str, str]:
        """Columns of the tables in the terminal and in the report."""
        return {
            "right": f"{self.report['accuracy']:.1%}",
            "zeros": f"{self.report['zeros']:.0%}",
            "groups": f"{self.report['groups']:.1f}",
            "training, words/s": f"{self.trained_per_second:,.0f}",
            "translating, words/s": f"{self.report['words_per_second']:,.0f}",
        }


def missing_packages() -> list[str]:
    """The packages that training needs and that are not there."""
    return [package for package in ("lightning", "tensorboard", "sacrebleu") if find_spec(package) is None]


def train_models(lesson: Lesson, console: Console) -> Iterator[Learned]:
    """A model for each attention, one after the other; their runs are kept nowhere."""
    with TemporaryDirectory() as folder:
        parts = numbers.write(Path(folder), lesson.pairs, lesson.unseen)
        files = {part: [file] for part, file in zip(("train", "dev"), parts)}
        for number, mapping in enumerate(ATTENTIONS, 1):
            console.print(f"training {number} of {len(ATTENTIONS)}: {call(mapping)}", highlight=False)
            run = Run(Path(folder) / name(mapping))
            given = {**OPTIONS, **mapping.keywords, "attention": name(mapping), "epochs": lesson.epochs}
            with one_thread():
                report = train("seq2seq", files, run.path, given)["dev"]
            yield Learned(mapping, report, _speed(run), *attended(load(run.path), numbers.english(SHOWN)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in this block.

    The steps are so small that threads would wait for each other, and longer if other processes use the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _speed(run: Run) -> float:
    # the median epoch: the first also compiles kernels
    with run.log.open(encoding="utf-8", newline="") as file:
        return median(float(row["tokens_per_second"]) for row in csv.DictReader(file))
