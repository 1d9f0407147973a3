"""Trainings of recipes on several processes, from files that the first process has written."""

from pathlib import Path

import torch.distributed as dist

from polymax_recipes.training import fit


def train(name, files, out, options, resume=False):
    """Train a task on all processes of the group; return the sentence of an error, or None."""
    files = {part: [Path(file) for file in found] for part, found in files.items()}
    devices = {"devices": dist.get_world_size(), "accelerator": "cpu", "threads": 1}
    said = None
    try:
        fit.train(name, files, Path(out), {**options, **devices}, resume)
    except ValueError as error:
        said = str(error)
    # an error that is none of an option may be that of one process: it does not wait for the others
    dist.barrier()
    return said
