"""Models that differ in the loss of their words alone: quality, how many words they rule out, and words a second.

    python -m benchmarks.word_losses seq2seq train.tsv.gz dev.tsv.gz --device cuda --steps 1500 --out words.json
    python -m benchmarks.word_losses lm train.txt dev.txt --device cuda --steps 1500

Each is the model of `polymax train lm` or `polymax train seq2seq`, with the same first weights and the same batches.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

from benchmarks import machine
from polymax.recipes.demo import speed
from polymax.recipes.lm.task import LanguageModelOptions
from polymax.recipes.lm.task import task as lm
from polymax.recipes.seq2seq.task import Seq2SeqOptions, found_targets, target_words
from polymax.recipes.seq2seq.task import task as seq2seq
from polymax.recipes.training.batches import shuffled_batches
from polymax.recipes.training.measured import means, moved
from polymax.recipes.training.task import Trained
from polymax.recipes.words import LOSSES

# steps that are not timed: kernels are compiled in them
WARM = 5


def main() -> int:
    """Train a model for each loss, print a table, and write a file if one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.word_losses", description=__doc__)
    parser.add_argument("task", choices=("lm", "seq2seq"))
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--loss", action="append", choices=LOSSES, help="by default all")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--subwords", type=int, default=8000)
    parser.add_argument("--size", type=int, default=256, help="of the states")
    parser.add_argument("--context", type=int, default=128, help="tokens that a language model reads at once")
    parser.add_argument("--dev-examples", type=int, default=1000)
    parser.add_argument("--proven", type=int, default=100, help="dev sentences that are searched with a proof")
    parser.add_argument("--precision", choices=("bf16", "float32"), default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        speed.available(options.device)
        rows = [trained(loss, options) for loss in options.loss or LOSSES]
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for row in rows:
        print("  ".join(f"{name} {value:,.4g}" for name, value in row.items() if isinstance(value, float)), flush=True)
    if options.out is not None:
        settings = {name: value for name, value in vars(options).items() if name not in ("out", "loss", "train", "dev")}
        kept = {"machine": machine.describe(options.device), **settings, "rows": rows}
        options.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


def trained(loss: str, options: argparse.Namespace) -> dict[str, Any]:
    """What is known of a model with this loss after its training."""
    task: Any = lm if options.task == "lm" else seq2seq
    chosen: Any
    if options.task == "lm":
        chosen = LanguageModelOptions(
            loss=loss, subwords=options.subwords, size=options.size, context=options.context, batch=options.batch_size
        )
    else:
        chosen = Seq2SeqOptions(
            loss=loss, subwords=options.subwords, hidden=options.size, embedding=options.size, attention="sparsemax"
        )
    train, dev = (task.read([file]) for file in (options.train, options.dev))
    if options.task == "lm":
        train, dev = (task.used(examples, "train", chosen) for examples in (train, dev))
    else:
        dev = dev[: options.dev_examples]
    vocabularies = task.vocabularies(train, chosen)
    torch.manual_seed(0)
    model = task.model(chosen, vocabularies).to(options.device)
    data = task.encode(train, vocabularies)
    curve = list(steps(model, data, task, options))
    model.eval()
    report = means(model, task.encode(dev, vocabularies), options.batch_size)
    row: dict[str, Any] = {
        "loss_name": loss,
        "words": len(next(iter(vocabularies.values()))),
        "steps": options.steps,
        "words_per_second": median(curve),
        "epsilon_perplexity": math.exp(report["epsilon_nats"]),
        **report,
    }
    if options.task == "seq2seq":
        row |= searched(Trained(task, chosen, vocabularies, model), dev, options)
    print(loss, {name: value for name, value in row.items() if isinstance(value, float)}, flush=True)
    return row


def steps(model: Any, data: Any, task: Any, options: argparse.Namespace) -> Iterator[float]:
    """Train, and give the words a second of each 50 steps; on the CPU, of the processor's time that they took."""
    clock = process_time if options.device == "cpu" else perf_counter
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1.0) * max(1 - step / options.steps, 0.02)
    )
    # as many words as there are to predict
    sizes = task.tokens(data)
    batches: list[torch.Tensor] = []
    epoch, words, start = 0, 0, clock()
    for step in range(options.steps):
        if not batches:
            batches = shuffled_batches(data.sizes, options.batch_size, seed=0, epoch=epoch)
            epoch += 1
        rows = batches.pop()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            total, count = model.loss(moved(data[rows], model))["loss"]
        optimizer.zero_grad()
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        words += int(sizes[rows].sum())
        if step == WARM or (step + 1) % 50 == 0 or step + 1 == options.steps:
            if options.device == "cuda":
                torch.cuda.synchronize()
            now = clock()
            if step > WARM:
                yield words / (now - start)
            words, start = 0, now


def searched(trained: Trained, dev: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Targets by a beam, how many of them are proven to be the best, and how many a search with a proof proves."""
    sources = [example.source for example in dev]
    found = found_targets(trained, sources)
    vocabulary = trained.vocabularies["target"]
    texts = [vocabulary.decode(target_words(words)) for words in found.words]
    wanted = [[" ".join(target.split()) for target in example.targets] for example in dev]
    row = {"proven_by_beam": float(found.exact.double().mean()), "bleu": _bleu(texts, wanted), "texts": texts}
    if trained.options.loss == "cross-entropy":
        # no word is impossible: a proof would take all targets
        return row
    start = perf_counter()
    proof = Trained(trained.task, replace(trained.options, exact=500), trained.vocabularies, trained.model)
    proven = found_targets(proof, sources[: options.proven])
    return {
        **row,
        "proven_by_beam_of_some": float(found.exact[: options.proven].double().mean()),
        "proven_of_some": float(proven.exact.double().mean()),
        "seconds_for_proofs": perf_counter() - start,
        "better_than_beam": float((proven.scores > found.scores[: options.proven] + 1e-6).double().mean()),
    }


def _bleu(texts: list[str], wanted: list[list[str]]) -> float | None:
    """BLEU, where its package is installed."""
    from polymax.recipes.seq2seq.measures import bleu

    try:
        return bleu(texts, wanted)
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main())
