"""Warm starts of SparseMAP: a memory changes how long a solution takes, and not the solution."""

import pickle

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.structures import Structure

FULL = torch.float64
LENGTHS = torch.tensor([4, 6, 2, 5])


class Pairs(Structure):
    """Two of n, by a user who says no more than what is best."""

    def map(self, *scores):
        (x,) = scores
        return torch.zeros_like(x).scatter(-1, x.topk(2).indices, 1.0)

    def event_dims(self, *scores):
        return (1,)


def draw(*shape):
    return torch.randn(*shape, dtype=FULL)


# the set for lengths, and scores of so many instances padded to a size
SETS = {
    "chain": (lambda n: pm.Chain(n), lambda b, n: (draw(b, n, 3), draw(3, 3))),
    "segments": (lambda n: pm.SemiMarkov(2, n), lambda b, n: (draw(b, n, 2, 3), draw(3, 3))),
    "tree": (lambda n: pm.SpanningTree(n), lambda b, n: (draw(b, n + 1, n + 1),)),
    "projective": (lambda n: pm.ProjectiveTree(n), lambda b, n: (draw(b, n + 1, n + 1),)),
    "spans": (lambda n: pm.SpanTree(n), lambda b, n: (draw(b, n, n, 2),)),
    "cells": (lambda n: pm.Assignment((n, n)), lambda b, n: (draw(b, n, n),)),
}


def padded(scores, structure, more):
    """The same scores with `more` places after each of the sizes that lengths bound."""
    grown = []
    for x, dims in zip(scores, structure.event_dims(*scores), strict=True):
        event = x.shape[x.dim() - dims :] if x.dim() > 2 else ()
        pads = [(0, more if size >= 5 else 0) for size in event]
        grown.append(torch.nn.functional.pad(x, [p for pair in reversed(pads) for p in pair]) if event else x)
    return tuple(grown)


@pytest.mark.parametrize("name", SETS)
def test_a_memory_changes_no_solution(name):
    made, scored = SETS[name]
    memory, scores = pm.WarmStart(), scored(4, 6)
    fewer = []
    for shift, order, more in ((0.0, [0, 1, 2, 3], 0), (0.0, [3, 1, 0, 2], 2), (0.05, [2, 0, 1, 3], 1)):
        structure = made(LENGTHS[order])
        given = padded(tuple(x[order] if x.shape[0] == 4 else x for x in scores), structure, more)
        given = tuple((x + shift * torch.randn_like(x)).requires_grad_() for x in given)
        keys = torch.tensor(order) + 100
        cold, warm = pm.SparseMap(structure), pm.SparseMap(structure, memory.at(keys))
        for op in ("argmax", "max"):
            found, expected = (getattr(one, op)(*given) for one in (warm, cold))
            found, expected = ((y,) if isinstance(y, torch.Tensor) else y for y in (found, expected))
            weights = [torch.linspace(-1, 1, y.numel(), dtype=FULL).reshape(y.shape) for y in found]
            slopes = []
            for parts in (found, expected):
                loss = sum((w * y).sum() for w, y in zip(weights, parts, strict=True))
                slopes.append(torch.autograd.grad(loss, given))
            for a, b in zip((*found, *slopes[0]), (*expected, *slopes[1]), strict=True):
                close(a, b, f"{op} from what is remembered")
        again = warm.solve(*(x.detach() for x in given))
        fewer.append(int(again.iterations.max()))
        assert warm.path(*given) == cold.path(*given)
    assert fewer == [0, 0, 0], "what is known is not searched for"
    assert len(memory) == 4
    memory.clear()
    assert len(memory) == 0


def test_the_first_search_after_other_padding_finds_nothing_new():
    memory, scores = pm.WarmStart(), (draw(4, 7, 7),)
    pm.SparseMap(pm.SpanningTree(LENGTHS), memory.at("abcd")).solve(*scores)
    structure = pm.SpanningTree(LENGTHS[[2, 0]])
    moved = padded((scores[0][[2, 0]],), structure, 3)
    assert pm.SparseMap(structure, memory.at("ca")).solve(*moved).iterations.tolist() == [0, 0]


def test_another_length_starts_afresh():
    memory, scores = pm.WarmStart(), (draw(1, 6, 6),)
    pm.SparseMap(pm.SpanningTree(torch.tensor([5])), memory.at([0])).solve(*scores)
    for length in (3, 4):
        structure = pm.SpanningTree(torch.tensor([length]))
        found, expected = pm.SparseMap(structure, memory.at([0])), pm.SparseMap(structure)
        close(found(*scores), expected(*scores), "a tree over fewer words")


def test_sets_that_only_have_a_map_and_new_examples():
    memory, x = pm.WarmStart(pm.ActiveSet(tol=1e-11)), draw(3, 5)
    for keys in ([0, 1, 2], [0, 1, 2], [2, 7, 0]):
        found = pm.SparseMap(Pairs(), memory.at(keys)).solve(x)
        close(pm.SparseMap(Pairs(), memory.at(keys))(x), pm.SparseMap(Pairs())(x), "any set, any example")
    wider = torch.cat([x, torch.full((3, 2), -5.0, dtype=FULL)], -1)
    close(pm.SparseMap(Pairs(), memory.at(keys))(wider), pm.SparseMap(Pairs())(wider), "scores of another size")
    assert found.iterations.shape == (3,)


def test_undefined_and_empty_batches_are_remembered_too():
    memory, chain = pm.WarmStart(), pm.Chain()
    unary, transition = draw(2, 4, 3), draw(3, 3)
    broken = unary.clone()
    broken[0, 1, 1] = torch.nan
    for given in (broken, unary):
        op = pm.SparseMap(chain, memory.at([0, 1]))
        mu = op(given, transition).unary
        equal(mu[1], pm.SparseMap(chain)(unary, transition).unary[1], "beside an undefined one")
        assert mu[0].isnan().all() == given.isnan().any()
    assert pm.SparseMap(chain, memory.at([])).solve(unary[:0], transition).probs.shape[0] == 0
    one = pm.SparseMap(chain, memory.at([5]))
    close(one(unary[0], transition).unary, pm.SparseMap(chain)(unary[0], transition).unary, "one without a batch")


def test_losses_take_a_memory():
    memory, chain = pm.WarmStart(), pm.Chain()
    scores = draw(3, 5, 4).requires_grad_(), draw(4, 4).requires_grad_()
    tags = torch.randint(4, (3, 5))
    for loss in (pm.sparsemap_loss, pm.margin_sparsemap_loss):
        for _ in range(2):
            found, expected = loss(chain, scores, tags, solver=memory.at([0, 1, 2])), loss(chain, scores, tags)
            close(found, expected, "the loss")
            for a, b in zip(torch.autograd.grad(found, scores), torch.autograd.grad(expected, scores), strict=True):
                close(a, b, "its gradient")


def test_what_is_refused_and_what_is_kept():
    memory = pm.WarmStart()
    with pytest.raises(ValueError, match=r"keys must be as many as the instances of the batch, 2; got 3"):
        pm.SparseMap(pm.Chain(), memory.at([1, 2, 3])).solve(draw(2, 3, 2), draw(2, 2))
    with pytest.raises(TypeError, match="solver must be a Solver; got int"):
        pm.WarmStart(3)
    x = draw(2, 4, 4)
    pm.SparseMap(pm.Assignment(), memory.at(["a", "b"])).solve(x)
    twin = pickle.loads(pickle.dumps(memory))
    assert pm.SparseMap(pm.Assignment(), twin.at(["b", "a"])).solve(x[[1, 0]]).iterations.tolist() == [0, 0]
