"""Checkpoints: written in the run's directory, moved to their place when complete, and read without executing code.

Lightning's own are written in TMPDIR and, if that is another file system, copied from there: a process that is killed
meanwhile leaves half a file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from polymax_recipes.training.digests import atomic_write_with_digest
from polymax_recipes.training.fully_sharded import metadata
from polymax_recipes.training.run import fitting, refused, tensors


class Checkpoints(TorchCheckpointIO):
    """Lightning's plugin that writes and reads the checkpoint of a run."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_tensors(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        return tensors(Path(path))


def write_tensors(stored: dict[str, Any], file: Path) -> None:
    """Write a dict of tensors and plain values, by torch.save."""
    with atomic_write_with_digest(file) as temporary, temporary.open("wb") as opened:
        save_into(opened, stored)


def save_into(opened: IO[bytes], stored: dict[str, Any]) -> None:
    """Call torch.save, and raise an OSError for errors of the file system."""
    try:
        torch.save(stored, opened)
    except RuntimeError as error:
        # torch raises a RuntimeError if it cannot close an archive after a failed write
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def check_checkpoint(model: torch.nn.Module, file: Path) -> None:
    """Raise a ValueError that names the file if it is not a checkpoint of this model's training."""
    sharded = file.is_dir()
    stored = {} if sharded else tensors(file)
    with refused(file, "a checkpoint of this run"):
        if sharded:
            stored = metadata(file)
        rows = stored["callbacks"]["Record"]["rows"]
        if not rows or not all(isinstance(value, int | float) for row in rows for value in row.values()):
            raise TypeError("rows of numbers expected")
        if not all({"epoch", "step", "dev_loss", "best"} <= row.keys() == rows[0].keys() for row in rows):
            raise ValueError("all rows must have the same columns")
        if stored["epoch"] != len(rows) - 1:
            raise ValueError(f"epoch must be {len(rows) - 1}, that of the last row; got {stored['epoch']}")
        if not all(isinstance(count, int) and count >= 0 for count in _leaves(stored["loops"])):
            raise ValueError("counts of epochs and steps expected in loops")
    if not sharded:
        with refused(file, "a checkpoint of this run"):
            weights = stored["state_dict"]
        fitting(model, weights, file)


def _leaves(stored: dict[str, Any]) -> Iterator[Any]:
    for value in stored.values():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield value
