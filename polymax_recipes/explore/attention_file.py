"""Attention weights of a whole model in one file: the nonzero weights, head by head.

The file is a NumPy archive (.npz), without pickled objects. For layer l and head h it has, in rows of queries,

    starts/l/h (queries + 1,)   uint32: where the weights of each query begin
    columns/l/h (count,)        uint16, or uint32 for more than 65,535 keys: the keys, ascending in each row
    weights/l/h (count,)        float16: rounded to positive numbers, so that the support is kept

and `header`, JSON in UTF-8 as uint8: format, layers, heads, queries, keys (tokens), least, and of every head the mean
and the largest support.
"""

import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymax_recipes.outputs import atomic_write

FORMAT = "polymax attention 1"
# the smallest number that float16 has above 0
SMALLEST = 2.0**-24
# bytes of the header at most: its tokens, and a few numbers for each head
LARGEST = 1 << 24
# rows of scores that are compressed together
BLOCK = 512


class Head(NamedTuple):
    """The weights of one head in compressed rows. Shapes: starts (queries + 1,); columns and weights (count,)."""

    starts: np.ndarray
    columns: np.ndarray
    weights: np.ndarray


def save_attention(
    file: str | PathLike[str],
    weights: Iterable[Iterable[Tensor]],
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    least: float = 0.0,
) -> None:
    """Save attention weights for `polymax explore --attention FILE`: of each layer, of each head, (queries, keys).

    `weights` has the form in which models return them: a list of a tensor (heads, queries, keys) for each layer, also
    with a batch of 1 in front; or any iterable of iterables, which is read once, so that one head is in memory at a
    time. `tokens` are the queries, and `keys` the keys if they are other words. Weights of at most `least` are left
    out; with 0, only zeros are left out.

    Example:
        >>> import tempfile
        >>> layer = pm.sparsemax(torch.tensor([[[3.0, 0.0], [0.2, 0.0]]]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_attention(f"{folder}/attention.npz", [layer], ["a", "b"])
        ...     stored = AttentionFile.open(f"{folder}/attention.npz")
        ...     stored.support, stored.head(0, 0).columns.tolist()
        ([[1.5]], [0, 0, 1])
    """
    queries = [str(token) for token in tokens]
    names = queries if keys is None else [str(key) for key in keys]
    if not queries or not names:
        raise ValueError("tokens must not be empty")
    if not 0 <= least < 1:
        raise ValueError(f"least must be in [0, 1); got {least}")
    support: list[list[float]] = []
    largest: list[list[int]] = []
    with atomic_write(Path(file)) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for layer, heads in enumerate(weights):
            support.append([])
            largest.append([])
            for number, one in enumerate(_heads(heads, layer)):
                stored = _compressed(one, (len(queries), len(names)), least, f"layer {layer}, head {number}")
                for part, array in stored._asdict().items():
                    _write(archive, f"{part}/{layer}/{number}", array)
                sizes = np.diff(stored.starts.astype(np.int64))
                support[-1].append(round(float(sizes.mean()), 3))
                largest[-1].append(int(sizes.max()))
            if len(support[-1]) != len(support[0]) or not support[0]:
                raise ValueError(f"layer {layer} must have {len(support[0]) or 'some'} heads; got {len(support[-1])}")
        if not support:
            raise ValueError("weights must have a layer")
        header = {
            "format": FORMAT,
            "layers": len(support),
            "heads": len(support[0]),
            "queries": queries,
            "keys": None if keys is None else names,
            "least": least,
            "support": support,
            "largest": largest,
        }
        text = json.dumps(header, ensure_ascii=False).encode()
        _write(archive, "header", np.frombuffer(text, dtype=np.uint8))


