"""Training from Python: `polymax train` as a function that returns the model."""

from collections.abc import Mapping
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from polymax_recipes.outputs import atomic_write
from polymax_recipes.readers.tables import as_json, records_in_memory
from polymax_recipes.training.run import Run, check_new, load
from polymax_recipes.training.task import Task, Trained, in_memory, named

File = str | PathLike[str]
# a file, several files, or rows in memory
Data = Any


def train(
    task: str,
    *,
    train: Data = (),
    dev: Data = (),
    test: Data = (),
    out: File,
    resume: bool = False,
    **options: Any,
) -> Trained:
    """Train a task, given by its name, write the run to the directory `out`, and return its model.

    Data are files, a file or a list of them; or rows in memory: a list of dicts or of tuples, a dict of lists, a frame
    of pandas, a dataset of Hugging Face. Rows are kept in the run as `data/PART.jsonl`, so that it can be resumed.
    `columns` names their columns, `columns={"token": "words", "tag": "ner_tags"}`, if they have other names.
    Options are the flags of `polymax train TASK`, with underscores: `epochs=5, batch_size=32, loss="crf"`.
    The model is on the CPU; `load` puts it elsewhere. The measures that the command prints are in `Trained.reports`,
    by the part of the data.

    Example:
        >>> train("tag", out="run")
        Traceback (most recent call last):
        ValueError: --train must be given
    """
    if find_spec("lightning") is None:
        raise ImportError("training needs the package lightning: pip install 'polymax[train]'")
    from polymax_recipes.training.fit import train as fit

    if isinstance(columns := options.get("columns"), Mapping):
        options["columns"] = ",".join(f"{role}={column}" for role, column in columns.items())
    data, run = {"train": train, "dev": dev, "test": test}, Run(Path(out))
    if any(map(in_memory, data.values())) and not resume:
        check_new(run)
    files = {part: _paths(named(task), run, part, given, resume) for part, given in data.items()}
    reports = fit(task, files, Path(out), options, resume)
    trained = load(Path(out))
    trained.reports.update(reports)
    return trained


def _paths(task: Task, run: Run, part: str, given: Data, resume: bool) -> list[Path]:
    """The files of a part of the data; rows in memory are written into the run first."""
    if not in_memory(given):
        return [Path(given)] if isinstance(given, str | PathLike) else [Path(file) for file in given]
    text = "".join(map(as_json, records_in_memory(given, part, task.roles)))
    file = run.data / f"{part}.jsonl"
    if not text:
        raise ValueError(f"{part} must have rows; got none")
    if resume and file.exists() and file.read_text(encoding="utf-8") != text:
        raise ValueError(f"{part}: not the rows that {run.path} began with")
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [file]
