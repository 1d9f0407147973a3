"""The network that reads sentences, as the vocabularies of a run say: a new one, or a pretrained one."""

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
    """The module that reads sentences; it draws its weights from torch, and `begin` takes pretrained ones."""
    return (PretrainedReader if "network" in vocabularies else TextReader)(options, vocabularies)
