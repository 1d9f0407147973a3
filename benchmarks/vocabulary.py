"""Losses over a vocabulary: small language models that differ in the loss of their words alone.

    python -m benchmarks.vocabulary minutes runs --device cuda --minutes 10
    python -m benchmarks.vocabulary full runs --device cuda --keep
    python -m benchmarks.vocabulary cpu runs --machine laptop --keep

Models learn pieces of the Python sources of the installed packages, of which whole packages are held out. First weights
and batches are the same for every loss. Measured are what allows zeros (epsilon-perplexity, Jensen-Shannon divergence,
sparsemax score), words in the support, how much a model repeats, different n-grams of what it writes, and the time.

See: Martins, Marinho and Martins 2020, Sparse text generation, https://arxiv.org/abs/2004.02644.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from benchmarks import grid
from benchmarks.language_model import Training, batch_of, trained
from polymax_recipes.lm.data import Windows
from polymax_recipes.lm.generate import Sampling, continuations
from polymax_recipes.lm.model import LanguageModel
from polymax_recipes.lm.repeats import distinct, repeats
from polymax_recipes.lm.sources import source_documents
from polymax_recipes.lm.task import LanguageModelOptions
from polymax_recipes.lm.tokens import Pieces, learned_pieces

# loss and alpha of the recipe
LOSSES = {
    "cross-entropy": ("cross-entropy", 1.0),
    "entmax 1.25": ("entmax", 1.25),
    "entmax 1.5": ("entmax", 1.5),
    "sparsemax": ("sparsemax", 2.0),
}
# the contexts in which a repeated word is looked for, those of Martins et al. 2020
WITHIN = (16, 32, 128, 512)
NGRAMS = (1, 2, 3)


@dataclass(frozen=True)
class Plan:
    """A model, its training, and how much is read and written."""

    pieces: int
    context: int
    size: int
    layers: int
    batch_size: int
    steps: int
    lr: float
    learned: int
    held_out: int
    samples: int
    written: int
    precision: str = "bf16"


PLANS = {
    "full": Plan(32_000, 1_024, 512, 6, 32, 6_000, 6e-4, 256 << 20, 4 << 20, 256, 256),
    "minutes": Plan(16_000, 512, 256, 4, 32, 300, 2e-3, 32 << 20, 1 << 20, 64, 128),
    "cpu": Plan(4_000, 64, 64, 2, 8, 300, 5e-3, 4 << 20, 64 << 10, 32, 32, "float32"),
}


def main() -> int:
    """Train what has no file yet, print the measures, and keep all of it if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vocabulary", description=__doc__)
    grid.add_options(parser, [*PLANS])
    parser.add_argument("--loss", action="append", choices=LOSSES, help="may be repeated; all by default")
    parser.add_argument("--steps", type=int, default=0, help="of each training, in the place of the plan's")
    return grid.main("vocabulary", parser.parse_args(), jobs, table)


def jobs(options: argparse.Namespace) -> Iterator[grid.Job]:
    """Yield the trainings, seeds in the outermost loop."""
    plan = PLANS[options.plan]
    for seed in grid.seeds(options):
        for loss in options.loss or LOSSES:
            how = Training(
                options.device, options.steps or plan.steps, 0.0, plan.batch_size, plan.lr, plan.precision, seed
            )
            facts = {"loss_name": loss, "seed": seed, "sizes": {**asdict(plan), "steps": how.steps}}
            yield grid.Job(f"{options.plan}-{loss.replace(' ', '-')}-{seed}", facts, partial(run, plan, loss, how))


