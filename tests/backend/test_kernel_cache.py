"""Compiled kernels are kept where that is possible, and run where it is not."""

import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config, event
from numba.core.caching import _CacheLocator
from numba.core.compiler import Compiler

import polymax
from polymax.backend import numba_cache, numba_compile
from polymax.backend.numba_compile import KNOWN, compilers

SOURCE = """
from polymax.backend.numba_math import kernel

@kernel
def twice(x):
    return 2 * x
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Load a module with one kernel afresh, as a new process would."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    path = tmp_path / "doubling.py"
    path.write_text(SOURCE)

    def load():
        spec = importlib.util.spec_from_file_location("doubling", path)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    return load


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(numba_cache, "_warned", False)


@pytest.fixture
def unwritable(monkeypatch, tmp_path):
    """No directory can be written."""

    def refuse(self):
        raise PermissionError("read-only")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(_CacheLocator, "ensure_cache_path", refuse)


def hits(function):
    return sum(function.stats.cache_hits.values())


def truncate(data):
    return data[: len(data) // 2]


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]


def empty(data):
    return b""


def noise(data):
    return bytes(range(256))


@pytest.mark.parametrize("damage", [truncate, flip, empty, noise], ids=lambda f: f.__name__)
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_damaged_files_are_compiled_again(module, tmp_path, suffix, damage):
    assert module().twice(3) == 6
    assert hits(module().twice) == 0
    kept = module().twice
    assert kept(3) == 6
    assert hits(kept) == 1, "a second process finds the kernel"
    (file,) = tmp_path.glob(f"__pycache__/*.{suffix}")
    file.write_bytes(damage(file.read_bytes()))
    assert module().twice(3) == 6, "a damaged file of the cache is as good as none"
    mended = module().twice
    assert mended(3) == 6
    assert hits(mended) == 1, "what was damaged is whole again"


def test_kernels_know_the_files_they_are_compiled_from(tmp_path, monkeypatch):
    package = Path(polymax.__file__).resolve().parent
    files = {
        file.relative_to(package).as_posix()
        for file in numba_cache.compiled_with(package / "kernels/active_set/numba_loop.py")
    }
    assert {"kernels/active_set/numba_loop.py", "kernels/active_set/numba_weights.py", "backend/numba_math.py"} <= files
    assert "backend/widen.py" not in files, "plain Python is not compiled in"
    files = {
        file.relative_to(package).as_posix() for file in numba_cache.compiled_with(package / "kernels/span_tree/cpu.py")
    }
    assert {"kernels/span_tree/cpu_linear.py", "kernels/span_tree/__init__.py"} <= files, "modules, and constants"
    kernel, shared = tmp_path / "cpu.py", tmp_path / "numba_shared.py"
    kernel.write_text("from polymax.numba_shared import half\n")
    shared.write_text("import numba\n")
    monkeypatch.setattr(numba_cache, "_PACKAGE", tmp_path)
    before = numba_cache.source_stamp(str(kernel))
    shared.write_text("import numba\nhalf = 0.5\n")
    numba_cache.source_stamp.cache_clear()
    assert numba_cache.source_stamp(str(kernel)) != before, "a change of what a kernel calls is a change of the kernel"


def test_kernels_know_their_compiler(tmp_path, monkeypatch):
    """Code that another compiler has made is stale: the file of the compiler is a part of the stamp."""
    kernel, compiler = tmp_path / "cpu.py", tmp_path / "numba_parts.py"
    kernel.write_text("import numba\n")
    monkeypatch.setattr(numba_cache, "_PACKAGE", tmp_path)
    monkeypatch.setattr(numba_cache, "__file__", str(tmp_path / "numba_cache.py"))
    stamps = set()
    for text in ("import numba\n", "import numba\nfast = True\n"):
        compiler.write_text(text)
        numba_cache.source_stamp.cache_clear()
        stamps.add(numba_cache.source_stamp(str(kernel)))
    numba_cache.source_stamp.cache_clear()
    assert len(stamps) == 2
    known = Path(numba_compile.__file__).with_name("numba_parts.py")
    assert known.exists(), "the compiler is where the stamp looks for it"
    assert inspect.getsourcefile(numba_compile.KernelCompiler) in (str(known), inspect.getsourcefile(Compiler))


def test_temporary_directory(module, tmp_path, monkeypatch, unwarned):
    wanted, original = tmp_path / "elsewhere", _CacheLocator.ensure_cache_path

    def refuse_others(self):
        if not isinstance(self, numba_cache.TemporaryLocator):
            raise PermissionError("read-only")
        original(self)

    wanted.mkdir()
    monkeypatch.setattr(_CacheLocator, "ensure_cache_path", refuse_others)
    monkeypatch.setattr(tempfile, "tempdir", str(wanted))
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        assert module().twice(3) == 6
    kept = module().twice
    assert kept(3) == 6, "one warning is enough"
    assert hits(kept) == 1
    (root,) = wanted.iterdir()
    if os.name == "posix":
        assert root.stat().st_mode & 0o77 == 0, "nobody else may write what we run"
        root.chmod(0o777)
        monkeypatch.setattr(numba_cache, "_warned", False)
        with pytest.warns(RuntimeWarning, match="compiles them anew"):
            assert module().twice(3) == 6, "a directory that others can write is not used"


def test_no_directory_at_all(module, unwritable, unwarned):
    with pytest.warns(RuntimeWarning, match="compiles them anew"):
        assert module().twice(3) == 6
    assert module().twice(3.0) == 6.0, "one warning is enough"


def test_full_disk(module, tmp_path, unwarned, monkeypatch):
    doubling = module()

    def full(self, name, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert doubling.twice(3) == 6
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module().twice(3) == 6, "an index without its data is no fault"


def test_library_without_a_writable_directory(tmp_path):
    """A whole process: nothing can be written but for the temporary directory."""
    code = """
