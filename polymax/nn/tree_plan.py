"""The order in which the nodes of many trees are composed: all nodes of one depth at once, the deepest first.

The children of nodes of depth D are the nodes of depth D + 1, each of them once. So a level needs the block of states
that the level below it left, and nothing else, and moving states around costs no more than there are nodes. Plans are
made on the CPU, where the sizes of levels are read; for trees that are known ahead that is the work of a data loader.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax.nn.shift_reduce import REDUCE, SHIFT, check_transitions, children, node_depths
from polymax.structures.tree_faults import check_heads

_NONE = np.zeros(0, np.int64)


class Level(NamedTuple):
    """Nodes of one depth: how many are composed, how many are tokens, and how many children they have together."""

    composed: int
    tokens: int
    children: int


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Levels of `count` trees, deepest first, and where their nodes come from and go to.

    Shapes:
        links (e,)          for each level in turn, how it is tied to the block of states that the level below it left.
                            Binary trees: (composed, 2), places in that block of the children of each node; composed
                            nodes come before tokens in a block. Dependency trees: the parents in this level of all
                            nodes of that block, ascending
        starts (s,)         of dependency trees: for each level in turn, where the children of each node begin
        used (u,)           places in tokens (B n,), flattened, of all tokens that are in some tree
        tokens (k,)         places in used of the tokens of all trees, as levels take them
        roots (count, m)    places in the last block of the nodes without a parent, its size where there is none
        nodes (count, T)    places in all blocks, one after the other, of all nodes, their number at padding
    """

    levels: tuple[Level, ...]
    links: Tensor
    starts: Tensor
    used: Tensor
    tokens: Tensor
    roots: Tensor
    nodes: Tensor

    def to(self, device: torch.device | str) -> Self:
        """A copy on a device."""
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "levels"}
        return type(self)(self.levels, **moved)

    def tied(self) -> tuple[Tensor, ...]:
        """The links of each level."""
        return self.links.split([level.children for level in self.levels])

    def begun(self) -> tuple[Tensor, ...]:
        """The starts of each level."""
        return self.starts.split([level.composed for level in self.levels])


def binary_plan(transitions: Tensor, n: int, at: Tensor | None = None) -> TreePlan:
    """The plan of trees given by transitions (count, T), over tokens (B, n).

    Tree c belongs to instance at[c] of the batch; without `at` to instance c.

    Example:
        >>> plan = binary_plan(torch.tensor([[0, 0, 1], [0, -1, -1]]), 2)
        >>> plan.levels
        (Level(composed=0, tokens=2, children=0), Level(composed=1, tokens=1, children=2))
    """
    steps = check_transitions(transitions.cpu())
    if steps.dim() != 2:
        raise ValueError(f"transitions must be (count, T); got {tuple(steps.shape)}")
    shifts = steps == SHIFT
    _refuse_long(shifts.sum(-1), n)
    depth = node_depths(steps)
    composed = (steps == REDUCE).flatten()
    offsets = torch.arange(steps.shape[0]).unsqueeze(-1) * steps.shape[1]
    pair = torch.stack([child + offsets for child in children(steps)], -1).flatten(0, 1)
    token = _instances(at, steps.shape[0]).unsqueeze(-1) * n + shifts.cumsum(-1) - 1
    level, inner, child = depth.flatten().numpy(), composed.numpy(), pair.numpy()
    real = level >= 0
    count = int(level.max()) + 1 if level.size else 0
    # levels one after the other, the deepest first, and within a level the composed nodes first
    key = np.where(real, 2 * (count - level) + ~inner, 2 * count + 3)
    order = key.argsort(kind="stable")[: real.sum()]
    sizes = np.bincount(level[real], minlength=count)
    made = np.bincount(level[real & inner], minlength=count)
    # where the blocks begin; that of the deepest level is the first
    begin = sizes[::-1].cumsum()[::-1] - sizes
    place = np.zeros_like(level)
    place[order] = np.arange(order.size)
    parents = order[inner[order]]
    links = place[child[parents]] - begin[level[parents] + 1, None] if parents.size else _NONE
    levels = [Level(m, size - m, 2 * m) for m, size in zip(made.tolist(), sizes.tolist(), strict=True)]
    return _plan(levels[::-1], (links.ravel(), _NONE), (order, order[~inner[order]]), token.flatten(), steps.shape)


