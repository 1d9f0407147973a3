"""Spanning trees drawn without replacement: tokens choose their heads one after the other, then their labels."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax.backend.cpu_arrays import memory
from polymax.distinct import Frontier, streams


def distinct_trees(
    tree: Any, x: Tensor, lengths: Tensor, labels: Tensor, k: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Heads and labels of k distinct trees (B, k, n, 2), -1 at padding, and a bool tensor (B, k), False for none.

    Tokens choose their heads one after the other, then their labels. The probabilities of a token's heads are the
    marginals of the SpanningTree `tree`, with other heads of the tokens before forbidden.

    Shapes: x (B, n + 1, n + 1), lengths (B,), labels (B, n + 1, n + 1, labels), log-probabilities of labels at arcs
    """
    _check.whole(k, "k")
    batch, n = len(x), x.shape[-1] - 1
    sizes, names = lengths.tolist(), memory(labels.cpu().double())
    found = torch.full((batch, k, n, 2), -1, device="cpu")
    there = torch.zeros(batch, k, dtype=torch.bool, device="cpu")
    frontiers = [Frontier(random, ()) for random in streams(batch, generator)]
    drawn = [0] * batch
    while True:
        opened = []
        for b, frontier in enumerate(frontiers):
            while drawn[b] < k and frontier:
                total, log, chosen = frontier.pop()
                size, m = sizes[b], len(chosen)
                if m < size:
                    opened.append((b, total, log, chosen))
                    break
                if m < 2 * size:
                    logs = names[b, chosen[m - size], m - size + 1]
                    (some,) = (logs > -np.inf).nonzero()
                    frontier.open(total, log, logs[some], [(*chosen, int(label)) for label in some])
                    continue
                found[b, drawn[b], :size] = torch.tensor(chosen, dtype=torch.long, device="cpu").reshape(2, size).T
                there[b, drawn[b]] = True
                drawn[b] += 1
        if not opened:
            return found.to(x.device), there.to(x.device)
        # the next token of one partial tree of each instance
        rows = torch.tensor([b for b, *_ in opened], device=x.device)
        allowed = np.ones((len(rows), n + 1, n + 1), bool)
        for own, (_, _, _, chosen) in zip(allowed, opened, strict=True):
            own[:, 1 : len(chosen) + 1] = False
            own[list(chosen), range(1, len(chosen) + 1)] = True
        left = torch.where(torch.from_numpy(allowed).to(x.device), x[rows], -torch.inf)
        arcs = tree.with_lengths(lengths[rows]).marginals(left).cpu().double()
        for (b, total, log, chosen), p in zip(opened, arcs, strict=True):
            # set rounding errors of impossible arcs to 0
            column = np.where(_possible(chosen, n, tree.single_root), memory(p[:, len(chosen) + 1]), 0)
            (some,) = (column > 0).nonzero()
            if len(some):
                logs = np.log(column[some] / column[some].sum())
                frontiers[b].open(total, log, logs, [(*chosen, int(h)) for h in some])


def _possible(chosen: tuple[int, ...], n: int, single_root: bool) -> np.ndarray:
    """True for the heads (n + 1,) that the next token can have without a cycle and without a second root."""
    token = len(chosen) + 1
    possible = np.ones(n + 1, bool)
    possible[0] = not (single_root and 0 in chosen)
    for head in range(1, n + 1):
        up = head
        while 0 < up <= len(chosen):
            up = chosen[up - 1]
        possible[head] = up != token
    return possible
