"""Best tags within a budget, by a plain recursion, and SparseMAP over them, proven."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import polymax as pm
from benchmarks.sparsemap.face import Face
from benchmarks.sparsemap.oracles import proposed, tag_score


def budget(n: int) -> int:
    """A tenth of the positions may have state 1."""
    return max(n // 10, 1)


def counted_tags(unary: Tensor, transition: Tensor, k: int) -> Tensor:
    """The best tags (batch, n) of which at most k are 1: values (batch, count, state), one position after the other."""
    batch, n, s = unary.shape
    none = unary.new_full((batch, 1, s), -torch.inf)
    first = torch.arange(s) == 1
    values = torch.full((batch, k + 1, s), -torch.inf, dtype=unary.dtype)
    values[:, 0] = torch.where(first, -torch.inf, unary[:, 0])
    values[:, 1] = torch.where(first, unary[:, 0], -torch.inf)
    came = []
    for t in range(1, n):
        best, before = (values[..., None] + transition).max(2)
        came.append(before)
        # a step to state 1 raises the count
        raised = torch.cat([none, best[:, :-1]], 1)
        values = torch.where(first, raised, best) + unary[:, t, None]
    at = values.flatten(1).argmax(1)
    count, tag = at // s, at % s
    tags = [tag]
    rows = torch.arange(batch)
    for before in reversed(came):
        count = count - (tag == 1).long()
        tag = before[rows, count, tag]
        tags.append(tag)
    return torch.stack(tags[::-1], 1)


def sparse_budget(unary: Tensor, transition: Tensor) -> Tensor:
    """The unary part of SparseMAP over tag sequences with state 1 in a tenth of the positions at most."""
    k = budget(unary.shape[1])

    def score(y: Tensor, x: Tensor) -> Tensor:
        return tag_score(x, transition, y.argmax(-1))

    def best(x: Tensor) -> Tensor:
        return one_hot(counted_tags(x, transition.detach(), k), x.shape[-1])

    return Face(score, best).mean(unary, *proposed(pm.BudgetChain(k), unary, transition))
