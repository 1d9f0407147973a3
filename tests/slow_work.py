"""Work of a process whose inputs say what becomes of them: how long they take, and how they fail."""

import os
import time
from dataclasses import dataclass

import torch


class SlowWork:
    """Sleep so many seconds for each number; texts are faults by their names, or nothing at all."""

    about = "slow"

    def __call__(self, kind, given):
        if "odd" in given:
            raise ValueError("odd")
        if "memory" in given:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        if "broken" in given:
            raise RuntimeError("the size of tensor a must match the size of tensor b")
        if "bug" in given:
            raise KeyError("bug")
        if "large" in given:
            # 4 GiB
            torch.ones(1 << 30).sum()
        if "end" in given:
            os._exit(3)
        seconds = [one if isinstance(one, float) else 0.0 for one in given]
        time.sleep(sum(seconds))
        return [str(one).encode() for one in seconds]


@dataclass(frozen=True)
class LoadSlow:
    """What a process calls."""

    def __call__(self):
        return SlowWork()
