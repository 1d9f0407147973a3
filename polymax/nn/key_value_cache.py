"""Caches of keys and values, with boxes of keys, by which attention can skip pages.

A page is a run of neighbouring keys. Its box is the least and the largest number of each channel among them. A box
gives an upper bound of a query's scores in the page; if a score that large has no weight, the page is not read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.sparse_decoding.options import PAGE


def key_boxes(key: Tensor) -> Tensor:
    """The boxes of pages of 64 keys: the least and the largest number of each channel.

    Shapes: key (*batch, S, E); boxes (*batch, ceil(S / 64), 2, E)

    Example:
        >>> key_boxes(torch.arange(200.0)[:, None])[:, :, 0]
        tensor([[  0.,  63.],
                [ 64., 127.],
                [128., 191.],
                [192., 199.]])
    """
    _check.floating(key, "key")
    whole = key.shape[-2] // PAGE * PAGE
    pages = key[..., :whole, :].unflatten(-2, (-1, PAGE))
    boxes = torch.stack([pages.amin(-2), pages.amax(-2)], -2)
    rest = key[..., whole:, :]
    if rest.shape[-2] == 0:
        return boxes
    return torch.cat([boxes, torch.stack([rest.amin(-2), rest.amax(-2)], -2).unsqueeze(-3)], -3)


class KeyValueCache:
    """Keys and values of a batch of sequences of one length, one after the other in memory, with boxes of 64 keys.

    `append` adds tokens; `keys`, `values` and `boxes` are views of the stored tokens. `cache_attention(query, cache)`
    is attention over them. A cache does not track gradients. If it is full, its memory grows by half.

    Shapes: keys (batch, heads, length, channels); values (batch, heads, length, value channels)

    Example:
        >>> cache = KeyValueCache()
        >>> cache.append(torch.randn(1, 2, 100, 8), torch.randn(1, 2, 100, 8))
        >>> cache.append(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
        >>> cache.length, cache.keys.shape, cache.boxes.shape
        (101, torch.Size([1, 2, 101, 8]), torch.Size([1, 2, 2, 2, 8]))
        >>> pm.nn.cache_attention(torch.randn(1, 4, 1, 8), cache, mapping=pm.entmax).shape
        torch.Size([1, 4, 1, 8])
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys = self._values = self._boxes = torch.empty(0)

    @property
    def keys(self) -> Tensor:
        return self._keys[:, :, : self.length] if self._keys.dim() > 1 else self._keys

    @property
    def values(self) -> Tensor:
        return self._values[:, :, : self.length] if self._keys.dim() > 1 else self._values

    @property
    def boxes(self) -> Tensor:
        """The boxes (batch, heads, ceil(length / 64), 2, channels) of the keys, as `key_boxes` describes them."""
        return self._boxes[:, :, : -(-self.length // PAGE)] if self._keys.dim() > 1 else self._boxes

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add tokens: key (batch, heads, tokens, channels), value (batch, heads, tokens, value channels)."""
        _check_tokens(key, value)
        if self.length == 0 and self._keys.dim() == 1:
            self._keys, self._values, self._boxes = _empty_like(key, value, key.shape[2])
        _check_same(key, self._keys, "key")
        _check_same(value, self._values, "value")
        start, end = self.length, self.length + key.shape[2]
        if end > self._keys.shape[2]:
            self._grow(max(end, start + start // 2))
        self._keys[:, :, start:end] = key
        self._values[:, :, start:end] = value
        self.length = end
        self._box(start, end, key)

    def crop(self, length: int) -> None:
        """Drop all tokens after the first `length`."""
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= self.length:
            raise ValueError(f"length must be an integer from 0 to {self.length}; got {length!r}")
        self.length = length
        if length % PAGE:
            begin = length // PAGE * PAGE
            self._box(begin, length, self._keys[:, :, begin:length])

    def select(self, sequences: Tensor) -> None:
        """Keep the sequences with these indices, in this order; an index may repeat."""
        self._keys, self._values, self._boxes = (t[sequences] for t in (self._keys, self._values, self._boxes))

    def _grow(self, length: int) -> None:
        kept = self.keys, self.values, self.boxes
        self._keys, self._values, self._boxes = _empty_like(self._keys, self._values, length)
        for held, before in zip((self._keys, self._values, self._boxes), kept, strict=True):
            held[:, :, : before.shape[2]] = before

    def _box(self, start: int, end: int, key: Tensor) -> None:
        """Update the boxes of the pages that hold the keys from start to end."""
        if end - start == 1:
            box = self._boxes[:, :, start // PAGE]
            if start % PAGE == 0:
                box.copy_(key.expand(-1, -1, 2, -1))
            else:
                torch.minimum(box[:, :, 0], key[:, :, 0], out=box[:, :, 0])
                torch.maximum(box[:, :, 1], key[:, :, 0], out=box[:, :, 1])
        elif end > start:
            first = start // PAGE
            self._boxes[:, :, first : -(-end // PAGE)] = key_boxes(self._keys[:, :, first * PAGE : end])


def _empty_like(key: Tensor, value: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialized memory for `length` tokens, rounded up to whole pages."""
    pages = max(-(-length // PAGE), 1)
    keys, values = (t.new_empty(*t.shape[:2], pages * PAGE, t.shape[3]) for t in (key, value))
    return keys, values, key.new_empty(*key.shape[:2], pages, 2, key.shape[3])


def _check_same(new: Tensor, held: Tensor, name: str) -> None:
    """Refuse tokens whose batch, heads, channels, dtype or device differ from those of the cache."""
    if (new.shape[:2], new.shape[3]) != (held.shape[:2], held.shape[3]):
        expected = ", ".join(map(str, (*held.shape[:2], "tokens", held.shape[3])))
        raise ValueError(f"{name} must be ({expected}), as the cache holds; got {tuple(new.shape)}")
    if new.dtype != held.dtype or new.device != held.device:
        came = f"{new.dtype} on {new.device}"
        raise TypeError(f"{name} must be {held.dtype} on {held.device}, as the cache holds; got {came}")


def _check_tokens(key: Tensor, value: Tensor) -> None:
    _check.floating(key, "key")
    _check.floating(value, "value")
    if key.dim() != 4 or value.dim() != 4 or key.shape[:3] != value.shape[:3]:
        raise ValueError(
            "key and value must be (batch, heads, tokens, channels), of one batch, heads and tokens; got "
            f"{tuple(key.shape)} and {tuple(value.shape)}"
        )
    if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
        raise ValueError(
            "KeyValueCache and KeyValuePages do not track gradients: append under torch.no_grad(), or detach() first"
        )


@dataclass(frozen=True)
class KeyValuePages:
    """Keys and values of sequences of different lengths in pages of a pool, as servers of language models store them.

    Page n of sequence b is block table[b, n] of the pool; the sequence has lengths[b] tokens. Without `boxes` every
    page is read; `boxed()` computes them. `append` adds tokens to all sequences, whose pages must be in the table. It
    writes to the pool and updates boxes; `lengths` is a copy, so that the caller's tensor does not change.
    `cache_attention(query, pages)` is attention over the pages.

    Shapes:
        keys (blocks, heads, page, channels) and values (blocks, heads, page, value channels), where a page is 16, 32,
        64, 128 or 256 tokens; table (batch, pages) and lengths (batch,) integers; boxes (blocks, heads, 2, channels)

    Example:
        >>> pool = torch.randn(8, 2, 16, 4)
        >>> pages = KeyValuePages(pool, pool, torch.tensor([[3, 0], [5, 1]]), torch.tensor([20, 9])).boxed()
        >>> pages.append(torch.randn(2, 2, 1, 4), torch.randn(2, 2, 1, 4))
        >>> pages.lengths, pm.nn.cache_attention(torch.randn(2, 4, 1, 4), pages, mapping=pm.sparsemax).shape
        (tensor([21, 10]), torch.Size([2, 4, 1, 4]))
    """

    keys: Tensor
    values: Tensor
    table: Tensor
    lengths: Tensor
    boxes: Tensor | None = None

    def __post_init__(self) -> None:
        _check_tokens(self.keys, self.values)
        if self.keys.shape[2] not in (16, 32, 64, 128, 256):
            raise ValueError(f"keys must have pages of 16, 32, 64, 128 or 256 tokens; got {tuple(self.keys.shape)}")
        for name, t, dims in (("table", self.table, 2), ("lengths", self.lengths, 1)):
            if not isinstance(t, Tensor):
                raise TypeError(f"{name} must be a tensor; got {type(t).__name__}")
            if t.dtype not in (torch.int32, torch.int64) or t.dim() != dims or len(t) != len(self.table):
                shape = "(batch, pages)" if dims == 2 else "(batch,)"
                raise ValueError(f"{name} must be {shape} integers; got {t.dtype} {tuple(t.shape)}")
        expected = (*self.keys.shape[:2], 2, self.keys.shape[3])
        if self.boxes is not None and (self.boxes.shape != expected or self.boxes.dtype != self.keys.dtype):
            came = f"{self.boxes.dtype} {tuple(self.boxes.shape)}"
            raise ValueError(f"boxes must be {self.keys.dtype} {expected}; got {came}")
        self._check_room(0)
        # append changes this copy, not the caller's lengths
        object.__setattr__(self, "lengths", self.lengths.clone())

    def boxed(self) -> "KeyValuePages":
        """These pages with boxes, computed for all blocks of the pool."""
        boxes = torch.stack([self.keys.amin(2), self.keys.amax(2)], 2)
        return KeyValuePages(self.keys, self.values, self.table, self.lengths, boxes)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Append tokens to each sequence: key (batch, heads, tokens, channels), value likewise."""
        _check_tokens(key, value)
        for new, held, name in ((key, self.keys, "key"), (value, self.values, "value")):
            _check_same(new, held[:1].expand(len(self.table), -1, -1, -1), name)
        self._check_room(key.shape[2])
        for i in range(key.shape[2]):
            at, slot = self.lengths // self.keys.shape[2], self.lengths % self.keys.shape[2]
            block = self.table.gather(1, at[:, None].long())[:, 0].long()
            self.keys[block, :, slot.long()] = key[:, :, i]
            self.values[block, :, slot.long()] = value[:, :, i]
            if self.boxes is not None:
                low, high = self.boxes[block].unbind(2)
                new, first = key[:, :, i], (slot == 0)[:, None, None]
                low = torch.where(first, new, torch.minimum(low, new))
                high = torch.where(first, new, torch.maximum(high, new))
                self.boxes[block] = torch.stack([low, high], 2)
            self.lengths.add_(1)

    def _check_room(self, more: int) -> None:
        """Raise an error if the table has no pages for `more` tokens, provided that its values can be read."""
        if not (_check.readable(self.table) and _check.readable(self.lengths)):
            return
        blocks, page, pages = len(self.keys), self.keys.shape[2], self.table.shape[1]
        lengths = self.lengths + more
        if bool(((self.lengths < 0) | (lengths > page * pages)).any()):
            raise ValueError(
                f"lengths must be from 0 to {page * pages}, for {pages} pages of {page} tokens; got {lengths.tolist()}"
            )
        used = torch.arange(pages) * page < lengths[:, None]
        if bool((used & ((self.table < 0) | (self.table >= blocks))).any()):
            raise ValueError(
                f"table must have numbers of the {blocks} blocks of the pool, from 0 on, where sequences of "
                f"{lengths.tolist()} tokens have pages; got {self.table.tolist()}"
            )
