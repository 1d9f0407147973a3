"""The best tree by Edmonds' recursion: take every best arc; if they close a cycle, merge it and repeat."""

import math

import torch
from torch import Tensor

# the arcs into a node: from each node, the score and the original arc
Arcs = dict[int, dict[int, tuple[float, tuple[int, int]]]]


def arborescence(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    heads = torch.full((scores.shape[0], scores.shape[1] - 1), -1, dtype=torch.long, device="cpu")
    for b, n in enumerate(lengths.tolist()):
        own = scores[b, : n + 1, : n + 1]
        if bool(torch.isnan(own.detach().clone().fill_diagonal_(0)[:, 1:]).any()):
            heads[b, :n] = -2
            continue
        for head, modifier in _best(own.tolist(), single_root):
            heads[b, modifier - 1] = head
    return heads.to(scores.device)


def _best(scores: list[list[float]], single_root: bool) -> set[tuple[int, int]]:
    """Return the arcs of the best tree; an empty set if there is no tree."""
    tokens = range(1, len(scores))
    found: set[tuple[int, int]] = set()
    best = -math.inf
    # each token as the only one below the root symbol, or all tokens
    for roots in [{r} for r in tokens] if single_root else [set(tokens)]:
        arcs: Arcs = {
            m: {
                h: (scores[h][m], (h, m))
                for h in range(len(scores))
                if h != m and scores[h][m] > -math.inf and (h > 0 or m in roots)
            }
            for m in tokens
        }
        tree = _edmonds(arcs)
        total = math.fsum(scores[h][m] for h, m in tree)
        if len(tree) == len(tokens) and total > best:
            found, best = tree, total
    return found


def _edmonds(arcs: Arcs) -> set[tuple[int, int]]:
    """Return the original arcs of the best tree below node 0; an empty set if there is no tree."""
    if any(not into for into in arcs.values()):
        return set()
    best = {m: max(into, key=lambda h: into[h][0]) for m, into in arcs.items()}
    cycle = _cycle(best)
    if not cycle:
        return {arcs[m][h][1] for m, h in best.items()}
    whole = max(arcs) + 1
    merged: Arcs = {whole: {}}
    for m, into in arcs.items():
        target = whole if m in cycle else m
        for h, (score, arc) in into.items():
            source = whole if h in cycle else h
            gain = score - into[best[m]][0] if m in cycle else score
            kept = merged.setdefault(target, {})
            if source != target and (source not in kept or gain > kept[source][0]):
                kept[source] = gain, arc
    tree = _edmonds(merged)
    if not tree:
        return tree
    # the arc into the cycle breaks it at the node it enters
    tokens = {m: {a[1] for _, a in arcs[m].values()} for m in cycle}
    broken = next(m for m in cycle for arc in tree if arc[1] in tokens[m])
    return tree | {arcs[m][best[m]][1] for m in cycle if m != broken}


def _cycle(heads: dict[int, int]) -> list[int]:
    for start in heads:
        seen = []
        m = start
        while m in heads and m not in seen:
            seen.append(m)
            m = heads[m]
        if m in heads:
            return seen[seen.index(m) :]
    return []
