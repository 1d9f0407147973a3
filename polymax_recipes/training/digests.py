"""Digests of the files of a run, in its digests.json: they reveal files that were damaged or changed by hand.

While a file is replaced, the digests of the old and the new file are both listed, so that a process may be killed at
any time.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from polymax_recipes.outputs import atomic_write

NAME = "digests.json"


@contextmanager
def atomic_write_with_digest(file: Path) -> Iterator[Path]:
    """Give a path to write to; at the end of the block, the file there is moved to `file`, and its digest is stored."""
    listed = read_digests(file.parent)
    with atomic_write(file) as temporary:
        yield temporary
        found = digest([temporary])
        _write(file.parent, {**listed, file.name: [*listed.get(file.name, []), found]})
    _write(file.parent, {**listed, file.name: [found]})


def check_digest(file: Path) -> None:
    """Raise a ValueError if a file has changed since it was written; files without a digest, as in older runs, are not
    checked.
    """
    listed = read_digests(file.parent).get(file.name)
    if listed is not None and digest([file]) not in listed:
        raise ValueError(
            f"{file} is damaged, or was changed after it was written: its digest is not that of {NAME}; "
            f"put back a copy, or take {file.name} out of {NAME} to use it as it is"
        )


def read_digests(run: Path) -> dict[str, list[str]]:
    """The digests of the files of a run by their names; empty for a run without digests."""
    file = run / NAME
    with suppress(FileNotFoundError):
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            stored = None
        lists = stored.values() if isinstance(stored, dict) else [stored]
        if not all(isinstance(one, list) and all(isinstance(text, str) for text in one) for one in lists):
            raise ValueError(f"{file}: not a list of digests, or a damaged one; without it nothing is checked")
        return stored
    return {}


def digest(files: Sequence[Path]) -> str:
    """Return the SHA-256 digest of the contents of files; for a directory, of the files below it and their names."""
    total = hashlib.sha256()
    for file in (below for each in files for below in _below(each)):
        with file.open("rb") as opened:
            total.update(hashlib.file_digest(opened, "sha256").digest())
    return total.hexdigest()


def _below(file: Path) -> list[Path]:
    # without files that a library caches beside a dataset
    return sorted(p for p in file.rglob("*") if p.is_file() and "cache" not in p.name) if file.is_dir() else [file]


def _write(run: Path, listed: dict[str, list[str]]) -> None:
    with atomic_write(run / NAME) as temporary:
        temporary.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
