"""A few processes that stay up for all tests of a module and run functions of it together, with gloo.

Tensors are on the CPU, or, with POLYMAX_DISTRIBUTED_DEVICE=cuda, on one GPU that all processes share.
"""

import os
import pickle
import socket
import time
import traceback
from datetime import timedelta
from importlib import import_module
from multiprocessing import connection

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# seconds in which all processes answer, and in which the others do if one has raised
PATIENCE, AFTER_ERROR = 300, 60
DEVICE = os.environ.get("POLYMAX_DISTRIBUTED_DEVICE", "cpu")


class Processes:
    """`size` processes in one group: `run` calls a function on all of them, and returns what each returned."""

    def __init__(self, size, device="cpu"):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        context = mp.get_context("spawn")
        self.size = size
        self.pipes, self.workers = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(rank, size, port, theirs, device), daemon=True)
            worker.start()
            self.pipes.append(ours)
            self.workers.append(worker)

    def run(self, function, *args):
        for pipe in self.pipes:
            pipe.send((function.__module__, function.__name__, pickle.dumps(args)))
        found = [None] * self.size
        left, until = set(range(self.size)), time.monotonic() + PATIENCE
        while left:
            ready = connection.wait([self.pipes[rank] for rank in left], max(until - time.monotonic(), 0))
            if not ready:
                self.close()
                said = [result for _, result in filter(None, found)]
                raise TimeoutError(f"processes {sorted(left)} do not answer: {function.__name__}; others said {said}")
            for rank in sorted(rank for rank in left if self.pipes[rank] in ready):
                found[rank] = self.pipes[rank].recv()
                left.discard(rank)
                if not found[rank][0]:
                    # the others may wait for this one
                    until = min(until, time.monotonic() + AFTER_ERROR)
        errors = [f"process {rank}: {result}" for rank, (good, result) in enumerate(found) if not good]
        if errors:
            # the others may only have waited for the first that failed
            raise AssertionError("\n".join(sorted(errors, key=lambda e: "Timed out" in e or "closed by peer" in e)))
        return [pickle.loads(result) for _, result in found]

    def close(self):
        for worker in self.workers:
            worker.terminate()


def _serve(rank, size, port, pipe, device):
    os.environ["OMP_NUM_THREADS"] = "1"
    # Accelerate, Lightning and Transformers read these, and take the group that is there
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    torch.set_default_device(device)
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0, timeout=timedelta(seconds=900))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=900))
    while True:
        module, name, args = pipe.recv()
        try:
            torch.manual_seed(0)
            result = getattr(import_module(module), name)(*pickle.loads(args))
            pipe.send((True, pickle.dumps(result)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
