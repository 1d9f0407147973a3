"""Constituency parsing as a task of the command."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.bracket.alternatives import alternatives
from polymax_recipes.bracket.data import ESCAPES, Charts, read_brackets, tree_of, tree_of_text, vocabularies_of
from polymax_recipes.bracket.model import LOSSES, SMOOTHINGS, Bracketer, Scored, with_labelled_root
from polymax_recipes.bracket.text import sentences, units
from polymax_recipes.metrics import BracketF1, TokenAccuracy
from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.spans import Span
from polymax_recipes.readers.tables import Role, Row, is_table
from polymax_recipes.readers.trees import Tree
from polymax_recipes.results import BracketResult, token_lists
from polymax_recipes.text.reader import ReaderOptions
from polymax_recipes.text.tokenizer import RawSentence
from polymax_recipes.text.tokens import TokenTable
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import stored_words

Parses = list[tuple[float, Tree]]


@dataclass(frozen=True)
class BracketOptions(ReaderOptions):
    """Options of the model and of its output."""

    loss: str = option("crf", "Loss of the trees.", choices=tuple(LOSSES))
    spans: int = option(200, "Size of the layer that scores spans.", least=1)
    batch: int = option(32, "Sentences that are parsed at once.", least=1, late=True)
    distribution: bool = option(False, "Predict trees with their probabilities, as a table.", late=True)


class BracketTask(Task):
    """Bracketed trees; parts of speech are learned with them."""

    name = "bracket"
    summary = "parse sentences into constituents: bracketed trees"
    Options = BracketOptions
    monitor = ("f1",)
    logged = ("f1",)

    def read(self, files: Sequence[Path]) -> list[Tree]:
        return read_brackets(files)

    roles = (Role("tree", ("trees", "parse"), given=False), Role("words", ("tokens", "text"), needed=False))

    def takes_table(self, file: Path, options: BracketOptions) -> bool:
        return is_table(file)

    def of_row(self, row: Row, options: BracketOptions) -> Tree:
        return tree_of_text(row.path, row.number, row.text("tree"))

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        words = row.tokens("words") if row.has("words") else self.of_row(row, trained.options).words
        return [" ".join(word.translate(ESCAPES) for word in words)]

    def sample(self, example: Tree) -> Any:
        return list(example.words)

    def vocabularies(self, examples: list[Tree], options: BracketOptions) -> Vocabularies:
        return vocabularies_of(examples, options.words)

    def encode(self, examples: list[Tree], vocabularies: Vocabularies) -> Charts:
        return Charts(examples, vocabularies)

    def model(self, options: BracketOptions, vocabularies: Vocabularies) -> Bracketer:
        return Bracketer(options, vocabularies)

    @torch.no_grad()
    def evaluate(self, trained: Trained, examples: list[Tree]) -> Report:
        encoded, options = self.encode(examples, trained.vocabularies), trained.options
        model = _bracketer(trained)
        measured = means(model, encoded, options.batch)
        single = 0
        if options.loss == "sparsemap":
            for rows in sorted_batches(encoded.sizes, options.batch):
                single += int(model.single(model(to_device(encoded.tokens[rows], model))).sum())
        start = perf_counter()
        guessed = [parses[0][1] for parses in parsed(trained, [tree.words for tree in examples], False)]
        seconds = perf_counter() - start
        brackets, tags = BracketF1(), TokenAccuracy()
        brackets.add(examples, guessed)
        tags.add((tree.tags for tree in examples), (tree.tags for tree in guessed))
        scores = brackets.result()
        return {
            "sentences": len(examples),
            **scores.labelled._asdict(),
            "unlabelled_f1": scores.unlabelled.f1,
            "exact": scores.exact,
            "tags": tags.result(),
            "loss": measured["loss"],
            **({"single": single / len(examples)} if options.loss == "sparsemap" else {}),
            "sentences_per_second": len(examples) / seconds,
        }

    def units(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        return units(lines)

    def parse(self, file: str, unit: list[Line]) -> list[list[str]]:
        return sentences(file, unit)

    def from_text(self, trained: Trained, sentence: RawSentence) -> list[str]:
        # brackets are escaped: a line that begins with a bracket is read as a tree
        return [" ".join(token.translate(ESCAPES) for token in sentence.tokens)]

    def results(self, trained: Trained, inputs: list[str | Sequence[str]]) -> list[BracketResult]:
        sentences = token_lists(inputs)
        found = zip(sentences, parsed(trained, sentences, False), span_marginals(trained, sentences))
        return [BracketResult(tokens, parses[0][1], spans) for tokens, parses, spans in found]

    def predict(self, trained: Trained, inputs: list[list[list[str]]], before: int) -> Iterator[str]:
        """Return a tree in each line, an empty line for an empty input; with `distribution` the input's number, a
        probability and a tree.
        """
        listed = iter(parsed(trained, [words for unit in inputs for words in unit], trained.options.distribution))
        for number, unit in enumerate(inputs, before + 1):
            if not unit and not trained.options.distribution:
                yield ""
            for parses in (next(listed) for _ in unit):
                for probability, tree in parses:
                    yield f"{number}\t{probability:.6g}\t{tree}" if trained.options.distribution else str(tree)


@torch.no_grad()
def parsed(trained: Trained, texts: list[list[str]], distribution: bool) -> list[Parses]:
    """Return the best tree of each sentence, or all its trees with a probability, in the order of the sentences."""
    if not texts:
        return []
    model, table = _bracketer(trained), TokenTable(texts, trained.vocabularies)
    batches = sorted_batches(table.sizes, trained.options.batch)
    found: list[Parses] = []
    for rows in batches:
        scored = model(to_device(table[rows], model))
        tags = scored.tags.argmax(-1).tolist()
        charts = _charts(model, scored, distribution)
        for row, tagged, listed in zip(rows.tolist(), tags, charts):
            found.append(_merge_equal_trees((p, _tree(trained, texts[row], tagged, labels)) for p, labels in listed))
    return [found[k] for k in places(batches).tolist()]


@torch.no_grad()
def span_marginals(trained: Trained, texts: list[list[str]]) -> list[Tensor | None]:
    """The probabilities (n, n) of each sentence that spans are constituents; None if the loss has no probabilities."""
    if trained.options.loss not in SMOOTHINGS:
        return [None] * len(texts)
    model, table = _bracketer(trained), TokenTable(texts, trained.vocabularies)
    batches = sorted_batches(table.sizes, trained.options.batch)
    found: list[Tensor | None] = []
    for rows in batches:
        scored = model(to_device(table[rows], model))
        # the first label marks spans that are not constituents
        mu = SMOOTHINGS[trained.options.loss](scored.trees)(with_labelled_root(scored))[..., 1:].sum(-1).cpu()
        found += [part[:n, :n] for part, n in zip(mu, table.sizes[rows].tolist())]
    return [found[k] for k in places(batches).tolist()]


def _charts(model: Bracketer, scored: Scored, distribution: bool) -> Iterable[Sequence[tuple[float, Tensor]]]:
    if distribution:
        return alternatives(model.options.loss, scored)
    return [[(1.0, labels)] for labels in model.best(scored).cpu()]


def _merge_equal_trees(parses: Iterable[tuple[float, Tree]]) -> Parses:
    """Trees and their probabilities, most probable first: binary trees with the same text are merged."""
    trees: dict[str, Tree] = {}
    totals: dict[str, float] = {}
    for probability, tree in parses:
        # trees are compared as text, since they can be too deep for a recursion
        trees.setdefault(str(tree), tree)
        totals[str(tree)] = totals.get(str(tree), 0.0) + probability
    return [(totals[text], trees[text]) for text in sorted(totals, key=lambda text: -totals[text])]


def _tree(trained: Trained, words: list[str], tags: list[int], labels: Tensor) -> Tree:
    """Return the tree of words from the labels (n, n) of its spans, -1 for all other spans; tags of padding are
    ignored.
    """
    names, parts = (stored_words(trained.vocabularies, name).words for name in ("labels", "tags"))
    n = len(words)
    chart = labels[:n, :n]
    spans = [Span(i, j, names[int(chart[i, j])]) for i, j in (chart >= 0).nonzero().tolist()]
    return tree_of(spans, words, [parts[tag] for tag in tags[:n]])


def _bracketer(trained: Trained) -> Bracketer:
    assert isinstance(trained.model, Bracketer)
    return trained.model


task = BracketTask()
