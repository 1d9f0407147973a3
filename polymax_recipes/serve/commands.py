"""The command that serves a run."""

import logging
from typing import Annotated

import rich
import typer

from polymax_recipes.cli import plain_errors
from polymax_recipes.serve.predictions import Served, routes
from polymax_recipes.serve.server import Limits, Server
from polymax_recipes.training.commands import Device, Late, RunDirectory, Threads, load_run
from polymax_recipes.training.settings import use_threads

Host = Annotated[str, typer.Option(help="Address to listen on; others than this machine reach it if it says so.")]


def serve(
    run: RunDirectory,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")] = 8750,
    most: Annotated[int, typer.Option("--batch", min=1, help="Most inputs that are computed together.")] = 64,
    body: Annotated[int, typer.Option("--max-body", min=1, help="Most bytes of a request.")] = Limits.body,
    seconds: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a result may take.")] = 30.0,
    device: Device = "auto",
    threads: Threads = 0,
    options: Late = None,
) -> None:
    """Answer requests over HTTP with what a trained model finds.

    POST {"inputs": [...]} to /api/predict; GET /api/schema describes all of it. Only this machine is listened to,
    unless --host says otherwise; then put a proxy in front that knows who may ask.
    """
    logging.basicConfig(format="%(levelname)s %(message)s")
    with plain_errors("stopped", ValueError), use_threads(threads):
        served = Served.of(run, load_run(run, device, options), most)
        limits = Limits(body=body, computing=seconds)
        with Server((host, port), routes([served], limits), limits=limits) as server:
            run_forever(server, f"{run}: {served.trained.task.name} at {server.url}api/predict")


def run_forever(server: Server, said: str) -> None:
    """Answer requests until Ctrl-C is pressed."""
    console = rich.get_console()
    console.print(said, highlight=False, soft_wrap=True, markup=False)
    if not server.is_local:
        console.print("everybody who reaches this address can ask; there is no password", soft_wrap=True, markup=False)
    console.print("Ctrl-C ends it", soft_wrap=True, markup=False)
    server.serve_forever(poll_interval=0.2)
