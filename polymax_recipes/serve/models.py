"""Models in a process that computes: each run is loaded and warmed up once."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polymax_recipes.serve.outputs import alternatives_of, outputs_of
from polymax_recipes.serve.schema import ALTERNATIVES, EXAMPLES
from polymax_recipes.training.task import Trained


@dataclass(frozen=True)
class Source:
    """A run that a process loads: its directory, its device, and options as flags spell them."""

    path: Path
    device: str = "auto"
    options: tuple[str, ...] = ()

    def load(self) -> Trained:
        """The model of the run."""
        from polymax_recipes.training.commands import load_run

        return load_run(self.path, self.device, list(self.options))

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.resolve().name


@dataclass(frozen=True)
class Given:
    """A model that is there already, with a name."""

    name: str
    trained: Trained

    def load(self) -> Trained:
        """The model itself."""
        return self.trained


class Models:
    """The work of models: inputs to outputs, as JSON. The kind of work is the number of a run.

    `about` has a name, a task and a summary for each run.
    """

    def __init__(self, sources: Sequence[Source | Given]) -> None:
        self.models = [source.load() for source in sources]
        self.about = [
            {"name": source.name, "task": model.task.name, "summary": model.task.summary}
            for source, model in zip(sources, self.models)
        ]
        for number, model in enumerate(self.models):
            self._warm_up(number, model.task.name)

    def __call__(self, kind: str, given: list[tuple[Any, bool]]) -> list[bytes]:
        """Outputs for pairs of an input and a bool, True if alternatives are requested."""
        trained = self.models[int(kind)]
        found = outputs_of(trained, [one for one, _ in given])
        wanted = [k for k, (_, asked) in enumerate(given) if asked]
        for k, listed in zip(wanted, alternatives_of(trained, [given[k][0] for k in wanted])):
            found[k]["alternatives"] = listed
        return [json.dumps(one, ensure_ascii=False, allow_nan=False).encode() for one in found]

    def _warm_up(self, number: int, task: str) -> None:
        """Compile kernels before the first request: its time is not for that."""
        for asked in (False, task in ALTERNATIVES):
            try:
                self(str(number), [(EXAMPLES[task], asked)] if task in EXAMPLES else [])
            except Exception:
                # such as a loss without probabilities; requests then get an error
                continue


@dataclass(frozen=True)
class LoadModels:
    """A callable that loads models in a process; it can be pickled."""

    sources: tuple[Source | Given, ...] = field(default=())

    def __call__(self) -> Models:
        return Models(self.sources)
