"""Textual entailment as a task of the command."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.entail.classifier import Classifier
from polymax_recipes.entail.data import LABELS, ROLES, Pairs, labelled, pairs_of_rows, parse_pair, read_entailment
from polymax_recipes.entail.esim import ALIGNMENTS, Esim
from polymax_recipes.entail.reader import Reader
from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.tables import Row
from polymax_recipes.readers.tsv import Pair
from polymax_recipes.results import EntailResult, two_texts
from polymax_recipes.seq2seq.attention import NAMES
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Reading, Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import END, SPECIALS, Words, stored_words

MODELS: dict[str, type[Reader] | type[Esim]] = {"attention": Reader, "esim": Esim}


@dataclass(frozen=True)
class EntailOptions(Reading):
    """The options of the model and of its words."""

    model: str = option("attention", "A hypothesis that reads its premise, or ESIM.", choices=tuple(MODELS))
    attention: str = option("softmax", "Mapping of the attention model.", choices=NAMES)
    alpha: float = option(1.5, "Of entmax attention.", least=1)
    strength: float = option(0.1, "Strength of fusedmax and oscarmax attention.")
    p: float = option(1.5, "Of sq-pnorm-max attention.", least=1)
    fertility: float = option(2.0, "Largest sum of a premise word's weights under csoftmax and csparsemax.")
    alignment: str = option("softmax", "Of premise and hypothesis in the esim model.", choices=ALIGNMENTS)
    hidden: int = option(128, "Size of the LSTMs.", least=1)
    embedding: int = option(128, "Size of word vectors.", least=1)
    dropout: float = option(0.2, "Probability of dropping an entry.", most=1)
    words: int = option(50_000, "Most words in the vocabulary.", least=1)
    lower: bool = option(False, "Read all words in lower case.")
    punctuation: bool = option(False, "Read punctuation as words, also without a space before it.")
    batch: int = option(64, "Pairs that are judged at once.", least=1, late=True)


class EntailTask(Task):
    """Pairs of texts with labels; pairs on which annotators disagreed are neither trained on nor measured."""

    name = "entail"
    summary = "tell entailment, neutral and contradiction: pairs of a premise and a hypothesis"
    Options = EntailOptions
    monitor = ("accuracy",)

    def read(self, files: Sequence[Path]) -> list[Pair]:
        return read_entailment(files)

    roles = ROLES

    def of_rows(self, rows: Iterable[Row], options: EntailOptions) -> list[Pair]:
        return pairs_of_rows(rows)

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        return ["\t".join(row.line(role) for role in ("premise", "hypothesis"))]

    def sample(self, example: Pair) -> Any:
        return [example.first, example.second]

    def vocabularies(self, examples: list[Pair], options: EntailOptions) -> Vocabularies:
        texts = [text for pair in labelled(examples) for text in (pair.first, pair.second)]
        return {"words": Words.counted(texts, options.words, options.lower, options.punctuation)}

    def encode(self, examples: list[Pair], vocabularies: Vocabularies) -> Pairs:
        return Pairs(labelled(examples), vocabularies["words"])

    def tokens(self, data: Pairs) -> Tensor:
        return data.premise.lengths + data.hypothesis.lengths

    def model(self, options: EntailOptions, vocabularies: Vocabularies) -> Classifier:
        return MODELS[options.model](options, len(vocabularies["words"]))

    def evaluate(self, trained: Trained, examples: list[Pair]) -> Report:
        pairs = self.encode(examples, trained.vocabularies)
        start = perf_counter()
        measured = means(trained.model, pairs, trained.options.batch)
        seconds = perf_counter() - start
        count = len(pairs.label)
        return {"pairs": count, "unlabelled": len(examples) - count, **measured, "pairs_per_second": count / seconds}

    def parse(self, file: str, unit: list[Line]) -> Pair | None:
        return parse_pair(file, unit[0]) if unit[0].text.strip() else None

    def results(self, trained: Trained, inputs: list[Any]) -> list[EntailResult]:
        pairs = [Pair("", *two_texts(one)) for one in inputs]
        words = stored_words(trained.vocabularies, "words")
        found = []
        for pair, row in zip(pairs, probabilities(trained, pairs).tolist()):
            encoded = Pairs([pair], trained.vocabularies["words"])[torch.tensor([0])]
            with torch.no_grad():
                weights = trained.model(to_device(encoded, trained.model)).weights.cpu()
            label = LABELS[row.index(max(row))]
            first, second = ([*words.split(text), SPECIALS[END]] for text in (pair.first, pair.second))
            found.append(EntailResult(label, dict(zip(LABELS, row)), first, second, weights.squeeze(-3)))
        return found

    def predict(self, trained: Trained, inputs: list[Pair | None], before: int) -> Iterator[str]:
        """The label and the probabilities of all labels, in the order of LABELS; an empty line stays empty."""
        full = [pair for pair in inputs if pair is not None]
        judged = iter(probabilities(trained, full).tolist() if full else ())
        for pair in inputs:
            yield _row(next(judged)) if pair is not None else ""


@torch.no_grad()
def probabilities(trained: Trained, pairs: list[Pair]) -> Tensor:
    """The probabilities of the labels of pairs, in their order, (pairs, labels)."""
    encoded = Pairs(pairs, trained.vocabularies["words"])
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    judged = [
        trained.model(to_device(encoded[rows], trained.model)).scores.float().softmax(-1).cpu() for rows in batches
    ]
    return torch.cat(judged)[places(batches)]


def _row(row: list[float]) -> str:
    return "\t".join([LABELS[row.index(max(row))], *(f"{p:.6f}" for p in row)])


task = EntailTask()
