"""The command draw-proteins: random pairs of sequences with known alignments."""

from pathlib import Path
from typing import Annotated

import rich
import typer

from polymax_recipes.cli import plain_errors
from polymax_recipes.outputs import writable_file
from polymax_recipes.protein_align.evolution import evolved
from polymax_recipes.readers.lines import write
from polymax_recipes.training.commands import Force


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(draw_proteins)


def draw_proteins(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="FASTA file to write; packed if it ends in .gz.")],
    count: Annotated[int, typer.Option(min=1, help="Pairs.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    distance: Annotated[float, typer.Option(min=0.0, help="Mean number of changes of a letter.")] = 1.0,
    gaps: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability that a gap begins at a letter.")] = 0.05,
    force: Force = False,
) -> None:
    """Draw pairs of aligned sequences by a model of evolution: substitutions of 20 letters, and gaps of any length."""
    with plain_errors("stopped", ValueError):
        writable_file(out, "FILE", force=force, packs=True)
        rows = enumerate(evolved(count, seed, distance, gaps))
        write(out, (f">{k} ancestor\n{first}\n>{k} descendant\n{second}\n" for k, (first, second) in rows))
        rich.get_console().print(f"wrote {out}", highlight=False, soft_wrap=True, markup=False)
