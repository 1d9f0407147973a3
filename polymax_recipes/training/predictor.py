"""A trained model as a function of batches, for engines that spread a corpus over machines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor

from polymax_recipes.serve.outputs import plain_result
from polymax_recipes.training.run import load
from polymax_recipes.training.settings import use_threads
from polymax_recipes.training.task import Trained

_LOADING = Lock()


def predictor(
    run: str | PathLike[str],
    inputs: str | Sequence[str] = "text",
    outputs: Sequence[str] = (),
    *,
    device: str = "cpu",
    threads: int = 1,
    **options: Any,
) -> "Predictor":
    """Return a function of batches that predicts by the model of a run, for Ray Data, Spark and their like.

    The function pickles to a few bytes: each process that calls it loads the run, once. A batch is a list of inputs,
    as `Trained.results` takes them, and the result a list of dicts; or it has columns, a dict of lists or arrays or a
    frame of pandas, and the result is that batch with further columns.

    Args:
        run: the directory of the run, at a path that all machines see
        inputs: the column of inputs; several columns for pairs
        outputs: the fields of results that become columns; by default all but tensors, if the batch has none of the
            name
        device: the device of the model
        threads: the threads on the CPU of a process; engines start a process for each core
        options: options that may change after training, such as `beam`

    Returns:
        the function; its method `frames` takes an iterator of frames, as `mapInPandas` does

    Example:
        >>> label = predictor("run", "text", ["tags"])
        >>> # tagged = ray.data.read_parquet("corpus").map_batches(label, batch_format="pandas")
        >>> # tagged = spark.read.parquet("corpus").mapInPandas(label.frames, "text string, tags array<string>")
    """
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    return Predictor(fspath(Path(run).absolute()), names, tuple(outputs), device, threads, tuple(options.items()))


@dataclass(frozen=True)
class Predictor:
    """The function that `predictor` returns."""

    run: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    device: str
    threads: int
    options: tuple[tuple[str, Any], ...]

    def __call__(self, batch: Any) -> Any:
        """Return results of a list as dicts, or the batch of columns with further columns."""
        if isinstance(batch, list | tuple):
            return [plain_result(result) for result in self._results(list(batch))]
        names = list(batch.keys())
        for name in self.inputs:
            if name not in names:
                raise ValueError(f"the batch has no column {name!r}; there are {', '.join(map(str, names))}")
        columns = [_values(batch[name]) for name in self.inputs]
        results = self._results(columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)])
        found = self._columns(results, names)
        return {**batch, **found} if isinstance(batch, Mapping) else batch.assign(**found)

    def frames(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Yield each frame with further columns."""
        return map(self, frames)

    def _results(self, inputs: list[Any]) -> list[Any]:
        with _LOADING:
            trained = _loaded(self)
        with use_threads(self.threads):
            return trained.results(inputs)

    def _columns(self, results: list[Any], names: list[str]) -> dict[str, list[Any]]:
        """The columns of results for a batch that has columns of these names."""
        chosen = self.outputs
        if not chosen and results:
            known = fields(results[0])
            kept = (f.name for f in known if not isinstance(getattr(results[0], f.name), Tensor))
            chosen = tuple(name for name in kept if name not in names)
        taken = [name for name in chosen if name in names]
        if taken:
            raise ValueError(f"outputs must not be columns that the batch has; got {', '.join(taken)}")
        plain = [plain_result(result) for result in results]
        for name in chosen:
            if plain and name not in plain[0]:
                raise ValueError(f"outputs must be among {', '.join(plain[0])}; got {name!r}")
        return {name: [one[name] for one in plain] for name in chosen}


@cache
def _loaded(chosen: Predictor) -> Trained:
    """The model of a run, which stays in this process."""
    return load(chosen.run, device=chosen.device, **dict(chosen.options))


def _values(column: Any) -> list[Any]:
    """The values of a column; arrays, as Arrow has them in lists, become lists."""
    return [value.tolist() if hasattr(value, "tolist") else value for value in column]
