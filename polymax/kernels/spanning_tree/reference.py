"""Sums over trees by elimination in torch, differentiated by autograd: their specification. Samples and best trees by
enumeration.

See: Grassmann, Taksar and Heyman 1985, Regenerative analysis and steady state distributions for Markov chains.
"""

import itertools

import torch
from torch import Tensor

from polymax.kernels.spanning_tree import chart_like


def recorded(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Return the value on autograd's tape."""
    batch, size = scores.shape[:2]
    each = torch.arange(batch, device=scores.device)
    tokens = torch.arange(size, device=scores.device)
    # heads and modifiers that are left; absent arcs get the finite placeholder 0, which is masked
    left = tokens <= lengths[:, None]
    present = left[:, :, None] & left[:, None] & (tokens[:, None] != tokens) & (tokens > 0) & (scores != -torch.inf)
    x = torch.where(present, scores.double(), 0)
    # starts at 0, as a function of the scores, so that autograd works without tokens
    value = x[:, :, :0].sum((1, 2))
    for step in range(size - 1):
        count = left.sum(1) - 1
        heads = left[:, :, None] & present
        if single_root:
            heads = heads & ((tokens > 0)[:, None] | (count == 1)[:, None, None])
        with torch.no_grad():
            sums = torch.where(heads, x, -torch.inf).logsumexp(1)
            k = torch.where(left & (tokens > 0), sums, -torch.inf).nan_to_num(torch.inf).argmax(1)
            k = torch.where((count > 0) & ~left[each, k], lengths - step, k)
        into, out = x[each, :, k], x[each, k]
        p = _log_sum(into, heads[each, :, k])
        value = value + torch.where(count > 0, p, 0)
        left = left & ((tokens != k[:, None]) | (count <= 0)[:, None])
        through = present[each, :, k][:, :, None] & present[each, k][:, None] & (tokens[:, None] != tokens)
        through = through & (p > -torch.inf)[:, None, None] & left[:, :, None] & left[:, None]
        ways = into[:, :, None] + out[:, None] - torch.where(p > -torch.inf, p, 0)[:, None, None]
        both = torch.stack([torch.where(present, x, 0), torch.where(through, ways, 0)]).logsumexp(0)
        x = torch.where(through, torch.where(present, both, ways), x)
        present = present | through
    return value.to(scores.dtype)


def _log_sum(x: Tensor, present: Tensor) -> Tensor:
    """Return the log of the sum of exp(x) over entries that are present, (B,)."""
    some = present.any(1)
    kept = torch.where(present, x, -torch.inf)
    total = torch.where(some[:, None], kept, 0).logsumexp(1)
    return torch.where(some, total, -torch.inf)


def spanning_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    return recorded(scores.detach(), lengths, single_root), chart_like(scores).zero_()


def spanning_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool) -> Tensor:
    with torch.enable_grad():
        x = scores.detach().double().requires_grad_()
        return _expectation(x, lengths, g, single_root).detach().to(scores.dtype)


def spanning_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x, weights = scores.detach().double().requires_grad_(), g.detach().double().requires_grad_()
        mu = _expectation(x, lengths, weights, single_root)
        slope = torch.where(mu == 0, 0, mu * d).sum() + weights[:0].sum()
        dvalue, dmu = torch.autograd.grad(slope, (weights, x), allow_unused=True, materialize_grads=True)
    return dvalue.to(scores.dtype), dmu.to(scores.dtype)


def _expectation(x: Tensor, lengths: Tensor, g: Tensor, single_root: bool) -> Tensor:
    value = recorded(x, lengths, single_root)
    total = (g.double() * torch.where(value == -torch.inf, 0, value)).sum()
    (mu,) = torch.autograd.grad(total, x, create_graph=True)
    return mu


def spanning_tree_sample(scores: Tensor, lengths: Tensor, seeds: Tensor, single_root: bool) -> Tensor:
    heads = torch.full((*seeds.shape, scores.shape[1] - 1), -1, dtype=torch.long, device="cpu")
    for b, n in enumerate(lengths.tolist()):
        values, trees = _listed(scores[b], n, single_root)
        if not trees or n == 0:
            continue
        for s in range(seeds.shape[1]):
            generator = torch.Generator().manual_seed(int(seeds[b, s]) % 2**63)
            chosen = int(torch.multinomial(values.softmax(0), 1, generator=generator))
            heads[b, s, :n] = torch.tensor(trees[chosen], device="cpu")
    return heads.to(scores.device)


def spanning_tree_kbest(scores: Tensor, lengths: Tensor, k: int, single_root: bool) -> tuple[Tensor, Tensor]:
    batch, size = scores.shape[:2]
    values = scores.new_full((batch, k), -torch.inf)
    heads = torch.full((batch, k, size - 1), -1, dtype=torch.long, device="cpu")
    for b, n in enumerate(lengths.tolist()):
        listed, trees = _listed(scores[b], n, single_root)
        best = torch.sort(listed, descending=True, stable=True).indices[:k].tolist()
        for place, chosen in enumerate(best):
            values[b, place] = listed[chosen]
            heads[b, place, :n] = torch.tensor(trees[chosen], dtype=torch.long, device="cpu")
    return values, heads.to(scores.device)


def _listed(scores: Tensor, n: int, single_root: bool) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Return all trees without a forbidden arc: their scores, in float64, and heads."""
    x = scores.double().tolist()
    options = [[h for h in range(n + 1) if h != m and x[h][m] > -torch.inf] for m in range(1, n + 1)]
    trees = [heads for heads in itertools.product(*options) if _is_tree(heads, single_root)]
    values = [sum(x[h][m] for m, h in enumerate(heads, 1)) for heads in trees]
    return torch.tensor(values, dtype=torch.float64, device="cpu"), trees


def _is_tree(heads: tuple[int, ...], single_root: bool) -> bool:
    if single_root and heads and heads.count(0) != 1:
        return False
    for m in range(1, len(heads) + 1):
        steps = 0
        while m and steps <= len(heads):
            m = heads[m - 1]
            steps += 1
        if m:
            return False
    return True
