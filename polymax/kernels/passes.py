"""The three operators of a recursion, one for each derivative of its smoothed maximum.

    <op>_inside    scores, index, options, alpha                   the value (B,), and a chart for the other two
    <op>_outside   scores, index, chart, g, options, alpha         the derivative of g v in each score tensor
    <op>_tangent   scores, index, chart, g, d, options, alpha      <mu, d> (B,), and the derivative of g mu along d

`index` describes the problem: lengths, or the arrays of a graph. A folder declares all three at once, and its reference
is the recursion as a hypergraph, from which all three operators follow.

See: Mensch and Blondel 2018, Differentiable dynamic programming, section 3.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polymax.backend.dispatch import Operator, declare_instances


def declare_passes(
    package: str, scores: str, index: str, chart: Callable[..., Tensor], options: str = "", alpha: bool = True
) -> tuple[Operator, Operator, Operator]:
    """Declare the operators of a kernel folder.

    `scores` and `index` are the names of tensors, `options` are further parameters in the form of a schema, and `chart`
    returns an empty chart for the arguments of the inside pass. Without `alpha` only Shannon's entropy smooths.
    """
    kind, names = package.rpartition(".")[2], scores.split()
    given = ", ".join(f"Tensor {name}" for name in (*names, *index.split()))
    along = ", ".join(f"Tensor d_{name}" for name in names) if len(names) > 1 else "Tensor d"
    each = ", ".join(["Tensor"] * len(names))
    last = ", ".join(filter(None, (options, "float alpha" if alpha else "")))

    def like(args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in args[: len(names)])

    def inside(*args: Any) -> tuple[Tensor, Tensor]:
        return args[0].new_empty(args[0].shape[:1]), chart(*args)

    def outside(*args: Any) -> Tensor | tuple[Tensor, ...]:
        return like(args) if len(names) > 1 else like(args)[0]

    def tangent(*args: Any) -> tuple[Tensor, ...]:
        return args[0].new_empty(args[0].shape[:1]), *like(args)

    mean = f"({each})" if len(names) > 1 else each
    return (
        declare_instances(package, f"{kind}_inside({given}, {last}) -> (Tensor, Tensor)", inside),
        declare_instances(package, f"{kind}_outside({given}, Tensor chart, Tensor g, {last}) -> {mean}", outside),
        declare_instances(
            package, f"{kind}_tangent({given}, Tensor chart, Tensor g, {along}, {last}) -> (Tensor, {each})", tangent
        ),
    )
