"""The commands that train and use models; the flags of a task are the fields of its options."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import rich
import torch
import typer
from rich.table import Table

from polymax_recipes.cli import fail, message_of, plain_errors
from polymax_recipes.doubts import plain_doubts
from polymax_recipes.outputs import FULL, part_of, same_file, save_picture, writable_file
from polymax_recipes.readers.lines import Line, lines
from polymax_recipes.readers.tables import read_table
from polymax_recipes.text.raw import tokenized_lines
from polymax_recipes.training.digests import digest
from polymax_recipes.training.predict import CHUNK, as_lines, predicted, record_of, write_predictions
from polymax_recipes.training.progress import progress_of_lines
from polymax_recipes.training.run import Run, load
from polymax_recipes.training.settings import Learning, Running, flag, use_threads
from polymax_recipes.training.shards import Shard, shard_lines
from polymax_recipes.training.task import MODULES, Report, Task, Trained, columns_of, named, register_file
from polymax_recipes.training.vocabulary import END, SPECIALS

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Directory that train wrote.")]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda, cuda:1, ...")]
Threads = Annotated[int, typer.Option(min=0, help="Threads on the CPU; 0 for as many as torch chooses.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that exists.")]
TaskFile = Annotated[
    Path | None,
    typer.Option(
        "--task",
        metavar="FILE",
        callback=lambda file: _registered(file),
        is_eager=True,
        help="Python file with a task of your own, which is run.",
    ),
]
Late = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another value of an option that may change after training; may be repeated.",
    ),
]


def add(app: typer.Typer) -> None:
    """Add the commands train, predict and evaluate to the application."""
    group = typer.Typer(no_args_is_help=True, cls=TrainGroup)

    @group.callback()
    def train(task: TaskFile = None) -> None:
        """Train a model of a task, or resume its training."""

    # an empty group would be an error of typer
    for name in MODULES:
        _add_task(group, name)
    app.add_typer(group, name="train")
    for command in (predict, evaluate):
        app.command()(command)


def add_drawing(app: typer.Typer) -> None:
    """Add the commands that draw, and the commands of single tasks."""
    for command in (plot_log, plot_attention):
        app.command()(command)
    # tasks of one package share its commands
    for package in dict.fromkeys(module.rpartition(".")[0] for module in MODULES.values()):
        if package and _there(f"{package}.commands"):
            import_module(f"{package}.commands").add(app)


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _add_task(group: typer.Typer, name: str) -> None:
    try:
        task = named(name)
    except ImportError as error:
        # an error in another package must not stop this command
        print(f"warning: the task {name} cannot be loaded: {error}", file=sys.stderr)
        return
    group.command(name, help=f"Train to {task.summary}.")(train_command(task))


class TrainGroup(typer.core.TyperGroup):
    """The group `train`, whose option --task adds a command before commands are looked up."""

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return the command of a task, also of a task that a file has just registered."""
        if name not in MODULES or name in self.commands:
            return super().get_command(ctx, name)
        alone = typer.Typer()
        _add_task(alone, name)
        command = typer.main.get_command(alone)
        command.name = name
        return command


def train_command(task: Task) -> Callable[..., None]:
    """The command that trains a task, with a flag for every field of its options and of the trainer's."""

    def command(out: Path, resume: bool, **given: Any) -> None:
        if find_spec("lightning") is None:
            fail("training needs the package lightning: pip install 'polymax[train]'")
        files = {part: [Path(file) for file in given.pop(part) or ()] for part in ("train", "dev", "test")}
        chosen = {name: value for name, value in given.items() if value is not None}

        def stopped() -> str:
            return f"stopped; --resume continues {out}" if Run(out).config.exists() else "stopped; nothing was written"

        with plain_errors(stopped, ValueError):
            from polymax_recipes.training.fit import train

            try:
                with plain_doubts():
                    print_reports(train(task.name, files, out, chosen, resume))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                how = f"--resume continues {out}" if Run(out).config.exists() else "start again"
                raise OSError(f"{message_of(error)}: make room, then {how}") from error

    twice = "for parallel texts repeat it, --train SOURCE --train TARGET"
    parts = {
        "train": f"Training data; {twice}.",
        "dev": "Data on which the best epoch is chosen.",
        "test": "Test data.",
    }
    parameters = [_parameter(part, list[Path] | None, help=text, metavar="FILE") for part, text in parts.items()]
    parameters.append(_parameter("out", Path, ..., help="Directory of the run.", metavar="RUN"))
    parameters.append(_parameter("resume", bool, False, "--resume", help="Continue a run that was stopped."))
    for kind in (task.Options, Learning, Running):
        parameters += [_from_field(field) for field in fields(kind)]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def evaluate(
    run: RunDirectory,
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help="Files like those of the training.")],
    device: Device = "auto",
    threads: Threads = 0,
    options: Late = None,
    task: TaskFile = None,
) -> None:
    """Measure a trained model on data."""
    with plain_errors("stopped", ValueError), plain_doubts(), use_threads(threads):
        print_reports({", ".join(file.name for file in data): load_run(run, device, options).evaluate(*data)})


