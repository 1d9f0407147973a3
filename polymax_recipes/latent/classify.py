"""Classification of sentences and of pairs as a task of the command."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from polymax_recipes.latent.classifier import Classifier
from polymax_recipes.latent.data import ROLES, Example, Given, Sentence, class_examples, read_classes, sentence, tokens
from polymax_recipes.latent.options import ClassifyOptions
from polymax_recipes.latent.rationale import Rationale
from polymax_recipes.latent.task import LatentTask
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.natural import natural_order
from polymax_recipes.readers.tables import Row
from polymax_recipes.training.task import Trained, Vocabularies
from polymax_recipes.training.vocabulary import Words, stored_words

SIDES = ("first", "second")


class ClassifyTask(LatentTask):
    """Sentences or pairs of sentences with any labels."""

    name = "classify"
    summary = "classify sentences, or pairs of them, by way of latent trees"
    Options = ClassifyOptions

    roles = ROLES
    monitor = ("accuracy",)

    def read(self, files: Sequence[Path]) -> list[Example]:
        return [example for file in files for example in read_classes(file)]

    def of_rows(self, rows: Iterable[Row], options: ClassifyOptions) -> list[Example]:
        return list(class_examples(rows))

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        sides = len(stored_words(trained.vocabularies, "sides").words)
        return ["\t".join(row.line(role) for role in ("text", "second")[:sides])]

    def vocabularies(self, examples: list[Example], options: ClassifyOptions) -> Vocabularies:
        empty = Words((), options.lower, options.punctuation)
        texts = (" ".join(tokens(side, empty)) for example in examples for side in example.sides)
        counted = Words.counted(texts, options.words)
        return {
            "words": Words(counted.words, options.lower, options.punctuation),
            "labels": Words(tuple(natural_order(example.label for example in examples))),
            "sides": Words(SIDES[: len(examples[0].sides)]),
        }

    def model(self, options: ClassifyOptions, vocabularies: Vocabularies) -> Classifier:  # type: ignore[override]
        if options.rationale:
            return Rationale(options, self.sizes(vocabularies))
        return super().model(options, vocabularies)

    def parse(self, file: str, unit: list[Line]) -> Given | None:
        """Return the texts between tabs; a binary tree in brackets is read as a tree."""
        (line,) = unit
        if line.blank:
            return None
        fields = line.text.split("\t")
        if not all(field.strip() for field in fields):
            raise ReadError.at(file, line.number, "texts between tabs expected, none empty")
        return Given(file, line.number, tuple(map(_sentence, fields)))


def _sentence(text: str) -> Sentence:
    if text.strip().startswith("( "):
        try:
            return sentence(text, is_tree=True)
        except ValueError:
            # an ordinary sentence may begin with a bracket, too
            return sentence(text)
    return sentence(text)


task = ClassifyTask()
