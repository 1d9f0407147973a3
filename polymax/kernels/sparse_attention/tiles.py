"""The record of nonempty tiles of scores that a device keeps between the passes of sparse attention.

Keys come in tiles of WIDTH, queries in blocks of HEIGHT. The plan of a head in a sequence is, in this order:

    tiles    (blocks, T)             the numbers of the tiles that hold support of a block, in order
    bounds   (blocks, 4)             how many these are: before those that all rows see whole, with them, in all; and
                                     1 if each row of the block has a list of the keys that can be in its support,
                                     DENSE if the head takes all tiles and has no plan, else 0
    words    (ceil(T / 32), L)       for each row, a bit for each tile in which it may have support
    counts   (L,)                    the lengths of lists

Lists are (rows, LONGEST) numbers of keys, in 16 bits if these suffice.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from polymax.kernels.sparse_attention.options import Options

WIDTH = 64
HEIGHT = 64
LONGEST = 128
DENSE = 2


class PlanSizes(NamedTuple):
    """Sizes of a plan: blocks of queries, tiles of keys, words of bits, and integers for a head."""

    blocks: int
    tiles: int
    words: int
    size: int


def layout(longest_q: int, longest_k: int) -> PlanSizes:
    """Return the plan's sizes for a head with so many queries and keys."""
    blocks, tiles = -(-longest_q // HEIGHT), -(-longest_k // WIDTH)
    words = -(-tiles // 32)
    return PlanSizes(blocks, tiles, words, blocks * (tiles + 4) + (words + 1) * longest_q)


def plan_numbers(heads: int, options: Options) -> int:
    """Return the number of integers in the plan of all heads of all sequences; short rows have none."""
    return 0 if options.short else heads * layout(options.longest_q, options.longest_k).size


def plan_size(q: Tensor, heads: int, options: Options) -> int:
    """Return the number of integers in the plan, 0 on devices without tiles."""
    return plan_numbers(heads, options) if q.device.type == "cuda" else 0


def lists_like(q: Tensor, options: Options) -> Tensor:
    """Return memory for the lists of all rows of q; empty for short rows, and on devices without tiles."""
    if q.device.type != "cuda" or options.short:
        return q.new_empty(0, dtype=torch.int16)
    dtype = torch.int16 if options.longest_k <= 1 << 16 else torch.int32
    return q.new_empty(q.shape[:-1].numel() * LONGEST, dtype=dtype)
