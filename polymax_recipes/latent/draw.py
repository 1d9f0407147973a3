"""The command draw-listops: a training file of ListOps."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import rich
import torch
import typer

from polymax_recipes.cli import plain_errors
from polymax_recipes.listops import OPERATORS, PUBLISHED, Grammar, read_listops, write_listops
from polymax_recipes.outputs import writable_file
from polymax_recipes.training.commands import Force


def _operator_names(operators: Iterable[str]) -> list[str]:
    return [operator.removeprefix("[") for operator in operators]


def draw_listops(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, .tsv or .tsv.gz.")],
    count: Annotated[int, typer.Option(min=1, help="Expressions.")] = 90_000,
    without: Annotated[list[Path] | None, typer.Option(help="File of expressions to leave out, as of a test.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    operators: Annotated[
        str, typer.Option(metavar="A,B,...", help=f"Operators to draw, of {','.join(_operator_names(OPERATORS))}.")
    ] = ",".join(_operator_names(PUBLISHED)),
    force: Force = False,
) -> None:
    """Draw different ListOps expressions from the published grammar, and write them in random order."""
    with plain_errors("stopped", ValueError):
        writable_file(out, "FILE", inputs=without or (), force=force, packs=True)
        chosen = tuple(f"[{name.strip().upper()}" for name in operators.split(","))
        if unknown := [name for name in _operator_names(chosen) if f"[{name}" not in OPERATORS]:
            known = ", ".join(_operator_names(OPERATORS))
            raise ValueError(f"--operators must be of {known}, with commas between; got {', '.join(unknown)}")
        grammar = Grammar(operators=chosen)
        generator = torch.Generator().manual_seed(seed)
        others = (expression for file in without or () for expression in read_listops(file))
        drawn = list(grammar.expressions(count, without=others, generator=generator))
        write_listops(out, (drawn[k] for k in torch.randperm(count, generator=generator).tolist()))
        rich.get_console().print(f"wrote {out}", highlight=False, soft_wrap=True, markup=False)
