"""Tagging as a task of the command."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.doubts import Skipped, doubt, with_skipped
from polymax_recipes.metrics import EntityF1, TokenAccuracy
from polymax_recipes.parse.data import conllu_rows
from polymax_recipes.readers.columns import Tagged
from polymax_recipes.readers.lines import Line, ReadError, grouped
from polymax_recipes.readers.tables import Row, is_table, parse_columns, read_table
from polymax_recipes.results import TagResult, token_lists
from polymax_recipes.tag.agreed import Unkept, agreed_tags
from polymax_recipes.tag.alternatives import Tagging, alternatives
from polymax_recipes.tag.columns import Chosen, Remembered, looks_wrong
from polymax_recipes.tag.data import (
    ROLES,
    Sentences,
    in_written_scheme,
    joined,
    read_tags,
    tagged_rows,
    token_rows,
    vocabularies_of,
)
from polymax_recipes.tag.model import NAMES, SMOOTHINGS, SPARSE, Tagger
from polymax_recipes.tag.rules import Rule
from polymax_recipes.tag.spans import is_like, spell_spans
from polymax_recipes.tag.text import Reader, Untagged
from polymax_recipes.text.pretrained import PretrainedReader
from polymax_recipes.text.raw import conllu_lines
from polymax_recipes.text.reader import ReaderOptions
from polymax_recipes.text.tokenizer import RawSentence
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import to_device
from polymax_recipes.training.task import Model, Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import UNKNOWN, Words, stored_words

# True if lines that begin with # are comments, None to decide by the file
COMMENTS = {"auto": None, "yes": True, "no": False}
# from this number of tokens, an accuracy of 1 is suspicious
MANY = 1000


@dataclass(frozen=True)
class TagOptions(ReaderOptions):
    """Options of the model and of its output."""

    encoder: str = option("", "Pretrained encoder of Hugging Face, by name or directory, instead of the LSTM.")
    loss: str = option("crf", "Loss of the chain; softmax has none.", choices=NAMES)
    scheme: str = option(
        "same",
        "Scheme in which tags are learned; outputs keep the scheme of the files.",
        choices=("same", "IO", "BIO", "BIOES"),
    )
    token_column: str = option(
        "",
        "Column of the tokens, by its number from 1, from -1 at the end, or by name; by default the first, or FORM.",
        late=True,
    )
    tag_column: str = option("", "Column of the tags, likewise; by default the last, or UPOS.", late=True)
    comments: str = option(
        "auto",
        "Lines with # are comments: all (yes), none (no), or those with another number of columns (auto).",
        choices=tuple(COMMENTS),
        late=True,
    )
    constraints: str = option(
        "", "File of rules for the tags of a sentence or a document; docs/recipes.md has its format."
    )
    skip_bad: bool = option(False, "Leave out sentences that cannot be read, and list them.", late=True)
    unconstrained: bool = option(False, "Allow tags that break the rules of BIO or BIOES.", late=True)
    batch: int = option(64, "Sentences that are tagged at once.", least=1, late=True)
    distribution: bool = option(False, "Predict taggings with their probabilities, as a table.", late=True)


class TagTask(Task):
    """Sentences with a tag for each token; if the tags encode labelled spans, the spans are measured, too."""

    name = "tag"
    summary = "tag the tokens of sentences: named entities in columns, parts of speech in CoNLL-U"
    Options = TagOptions
    monitor = ("f1", "accuracy")

    def read(self, files: Sequence[Path]) -> list[Tagged]:
        return read_tags(files)

    roles = ROLES

    def read_as(self, files: Sequence[Path], options: TagOptions) -> list[Tagged]:
        """Return the examples of files whose columns the options name."""
        skipped = Skipped() if options.skip_bad else None
        try:
            found = self._examples(files, options, skipped)
        except ReadError as error:
            if options.skip_bad:
                raise
            # the advice is optional: some files cannot be read at all
            with suppress(ReadError):
                if self._examples(files, options, []):
                    raise ValueError(f"{error}; --skip-bad leaves out what cannot be read") from None
            raise
        return with_skipped(found, skipped, files)

    def _examples(self, files: Sequence[Path], options: TagOptions, skipped: list[ReadError] | None) -> list[Tagged]:
        def read(file: Path) -> Iterable[Tagged]:
            if is_table(file):
                return tagged_rows(read_table(file, self.roles, options.columns), skipped)
            return read_tags([file], chosen_columns(options), COMMENTS[options.comments], skipped)

        if not files:
            return read_tags(files)
        return joined(map(read, files))

    def takes_table(self, file: Path, options: TagOptions) -> bool:
        return is_table(file)

    def of_rows(self, rows: Iterable[Row], options: TagOptions) -> list[Tagged]:
        return list(tagged_rows(rows))

    def lines_of_rows(self, trained: Trained, rows: Iterable[Row]) -> Iterator[Line]:
        for number, tokens in token_rows(rows):
            yield from (Line(number, text, text + "\n") for text in self._lines(trained, tokens))

    def unread(self, unit: list[Line]) -> list[str]:
        return [line.text for line in unit]

    def sample(self, example: Tagged) -> Any:
        return example.tokens

    def used(self, examples: list[Tagged], part: str, options: TagOptions) -> list[Tagged]:
        """Return all examples, after a warning if their tags look wrong."""
        if wrong := looks_wrong(examples) if part == "train" else None:
            doubt(f"--{part}: {wrong}")
        return examples

    def doubts(self, log: Sequence[dict[str, str]], dev: Sentences) -> Iterator[str]:
        """Return a doubt if there are many tokens, and all were right after the first epoch."""
        tokens = int(dev.sizes.sum())
        if log and log[0].get("dev_accuracy") and float(log[0]["dev_accuracy"]) == 1.0 and tokens >= MANY:
            yield (
                f"all {tokens} tokens of --dev were right after one epoch: do --train and --dev share their sentences, "
                "or do tags repeat their tokens?"
            )

    def vocabularies(self, examples: list[Tagged], options: TagOptions) -> Vocabularies:
        chosen = chosen_columns(options)
        return vocabularies_of(examples, options.scheme, options.words, options.encoder, chosen, options.constraints)

    def encode(self, examples: list[Tagged], vocabularies: Vocabularies) -> Sentences:
        return Sentences(examples, vocabularies)

    def tokens(self, data: Sentences) -> Tensor:
        return data.sizes

    def model(self, options: TagOptions, vocabularies: Vocabularies) -> Tagger:
        return Tagger(options, vocabularies)

    def begin(self, model: Model, options: TagOptions) -> None:
        assert isinstance(model, Tagger)
        if isinstance(model.reader, PretrainedReader):
            model.reader.begin(options.encoder)

    @torch.no_grad()
    def evaluate(self, trained: Trained, examples: list[Tagged]) -> Report:
        encoded, model = self.encode(examples, trained.vocabularies), _tagger(trained)
        if len(encoded.tags.values) and bool((encoded.tags.values == UNKNOWN).all()):
            tag = next(tag for sentence in examples for tag in sentence.tags)
            doubt(f"the training had none of these tags, such as {tag!r}; are --token-column and --tag-column right?")
        total, single = 0.0, 0
        batches = sorted_batches(encoded.sizes, trained.options.batch)
        for rows in batches:
            batch = to_device(encoded[rows], model)
            total += float(model.loss(batch)["loss"][0])
            if trained.options.loss in SPARSE:
                single += int(model.single(model.constrained(model(batch))).sum())
        start = perf_counter()
        guessed = best_tags(trained, encoded, [sentence.document for sentence in examples])
        seconds = perf_counter() - start
        schemes = stored_words(trained.vocabularies, "schemes")
        accuracy = TokenAccuracy()
        accuracy.add((in_written_scheme(sentence.tags, schemes) for sentence in examples), guessed)
        report = {"sentences": len(examples), "accuracy": accuracy.result()}
        if spell_spans({tag for tags in (*guessed, *(example.tags for example in examples)) for tag in tags}):
            spans = EntityF1()
            spans.add((sentence.tags for sentence in examples), guessed)
            report |= spans.result().all._asdict()
        report["loss"] = total / len(examples)
        if trained.options.loss in SPARSE:
            report["single"] = single / len(examples)
        return {**report, "sentences_per_second": len(examples) / seconds}

    def units(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        return grouped(lines)

    def parse(self, file: str, unit: list[Line]) -> Untagged:
        return Reader().sentence(file, unit)

    def accept(self, trained: Trained, file: str, unit: list[Line]) -> Untagged:
        return reader_of_run(trained).sentence(file, unit)

    def stands_alone(self, trained: Trained, given: Untagged) -> bool:
        return given.begins_document or not any(rule.document for rule in _tagger(trained).rules)

    def from_text(self, trained: Trained, sentence: RawSentence) -> list[str]:
        return conllu_lines(sentence) if self._in_conllu(trained) else [*sentence.tokens, ""]

    def _in_conllu(self, trained: Trained) -> bool:
        columns = trained.vocabularies.get("columns")
        return isinstance(columns, Words) and Remembered.restored(columns).of_columns(0) is not None

    def _lines(self, trained: Trained, tokens: Sequence[str]) -> list[str]:
        return conllu_rows(tokens) if self._in_conllu(trained) else [*tokens, ""]

    def results(self, trained: Trained, inputs: list[str | Sequence[str]]) -> list[TagResult]:
        sentences = token_lists(inputs)
        encoded = untagged_sentences(trained, sentences)
        names = stored_words(trained.vocabularies, "tags").words
        found = zip(sentences, best_tags(trained, encoded), tag_probabilities(trained, encoded))
        return [TagResult(tokens, tags, names, probabilities) for tokens, tags, probabilities in found]

    def predict(self, trained: Trained, inputs: list[Untagged], before: int) -> Iterator[str]:
        full = [sentence for sentence in inputs if sentence.rows]
        encoded = untagged_sentences(trained, [sentence.tokens for sentence in full])
        if trained.options.distribution:
            if _tagger(trained).rules:
                raise ValueError(
                    "distribution must be false for a run with --constraints, whose rules it does not know"
                )
            listed = iter(taggings_of(trained, encoded) if full else ())
            for number, sentence in enumerate(inputs, before + 1):
                taggings = next(listed) if sentence.rows else ()
                yield from (f"{number}\t{probability:.6g}\t{' '.join(tags)}" for probability, tags in taggings)
            return
        documents = list(accumulate(sentence.begins_document for sentence in inputs))
        owners = [number for number, sentence in zip(documents, inputs) if sentence.rows]
        found = iter(best_tags(trained, encoded, owners) if full else ())
        for sentence in inputs:
            # units without tokens do not change
            yield from sentence.tagged(next(found)) if sentence.rows else sentence.lines


@torch.no_grad()
def best_tags(trained: Trained, encoded: Sentences, documents: Sequence[int] | None = None) -> list[list[str]]:
    """Return the best tags of sentences, in their order; `documents` has the number of the document of each sentence.

    Without documents each sentence is one.
    """
    model = _tagger(trained)
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    wide = any(rule.document for rule in model.rules)
    tags: list[list[int]] = []
    unary: list[Tensor] = []
    for rows in batches:
        scored = model(to_device(encoded[rows], model))
        found = model.best(scored).tolist()
        tags += [[tag for tag in row if tag >= 0] for row in found]
        if wide:
            scores = model.constrained(scored).unary.cpu()
            unary += [part[:length] for part, length in zip(scores, encoded.sizes[rows].tolist())]
    order = places(batches).tolist()
    tags = [tags[k] for k in order]
    if wide:
        owners = list(documents) if documents is not None else list(range(len(tags)))
        transition = model.constrained(scored).transition.cpu() if tags else torch.zeros(0, 0)
        tags = document_tags(model.rules, tags, [unary[k] for k in order], transition, owners)
    return [_names(trained, row) for row in tags]


def document_tags(
    rules: Sequence[Rule], tags: list[list[int]], unary: list[Tensor], transition: Tensor, owners: Sequence[int]
) -> list[list[int]]:
    """Return the best tags of sentences that keep all rules of their documents, in place of tags that break one.

    Shapes: unary (n, s) of each sentence; transition (s, s)
    """
    found = list(tags)
    for _, members in groupby(range(len(tags)), key=lambda k: owners[k]):
        rows = list(members)
        joined = [tag for k in rows for tag in tags[k]]
        if all(rule.keeps(joined) for rule in rules if rule.document):
            continue
        try:
            agreed = agreed_tags(rules, [unary[k] for k in rows], transition)
        except Unkept as error:
            doubt(f"{error}: its tags are those of the chains")
            continue
        for k, row in zip(rows, agreed):
            found[k] = row.tolist()
    return found


@torch.no_grad()
def tag_probabilities(trained: Trained, encoded: Sentences) -> list[Tensor | None]:
    """The probabilities of all tags at the tokens of sentences, (n, tags), in their order; None if the loss has no
    probabilities.
    """
    if trained.options.loss not in SMOOTHINGS:
        return [None] * len(encoded.sizes)
    model = _tagger(trained)
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    found: list[Tensor | None] = []
    for rows in batches:
        scored = model.constrained(model(to_device(encoded[rows], model)))
        mu = SMOOTHINGS[trained.options.loss](scored.chain)(scored.unary, scored.transition).unary.cpu()
        found += [part[:length] for part, length in zip(mu, encoded.sizes[rows].tolist())]
    return [found[k] for k in places(batches).tolist()]


@torch.no_grad()
def taggings_of(trained: Trained, encoded: Sentences) -> Iterator[list[tuple[float, list[str]]]]:
    """The taggings of sentences that have a probability, in their order."""
    model = _tagger(trained)
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    listed: list[list[Tagging]] = []
    for rows in batches:
        scored = model.constrained(model(to_device(encoded[rows], model)))
        listed += alternatives(trained.options.loss, scored)
    for k in places(batches).tolist():
        yield [(probability, _names(trained, tags)) for probability, tags in listed[k]]


def chosen_columns(options: TagOptions) -> Chosen:
    """Return the columns that the options name."""
    given = parse_columns(options.columns, ROLES)
    if not given:
        return Chosen(options.token_column, options.tag_column)
    if options.token_column or options.tag_column:
        raise ValueError("--columns must come without --token-column and --tag-column, which name the same columns")
    # users count columns from 1
    spelled = {role: str(c + (c >= 0)) if isinstance(c, int) else c for role, c in given.items()}
    return Chosen(spelled.get("token", ""), spelled.get("tag", ""))


def reader_of_run(trained: Trained) -> Reader:
    """Return the reader of the input of a run: of columns like those of its training."""
    columns = trained.vocabularies.get("columns")
    remembered = Remembered.restored(columns) if isinstance(columns, Words) else None
    names = stored_words(trained.vocabularies, "tags").words
    return Reader(chosen_columns(trained.options), remembered, lambda tag: is_like(tag, names))


def _names(trained: Trained, tags: list[int]) -> list[str]:
    names = stored_words(trained.vocabularies, "tags").words
    return in_written_scheme([names[tag] for tag in tags], stored_words(trained.vocabularies, "schemes"))


def untagged_sentences(trained: Trained, sentences: Iterable[list[str]]) -> Sentences:
    """Sentences with unknown tags, in the form that a model takes."""
    # placeholders, which are not read: O is a tag in every scheme
    return Sentences([Tagged(tokens, ["O"] * len(tokens)) for tokens in sentences], trained.vocabularies)


def _tagger(trained: Trained) -> Tagger:
    assert isinstance(trained.model, Tagger)
    return trained.model


task = TagTask()
