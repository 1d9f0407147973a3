"""Alignment of sequences as a task of the command."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import polymax as pm
from polymax.structures.gapped import MODES
from polymax_recipes.metrics.counts import Counts
from polymax_recipes.protein_align.data import Aligned, Pairs, links_of, read_alignments, vocabularies_of, without_gaps
from polymax_recipes.protein_align.model import LOSSES, Substitutions
from polymax_recipes.readers.fasta import GAPS, Record, parse_record, records, two_by_two
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.tables import Role, Row
from polymax_recipes.results import SequenceResult, two_texts
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Reading, Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import stored_words


@dataclass(frozen=True)
class ProteinAlignOptions(Reading):
    """The options of the alignments and of their loss."""

    loss: str = option("crf", "Loss of the alignments.", choices=tuple(LOSSES))
    mode: str = option("global", "Which gaps are scored.", choices=MODES)
    batch: int = option(64, "Pairs that are aligned at once.", least=1, late=True)


class ProteinAlignTask(Task):
    """Pairs of sequences with known alignments, from which the scores of letters and of gaps are learned."""

    name = "protein-align"
    summary = "align pairs of sequences, by scores that are learned from known alignments"
    Options = ProteinAlignOptions
    monitor = ("f1",)
    logged = ("f1",)

    def read(self, files: Sequence[Path]) -> list[Aligned]:
        return read_alignments(files)

    roles = (Role("first", ("row1",), given=True), Role("second", ("row2",), given=True))

    def of_row(self, row: Row, options: ProteinAlignOptions) -> Aligned:
        first, second = (row.text(role).strip() for role in ("first", "second"))
        if len(first) != len(second):
            raise row.error(f"rows of one length expected, with - in gaps; got {len(first)} and {len(second)}")
        a, b = (without_gaps(row.path, Record(*named, row.number)) for named in self._named(first, second))
        return Aligned(("first", "second"), a, b, links_of(first, second))

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        pairs = self._named(row.text("first"), row.text("second"))
        return [line for name, letters in pairs for line in (f">{name}{row.number}", letters)]

    def sample(self, example: Aligned) -> Any:
        return [example.first, example.second]

    @staticmethod
    def _named(first: str, second: str) -> list[tuple[str, str]]:
        return [("first", first), ("second", second)]

    def vocabularies(self, examples: list[Aligned], options: ProteinAlignOptions) -> Vocabularies:
        return vocabularies_of(examples)

    def encode(self, examples: list[Aligned], vocabularies: Vocabularies) -> Pairs:
        return Pairs(examples, vocabularies)

    def model(self, options: ProteinAlignOptions, vocabularies: Vocabularies) -> Substitutions:
        return Substitutions(options, len(stored_words(vocabularies, "letters")))

    def evaluate(self, trained: Trained, examples: list[Aligned]) -> Report:
        measured = means(trained.model, self.encode(examples, trained.vocabularies), trained.options.batch)
        start = perf_counter()
        found = aligned(trained, examples)
        seconds = perf_counter() - start
        counts, exact = Counts(), 0
        for one, result in zip(examples, found):
            counts.add(one.links, result.links)
            exact += one.links == result.links
        precision, recall, f1 = counts.f1()
        shares = {"precision": precision, "recall": recall, "f1": f1, "exact": exact / len(examples)}
        return {"pairs": len(examples), **shares, **measured, "pairs_per_second": len(examples) / seconds}

    def units(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        return ([line for record in two for line in record] for two in two_by_two(records(lines)))

    def parse(self, file: str, unit: list[Line]) -> Aligned:
        """Two records; gaps in them are not used."""
        two = [parse_record(file, record) for record in records(unit)]
        if len(two) < 2:
            raise ReadError.at(file, two[0].line, f"records must come in pairs; got {two[0].name!r} alone at the end")
        first, second = (without_gaps(file, record) for record in two)
        return Aligned((two[0].name, two[1].name), first, second, [])

    def results(self, trained: Trained, inputs: list[Any]) -> list[SequenceResult]:
        found = []
        for one in inputs:
            first, second = ("".join(c for c in text.upper() if c not in GAPS) for text in two_texts(one))
            if not first or not second or not (first + second).isalpha():
                raise ValueError(f"inputs must be pairs of texts of letters, none of them empty; got {one!r}")
            found.append(Aligned(("", ""), first, second, []))
        return aligned(trained, found, expected=True)

    def predict(self, trained: Trained, inputs: list[Aligned], before: int) -> Iterator[str]:
        """FASTA: both rows of each pair, with gaps."""
        for one, found in zip(inputs, aligned(trained, inputs)):
            for name, row in zip(one.names, found.rows):
                yield from (f">{name}", row)


def aligned(trained: Trained, pairs: Sequence[Aligned], expected: bool = False) -> list[SequenceResult]:
    """The alignments of pairs, in their order; with `expected` also the probabilities of all pairs of letters."""
    if not pairs:
        return []
    model = trained.model
    assert isinstance(model, Substitutions)
    encoded = Pairs(pairs, trained.vocabularies)
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    found: list[SequenceResult] = []
    for rows in batches:
        best, mean = model.found(to_device(encoded[rows], model), expected)
        cells = best.cpu()
        weights = None if mean is None else mean.cpu()
        for k, row in enumerate(rows.tolist()):
            first, second = pairs[row].first, pairs[row].second
            n, m = len(first), len(second)
            y = cells[k, :n, :m]
            links = [(i, j) for i, j in torch.nonzero(y).tolist()]
            text = pm.cigar(y, first, second)
            own = None if weights is None else weights[k, :n, :m]
            found.append(SequenceResult(first, second, pm.aligned_strings(y, first, second), text, links, own))
    return [found[k] for k in places(batches).tolist()]


task = ProteinAlignTask()
