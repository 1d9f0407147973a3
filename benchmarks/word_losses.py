"""Models that differ in the loss of their words alone: quality, how many words they rule out, and words a second.

    python -m benchmarks.word_losses seq2seq train.tsv.gz dev.tsv.gz --device cuda --steps 1500 --out words.json
    python -m benchmarks.word_losses lm train.txt dev.txt --device cuda --steps 1500

Each is the model of `polymax train lm` or `polymax train seq2seq`, with the same first weights and the same batches.
Speed changes with the words that a training leaves possible: --keep writes weights, and --start goes on from them, so
that trainings may run side by side and words a second be measured alone.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

from benchmarks import machine
from polymax_recipes.demo import speed
from polymax_recipes.lm.task import LanguageModelOptions
from polymax_recipes.lm.task import task as lm
from polymax_recipes.seq2seq.task import Seq2SeqOptions, found_targets, target_words
from polymax_recipes.seq2seq.task import task as seq2seq
from polymax_recipes.training.batches import shuffled_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Trained
from polymax_recipes.words import LOSSES

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
    parser.add_argument("--seconds", type=float, default=math.inf, help="a training ends after these, if not before")
    parser.add_argument("--start", type=Path, help="folder with weights to start from")
    parser.add_argument("--keep", type=Path, help="folder for the weights of each loss")
    parser.add_argument("--speed-only", action="store_true", help="measure words a second and nothing else")
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
        if options.steps < WARM + 2:
            raise ValueError(
                f"--steps must be at least {WARM + 2}, since {WARM + 1} are not timed; got {options.steps}"
            )
        data = Data.read(options)
        rows = [trained(loss, data, options) for loss in options.loss or LOSSES]
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for row in rows:
        print("  ".join(f"{name} {value:,.4g}" for name, value in row.items() if isinstance(value, float)), flush=True)
    if options.out is not None:
        files = ("out", "loss", "train", "dev", "start", "keep")
        settings = {name: value for name, value in vars(options).items() if name not in files}
        settings["seconds"] = options.seconds if math.isfinite(options.seconds) else None
        kept = {**machine.provenance(), "machine": machine.describe(options.device), **settings, "rows": rows}
        options.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


@dataclass(frozen=True)
class Data:
    """What all losses learn from and are measured on."""

    task: Any
    vocabularies: Any
    train: Any
    dev: list[Any]

    @classmethod
    def read(cls, options: argparse.Namespace) -> "Data":
        task: Any = lm if options.task == "lm" else seq2seq
        chosen = chosen_options(LOSSES[0], options)
        train, dev = (task.read([file]) for file in (options.train, options.dev))
        if options.task == "lm":
            train, dev = (task.used(examples, "train", chosen) for examples in (train, dev))
        else:
            dev = dev[: options.dev_examples]
        vocabularies = task.vocabularies(train, chosen)
        return cls(task, vocabularies, task.encode(train, vocabularies), dev)


def chosen_options(loss: str, options: argparse.Namespace) -> Any:
    """The options of the recipe."""
    if options.task == "lm":
        return LanguageModelOptions(
            loss=loss, subwords=options.subwords, size=options.size, context=options.context, batch=options.batch_size
        )
    return Seq2SeqOptions(
        loss=loss, subwords=options.subwords, hidden=options.size, embedding=options.size, attention="sparsemax"
    )


def trained(loss: str, data: Data, options: argparse.Namespace) -> dict[str, Any]:
    """What is known of a model with this loss after its training."""
    chosen = chosen_options(loss, options)
    torch.manual_seed(0)
    model = data.task.model(chosen, data.vocabularies).to(options.device)
    if options.start is not None:
        model.load_state_dict(torch.load(options.start / f"{options.task}-{loss}.pt", map_location=options.device))
    curve = list(steps(model, data, options))
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), options.keep / f"{options.task}-{loss}.pt")
    row: dict[str, Any] = {
        "loss_name": loss,
        "words": len(next(iter(data.vocabularies.values()))),
        "steps": curve[-1][0],
        "words_per_second": median(rate for _, rate in curve),
    }
    if not options.speed_only:
        model.eval()
        report = means(model, data.task.encode(data.dev, data.vocabularies), options.batch_size)
        row |= {"epsilon_perplexity": math.exp(report["epsilon_nats"]), **report}
        if options.task == "seq2seq":
            row |= searched(Trained(data.task, chosen, data.vocabularies, model), data.dev, options)
    print(loss, {name: value for name, value in row.items() if isinstance(value, float)}, flush=True)
    return row


def steps(model: Any, data: Data, options: argparse.Namespace) -> Iterator[tuple[int, float]]:
    """Train; steps so far and words a second of each 50 of them, on the CPU by the processor's time that they took."""
    clock = process_time if options.device == "cpu" else perf_counter
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    # as many words as there are to predict
    sizes = data.task.tokens(data.train)
    batches: list[torch.Tensor] = []
    epoch, words, begun, start = 0, 0, perf_counter(), clock()
    for step in range(options.steps):
        if not batches:
            batches = shuffled_batches(data.train.sizes, options.batch_size, seed=0, epoch=epoch)
            epoch += 1
        rows = batches.pop()
        progress = max(step / options.steps, (perf_counter() - begun) / options.seconds)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min((step + 1) / 50, 1.0) * max(1 - progress, 0.02)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            total, count = model.loss(to_device(data.train[rows], model))["loss"]
        optimizer.zero_grad()
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        words += int(sizes[rows].sum())
        last = step + 1 == options.steps or (progress >= 1 and step > WARM)
        if step == WARM or (step + 1) % 50 == 0 or last:
            if options.device == "cuda":
                torch.cuda.synchronize()
            now = clock()
            if step > WARM:
                yield step + 1, words / (now - start)
            words, start = 0, now
        if last:
            return


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
    from polymax_recipes.seq2seq.measures import bleu

    try:
        return bleu(texts, wanted)
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main())
