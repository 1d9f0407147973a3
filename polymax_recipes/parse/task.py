"""Dependency parsing as a task of the command."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax_recipes.doubts import Skipped, with_skipped
from polymax_recipes.metrics import AttachmentScore
from polymax_recipes.parse.alternatives import SMOOTHINGS, alternatives, head_probabilities
from polymax_recipes.parse.data import Treebank, conllu_rows, read_treebanks, sentences_of_rows, vocabularies_of
from polymax_recipes.parse.lifting import crossed
from polymax_recipes.parse.model import NAMES, ORDERS, Parser
from polymax_recipes.readers.conllu import Sentence, parse_sentence
from polymax_recipes.readers.lines import Line, grouped
from polymax_recipes.readers.tables import Role, Row, is_table, read_table
from polymax_recipes.results import ParseResult, token_lists
from polymax_recipes.text.raw import conllu_lines
from polymax_recipes.text.reader import ReaderOptions
from polymax_recipes.text.tokenizer import RawSentence
from polymax_recipes.text.tokens import TokenTable
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import stored_words

# steps that an epoch has at least, if there are as many batches of 8
STEPS = 150


@dataclass(frozen=True)
class ParseOptions(ReaderOptions):
    """Options of the model and of its output."""

    hidden: int = option(300, "Size of the LSTM in each direction.", least=1)
    characters: int = option(
        100, "Size of the vectors of characters, and of a word's vector from its characters.", least=1
    )
    layers: int = option(3, "Layers of the LSTM.", least=1)
    dropout: float = option(0.33, "Probability of dropping an entry.", most=1)
    word_dropout: float = option(0.2, "Probability of replacing a word by UNKNOWN, in training.", most=1)
    arcs: int = option(400, "Size of the vectors that arcs are scored by.", least=1)
    labels: int = option(100, "Size of the vectors that relations are scored by.", least=1)
    loss: str = option("crf", "Loss of the trees; softmax-heads takes heads one by one.", choices=NAMES)
    weight: float = option(1.0, "Weight of the loss of trees, beside that of relations.")
    projective: bool = option(False, "Trees without crossing arcs; crossing arcs of training files are lifted.")
    order: str = option("first", "Pairs of arcs that are scored, with --projective.", choices=tuple(ORDERS))
    rank: int = option(64, "Rank of the scores of siblings or grandparents.", least=1)
    roots: str = option(
        "single", "Number of words that may hang from the root: one or several.", choices=("single", "multi")
    )
    turns: int = option(100, "Most iterations of SparseMAP's solver in a loss; 0 for no limit.")
    skip_bad: bool = option(False, "Leave out sentences that cannot be read, and list them.", late=True)
    batch: int = option(64, "Sentences that are parsed at once.", least=1, late=True)
    distribution: bool = option(False, "Predict trees with their probabilities, as a table.", late=True)

    def __post_init__(self) -> None:
        if self.order != "first" and not self.projective:
            raise ValueError(f"--order {self.order} must come with --projective: its trees have no crossing arcs")
        if self.order != "first" and self.loss == "softmax-heads":
            raise ValueError(f"--order {self.order} must come with a loss of trees; got softmax-heads")


class Tree(NamedTuple):
    """A tree as it is written."""

    heads: list[int]
    relations: list[str]


class ParseTask(Task):
    """Sentences with a head and a relation for each word."""

    name = "parse"
    summary = "parse sentences into dependency trees, in CoNLL-U"
    Options = ParseOptions
    monitor = ("uas",)

    roles = (
        Role("form", ("tokens", "token", "words", "forms"), given=True),
        Role("head", ("heads",)),
        Role("deprel", ("deprels", "relations", "relation")),
        Role("upos", ("pos", "pos_tags"), needed=False),
    )

    def read(self, files: Sequence[Path]) -> list[Sentence]:
        return read_treebanks(files)

    def read_as(self, files: Sequence[Path], options: ParseOptions) -> list[Sentence]:
        """Return the trees of files; with --skip-bad, leave out sentences that cannot be read and list them."""
        skipped = Skipped() if options.skip_bad else None
        found: list[Sentence] = []
        for file in files:
            if is_table(file):
                found += sentences_of_rows(read_table(file, self.roles, options.columns), skipped)
            else:
                found += read_treebanks([file], skipped)
        return with_skipped(found, skipped, files)

    def takes_table(self, file: Path, options: ParseOptions) -> bool:
        return is_table(file)

    def of_rows(self, rows: Iterable[Row], options: ParseOptions) -> list[Sentence]:
        return sentences_of_rows(rows)

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        return conllu_rows(row.tokens("form"), row.values.get("upos"))

    def unread(self, unit: list[Line]) -> list[str]:
        return [line.text for line in unit]

    def sample(self, example: Sentence) -> Any:
        return example.forms

    def vocabularies(self, examples: list[Sentence], options: ParseOptions) -> Vocabularies:
        return vocabularies_of(examples, options.words)

    def encode(self, examples: list[Sentence], vocabularies: Vocabularies) -> Treebank:
        return Treebank(examples, vocabularies)

    def tokens(self, data: Treebank) -> Tensor:
        return data.sizes

    def model(self, options: ParseOptions, vocabularies: Vocabularies) -> Parser:
        return Parser(options, vocabularies)

    def fitted(self, count: int) -> dict[str, Any]:
        """Return a batch size with which an epoch has some 150 steps, and the learning rate that such steps take.

        Example:
            >>> [ParseTask().fitted(count)["batch_size"] for count in (100, 1315, 3000, 12544)]
            [8, 8, 16, 64]
        """
        return {"batch_size": min(64, max(8, 2 ** int(log2(max(count, 1) / STEPS)))), "lr": 0.002}

    def evaluate(self, trained: Trained, examples: list[Sentence]) -> Report:
        encoded = self.encode(examples, trained.vocabularies)
        measured = means(trained.model, encoded, trained.options.batch)
        start = perf_counter()
        trees = best_trees(trained, [sentence.forms for sentence in examples])
        seconds = perf_counter() - start
        everything, marks = attachment(examples, trees, "_"), attachment(examples, trees, "PUNCT")
        report = {
            "sentences": len(examples),
            "words": everything.words,
            **everything.result()._asdict(),
            **{f"{name}_without_punctuation": value for name, value in marks.result()._asdict().items()},
            "nonprojective": sum(bool(crossed(sentence.heads)) for sentence in examples),
            "loss": measured["loss"],
        }
        single = {name: measured[name] for name in ("single",) if name in measured}
        return {**report, **single, "sentences_per_second": len(examples) / seconds}

    def units(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        return grouped(lines)

    def parse(self, file: str, unit: list[Line]) -> Sentence:
        if all(line.blank or line.text.startswith("#") for line in unit):
            return Sentence((), tuple(line.raw for line in unit), ())
        return parse_sentence(file, unit, trees=False)

    def from_text(self, trained: Trained, sentence: RawSentence) -> list[str]:
        return conllu_lines(sentence)

    def results(self, trained: Trained, inputs: list[str | Sequence[str]]) -> list[ParseResult]:
        sentences = token_lists(inputs)
        found = zip(sentences, best_trees(trained, sentences), arc_marginals(trained, sentences))
        return [ParseResult(tokens, *tree, arcs) for tokens, tree, arcs in found]

    def predict(self, trained: Trained, inputs: list[Sentence], before: int) -> Iterator[str]:
        full = [sentence.forms for sentence in inputs if sentence.words]
        if trained.options.distribution:
            listed = iter(weighted_trees(trained, full) if full else ())
            for number, sentence in enumerate(inputs, before + 1):
                for probability, tree in next(listed) if sentence.words else ():
                    heads = " ".join(map(str, tree.heads))
                    yield f"{number}\t{probability:.6g}\t{heads}\t{' '.join(tree.relations)}"
            return
        found = iter(best_trees(trained, full) if full else ())
        for sentence in inputs:
            # units without words do not change
            parsed = sentence.with_tree(*next(found)) if sentence.words else sentence
            yield from (line.removesuffix("\n") for line in parsed.lines)


def attachment(examples: Sequence[Sentence], trees: Sequence[Tree], without: str) -> AttachmentScore:
    """UAS and LAS over all words except those of one part of speech."""
    score = AttachmentScore()
    kept = [[word.upos != without for word in sentence.words] for sentence in examples]

    def of(rows: Iterable[Sequence[object]]) -> list[list]:
        return [[item for item, keep in zip(row, keeps) if keep] for row, keeps in zip(rows, kept, strict=True)]

    gold = (of(sentence.heads for sentence in examples), of(sentence.deprels for sentence in examples))
    found = (of(tree.heads for tree in trees), of(tree.relations for tree in trees))
    score.add(gold[0], found[0], gold[1], found[1])
    return score


@torch.no_grad()
def best_trees(trained: Trained, sentences: Sequence[Sequence[str]]) -> list[Tree]:
    """The best trees over words, in their order."""
    model, tokens = _parser(trained), TokenTable(sentences, trained.vocabularies)
    batches = sorted_batches(tokens.sizes, trained.options.batch)
    trees: list[Tree] = []
    for rows in batches:
        heads, relations = (part.tolist() for part in model.best(model(to_device(tokens[rows], model))))
        trees += [tree_of(trained, *pair) for pair in zip(heads, relations)]
    return [trees[k] for k in places(batches).tolist()]


@torch.no_grad()
def arc_marginals(trained: Trained, sentences: Sequence[Sequence[str]]) -> list[Tensor | None]:
    """The probabilities (n+1, n+1), [head, modifier], of the arcs of each sentence; None if the loss has no
    probabilities.
    """
    if trained.options.loss not in SMOOTHINGS:
        return [None] * len(sentences)
    model, tokens = _parser(trained), TokenTable(sentences, trained.vocabularies)
    batches = sorted_batches(tokens.sizes, trained.options.batch)
    found: list[Tensor | None] = []
    for rows in batches:
        mu = head_probabilities(trained.options.loss, model(to_device(tokens[rows], model))).cpu()
        found += [part[: n + 1, : n + 1] for part, n in zip(mu, tokens.sizes[rows].tolist())]
    return [found[k] for k in places(batches).tolist()]


@torch.no_grad()
def weighted_trees(trained: Trained, sentences: Sequence[Sequence[str]]) -> Iterator[list[tuple[float, Tree]]]:
    """The trees over words that have a probability, in the order of the sentences."""
    model, tokens = _parser(trained), TokenTable(sentences, trained.vocabularies)
    batches = sorted_batches(tokens.sizes, trained.options.batch)
    listed: list[list[tuple[float, Tree]]] = []
    for rows in batches:
        scored = model(to_device(tokens[rows], model))
        for nodes, (probabilities, heads) in zip(scored.nodes, alternatives(trained.options.loss, scored)):
            below = nodes[: heads.shape[1] + 1].expand(len(heads), -1, -1)
            relations = model.named(below, heads.to(nodes.device))
            trees = (tree_of(trained, *pair) for pair in zip(heads.tolist(), relations.tolist()))
            listed.append(list(zip(probabilities.tolist(), trees)))
    return (listed[k] for k in places(batches).tolist())


def tree_of(trained: Trained, heads: list[int], relations: list[int]) -> Tree:
    """A tree without its padding, relations by name."""
    names = stored_words(trained.vocabularies, "relations").words
    return Tree([head for head in heads if head >= 0], [names[k] for k in relations if k >= 0])


def _parser(trained: Trained) -> Parser:
    assert isinstance(trained.model, Parser)
    return trained.model


task = ParseTask()
