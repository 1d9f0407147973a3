"""Commands of language models: plot-supports draws how sparse their attention is, collect-sources writes texts."""

from pathlib import Path
from typing import Annotated

import rich
import typer

from polymax import WordDistribution
from polymax.nn.attention_statistics import MEASURES
from polymax_recipes.cli import fail, plain_errors
from polymax_recipes.lm.sources import PARTS, source_documents
from polymax_recipes.lm.task import attention_of, task
from polymax_recipes.lm.teacher import RunTeacher, listed
from polymax_recipes.outputs import atomic_write, save_picture, writable_directory, writable_file
from polymax_recipes.training.commands import Device, Force, Late, RunDirectory, load_run
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


def collect_sources(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where train.txt, dev.txt and test.txt are written.")],
    most: Annotated[int, typer.Option(min=0, help="Bytes of the training text at most; 0 for all.")] = 0,
    held_out: Annotated[int, typer.Option(min=0, help="Bytes of dev.txt and of test.txt at most.")] = 2**20,
    force: Force = False,
) -> None:
    """Write the Python sources of the installed packages as texts for a language model; whole packages are held out."""
    with plain_errors("stopped", ValueError):
        writable_directory(out, "FOLDER")
        for part in PARTS:
            if (out / f"{part}.txt").exists() and not force:
                fail(f"FOLDER: {out / part}.txt exists; --force writes over it")
        out.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            documents = source_documents(part, 1, most if part == "train" else held_out)
            with atomic_write(out / f"{part}.txt") as temporary:
                temporary.write_text("\n".join(one.text for one in documents), encoding="utf-8")
            rich.get_console().print(f"wrote {out / part}.txt", highlight=False, soft_wrap=True, markup=False)


def list_words(
    run: RunDirectory,
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help="Text files, each of which is a document.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("words"),
    device: Device = "auto",
) -> None:
    """Write the tokens that a sparse language model allows at each place, with their probabilities, for --teacher."""
    with plain_errors("stopped", ValueError):
        trained = load_run(run, device, None)
        if trained.task.name != task.name:
            fail(f"{run} is a run of {trained.task.name}; only {task.name} can be a teacher of {task.name}")
        windows = task.encode(task.read_as(data, trained.options), trained.vocabularies)
        WordDistribution.save(out, listed(RunTeacher(run, windows), windows, trained.options.batch))
        rich.get_console().print(f"wrote {out}", highlight=False, soft_wrap=True, markup=False)


def add(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (plot_supports, collect_sources, list_words):
        app.command()(command)
