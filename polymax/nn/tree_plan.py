"""The order in which the nodes of many trees are composed: all nodes of one depth at once, the deepest first.

The children of the nodes of depth D are the nodes of depth D + 1, each of them once. So a level needs only the block of
states of the level below it, and the cost of moving states is linear in the number of nodes. Plans are made on the CPU,
where the sizes of levels are read. For trees that are known in advance, a data loader can make the plans.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax.backend.cpu_arrays import memory
from polymax.nn.shift_reduce import SHIFT, check_transitions
from polymax.structures.compact.tree_faults import check_heads

_NONE = np.zeros(0, np.int64)


class Level(NamedTuple):
    """Nodes of one depth: the numbers of composed nodes, of tokens, and of all children."""

    composed: int
    tokens: int
    children: int


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Levels of `count` trees, deepest first, and the tables that connect their nodes.

    Shapes:
        links (e,)          for each level in turn, its links to the block of states of the level below it.
                            Binary trees: (composed, 2), places in that block of the children of each node; composed
                            nodes come before tokens in a block. Dependency trees: the parents in this level of all
                            nodes of that block, ascending
        starts (s,)         of dependency trees: for each level in turn, where the children of each node begin
        used (u,)           places in tokens (B n,), flattened, of all tokens that are in some tree
        tokens (k,)         places in used of the tokens of all trees, as levels take them
        roots (count, m)    places in the last block of the nodes without a parent, its size if there is none
        nodes (count, T)    places in all blocks, one after the other, of all nodes, their number at padding

    Example:
        >>> len(pm.nn.heads_plan(torch.tensor([[2, 0, 2]])).levels)
        2
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

    def links_by_level(self) -> tuple[Tensor, ...]:
        """The links of each level."""
        return self.links.split([level.children for level in self.levels])

    def starts_by_level(self) -> tuple[Tensor, ...]:
        """The starts of each level."""
        return self.starts.split([level.composed for level in self.levels])


def binary_plan(transitions: Tensor, n: int, at: Tensor | None = None) -> TreePlan:
    """The plan of trees given by transitions (count, T), over tokens (B, n).

    Tree c belongs to instance at[c] of the batch, or, without `at`, to instance c.

    Example:
        >>> plan = binary_plan(torch.tensor([[0, 0, 1], [0, -1, -1]]), 2)
        >>> plan.levels
        (Level(composed=0, tokens=2, children=0), Level(composed=1, tokens=1, children=2))
    """
    # imported here: a compiled file, which `import polymax` does not need
    from polymax.nn.tree_levels import binary_levels

    steps = check_transitions(transitions.cpu()).contiguous()
    if steps.dim() != 2:
        raise ValueError(f"transitions must be (count, T); got {tuple(steps.shape)}")
    _refuse_long((steps == SHIFT).sum(-1), n)
    sizes, made, nodes, links, token = binary_levels(memory(steps))
    levels = [Level(m, size - m, 2 * m) for m, size in zip(made.tolist(), sizes.tolist(), strict=True)]
    tokens = nodes[memory(steps).ravel()[nodes] == SHIFT]
    instances = memory(_instances(at, steps.shape[0]))
    taken = instances[tokens // max(steps.shape[1], 1)] * n + token[tokens]
    return _plan(levels, (links, _NONE), nodes, taken, steps.shape)


def heads_plan(heads: Tensor, at: Tensor | None = None) -> TreePlan:
    """The plan of dependency trees given by heads (count, n), 0 the root symbol, -1 at padding, over tokens (B, n).

    Tree c belongs to instance at[c] of the batch; without `at` to instance c. Several tokens may hang from the root.

    Example:
        >>> plan = heads_plan(torch.tensor([[2, 0, 2], [0, 1, -1]]))
        >>> [parents.tolist() for parents in plan.links_by_level()]  # two children of the first root, one of the second
        [[], [0, 0, 1]]
    """
    from polymax.nn.tree_levels import heads_levels

    if heads.dim() != 2:
        raise ValueError(f"heads must be (count, n); got {tuple(heads.shape)}")
    heads = heads.cpu().long().contiguous()
    count, n = heads.shape
    shape_only = torch.zeros((), device="cpu").expand(count, n + 1, n + 1)
    check_heads(heads, shape_only, (heads >= 0).sum(-1), single_root=False)
    sizes, nodes, links, starts = heads_levels(memory(heads))
    below = [0, *sizes.tolist()]
    levels = [Level(size, 0, children) for size, children in zip(sizes.tolist(), below)]
    taken = memory(_instances(at, count))[nodes // max(n, 1)] * n + nodes % max(n, 1)
    return _plan(levels, (links, starts), nodes, taken, heads.shape)


def _plan(
    levels: list[Level], tables: tuple[np.ndarray, np.ndarray], nodes: np.ndarray, taken: np.ndarray, shape: torch.Size
) -> TreePlan:
    """A plan from links and starts, the nodes of all blocks, and the tokens that are taken, in this order."""
    from polymax.nn.tree_levels import distinct_places

    place = np.full(shape.numel(), nodes.size)
    place[nodes] = np.arange(nodes.size)
    used, tokens = distinct_places(taken)
    last = levels[-1].composed + levels[-1].tokens if levels else 0
    top = torch.from_numpy(nodes[nodes.size - last :])
    roots = _rows(torch.arange(last, device="cpu"), top // max(shape[1], 1), shape[0])
    return TreePlan(
        tuple(levels),
        torch.from_numpy(tables[0]),
        torch.from_numpy(tables[1]),
        torch.from_numpy(used),
        torch.from_numpy(tokens),
        torch.where(roots < 0, last, roots),
        torch.from_numpy(place).reshape(shape),
    )


def _rows(values: Tensor, row: Tensor, count: int) -> Tensor:
    """Values (k,) put into rows (count, most), in their order; -1 at the end of shorter rows."""
    sizes = torch.bincount(row, minlength=count)
    order = row.argsort(stable=True)
    column = torch.arange(row.numel(), device="cpu") - (sizes.cumsum(0) - sizes)[row[order]]
    out = torch.full((count, int(sizes.max()) if count else 0), -1, dtype=torch.long, device="cpu")
    out[row[order], column] = values[order]
    return out


def _instances(at: Tensor | None, count: int) -> Tensor:
    if at is None:
        return torch.arange(count, device="cpu")
    if not isinstance(at, Tensor) or at.is_floating_point() or at.shape != (count,):
        raise ValueError(f"at must be integers ({count},), the instance of each tree; got {_check.shape(at)}")
    return at.cpu().long()


def _refuse_long(lengths: Tensor, n: int) -> None:
    if lengths.numel() and int(lengths.max()) > n:
        c = int((lengths > n).nonzero()[0])
        raise ValueError(f"transitions of instance ({c},) shift {int(lengths[c])} tokens, of which there are {n}")


def fits(plan: TreePlan, tokens: Tensor, at: Tensor | None) -> None:
    """Refuse tokens (B, n, dim) that do not fit the plan, and `at`, which is part of the plan."""
    if tokens.dim() != 3:
        raise ValueError(f"tokens must be (B, n, dim); got {tuple(tokens.shape)}")
    if at is not None:
        raise ValueError("at is part of a plan; give it to the function that makes the plan")
    places = tokens.shape[0] * tokens.shape[1]
    if _check.readable(plan.used) and plan.used.numel() and int(plan.used[-1]) >= places:
        raise ValueError(f"tokens must have place {int(plan.used[-1])} of the plan; got {tuple(tokens.shape)}")
