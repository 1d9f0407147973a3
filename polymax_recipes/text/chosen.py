"""The network that reads sentences, chosen by the vocabularies of a run: new or pretrained."""

from collections.abc import Sequence
from typing import Any

from polymax_recipes.text.pretrained import PieceTable, PretrainedReader
from polymax_recipes.text.reader import TextReader
from polymax_recipes.text.tokens import TokenTable
from polymax_recipes.training.task import Vocabularies


def table_of(sentences: Sequence[Sequence[str]], vocabularies: Vocabularies) -> TokenTable | PieceTable:
    """The sentences in the form in which the reader of a run takes them."""
    return (PieceTable if "network" in vocabularies else TokenTable)(sentences, vocabularies)


def reader_of(options: Any, vocabularies: Vocabularies) -> TextReader | PretrainedReader:
    """Return the module that reads sentences; its weights are random, and `begin` loads pretrained weights."""
    return (PretrainedReader if "network" in vocabularies else TextReader)(options, vocabularies)
