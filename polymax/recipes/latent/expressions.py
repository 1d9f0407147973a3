"""ListOps as a task of the command."""

from collections.abc import Sequence
from pathlib import Path

from polymax.recipes.latent.data import Example, of_expression
from polymax.recipes.latent.options import LatentOptions
from polymax.recipes.latent.task import LatentTask
from polymax.recipes.listops import DIGITS, TOKENS, parse_expression, read_listops
from polymax.recipes.readers.lines import ReadError
from polymax.recipes.training.task import Trained, Vocabularies
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

    def parse(self, trained: Trained, text: str, number: int) -> Example:
        try:
            return of_expression(parse_expression(text.split("\t")[-1]))
        except ValueError as error:
            raise ReadError.at("input", number, str(error)) from error


task = ListOpsTask()
