"""Training with parameters, gradients and optimizer states sharded over all devices: `--strategy fsdp`.

The checkpoint of a run is then a directory that torch.distributed.checkpoint writes: each process writes its shards,
and any number of processes reads them.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.utils.parametrize import register_parametrization

from polymax_recipes.outputs import part_of

# the file of a checkpoint that has all but tensors of the model and of the optimizer
METADATA = "meta.pt"


class FullySharded(ModelParallelStrategy):
    """Lightning's strategy for fully_shard over all processes, whose checkpoints take their places as a whole."""

    def __init__(self, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        path = Path(self.broadcast(filepath))
        part, before = part_of(path), earlier(path)
        if self.global_rank == 0:
            remove(part)
        self.barrier()
        super().save_checkpoint(checkpoint, part, storage_options)
        self.barrier()
        if self.global_rank == 0:
            remove(before)
            if path.exists():
                path.rename(before)
            part.rename(path)
            remove(before)
        self.barrier()


class Scalar(nn.Module):
    """A number that is stored as a tensor of one entry."""

    def forward(self, stored: Tensor) -> Tensor:
        return stored.reshape(())

    def right_inverse(self, number: Tensor) -> Tensor:
        """Return the tensor that is stored for a number."""
        return number.reshape(1)


def shard(model: nn.Module, mesh: Any) -> None:
    """Shard the parameters of a recipe's model, whose `loss` gathers them."""
    if not isinstance(model, FSDPModule):
        for module in list(model.modules()):
            for name, p in list(module.named_parameters(recurse=False)):
                if p.dim() == 0:
                    # fully_shard takes no parameter without a dim
                    register_parametrization(module, name, Scalar())
        fully_shard(model, mesh=mesh)
        register_fsdp_forward_method(model, "loss")


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Have all parameters on every process inside the block, for methods other than `loss`."""
    if not isinstance(model, FSDPModule):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


def weights_of(model: nn.Module) -> dict[str, Any]:
    """Return the whole tensors of a model, in the first process; every process calls it."""
    if not isinstance(model, FSDPModule):
        return model.state_dict()
    found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return dict(_plain(name, t) for name, t in found.items())


def _plain(name: str, t: Any) -> tuple[str, Any]:
    """The name and the tensor of a parameter as they are without sharding."""
    if not name.endswith(".original"):
        return name, t
    return name.removesuffix(".original").replace("parametrizations.", ""), t.reshape(())


def metadata(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint has besides tensors of the model and of the optimizer."""
    return torch.load(checkpoint / METADATA, map_location="cpu", weights_only=True)


def recover(checkpoint: Path) -> None:
    """Put the checkpoint before the last one back, if a process was killed while the last one took its place.

    All processes of a run call this before they look for the checkpoint: one of them moves it.
    """
    before = earlier(checkpoint)
    if before.exists() and not checkpoint.exists():
        with suppress(FileNotFoundError):
            before.rename(checkpoint)


def earlier(checkpoint: Path) -> Path:
    """The place of a checkpoint while the next one takes its own.

    Example:
        >>> earlier(Path("run/last.ckpt")).name
        'last.ckpt.before'
    """
    return checkpoint.with_name(f"{checkpoint.name}.before")


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
