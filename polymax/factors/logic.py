"""Constraints and small tables as factors: constructors that read like the constraint."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.factors.factor import Factor, Logic, Pair, numbers
from polymax.factors.table import Table

Numbers = Tensor | Sequence[int]
Flags = Tensor | Sequence[bool] | None


def xor(at: Numbers, negated: Flags = None) -> Logic:
    """Exactly one of the variables is on.

    Example:
        >>> graph = pm.FactorGraph(3, [xor([0, 1, 2])])
        >>> pm.SparseMap(graph)(torch.tensor([0.2, 0.0, -1.0])).variables
        tensor([0.6000, 0.4000, 0.0000])
    """
    return _counted("xor", at, negated, "=", 1)


def at_most_one(at: Numbers, negated: Flags = None) -> Logic:
    """At most one of the variables is on."""
    return _counted("at_most_one", at, negated, "<=", 1)


def at_least_one(at: Numbers, negated: Flags = None) -> Logic:
    """At least one of the variables is on."""
    return _counted("at_least_one", at, negated, ">=", 1)


def budget(at: Numbers, k: int, negated: Flags = None) -> Logic:
    """At most k of the variables are on."""
    _check.whole(k, "k", least=0)
    return _counted(f"budget of {k}", at, negated, "<=", k)


def at_least(at: Numbers, k: int, negated: Flags = None) -> Logic:
    """At least k of the variables are on."""
    _check.whole(k, "k", least=0)
    found = _counted(f"at_least {k}", at, negated, ">=", k)
    if k > found.at.shape[-1]:
        raise ValueError(f"at_least: k must be at most the number of variables, {found.at.shape[-1]}; got {k}")
    return found


def knapsack(at: Numbers, costs: Tensor | Sequence[float], budget: float, negated: Flags = None) -> Logic:
    """The costs of the variables that are on add up to at most the budget.

    Costs are real numbers of at least 0. The relaxation has points with one variable between 0 and 1, of which only a
    part fits the budget; `solve_integral` does not return such points.

    Shapes: at (k,) or (*batch, k); costs (k,)

    Example:
        >>> graph = pm.FactorGraph(3, [knapsack([0, 1, 2], [2.0, 1.5, 1.0], 2.5)])
        >>> pm.factors.solve_integral(graph, torch.tensor([3.0, 2.0, 1.5])).variables
        tensor([0., 1., 1.])
    """
    inputs, flags = _literals("knapsack", at, negated)
    prices = torch.as_tensor(costs, dtype=torch.float64, device="cpu").detach()
    if prices.shape != inputs.shape[-1:]:
        size = inputs.shape[-1]
        raise ValueError(f"knapsack: costs must be ({size},), one for each variable; got {tuple(prices.shape)}")
    if not bool(((prices >= 0) & prices.isfinite()).all()):
        raise ValueError(f"knapsack: costs must be finite and not negative; got {prices.tolist()}")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget < float("inf"):
        raise ValueError(f"knapsack: budget must be a finite number of at least 0; got {budget!r}")
    rows = prices.unsqueeze(0)
    return Logic(
        f"knapsack of {budget:g}",
        inputs,
        flags,
        rows,
        ("<=",),
        torch.tensor([float(budget)], dtype=torch.float64, device="cpu"),
        torch.zeros(1, dtype=torch.float64, device="cpu"),
        torch.zeros_like(rows, dtype=torch.bool),
    )


def or_out(at: Numbers, out: int | Tensor, negated: Flags = None, *, negated_out: bool = False) -> Logic:
    """The variable `out` is on if, and only if, at least one of the others is; if `negated_out`, it is off then.

    Example:
        >>> graph = pm.FactorGraph(3, [or_out([0, 1], 2, negated_out=True)])
        >>> pm.HardMax(graph)(torch.tensor([1.0, -1.0, 0.5])).variables
        tensor([1., 0., 0.])
    """
    inputs, flags = _literals("or_out", at, negated)
    k = inputs.shape[-1]
    # each input is at most the output, and the output at most their sum
    rows = torch.cat(
        [
            torch.cat([torch.eye(k, device="cpu"), -torch.ones(k, 1, device="cpu")], 1),
            torch.tensor([[-1.0] * k + [1.0]], device="cpu"),
        ]
    )
    zeros = torch.zeros(k + 1, device="cpu")
    return _with_output("or_out", inputs, out, (flags, negated_out), rows, zeros, zeros)


def and_out(at: Numbers, out: int | Tensor, negated: Flags = None, *, negated_out: bool = False) -> Logic:
    """The variable `out` is on if, and only if, all of the others are; if `negated_out`, it is off then."""
    inputs, flags = _literals("and_out", at, negated)
    k = inputs.shape[-1]
    # the output is at most each input, and their sum is at most the output and one less than their number
    rows = torch.cat(
        [
            torch.cat([-torch.eye(k, device="cpu"), torch.ones(k, 1, device="cpu")], 1),
            torch.tensor([[1.0] * k + [-1.0]], device="cpu"),
        ]
    )
    counts = torch.zeros(k + 1, device="cpu")
    counts[k] = 1
    return _with_output("and_out", inputs, out, (flags, negated_out), rows, -counts, counts)


def implies(a: int | Tensor, b: int | Tensor, negated: Flags = None) -> Logic:
    """If the variable a is on, so is b."""
    at, flags = _literals("implies", _two(a, b), negated)
    both = torch.ones(1, 2, dtype=torch.bool, device="cpu")
    return Logic(
        "implies",
        at,
        flags,
        torch.tensor([[1.0, -1.0]], device="cpu"),
        ("<=",),
        torch.zeros(1, device="cpu"),
        torch.zeros(1, device="cpu"),
        both,
    )


def pair(i: int | Tensor, j: int | Tensor, negated: Flags = None) -> Pair:
    """A score (*batch,), private to the factor, that counts if both variables are on: Ising's model.

    Example:
        >>> graph = pm.FactorGraph(2, [pair(0, 1)])
        >>> pm.HardMax(graph)(torch.tensor([-0.4, -0.4]), torch.tensor(1.0)).variables
        tensor([1., 1.])
    """
    return Pair(*_literals("pair", _two(i, j), negated))


def table(at: Numbers) -> Factor:
    """A score for each of the 2^k settings of k variables, private to the factor: (*batch, 2^k).

    In setting number c the variable at[i] is on if bit k - 1 - i of c is 1: the order of itertools.product.
    """
    found = numbers(at, "at", 0)
    _distinct("table", found)
    if not 1 <= found.shape[-1] <= 12:
        raise ValueError(f"at must be 1 to 12 variables of a table; got {found.shape[-1]}")
    return Factor(Table(found.shape[-1]), found)


def _counted(name: str, at: Numbers, negated: Flags, kind: str, bound: int) -> Logic:
    inputs, flags = _literals(name, at, negated)
    rows = torch.ones(1, inputs.shape[-1], device="cpu")
    return Logic(
        name,
        inputs,
        flags,
        rows,
        (kind,),
        torch.tensor([float(bound)], device="cpu"),
        torch.zeros(1, device="cpu"),
        rows == 0,
    )


def _with_output(
    name: str,
    inputs: Tensor,
    out: int | Tensor,
    negated: tuple[Tensor, bool],
    rows: Tensor,
    bound: Tensor,
    counts: Tensor,
) -> Logic:
    if not isinstance(negated[1], bool):
        raise TypeError(f"{name}: negated_out must be True or False; got {negated[1]!r}")
    last = numbers(out, "out").unsqueeze(-1)
    lead = torch.broadcast_shapes(inputs.shape[:-1], last.shape[:-1])
    at = torch.cat([inputs.expand(*lead, inputs.shape[-1]), last.expand(*lead, 1)], -1)
    _distinct(name, at)
    flags = torch.cat([negated[0], torch.tensor([negated[1]], device="cpu")])
    # the row of all inputs holds even if some inputs are absent
    needed = rows != 0
    needed[-1, :-1] = False
    return Logic(name, at, flags, rows, ("<=",) * len(rows), bound, counts, needed)


def _two(a: int | Tensor, b: int | Tensor) -> Tensor:
    return torch.stack(torch.broadcast_tensors(numbers(a, "a"), numbers(b, "b")), -1)


def _literals(name: str, at: Any, negated: Flags) -> tuple[Tensor, Tensor]:
    found = numbers(at, "at")
    if found.dim() < 1 or found.shape[-1] == 0:
        raise ValueError(f"{name}: at must be the numbers of at least one variable; got {tuple(found.shape)}")
    _distinct(name, found)
    flags = (
        torch.zeros(found.shape[-1], dtype=torch.bool, device="cpu")
        if negated is None
        else torch.as_tensor(negated).cpu()
    )
    if flags.dtype != torch.bool or flags.shape != found.shape[-1:]:
        raise ValueError(
            f"{name}: negated must be bool, one for each of {found.shape[-1]} inputs; "
            f"got {flags.dtype} {tuple(flags.shape)}"
        )
    return found, flags


def _distinct(name: str, at: Tensor) -> None:
    ordered = at.sort(-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if bool(twice.any()):
        raise ValueError(f"{name}: at must name a variable once; {int(ordered[..., 1:][twice][0])} comes twice")
