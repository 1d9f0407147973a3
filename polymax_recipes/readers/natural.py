"""Names in the order in which people count them."""

import re
from collections.abc import Iterable
from math import isfinite


def natural_order(names: Iterable[str]) -> list[str]:
    """Return names in natural order: numbers are sorted by their value, also inside of names.

    Example:
        >>> natural_order(["10", "9", "-1"]), natural_order(["class10", "class9", "a"])
        (['-1', '9', '10'], ['a', 'class9', 'class10'])
    """
    names = sorted(set(names))
    if all(_is_number(name) for name in names):
        return sorted(names, key=float)
    return sorted(names, key=_parts)


def _is_number(name: str) -> bool:
    try:
        return isfinite(float(name))
    except ValueError:
        return False


def _parts(name: str) -> list[tuple[bool, int, str]]:
    """The key by which a text is sorted: its runs of digits as numbers, which come before all other characters."""
    found = re.findall("[0-9]+|[^0-9]+", name)
    return [(not part[0].isdecimal(), int(part) if part[0].isdecimal() else 0, part) for part in found]
