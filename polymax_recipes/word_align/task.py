"""Word alignment as a task of the command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.metrics import AlignmentErrorRate
from polymax_recipes.readers.alignments import WordAlignment
from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.tables import Role, Row
from polymax_recipes.results import AlignmentResult, two_texts
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Reading, Report, Task, Trained, Vocabularies, option
from polymax_recipes.word_align.data import Pairs, Sides, parse_sides, read_sides, vocabularies_of, words_of
from polymax_recipes.word_align.explanations import EXPLANATIONS
from polymax_recipes.word_align.model import Aligner

# endings of files in the task's own formats, even if columns are named
NATIVE = (".conllu", ".json")
Links = list[tuple[int, int]]


@dataclass(frozen=True)
class WordAlignOptions(Reading):
    """Options of the model, of its words, and of links."""

    attention: str = option("softmax", "How words are explained by others.", choices=tuple(EXPLANATIONS))
    embedding: int = option(64, "Size of word vectors: the rank of the lexicons.", least=1)
    slope: float = option(5.0, "Preference of the diagonal, before training; 0 for none.")
    spelling: float = option(3.0, "Preference of words that share letters, before training; 0 for none.")
    words: int = option(50_000, "Most words in each vocabulary.", least=1)
    punctuation: bool = option(False, "Split marks and clitics off the words of a text.")
    threshold: float = option(0.5, "A link has a mean weight, of both directions, above this.", late=True)
    batch: int = option(64, "Pairs that are aligned at once.", least=1, late=True)


class WordAlignTask(Task):
    """Sentence pairs; alignments made by hand are measured by, and never learned from."""

    name = "word-align"
    summary = "align the words of sentence pairs, from pairs alone"
    Options = WordAlignOptions
    falling = ("loss", "aer")
    logged = ("aer",)

    def read(self, files: Sequence[Path]) -> list[Sides]:
        return read_sides(files)

    roles = (Role("source", ("src", "first"), given=True), Role("target", ("tgt", "second"), given=True))

    def takes_table(self, file: Path, options: WordAlignOptions) -> bool:
        return super().takes_table(file, options) and not file.name.removesuffix(".gz").endswith(NATIVE)

    def of_row(self, row: Row, options: WordAlignOptions) -> Sides:
        return Sides(_side(row, "source"), _side(row, "target"))

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        return ["\t".join(row.line(role) for role in ("source", "target"))]

    def sample(self, example: Sides) -> Any:
        return [side if isinstance(side, str) else " ".join(side) for side in (example.source, example.target)]

    def vocabularies(self, examples: list[Sides], options: WordAlignOptions) -> Vocabularies:
        return vocabularies_of(examples, options.words, options.punctuation)

    def encode(self, examples: list[Sides], vocabularies: Vocabularies) -> Pairs:
        return Pairs(examples, vocabularies)

    def model(self, options: WordAlignOptions, vocabularies: Vocabularies) -> Aligner:
        return Aligner(options, vocabularies)

    def evaluate(self, trained: Trained, examples: list[Sides]) -> Report:
        measured = means(trained.model, self.encode(examples, trained.vocabularies), trained.options.batch)
        start = perf_counter()
        found = list(aligned(trained, examples))
        seconds = perf_counter() - start
        report: Report = {"pairs": len(examples), "links": sum(len(links) for links, _ in found)}
        judged = [(pair.gold, links) for pair, (links, _) in zip(examples, found) if pair.gold is not None]
        if judged:
            rate = AlignmentErrorRate()
            rate.add((gold.links for gold, _ in judged), (looked_at(gold, links) for gold, links in judged))
            error, precision, recall = rate.result()
            report |= {"aer": error, "precision": precision, "recall": recall}
        zeros, entries = torch.stack([counts for _, counts in found]).sum(0).tolist()
        return {**report, **measured, "zeros": zeros / entries, "pairs_per_second": len(examples) / seconds}

    def parse(self, file: str, unit: list[Line]) -> Sides | None:
        return parse_sides(file, unit[0]) if not unit[0].blank else None

    def results(self, trained: Trained, inputs: list[Any]) -> list[AlignmentResult]:
        found = []
        for one in inputs:
            text = "\t".join(two_texts(one))
            weights, target, source = attended(trained, text)
            links = [(i, j) for i, j in (trained.options.threshold < weights.T).nonzero().tolist()]
            found.append(AlignmentResult(source, target, links, weights.T))
        return found

    def predict(self, trained: Trained, inputs: list[Sides | None], before: int) -> Iterator[str]:
        """Links i-j of source and target words, counted from 0; an empty line stays empty."""
        listed = aligned(trained, [pair for pair in inputs if pair is not None])
        for pair in inputs:
            yield " ".join(f"{i}-{j}" for i, j in next(listed)[0]) if pair is not None else ""


def aligned(trained: Trained, pairs: list[Sides]) -> Iterator[tuple[Links, Tensor]]:
    """The links of pairs, in their order; and a tensor (2,), the numbers of zeros and of all weights in both
    directions.
    """
    if not pairs:
        return
    encoded, model = Pairs(pairs, trained.vocabularies), _aligner(trained)
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    found: list[tuple[Links, Tensor]] = []
    for rows in batches:
        batch = encoded[rows]
        weights = torch.stack(model.weights(to_device(batch, model))).cpu()
        for k, (n, m) in enumerate(zip(batch.source_lengths.tolist(), batch.target_lengths.tolist())):
            both = weights[:, k, :n, :m]
            links = [(i, j) for i, j in (both.mean(0) > trained.options.threshold).nonzero().tolist()]
            found.append((links, torch.stack([(both == 0).sum(), torch.tensor(both.numel())])))
    yield from (found[k] for k in places(batches).tolist())


@torch.no_grad()
def attended(trained: Trained, text: str) -> tuple[Tensor, list[str], list[str]]:
    """The mean weights of both directions for a pair in one text, the words of the target, and those of the source."""
    pair = parse_sides("--source", Line(1, text, text))
    split = trained.options.punctuation
    batch = Pairs([pair], trained.vocabularies)[torch.tensor([0])]
    weights = torch.stack(_aligner(trained).weights(to_device(batch, trained.model))).mean(0)
    return weights[0].T.cpu(), words_of(pair.target, split), words_of(pair.source, split)


def _side(row: Row, role: str) -> str | list[str]:
    return row.tokens(role) if isinstance(row.values.get(role), list) else row.text(role)


def _aligner(trained: Trained) -> Aligner:
    assert isinstance(trained.model, Aligner)
    return trained.model


def looked_at(gold: WordAlignment, links: Links) -> Links:
    """The links of words that were annotated; nothing is known about other words.

    Example:
        >>> looked_at(WordAlignment([(0, 1)], [2], []), [(0, 0), (1, 1), (2, 2), (3, 3)])
        [(0, 0), (1, 1), (2, 2)]
    """
    source = {i for i, _ in gold.links} | set(gold.unlinked_source)
    target = {j for _, j in gold.links} | set(gold.unlinked_target)
    return [(i, j) for i, j in links if i in source or j in target]


task = WordAlignTask()
