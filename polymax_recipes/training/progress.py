"""Progress of a prediction: a bar on a terminal, elsewhere a line every half minute."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import Progress, TextColumn

from polymax_recipes.readers.lines import lines
from polymax_recipes.readers.tables import is_table

# seconds between two lines
SECONDS = 30.0


@dataclass
class Clock:
    """A timer that is due whenever another line should be printed."""

    since: float = field(default_factory=monotonic)

    def due(self) -> bool:
        """Return True if it is time for the next line."""
        if monotonic() - self.since < SECONDS:
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Begin to count the time from this moment."""
        self.since = monotonic()


@contextmanager
def progress_of_lines(source: Path) -> Iterator[Callable[[int], None]]:
    """Give a function that counts finished lines and reports them on the standard error."""
    start, console = monotonic(), Console(stderr=True)
    if not console.is_terminal:
        clock, done = Clock(), 0

        def tell(count: int) -> None:
            nonlocal done
            done += count
            if clock.due():
                print(f"{done:,} lines, {done / (monotonic() - start):,.0f} lines/s", file=sys.stderr, flush=True)

        yield tell
        return
    # lines of a pipe cannot be counted in advance
    total = sum(1 for _ in lines(source)) if source.is_file() and not is_table(source) else None
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[speed]}"), console=console) as bar:
        shown = bar.add_task("lines", total=total, speed="")

        def advance(count: int) -> None:
            bar.advance(shown, count)
            bar.update(shown, speed=f"{bar.tasks[shown].completed / (monotonic() - start):,.0f} lines/s")

        yield advance
