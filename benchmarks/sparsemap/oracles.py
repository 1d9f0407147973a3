"""Best structures and their means, proven: polymax may propose a solution, but what accepts it is plain float64."""

from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import polymax as pm
from benchmarks.sparsemap.face import PROOF, Face
from benchmarks.structures.oracles import best_tags


def tag_score(unary: Tensor, transition: Tensor, y: Tensor) -> Tensor:
    """Scores (batch, k) of tags (batch, k, n)."""
    given = unary[:, None].expand(*y.shape, unary.shape[-1]).gather(3, y[..., None]).sum((2, 3))
    return given + transition[y[..., :-1], y[..., 1:]].sum(-1)


def arborescence(scores: Tensor) -> Tensor:
    """Heads (batch, n) of the best trees with a single root, by contraction of cycles."""
    n = scores.shape[-1] - 1
    x = scores.detach().clone()
    # a root arc costs more than any two trees differ by, so that one is better than two
    x[:, 0] -= n * (x.amax((1, 2)) - x.amin((1, 2)))[:, None] + 1
    x.diagonal(0, 1, 2).fill_(-torch.inf)
    return torch.from_numpy(np.array([_heads(each)[1:] for each in x.numpy()], np.int64).reshape(len(x), n))


def spanning_tree(scores: Tensor) -> Tensor:
    """The log-sum-exp of the scores of all trees with a single root: a determinant.

    See: Koo, Globerson, Carreras and Collins 2007, Structured prediction models via the matrix-tree theorem.
    """
    top = scores[:, :, 1:].detach().amax(1)
    root, words = (scores[:, 0, 1:] - top).exp(), (scores[:, 1:, 1:] - top[:, None]).exp()
    arcs = words * (1 - torch.eye(words.shape[-1], dtype=words.dtype))
    laplacian = torch.diag_embed(arcs.sum(1)) - arcs
    return torch.linalg.slogdet(torch.cat([root[:, None], laplacian[:, 1:]], 1)).logabsdet + top.sum(1)


def assignment(scores: Tensor) -> Tensor:
    """Columns (batch, n) of the best assignments of a square, which dual variables prove to be the best."""
    x = scores.detach()
    rows, columns = pm.Assignment().duals(x)
    found = pm.Assignment().decode(pm.Assignment().map(x))
    missing = rows.sum(1) + columns.sum(1) - assignment_score(x, found)
    low = (x - rows[:, :, None] - columns[:, None]).amax((1, 2))
    size = 1 + x.abs().amax((1, 2)) * x.shape[-1]
    # no assignment is better than duals that are nowhere below the scores; the score of what is none is NaN
    if not bool(((missing.abs() <= PROOF * size) & (low <= PROOF * size)).all()):
        raise ValueError("the assignments proposed are not proven to be the best")
    return found


def tree_score(scores: Tensor, heads: Tensor) -> Tensor:
    """Scores (batch,) of heads (batch, n); NaN where they are no tree with a single root."""
    above = torch.cat([torch.zeros_like(heads[:, :1]), heads], 1)
    valid = ((heads == 0).sum(1) == 1) & (heads >= 0).all(1) & (heads < above.shape[1]).all(1)
    at = above = above.clamp(0, above.shape[1] - 1)
    for _ in range(heads.shape[1]):
        at = above.gather(1, at)
    total = scores[:, :, 1:].gather(1, above[:, None, 1:]).sum((1, 2))
    return torch.where(valid & (at == 0).all(1), total, torch.nan)


def assignment_score(scores: Tensor, columns: Tensor) -> Tensor:
    """Scores (batch,) of columns (batch, n) of a square; NaN where they are no permutation."""
    valid = (columns.sort(1).values == torch.arange(columns.shape[1])).all(1)
    total = scores.gather(2, columns.clamp(0, columns.shape[1] - 1)[..., None]).sum((1, 2))
    return torch.where(valid, total, torch.nan)


