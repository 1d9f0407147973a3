"""Sequences that a model packs into rows: their starts or masks, and a test for masks that hide more than others."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from polymax.backend.function import is_fixed, require
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.nn.attention_pattern import pattern_of

_REFUSED = (
    "position_ids begin again, which marks documents that must not see each other: give cu_seq_lens_q and "
    "cu_seq_lens_k, as DataCollatorWithFlattening(return_flash_attn_kwargs=True) does, or a mask"
)
# results of tests on masks and positions, which all layers share, by tensor and by test
_TESTED = WeakTensorKeyDictionary()


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

    def test() -> bool:
        sees, given = found.mask(queries, keys), mask[..., :keys]
        if given.dtype != torch.bool:
            plain = (given == 0) | (given <= torch.finfo(given.dtype).min)
            given = (given == 0) if bool(plain.all()) else ~sees
        return torch.equal(given, sees)

    return _remembered((mask, found.starts_q), (found.is_causal, found.window, queries, keys), test)


def _starts_of_positions(positions: Any, query: Tensor, key: Tensor, bare: bool) -> Tensor | None:
    """The starts of sequences, rows one after another, from positions that begin again; None if rows are whole."""
    rows, tokens = len(query), query.shape[2]
    if not _are_of_rows(positions, query) or is_fixed(query) or tokens < 2 or key.shape[2] != tokens:
        return None
    if rows > 1 and not bare:
        return None

    def starts() -> Tensor | None:
        begins = (positions.diff() != 1).expand(rows, -1)
        first = torch.cat([begins.new_ones(rows, 1), begins], 1).flatten().nonzero()[:, 0]
        ends = first.new_tensor([rows * tokens])
        return torch.cat([first, ends]).int() if len(first) > rows else None

    return _remembered((positions,), ("starts", rows), starts)


def own_documents(positions: Any, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Return True for keys of each query's own document, bool (N or 1, 1, L, S), by positions; None hides nothing.

    This is for calls that `packed_sequences` leaves whole: rows of a batch with a mask, keys of a cache, and compiled
    code, which cannot look at positions. There a call without a mask, for which no mask is to be made, raises a
    RuntimeError if positions begin again.
    """
    tokens, keys = query.shape[2], key.shape[2]
    if not _are_of_rows(positions, query):
        return None
    if not is_causal:
        _refuse_documents(positions, query, keys, mask)
        return None
    if keys == tokens:
        return _same_document(positions, query, mask)
    return _last_keys(positions, query, keys, mask)


def _same_document(positions: Tensor, query: Tensor, mask: Tensor | None) -> Tensor | None:
    """`own_documents` of rows without a cache: a document ends where the next position is not the next number."""
    if query.shape[2] < 2:
        return None
    if mask is None:
        # `packed_sequences` has read the positions of other calls
        if is_fixed(query):
            require((positions.diff() == 1).all(), _REFUSED)
        return None
    if not is_fixed(query) and _remembered((positions,), ("whole",), lambda: bool((positions.diff() == 1).all())):
        return None
    numbers = nn.functional.pad((positions.diff() != 1).cumsum(-1, dtype=torch.int32), (1, 0))
    return numbers[:, None, :, None] == numbers[:, None, None, :]


def _last_keys(positions: Tensor, query: Tensor, keys: int, mask: Tensor | None) -> Tensor | None:
    """`own_documents` over a cache: the token at position p of a document sees the last p + 1 of its visible keys."""

    def visible() -> Tensor:
        if mask is not None:
            kept = mask[..., :keys]
            return (kept if kept.dtype == torch.bool else kept > torch.finfo(kept.dtype).min).any(1, keepdim=True)
        tokens = query.shape[2]
        # a single query comes after all keys; several are the first ones of a cache that is not full
        return torch.ones(1, 1, tokens, keys, dtype=torch.bool, device=query.device).tril(keys if tokens == 1 else 0)

    def fits() -> Tensor:
        return (visible().sum(-1) <= positions[:, None] + 1).all()

    if is_fixed(query):
        if mask is None:
            require(fits(), _REFUSED)
            return None
    else:
        shared = (positions,) if mask is None else (mask, positions)
        if _remembered(shared, ("fits", keys), lambda: bool(fits())):
            return None
    following = visible().flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    return following <= positions[:, None, :, None] + 1


def _refuse_documents(positions: Tensor, query: Tensor, keys: int, mask: Tensor | None) -> None:
    """Raise if positions of attention that is not causal are 0 inside of a row, and no mask tells documents apart."""
    if mask is not None or query.shape[2] != keys or keys < 2:
        return

    def fits() -> Tensor:
        return (positions[:, 1:] != 0).all()

    if is_fixed(query):
        require(fits(), _REFUSED)
    elif not _remembered((positions,), ("one document",), lambda: bool(fits())):
        raise ValueError(_REFUSED)


def _are_of_rows(positions: Any, query: Tensor) -> bool:
    """Return True if positions are (rows, tokens) of the query, or (1, tokens) for all rows."""
    if not isinstance(positions, Tensor) or positions.dim() != 2 or positions.shape[1] != query.shape[2]:
        return False
    return positions.shape[0] in (1, len(query))


def _remembered(tensors: tuple[Tensor, ...], place: tuple[Any, ...], test: Callable[[], Any]) -> Any:
    """The result of a test of tensors, which all layers share: numbers are read from the device once.

    The result is kept with the first tensor, as long as none of them was changed.
    """
    if any(t.is_inference() for t in tensors):
        # changes of such a tensor are not counted
        return test()
    known = _TESTED.setdefault(tensors[0], {})
    versions = [t._version for t in tensors]
    found = known.get(place)
    if found is None or found[0] != versions or any(ref() is not t for ref, t in zip(found[1], tensors)):
        found = known[place] = (versions, [weakref.ref(t) for t in tensors], test())
    return found[2]


def window_of(size: Any) -> tuple[int, int] | None:
    """Return the window of a layer that sees `size` keys up to a query's own, and as many after it if not causal."""
    return None if size is None else (int(size) - 1, int(size) - 1)


def paged_keys(cache: Any, module: Any, key: Tensor, value: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Write keys and values into the pages of continuous batching; return those of all sequences, one after another."""
    if options.get("block_table") is not None:
        raise ValueError("block_table must be None: keys of continuous batching are read by their indices")
    return cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=options)
