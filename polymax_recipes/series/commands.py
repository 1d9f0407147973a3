"""The commands align and plot-centroids."""

from pathlib import Path
from typing import Annotated

import rich
import typer

from polymax_recipes.cli import fail, plain_errors
from polymax_recipes.outputs import save_picture, writable_file
from polymax_recipes.series.align import MATRICES, aligned, two_series, write_matrix
from polymax_recipes.series.warp import SMOOTHINGS
from polymax_recipes.training.commands import Force, RunDirectory, load_run
from polymax_recipes.training.run import Run


def add(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (align, plot_centroids):
        app.command()(command)


def align(
    files: Annotated[
        list[Path], typer.Argument(metavar="A [B]", help="Series, a time step a line; or one file of many.")
    ],
    index: Annotated[
        tuple[int, int] | None, typer.Option(metavar="I J", help="Two series of one file, counted from 0.")
    ] = None,
    smoothing: Annotated[str, typer.Option(help=f"One of: {', '.join(SMOOTHINGS)}.")] = "soft",
    gamma: Annotated[float, typer.Option(help="Strength of the smoothing; hard has none.")] = 1.0,
    band: Annotated[int | None, typer.Option(help="Radius of a Sakoe-Chiba band; none by default.")] = None,
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("alignment.png"),
    matrix: Annotated[Path | None, typer.Option(help="File to write the expected alignment to, .csv or .npy.")] = None,
    force: Force = False,
) -> None:
    """Align two series by dynamic time warping: print the discrepancy and the best path, and draw both."""
    from polymax import plot

    with plain_errors("stopped", ValueError):
        writable_file(out, inputs=files)
        if matrix is not None:
            writable_file(matrix, "--matrix", inputs=[*files, out], force=force)
            if matrix.suffix not in MATRICES:
                fail(f"--matrix must end in {' or '.join(MATRICES)}; got {matrix}")
        if smoothing not in SMOOTHINGS:
            fail(f"--smoothing must be one of {', '.join(SMOOTHINGS)}; got {smoothing}")
        if not 0 < gamma < float("inf"):
            fail(f"--gamma must be positive and finite; got {gamma:g}")
        if band is not None and band < 0:
            fail(f"--band must not be negative; got {band}")
        x, y = two_series(files, index)
        found = aligned(x, y, smoothing, gamma, band)
        console = rich.get_console()

        def say(text: str) -> None:
            console.print(text, highlight=False, soft_wrap=True, markup=False)

        say(f"series {len(x)} and {len(y)} steps, {x.shape[1]} dimensions")
        # adding 0.0 turns -0.0 into 0.0
        say(f"discrepancy {found.value.item() + 0.0:.6g}")
        say(f"expected {int((found.expected > 0).sum())} cells above 0, of {found.expected.numel()}")
        say("path " + " ".join(f"{i},{j}" for i, j in found.cells.tolist()))
        axes = plot.alignment(found.expected, x, y, path=found.path)
        save_picture(axes.figure, out, bbox_inches="tight", dpi=150)
        say(f"wrote {out}")
        if matrix is not None:
            write_matrix(matrix, found.expected)
            say(f"wrote {matrix}")


def plot_centroids(
    run: RunDirectory,
    data: Annotated[Path | None, typer.Option(help="Series to draw; those of the training by default.")] = None,
    dimension: Annotated[int, typer.Option(help="Dimension of the series, counted from 0.")] = 0,
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("centroids.png"),
) -> None:
    """Draw the centroids of a run of series over the series, a panel for each class."""
    from polymax_recipes.series.data import read_labelled_series, shape_of
    from polymax_recipes.series.model import Centroids
    from polymax_recipes.series.pictures import centroid_panels
    from polymax_recipes.series.task import classes_of
    from polymax_recipes.training.run import Config

    with plain_errors("stopped", ValueError):
        writable_file(out, inputs=[*([] if data is None else [data]), *Run(run).files])
        trained = load_run(run, "cpu")
        if not isinstance(trained.model, Centroids):
            fail(f"{run} must be a run of series with --model centroids; it has no centroids to draw")
        files = [Path(file) for file in Config.read(Run(run).config).files["train"]] if data is None else [data]
        examples = read_labelled_series(files)
        dimensions = shape_of(trained.vocabularies).dimensions
        # raises an error for series that do not fit the model
        trained.task.encode(examples, trained.vocabularies)
        if not 0 <= dimension < dimensions:
            fail(f"--dimension must be from 0 to {dimensions - 1}; got {dimension}")
        series = {label: [s.values for s in examples if s.label == label] for label in classes_of(trained.vocabularies)}
        centroids = [trained.model.points(k) for k in range(len(series))]
        save_picture(centroid_panels(centroids, series, dimension), out, dpi=150)
        rich.get_console().print(f"wrote {out}", highlight=False, soft_wrap=True, markup=False)
