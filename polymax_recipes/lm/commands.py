"""The command plot-supports: how sparse the attention of a language model is, as a picture."""

from pathlib import Path
from typing import Annotated

import rich
import typer

from polymax.nn.attention_statistics import MEASURES
from polymax_recipes.cli import fail, plain_errors
from polymax_recipes.lm.task import attention_of, task
from polymax_recipes.outputs import save_picture, writable_file
from polymax_recipes.training.commands import Device, Late, RunDirectory, load_run
from polymax_recipes.training.run import Run


def plot_supports(
    run: RunDirectory,
    data: Annotated[
        list[Path], typer.Argument(metavar="DATA", help="Text files, of which the first windows are read.")
    ],
    measure: Annotated[str, typer.Option(help=f"What to draw. One of: {', '.join(MEASURES)}.")] = "mean_support",
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("supports.png"),
    device: Device = "auto",
    options: Late = None,
) -> None:
    """Draw how many keys each head of a language model attends to, and print a table for each layer."""
    from polymax import plot

    with plain_errors("stopped", ValueError):
        writable_file(out, inputs=[*data, *Run(run).files])
        trained = load_run(run, device, options)
        if trained.task.name != task.name:
            fail(f"{run} is a run of {trained.task.name}; only {task.name} has supports to draw")
        if not trained.options.measured:
            fail("--set measured must be at least 1 here")
        documents = task.read_as(data, trained.options)
        layers = attention_of(trained, task.encode(documents, trained.vocabularies))
        axes = plot.attention_supports(layers, measure=measure)
        save_picture(axes.figure, out, bbox_inches="tight", dpi=150)
        for number, layer in enumerate(layers):
            print(f"layer {number}\n{layer}")
        rich.get_console().print(f"wrote {out}", highlight=False, soft_wrap=True, markup=False)


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(plot_supports)
