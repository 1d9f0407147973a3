"""Distributions over words on disk: a teacher's lists for each position of each document, read by memory maps.

A folder has four arrays and a table of contents, which is written last: a folder without it is not complete.

    ids.bin        the words of all positions, one list after the other: uint16, or uint32 above 65,536 words
    probs.bin      their probabilities: float16 or float32
    starts.bin     the first entry of each position, and the number of all entries: int64
    documents.bin  the first position of each document, and the number of all positions: int64
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.distributions.words import WordDistribution

CONTENTS = "contents.json"
FORMAT = "polymax.words.1"
PROBS = {torch.float16: np.float16, torch.float32: np.float32}


def save_words(
    path: str | os.PathLike[str], documents: Iterable[WordDistribution], dtype: torch.dtype = torch.float16
) -> None:
    """Write the distributions of documents, each with lists (positions, k), into a new folder."""
    if dtype not in PROBS:
        raise ValueError(f"dtype must be torch.float16 or torch.float32; got {dtype}")
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an empty folder: choose another path, or delete it first")
    folder.mkdir(parents=True, exist_ok=True)
    words: int | None = None
    entries, positions, counts, kinds = 0, 0, [0], None
    with (
        open(folder / "ids.bin", "wb") as of_ids,
        open(folder / "probs.bin", "wb") as of_probs,
        open(folder / "starts.bin", "wb") as of_starts,
    ):
        np.zeros(1, np.int64).tofile(of_starts)
        for number, each in enumerate(documents):
            ids, probs = _checked(each, number, words)
            words = each.words
            kinds = np.dtype(np.uint16 if words <= 2**16 else np.uint32)
            kept = ids >= 0
            sizes = kept.sum(1)
            ids[kept].astype(kinds).tofile(of_ids)
            probs[kept].astype(PROBS[dtype]).tofile(of_probs)
            (entries + np.cumsum(sizes, dtype=np.int64)).tofile(of_starts)
            entries, positions = entries + int(sizes.sum()), positions + len(ids)
            counts.append(positions)
    np.asarray(counts, np.int64).tofile(folder / "documents.bin")
    if words is None or kinds is None:
        raise ValueError("documents must be at least one WordDistribution; got none")
    contents = {
        "format": FORMAT, "words": words, "documents": len(counts) - 1, "positions": positions, "entries": entries,
        "ids": kinds.name, "probs": np.dtype(PROBS[dtype]).name,
    }  # fmt: skip
    unfinished = folder / f"{CONTENTS}.part"
    unfinished.write_text(json.dumps(contents, indent=1) + "\n")
    unfinished.replace(folder / CONTENTS)


def _checked(each: Any, number: int, words: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids and the probabilities of a document; raise unless they are valid, and over `words` words."""
    if not isinstance(each, WordDistribution):
        raise TypeError(f"document {number} must be a WordDistribution; got {type(each).__name__}")
    if each.ids.dim() != 2 or each.ids.shape != each.probs.shape:
        raise ValueError(
            f"document {number} must have ids and probs (positions, k); got {tuple(each.ids.shape)} and "
            f"{tuple(each.probs.shape)}"
        )
    if words is not None and each.words != words:
        raise ValueError(f"document {number} must be over {words} words, as those before; got {each.words}")
    ids = each.ids.detach().cpu().numpy()
    probs = each.probs.detach().float().cpu().numpy()
    if ids.size and ids.max() >= each.words:
        raise ValueError(f"document {number} must have ids in [0, {each.words}), or -1; got {ids.max()}")
    if not np.isfinite(probs[ids >= 0]).all():
        raise ValueError(f"document {number} must have finite probabilities; got NaN or inf")
    return ids, probs


