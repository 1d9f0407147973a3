"""Python sources of the installed packages: a text that is there without a download, with whole packages held out."""

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from polymax_recipes.lm.data import Document

PARTS = ("train", "dev", "test")


def installed_packages(folders: Sequence[Path] | None = None) -> dict[str, list[Path]]:
    """Return the .py files of each installed package, by its name; packages and files are in alphabetical order.

    folders: directories of packages; by default those of this Python, without its standard library
    """
    if folders is None:
        folders = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    found: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for package in sorted(folder.iterdir()) if folder.is_dir() else ():
            if package.is_dir() and (files := sorted(package.rglob("*.py"))):
                found.setdefault(package.name, []).extend(files)
    return dict(sorted(found.items()))


def part_of(package: str) -> str:
    """Return the part of the data that a package belongs to: about one of ten is for dev, and one for test.

    Example:
        >>> [part_of(name) for name in ("torch", "torchgen", "triton")]
        ['train', 'test', 'dev']
    """
    return {0: "test", 1: "dev"}.get(crc32(package.encode()) % 10, "train")


def source_documents(part: str, context: int, most: int = 0, folders: Sequence[Path] | None = None) -> list[Document]:
    """Return the sources of the packages of a part, a document for each file that is not empty.

    most: bytes at most, 0 for all; files are chosen by a hash of their path, so that every package has some
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}; got {part!r}")
    packages = {name: files for name, files in installed_packages(folders).items() if part_of(name) == part}
    files = [file for files in packages.values() for file in files if file.stat().st_size]
    if most:
        by_hash = sorted(files, key=lambda file: crc32("/".join(file.parts[-4:]).encode()))
        chosen, size = set(), 0
        for file in by_hash:
            size += file.stat().st_size
            if size > most:
                break
            chosen.add(file)
        files = [file for file in files if file in chosen]
    if not files:
        limit = f" of at most {most:,} bytes together" if most else ""
        raise ValueError(f"the installed packages have no Python sources for {part}{limit}")
    return [Document(file.read_text(encoding="utf-8", errors="replace"), context) for file in files]
