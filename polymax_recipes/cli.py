"""The command `polymax`: `pip install polymax[cli]`."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import polymax
from polymax_recipes.doubts import plain_doubts
from polymax_recipes.outputs import atomic_write
from polymax_recipes.outputs import writable_file as writable_file

# the order of use; others follow, and those that draw are last
ORDER = ("train", "predict", "evaluate", "explore", "serve", "demo", "bench", "warmup")


def main() -> None:
    """Entry point of the command."""
    missing = [package for package in ("typer", "rich", "matplotlib") if find_spec(package) is None]
    if missing:
        fail(f"the command polymax needs {', '.join(missing)}: pip install 'polymax[cli]'")
    # output is flushed inside of this block, so that errors of writing are caught here
    with plain_errors("stopped"), plain_doubts():
        try:
            application()()
        finally:
            sys.stdout.flush()


def application() -> Any:
    """The typer application, built in a function: without typer the command then prints a message, and no traceback."""
    import rich
    import typer

    class InOrder(typer.core.TyperGroup):
        """Commands in the order in which they are used."""

        def list_commands(self, ctx: Any) -> list[str]:
            """Return the names of all commands: first those in ORDER, then others, last those that draw."""
            names = [*ORDER, *(name for name in self.commands if name not in ORDER)]
            return sorted(names, key=lambda name: name.startswith(("plot-", "draw-")))

    app = typer.Typer(
        cls=InOrder,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    here = Path("demo-output")

    def version(asked: bool) -> None:
        if asked:
            print(f"polymax {polymax.__version__}")
            raise typer.Exit

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """Differentiable sparse and structured inference for PyTorch."""
        # a kernel that is compiled at its first call logs a line
        told = logging.StreamHandler()
        told.setFormatter(logging.Formatter("%(message)s"))
        logger = logging.getLogger("polymax")
        logger.handlers = [told]
        logger.setLevel(logging.INFO)

    from polymax_recipes.explore.commands import explore
    from polymax_recipes.serve.commands import serve
    from polymax_recipes.training import commands as training

    training.add(app)
    app.command()(explore)
    app.command()(serve)

    @app.command()
    def demo(out: Annotated[Path, typer.Option(help="Directory for pictures and report.")] = here) -> None:
        """Show mappings on a sentence and structures, measure speed, learn a translation, and report all of it.

        Every mapping weighs the words of one sentence, every smoothing finds an
        alignment, tags and trees, and every mapping is timed. Numbers in words
        are learned by three kinds of attention, if the packages for training are
        there. Pictures and report.html are written.
        """
        with plain_errors(f"stopped; what was written stays in {out}"):
            from polymax_recipes.demo import run as recipe

            recipe.demo(out)

    @app.command()
    def bench(
        device: Annotated[str, typer.Option(help="Device to measure: cpu, cuda, cuda:1, ...")] = "cpu",
        out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    ) -> None:
        """Measure every mapping against torch.softmax, forward and backward."""
        with plain_errors("stopped; nothing was written"):
            from polymax_recipes.demo import speed, terminal

            try:
                speed.available(device)
            except ValueError as error:
                fail(f"--device: {error}")
            if out is not None:
                writable_file(out, force=force)
            console = rich.get_console()
            timings = terminal.measure_all(console, speed.SHAPES, device=device)
            terminal.print_speed(console, timings)
            if out is not None:
                with atomic_write(out) as temporary:
                    text = json.dumps(speed.results(timings, device), indent=2) + "\n"
                    temporary.write_text(text, encoding="utf-8")
                console.print(f"wrote {out}", highlight=False, soft_wrap=True)

    @app.command()
    def warmup(
        names: Annotated[
            list[str] | None, typer.Argument(metavar="[NAME]...", help="Names to compile; by default all.")
        ] = None,
        device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
        dtype: Annotated[str, typer.Option(help="The type of scores: float32 or float64.")] = "float32",
        jobs: Annotated[int, typer.Option(min=0, help="Compilers at once; 0 for as many as there are cores.")] = 0,
    ) -> None:
        """Compile kernels ahead, so that no first call has to wait for them."""
        from polymax_recipes.demo import speed
        from polymax_recipes.warmup import DTYPES, PROBLEMS, warm_up

        with plain_errors("stopped; what was compiled is kept", ValueError):
            if dtype not in DTYPES:
                raise ValueError(f"--dtype must be float32 or float64; got {dtype!r}")
            speed.available(device)
            for name, seconds in warm_up(names or list(PROBLEMS), DTYPES[dtype], device, jobs or None):
                rich.get_console().print(f"{name:18} {seconds:6.1f} s", highlight=False)

    training.add_drawing(app)
    return app


def fail(message: object) -> NoReturn:
    """Print one line and leave with exit code 1."""
    print(f"error: {message_of(message) if isinstance(message, Exception) else message}", file=sys.stderr)
    sys.exit(1)


def message_of(error: Exception) -> str:
    """Return the message of an error; for an error of the system it names the file, and leaves out the number.

    Example:
        >>> message_of(FileNotFoundError(2, "No such file or directory", "train.txt"))
        'train.txt: no such file or directory'
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror[0].lower()}{error.strerror[1:]}"


@contextmanager
def plain_errors(stopped: str | Callable[[], str], refused: type[Exception] = OSError) -> Iterator[None]:
    """Turn errors of the file system into one line and exit code 1, and Ctrl-C into `stopped` and exit code 130.

    Errors of the kind `refused` are about the user's arguments, and become one line too. If the reader of the output
    has closed it, as `head` does, nothing is printed.
    """
    try:
        yield
    except BrokenPipeError:
        # otherwise Python would try to flush the output again at exit
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, refused) as error:
        fail(error)
    except KeyboardInterrupt:
        print(stopped if isinstance(stopped, str) else stopped(), file=sys.stderr)
        sys.exit(130)
