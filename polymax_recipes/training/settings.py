"""Options of every training, and dataclasses of options made from flags or from a file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import inf
from typing import Any, TypeVar

import torch

from polymax_recipes.training.task import option

Options = TypeVar("Options")


@dataclass(frozen=True)
class Learning:
    """Options that determine the weights, together with the data and the task's options."""

    seed: int = option(0, "Seed of all random numbers.", most=2**63 - 1)
    batch_size: int = option(64, "Examples in a step, on each device.", least=1)
    lr: float = option(0.001, "Learning rate of Adam.")
    decay: str = option(
        "none", "Decay of the learning rate: linear falls to 0 over all epochs.", choices=("none", "linear")
    )
    clip: float = option(5.0, "Largest norm of the gradient; 0 for no limit.")
    weight_decay: float = option(0.0, "Weight decay of AdamW.")
    monitor: str = option("", "Measure on dev by which the best epoch is chosen; by default the task's.")


@dataclass(frozen=True)
class Running:
    """Length and devices of a training; a resumed run may be given others."""

    epochs: int = option(10, "Passes over the training data.", least=1)
    patience: int = option(0, "Stop after this number of epochs without an improvement on dev; 0 to train all epochs.")
    precision: str = option("32-true", "Precision of the arithmetic.", choices=("32-true", "bf16-mixed", "16-mixed"))
    accelerator: str = option("auto", "Kind of device: auto, cpu, gpu.", choices=("auto", "cpu", "gpu"))
    threads: int = option(0, "Threads on the CPU; 0 for the number that torch chooses.")
    devices: int = option(1, "Devices on each node, one process each.", least=1)
    workers: int = option(0, "Processes that prepare batches for each device; 0 for none beside its own.")
    nodes: int = option(1, "Nodes; start the command on each, with MASTER_ADDR and NODE_RANK or by torchrun.", least=1)
    strategy: str = option(
        "auto",
        "Strategy of several devices: ddp copies the model, fsdp shards it; auto is ddp.",
        choices=("auto", "ddp", "ddp_spawn", "ddp_fork", "fsdp"),
    )

    @property
    def on_cuda(self) -> bool:
        """Return True if Lightning chooses a GPU of CUDA."""
        return self.accelerator != "cpu" and torch.cuda.is_available()


def made(kind: type[Options], given: dict[str, Any], base: Options | None = None) -> Options:
    """Make options of a kind from given values, others from `base` or by default; values are checked.

    Example:
        >>> made(Learning, {"lr": 0.1})
        Learning(seed=0, batch_size=64, lr=0.1, decay='none', clip=5.0, weight_decay=0.0, monitor='')
        >>> made(Running, {"precision": "8"})
        Traceback (most recent call last):
        ValueError: --precision must be one of 32-true, bf16-mixed, 16-mixed; got 8
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    values = {name: getattr(base, name) for name in known} if base is not None else {}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{flag(name)} is not an option; there are {', '.join(map(flag, known))}")
        values[name] = _valid(known[name], value)
    return kind(**values)


def check_threads(count: int) -> None:
    """Refuse far more threads than this machine has: the system would end the process."""
    most = 16 * (os.cpu_count() or 1)
    if count > most:
        raise ValueError(f"--threads must be at most {most} on this machine, 16 for each core; got {count}")


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with so many threads on the CPU inside the block; 0 leaves the number as it is."""
    before = torch.get_num_threads()
    check_threads(count)
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def flag(name: str) -> str:
    """The flag of a field on the command line.

    Example:
        >>> flag("batch_size")
        '--batch-size'
    """
    return "--" + name.replace("_", "-")


def _valid(field: Any, value: Any) -> Any:
    kind = type(field.default)
    try:
        value = CONVERSIONS[kind](value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{flag(field.name)} must be {kind.__name__}; got {value!r}") from None
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"{flag(field.name)} must be one of {', '.join(choices)}; got {value}")
    least, most = field.metadata["least"], field.metadata["most"]
    if kind in (int, float) and not (least <= value <= most and value < inf):
        bounds = f"at least {least} and finite" if most == inf else f"from {least} to {most}"
        raise ValueError(f"{flag(field.name)} must be {bounds}; got {value}")
    return value


def _truth(value: Any) -> bool:
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise ValueError


def _integer(value: Any) -> int:
    if int(value) != (value if isinstance(value, float) else int(value)):
        raise ValueError
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


CONVERSIONS: dict[type, Any] = {bool: _truth, int: _integer, float: float, str: _text}