def predict(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN... INPUT",
            help="Directories that train wrote, each of which reads what the one before it writes; and a file of "
            "inputs, - for standard input.",
        ),
    ],
    output: Annotated[Path | None, typer.Option(help="File to write; standard output otherwise.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an output that was stopped.")] = False,
    force: Force = False,
    text: Annotated[
        bool, typer.Option("--text", help="INPUT is raw text: it is cut into sentences and tokens.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out inputs that cannot be read, and list them.")
    ] = False,
    columns: Annotated[
        str, typer.Option(help="Columns of INPUT, a table, such as text=review: by number from 0, or by name.")
    ] = "",
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Only the I-th of N parts; the outputs of all, joined, are the whole.")
    ] = "1/1",
    device: Annotated[
        str, typer.Option(help="Device: auto, cpu, cuda, cuda:1, or several with commas between.")
    ] = "auto",
    threads: Threads = 0,
    options: Late = None,
    task: TaskFile = None,
) -> None:
    """Write the output of a trained model, or of several in turn, for all of the input or for one of N parts of it.

    The file is OUTPUT.part until it is complete.
    """
    *runs, source = places
    with plain_errors("stopped" if output is None else f"stopped; --resume continues {output}", ValueError):
        if output is None:
            if resume or force:
                raise ValueError(f"--{'resume' if resume else 'force'} must come with --output")
            # the output of `>>` would be appended to the input itself
            if same_file(Path("/dev/stdout"), source):
                raise ValueError(f"INPUT: {source} is the file that is written; it must be another one")
        else:
            own = [file for run in runs for file in Run(run).files]
            writable_file(output, "--output", inputs=[source, *own], force=force)
            if same_file(record_of(output), source):
                raise ValueError(f"INPUT: {source} is the record of {output}; it must be another file")
        with use_threads(threads):
            if not runs:
                raise ValueError(f"RUN... INPUT must be a run or several, and an input; got {source} alone")
            part = Shard.parsed(shard)
            if part.count > 1 and str(source) == "-":
                raise ValueError("--shard needs a file: standard input can be read only once")
            devices = [place.strip() for place in device.split(",")]
            earlier = [load_run(run, devices[0]) for run in runs[:-1]]
            trained, *copies = (load_run(runs[-1], place, options) for place in devices)
            first = [*earlier, trained][0]

            def read() -> Iterable[Line]:
                # the last run determines the form in which the others write
                return tokenized_lines(trained, _lines(source)) if text else input_lines(first, source, columns)

            skipped: list[ValueError] | None = [] if skip_bad else None
            before, chosen = shard_lines(first, read, part, CHUNK) if part.count > 1 else (0, read())
            for one in earlier:
                chosen = as_lines(_output_of(one, str(source), chosen, before, skipped))
            if output is None:
                for piece in predicted(trained, str(source), chosen, before, copies, skipped):
                    sys.stdout.writelines(line + "\n" for line in piece.output)
                _list_skipped(skipped)
                return
            # the digest of the weights, since the directory may hold another model later
            weights = [Run(run).weights for run in runs]
            told = [one.options for one in (*earlier, trained)]
            model = f"{digest(weights)} {' '.join(map(str, told))}{f' {shard}' if part.count > 1 else ''}"
            with _errors_with_place(output), progress_of_lines(source) as advanced:
                write_predictions(
                    trained, model, (str(source), chosen), output, resume, force, advanced, before, copies, skipped
                )
            _list_skipped(skipped)


def _output_of(
    trained: Trained, source: str, lines: Iterable[Line], before: int, skipped: list[ValueError] | None
) -> Iterator[str]:
    """The lines that a run writes for the next one."""
    for piece in predicted(trained, source, lines, before, (), skipped):
        yield from piece.output


def input_lines(trained: Trained, source: Path, columns: str = "") -> Iterable[Line]:
    """Return the lines of input of a file; the rows of a table are written as lines first."""
    task = trained.task
    options = replace(trained.options, columns=columns) if columns else trained.options
    if str(source) != "-" and task.takes_table(source, options):
        return task.lines_of_rows(trained, read_table(source, task.roles, columns_of(options), predict=True))
    if columns:
        raise ValueError(f"--columns is for tables, such as .csv, .jsonl, .parquet and datasets; got {source}")
    return _lines(source)