def heads_plan(heads: Tensor, at: Tensor | None = None) -> TreePlan:
    """The plan of dependency trees given by heads (count, n), 0 the root symbol, -1 at padding, over tokens (B, n).

    Tree c belongs to instance at[c] of the batch; without `at` to instance c. Several tokens may hang from the root.

    Example:
        >>> plan = heads_plan(torch.tensor([[2, 0, 2], [0, 1, -1]]))
        >>> [parents.tolist() for parents in plan.tied()]  # two children of the first root, one of the second
        [[], [0, 0, 1]]
    """
    if heads.dim() != 2:
        raise ValueError(f"heads must be (count, n); got {tuple(heads.shape)}")
    heads = heads.cpu().long()
    count, n = heads.shape
    shape_only = torch.zeros(()).expand(count, n + 1, n + 1)
    check_heads(heads, shape_only, (heads >= 0).sum(-1), single_root=False)
    up = torch.nn.functional.pad(heads.clamp(min=0), (1, 0))
    depth = (torch.arange(n + 1) > 0).long().expand(count, n + 1)
    # each round doubles the steps towards the root
    for _ in range(n.bit_length()):
        depth = depth + depth.gather(-1, up)
        up = up.gather(-1, up)
    depth = torch.where(heads < 0, -1, depth[:, 1:] - 1).flatten()
    above = (heads - 1 + torch.arange(count).unsqueeze(-1) * n).flatten().numpy()
    token = (_instances(at, count).unsqueeze(-1) * n + torch.arange(n)).flatten()
    level = depth.numpy()
    sizes = np.bincount(level[level >= 0]).tolist()
    order = level.argsort(kind="stable")[level.size - sum(sizes) :]
    place = np.zeros_like(level)
    blocks: list[np.ndarray] = []
    links, starts, done = [_NONE], [_NONE], 0
    for size in sizes:
        nodes = order[done : done + size]
        if blocks:
            # children stand as their parents do
            parents = place[above[nodes]]
            nodes = nodes[parents.argsort(kind="stable")]
            links.append(place[above[nodes]])
            starts.append(np.searchsorted(links[-1], np.arange(blocks[-1].size)))
        place[nodes] = np.arange(size)
        blocks.append(nodes)
        done += size
    starts.append(np.zeros(sizes[-1] if sizes else 0, np.int64))
    levels = [Level(size, 0, below) for size, below in zip(sizes, [*sizes[1:], 0])]
    order = np.concatenate([*blocks[::-1], _NONE])
    tables = np.concatenate(links[::-1]), np.concatenate(starts[::-1])
    return _plan(levels[::-1], tables, (order, order), token, heads.shape)


def _plan(
    levels: list[Level],
    tables: tuple[np.ndarray, np.ndarray],
    nodes: tuple[np.ndarray, np.ndarray],
    token: Tensor,
    shape: torch.Size,
) -> TreePlan:
    """A plan from links and starts, and from the nodes of all blocks and those of them that take a token."""
    order, taken = nodes
    place = np.full(shape.numel(), order.size)
    place[order] = np.arange(order.size)
    used, tokens = token[torch.from_numpy(taken)].unique(return_inverse=True)
    last = levels[-1].composed + levels[-1].tokens if levels else 0
    top = torch.from_numpy(order[order.size - last :])
    roots = _rows(torch.arange(last), top // max(shape[1], 1), shape[0])
    return TreePlan(
        tuple(levels),
        torch.from_numpy(tables[0]),
        torch.from_numpy(tables[1]),
        used,
        tokens,
        torch.where(roots < 0, last, roots),
        torch.from_numpy(place).reshape(shape),
    )


def _rows(values: Tensor, row: Tensor, count: int) -> Tensor:
    """Values (k,) put into rows (count, most), in their order, -1 where a row has fewer."""
    sizes = torch.bincount(row, minlength=count)
    order = row.argsort(stable=True)
    column = torch.arange(row.numel()) - (sizes.cumsum(0) - sizes)[row[order]]
    out = torch.full((count, int(sizes.max()) if count else 0), -1, dtype=torch.long)
    out[row[order], column] = values[order]
    return out


def _instances(at: Tensor | None, count: int) -> Tensor:
    if at is None:
        return torch.arange(count)
    if not isinstance(at, Tensor) or at.is_floating_point() or at.shape != (count,):
        came = tuple(at.shape) if isinstance(at, Tensor) else type(at).__name__
        raise ValueError(f"at must be integers ({count},), the instance of each tree; got {came}")
    return at.cpu().long()


def _refuse_long(lengths: Tensor, n: int) -> None:
    if lengths.numel() and int(lengths.max()) > n:
        c = int((lengths > n).nonzero()[0])
        raise ValueError(f"transitions of instance ({c},) shift {int(lengths[c])} tokens, of which there are {n}")


def fits(plan: TreePlan, tokens: Tensor, at: Tensor | None) -> None:
    """Tokens (B, n, dim) have what the plan takes from them."""
    if tokens.dim() != 3:
        raise ValueError(f"tokens must be (B, n, dim); got {tuple(tokens.shape)}")
    if at is not None:
        raise ValueError("at is part of a plan; give it to the function that makes the plan")
    places = tokens.shape[0] * tokens.shape[1]
    if _check.readable(plan.used) and plan.used.numel() and int(plan.used[-1]) >= places:
        raise ValueError(f"tokens must have place {int(plan.used[-1])} of the plan; got {tuple(tokens.shape)}")
