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


class Level(NamedTuple):
    """Nodes of one depth: how many are composed, how many are tokens, and the most children that one has."""

    composed: int
    tokens: int
    most: int


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Levels of `count` trees, deepest first, and where their nodes come from and go to.

    Shapes:
        children (e,)       for each level in turn, (composed, most): places in the block of states that the level below
                            it left, its size where there is no child; composed nodes come before tokens in a block
        used (u,)           places in tokens (B n,), flattened, of all tokens that are in some tree
        tokens (k,)         places in used of the tokens of all trees, as levels take them
        roots (count, m)    places in the last block of the nodes without a parent, its size where there is none
        nodes (count, T)    places in all blocks, one after the other, of all nodes, their number at padding
    """

    levels: tuple[Level, ...]
    children: Tensor
    used: Tensor
    tokens: Tensor
    roots: Tensor
    nodes: Tensor

    def to(self, device: torch.device | str) -> Self:
        """A copy on a device."""
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "levels"}
        return type(self)(self.levels, **moved)

    def pairs(self) -> tuple[Tensor, ...]:
        """The children of each level."""
        return self.children.split([level.composed * level.most for level in self.levels])


def binary_plan(transitions: Tensor, n: int, at: Tensor | None = None) -> TreePlan:
    """The plan of trees given by transitions (count, T), over tokens (B, n).

    Tree c belongs to instance at[c] of the batch; without `at` to instance c.

    Example:
        >>> plan = binary_plan(torch.tensor([[0, 0, 1], [0, -1, -1]]), 2)
        >>> plan.levels
        (Level(composed=0, tokens=2, most=0), Level(composed=1, tokens=1, most=2))
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
    return _plan(depth.flatten(), composed, pair, token.flatten(), steps.shape)


def heads_plan(heads: Tensor, at: Tensor | None = None) -> TreePlan:
    """The plan of dependency trees given by heads (count, n), 0 the root symbol, -1 at padding, over tokens (B, n).

    Tree c belongs to instance at[c] of the batch; without `at` to instance c. Several tokens may hang from the root.

    Example:
        >>> plan = heads_plan(torch.tensor([[2, 0, 2], [0, 1, -1]]))
        >>> [children.tolist() for children in plan.pairs()]  # the second root has one child, and 3 stands for none
        [[], [0, 1, 2, 3]]
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
    inner = (heads > 0).flatten()
    above = (heads - 1 + torch.arange(count).unsqueeze(-1) * n).flatten()
    token = _instances(at, count).unsqueeze(-1) * n + torch.arange(n)
    below = _rows(torch.arange(count * n)[inner], above[inner], count * n)
    return _plan(depth, depth >= 0, below, token.flatten(), heads.shape)


def _plan(depth: Tensor, composed: Tensor, below: Tensor, token: Tensor, shape: torch.Size) -> TreePlan:
    """A plan from the depths of nodes (N,), -1 for none, and their children (N, most), -1 for none.

    Nodes that are not composed are tokens; where all are composed, each takes its token as input.
    """
    level, inner, child = depth.numpy(), composed.numpy(), below.numpy()
    real = level >= 0
    count = int(level.max()) + 1 if level.size else 0
    # levels one after the other, the deepest first, and within a level the composed nodes first
    key = np.where(real, 2 * (count - level) + ~inner, 2 * count + 3)
    order = key.argsort(kind="stable")[: real.sum()]
    # a level more, which is empty, for the children of the deepest
    sizes = np.bincount(level[real], minlength=count + 1)
    begin = sizes[::-1].cumsum()[::-1] - sizes
    place = np.full(level.shape, order.size)
    place[order] = np.arange(order.size)
    under = level[order] + 1
    kids = child[order]
    have = (kids >= 0).sum(-1)
    kids = np.where(kids < 0, sizes[under][:, None], place[kids] - begin[under][:, None])
    levels, tables = [], [np.zeros(0, np.int64)]
    for d, made in reversed(list(enumerate(np.bincount(level[real & inner], minlength=count).tolist()))):
        rows = slice(int(begin[d]), int(begin[d]) + made)
        most = int(have[rows].max()) if made else 0
        levels.append(Level(made, int(sizes[d]) - made, most))
        tables.append(kids[rows, :most].ravel())
    taken = order if inner[order].all() else order[~inner[order]]
    used, tokens = token[torch.from_numpy(taken)].unique(return_inverse=True)
    top = np.flatnonzero(level == 0)
    last = int(sizes[0])
    roots = _rows(torch.from_numpy(place[top] - begin[0]), torch.from_numpy(top // max(shape[1], 1)), shape[0])
    return TreePlan(
        tuple(levels),
        torch.from_numpy(np.concatenate(tables)),
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