class StoredWords:
    """The distributions of `WordDistribution.save`, which are read where they are needed.

    `stored[document]` is the distribution of all positions of a document, and `stored.at(documents, positions)` that of
    chosen positions. Probabilities are float32, and are divided by their sum, which the narrow ones on disk miss by
    their rounding. An object may be sent to workers of a DataLoader: they map the files again.

    Shapes: stored[document].ids (positions, k), k being the longest list among them

    Example:
        >>> import tempfile
        >>> teacher = WordDistribution(torch.tensor([[7, 3], [5, -1]]), torch.tensor([[0.75, 0.25], [1.0, 0.0]]), 10)
        >>> folder = tempfile.mkdtemp()
        >>> WordDistribution.save(folder, [teacher])
        >>> WordDistribution.load(folder)[0]
        WordDistribution(ids=tensor([[ 7,  3],
                [ 5, -1]]), probs=tensor([[0.7500, 0.2500],
                [1.0000, 0.0000]]), words=10)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            contents = json.loads((self.path / CONTENTS).read_text())
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path} has no {CONTENTS}: it is no folder of WordDistribution.save, or was not finished"
            ) from None
        except ValueError as reason:
            raise ValueError(f"{self.path / CONTENTS} must be JSON; {reason}") from None
        if not isinstance(contents, dict) or contents.get("format") != FORMAT:
            raise ValueError(f"{self.path / CONTENTS} must have the format {FORMAT}")
        numbers: list[int] = [contents.get(k, -1) for k in ("words", "documents", "positions", "entries")]
        if not all(isinstance(n, int) and 0 <= n < 2**62 for n in numbers) or not (
            contents.get("ids") in ("uint16", "uint32") and contents.get("probs") in ("float16", "float32")
        ):
            raise ValueError(f"{self.path / CONTENTS} is damaged: it must have numbers and kinds of the arrays")
        self.words, self.documents, self.positions, self.entries = numbers
        self._kinds = {
            "ids": (contents["ids"], self.entries), "probs": (contents["probs"], self.entries),
            "starts": ("int64", self.positions + 1), "documents": ("int64", self.documents + 1),
        }  # fmt: skip
        self._open()

    def _open(self) -> None:
        self._ids, self._probs, self._starts, self._documents = (
            self._map(name, *kind) for name, kind in self._kinds.items()
        )

    def _map(self, name: str, kind: str, size: int) -> np.ndarray:
        file, dtype = self.path / f"{name}.bin", np.dtype(kind)
        found = file.stat().st_size
        if found != size * dtype.itemsize:
            raise ValueError(f"{file} must have {size * dtype.itemsize} bytes; got {found}: the folder is damaged")
        return np.memmap(file, dtype, "r", shape=(size,)) if size else np.zeros(0, dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_ids", "_probs", "_starts", "_documents")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return self.documents

    def __getitem__(self, document: int) -> WordDistribution:
        number = range(self.documents)[document]
        first, stop = self._documents[number : number + 2]
        self._check("documents", first, stop, self.positions)
        return self._lists(np.arange(first, stop))

    def length(self, document: int) -> int:
        """The number of positions of a document."""
        number = range(self.documents)[document]
        return int(self._documents[number + 1] - self._documents[number])

    def at(self, documents: Tensor, positions: Tensor) -> WordDistribution:
        """The distributions of chosen positions of documents.

        A position of -1 gets an empty list, which losses leave out. Shapes: documents and positions (*batch,) integers
        """
        if documents.shape != positions.shape:
            raise ValueError(
                f"documents and positions must have one shape; got {tuple(documents.shape)} and "
                f"{tuple(positions.shape)}"
            )
        for name, numbers in (("documents", documents), ("positions", positions)):
            if numbers.is_floating_point() or numbers.dtype == torch.bool:
                raise TypeError(f"{name} must be integers; got {numbers.dtype}")
        d, k = documents.reshape(-1).cpu().numpy(), positions.reshape(-1).cpu().numpy()
        if d.size and not ((d >= 0) & (d < self.documents)).all():
            raise IndexError(f"documents must be in [0, {self.documents}); got {d.min()} to {d.max()}")
        first, stop = self._documents[d], self._documents[d + 1]
        self._check("documents", first, stop, self.positions)
        if not ((k >= -1) & (k < stop - first)).all():
            wrong = int(np.flatnonzero((k < -1) | (k >= stop - first))[0])
            raise IndexError(
                f"positions of document {d[wrong]} must be in [0, {stop[wrong] - first[wrong]}), or -1; got {k[wrong]}"
            )
        found = self._lists(np.where(k < 0, -1, first + k))
        shape = (*documents.shape, found.ids.shape[-1])
        return WordDistribution(found.ids.reshape(shape), found.probs.reshape(shape), self.words)

    def _lists(self, rows: np.ndarray) -> WordDistribution:
        first = np.where(rows < 0, 0, self._starts[rows])
        sizes = np.where(rows < 0, 0, self._starts[rows + 1] - first)
        self._check("starts", first, first + sizes, self.entries)
        longest = max(int(sizes.max()), 1) if len(rows) else 1
        inside = np.arange(longest) < sizes[:, None]
        places = (first[:, None] + np.arange(longest))[inside]
        ids = np.full(inside.shape, -1, np.int64)
        probs = np.zeros(inside.shape, np.float32)
        ids[inside], probs[inside] = self._ids[places], self._probs[places]
        probs /= np.maximum(probs.sum(1, keepdims=True), np.finfo(np.float32).tiny)
        return WordDistribution(torch.from_numpy(ids), torch.from_numpy(probs), self.words)

    def _check(self, name: str, first: np.ndarray, stop: np.ndarray, most: int) -> None:
        """Raise ValueError if a part of an array is not within the array, as in a folder that is damaged."""
        if not (np.all(first >= 0) and np.all(first <= stop) and np.all(stop <= most)):
            raise ValueError(f"{self.path / name}.bin must rise from 0 to {most}: the folder is damaged")
