"""Training from Python: what `polymax train` does, with a model in the end."""

from collections.abc import Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from polymax_recipes.training.run import load
from polymax_recipes.training.task import Trained

File = str | PathLike[str]


def train(
    task: str,
    *,
    train: File | Sequence[File] = (),
    dev: File | Sequence[File] = (),
    test: File | Sequence[File] = (),
    out: File,
    resume: bool = False,
    **options: Any,
) -> Trained:
    """Train the task of a name from files, keep the run in the directory `out`, and give its model.

    Options are the flags of `polymax train TASK`, with underscores: `epochs=5, batch_size=32, loss="crf"`.
    Several files are a list. The model is on the CPU; `load` puts it elsewhere. The measures that the command prints
    are in `Trained.reports`, by the part of the data.

    Example:
        >>> train("tag", out="run")
        Traceback (most recent call last):
        ValueError: --train must be given
    """
    if find_spec("lightning") is None:
        raise ImportError("training needs the package lightning: pip install 'polymax[train]'")
    from polymax_recipes.training.fit import train as fit

    files = {part: _paths(given) for part, given in (("train", train), ("dev", dev), ("test", test))}
    reports = fit(task, files, Path(out), options, resume)
    trained = load(Path(out))
    trained.reports.update(reports)
    return trained


def _paths(given: File | Sequence[File]) -> list[Path]:
    return [Path(given)] if isinstance(given, str | PathLike) else [Path(file) for file in given]
