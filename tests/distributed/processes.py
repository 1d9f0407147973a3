"""A few processes that stay up for all tests of a module and run functions of it together, with gloo.

Tensors are on the CPU, or, with POLYMAX_DISTRIBUTED_DEVICE=cuda, on one GPU that all processes share. After a failure
the next call starts new processes, so that no test depends on what another one has broken.
"""

import faulthandler
import os
import pickle
import signal
import socket
import tempfile
import time
import traceback
from datetime import timedelta
from importlib import import_module
from multiprocessing import connection
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from forked import FORKED, write_to

# seconds in which all processes answer, most of which a first run compiles, and in which the others do after an error
PATIENCE, AFTER_ERROR = 540, 60
# characters of a process's output that an error quotes
QUOTED = 2000
DEVICE = os.environ.get("POLYMAX_DISTRIBUTED_DEVICE", "cpu")


class Processes:
    """`size` processes in one group: `run` calls a function on all of them, and returns what each returned."""

    def __init__(self, size, device="cpu"):
        self.size, self.device = size, device
        self.pipes, self.workers = [], []
        self.folder = tempfile.TemporaryDirectory(prefix="polymax-processes-")

    def _start(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # a forked process cannot use a GPU that the server has looked for
        context = FORKED if self.device == "cpu" else mp.get_context("spawn")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            given = rank, self.size, port, theirs, self.device, str(self._output(rank))
            worker = context.Process(target=_serve, args=given, daemon=True)
            worker.start()
            # the pipe of a process that ends is closed, and read to its end
            theirs.close()
            self.pipes.append(ours)
            self.workers.append(worker)

    def _output(self, rank):
        """The file of a process's standard output and errors."""
        return Path(self.folder.name) / f"{rank}.txt"

    def run(self, function, *args):
        if not self.workers:
            self._start()
        try:
            return self._run(function, args)
        except Exception:
            self._stop()
            raise

    def _run(self, function, args):
        call = function.__module__, function.__name__, pickle.dumps(args)
        found = [None if self._sent(rank, call) else (False, self._end(rank)) for rank in range(self.size)]
        left = {rank for rank, result in enumerate(found) if result is None}
        until = time.monotonic() + (PATIENCE if len(left) == self.size else AFTER_ERROR)
        while left:
            ready = connection.wait([self.pipes[rank] for rank in left], max(until - time.monotonic(), 0))
            if not ready:
                said = [result for good, result in filter(None, found) if not good]
                raise TimeoutError(
                    f"processes {sorted(left)} do not answer: {function.__name__}; others said {' '.join(said)}"
                )
            for rank in sorted(rank for rank in left if self.pipes[rank] in ready):
                try:
                    found[rank] = self.pipes[rank].recv()
                except EOFError:
                    found[rank] = False, self._end(rank)
                left.discard(rank)
                if not found[rank][0]:
                    # the others may wait for this one
                    until = min(until, time.monotonic() + AFTER_ERROR)
        errors = [f"process {rank}: {result}" for rank, (good, result) in enumerate(found) if not good]
        if errors:
            # the others may only have waited for the first that failed
            raise AssertionError("\n".join(sorted(errors, key=lambda e: "Timed out" in e or "closed by peer" in e)))
        return [pickle.loads(result) for _, result in found]

    def _sent(self, rank, call):
        try:
            self.pipes[rank].send(call)
        except OSError:
            return False
        return True

    def _end(self, rank):
        """A sentence on the end of a process: its exit code or signal, and the last lines that it has written."""
        self.workers[rank].join(10)
        code = self.workers[rank].exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        written = self._output(rank).read_text(encoding="utf-8", errors="replace")[-QUOTED:].strip()
        return f"ended without an answer, by {how}; it wrote: {written or 'nothing'}"

    def _stop(self):
        for worker in self.workers:
            # a process in a collective may not heed a request to end
            worker.kill()
        for worker in self.workers:
            worker.join()
        for pipe in self.pipes:
            pipe.close()
        self.pipes, self.workers = [], []

    def close(self):
        self._stop()
        self.folder.cleanup()


def _serve(rank, size, port, pipe, device, output):
    write_to(output)
    # the stacks of all threads, if a signal ends the process
    faulthandler.enable()
    os.environ["OMP_NUM_THREADS"] = "1"
    # Accelerate, Lightning and Transformers read these, and take the group that is there
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    torch.set_default_device(device)
    if device != "cpu":
        _gather_on_the_host()
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0, timeout=timedelta(seconds=900))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=900))
    while True:
        try:
            module, name, args = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            result = getattr(import_module(module), name)(*pickle.loads(args))
            pipe.send((True, pickle.dumps(result)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def _gather_on_the_host():
    """Let the functional all-gather of tensors on a GPU, by which DTensors become whole, run in the host's memory.

    Gloo takes the addresses of a GPU for the host's in this collective, and in no other: SIGSEGV ends the process.
    """
    op = torch.ops._c10d_functional.all_gather_into_tensor.default

    def gather(t, *args):
        return torch.ops._c10d_functional.wait_tensor(op(t.cpu(), *args)).to(t.device)

    _LIBRARY.impl("all_gather_into_tensor", gather, "CUDA")


# a registration ends with its library
_LIBRARY = torch.library.Library("_c10d_functional", "IMPL")
