"""The command draw-tones: utterances with known boundaries, made of tones."""

from pathlib import Path
from typing import Annotated

import rich
import typer

from polymax_recipes.cli import fail, plain_errors
from polymax_recipes.speech_align.tones import write_tones


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(draw_tones)


def draw_tones(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for .wav files and utterances.tsv.")],
    count: Annotated[int, typer.Option(min=1, help="Utterances.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    noise: Annotated[float, typer.Option(min=0.0, help="Standard deviation of the noise; tones are below 0.4.")] = 0.02,
) -> None:
    """Make utterances of tones with known boundaries: .wav files, and a table of tokens and their ends."""
    with plain_errors("stopped", ValueError):
        if (out / "utterances.tsv").exists():
            fail(f"FOLDER: {out / 'utterances.tsv'} exists")
        table = write_tones(out, count, seed, noise)
        rich.get_console().print(f"wrote {table}", highlight=False, soft_wrap=True, markup=False)