@dataclass(frozen=True)
class AttentionFile:
    """An open file of attention weights; a head is read when it is requested.

    Example:
        >>> AttentionFile.open("nowhere.npz")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.npz'
    """

    path: Path
    layers: int
    heads: int
    queries: list[str]
    keys: list[str]
    least: float
    support: list[list[float]]
    largest: list[list[int]]

    @classmethod
    def open(cls, file: str | PathLike[str]) -> "AttentionFile":
        """Open a file and read its header; a ValueError if it is not a file of attention."""
        path = Path(file)
        with _damage(f"{path} is not a file that save_attention wrote, or a damaged one"):
            with zipfile.ZipFile(path) as archive:
                stored = json.loads(_member(archive, "header", np.uint8, LARGEST).tobytes().decode())
            if stored["format"] != FORMAT:
                raise ValueError(f"format must be {FORMAT!r}; got {str(stored['format'])[:80]!r}")
            queries = [str(token) for token in stored["queries"]]
            keys = queries if stored["keys"] is None else [str(token) for token in stored["keys"]]
            shape = int(stored["layers"]), int(stored["heads"])
            tables = [[[kind(one) for one in row] for row in stored[name]] for name, kind in _TABLES]
            if any(len(table) != shape[0] or {len(row) for row in table} != {shape[1]} for table in tables):
                raise ValueError(f"support and largest must be {shape}")
            least = float(stored["least"])
            if not (0 <= least < 1 and all(0 <= one < np.inf for table in tables for row in table for one in row)):
                raise ValueError("least, support and largest must be numbers, none negative")
            return cls(path, *shape, queries, keys, least, *tables)

    def head(self, layer: int, head: int) -> Head:
        """The weights of a head; an IndexError if there is no such head, a ValueError if its data are damaged."""
        if not (0 <= layer < self.layers and 0 <= head < self.heads):
            raise IndexError(f"there are {self.layers} layers of {self.heads} heads; got layer {layer}, head {head}")
        wide = np.uint16 if len(self.keys) < 2**16 else np.uint32
        with _damage(f"{self.path}: layer {layer}, head {head} is damaged"):
            with zipfile.ZipFile(self.path) as archive:
                place = f"{layer}/{head}"
                starts = _member(archive, f"starts/{place}", np.uint32)
                columns, weights = (
                    _member(archive, f"columns/{place}", wide),
                    _member(archive, f"weights/{place}", np.float16),
                )
            if len(starts) != len(self.queries) + 1 or len(columns) != len(weights):
                raise ValueError("its arrays do not fit")
            if starts[0] != 0 or (np.diff(starts.astype(np.int64)) < 0).any() or starts[-1] != len(columns):
                raise ValueError("its rows do not fit")
            if len(columns) and int(columns.max()) >= len(self.keys):
                raise ValueError("a key is out of range")
            return Head(starts, columns, weights)

    def bytes(self, layer: int, head: int) -> bytes:
        """The arrays of a head one after the other, as the page reads them: little-endian."""
        return b"".join(np.ascontiguousarray(array).tobytes() for array in self.head(layer, head))

    def header(self) -> dict[str, Any]:
        """The header as a dictionary, which the page reads before it requests a head."""
        return {
            "kind": "attention",
            "name": self.path.name,
            "layers": self.layers,
            "heads": self.heads,
            "queries": self.queries,
            "keys": None if self.keys is self.queries else self.keys,
            "least": self.least,
            "support": self.support,
            "largest": self.largest,
        }


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """Turn errors of reading in the block into a ValueError; a missing file stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except IsADirectoryError as error:
        raise ValueError(f"{what}: it is a directory") from error
    except (MemoryError, RecursionError, NotImplementedError) as error:
        raise ValueError(f"{what}: {type(error).__name__}") from error
    except Exception as error:
        raise ValueError(f"{what}: {str(error)[:200]}") from error


def _member(archive: zipfile.ZipFile, name: str, dtype: Any, most: int | None = None) -> np.ndarray:
    """A vector of an archive, whose size is known before it is read.

    Members are stored as they are, so that no member needs more memory than the file has bytes.
    """
    found = archive.getinfo(f"{name}.npy")
    if found.compress_type != zipfile.ZIP_STORED or found.compress_size != found.file_size or found.flag_bits & 1:
        raise ValueError(f"{name} is compressed or encrypted; save_attention stores it as it is")
    size = Path(str(archive.filename)).stat().st_size
    if found.file_size > size or (most is not None and found.file_size > most):
        raise ValueError(f"{name} has {found.file_size} bytes; it may have {min(size, most or size)}")
    data = archive.read(found)
    # the header of NumPy's format is a Python literal; only the form that save_attention writes is accepted
    form = _FORM.match(data)
    if form is None or np.dtype(form["dtype"].decode()) != dtype:
        raise ValueError(f"{name} must be a vector of {np.dtype(dtype).name}")
    values = memoryview(data)[form.end() :]
    if len(values) != int(form["count"]) * np.dtype(dtype).itemsize:
        raise ValueError(f"{name} has {len(values)} bytes; {form['count'].decode()} numbers expected")
    return np.frombuffer(values, dtype)


# magic, version 1.0, the length of the header, and the header
_FORM = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<|][uf][124])', 'fortran_order': False, "
    rb"'shape': \((?P<count>\d{1,12}),\), \} *\n",
    re.DOTALL,
)
_TABLES: tuple[tuple[str, Any], ...] = (("support", float), ("largest", int))


def _heads(heads: Any, layer: int) -> Iterable[Tensor]:
    if isinstance(heads, Tensor):
        if heads.ndim == 4 and heads.shape[0] == 1:
            heads = heads[0]
        if heads.ndim != 3:
            got = tuple(heads.shape)
            raise ValueError(f"layer {layer} must be (heads, queries, keys), or a batch of one of them; got {got}")
    return heads


def _compressed(weights: Tensor, shape: tuple[int, int], least: float, where: str) -> Head:
    if not isinstance(weights, Tensor) or tuple(weights.shape) != shape:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"{where} must be {shape}, as many as tokens and keys; got {got}")
    wide = np.uint16 if shape[1] < 2**16 else np.uint32
    counts, columns, values = [], [], []
    for rows in weights.detach().split(BLOCK):
        block = rows.float().cpu()
        if not bool(((block >= 0) & torch.isfinite(block)).all()):
            raise ValueError(f"{where} must be weights: finite numbers, none negative")
        there = block > least
        counts.append(there.sum(1))
        columns.append(there.nonzero()[:, 1].numpy().astype(wide))
        values.append(block[there].clamp(SMALLEST, 65504.0).numpy().astype(np.float16))
    ends = torch.cat(counts).cumsum(0).numpy()
    if ends[-1] >= 2**32:
        raise ValueError(f"{where} has {ends[-1]} weights that are not zero; at most {2**32 - 1} can be stored")
    starts = np.concatenate([[0], ends]).astype(np.uint32)
    return Head(starts, np.concatenate(columns), np.concatenate(values))


def _write(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as opened:
        np.lib.format.write_array(opened, array, allow_pickle=False)