def run(plan: Plan, loss: str, how: Training) -> dict[str, Any]:
    """Train a model with a loss, and return what it learned, what it writes, and how long it took."""
    tokens, train, windows = texts(plan)
    name, alpha = LOSSES[loss]
    options = LanguageModelOptions(
        loss=name, loss_alpha=alpha, context=plan.context, size=plan.size, layers=plan.layers, subwords=plan.pieces
    )
    torch.manual_seed(how.seed)
    model = LanguageModel(options, len(tokens)).to(how.device)
    curve = list(trained(model, how, train, plan.context))
    rates = [part["tokens_per_second"] for part in curve if part["tokens_per_second"]]
    # of the second half: as many words are possible then as are at the end
    rate = median(rates[len(rates) // 2 :])
    model.eval()
    return {
        "words": len(tokens),
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "train_tokens": len(train),
        "curve": curve,
        "tokens_per_second": rate,
        "step_ms": 1e3 * plan.batch_size * plan.context / rate,
        **quality(model, how, windows),
        **written(model, plan, how, windows),
    }


@cache
def texts(plan: Plan) -> tuple[Pieces, Tensor, Tensor]:
    """Return the pieces, the tokens to learn from, and windows (count, context + 1) of held-out packages."""
    documents = source_documents("train", plan.context, plan.learned)
    # a part of the text has all frequent pieces
    tokens = Pieces(learned_pieces((one.text for one in documents[:: max(1, plan.learned >> 23)]), plan.pieces))
    train, test = (
        Windows(some, tokens).values.long()
        for some in (documents, source_documents("test", plan.context, plan.held_out))
    )
    return tokens, train, test.unfold(0, plan.context + 1, plan.context)


@torch.no_grad()
def quality(model: LanguageModel, how: Training, windows: Tensor) -> dict[str, Any]:
    """Return the measures of held-out windows that allow a probability of 0, and how often the best word repeats."""
    sums: dict[str, float] = {}
    count = right = 0.0
    repeated, wrongly = dict.fromkeys(WITHIN, 0.0), dict.fromkeys(WITHIN, 0.0)
    for some in windows.split(how.batch_size):
        batch = batch_of(some, how.device)
        with how.autocast():
            measured = model.loss(batch)
            # the best word has the largest score, whatever the loss
            best = torch.cat([model.scores(row).argmax(-1) for row in model.states(batch.inputs)[0].split(1)])
        for name, (total, _) in measured.items():
            sums[name] = sums.get(name, 0.0) + float(total)
        count += best.numel()
        right += float((best == batch.targets).sum())
        for within in WITHIN:
            again = repeats(best, batch.inputs, within)
            repeated[within] += float(again.sum())
            wrongly[within] += float((again & (best != batch.targets)).sum())
    return {
        "accuracy": right / count,
        "epsilon_perplexity": math.exp(sums["epsilon_nats"] / count),
        "jensen_shannon": sums["jensen_shannon"] / count,
        "sparsemax_score": sums["sparsemax_score"] / count,
        "possible_words": sums["possible_words"] / count,
        # means over the contexts
        "repeats": mean(value / count for value in repeated.values()),
        "wrong_repeats": mean(value / count for value in wrongly.values()),
    }


def written(model: LanguageModel, plan: Plan, how: Training, windows: Tensor) -> dict[str, Any]:
    """Return the shares of different n-grams in what a model draws after held-out prompts, and in the text itself."""
    some = windows[torch.linspace(0, len(windows) - 1, min(plan.samples, len(windows))).long()]
    half = plan.context // 2
    prompts = some[:, :half].tolist()
    sampling = Sampling(plan.written, plan.context, temperature=1.0, seed=how.seed)
    drawn = [one.tokens for one in continuations(model, prompts, sampling, range(len(prompts)))]
    own = some[:, half : half + plan.written].tolist()
    return {f"distinct_{n}": distinct(drawn, n) for n in NGRAMS} | {
        f"distinct_{n}_of_text": distinct(own, n) for n in NGRAMS
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each loss: means over seeds."""
    columns: tuple[str, ...] = (
        "accuracy",
        "epsilon_perplexity",
        "jensen_shannon",
        "sparsemax_score",
        "possible_words",
        "wrong_repeats",
    )
    columns += ("distinct_1", "distinct_3", "step_ms")
    lines = [f"{'loss':<14} seeds" + "".join(f"{name:>20}" for name in columns)]
    for loss in dict.fromkeys(row["loss_name"] for row in rows):
        some = [row for row in rows if row["loss_name"] == loss]
        means = "".join(f"{mean(row[name] or 0.0 for row in some):>20.4g}" for name in columns)
        lines.append(f"{loss:<14} {len(some):>5}{means}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
