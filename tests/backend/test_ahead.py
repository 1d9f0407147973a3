"""Kernels that threads compile ahead: nothing is launched, nothing is compiled twice, and errors come from launches."""

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import polymax as pm
from polymax import kernels
from polymax.backend import dispatch

HOME = Path(pm.__file__).parents[1]

COMPILED = '''
import threading
import time

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

launched, built = [], []

class Device:
    """A Hopper GPU for which kernels are compiled, and which notes what it is to run."""

    class utils:
        load_binary = staticmethod(lambda *_: (1, 2, 0, 0, 1024))
        get_device_properties = staticmethod(lambda _: {"max_shared_mem": 232448})

    @staticmethod
    def launcher_cls(src, metadata):
        built.append((threading.current_thread(), dict(src.signature)))
        return lambda *args: launched.append(args)

    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda _: 7)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

driver.set_active(Device())
torch._C._cuda_getDevice = torch.cuda.current_device = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda _: 7

from contextlib import nullcontext

torch.cuda.device = lambda _: nullcontext()

import triton
import triton.knobs
import triton.language as tl

from polymax.backend import triton_ahead, triton_launch
from polymax.kernels.threshold.cuda import threshold, threshold_backward

# as a launcher of Triton 3.6 has it
make_launcher = None

compiled = []
def note(*, src, cache_hit, **_):
    compiled.append((src.name, threading.current_thread()))
triton.knobs.compilation.listener = note

def finish():
    # threads start others
    while threading.active_count() > 1:
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()

x = torch.randn(3, 5)
y = threshold(x, 2.0, 0)
assert len(launched) == 1

# a rehearsal compiles and launches nothing; the launch finds it
triton_ahead.rehearse(threshold_backward, y, y, 2.0, 0)
finish()
assert len(launched) == 1
assert [name for name, _ in compiled] == ["_short", "_short_backward"], compiled
assert compiled[1][1] is not threading.main_thread()
threshold_backward(y, x, 2.0, 0)
assert len(launched) == 2
assert len(compiled) == 2, compiled
# once it is ready to be launched, too
triton_ahead.rehearse(threshold_backward, y, y, 2.0, 0)
finish()
assert len(launched) == 2

# launchers are built for the same types while kernels are compiled
by_us = [signature for thread, signature in built if thread is not threading.main_thread()]
by_triton = [signature for thread, signature in built if thread is threading.main_thread()]
assert len(by_triton) == 2
assert all(signature in by_us for signature in by_triton), built

# a launch waits for the thread that compiles its kernel
triton_ahead.rehearse(threshold, x, 1.5, 0)
threshold(x, 1.5, 0)
finish()
assert len(launched) == 3
assert len(compiled) == 3, compiled

@triton_launch.Entry
@triton.jit
def wrong(p_x, SIZE: tl.constexpr):
    tl.store(p_x, tl.arange(0, SIZE))

def launch_wrong(x):
    wrong[(1,)](x, SIZE=3)

# an error is forgotten by the thread, and raised by the launch
triton_ahead.rehearse(launch_wrong, x)
finish()
try:
    launch_wrong(x)
except Exception as error:
    assert "power of 2" in str(error), error
else:
    raise AssertionError("a launch of what cannot be compiled")

# rehearsals wait until others have had their turn
turns, order = triton_ahead._Turns(), []
turns.ask()
def rehearse():
    triton_ahead.here.rehearses = True
    turns.taking(order.append)("rehearsal")
thread = threading.Thread(target=rehearse)
thread.start()
time.sleep(0.05)
turns.taking(order.append)("launch")
thread.join()
assert order == ["launch", "rehearsal"], order
assert threading.active_count() == 1

# rehearsals of all operators get to their launches, and import nothing large on their way
import importlib
import sys

from polymax.kernels import (
    alignment, capped, chain, fusedmax, oscarmax, projective_tree, span_tree, spanning_tree
)
from polymax.kernels import threshold as thresholds

rehearsed = []
triton_launch.apart = lambda function, *args: rehearsed.append(function)

def n(*sizes):
    return torch.randn(sizes, requires_grad=True)

one, square, fours = torch.ones(1, 1), n(2, 5, 5), torch.tensor([4, 4])
for op, *args in (
    (thresholds.threshold, n(3, 5), 1.5, 0, None),
    (fusedmax.fusedmax, n(3, 5), one),
    (oscarmax.oscarmax, n(3, 5), one),
    (capped.capped, n(3, 5), one * 0, one, one[0], False),
    (chain.chain_inside, n(2, 4, 3), n(1, 1, 3, 3), fours, 1.0),
    (alignment.alignment_inside, n(2, 4, 4), fours, fours, 1.0),
    (span_tree.span_tree_inside, n(2, 4, 4, 1), fours, 1.0),
    (projective_tree.projective_tree_inside, square, fours, True, 1.0),
    (spanning_tree.spanning_tree_inside, square, fours, True),
):
    following = op.next(True, *triton_ahead.shape_of(tuple(args)))
    assert len(following) >= 1
    assert len(op.next(False, *triton_ahead.shape_of(tuple(args)))) < len(following), op._name
    for after, given in following:
        triton_ahead.here.rehearses = True
        before = len(rehearsed)
        with torch.no_grad(), triton_ahead._Shapes():
            getattr(importlib.import_module(after._package + ".cuda"), after._name)(*given)
        assert len(rehearsed) > before, after._name
assert "sympy" not in sys.modules
'''


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_what_threads_compile_is_what_is_launched(tmp_path):
    from polymax.backend.triton_launch import TRIED

    if not importlib.metadata.version("triton").startswith(TRIED):
        pytest.skip("Triton launches its kernels itself")
    given = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # Triton reads the source of a kernel
    (tmp_path / "compiled.py").write_text(COMPILED)
    given["PYTHONPATH"] = os.pathsep.join((str(HOME), given.get("PYTHONPATH", "")))
    given["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    found = subprocess.run([sys.executable, tmp_path / "compiled.py"], env=given, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def operators():
    """Operators after whose first call others are rehearsed."""
    names = [m.name for m in pkgutil.iter_modules(kernels.__path__) if m.ispkg]
    packages = [importlib.import_module(f"polymax.kernels.{name}") for name in names]
    found = {op._name: op for p in packages for op in vars(p).values() if isinstance(op, dispatch.Operator) and op.next}
    assert len(found) > 8
    return list(found.values())


@pytest.mark.parametrize("op", operators(), ids=lambda op: op._name)
def test_rehearsed_operators_launch_entries_alone(op):
    """A launch of Triton's own would run, on tensors without memory."""
    folder = HOME.joinpath(*op._package.split("."))
    trees = {file: ast.parse(file.read_text()) for file in folder.glob("cuda*.py")}

    def jitted(f):
        return isinstance(f, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in f.decorator_list)

    functions = [f for tree in trees.values() for f in tree.body if jitted(f)]
    bare = {f.name for f in functions if "Entry" not in map(ast.unparse, f.decorator_list)}
    launched = set()
    for tree in trees.values():
        for f in tree.body:
            if isinstance(f, ast.FunctionDef) and not jitted(f):
                launched |= {n.id for n in ast.walk(f) if isinstance(n, ast.Name)} & bare
    # a name of a variable
    assert not launched - {"spans"}, launched
