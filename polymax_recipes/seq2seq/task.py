"""Translation and summarization as a task of the command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.tables import Row
from polymax_recipes.results import TranslationResult
from polymax_recipes.seq2seq.attention import NAMES
from polymax_recipes.seq2seq.data import ROLES, Batch, Pairs, Referenced, read_texts, text_pair
from polymax_recipes.seq2seq.exact import exact_search
from polymax_recipes.seq2seq.measures import bleu, rouge
from polymax_recipes.seq2seq.model import Seq2Seq
from polymax_recipes.seq2seq.search import Found, Search, beam_search
from polymax_recipes.training.batches import Ragged, places, sorted_batches
from polymax_recipes.training.measured import device_of, means, to_device
from polymax_recipes.training.task import LOGGED, Reading, Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import BEGIN, END, PAD, Subwords, Words
from polymax_recipes.words import LOSSES


@dataclass(frozen=True)
class Seq2SeqOptions(Reading):
    """The options of the model and of its search."""

    attention: str = option("softmax", "Mapping of the attention.", choices=NAMES)
    alpha: float = option(1.5, "Of entmax attention.", least=1)
    strength: float = option(0.1, "Strength of fusedmax and oscarmax attention.")
    p: float = option(1.5, "Of sq-pnorm-max attention.", least=1)
    fertility: float = option(2.0, "Largest sum of a source word's weights under csoftmax and csparsemax.")
    loss: str = option("cross-entropy", "Loss of words; sparse losses rule words out.", choices=LOSSES)
    loss_alpha: float = option(1.5, "Of the entmax loss.", least=1)
    hidden: int = option(256, "Size of the LSTMs.", least=1)
    embedding: int = option(256, "Size of word vectors.", least=1)
    layers: int = option(1, "Layers of each LSTM.", least=1)
    dropout: float = option(0.1, "Probability of dropping an entry.", most=1)
    subwords: int = option(0, "Learn a byte-pair encoding with so many pieces for each language; 0 for words.")
    words: int = option(50_000, "Most words in each vocabulary, without subwords.", least=1)
    beam: int = option(5, "Hypotheses in beam search.", least=1, late=True)
    longest: int = option(100, "Most words in a target.", least=1, late=True)
    length_penalty: float = option(1.0, "Power of the length that divides log-probabilities.", late=True)
    exact: int = option(0, "Most hypotheses of a sentence that the exact search extends; 0 for beam search.", late=True)
    batch: int = option(64, "Sentences that are searched at once.", least=1, late=True)
    rouge: bool = option(False, "Report ROUGE, for summaries.", late=True)


class Seq2SeqTask(Task):
    """Pairs of texts; the report has measures of the targets found, and of the attention."""

    name = "seq2seq"
    summary = "translate or summarize: pairs of texts"
    Options = Seq2SeqOptions

    def read(self, files: Sequence[Path]) -> list[Referenced]:
        return read_texts(files)

    roles = ROLES
    logged = ("bleu",)

    def of_row(self, row: Row, options: Seq2SeqOptions) -> Referenced:
        return text_pair(row)

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        return [" ".join(" ".join(row.texts("source")).split())]

    def sample(self, example: Referenced) -> Any:
        return example.source

    def vocabularies(self, examples: list[Referenced], options: Seq2SeqOptions) -> Vocabularies:
        sides = dict(zip(("source", "target"), zip(*(example.pair for example in examples))))
        if options.subwords:
            return {side: Subwords.learned(texts, options.subwords) for side, texts in sides.items()}
        return {side: Words.counted(texts, options.words) for side, texts in sides.items()}

    def encode(self, examples: list[Referenced], vocabularies: Vocabularies) -> Pairs:
        return Pairs([example.pair for example in examples], vocabularies["source"], vocabularies["target"])

    def tokens(self, data: Pairs) -> Tensor:
        # the number of words to write, with END
        return data.target.lengths - 1

    def model(self, options: Seq2SeqOptions, vocabularies: Vocabularies) -> Seq2Seq:
        return Seq2Seq(options, len(vocabularies["source"]), len(vocabularies["target"]))

    def evaluate(self, trained: Trained, examples: list[Referenced]) -> Report:
        losses = means(trained.model, self.encode(examples, trained.vocabularies), trained.options.batch)
        start = perf_counter()
        found = found_targets(trained, [example.source for example in examples])
        seconds = perf_counter() - start
        words = [target_words(row) for row in found.words]
        texts = [trained.vocabularies["target"].decode(row) for row in words]
        wanted = [[" ".join(target.split()) for target in example.targets] for example in examples]
        return {
            "sentences": len(examples),
            "accuracy": sum(text in targets for text, targets in zip(texts, wanted)) / len(examples),
            "bleu": bleu(texts, wanted),
            **(rouge(texts, wanted) if trained.options.rouge else {}),
            **losses,
            "exact_search": found.exact.double().mean().item(),
            "words_per_second": sum(len(row) + 1 for row in words) / seconds,
        }

    def measures_to_log(self, trained: Trained, dev: list[Referenced]) -> Report:
        # greedy search: a beam would take longer than the epoch
        quick = replace(trained, options=replace(trained.options, beam=1, exact=0))
        shown = dev[:LOGGED]
        found = found_targets(quick, [example.source for example in shown])
        texts = [trained.vocabularies["target"].decode(target_words(row)) for row in found.words]
        return {"bleu": bleu(texts, [[" ".join(t.split()) for t in example.targets] for example in shown])}

    def parse(self, file: str, unit: list[Line]) -> str:
        return unit[0].text

    def results(self, trained: Trained, inputs: list[str]) -> list[TranslationResult]:
        found = []
        for text in inputs:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"inputs must be texts with a word; got {text!r}")
            weights, target, source = attended(trained, text)
            vocabulary = trained.vocabularies["target"]
            written = vocabulary.decode(target_words(found_targets(trained, [text]).words[0]))
            found.append(TranslationResult(written, target, source, weights))
        return found

    def predict(self, trained: Trained, inputs: list[str], before: int) -> Iterator[str]:
        full = [text for text in inputs if text.strip()]
        targets = iter(found_targets(trained, full).words if full else ())
        for text in inputs:
            # an empty line stays empty
            yield trained.vocabularies["target"].decode(target_words(next(targets))) if text.strip() else ""


def found_targets(trained: Trained, sources: list[str]) -> Found:
    """Targets of sources, in their order."""
    options, model = trained.options, trained.model
    assert isinstance(model, Seq2Seq)
    search = Search(options.beam, options.longest, options.length_penalty)
    encoded = Ragged.of([*trained.vocabularies["source"].encode(text), END] for text in sources)
    batches = sorted_batches(encoded.lengths, options.batch)
    device = device_of(model)
    parts = []
    for rows in batches:
        words, lengths = encoded.padded(rows)
        inputs = model, words.to(device), lengths.to(device), search
        parts.append(exact_search(*inputs, options.exact) if options.exact else beam_search(*inputs))
    order = places(batches)
    return Found(*(torch.cat(column).cpu()[order] for column in zip(*parts)))


@torch.no_grad()
def attended(trained: Trained, source: str) -> tuple[Tensor, list[str], list[str]]:
    """Return the attention weights of a translation, the words of the target, and those of the source, with END."""
    words = trained.vocabularies["source"].encode(source)
    target = target_words(found_targets(trained, [source]).words[0])
    row = torch.tensor([[*words, END]]), torch.tensor([len(words) + 1])
    forced = torch.tensor([[BEGIN, *target, END]]), torch.tensor([len(target) + 2])
    _, weights = trained.model(to_device(Batch(*row, *forced), trained.model))
    columns = trained.vocabularies["source"].pieces([*words, END])
    return weights[0].cpu(), trained.vocabularies["target"].pieces([*target, END]), columns


def target_words(row: Tensor) -> list[int]:
    """The numbers of the words before END."""
    numbers = [number for number in row.tolist() if number != PAD]
    return numbers[: numbers.index(END)] if END in numbers else numbers


task = Seq2SeqTask()
