"""Evaluation of a trained model: batches on its device, and means of its loss and measures."""

from itertools import chain
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from polymax_recipes.metrics.counts import share
from polymax_recipes.training.batches import Encoded, sorted_batches
from polymax_recipes.training.task import Model, Report


@torch.no_grad()
def means(model: Model, data: Encoded, batch_size: int) -> Report:
    """Means of the model's loss and measures over all data."""
    totals: dict[str, Tensor] = {}
    zero = torch.zeros(2, dtype=torch.float64)
    for rows in sorted_batches(data.sizes, batch_size):
        for name, pair in model.loss(to_device(data[rows], model)).items():
            totals[name] = totals.get(name, zero) + torch.stack([number.double() for number in pair]).cpu()
    return {name: mean(name, *pair.tolist()) for name, pair in totals.items()}


def mean(name: str, total: float, count: float) -> float:
    """Return total / count; where nothing was counted, NaN for the loss and 0 for other measures.

    F1 has no spans to count if neither the data nor the model's tags have any.
    """
    return nan if name == "loss" and not count else share(total, count)


def to_device(batch: Any, model: nn.Module) -> Any:
    """A batch, a NamedTuple of tensors, on the device of a model."""
    return batch._make(part.to(device_of(model)) for part in batch)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model: that of its parameters or, without any, of its buffers."""
    return next(chain(model.parameters(), model.buffers())).device
