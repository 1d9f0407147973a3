"""The choice of the best epoch of a training: by the highest or the lowest value of a measure on dev."""

from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import NamedTuple

import torch

from polymax_recipes.training.batches import Encoded
from polymax_recipes.training.measured import to_device
from polymax_recipes.training.task import Model, Task


class Monitor(NamedTuple):
    """Names of measures: the first one in the log chooses the epoch; measures in `falling` are best at their lowest.

    Example:
        >>> rows = [{"dev_loss": 2.0, "dev_accuracy": 0.5}, {"dev_loss": 3.0, "dev_accuracy": 0.6}]
        >>> Monitor(("f1", "accuracy")).best(rows), Monitor(("loss",)).best(rows)
        (1, 0)
    """

    names: tuple[str, ...]
    falling: tuple[str, ...] = ("loss",)

    def decides(self, row: Mapping[str, float]) -> str:
        """Return the measure that chooses the epoch: the first name that these rows have."""
        return next(name for name in (*self.names, "loss") if f"dev_{name}" in row)

    def told(self, row: Mapping[str, float]) -> str:
        """Return a sentence that says which epoch is kept.

        Example:
            >>> Monitor(("accuracy",)).told({"dev_loss": 2.0, "dev_accuracy": 0.5})
            'the epoch with the highest dev_accuracy is kept'
        """
        name = self.decides(row)
        return f"the epoch with the {'lowest' if name in self.falling else 'highest'} dev_{name} is kept"

    def best(self, rows: Sequence[dict[str, float]]) -> int:
        """The place of the best row of a log; among equal rows, of the row with the least loss; NaN is the worst."""
        name = self.decides(rows[0])
        sign = 1.0 if name in self.falling else -1.0
        values = [(sign * row[f"dev_{name}"], row["dev_loss"]) for row in rows]
        return min(range(len(values)), key=lambda k: tuple(inf if isnan(value) else value for value in values[k]))


def monitor_of(task: Task, asked: str) -> Monitor:
    """Return the monitor of the measure in --monitor, by default of the task's measures."""
    return Monitor((asked,) if asked else task.monitor, task.falling)


@torch.no_grad()
def check_asked(asked: str, model: Model, dev: Encoded, logged: Sequence[str] = ()) -> None:
    """Raise a ValueError if a model has no such measure: it is tested on one example, before the first epoch."""
    training = model.training
    shortest = dev.sizes.argsort(stable=True)[:1]
    names = [*model.eval().loss(to_device(dev[shortest], model)), *logged]
    model.train(training)
    if asked not in names:
        raise ValueError(f"--monitor must be one of {', '.join(names)}; got {asked}")
