"""The directory that keeps compiled kernels between processes, and the fallbacks if there is none.

Numba keeps machine code beside the source, or in the user's cache directory. It refuses to compile if neither is
writable, and fails at every start if a cache file is damaged. Here, kernels run in both cases: they are cached in a
temporary directory of the user, or not at all, and damaged files are deleted and compiled again.
"""

import ast
import hashlib
import logging
import os
import pickle
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

_PACKAGE = Path(__file__).resolve().parents[1]
_warned = False

# seconds of compiling after which a message is logged
PATIENCE = 2.0
_LOGGER = logging.getLogger("polymax")
_waiting: threading.Timer | None = None
_told = False


def keep_compiled(dispatcher: Any) -> Any:
    """Return the dispatcher of a kernel, with a cache of its machine code on the disk if a directory is writable."""
    if config.DISABLE_JIT:
        return dispatcher
    try:
        dispatcher._cache = KernelCache(dispatcher.py_func)
    except (RuntimeError, OSError) as reason:
        _warn_once(f"compiled kernels cannot be kept, so that every process compiles them anew: {reason}")
    return dispatcher


class TemporaryLocator(_CacheLocator):
    """A directory that only the user may write to, below the temporary directory: else others could put their code
    there.
    """

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._root = os.path.join(tempfile.gettempdir(), f"polymax-kernels-{_user()}")
        self._cache_path = os.path.join(self._root, self.get_suitable_cache_subpath(py_file))

    def get_cache_path(self) -> str:
        return self._cache_path

    def get_source_stamp(self) -> bytes:
        return source_stamp(self._py_file)

    def get_disambiguator(self) -> str:
        return str(self._lineno)

    def ensure_cache_path(self) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._root, 0o700)
        found = os.lstat(self._root)
        if not stat.S_ISDIR(found.st_mode) or (
            os.name == "posix" and (found.st_uid != _user() or found.st_mode & 0o77)
        ):
            raise PermissionError(f"{self._root} is open to others")
        super().ensure_cache_path()

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "TemporaryLocator | None":
        try:
            locator = cls(py_func, py_file)
            locator.ensure_cache_path()
        except OSError:
            return None
        _warn_once(
            f"compiled kernels are kept in {locator._root}, since neither the directory of polymax nor the user's "
            "cache directory can be written; NUMBA_CACHE_DIR names another one"
        )
        return locator


class _Sealed(CompileResultCacheImpl):
    """Machine code with its digest, so that damaged code is never run."""

    _locator_classes: ClassVar[list[Any]] = [*CompileResultCacheImpl._locator_classes, TemporaryLocator]

    def reduce(self, data: Any) -> tuple[bytes, bytes]:
        from numba.core.serialize import dumps

        code = dumps(super().reduce(data))
        return hashlib.sha256(code).digest(), code

    def rebuild(self, target_context: Any, reduced_data: tuple[bytes, bytes]) -> Any:
        digest, code = reduced_data
        if hashlib.sha256(code).digest() != digest:
            raise ValueError("the digest of the cached code is another")
        return super().rebuild(target_context, pickle.loads(code))


class KernelCache(FunctionCache):
    """The cache of one kernel; it is stale if the kernel's file has changed, or a file whose functions it uses."""

    _impl_class = _Sealed

    def __init__(self, py_func: Callable[..., Any]) -> None:
        super().__init__(py_func)
        stamp = source_stamp(py_func.__code__.co_filename)
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        try:
            found = super().load_overload(sig, target_context)
        except Exception:
            # the kind of exception depends on the kind of damage: any exception counts as a missing entry
            self._delete()
        if found is None:
            _say_when_it_takes_long()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        _compiled()
        try:
            super().save_overload(sig, data)
        except OSError as reason:
            _warn_once(f"compiled kernels cannot be kept, so that every process compiles them anew: {reason}")

    def _delete(self) -> None:
        for file in Path(self._cache_path).glob(f"{self._impl.filename_base}.*"):
            with suppress(OSError):
                file.unlink()


@cache
def source_stamp(path: str) -> bytes:
    """Return a digest of a file and of the modules of this package whose compiled functions it may use.

    Numba compiles the functions that a kernel calls into the kernel, but checks only the kernel's own file for changes.
    """
    digest = hashlib.sha256()
    # the compiler of kernels is a part of the digest
    for file in (*compiled_with(Path(path)), Path(__file__).with_name("numba_parts.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.digest()


def compiled_with(path: Path) -> list[Path]:
    """Return a Numba file and all files of this package that it imports, directly or through other Numba files,
    sorted.
    """
    known, waiting = {path.resolve()}, [path.resolve()]
    while waiting:
        imported = _imported(waiting.pop())[1]
        # plain Python is not compiled in, except for constants
        waiting.extend(file for file in imported if file not in known and _imported(file)[0])
        known.update(imported)
    return sorted(known)


@cache
def _imported(path: Path) -> tuple[bool, list[Path]]:
    """Return True if a file imports Numba or a numba_*.py, and the files of this package that it imports."""
    names = []
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ImportFrom):
            # a name imported from a package may be a module
            names.extend([str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
    ours = [_PACKAGE.joinpath(*name.split(".")[1:]) for name in names if name.startswith("polymax.")]
    files = [file for at in ours for file in (at.with_suffix(".py"), at / "__init__.py") if file.exists()]
    return any("numba" in name for name in names), files


def _say_when_it_takes_long() -> None:
    """Start a timer for a compilation; one that takes longer than PATIENCE is logged, once in a process."""
    global _waiting
    if _waiting is None and not _told:
        _waiting = threading.Timer(PATIENCE, _tell)
        _waiting.daemon = True
        _waiting.start()


def _compiled() -> None:
    global _waiting
    if _waiting is not None:
        _waiting.cancel()
        _waiting = None


def _tell() -> None:
    global _told
    _told = True
    _LOGGER.info("compiling kernels for a first call; they are kept, and `polymax warmup` compiles all of them ahead")


def _user() -> int:
    return os.getuid() if os.name == "posix" else 0


def _warn_once(message: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(message, RuntimeWarning, stacklevel=2)
