"""The sparsity of attention for each head: exact zeros, tiles without any weight, and the sizes of supports."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from polymax import _check
from polymax.backend.function import without_autocast
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.mappings import softmax
from polymax.nn.attention import attention_weights
from polymax.nn.attention_mapping import Mapping
from polymax.nn.attention_pattern import Pattern, pattern_of

# the number of weights in memory at once, over all heads, which sets the size of a block of query rows
AT_ONCE = 2**24
SUPPORTS = ("mean_support", "median_support", "max_support")
MEASURES = ("zeros", "empty_tiles", *SUPPORTS)


@dataclass(frozen=True, eq=False)
class AttentionStatistics:
    """The sparsity of the attention of each head, over all queries that may attend to a key.

    `zeros` is the share of exact zeros among the weights that masks allow. A tile has `tile` queries and `tile` keys;
    `empty_tiles` is the share of tiles without a weight above 0, among the tiles in which masks allow a weight. A
    support is the set of keys with a weight above 0.

    Shapes: all tensors (heads,), or () if the weights have no heads

    Example:
        >>> query, key = torch.eye(4).expand(2, 4, 4), 5 * torch.eye(4).expand(2, 4, 4)
        >>> pm.nn.attention_statistics(query, key, mapping=pm.sparsemax).mean_support
        tensor([1., 1.])
    """

    zeros: Tensor
    empty_tiles: Tensor
    mean_support: Tensor
    median_support: Tensor
    max_support: Tensor
    tile: int

    @classmethod
    def of_weights(
        cls, weights: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, *, tile: int = 64
    ) -> "AttentionStatistics":
        """The statistics of given weights; masks mark the weights that may be above 0.

        Shapes: weights (*batch, heads, L, S), or (L, S); attn_mask broadcasts to them

        Example:
            >>> weights = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
            >>> found = AttentionStatistics.of_weights(weights, is_causal=True, tile=2)
            >>> found.zeros, found.empty_tiles, found.max_support
            (tensor(0.3333), tensor(0.3333), tensor(2.))
        """
        _check.floating(weights, "weights")
        _check_sizes(weights.shape, "weights must be (*batch, heads, L, S) or (L, S), not empty", tile)
        if attn_mask is not None:
            _check.broadcasts(attn_mask, weights, "attn_mask")
        return _statistics(
            weights.shape,
            lambda rows: weights.detach()[..., rows, :],
            lambda rows: _block_mask(attn_mask, pattern_of(is_causal, None, 0), rows, weights),
            tile,
        )

    def __str__(self) -> str:
        """A table with a line for each head, and a line for all heads together.

        Example:
            >>> print(AttentionStatistics.of_weights(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])))
            head   zeros  empty 64 x 64 tiles  mean support  median  max
            0     25.0 %                0.0 %           1.5       1    2
            all   25.0 %                0.0 %           1.5       1    2
        """
        columns = [getattr(self, name).detach().float().cpu().reshape(-1) for name in MEASURES]
        zeros, tiles, mean, median, longest = columns
        rows = [*zip(map(str, range(len(zeros))), *(column.tolist() for column in columns))]
        total = (zeros.mean(), tiles.mean(), mean.mean(), median.median(), longest.max())
        rows.append(("all", *map(float, total)))
        tiled = f"empty {self.tile} x {self.tile} tiles"
        lines = [f"{'head':<5}{'zeros':>7}  {tiled}  mean support  median  max"]
        for head, *(zero, empty, average, middle, most) in rows:
            shares = f"{100 * zero:>5.1f} %  {100 * empty:>{len(tiled) - 2}.1f} %"
            lines.append(f"{head:<5}{shares}  {average:>12.1f}  {middle:>6.0f}  {most:>3.0f}")
        return "\n".join(lines)


@torch.no_grad()
def attention_statistics(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
    tile: int = 64,
) -> AttentionStatistics:
    """The sparsity of the weights of `scaled_dot_product_attention`, which takes the same arguments.

    Weights are computed for blocks of queries, in float32 or better: memory is linear in the length. The parameters of
    a mapping may differ between heads, and not between queries.

    Shapes: query (*batch, heads, L, E), or (L, E); key (*batch, heads, S, E); statistics (heads,)

    Example:
        >>> query, key = torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0], [3.5], [0.0]])
        >>> found = attention_statistics(query, key, mapping=pm.sparsemax)
        >>> found.zeros, found.mean_support
        (tensor(0.5000), tensor(1.5000))
    """
    _check.floating(query, "query")
    _check.floating(key, "key")
    if query.dim() < 2 or key.dim() < 2:
        shapes = f"{tuple(query.shape)} and {tuple(key.shape)}"
        raise ValueError(f"query and key must be (*batch, L, E) and (*batch, S, E); got {shapes}")
    batch = query.shape[:-2] if enable_gqa else torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    shape = torch.Size([*batch, query.shape[-2], key.shape[-2]])
    _check_sizes(shape, "query and key must give weights (*batch, heads, L, S), none of these 0", tile)
    if attn_mask is not None:
        _check.broadcasts(attn_mask, torch.empty(shape, device="meta"), "attn_mask")
    # not in half precision, which rounds small weights to 0
    exact = torch.promote_types(query.dtype, torch.float32)
    keys = key.to(exact)
    pattern = pattern_of(is_causal, window, causal_offset)

    def mask(rows: slice) -> Tensor | None:
        return _block_mask(attn_mask, pattern, rows, query.new_empty(()).expand(shape))

    def weights(rows: slice) -> Tensor:
        with without_autocast(query.device):
            block = query[..., rows, :].to(exact)
            seen = mask(rows)
            return attention_weights(
                block, keys, seen, False, scale, enable_gqa, mapping=mapping, softcap=softcap, sinks=sinks
            )

    return _statistics(shape, weights, mask, tile)


def _statistics(
    shape: torch.Size, weights: Callable[[slice], Tensor], mask: Callable[[slice], Tensor | None], tile: int
) -> AttentionStatistics:
    """Statistics of weights of the shape `shape`; `weights` and `mask` return them for a block of rows."""
    *batch, queries, keys = shape
    step = max(1, AT_ONCE // (shape.numel() // queries))
    supports: list[Tensor] = []
    allowed: list[Tensor] = []
    # of each tile: weights above 0, and those that masks allow
    used = possible = torch.zeros(0)
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        found, kept = weights(rows), mask(rows)
        if kept is None:
            kept = torch.ones(1, keys, dtype=torch.bool, device=found.device)
        kept = kept if kept.dtype == torch.bool else kept > -torch.inf
        positive, kept = _tile_counts(found != 0, tile), _tile_counts(kept.expand(*kept.shape[:-1], keys), tile)
        kept = kept.expand(positive.shape)
        supports.append(positive.sum(-1))
        allowed.append(kept.sum(-1))
        if start == 0:
            used, possible = (kept.new_zeros(*batch, -(-queries // tile), kept.shape[-1]) for _ in range(2))
        places = torch.arange(rows.start, rows.stop, device=found.device) // tile
        used.index_add_(-2, places, positive)
        possible.index_add_(-2, places, kept)
    sizes, kept = _by_head(torch.cat(supports, -1), 1), _by_head(torch.cat(allowed, -1), 1)
    tiles, within = _by_head(used, 2), _by_head(possible, 2) > 0
    there = kept > 0
    values = {
        "zeros": 1 - sizes.sum(-1) / kept.sum(-1),
        "empty_tiles": 1 - ((tiles > 0) & within).sum(-1) / within.sum(-1),
        "mean_support": (sizes * there).sum(-1) / there.sum(-1),
        "median_support": torch.where(there, sizes.float(), torch.nan).nanmedian(-1).values,
        "max_support": (sizes * there).amax(-1).float(),
    }
    heads = torch.Size(batch[-1:])
    return AttentionStatistics(**{name: value.reshape(heads) for name, value in values.items()}, tile=tile)


def _tile_counts(positive: Tensor, tile: int) -> Tensor:
    """The number of True keys in each tile, (*batch, rows, tiles), of `positive` (*batch, rows, S)."""
    return pad(positive, (0, -positive.shape[-1] % tile)).unflatten(-1, (-1, tile)).sum(-1)


def _by_head(counts: Tensor, own: int) -> Tensor:
    """Counts (heads, all others); the last `own` dims are not batch dims. Without batch dims there is one head."""
    counts = counts if counts.dim() > own else counts.unsqueeze(0)
    return counts.movedim(-own - 1, 0).flatten(1)


def _block_mask(attn_mask: Tensor | None, pattern: Pattern, rows: slice, weights: Tensor) -> Tensor | None:
    """The mask of a block of rows of weights, bool or float (added); None if all keys are visible."""
    mask = attn_mask
    if mask is not None and mask.dim() > 1 and mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    if pattern.sees_all():
        return mask
    left, right, offset = pattern
    count, keys = rows.stop - rows.start, weights.shape[-1]
    sees = allowed(count, keys, None, None, left, right, offset + rows.start, weights.device)
    if mask is None:
        return sees
    return mask & sees if mask.dtype == torch.bool else mask.masked_fill(~sees, -torch.inf)


def _check_sizes(shape: torch.Size, expected: str, tile: int) -> None:
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"{expected}; got {tuple(shape)}")
    _check.whole(tile, "tile")
