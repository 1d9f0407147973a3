"""The processes of the tests: an error says which process failed and how, and the next call has new processes."""

import os
import signal
import sys

import pytest
import torch
import torch.distributed as dist

from tests.distributed.processes import Processes


def total():
    t = torch.ones(())
    dist.all_reduce(t)
    return int(t)


def killed():
    if dist.get_rank() == 1:
        print("a last word", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return total()


def raised():
    if dist.get_rank() == 1:
        raise ValueError("process 1 alone")


def test_a_process_that_fails_is_named_and_replaced():
    processes = Processes(2)
    try:
        with pytest.raises(AssertionError, match="process 1: ended without an answer, by signal SIGSEGV; it wrote:"):
            processes.run(killed)
        assert processes.run(total) == [2, 2]
        with pytest.raises(AssertionError, match=r"^process 1: [\s\S]*ValueError: process 1 alone"):
            processes.run(raised)
    finally:
        processes.close()
    assert not os.path.exists(processes.folder.name)
