"""Files that commands write: written whole or not at all, never over an input, and over another file only with --force.

A file is written beside its place, under its name with `.part` after it, and moved to its place when it is whole and on
the disk. A process that is killed in between leaves the old file as it was; an error leaves no file behind.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# error numbers of a full file system, and of a user's full quota
FULL = (errno.ENOSPC, errno.EDQUOT)


def writable_file(
    out: Path, flag: str = "--out", inputs: Iterable[Path] = (), force: bool = True, packs: bool = False
) -> None:
    """Raise an error that says why the file cannot be written, before any time is spent.

    A file that is among the inputs, even by another name, is refused; "-" is standard input. Without `force`, so is a
    file that exists. Unless the command `packs` what it writes, a name that ends in .gz is refused too.
    """
    if out.is_dir():
        raise IsADirectoryError(f"{flag} must be a file; {out} is a directory")
    if out.suffix == ".gz" and not packs:
        raise ValueError(f"{flag}: {out} would not be compressed, and its name must not end in .gz")
    for file in inputs:
        for written in (out, part_of(out)):
            if same_file(written, file):
                raise ValueError(f"{flag}: {written} is the file that is read as {file}; it must be another one")
    if is_special(out):
        return
    # a link stays a link: its target is written
    target = Path(os.path.realpath(out))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{flag}: there is no directory {target.parent}")
    if target.exists() and not force:
        raise FileExistsError(f"{flag}: {out} exists; --force writes over it")
    if not os.access(target.parent, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise PermissionError(f"{flag}: no permission to write {out}")


def writable_directory(out: Path, flag: str = "--out") -> None:
    """Raise an OSError that says why the directory cannot be made or written into; nothing is left behind."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{flag} must be a directory; {out} is a file")
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{flag}: {out} cannot be made; {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{flag}: no permission to write into {there}")
    probe = there / f".polymax-{os.getpid()}"
    try:
        # make a directory, since permissions do not reveal a read-only mount
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise type(error)(f"{flag}: {out} cannot be written: {error.strerror}") from None


def same_file(first: Path, second: Path) -> bool:
    """Return True if two names lead to one regular file; "-" is standard input."""
    one, other = _status(first), _status(second)
    return one is not None and other is not None and os.path.samestat(one, other)


def is_special(file: Path) -> bool:
    """Return True for pipes and devices: they are written directly, and no file can be moved to their place."""
    return file.exists() and not file.is_file()


def part_of(file: Path) -> Path:
    """Return the path of the temporary file: beside the file, or beside the target of a link.

    Example:
        >>> part_of(Path("tags.txt")).name
        'tags.txt.part'
    """
    target = Path(os.path.realpath(file))
    return target.with_name(target.name + ".part")


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """Give a path to write to; at the end of the block, the file there is moved to `file`."""
    if is_special(file):
        yield file
        return
    temporary = part_of(file)
    # remove the file of a killed process, or a link of this name, but never the link's target
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        move_into_place(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in FULL:
            raise OSError(error.errno, f"no space is left to write {file}") from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def move_into_place(temporary: Path, file: Path) -> None:
    """Move a complete file to the place of another, after it has reached the disk."""
    with temporary.open("rb") as opened:
        os.fsync(opened.fileno())
    target = os.path.realpath(file)
    if os.path.exists(target):
        os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
    os.replace(temporary, target)


def save_picture(figure: Any, out: Path, **how: Any) -> None:
    """Save a figure of matplotlib; the ending of the name tells the format, and a name without one is PNG."""
    with atomic_write(out) as temporary:
        figure.savefig(temporary, format=out.suffix.removeprefix(".") or "png", **how)


def _status(file: Path) -> os.stat_result | None:
    try:
        found = os.fstat(0) if str(file) == "-" else os.stat(file)
    except (OSError, ValueError):
        return None
    # a device may be both read and written
    return found if stat.S_ISREG(found.st_mode) else None
