"""The directory of a run: its configuration, vocabularies, weights and log; and models loaded from it.

config.json, vocabulary.json, weights.pt (of the best epoch), last.ckpt (to resume), log.csv, samples.json (inputs of
dev, to show), digests.json (of all these); tensorboard/, and data/ (rows that were given in memory). An error in one of
these files is a ValueError or an OSError that names the file.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch
from torch import Tensor

from polymax_recipes.outputs import part_of
from polymax_recipes.training.digests import NAME, atomic_write_with_digest, check_digest, read_digests
from polymax_recipes.training.settings import Learning, Running, flag, made
from polymax_recipes.training.task import Model, Task, Trained, Vocabularies, named
from polymax_recipes.training.vocabulary import restored


@dataclass(frozen=True)
class Run:
    """A run directory, with the paths of its files."""

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

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def samples(self) -> Path:
        return self.path / "samples.json"

    @property
    def files(self) -> list[Path]:
        """The files of a run that are written as a whole: other commands must not write to them."""
        digests = self.path / NAME
        return [self.config, self.vocabulary, self.weights, self.last, self.log, self.samples, digests]

    def clear(self) -> None:
        """Remove incomplete files of a process that was killed."""
        for file in self.files:
            part = part_of(file)
            if part.is_dir():
                # a checkpoint of several processes
                shutil.rmtree(part)
            part.unlink(missing_ok=True)

    @property
    def begun(self) -> bool:
        """Return True if the run has begun: a process that is killed before may leave only incomplete files."""
        if not self.path.is_dir():
            return self.path.exists()
        early = {self.vocabulary.name, self.data.name, NAME, *(part_of(file).name for file in self.files)}
        names = {file.name for file in self.path.iterdir()}
        # a vocabulary of the user's own has no digest beside it
        return not names <= early or (self.vocabulary.name in names and NAME not in names)


@dataclass(frozen=True)
class Config:
    """The configuration of a run: enough to build the model, and to train on."""

    task: str
    options: Any
    learning: Learning
    running: Running
    files: dict[str, tuple[str, ...]]
    # digest of the contents of the training files, to detect changes when a run is resumed
    digest: str

    def write(self, file: Path) -> None:
        """Write the configuration as JSON."""
        with atomic_write_with_digest(file) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Config":
        """Read a configuration from JSON; a ValueError names a file that is not a configuration."""
        stored = _json(file)
        with refused(file, "the configuration of a run"):
            return cls(
                stored["task"],
                made(named(stored["task"]).Options, stored["options"]),
                made(Learning, stored["learning"]),
                made(Running, stored["running"]),
                {part: tuple(map(_text, names)) for part, names in stored["files"].items()},
                _text(stored["digest"]),
            )


def load(run: str | Path, *, device: str = "cpu", **options: Any) -> Trained:
    """Load the model of a run; options that may change after training, such as `beam`, are keywords.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: nowhere is not a run: there is no nowhere/config.json
    """
    directory = Run(Path(run))
    config = Config.read(check_run(directory).config)
    task = named(config.task)
    vocabularies = read_vocabularies(directory.vocabulary)
    chosen = made(task.Options, late(task, options), config.options)
    if not directory.weights.exists():
        raise FileNotFoundError(f"{directory.weights} is missing: no epoch of this run was finished")
    model = built(task, chosen, vocabularies, directory)
    model.load_state_dict(fitting(model, tensors(directory.weights), directory.weights))
    return Trained(task, chosen, vocabularies, model.to(device).eval())


def check_new(run: Run) -> None:
    """Raise a FileExistsError if a directory has a run, or anything else."""
    if run.begun:
        kind = "has a run already; --resume continues it" if run.config.exists() else "exists and is not empty"
        raise FileExistsError(f"--out: {run.path} {kind}")


def write_samples(samples: list[Any], file: Path) -> None:
    """Write some inputs of the run's data, as `Trained.results` takes them, for pages that show an example."""
    with atomic_write_with_digest(file) as temporary:
        temporary.write_text(json.dumps(samples, ensure_ascii=False) + "\n", encoding="utf-8")


