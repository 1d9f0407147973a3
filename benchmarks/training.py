"""Words a second in training: one translation model with every attention, on the same batches, in turns.

    python -m benchmarks.training PAIRS.tsv --device cuda

A word is one of a source or of a target. The baseline is the same model with torch.softmax.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks import machine
from polymax_recipes.demo import speed
from polymax_recipes.seq2seq.attention import NAMES
from polymax_recipes.seq2seq.data import Pairs
from polymax_recipes.seq2seq.task import Seq2SeqOptions, task
from polymax_recipes.training.batches import shuffled_batches
from polymax_recipes.training.measured import to_device

BASELINE = "torch.softmax"


def main() -> int:
    """Measure, print a table, and write a file if one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--attention", action="append", choices=NAMES, help="by default all")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="batches in a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        speed.available(options.device)
        rows = measured(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{'attention':<14}{'words/s':>10}{'spread':>9}{'relative':>10}")
    for row in rows:
        print(f"{row['attention']:<14}{row['words_per_second']:>10,.0f}{row['spread']:>9.1%}{row['relative']:>10.3f}")
    if options.out is not None:
        settings = {name: getattr(options, name) for name in ("hidden", "batch_size", "steps", "rounds")}
        kept = {**machine.provenance(), "machine": machine.describe(options.device), **settings, "rows": rows}
        options.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return 0


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each attention: the median of its turns, relative to the baseline of the same round."""
    examples = task.read([options.pairs])
    chosen = Seq2SeqOptions(hidden=options.hidden, embedding=options.hidden)
    vocabularies = task.vocabularies(examples, chosen)
    pairs = task.encode(examples, vocabularies)
    batches = shuffled_batches(pairs.sizes, options.batch_size, seed=0, epoch=0)[: options.steps]
    names = [BASELINE, *(options.attention or NAMES)]
    turns = {name: _turn(name, chosen, vocabularies, pairs, batches, options.device) for name in names}
    for turn in turns.values():
        turn()
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name, turn in turns.items():
            rates[name].append(turn())
    rows = []
    for name in names:
        relative = median(mine / base for mine, base in zip(rates[name], rates[BASELINE]))
        rate = median(rates[name])
        spread = median(abs(one - rate) for one in rates[name]) / rate
        rows.append({"attention": name, "words_per_second": rate, "spread": spread, "relative": relative})
    return rows


def _turn(name: str, chosen: Seq2SeqOptions, vocabularies: Any, pairs: Pairs, batches: list[Any], device: str) -> Any:
    torch.manual_seed(0)
    options = Seq2SeqOptions(**chosen.__dict__ | ({"attention": name} if name != BASELINE else {}))
    model = task.model(options, vocabularies).to(device)
    if name == BASELINE:
        model.attention.attention.mapping = partial(torch.softmax, dim=-1)  # type: ignore[assignment]
    optimizer = torch.optim.Adam(model.parameters())

    def turn() -> float:
        words = 0
        start = perf_counter()
        for rows in batches:
            batch = pairs[rows]
            words += int(batch.source_lengths.sum() + batch.target_lengths.sum())
            optimizer.zero_grad()
            total, count = model.loss(to_device(batch, model))["loss"]
            (total / count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return words / (perf_counter() - start)

    return turn


if __name__ == "__main__":
    sys.exit(main())