import warnings
from numba.core import caching
mine = caching._CacheLocator.ensure_cache_path
def ensure(self):
    if type(self).__name__ != "TemporaryLocator":
        raise PermissionError("read-only")
    mine(self)
caching._CacheLocator.ensure_cache_path = ensure
import torch, polymax as pm
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    y = pm.soft_rank(torch.tensor([0.0, 9.0], dtype=torch.float64))
print(y.tolist(), [w.category.__name__ for w in caught])
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": "/nonexistent"}
    environment.pop("NUMBA_CACHE_DIR", None)
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[1.0, 2.0] ['RuntimeWarning']", run.stdout + run.stderr
    assert list(tmp_path.rglob("*.nbi")), "kernels are kept in the temporary directory"


PARTS = """
import numpy as np
from polymax.backend.numba_math import inline, kernel

@inline
def at(x, j):
    return x[np.int64(j)]

@inline
def both(x):
    return at(x, 0) + at(x, 1)

@kernel
def total(x):
    return both(x) + at(x, 2)
"""


def test_other_versions_of_numba_compile_as_they_do_and_say_so(caplog):
    assert compilers("0.61.0") == compilers("1.0") == (Compiler, Compiler)
    assert [r.getMessage().partition(" compiles")[0] for r in caplog.records] == ["Numba 0.61.0", "Numba 1.0"]
    assert all(r.getMessage().endswith(f"faster with Numba {KNOWN[0]}x") for r in caplog.records)
    caplog.clear()
    assert compilers(f"{KNOWN[0]}9") != (Compiler, Compiler)
    assert not caplog.records


@pytest.mark.skipif(compilers(numba.__version__)[0] is Compiler, reason="the insides of this Numba are not known")
def test_helpers_are_compiled_once_and_have_no_machine_code(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", "")
    path = tmp_path / "parts_of_kernels.py"
    path.write_text(PARTS)
    spec = importlib.util.spec_from_file_location("parts_of_kernels", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    with event.install_recorder("numba:compile") as recorder:
        assert loaded.total(np.arange(3.0)) == 3.0
    begun = [e.data["dispatcher"] for _, e in recorder.buffer if e.is_start]
    assert sorted(d.py_func.__name__ for d in begun) == ["at", "both", "total"]
    code = {d.py_func.__name__: one for d in begun for one in d.overloads.values()}
    addresses = {name: one.library.get_pointer_to_function(one.fndesc.llvm_func_name) for name, one in code.items()}
    assert addresses["at"] == addresses["both"] == 0 != addresses["total"]