def read_samples(run: Run) -> list[Any]:
    """Return the inputs that `write_samples` wrote; empty for a run without them."""
    if not run.samples.exists():
        return []
    stored = _json(run.samples)
    with refused(run.samples, "a list of inputs"):
        if not isinstance(stored, list) or not all(isinstance(one, str | list) for one in stored):
            raise TypeError("a list of texts or of lists of texts expected")
        return stored


def check_run(run: Run) -> Run:
    """Return the run; a FileNotFoundError if there is none."""
    if not run.config.exists():
        raise FileNotFoundError(f"{run.path} is not a run: there is no {run.config}")
    return run


def late_options(task: Task) -> list[str]:
    """The options that may change after training."""
    return [field.name for field in fields(task.Options) if field.metadata["late"]]


def late(task: Task, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options if all of them may change after training."""
    free = late_options(task)
    for name in given:
        if name not in free:
            raise ValueError(f"{flag(name)} cannot change after training; {', '.join(map(flag, free))} can")
    return given


def built(task: Task, options: Any, vocabularies: Vocabularies, run: Run) -> Model:
    """Return the untrained model of a run; a ValueError if its configuration does not fit its vocabularies."""
    with refused(run.config, f"a configuration that fits {run.vocabulary}"):
        return task.model(options, vocabularies)


def tensors(file: Path) -> dict[str, Any]:
    """Return the tensors and plain values that torch.save wrote; nothing in the file is executed."""
    check_digest(file)
    with refused(file, "a file of weights"):
        # without digests, at least the checksums of the archive are tested
        if file.name not in read_digests(file.parent) and zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if (member := archive.testzip()) is not None:
                    raise ValueError(f"the check sum of {member} is another")
        stored = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(stored, dict):
            raise TypeError(f"a dict expected; got {type(stored).__name__}")
        return stored


def fitting(model: torch.nn.Module, weights: Any, file: Path) -> dict[str, Any]:
    """Return the weights; a ValueError names a tensor that does not fit the vocabularies and the configuration."""
    expected = {name: _form(tensor) for name, tensor in model.state_dict().items()}
    with refused(file, "a file of weights"):
        found = {_text(name): _form(tensor) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"{file} does not fit the vocabularies and the configuration beside it: "
                f"{name} must be {expected.get(name, 'absent')}; got {found.get(name, 'nothing')}"
            )
    return weights


def _form(tensor: Tensor) -> str:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"a tensor expected; got {type(tensor).__name__}")
    layout = "" if tensor.layout == torch.strided else f" {tensor.layout}"
    return f"{tuple(tensor.shape)} of {tensor.dtype}{layout}"


class StoredVocabularies(Vocabularies):
    """The vocabularies of a file; errors about a missing vocabulary name the file."""

    def __init__(self, file: Path, vocabularies: Vocabularies) -> None:
        super().__init__(vocabularies)
        self.file = file

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"{self.file} must have a vocabulary {name!r}; it has {', '.join(self)}")


def write_vocabularies(vocabularies: Vocabularies, file: Path) -> None:
    """All vocabularies of a run, in one JSON file."""
    text = json.dumps({name: words.stored() for name, words in vocabularies.items()}, ensure_ascii=False, indent=1)
    with atomic_write_with_digest(file) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_vocabularies(file: Path) -> Vocabularies:
    """Return the vocabularies that `write_vocabularies` wrote."""
    stored = _json(file)
    with refused(file, "a file of vocabularies"):
        return StoredVocabularies(file, {name: restored(words) for name, words in stored.items()})


@contextmanager
def refused(file: Path, what: str) -> Iterator[None]:
    """Turn any error of the block into a ValueError: a file is not `what`."""
    try:
        yield
    except Exception as error:
        # the error names the file already
        if isinstance(error, OSError) and error.filename is not None:
            raise
        # torch's own words advise to load objects of any kind, which may run code
        foreign = isinstance(error, UnpicklingError)
        reason = "it holds more than tensors, or none" if foreign else " ".join(f"{error}".split())[:300]
        told = reason if foreign or (isinstance(error, ValueError) and reason) else f"{type(error).__name__}({reason})"
        raise ValueError(f"{file}: not {what}, or a damaged one: {told}") from error


def _json(file: Path) -> Any:
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing")
    check_digest(file)
    with refused(file, "JSON"):
        return json.loads(file.read_text(encoding="utf-8"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected; got {value!r}")
    return value
