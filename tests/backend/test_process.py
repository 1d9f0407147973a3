"""Importing polymax, and the first calls of its operators, change nothing of the process and of other libraries."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import polymax as pm

HOME = Path(pm.__file__).parent

SCRIPT = '''
import gc
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import types

import numba
import torch

WATCHED = ["torch", "torch.nn.functional", "torch.autograd.function", "torch._C", "numba", "numba.core.compiler"]
WATCHED += ["numba.core.dispatcher", "numba.core.caching", "numba.core.registry", "gc", "threading", "os", "importlib"]
if os.environ.get("TRITON_INTERPRET") == "1":
    # the interpreter replaces functions of triton.language by itself while a kernel runs
    WATCHED += ["triton", "triton.compiler.compiler", "triton.compiler.code_generator", "triton.runtime.jit"]
MODULES = [importlib.import_module(name) for name in WATCHED]


def held(thing):
    """What a module or a class holds, by name: functions and classes, and members of the latter."""
    for name, value in list(vars(thing).items()):
        if isinstance(value, type) and isinstance(thing, types.ModuleType) and value.__module__ == thing.__name__:
            yield from ((f"{name}.{member}", found) for member, found in held(value))
        if callable(value) or isinstance(value, type):
            yield name, value


def functions():
    return {f"{module.__name__}.{name}": value for module in MODULES for name, value in held(module)}


def settings():
    return {
        "switch interval": sys.getswitchinterval(),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "signals": [str(signal.getsignal(s)) for s in sorted(signal.valid_signals()) if s not in (9, 19)],
        "recursion": sys.getrecursionlimit(),
        "hooks": [str(h) for h in (sys.excepthook, sys.displayhook, threading.excepthook, sys.gettrace())],
        "environment": dict(os.environ),
        "threads of torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
    }


def changed(before, now):
    found = [f"{name}: {before[0][name]} -> {now[0][name]}" for name in before[0] if before[0][name] != now[0][name]]
    # objects, not addresses: what was replaced is still alive
    return found + [name for name, value in before[1].items() if now[1].get(name) is not value]


before = settings(), functions()
there = set(sys.modules)
import polymax as pm

report = {"import": changed(before, (settings(), functions())), "watched": len(before[1])}
# what takes long to import
slow = {name.split(".")[0] for name in set(sys.modules) - there} & {"triton", "numba", "sympy"}
report["slow imports"] = sorted(slow) if os.environ.get("TRITON_INTERPRET") != "1" else []

x = torch.randn(2, 5, requires_grad=True)
for mapping in (pm.sparsemax, pm.entmax, pm.fusedmax):
    mapping(x)[0, 0].backward()
unary, transition = torch.randn(2, 3, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True)
pm.Marginals(pm.Chain()).max(unary, transition).sum().backward()
pm.SparseMap(pm.Chain())(unary, transition).unary[0, 0, 0].backward()
if os.environ.get("TRITON_INTERPRET") == "1":
    from polymax.kernels.threshold.cuda import threshold
    from polymax.solvers.loops import cuda

    # a launch for a GPU, in the interpreter
    torch.testing.assert_close(threshold(x.detach(), 2.0, 0), pm.sparsemax(x.detach()))
report["first calls"] = changed(before, (settings(), functions()))
print(json.dumps(report))
'''


@pytest.mark.parametrize("interpreted", [False, True], ids=["", "with kernels for a GPU"])
def test_the_process_is_what_it_was(tmp_path, interpreted):
    if interpreted:
        pytest.importorskip("triton")
    given = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    given["PYTHONPATH"] = os.pathsep.join((str(HOME.parent), given.get("PYTHONPATH", "")))
    if interpreted:
        given["TRITON_INTERPRET"] = "1"
    script = tmp_path / "process.py"
    script.write_text(SCRIPT)
    found = subprocess.run([sys.executable, script], env=given, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout.splitlines()[-1])
    assert report["watched"] > 500
    assert report["import"] == []
    assert report["slow imports"] == []
    assert report["first calls"] == []


def test_insides_of_triton_and_of_cuda_are_named_in_the_backend_alone():
    inside = re.compile(
        r"triton\.(compiler|runtime|backends|knobs)|from triton import (compiler|runtime|knobs)|torch\._C\._cuda"
    )
    files = [path for path in HOME.rglob("*.py") if path.parent.name != "backend"]
    assert len(files) > 300
    assert not [
        f"{path.relative_to(HOME)}: {found[0]}" for path in files for found in inside.finditer(path.read_text())
    ]


def test_a_version_of_triton_that_was_not_tried_is_told(caplog):
    pytest.importorskip("triton")
    from polymax.backend.triton_launch import TRIED, say_slower

    say_slower(f"{TRIED[0]}1")
    assert not caplog.records
    say_slower("3.2.0")
    (record,) = caplog.records
    assert "Triton 3.2.0 launches" in record.getMessage()
    assert "Triton 3.6.x or 3.7.x" in record.getMessage()
