"""Sequences that a model packs into one row: their starts, and a test for masks that hide more than other sequences."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.kernels.sparse_attention.geometry import allowed
from polymax.nn.attention_pattern import pattern_of

# the attribute in which a tensor that all layers share caches its test
FOUND = "polymax_found"


class Sequences(NamedTuple):
    """Sequences of queries and keys, each with its own positions, and the keys that its queries see."""

    starts_q: Tensor
    starts_k: Tensor
    # the lengths of the longest sequences, if known without reading from a device
    longest_q: int | None
    longest_k: int | None
    is_causal: bool
    window: tuple[int, int] | None
    # the position of each sequence's first query among its keys: 0, or (sequences,)
    offset: Any = 0

    def mask(self, queries: int, keys: int) -> Tensor:
        """True where a query sees a key: bool (1, 1, queries, keys)."""
        pattern = pattern_of(self.is_causal, self.window, 0)
        return allowed(queries, keys, self.starts_q, self.starts_k, *pattern, self.starts_q.device)[None, None]


def packed_sequences(
    query: Tensor, key: Tensor, is_causal: bool, window: tuple[int, int] | None, options: dict[str, Any], bare: bool
) -> Sequences | None:
    """Return the sequences that the arguments of a call name: cu_seq_lens, or positions that begin again; else None.

    A call is `bare` without a mask: then positions of several rows count too, which a mask of the model would tell.
    """
    starts_q, starts_k = (options.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    if (starts_q is None) != (starts_k is None):
        raise ValueError("cu_seq_lens_q and cu_seq_lens_k must be given together")
    if starts_q is None or starts_k is None:
        starts = _starts_of_positions(options.get("position_ids"), query, key, bare) if is_causal else None
        return None if starts is None else Sequences(starts, starts, None, None, is_causal, window)
    longest = (options.get(name) for name in ("max_length_q", "max_length_k"))
    longest_q, longest_k = (n if isinstance(n, int) else None for n in longest)
    return Sequences(starts_q, starts_k, longest_q, longest_k, is_causal, window)


def says_the_same(mask: Tensor, found: Sequences, queries: int, keys: int) -> bool:
    """Return True if a mask shows the sequences' keys, and adds nothing: it is compared once for all layers."""
    if mask.dim() != 4 or mask.shape[:2] != (1, 1) or mask.shape[2] != queries:
        return False
    key = (id(found.starts_q), found.starts_q._version, mask._version, found.is_causal, found.window, queries, keys)
    known: dict[Any, bool] = mask.__dict__.setdefault(FOUND, {})
    if key not in known:
        sees, given = found.mask(queries, keys), mask[..., :keys]
        if given.dtype != torch.bool:
            plain = (given == 0) | (given <= torch.finfo(given.dtype).min)
            given = (given == 0) if bool(plain.all()) else ~sees
        known[key] = torch.equal(given, sees)
    return known[key]


def _starts_of_positions(positions: Any, query: Tensor, key: Tensor, bare: bool) -> Tensor | None:
    """The starts of sequences, rows one after another, from positions that begin again; None if rows are whole."""
    if not isinstance(positions, Tensor) or torch.compiler.is_compiling():
        return None
    rows, tokens = len(query), query.shape[2]
    if positions.dim() != 2 or positions.shape[1] != tokens or tokens < 2 or key.shape[2] != tokens:
        return None
    if len(positions) not in (1, rows) or (rows > 1 and not bare):
        return None
    known: dict[tuple[int, int], Tensor | None] = positions.__dict__.setdefault(FOUND, {})
    kind = positions._version, rows
    if kind not in known:
        begins = (positions.diff() != 1).expand(rows, -1)
        first = torch.cat([begins.new_ones(rows, 1), begins], 1).flatten().nonzero()[:, 0]
        ends = first.new_tensor([rows * tokens])
        known[kind] = torch.cat([first, ends]).int() if len(first) > rows else None
    return known[kind]


def window_of(size: Any) -> tuple[int, int] | None:
    """Return the window of a layer that sees `size` keys up to a query's own, and as many after it if not causal."""
    return None if size is None else (int(size) - 1, int(size) - 1)


def paged_keys(cache: Any, module: Any, key: Tensor, value: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Write keys and values into the pages of continuous batching; return those of all sequences, one after another."""
    if options.get("block_table") is not None:
        raise ValueError("block_table must be None: keys of continuous batching are read by their indices")
    return cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=options)
