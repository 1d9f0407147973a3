"""Every access of a kernel in Triton's interpreter is inside the tensors that the launch was given.

On a GPU an access elsewhere is an illegal one, or reads what belongs to others; in the interpreter it may go unseen, or
end the process. Here it is an error that names the line of the kernel.
"""

import sys
import traceback
from types import SimpleNamespace

import numpy as np
import torch
from quick_interpreter import quicken

# bytes from and up to which launches may read and write, of the launch that runs
_allowed = [np.zeros(0, np.uint64), np.zeros(0, np.uint64)]


def check_accesses():
    """Look at all accesses from now on, if Triton's interpreter has been imported."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or isinstance(interpreter._interpreter, SimpleNamespace):
        return
    own, run = interpreter._interpreter, interpreter.GridExecutor.__call__
    names = [name for name in dir(own) if not name.startswith("_")]
    checked = SimpleNamespace(**{name: getattr(own, name) for name in names})

    def load(at, mask, other, dtype):
        _check("reads", at, mask, np.dtype(dtype).itemsize)
        return own.load(at, mask, other, dtype)

    def store(at, values, mask):
        _check("writes", at, mask, values.dtype.itemsize)
        return own.store(at, values, mask)

    def call(self, *args, **kwargs):
        before = list(_allowed)
        _allowed[:] = _merged(_ranges([*args, *kwargs.values()]))
        try:
            return run(self, *args, **kwargs)
        finally:
            _allowed[:] = before

    checked.load, checked.store = load, store
    interpreter._interpreter = checked
    interpreter.GridExecutor.__call__ = call
    quicken(interpreter)


def _ranges(args):
    for a in args:
        if isinstance(a, tuple):
            yield from _ranges(a)
        elif isinstance(a, torch.Tensor) and a.numel():
            last = sum((size - 1) * stride for size, stride in zip(a.shape, a.stride(), strict=True))
            yield a.data_ptr(), a.data_ptr() + (last + 1) * a.element_size()


def _merged(ranges):
    """Where ranges begin and end, in order, those that touch as one."""
    found = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    starts, ends = zip(*found, strict=True) if found else ((), ())
    return np.array(starts, np.uint64), np.array(ends, np.uint64)


def _check(does, at, mask, size):
    starts, ends = _allowed
    places = np.asarray(at, np.uint64)[np.asarray(mask, bool)]
    if not places.size:
        return
    k = np.searchsorted(starts, places, "right").astype(np.int64) - 1
    inside = k >= 0
    if starts.size:
        inside &= places + np.uint64(size) <= ends[np.maximum(k, 0)]
    if not inside.all():
        lines = [f for f in traceback.extract_stack() if "polymax" in f.filename and "tests" not in f.filename]
        line = f"{lines[-1].filename}:{lines[-1].lineno} {lines[-1].name}" if lines else "a kernel"
        count = int((~inside).sum())
        raise IndexError(f"{line} {does} {count} of {places.size} numbers outside of the tensors of its launch")
