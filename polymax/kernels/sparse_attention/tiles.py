"""What a device notes between the passes of sparse attention: which tiles of scores are not empty.

Keys come in tiles of WIDTH, queries in blocks of HEIGHT. The plan of a head in a sequence is, in this order:

    tiles    (blocks, T)             the numbers of the tiles that hold support of a block, in order
    bounds   (blocks, 4)             how many these are: before those that all rows see whole, with them, in all; 0
    words    (ceil(T / 32), L)       for each row, a bit for each tile in which it may have support
"""

from typing import NamedTuple

from torch import Tensor

WIDTH = 64
HEIGHT = 64


class Layout(NamedTuple):
    """Sizes of a plan: blocks of queries, tiles of keys, words of bits, and integers for a head."""

    blocks: int
    tiles: int
    words: int
    size: int


def layout(longest_q: int, longest_k: int) -> Layout:
    """The plan of a head for as many queries and keys."""
    blocks, tiles = -(-longest_q // HEIGHT), -(-longest_k // WIDTH)
    words = -(-tiles // 32)
    return Layout(blocks, tiles, words, blocks * (tiles + 4) + words * longest_q)


def plan_size(q: Tensor, heads: int, longest_q: int, longest_k: int) -> int:
    """Integers in the plan of all heads of all sequences; devices without tiles need none."""
    return heads * layout(longest_q, longest_k).size if q.device.type == "cuda" else 0
