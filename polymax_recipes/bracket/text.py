"""Sentences to be parsed: lines of words, or bracketed trees, of which only the words are read."""

from collections.abc import Iterable, Iterator

from polymax_recipes.bracket.data import cleaned
from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.trees import numbered_trees


def units(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Groups of lines: a line that begins with a bracket, with all lines up to the closing bracket; or another line
    alone.

    Example:
        >>> [len(unit) for unit in units(Line(0, text, text) for text in ("a dog", "(NP (DT a)", "  (NN dog))", ""))]
        [1, 2, 1]
    """
    unit: list[Line] = []
    depth = 0
    for line in lines:
        if not unit and not line.text.lstrip(" \t").startswith("("):
            yield [line]
            continue
        unit.append(line)
        depth += line.text.count("(") - line.text.count(")")
        # the reader of the unit reports invalid trees
        if depth <= 0 or line.blank:
            yield unit
            unit, depth = [], 0
    if unit:
        yield unit


def sentences(file: str, unit: list[Line]) -> list[list[str]]:
    """The words of each sentence of a unit: no sentence for a blank line, several if trees share a line.

    Example:
        >>> sentences("input", [Line(1, "(NP (DT a)", ""), Line(2, "  (NN dog))", "")])
        [['a', 'dog']]
    """
    if not unit[0].text.lstrip(" \t").startswith("("):
        words = unit[0].text.replace("\t", " ").split(" ")
        return [[word for word in words if word]] if not unit[0].blank else []
    trees = (cleaned(tree) for _, tree in numbered_trees(file, unit))
    return [tree.words for tree in trees if tree is not None]