def _registered(file: Path | None) -> Path | None:
    if file is not None:
        with plain_errors("stopped", ValueError):
            register_file(file)
    return file


def _list_skipped(skipped: list[ValueError] | None) -> None:
    if skipped:
        lines = [f"passed over {len(skipped)} inputs that cannot be read:", *(f"  {error}" for error in skipped)]
        print("\n".join(lines), file=sys.stderr)


@contextmanager
def _errors_with_place(output: Path) -> Iterator[None]:
    """Let errors name the file with the output so far."""
    try:
        yield
    except (ValueError, OSError) as error:
        if not record_of(output).exists() or isinstance(error, FileExistsError):
            raise
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"{message_of(error)}; what comes before is in {part_of(output)}, and --resume goes on") from error


def plot_attention(
    run: RunDirectory,
    source: Annotated[str, typer.Option(help="Text to translate; for word-align two, with ||| between.")],
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("attention.png"),
    device: Device = "auto",
    options: Late = None,
) -> None:
    """Draw the attention of a translation: a row for each target word, a column for each source word."""
    from polymax import plot

    with plain_errors("stopped", ValueError):
        writable_file(out, inputs=Run(run).files)
        trained = load_run(run, device, options)
        attended = getattr(import_module(MODULES[trained.task.name]), "attended", None)
        if attended is None:
            fail(f"{run} is a run of {trained.task.name}, which has no attention to draw")
        if not source.strip():
            fail("--source must have a word")
        weights, rows, columns = attended(trained, source)
        axes = plot.attention(weights, rows, columns)
        save_picture(axes.figure, out, bbox_inches="tight", dpi=150)
        words = " ".join(row for row in rows if row != SPECIALS[END])
        rich.get_console().print(f"{words}\nwrote {out}", highlight=False, soft_wrap=True, markup=False)


def plot_log(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories that train wrote.")],
    measure: Annotated[str, typer.Option(help="Column of log.csv; dev_ may be left out.")],
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("log.png"),
) -> None:
    """Draw a measure over the epochs of runs."""
    from polymax_recipes.training.log import plot_measure

    with plain_errors("stopped", ValueError):
        writable_file(out, inputs=[file for run in runs for file in Run(run).files])
        save_picture(plot_measure(runs, measure).figure, out, bbox_inches="tight", dpi=150)
        rich.get_console().print(f"wrote {out}", highlight=False, soft_wrap=True, markup=False)


def print_reports(reports: dict[str, Report]) -> None:
    """A row for each measure, a column for each part of the data."""
    if not reports:
        return
    table = Table("", *reports, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in dict.fromkeys(name for report in reports.values() for name in report):
        table.add_row(name, *(f"{report[name]:.6g}" for report in reports.values()))
    rich.get_console().print(table)


def load_run(run: Path, device: str = "auto", options: list[str] | None = None) -> Trained:
    """Load the model of a run to an available device, with options as flags spell them."""
    given = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set must be NAME=VALUE; got {text}")
        given[name.removeprefix("--").replace("-", "_")] = value
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.empty(0, device=automatic if device == "auto" else device).device
    except (RuntimeError, AssertionError):
        raise ValueError(f"--device: {device!r} cannot be used here") from None
    return load(run, device=str(place), **given)


def _lines(source: Path) -> Iterable[Line]:
    return as_lines(line.rstrip("\r\n") for line in sys.stdin) if str(source) == "-" else lines(source)


def _from_field(field: Any) -> Parameter:
    choices = f" One of: {', '.join(field.metadata['choices'])}." if field.metadata["choices"] else ""
    kind = type(field.default)
    # options that are not given are None, so that a resumed run distinguishes them from given defaults
    default = (
        "" if field.default == "" else f" [default: {str(field.default).lower() if kind is bool else field.default}]"
    )
    shown = {"help": field.metadata["help"] + choices + default, "show_default": False}
    spelled = (f"{flag(field.name)}/{flag('no_' + field.name)}",) if kind is bool else ()
    return _parameter(field.name, kind | None, None, *spelled, **shown)


def _parameter(name: str, kind: Any, default: Any = None, *spelled: str, **shown: Any) -> Parameter:
    option = typer.Option(*(spelled or (flag(name),)), **{"show_default": False, **shown})
    empty = Parameter.empty if default is ... else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=empty, annotation=Annotated[kind, option])
