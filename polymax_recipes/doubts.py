"""Warnings about data and results that are valid but look wrong; the command prints each in one line."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polymax
from polymax_recipes.readers.lines import ReadError

PACKAGES = Path(__file__).parents[0], Path(polymax.__file__).parent


class Doubt(UserWarning):
    """A warning that data or results are probably not as intended."""


def doubt(message: str) -> None:
    """Give a warning of this kind."""
    warnings.warn(message, Doubt, stacklevel=3)


class Skipped(list[ReadError]):
    """The errors of sentences that were left out."""


class Kept(list[Any]):
    """The examples of files, with the errors of those that were left out in `skipped`."""

    skipped: Sequence[ReadError] = ()


def with_skipped(found: list[Any], skipped: Skipped | None, files: Sequence[Path]) -> list[Any]:
    """Return the examples of files with the errors of the skipped ones, after a warning that lists these."""
    if not found:
        raise ValueError(f"{', '.join(map(str, files))}: no sentence can be read")
    if not skipped:
        return found
    doubt_skipped(skipped, len(found) + len(skipped))
    kept = Kept(found)
    kept.skipped = tuple(skipped)
    return kept


def skipped_of(examples: Sequence[Any]) -> Sequence[ReadError]:
    """Return the errors of the sentences that were left out of some examples."""
    return examples.skipped if isinstance(examples, Kept) else ()


def doubt_skipped(skipped: Sequence[ValueError], total: int) -> None:
    """Warn of skipped sentences: their number, the number of all, and the place of each."""
    listed = [f"  {error}" for error in skipped]
    doubt(
        "\n".join(
            [
                f"left out {len(skipped)} of {total} sentences that cannot be read; measures are those of the others, "
                "and not comparable with measures of the whole file:",
                *listed,
            ]
        )
    )


@contextmanager
def plain_doubts() -> Iterator[None]:
    """Print doubts and other warnings of polymax as `warning: ...`, without the line of code that warns.

    Warnings of other packages do not change.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", Doubt)
        show = warnings.showwarning

        def shown(message: Any, category: type[Warning], filename: str, *rest: Any, **named: Any) -> None:
            ours = any(Path(filename).is_relative_to(package) for package in PACKAGES)
            if issubclass(category, Doubt) or ours:
                print(f"warning: {message}", file=sys.stderr)
            else:
                show(message, category, filename, *rest, **named)

        warnings.showwarning = shown
        yield
