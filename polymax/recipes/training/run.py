"""The directory of a run: what was asked, the vocabularies, the weights, the log; and a model out of it.

config.json, vocabulary.json, weights.pt (of the best epoch), last.ckpt (to resume), log.csv, tensorboard/.
"""

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from polymax.recipes.training.settings import Learning, Running, flag, made
from polymax.recipes.training.task import Task, Trained, Vocabularies, named
from polymax.recipes.training.vocabulary import restored


@dataclass(frozen=True)
class Run:
    """A directory, by the names of what is in it."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def vocabulary(self) -> Path:
        return self.path / "vocabulary.json"

    @property
    def weights(self) -> Path:
        return self.path / "weights.pt"

    @property
    def last(self) -> Path:
        return self.path / "last.ckpt"

    @property
    def log(self) -> Path:
        return self.path / "log.csv"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"


@dataclass(frozen=True)
class Config:
    """What was asked: enough to build the model, and to train on."""

    task: str
    options: Any
    learning: Learning
    running: Running
    files: dict[str, tuple[str, ...]]
    # of the contents of the training files: what a resumed run would silently not notice
    digest: str

    def write(self, file: Path) -> None:
        """As JSON."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        replaced(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    @classmethod
    def read(cls, file: Path) -> "Config":
        """From JSON; a ValueError that names the file if it is not one of these."""
        stored = _json(file)
        try:
            return cls(
                stored["task"],
                made(named(stored["task"]).Options, stored["options"]),
                made(Learning, stored["learning"]),
                made(Running, stored["running"]),
                {part: tuple(names) for part, names in stored["files"].items()},
                stored["digest"],
            )
        except (KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{file}: not the configuration of a run: {error!r}") from None
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None


def load(run: str | Path, *, device: str = "cpu", **options: Any) -> Trained:
    """The model of a run, ready for use; options that may change after training, such as `beam`, are keywords.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: nowhere is not a run: there is no nowhere/config.json
    """
    directory = Run(Path(run))
    config = Config.read(existing(directory).config)
    task = named(config.task)
    vocabularies = read_vocabularies(directory.vocabulary)
    chosen = made(task.Options, late(task, options), config.options)
    model = task.model(chosen, vocabularies)
    if not directory.weights.exists():
        raise FileNotFoundError(f"{directory.weights} is missing: no epoch of this run was finished")
    model.load_state_dict(fitting(model, tensors(directory.weights), directory.weights))
    return Trained(task, chosen, vocabularies, model.to(device).eval())


def existing(run: Run) -> Run:
    """The run, or a FileNotFoundError."""
    if not run.config.exists():
        raise FileNotFoundError(f"{run.path} is not a run: there is no {run.config}")
    return run


def late_options(task: Task) -> list[str]:
    """The options that may change after training."""
    return [field.name for field in fields(task.Options) if field.metadata["late"]]


def late(task: Task, given: dict[str, Any]) -> dict[str, Any]:
    """What was given, if all of it may change after training."""
    free = late_options(task)
    for name in given:
        if name not in free:
            raise ValueError(f"{flag(name)} cannot change after training; {', '.join(map(flag, free))} can")
    return given


def tensors(file: Path) -> dict[str, Any]:
    """What torch.save wrote, if it has tensors and plain values alone: nothing in the file is executed."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        raise ValueError(f"{file}: not a file of weights, or a damaged one") from None


def fitting(model: torch.nn.Module, weights: dict[str, Any], file: Path) -> dict[str, Any]:
    """The weights, or a ValueError that says which of them is not as the vocabularies and the configuration have it."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"{file} does not fit the vocabularies and the configuration beside it: "
                f"{name} must be {expected.get(name, 'absent')}; got {found.get(name, 'nothing')}"
            )
    return weights


def write_vocabularies(vocabularies: Vocabularies, file: Path) -> None:
    """All vocabularies of a run, in one JSON file."""
    text = json.dumps({name: words.stored() for name, words in vocabularies.items()}, ensure_ascii=False, indent=1)
    replaced(file, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))


def read_vocabularies(file: Path) -> Vocabularies:
    """What `write_vocabularies` wrote."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing")
    try:
        return {name: restored(stored) for name, stored in _json(file).items()}
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{file}: not a file of vocabularies: {error!r}") from None


def digest(files: Sequence[Path]) -> str:
    """Of the contents of files."""
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            total.update(hashlib.file_digest(opened, "sha256").digest())
    return total.hexdigest()


def replaced(file: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the file, then rename: whoever is killed in between leaves the file as it was."""
    temporary = file.with_name(file.name + ".part")
    write(temporary)
    os.replace(temporary, file)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not JSON: {error}") from None
