"""SparseMAP of a graph of xors, which is an assignment, and of chains with a budget, with their gradients."""

from functools import lru_cache

import torch
from torch import Tensor

import polymax as pm
from benchmarks.baselines import ours
from benchmarks.factors import oracles
from benchmarks.sparsemap.cases import PART_MEANS, TAG_MEANS, both, within
from benchmarks.sparsemap.oracles import sparse_assignment
from benchmarks.workload import Case, FunctionCase


@lru_cache(maxsize=8)
def square_of_xors(n: int) -> pm.FactorGraph:
    """Exactly one cell of each row and of each column."""
    cells = torch.arange(n * n).reshape(n, n)
    return pm.FactorGraph(n * n, [pm.factors.xor(line) for line in (*cells, *cells.T)])


def sparse_xors(scores: Tensor) -> Tensor:
    graph = square_of_xors(scores.shape[-1])
    return pm.SparseMap(graph)(scores.flatten(1)).variables.reshape(scores.shape)


def sparse_budget(unary: Tensor, transition: Tensor) -> Tensor:
    return pm.SparseMap(pm.BudgetChain(oracles.budget(unary.shape[1])))(unary, transition).unary


# lp-sparsemap took 1,779 ms for the assignments, one after the other on the CPU
FACTORS: list[Case] = [
    FunctionCase(
        "assignment by xors",
        ours(sparse_xors, sparse_assignment),
        both(PART_MEANS, (3, 5, 5), cpu=(within(60, 16, 40, 40),), cuda=(within(5, 16, 40, 40),)),
    ),
    FunctionCase(
        "chain with a budget",
        ours(sparse_budget, oracles.sparse_budget),
        both(TAG_MEANS, (3, 12, 2), cpu=(within(20, 64, 200, 2),), cuda=(within(20, 64, 200, 2),)),
    ),
]
