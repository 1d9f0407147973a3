"""ListOps as a task of the command."""

from collections.abc import Sequence
from pathlib import Path

from polymax.recipes.latent.data import Example, Given, of_expression
from polymax.recipes.latent.options import LatentOptions
from polymax.recipes.latent.task import LatentTask
from polymax.recipes.listops import DIGITS, TOKENS, parse_expression, read_listops
from polymax.recipes.readers.lines import Line, ReadError
from polymax.recipes.training.task import Vocabularies
from polymax.recipes.training.vocabulary import Words


class ListOpsTask(LatentTask):
    """Expressions and their values: all tokens and values are known beforehand, and so is every tree."""

    name = "listops"
    summary = "find the value of ListOps expressions, and with it their trees"
    Options = LatentOptions

    def read(self, files: Sequence[Path]) -> list[Example]:
        return [of_expression(expression) for file in files for expression in read_listops(file)]

    def vocabularies(self, examples: list[Example], options: LatentOptions) -> Vocabularies:
        return {"words": Words(TOKENS), "labels": Words(DIGITS), "sides": Words(("expression",))}

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
