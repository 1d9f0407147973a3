"""The command that serves runs."""

import logging
from contextlib import closing
from pathlib import Path
from typing import Annotated

import rich
import typer

from polymax_recipes.cli import plain_errors
from polymax_recipes.serve.limits import Limits
from polymax_recipes.serve.models import LoadModels, Source
from polymax_recipes.serve.predictions import Served, routes
from polymax_recipes.serve.server import Server
from polymax_recipes.serve.workers import Pool
from polymax_recipes.training.commands import Device, Late, Threads
from polymax_recipes.training.run import Run, check_run
from polymax_recipes.training.settings import check_threads

Host = Annotated[
    str, typer.Option(help="Address to listen on. Only this machine reaches 127.0.0.1; all reach 0.0.0.0.")
]
Workers = Annotated[
    int, typer.Option(min=1, max=64, help="Processes that compute, each with all models; one is kept for short inputs.")
]
MemoryLimit = Annotated[float, typer.Option(min=0, help="Most GiB of a process beyond its models; 0 for any.")]


def serve(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories that train wrote.")],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")] = 8750,
    most: Annotated[int, typer.Option("--batch", min=1, help="Most inputs that are computed together.")] = 64,
    body: Annotated[int, typer.Option("--max-body", min=1, help="Most bytes of a request.")] = Limits.body,
    words: Annotated[
        int, typer.Option("--max-words", min=0, help="Most words of an input; 0 for what each task takes.")
    ] = 0,
    seconds: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to compute a result at most.")] = 30.0,
    workers: Workers = 2,
    memory: MemoryLimit = 4.0,
    device: Device = "auto",
    threads: Threads = 0,
    options: Late = None,
) -> None:
    """Answer requests over HTTP with predictions of trained models.

    POST {"inputs": [...], "run": 0} to /api/predict; GET / lists all end points. Without --host, only this machine can
    connect; with it, put a proxy in front that checks who may ask.
    """
    logging.basicConfig(format="%(levelname)s %(message)s")
    with plain_errors("stopped", ValueError):
        check_threads(threads)
        limits = Limits(body=body, computing=seconds, words=words, memory=int(memory * 2**30))
        sources = tuple(Source(check_run(Run(run)).path, device, tuple(options or ())) for run in runs)
        pool = Pool(LoadModels(sources), workers, most, memory=limits.memory, threads=threads)
        with closing(pool):
            served = [Served(**about) for about in pool.about]
            with Server((host, port), routes(pool, served, limits), limits=limits) as server:
                for run in served:
                    say(f"{run.name}: {run.task}")
                run_forever(server, f"{server.url}api/predict")


def run_forever(server: Server, said: str) -> None:
    """Answer requests until Ctrl-C is pressed."""
    say(said)
    if not server.is_local:
        say("anyone who can reach this address can send requests; there is no password")
    say("Ctrl-C ends it")
    server.serve_forever()


def say(text: str) -> None:
    """Print a line as it is."""
    rich.get_console().print(text, highlight=False, soft_wrap=True, markup=False)
