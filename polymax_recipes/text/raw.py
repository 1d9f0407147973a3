"""Raw text as lines of input of a task: its sentences and tokens in the format that a model reads."""

from collections.abc import Iterable, Iterator

from polymax_recipes.readers.lines import Line
from polymax_recipes.text.tokenizer import RawSentence, sentences
from polymax_recipes.training.task import Trained


def tokenized_lines(trained: Trained, lines: Iterable[Line]) -> Iterator[Line]:
    """Convert raw text to lines of input, each with the number of its line in the raw text."""
    for line in lines:
        for sentence in sentences(line.text):
            for text in trained.task.from_text(trained, sentence):
                yield Line(line.number, text, text + "\n")


def conllu_lines(sentence: RawSentence) -> list[str]:
    """A sentence in CoNLL-U with only its forms.

    Example:
        >>> conllu_lines(sentences("Go!")[0])[:2]
        ['# text = Go!', '1\\tGo\\t_\\t_\\t_\\t_\\t_\\t_\\t_\\tSpaceAfter=No']
    """
    rows = [
        "\t".join([str(k), form, *"_" * 7, "_" if space else "SpaceAfter=No"])
        for k, (form, space) in enumerate(zip(sentence.tokens, sentence.spaces), 1)
    ]
    return [f"# text = {sentence.text}", *rows, ""]
