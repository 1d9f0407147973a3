"""Trainings of recipes on several processes, from files that the first process has written."""

from pathlib import Path

import torch.distributed as dist

from polymax_recipes.training import fit


def train(name, files, out, options, resume=False):
    """The reports of a training on all processes of the group, in the first process."""
    files = {part: [Path(file) for file in found] for part, found in files.items()}
    devices = {"devices": dist.get_world_size(), "accelerator": "cpu", "threads": 1}
    found = fit.train(name, files, Path(out), {**options, **devices}, resume)
    dist.barrier()
    return found


def train_all(tasks, folder, strategy):
    """What goes wrong in a training of each task: files, options and the losses of one process by task."""
    said = []
    for name, (files, options, expected) in tasks.items():
        try:
            train(name, files, f"{folder}/{strategy}-{name}", {**options, "strategy": strategy})
        except Exception as error:
            said.append(f"{name} {strategy}: {type(error).__name__}: {str(error)[:300]}")
        if expected is None:
            continue
    return said
