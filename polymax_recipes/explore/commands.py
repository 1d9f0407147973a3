"""The command that opens the page."""

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from polymax_recipes.cli import plain_errors
from polymax_recipes.explore.app import server
from polymax_recipes.explore.attention_file import AttentionFile
from polymax_recipes.explore.samples import samples
from polymax_recipes.serve.commands import Host, run_forever
from polymax_recipes.serve.models import Source
from polymax_recipes.training.commands import Device, Late, Threads
from polymax_recipes.training.run import Run, check_run
from polymax_recipes.training.settings import check_threads


def explore(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="Directories that train wrote.")] = None,
    attention: Annotated[Path | None, typer.Option(help="File that pm.explore.save_attention wrote.")] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")] = 8750,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    device: Device = "auto",
    threads: Threads = 0,
    options: Late = None,
) -> None:
    """Open a page to play with mappings, structures, trained models and attention; it needs no network.

    Without arguments it shows a small parser, a small tagger and the attention of a small model. With RUN, or two runs
    to compare, type a sentence and see the models' results; with --attention, see the weights of a model.
    """
    with plain_errors("stopped", ValueError):
        check_threads(threads)
        found, shown = samples() if not runs and attention is None else (runs or [], attention)
        weights = None if shown is None else AttentionFile.open(shown)
        sources = [Source(check_run(Run(run)).path, device, tuple(options or ())) for run in found]
        with server(sources, weights, (host, port), threads=threads) as opened:
            view = "#runs" if runs else "#attention" if attention is not None else ""
            if browser:
                threading.Timer(0.3, webbrowser.open, [opened.url + view]).start()
            run_forever(opened, f"polymax explore: {opened.url}{view}")
