"""Output of the demo and the benchmark on a terminal: rich tables, and a bar while speed is measured."""

from collections.abc import Sequence
from math import ceil

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from polymax_recipes.demo.catalogue import MAPPINGS, call
from polymax_recipes.demo.sentence import WORD, Sentence, counts, short
from polymax_recipes.demo.speed import Timing, caution, measure
from polymax_recipes.demo.structured import Shown
from polymax_recipes.demo.translation import Learned

# shades of weights up to 1/4, 1/2, 3/4 and 1
SHADES = "░▒▓█"


def print_weights(console: Console, shown: Sentence) -> None:
    """Print a row for each mapping: its weights, its exact zeros and its groups of equal positive weights."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for word in shown.source:
        table.add_column(word, justify="right", min_width=3, overflow="fold")
    table.add_column("0s", justify="right", no_wrap=True, style="bold")
    table.add_column("grp", justify="right", no_wrap=True, style="bold")
    for mapping, row in shown.weights().items():
        table.add_row(mapping, *map(short, row), *map(str, counts(row)))
    console.print(f"Weights of the source words for “{WORD}”", style="bold")
    console.print("(· is exactly 0; 0s counts them; grp counts distinct positive weights)\n")
    console.print(table)
    console.print()


def print_structures(console: Console, shown: Sequence[Shown]) -> None:
    """Print a row for each set: its size, and the numbers of parts above 0 in the best and the expected structures."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("", "structures", "HardMax", "LocalMax, Gini", "Marginals"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for problem in shown:
        table.add_row(problem.name, problem.count(), *map(str, problem.positive()))
    console.print("Structures: how many there are, and how many parts each smoothing gives a weight\n", style="bold")
    console.print(table)
    console.print()


def print_translation(console: Console, models: Sequence[Learned]) -> None:
    """The attention of the models side by side, then a row for each: right translations, zeros, groups and speed."""
    source = "  ".join(f"{number} {word}" for number, word in enumerate(models[0].source, 1))
    console.print("Attention that was learned: rows are the French words, columns the English", style="bold")
    console.print(f"(· is exactly 0; {SHADES} are weights up to ¼, ½, ¾, 1)", highlight=False)
    console.print(source + "\n", highlight=False, markup=False)
    panels = Table.grid(padding=(0, 2, 0, 0))
    panels.add_row(*(Text(panel(model), no_wrap=True) for model in models))
    console.print(panels)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for head in models[0].measures():
        table.add_column(head, justify="right")
    for model in models:
        table.add_row(call(model.mapping), *model.measures().values())
    console.print(table)
    console.print()


def panel(model: Learned) -> str:
    """The weights of a model as text: a line for each word of the target, two characters for each of the source."""
    width = max(map(len, model.target))
    lines = [call(model.mapping), " " * width + "".join(f"{k:2}" for k in range(1, len(model.source) + 1))]
    for word, row in zip(model.target, model.weights.tolist()):
        cells = (2 * SHADES[min(ceil(4 * weight), 4) - 1] if weight > 0 else " ·" for weight in row)
        lines.append(f"{word:>{width}}" + "".join(cells))
    return "\n".join(lines)


def print_speed(console: Console, timings: Sequence[Timing]) -> None:
    """Print a row for each mapping, a column for each shape: milliseconds, and multiples of torch.softmax."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for shape in dict.fromkeys(timing.shape for timing in timings):
        table.add_column(" × ".join(map(str, shape)), justify="right", no_wrap=True)
    for mapping in dict.fromkeys(timing.mapping for timing in timings):
        own = [timing for timing in timings if timing.mapping == mapping]
        table.add_row(mapping, *map(str, own))
    console.print("Forward and backward: milliseconds (multiple of torch.softmax)\n", style="bold")
    console.print(table)
    if caution(timings):
        console.print("\n" + caution(timings), style="yellow", highlight=False)
    console.print()


def measure_all(
    console: Console, shapes: Sequence[tuple[int, ...]], *, device: str = "cpu", seconds: float = 0.2
) -> list[Timing]:
    """All timings, with a progress bar while they are taken."""
    timings = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring speed", total=len(MAPPINGS) * len(shapes))
        for timing in measure(shapes=shapes, device=device, seconds=seconds):
            timings.append(timing)
            progress.advance(task)
    return timings
