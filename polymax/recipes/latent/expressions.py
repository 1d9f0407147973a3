"""ListOps as a task of the command."""

from collections.abc import Sequence
from pathlib import Path

from polymax.recipes.latent.data import Example, Given, Sentence, of_expression
from polymax.recipes.latent.options import LatentOptions
from polymax.recipes.latent.task import LatentTask
from polymax.recipes.latent.trees import Found
from polymax.recipes.listops import DIGITS, END, TOKENS, parse_expression, read_listops
from polymax.recipes.metrics.counts import share
from polymax.recipes.readers.lines import Line, ReadError
from polymax.recipes.training.task import Report, Vocabularies
from polymax.recipes.training.vocabulary import Words


def inner_lists(sentence: Sentence) -> list[tuple[int, int]]:
    """First and last token of the lists inside of an expression.

    Example:
        >>> inner_lists(of_expression(parse_expression("[MAX 2 [SM 7 6 ] ]")).sides[0])
        [(2, 5)]
    """
    heads = sentence.heads or ()
    ends = [place for place, token in enumerate(sentence.tokens) if token == END]
    # the last one ends the whole
    return [(heads[place] - 1, place) for place in ends[:-1]]


class ListOpsTask(LatentTask):
    """Expressions and their values: all tokens and values are known beforehand, and so is every tree."""

    name = "listops"
    summary = "find the value of ListOps expressions, and with it their trees"
    Options = LatentOptions

    def read(self, files: Sequence[Path]) -> list[Example]:
        return [of_expression(expression) for file in files for expression in read_listops(file)]

    def vocabularies(self, examples: list[Example], options: LatentOptions) -> Vocabularies:
        return {"words": Words(TOKENS), "labels": Words(DIGITS), "sides": Words(("expression",))}

    def measures(self, made: Found, examples: Sequence[Example]) -> Report:
        """The share of lists inside of others that are constituents, in whichever order each takes its arguments."""
        if not made.spans:
            return {}
        wanted = [set(inner_lists(example.sides[0])) for example in examples]
        right = sum(len(lists & set(spans)) for lists, spans in zip(wanted, made.spans))
        return {"lists": share(right, sum(map(len, wanted)))}

    def parse(self, file: str, unit: list[Line]) -> Given | None:
        """An expression, with its value and a tab before or without."""
        (line,) = unit
        if line.blank:
            return None
        try:
            return Given(file, line.number, of_expression(parse_expression(line.text.split("\t")[-1])).sides)
        except ValueError as error:
            raise ReadError.at(file, line.number, str(error)) from error


task = ListOpsTask()
