"""What looks wrong though nothing forbids it: warnings of a kind of their own, in one line each at the command."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polymax

# of what was left out so many are listed
LISTED = 20
PACKAGES = Path(__file__).parents[0], Path(polymax.__file__).parent


class Doubt(UserWarning):
    """Data or results that are probably not what was meant."""


def doubt(message: str) -> None:
    """Warn of something that looks wrong."""
    warnings.warn(message, Doubt, stacklevel=3)


def doubt_skipped(skipped: Sequence[ValueError], total: int) -> None:
    """Warn of what was left out, how much of how much, and where: the first 20 of them."""
    if skipped:
        listed = [f"  {error}" for error in skipped[:LISTED]]
        more = [f"  and {len(skipped) - LISTED} more"] if len(skipped) > LISTED else []
        doubt("\n".join([f"left out {len(skipped)} of {total} sentences that cannot be read:", *listed, *more]))


@contextmanager
def plain_doubts() -> Iterator[None]:
    """Print doubts and other warnings of polymax as `warning: ...`, without the line of code that warns.

    Warnings of other packages are as they were.
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
