"""The main function of a computing process: it loads models, and answers batches of inputs until its pipe is closed."""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

# words in torch's out-of-memory errors
MEMORY = ("memory", "alloc")
LARGE = "this input needs more memory than the server gives it; send a shorter one"


class Work(Protocol):
    """A function that computes results of a list of inputs, of the kind `kind`; `about` describes its model."""

    about: Any

    def __call__(self, kind: str, given: list[Any]) -> Sequence[bytes]: ...


@dataclass(frozen=True)
class Failure:
    """The error of an input: a status of HTTP, and a message."""

    status: int
    message: str


def work(pipe: Any, load: Callable[[], Work], memory: int, threads: int) -> None:
    """Load the models, then answer (kind, inputs) by a list of results and failures."""
    # Ctrl-C reaches all processes of a terminal; this one ends with the one that started it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    try:
        compute = load()
    except Exception as error:
        pipe.send(error if isinstance(error, OSError | ValueError) else ValueError(f"{type(error).__name__}: {error}"))
        return
    if memory:
        bound_memory(memory)
    pipe.send(compute.about)
    while True:
        try:
            kind, given = pipe.recv()
            found = outcomes(compute, kind, given)
            pipe.send(found)
        except (EOFError, BrokenPipeError):
            return


def outcomes(compute: Work, kind: str, given: list[Any]) -> list[bytes | Failure]:
    """The results of inputs; if that fails for all together, each is computed alone."""
    try:
        return list(compute(kind, given))
    except Exception as error:
        if len(given) == 1:
            return [failure(error)]
        # free its tensors before the next input
        del error
    return [outcome for one in given for outcome in outcomes(compute, kind, [one])]


def failure(error: Exception) -> Failure:
    """The status and the sentence of an error."""
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in MEMORY)
    ):
        return Failure(413, LARGE)
    if isinstance(error, ValueError | TypeError | IndexError | OverflowError):
        return Failure(400, str(error))
    traceback.print_exception(error, file=sys.stderr)
    return Failure(500, "the server failed; its log says why")


def bound_memory(size: int) -> None:
    """Limit the memory of this process to so many bytes more than it uses, if the system can limit it."""
    status = Path("/proc/self/status")
    if not status.exists() or torch.cuda.is_initialized():
        # the driver of a GPU reserves more addresses than any limit
        return
    import resource

    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    has = int(lines["VmData"].split()[0]) << 10
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = has + size
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
