"""Names in the order in which people count them."""

import re
from collections.abc import Iterable
from math import isfinite


def natural_order(names: Iterable[str]) -> list[str]:
    """Return names in their natural order: numbers by their size, also numbers inside of names.

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
    """The digits of a text as numbers, before all other characters, and the rest as it is."""
    found = re.findall("[0-9]+|[^0-9]+", name)
    return [(not part[0].isdecimal(), int(part) if part[0].isdecimal() else 0, part) for part in found]
