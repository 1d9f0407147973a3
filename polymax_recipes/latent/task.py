"""The base of the tasks ListOps and classification: models by name, measures, and predictions."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch

from polymax_recipes.latent.classifier import Classifier, Sizes
from polymax_recipes.latent.cooperative import Cooperative, Pretrained
from polymax_recipes.latent.data import Example, Examples, Given, tokens
from polymax_recipes.latent.dependency import Dependency
from polymax_recipes.latent.gradients import gradient_measures
from polymax_recipes.latent.models import Gold, Gumbel, Sequential, Spinn
from polymax_recipes.latent.options import LatentOptions
from polymax_recipes.latent.trees import Found, binary_measures, find_trees, head_measures
from polymax_recipes.readers.binary_parses import format_binary
from polymax_recipes.readers.lines import Line
from polymax_recipes.results import LatentResult, two_texts
from polymax_recipes.training.measured import to_device
from polymax_recipes.training.task import Report, Task, Trained, Vocabularies
from polymax_recipes.training.vocabulary import stored_words

MODELS: dict[str, Callable[[LatentOptions, Sizes], Classifier]] = {
    "lstm": Sequential,
    "tree-lstm": Gold,
    "spinn": Spinn,
    "gumbel-tree": Gumbel,
    "dependency": Dependency,
}


class LatentTask(Task):
    """Examples of one sentence or two, with labels, and with gold trees if the files have them."""

    def measures(self, made: Found, examples: Sequence[Example]) -> Report:
        """The measures of this task besides those of all tasks."""
        return {}

    def used(self, examples: list[Example], part: str, options: LatentOptions) -> list[Example]:
        """Return the examples that training uses: not too long, and with gold trees if the model needs them."""
        if options.needs_gold:
            refuse_treeless(examples, options, f"--{part}")
        if part != "train" or not options.longest:
            return examples
        kept = [e for e in examples if max(len(side.tokens) for side in e.sides) <= options.longest]
        if not kept:
            raise ValueError(f"--longest {options.longest} leaves nothing of --train")
        return kept

    def sample(self, example: Example) -> Any:
        texts = [" ".join(side.tokens) for side in example.sides]
        return texts if len(texts) > 1 else texts[0]

    def refuse(self, examples: Sequence[Example], vocabularies: Vocabularies) -> None:
        """Raise a ValueError if a model with these vocabularies cannot read the examples."""
        return

    def encode(self, examples: list[Example], vocabularies: Vocabularies) -> Examples:
        self.refuse(examples, vocabularies)
        return Examples(examples, stored_words(vocabularies, "words"), stored_words(vocabularies, "labels"))

    def sizes(self, vocabularies: Vocabularies) -> Sizes:
        """Return the numbers of words, labels and sides."""
        counts = (len(stored_words(vocabularies, name).words) for name in ("labels", "sides"))
        return Sizes(len(vocabularies["words"]), *counts)

    def model(self, options: LatentOptions, vocabularies: Vocabularies) -> Classifier:
        sizes = self.sizes(vocabularies)
        if options.model == "spinn" and options.parser == "pretrained":
            return Pretrained(options, sizes)
        if options.chosen == "cooperative":
            return Cooperative(options, sizes)
        return MODELS[options.model](options, sizes)

    def evaluate(self, trained: Trained, examples: list[Example]) -> Report:
        options, model = trained.options, _classifier(trained)
        if options.model == "tree-lstm":
            refuse_treeless(examples, options, "DATA")
        data = self.encode(examples, trained.vocabularies)
        # all lines of a file must have as many texts as its first line
        sides = len(stored_words(trained.vocabularies, "sides").words)
        if data.sides != sides:
            raise ValueError(f"line 1: examples of {sides} texts expected, as in the training; got {data.sides}")
        start = perf_counter()
        made = find_trees(model, data, options.batch)
        seconds = perf_counter() - start
        losses = model.each(made.scores, data.label)
        right = made.scores.argmax(-1) == data.label
        report = {"examples": len(examples), "accuracy": float(right.double().mean()), "loss": float(losses.mean())}
        report |= tree_report(made, examples, data)
        if made.chosen:
            report["rationale"] = sum(map(len, made.chosen)) / len(made.chosen)
        report |= self.measures(made, examples)
        if options.gradients and model.parser_parameters():
            rows = torch.arange(min(options.batch, len(examples)))
            report |= gradient_measures(model, to_device(data[rows], model), options.gradients)
        return {**report, "examples_per_second": len(examples) / seconds}

    def results(self, trained: Trained, inputs: list[Any]) -> list[LatentResult]:
        lines = [one if isinstance(one, str) else "\t".join(two_texts(one)) for one in inputs]
        parsed = [self.parse("input", [Line(k, text, text)]) for k, text in enumerate(lines, 1)]
        if None in parsed:
            raise ValueError(f"inputs must be texts with a word; got {inputs[parsed.index(None)]!r}")
        examples = [fitting(trained, given) for given in parsed]
        data = self.encode(examples, trained.vocabularies)
        made = find_trees(_classifier(trained), data, trained.options.batch)
        labels, words = (stored_words(trained.vocabularies, name) for name in ("labels", "words"))
        results = []
        for k, (example, row) in enumerate(zip(examples, made.scores.softmax(-1).tolist())):
            own = slice(k * data.sides, (k + 1) * data.sides)
            read = [tokens(side, words) for side in example.sides]
            label = labels.words[row.index(max(row))]
            shares = dict(zip(labels.words, row))
            results.append(LatentResult(label, shares, read, made.spans[own], made.heads[own], list(made.chosen[own])))
        return results

    def predict(self, trained: Trained, inputs: list[Given | None], before: int) -> Iterator[str]:
        """The label, its probability, the words of a rationale, and with `trees` the trees; empty lines stay empty."""
        full = [fitting(trained, given) for given in inputs if given is not None]
        written = iter(self._prediction_lines(trained, full) if full else ())
        for given in inputs:
            yield next(written) if given is not None else ""

    def _prediction_lines(self, trained: Trained, examples: list[Example]) -> Iterator[str]:
        data = self.encode(examples, trained.vocabularies)
        made = find_trees(_classifier(trained), data, trained.options.batch)
        labels, words = (stored_words(trained.vocabularies, name) for name in ("labels", "words"))
        for k, (example, row) in enumerate(zip(examples, made.scores.softmax(-1).tolist())):
            best = max(range(len(row)), key=row.__getitem__)
            columns = [labels.words[best], f"{row[best]:.6f}"]
            if made.chosen:
                for side, sentence in enumerate(example.sides):
                    read = tokens(sentence, words)
                    columns.append(" ".join(read[i] for i in made.chosen[k * data.sides + side]))
            if trained.options.trees:
                for side, sentence in enumerate(example.sides):
                    columns += tree_columns(made, k * data.sides + side, tokens(sentence, words))
            yield "\t".join(columns)


def fitting(trained: Trained, given: Given) -> Example:
    """Return the example of a line of input, with as many texts as the model takes, and trees if it needs them."""
    count = len(stored_words(trained.vocabularies, "sides").words)
    if len(given.columns) not in (count, count + 1):
        what = "a text" if count == 1 else "two texts between tabs"
        raise given.error(f"{what} expected, with a label before or without; got {len(given.columns)} columns")
    sides = given.columns[-count:]
    if trained.options.model == "tree-lstm" and any(side.spans is None for side in sides):
        raise given.error("binary trees expected, ( ( a b ) c ), since the model has no others")
    example = Example("", sides)
    assert isinstance(trained.task, LatentTask)
    try:
        trained.task.refuse([example], trained.vocabularies)
    except ValueError as error:
        raise given.error(str(error)) from None
    return example


def tree_columns(made: Found, k: int, words: Sequence[str]) -> list[str]:
    """Return the tree of sentence k as text, brackets or heads, and its probability if the parser has one."""
    probability = [f"{made.probability[k]:.6g}"] if made.probability else []
    if made.spans:
        return [format_binary(words, made.spans[k]), *probability]
    if made.heads:
        return [" ".join(map(str, made.heads[k])), *probability]
    return [" ".join(words)]


def tree_report(made: Found, examples: Sequence[Example], data: Examples) -> Report:
    """Return measures of trees, if a model has trees."""
    sides = [side for example in examples for side in example.sides]
    if made.spans:
        gold = [side.spans or () for side in sides] if all(side.spans is not None for side in sides) else None
        return binary_measures(made.spans, gold, data.words.lengths)
    if made.heads:
        heads = [side.heads or () for side in sides] if all(side.heads is not None for side in sides) else None
        return head_measures(made.heads, heads)
    return {}


def refuse_treeless(examples: Sequence[Example], options: LatentOptions, what: str) -> None:
    """Raise a ValueError if an example has no gold tree of the kind that the model has."""
    kind = "heads" if options.model == "dependency" else "spans"
    if any(getattr(side, kind) is None for example in examples for side in example.sides):
        name = "dependency trees" if kind == "heads" else "binary trees, ( ( a b ) c ), as texts"
        raise ValueError(f"{what} must have {name} for --model {options.model} with gold trees")


def _classifier(trained: Trained) -> Classifier:
    assert isinstance(trained.model, Classifier)
    return trained.model
