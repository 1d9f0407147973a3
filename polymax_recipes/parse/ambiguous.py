"""The attachments of a corpus that a parser is least sure of."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import log2
from pathlib import Path
from typing import NamedTuple

import torch

from polymax_recipes.parse.alternatives import head_probabilities
from polymax_recipes.parse.model import Parser
from polymax_recipes.readers.conllu import Sentence, read_conllu
from polymax_recipes.text.tokens import TokenTable
from polymax_recipes.training.batches import sorted_batches
from polymax_recipes.training.measured import to_device
from polymax_recipes.training.task import Trained

# sentences that are sorted and parsed together
CHUNK = 1024
# heads of a smaller probability are not listed
LEAST = 0.01
HEADER = "sentence\tid\tword\tbits\theads"


class Attachment(NamedTuple):
    """A word, from 1, the entropy of its head in bits, and its possible heads, most probable first."""

    bits: float
    sentence: str
    word: int
    form: str
    heads: list[tuple[float, int, str]]

    def __str__(self) -> str:
        heads = " | ".join(f"{head} {form} {probability:.4f}" for probability, head, form in self.heads)
        return f"{self.sentence}\t{self.word}\t{self.form}\t{self.bits:.4f}\t{heads}"


def most_ambiguous(trained: Trained, files: Sequence[Path], most: int) -> list[Attachment]:
    """The attachments with the largest entropies among all words of CoNLL-U files, in falling order."""
    sentences = (sentence for file in files for sentence in read_conllu(file, trees=False))
    found = attachments(trained, sentences)
    # equal ones in the order of the text
    ranked = heapq.nsmallest(most, enumerate(found), key=lambda item: (-item[1].bits, item[0]))
    return [attachment for _, attachment in ranked]


@torch.no_grad()
def attachments(trained: Trained, sentences: Iterable[Sentence]) -> Iterator[Attachment]:
    """The words that may have several heads."""
    model, waiting, before = trained.model, iter(sentences), 0
    assert isinstance(model, Parser)
    while chunk := list(islice(waiting, CHUNK)):
        tokens = TokenTable([sentence.forms for sentence in chunk], trained.vocabularies)
        for rows in sorted_batches(tokens.sizes, trained.options.batch):
            mu = head_probabilities(trained.options.loss, model(to_device(tokens[rows], model))).cpu()
            for row, parts in zip(rows.tolist(), mu):
                yield from _of_sentence(chunk[row], before + row + 1, parts)
        before += len(chunk)


def _of_sentence(sentence: Sentence, number: int, mu: torch.Tensor) -> Iterator[Attachment]:
    names = ["ROOT", *sentence.forms]
    # [modifier, head]
    rows = mu[: len(names), 1 : len(names)].T.tolist()
    for word, row in enumerate(rows, 1):
        heads = sorted(((p, head, names[head]) for head, p in enumerate(row) if p > 0), key=lambda h: (-h[0], h[1]))
        bits = -sum(p * log2(p) for p, _, _ in heads)
        if len(heads) > 1:
            listed = [head for head in heads if head[0] >= LEAST]
            yield Attachment(bits, _name(sentence, number), word, names[word], listed)


def _name(sentence: Sentence, number: int) -> str:
    """The `sent_id` of a sentence, or its number."""
    for comment in sentence.comments:
        key, _, value = comment.lstrip("# ").partition("=")
        if key.strip() == "sent_id" and value.strip():
            return value.strip()
    return str(number)