@cache
def objects(layers: int, images: int, most: int, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The numbers of objects, from a twelfth of the most on, and of queries of each image of each layer."""
    counts = torch.linspace(max(most // 12, 1), most, images, device=device).long().expand(layers, images).contiguous()
    return counts, torch.full_like(counts, queries)


def detected(cost: Tensor) -> Tensor:
    """Queries (layers, images, objects) of the cheapest pairs, or -1, which dual variables prove to be the cheapest."""
    scores, lengths = -cost.detach(), objects(*cost.shape, cost.device)
    found = pm.Assignment(lengths).columns(scores)
    u, v = pm.Assignment(lengths).duals(scores)
    inside = torch.arange(cost.shape[2])[:, None] < lengths[0][..., None, None]
    low = torch.where(inside, scores - u[..., None] - v[..., None, :], 0).amax((2, 3)).clamp(min=-v.amin(2))
    missing = u.sum(2) + v.sum(2) + detected_cost(cost, found)
    size = 1 + cost.abs().amax((2, 3)) * cost.shape[2]
    if not bool(((missing.abs() <= PROOF * size) & (low <= PROOF * size)).all()):
        raise ValueError("the assignments proposed are not proven to be the best")
    return found


def detected_cost(cost: Tensor, queries: Tensor) -> Tensor:
    """Costs (layers, images) of the queries of objects; NaN where a query is taken twice, or an object has none."""
    inside = torch.arange(cost.shape[2]) < objects(*cost.shape, cost.device)[0][..., None]
    # what stands past the objects is not compared
    places = torch.where(inside, queries, cost.shape[3] + torch.arange(cost.shape[2]))
    valid = (places.sort(2).values.diff(dim=2) > 0).all(2) & (queries >= 0)[inside.expand_as(queries)].all()
    at = queries.clamp(0, cost.shape[3] - 1).unsqueeze(3)
    return torch.where(valid, torch.where(inside, cost.gather(3, at).squeeze(3), 0).sum(2), torch.nan)


def sparse_chain(unary: Tensor, transition: Tensor) -> Tensor:
    """The unary part of SparseMAP over tag sequences."""

    def score(y: Tensor, x: Tensor) -> Tensor:
        return tag_score(x, transition, y.argmax(-1))

    def best(x: Tensor) -> Tensor:
        return one_hot(best_tags(x, transition.detach()), x.shape[-1])

    return Face(score, best).mean(unary, *proposed(pm.Chain(), unary, transition))


def sparse_tree(scores: Tensor) -> Tensor:
    """SparseMAP over spanning trees."""

    def best(x: Tensor) -> Tensor:
        return pm.SpanningTree().encode(arborescence(x))

    return Face(inner, best).mean(scores, *proposed(pm.SpanningTree(), scores))


def sparse_assignment(scores: Tensor) -> Tensor:
    """SparseMAP over the permutations of a square."""

    def best(x: Tensor) -> Tensor:
        return one_hot(assignment(x), x.shape[-1])

    return Face(inner, best).mean(scores, *proposed(pm.Assignment(), scores))


def proposed(structure: pm.Structure, *scores: Tensor) -> tuple[Tensor, Tensor]:
    """Structures (batch, k, ...) that may make up the mean, and their weights (batch, k)."""
    found = pm.SparseMap(structure, pm.ActiveSet(tol=PROOF / 100)).solve(*(x.detach() for x in scores))
    return found.vertices, found.probs


def inner(y: Tensor, x: Tensor) -> Tensor:
    """Scores (batch, k) of indicators."""
    return (y * x[:, None]).sum((2, 3))


def _heads(x: np.ndarray) -> np.ndarray:
    """The heads of a best arborescence, 0 for the root 0, of scores x[head, modifier] with -inf on the diagonal."""
    heads = x.argmax(0)
    heads[0] = 0
    cycle = _cycle(heads)
    if not len(cycle):
        return heads
    rest = np.setdiff1d(np.arange(len(x)), cycle)
    m = len(rest)
    # whoever enters the cycle takes the place of an arc of it; whoever leaves it may choose from where
    enter = x[np.ix_(rest, cycle)] - x[heads[cycle], cycle]
    leave = x[np.ix_(cycle, rest)]
    small = np.full((m + 1, m + 1), -np.inf)
    small[:m, :m] = x[np.ix_(rest, rest)]
    small[:m, m], small[m, :m] = enter.max(1), leave.max(0)
    found = _heads(small)
    heads[rest] = np.where(found[:m] == m, cycle[leave.argmax(0)], rest[np.minimum(found[:m], m - 1)])
    heads[0] = 0
    heads[cycle[enter[found[m]].argmax()]] = rest[found[m]]
    return heads


def _cycle(heads: np.ndarray) -> np.ndarray:
    """The nodes of a cycle that does not go through 0, if there is one."""
    at = np.arange(len(heads))
    for _ in heads:
        at = heads[at]
    nodes = [at.max()]
    while nodes[0] and heads[nodes[-1]] != nodes[0]:
        nodes.append(heads[nodes[-1]])
    return np.array(nodes if nodes[0] else [], np.int64)
