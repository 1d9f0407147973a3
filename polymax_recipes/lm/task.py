"""Language modelling as a task of the command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax.nn import AttentionStatistics
from polymax_recipes.lm.data import Document, Windows, read_documents
from polymax_recipes.lm.escapes import escaped, unescaped
from polymax_recipes.lm.generate import Continuation, Sampling, continuations
from polymax_recipes.lm.model import ATTENTIONS, LanguageModel
from polymax_recipes.lm.tokens import BOUNDARY, learned_pieces, tokens_of
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.tables import Role, Row
from polymax_recipes.results import ContinuationResult
from polymax_recipes.training.batches import sorted_batches
from polymax_recipes.training.measured import device_of, means
from polymax_recipes.training.task import Reading, Report, Task, Trained, Vocabularies, option
from polymax_recipes.words import LOSSES


@dataclass(frozen=True)
class LanguageModelOptions(Reading):
    """The options of the transformer, of its tokens, and of how it goes on with a text."""

    attention: str = option("softmax", "Mapping of the attention.", choices=(*ATTENTIONS,))
    alpha: float = option(1.5, "Of entmax attention; adaptive-entmax learns one for each head.", least=1)
    length_scaling: bool = option(False, "Multiply the scores of a head by a learned function of the number of keys.")
    loss: str = option("cross-entropy", "Loss of the next token; sparse losses rule tokens out.", choices=LOSSES)
    loss_alpha: float = option(1.5, "Of the entmax loss.", least=1)
    teacher: str = option(
        "", "Run of lm, or folder of WordDistribution.save, whose distributions are learned instead of the next tokens."
    )
    context: int = option(512, "Tokens that are read at once: the farthest that a model looks back.", least=1)
    size: int = option(256, "Size of the states.", least=2)
    layers: int = option(4, "Layers of the transformer.", least=1)
    heads: int = option(4, "Heads of the attention in each layer.", least=1)
    dropout: float = option(0.0, "Probability of dropping an entry.", most=1)
    subwords: int = option(0, "Learn a byte-pair encoding with so many pieces; 0 for bytes.")
    window: int = option(0, "Context of evaluate and predict; 0 for that of the training.", late=True)
    longest: int = option(200, "Most tokens that predict adds to a prompt.", late=True)
    temperature: float = option(0.0, "Of the tokens that predict draws; 0 for the best token.", late=True)
    sampling_seed: int = option(0, "Seed of the tokens that predict draws.", late=True)
    escaped: bool = option(False, "Prompts have line ends as \\n and backslashes as \\\\, as outputs do.", late=True)
    measured: int = option(1, "Windows of which evaluate measures the attention; 0 for none.", late=True)
    batch: int = option(8, "Windows or prompts that are evaluated or continued at once.", least=1, late=True)

    @property
    def seen(self) -> int:
        """The number of tokens that a trained model sees at once."""
        return self.window or self.context


class LanguageModelTask(Task):
    """Plain texts; the report has the perplexity, bits per byte, and how sparse words and the attention are."""

    name = "lm"
    summary = "predict the next byte, or piece, of texts"
    Options = LanguageModelOptions
    falling = ("loss", "bits_per_byte")

    def read(self, files: Sequence[Path]) -> list[Document]:
        return read_documents(files, LanguageModelOptions().context)

    roles = (Role("text", ("content", "document"), given=True),)

    def read_as(self, files: Sequence[Path], options: LanguageModelOptions) -> list[Document]:
        return [document._replace(context=options.seen) for document in super().read_as(files, options)]

    def of_row(self, row: Row, options: LanguageModelOptions) -> Document:
        return Document(row.text("text"), options.seen)

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        text = row.text("text")
        return [escaped(text) if trained.options.escaped else row.line("text")]

    def sample(self, example: Document) -> Any:
        return next((line[:80] for line in example.text.splitlines() if line.strip()), None)

    def used(self, examples: list[Document], part: str, options: LanguageModelOptions) -> list[Document]:
        # what may change at any time is not for the training
        return [Document(example.text, options.context) for example in examples]

    def vocabularies(self, examples: list[Document], options: LanguageModelOptions) -> Vocabularies:
        if not options.subwords:
            return {}
        if options.subwords < 257:
            raise ValueError(f"--subwords must be at least 257, for all bytes and a boundary; got {options.subwords}")
        return {"pieces": learned_pieces((example.text for example in examples), options.subwords)}

    def encode(self, examples: list[Document], vocabularies: Vocabularies) -> Windows:
        return Windows(examples, tokens_of(vocabularies))

    def tokens(self, data: Windows) -> Tensor:
        return data.sizes

    def model(self, options: LanguageModelOptions, vocabularies: Vocabularies) -> LanguageModel:
        return LanguageModel(options, len(tokens_of(vocabularies)))

    def evaluate(self, trained: Trained, examples: list[Document]) -> Report:
        windows = self.encode(examples, trained.vocabularies)
        start = perf_counter()
        measured = means(trained.model, windows, trained.options.batch)
        seconds = perf_counter() - start
        tokens = int(windows.sizes.sum())
        return {
            "tokens": tokens,
            **perplexities(trained.options.loss, measured),
            **measured,
            **attention_report(attention_of(trained, windows)),
            "tokens_per_second": tokens / seconds,
        }

    def parse(self, file: str, unit: list[Line]) -> str:
        return unit[0].text

    def accept(self, trained: Trained, file: str, unit: list[Line]) -> str:
        prompt = self.parse(file, unit)
        try:
            return unescaped(prompt) if trained.options.escaped else prompt
        except ValueError as error:
            raise ReadError.at(file, unit[0].number, str(error)) from error

    def results(self, trained: Trained, inputs: list[Any]) -> list[ContinuationResult]:
        for text in inputs:
            if not isinstance(text, str):
                raise ValueError(f"inputs must be texts; got {text!r}")
        tokens = tokens_of(trained.vocabularies)
        found = continuations_of(trained, inputs, 0)
        return [
            ContinuationResult(prompt, tokens.decode(one.tokens), one.tokens, one.log_probs)
            for prompt, one in zip(inputs, found)
        ]

    def predict(self, trained: Trained, inputs: list[str], before: int) -> Iterator[str]:
        """Each prompt followed by its continuation, in one line."""
        tokens = tokens_of(trained.vocabularies)
        for prompt, found in zip(inputs, continuations_of(trained, inputs, before)):
            yield escaped(prompt + tokens.decode(found.tokens))


def continuations_of(trained: Trained, prompts: Sequence[str], before: int) -> list[Continuation]:
    """Return the continuations of prompts, in their order, `before` others; an empty prompt begins a text."""
    options, model, tokens = trained.options, trained.model, tokens_of(trained.vocabularies)
    assert isinstance(model, LanguageModel)
    sampling = Sampling(options.longest, options.seen, options.temperature, options.sampling_seed)
    encoded = [tokens.encode(prompt).tolist() or [BOUNDARY] for prompt in prompts]
    found: dict[int, Continuation] = {}
    for rows in sorted_batches(torch.tensor([len(prompt) for prompt in encoded]), options.batch):
        chosen = rows.tolist()
        some = continuations(model, [encoded[k] for k in chosen], sampling, [before + k for k in chosen])
        found.update(zip(chosen, some))
    return [found[k] for k in range(len(prompts))]


def attention_of(trained: Trained, windows: Windows) -> list[AttentionStatistics]:
    """Return the sparsity of the attention of each layer on the first full windows of some data; [] if no window is
    full.
    """
    assert isinstance(trained.model, LanguageModel)
    rows = torch.arange(min(trained.options.measured, len(windows.sizes)))
    rows = rows[windows.sizes[rows] == windows.sizes[0]]
    return trained.model.statistics(windows[rows].inputs.to(device_of(trained.model))) if len(rows) else []


def perplexities(loss: str, measured: Report) -> Report:
    """Return the perplexity, if every token has a probability, and the epsilon-perplexity, which sparse losses have
    too.
    """
    found = {"epsilon_perplexity": exp(measured["epsilon_nats"])}
    if loss == "cross-entropy":
        # what a model cannot say at all, such as one that diverged
        found = {"perplexity": exp(measured["loss"]) if measured["loss"] < 700 else float("inf"), **found}
    return found


def attention_report(layers: Sequence[AttentionStatistics]) -> Report:
    """Means over layers and heads, and the largest support."""
    if not layers:
        return {}
    columns = {name: torch.stack([getattr(one, name) for one in layers]) for name in ("zeros", "empty_tiles")}
    means = {name: float(column.mean()) for name, column in columns.items()}
    supports = torch.stack([one.mean_support for one in layers])
    largest = max(float(one.max_support.max()) for one in layers)
    return {**means, "mean_support": float(supports.mean()), "max_support": largest}


task = LanguageModelTask()
