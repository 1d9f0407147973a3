"""ListOps as a task of the command."""

from collections.abc import Sequence
from pathlib import Path

from polymax_recipes.latent.data import Example, Given, Sentence, of_expression
from polymax_recipes.latent.options import LatentOptions
from polymax_recipes.latent.task import LatentTask
from polymax_recipes.latent.trees import Found
from polymax_recipes.listops import DIGITS, END, LONG_HEADER, OPERATORS, PUBLISHED, parse_expression, read_listops
from polymax_recipes.metrics.counts import share
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.tables import Role, Row
from polymax_recipes.training.task import Report, Trained, Vocabularies
from polymax_recipes.training.vocabulary import Words, stored_words


def inner_lists(sentence: Sentence) -> list[tuple[int, int]]:
    """First and last token of the lists inside of an expression.

    Example:
        >>> inner_lists(of_expression(parse_expression("[MAX 2 [SM 7 6 ] ]")).sides[0])
        [(2, 5)]
    """
    heads = sentence.heads or ()
    ends = [place for place, token in enumerate(sentence.tokens) if token == END]
    # the last end belongs to the whole expression
    return [(heads[place] - 1, place) for place in ends[:-1]]


class ListOpsTask(LatentTask):
    """Expressions of ListOps and their values; all values and trees are known."""

    name = "listops"
    summary = "find the value of ListOps expressions, and with it their trees"
    Options = LatentOptions

    def read(self, files: Sequence[Path]) -> list[Example]:
        return [of_expression(expression) for file in files for expression in read_listops(file)]

    roles = (
        Role("source", ("expression", "Source", "text"), given=True),
        Role("target", ("Target", "label", "value"), needed=False),
    )
    monitor = ("accuracy",)

    def of_row(self, row: Row, options: LatentOptions) -> Example:
        try:
            example = of_expression(parse_expression(row.line("source")))
        except ReadError:
            raise
        except ValueError as error:
            raise row.error(str(error)) from error
        if row.has("target") and row.text("target") != example.label:
            raise row.error(f"target must be the value {example.label}; got {row.text('target')}")
        return example

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        return [row.line("source")]

    def vocabularies(self, examples: list[Example], options: LatentOptions) -> Vocabularies:
        met = {token for example in examples for token in example.sides[0].tokens}
        further = (token for token in OPERATORS if token not in PUBLISHED and token in met)
        tokens = (*DIGITS, *PUBLISHED, *further, END)
        return {"words": Words(tokens), "labels": Words(DIGITS), "sides": Words(("expression",))}

    def refuse(self, examples: Sequence[Example], vocabularies: Vocabularies) -> None:
        """Raise a ValueError for operators outside of the training data."""
        known = set(stored_words(vocabularies, "words").words)
        for example in examples:
            for token in example.sides[0].tokens:
                if token not in known:
                    operators = ", ".join(sorted(word for word in known if word.startswith("[")))
                    raise ValueError(f"unknown operator {token}; the training has {operators}")

    def measures(self, made: Found, examples: Sequence[Example]) -> Report:
        """The share of inner lists that are constituents of the tree, whatever the tree inside each list."""
        if not made.spans:
            return {}
        wanted = [set(inner_lists(example.sides[0])) for example in examples]
        right = sum(len(lists & set(spans)) for lists, spans in zip(wanted, made.spans))
        return {"lists": share(right, sum(map(len, wanted)))}

    def parse(self, file: str, unit: list[Line]) -> Given | None:
        """An expression, with its value and a tab before or after it, or without."""
        (line,) = unit
        if line.blank or (line.number == 1 and line.text == LONG_HEADER):
            return None
        columns = line.text.split("\t")
        # the value may stand before or after
        text = columns[0] if len(columns) == 2 and columns[1] in DIGITS else columns[-1]
        try:
            return Given(file, line.number, of_expression(parse_expression(text)).sides)
        except ValueError as error:
            raise ReadError.at(file, line.number, str(error)) from error


task = ListOpsTask()
