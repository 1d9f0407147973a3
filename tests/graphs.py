"""The table of factor graphs, with what their factors allow written out by other means than rows and projections."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import torch

import polymax as pm
from polymax.structures.base import tensors

F = pm.factors


@dataclass(frozen=True)
class Rule:
    """A factor by the settings of its variables that it allows; `both` has a private part, for all literals on."""

    at: list[int]
    holds: Callable[[tuple[int, ...]], bool]
    negated: tuple[bool, ...] = ()
    both: bool = False

    def settings(self):
        """Settings of the variables, and the private parts of each."""
        found = []
        for bits in product((0, 1), repeat=len(self.at)):
            literals = tuple(b ^ n for b, n in zip(bits, self.negated, strict=True)) if self.negated else bits
            if self.holds(literals):
                found.append((torch.tensor(bits).double(), [torch.tensor(float(prod(literals)))] if self.both else []))
        return found


@dataclass(frozen=True)
class Listed:
    """A structure as a factor, by its vertices; parts at -1 are private."""

    factor: pm.Factor
    shape: tuple[int, ...]

    @property
    def at(self):
        return [v for v in self.factor.at.flatten().tolist() if v >= 0]

    def settings(self):
        at = self.factor.at.flatten()
        found = []
        for y in zip(*tensors(self.factor.structure.vertices(self.shape)), strict=True):
            first = y[0].double().flatten()
            own = [torch.where(at < 0, first, 0).reshape(y[0].shape)] if bool((at < 0).any()) else []
            found.append((first[at >= 0], [*own, *(t.double() for t in y[1:])]))
        return found


@dataclass(frozen=True)
class Row:
    """A graph, what its factors allow, and the shapes of its private scores."""

    name: str
    graph: pm.FactorGraph
    rules: list
    private: list[tuple[int, ...]]

    def scores(self, batch=(), seed=0, scale=1.0, requires_grad=False):
        generator = torch.Generator().manual_seed(seed)
        shapes = [(self.graph.variables,), *self.private]
        found = tuple(scale * torch.randn(*batch, *s, generator=generator, dtype=torch.float64) for s in shapes)
        return tuple(x.requires_grad_() for x in found) if requires_grad else found


def one(bits):
    return sum(bits) == 1


def chain(at):
    return pm.Factor(pm.Chain(), torch.tensor(at))


def structure(factor, *shape):
    return Listed(factor, shape)


GRID = chain([[0, 1], [2, 3], [4, 5]])
TREE = pm.Factor(pm.SpanningTree(), torch.arange(9).reshape(3, 3))
MIXED = pm.Factor(pm.Subset(2), torch.tensor([0, 1, -1, 2]))
TABLE = F.table([1, 2, 3])
SIDE = chain([[6, 7], [2, 3], [0, 8]])
TWO = pm.Factor(pm.Assignment(), torch.tensor([[0, 1], [2, 3]]))

GRAPHS = [
    Row("xor", pm.FactorGraph(4, [F.xor([0, 2, 3])]), [Rule([0, 2, 3], one)], []),
    Row("one-variable", pm.FactorGraph(2, [F.xor([1])]), [Rule([1], one)], []),
    Row("at-most-one", pm.FactorGraph(3, [F.at_most_one([0, 1, 2])]), [Rule([0, 1, 2], lambda b: sum(b) <= 1)], []),
    Row(
        "at-least-one",
        pm.FactorGraph(3, [F.at_least_one([2, 0, 1], negated=[True, False, False])]),
        [Rule([2, 0, 1], lambda b: sum(b) >= 1, (True, False, False))],
        [],
    ),
    Row("or", pm.FactorGraph(4, [F.or_out([0, 1, 2], 3)]), [Rule([0, 1, 2, 3], lambda b: b[3] == max(b[:3]))], []),
    Row(
        "and",
        pm.FactorGraph(4, [F.and_out([0, 1, 2], 3, negated=[False, True, False])]),
        [Rule([0, 1, 2, 3], lambda b: b[3] == min(b[:3]), (False, True, False, False))],
        [],
    ),
    Row("implies", pm.FactorGraph(2, [F.implies(0, 1)]), [Rule([0, 1], lambda b: b[0] <= b[1])], []),
    Row("budget", pm.FactorGraph(5, [F.budget([0, 1, 2, 4], 2)]), [Rule([0, 1, 2, 4], lambda b: sum(b) <= 2)], []),
    Row(
        "at-least",
        pm.FactorGraph(4, [F.at_least([0, 1, 2, 3], 2, negated=[True, False, False, True])]),
        [Rule([0, 1, 2, 3], lambda b: sum(b) >= 2, (True, False, False, True))],
        [],
    ),
    Row("pair", pm.FactorGraph(2, [F.pair(0, 1)]), [Rule([0, 1], lambda b: True, both=True)], [()]),
    Row(
        "pair-negated",
        pm.FactorGraph(2, [F.pair(1, 0, negated=[True, False])]),
        [Rule([1, 0], lambda b: True, (True, False), both=True)],
        [()],
    ),
    Row(
        "ising-cycle",
        pm.FactorGraph(4, [F.pair(i, (i + 1) % 4) for i in range(4)]),
        [Rule([i, (i + 1) % 4], lambda b: True, both=True) for i in range(4)],
        [()] * 4,
    ),
    Row("table", pm.FactorGraph(4, [TABLE]), [structure(TABLE, 3)], [(8,)]),
    Row("chain", pm.FactorGraph(6, [GRID]), [structure(GRID, 3, 2)], [(2, 2, 2)]),
    Row("private-parts", pm.FactorGraph(3, [MIXED]), [structure(MIXED, 4)], [(4,)]),
    Row(
        "logic-cycle",
        pm.FactorGraph(5, [F.xor([0, 1, 2]), F.budget([1, 2, 3], 1), F.implies(3, 4), F.or_out([0, 4], 2)]),
        [
            Rule([0, 1, 2], one),
            Rule([1, 2, 3], lambda b: sum(b) <= 1),
            Rule([3, 4], lambda b: b[0] <= b[1]),
            Rule([0, 4, 2], lambda b: b[2] == max(b[:2])),
        ],
        [],
    ),
    Row(
        "chain-and-logic",
        pm.FactorGraph(6, [GRID, F.budget([0, 2, 4], 2), F.pair(0, 4), F.implies(1, 5)]),
        [
            structure(GRID, 3, 2),
            Rule([0, 2, 4], lambda b: sum(b) <= 2),
            Rule([0, 4], lambda b: True, both=True),
            Rule([1, 5], lambda b: b[0] <= b[1]),
        ],
        [(2, 2, 2), ()],
    ),
    Row(
        "chains-that-cross",
        pm.FactorGraph(9, [GRID, SIDE, F.at_most_one([6, 8, 1])]),
        [structure(GRID, 3, 2), structure(SIDE, 3, 2), Rule([6, 8, 1], lambda b: sum(b) <= 1)],
        [(2, 2, 2), (2, 2, 2)],
    ),
    Row(
        "tree-and-table",
        pm.FactorGraph(9, [TREE, TABLE, F.at_most_one([5, 7])]),
        [structure(TREE, 3, 3), structure(TABLE, 3), Rule([5, 7], lambda b: sum(b) <= 1)],
        [(8,)],
    ),
    Row(
        "two-kinds",
        pm.FactorGraph(4, [TWO, MIXED]),
        [structure(TWO, 2, 2), structure(MIXED, 4)],
        [(4,)],
    ),
]


def whole_settings(row):
    """Every setting of all variables that all factors allow, and the private parts that go with each, as scored."""
    found = []
    for bits in product((0, 1), repeat=row.graph.variables):
        y = torch.tensor(bits).double()
        options = [[own for setting, own in rule.settings() if torch.equal(setting, y[rule.at])] for rule in row.rules]
        if all(options):
            found.append((y, options))
    return found


def best_value(row, scores):
    """The highest score of a whole setting, by enumeration, for scores of one instance."""
    best = -float("inf")
    for y, options in whole_settings(row):
        total, place = float((y * scores[0]).sum()), 1
        for own in options:
            count = len(own[0])
            total += max(
                float(sum((p * s).sum() for p, s in zip(parts, scores[place : place + count], strict=True)))
                for parts in own
            )
            place += count
        best = max(best, total)
    return best


def projected_point(row, scores):
    """LP-SparseMAP by a solver of quadratic programs, for scores of one instance: the variables."""
    import cvxpy as cp

    mu = cp.Variable(row.graph.variables)
    value, rules, place = scores[0].numpy() @ mu - cp.sum_squares(mu) / 2, [mu >= 0, mu <= 1], 1
    for rule in row.rules:
        table = rule.settings()
        count = len(table[0][1])
        own = scores[place : place + count]
        place += count
        weights = cp.Variable(len(table), nonneg=True)
        rules.append(cp.sum(weights) == 1)
        for k, v in enumerate(rule.at):
            rules.append(mu[v] == np.array([float(setting[k]) for setting, _ in table]) @ weights)
        gains = [sum(float((p * s).sum()) for p, s in zip(parts, own, strict=True)) for _, parts in table]
        value = value + np.array(gains) @ weights
    problem = cp.Problem(cp.Maximize(value), rules)
    problem.solve()
    assert problem.status == "optimal", problem.status
    return torch.from_numpy(mu.value)


def relaxed_value(row, scores):
    """The value of the linear relaxation, for scores of one instance: weights of the settings of each factor (LP)."""
    from scipy.optimize import linprog

    n = row.graph.variables
    tables = [rule.settings() for rule in row.rules]
    gain, place = [scores[0].numpy()], 1
    for table in tables:
        count = len(table[0][1])
        own = scores[place : place + count]
        place += count
        gain.append(
            np.array([sum(float((p * s).sum()) for p, s in zip(parts, own, strict=True)) for _, parts in table])
        )
    total = sum(len(g) for g in gain)
    rows, right, start = [], [], n
    for rule, table in zip(row.rules, tables, strict=True):
        one = np.zeros(total)
        one[start : start + len(table)] = 1
        rows.append(one)
        right.append(1.0)
        for k, v in enumerate(rule.at):
            line = np.zeros(total)
            line[start : start + len(table)] = [float(setting[k]) for setting, _ in table]
            line[v] -= 1
            rows.append(line)
            right.append(0.0)
        start += len(table)
    found = linprog(-np.concatenate(gain), A_eq=np.array(rows), b_eq=right, bounds=(0, 1))
    assert found.status == 0, found.message
    return -found.fun
