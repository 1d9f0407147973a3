"""The commands of parsers: draw the tree of a sentence, and list the words with the least certain heads."""

from pathlib import Path
from typing import Annotated

import rich
import typer

from polymax_recipes.cli import fail, plain_errors
from polymax_recipes.outputs import atomic_write, save_picture, writable_file
from polymax_recipes.results import ParseResult
from polymax_recipes.training.commands import Device, Force, Late, RunDirectory, load_run
from polymax_recipes.training.run import Run


def plot_parse(
    run: RunDirectory,
    source: Annotated[str, typer.Option(help="Sentence to parse: raw text, or tokens with --tokens.")],
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("parse.png"),
    tokens: Annotated[bool, typer.Option("--tokens", help="The sentence is tokens between spaces.")] = False,
    probabilities: Annotated[bool, typer.Option(help="Show the probabilities of arcs, if the loss has any.")] = True,
    device: Device = "auto",
    options: Late = None,
) -> None:
    """Draw the dependency tree of a sentence, with relations and the probabilities of its arcs."""
    from polymax import plot

    with plain_errors("stopped", ValueError):
        writable_file(out, inputs=Run(run).files)
        trained = load_run(run, device, options)
        if trained.task.name != "parse":
            fail(f"{run} is a run of {trained.task.name}; only parse has dependency trees to draw")
        if not source.strip():
            fail("--source must have a word")
        (found,) = trained.results([source.split() if tokens else source])
        assert isinstance(found, ParseResult)
        shown = None if found.arcs is None or not probabilities else arc_probabilities(found)
        axes = plot.dependencies(found.heads, found.tokens, found.relations, probabilities=shown)
        save_picture(axes.figure, out, bbox_inches="tight", dpi=150)
        rows = zip(found.tokens, found.heads, found.relations)
        for k, (token, head, relation) in enumerate(rows, 1):
            print(f"{k}\t{token}\t{head}\t{relation}")
        rich.get_console().print(f"wrote {out}", highlight=False, soft_wrap=True, markup=False)


def arc_probabilities(found: ParseResult) -> list[float]:
    """The probability of the arc from each token to its head in the best tree."""
    assert found.arcs is not None
    # sums of floats may be a little above 1
    return [min(1.0, float(found.arcs[head, word])) for word, head in enumerate(found.heads, 1)]


def ambiguous(
    run: RunDirectory,
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help="CoNLL-U files; their trees are not used.")],
    output: Annotated[Path, typer.Option(help="Table to write.")] = Path("ambiguous.tsv"),
    most: Annotated[int, typer.Option(min=1, help="How many attachments to list.")] = 1000,
    force: Force = False,
    device: Device = "auto",
    options: Late = None,
) -> None:
    """List the words whose heads a parser is least sure of, with their possible heads."""
    from polymax_recipes.parse.ambiguous import HEADER, most_ambiguous

    with plain_errors("stopped", ValueError):
        writable_file(output, "--output", inputs=[*data, *Run(run).files], force=force)
        trained = load_run(run, device, options)
        if trained.task.name != "parse":
            fail(f"{run} is a run of {trained.task.name}; only parse has attachments")
        found = most_ambiguous(trained, data, most)
        with atomic_write(output) as temporary:
            temporary.write_text("\n".join([HEADER, *map(str, found)]) + "\n", encoding="utf-8")
        rich.get_console().print(f"wrote {len(found)} attachments to {output}", soft_wrap=True, markup=False)


def add(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (plot_parse, ambiguous):
        app.command()(command)
