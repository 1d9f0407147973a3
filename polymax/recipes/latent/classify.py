"""Classification of sentences and of pairs as a task of the command."""

from collections.abc import Sequence
from pathlib import Path

from polymax.recipes.latent.data import Example, read_classes, sentence, tokens
from polymax.recipes.latent.options import ClassifyOptions
from polymax.recipes.latent.task import LatentTask
from polymax.recipes.readers.lines import ReadError
from polymax.recipes.training.task import Trained, Vocabularies
from polymax.recipes.training.vocabulary import Words

SIDES = ("first", "second")


class ClassifyTask(LatentTask):
    """Sentences or pairs of sentences with any labels."""

    name = "classify"
    summary = "classify sentences, or pairs of them, by way of latent trees"
    Options = ClassifyOptions

    def read(self, files: Sequence[Path]) -> list[Example]:
        return [example for file in files for example in read_classes(file)]

    def vocabularies(self, examples: list[Example], options: ClassifyOptions) -> Vocabularies:
        empty = Words((), options.lower, options.punctuation)
        texts = (" ".join(tokens(side, empty)) for example in examples for side in example.sides)
        counted = Words.counted(texts, options.words)
        return {
            "words": Words(counted.words, options.lower, options.punctuation),
            "labels": Words(tuple(sorted({example.label for example in examples}))),
            "sides": Words(SIDES[: len(examples[0].sides)]),
        }

    def parse(self, trained: Trained, text: str, number: int) -> Example:
        """Texts between tabs, with or without a label before them."""
        sides = trained.vocabularies["sides"]
        assert isinstance(sides, Words)
        count = len(sides.words)
        fields = text.split("\t")
        if len(fields) not in (count, count + 1) or not all(field.strip() for field in fields):
            what = "a text" if count == 1 else "two texts between tabs"
            raise ReadError.at("input", number, f"{what} expected, none empty; got {len(fields)} columns")
        is_tree = trained.options.model == "tree-lstm"
        try:
            return Example("", tuple(sentence(field, is_tree) for field in fields[-count:]))
        except ValueError as error:
            raise ReadError.at("input", number, str(error)) from error


task = ClassifyTask()
