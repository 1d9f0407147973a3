"""Sets that are written outside the library, as a user would write them: those of docs/adding.md, and a hard one."""

import math
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import polymax as pm
from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.structures.base import checked_lengths

_PAGE = (Path(__file__).parents[1] / "docs" / "adding.md").read_text(encoding="utf-8")


def documented(name):
    """The class of this name, as docs/adding.md defines it."""
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL) if f"class {name}(" in b)
    # the definition alone, without what the page does with it
    lines = block.split("\n")
    start = next(k for k, line in enumerate(lines) if line.startswith(f"class {name}("))
    stop = next((k for k, line in enumerate(lines) if k > start and line[:1].strip()), len(lines))
    # a module, for torch.compile and pickle look names up there
    module = sys.modules[f"documented_{name.lower()}"] = types.ModuleType(f"documented_{name.lower()}")
    module.__dict__.update(torch=torch, pm=pm)
    exec(compile("\n".join(lines[:stop]), f"docs/adding.md:{name}", "exec"), module.__dict__)
    return getattr(module, name)


@dataclass(frozen=True, eq=False)
class Hops(pm.DynamicProgram):
    """Positions that are visited by hops of one or two, the last of them n - 1 or n - 2; parts are [position, hop - 1].

    The root chooses the end by hyperedges without a part, and one of the two nodes below is below a hop, too. Each
    length has a root, hops beyond it are dead, and a dead hyperedge has the part of another one.

    Shapes: scores (*batch, n, 2); lengths (*batch,)
    """

    lengths: Tensor | None = None
    may_be_empty = False

    def derivations(self, *scores: Tensor) -> Derivations:
        (x,) = scores
        if x.dim() < 2 or x.shape[-1] != 2:
            raise ValueError(f"scores must be (*batch, n, 2); got {tuple(x.shape)}")
        *batch, n, _ = x.shape
        rows = x.reshape(math.prod(batch), 2 * n)
        lengths = checked_lengths(self.lengths, torch.Size(batch), n, x.device, "lengths")
        roots = torch.where(lengths > 0, n + 1 + lengths, -1)

        def shaped(mu: Tensor) -> Tensor:
            return mu.reshape(*mu.shape[:-2], *batch, n, 2)

        return Derivations(rows, _hops.beside(rows, n), roots, torch.Size(batch), shaped)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        n, _ = event_shape
        found = [] if n else [torch.zeros(0, 2)]

        def hop(y: Tensor, at: int) -> None:
            if max(n - 2, 0) <= at < n:
                found.append(y)
            for steps in (1, 2):
                if at + steps < n:
                    further = y.clone()
                    further[at + steps, steps - 1] = 1
                    hop(further, at + steps)

        hop(torch.zeros(n, 2), -1)
        return torch.stack(found)


@Family
def _hops(n: int) -> Graph:
    """Node t + 1 is position t, node 0 the start; node n + 1 + t is the root of instances of length t > 0."""
    builder = Builder(parts=2 * n)
    node = np.arange(1, n + 1)
    for steps in (1, 2):
        kept = node[node >= steps]
        builder.add(kept, 2 * (kept - 1) + steps - 1, kept - steps)
    builder.add(node[-1:] + 1, 2 * (node[-1:] - 1), node[-1:])
    for end in (node, node[1:] - 1):
        builder.add(n + 1 + node[-len(end) :] if len(end) else end, -1, end)
    return builder.build(2 * n + 2)
