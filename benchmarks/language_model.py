"""Language models of bytes that differ in their attention alone: speed, bits per byte, and how sparse they get.

    python -m benchmarks.language_model --device cuda --seconds 120 --out language_model.json
    python -m benchmarks.language_model --device cuda --text corpus.txt --steps 2000 --attention entmax

Each is the model of `polymax train lm`, trained on random windows of a text, with the same first weights and the same
windows; the end of the text is held out. Without --text it learns the sources and documents of this repository. Only
torch and polymax are needed. With --keep and --start trainings may run side by side, and tokens a second of what they
learned be measured alone.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from polymax_recipes.demo import speed
from polymax_recipes.lm.data import Batch
from polymax_recipes.lm.generate import Sampling, continuations
from polymax_recipes.lm.model import ATTENTIONS, LanguageModel
from polymax_recipes.lm.task import LanguageModelOptions, attention_report
from polymax_recipes.lm.tokens import Bytes

ROOT = Path(__file__).parents[1]
NAMES = ("softmax", "entmax", "adaptive-entmax")
# options that are no settings of the trainings
NOT_KEPT = ("out", "text", "attention", "start", "keep")
# lines that tell how far a training is
PARTS = 10
# steps that are not timed: kernels are compiled in them
WARM = 3


@dataclass(frozen=True)
class Training:
    """How long, on what, and how fast the weights change; as many steps as were asked for, or as the time allows.

    every: steps between two measurements; 0 for ten of them over the training
    constant: keep the learning rate after it has risen, so that trainings of different lengths have the same steps
    """

    device: str
    steps: int
    seconds: float
    batch_size: int
    lr: float
    precision: str
    seed: int
    every: int = 0
    constant: bool = False

    def progress(self, step: int, seconds: float) -> float:
        """The share that is done, from 0 to 1."""
        by_steps = step / self.steps if self.steps else 0.0
        return max(by_steps, seconds / self.seconds if self.seconds else 0.0)

    def rate(self, step: int, progress: float) -> float:
        """The learning rate: it rises for 50 steps, then falls to a tenth as a cosine, or stays."""
        left = 1.0 if self.constant else 0.55 + 0.45 * math.cos(math.pi * min(progress, 1.0))
        return self.lr * min(1.0, (step + 1) / 50) * left

    def measures(self, step: int, progress: float, told: int) -> bool:
        """Return whether a training is to be measured after a step, if it was `told` tenths before."""
        if self.every:
            return progress >= 1 or (step > 0 and step % self.every == 0)
        return progress >= (told + 1) / PARTS

    def autocast(self) -> torch.autocast:
        """Where matrices are multiplied in bfloat16, if that was asked for."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")


def main() -> int:
    """Train a model for each attention, print a table, and write a file if one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language_model", description=__doc__)
    parser.add_argument("--text", type=Path, action="append", help="by default the files of this repository")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--attention", action="append", choices=[*ATTENTIONS], help=f"by default {', '.join(NAMES)}")
    parser.add_argument("--alpha", type=float, default=1.5, help="of entmax")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4, help="windows in a step")
    parser.add_argument("--steps", type=int, default=0, help="of each training; 0 for as many as --seconds allow")
    parser.add_argument("--seconds", type=float, default=0.0, help="of each training; 0 for as many as --steps take")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--held-out", type=int, default=16, help="windows at the end of the text that are not learned")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="folder with weights to start from")
    parser.add_argument("--keep", type=Path, help="folder for the weights of each attention")
    parser.add_argument("--speed-only", action="store_true", help="measure tokens a second and nothing else")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.steps <= 0 and options.seconds <= 0:
        print("error: --steps or --seconds must be given and positive", file=sys.stderr)
        return 1
    try:
        speed.available(options.device)
        train, held_out = texts(options.text, options.context, options.held_out)
        rows = [row for name in options.attention or NAMES for row in measured(name, options, train, held_out)]
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    if options.out is not None:
        settings = {name: value for name, value in vars(options).items() if name not in NOT_KEPT}
        named = [str(file) for file in options.text or ()] or "this repository"
        facts: dict[str, Any] = {**machine.provenance(), "machine": machine.describe(options.device)}
        facts |= {"text": named, "bytes": len(train), **settings}
        options.out.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


def texts(files: list[Path] | None, context: int, held_out: int) -> tuple[Tensor, Tensor]:
    """The tokens to learn from, and the last windows, (held_out, context + 1): what is seen and what is predicted."""
    paths = files or repository_files()
    tokens = Bytes().encode("\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)).long()
    end = len(tokens) - held_out * context - 1
    if end <= context:
        raise ValueError(
            f"--text must have more than {(held_out + 1) * context + 1:,} bytes, for {held_out} windows that are held "
            f"out and one to learn from; got {len(tokens):,}"
        )
    return tokens[:end], tokens[end:].unfold(0, context + 1, context)


def repository_files() -> list[Path]:
    """Sources and documents of this repository, in an order that mixes them: the last are like the first."""
    found = [path for ending in ("py", "md") for path in ROOT.rglob(f"*.{ending}")]
    hidden = [path for path in found if any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    chosen = sorted(set(found) - set(hidden))
    random.Random(0).shuffle(chosen)
    return chosen


def measured(name: str, options: argparse.Namespace, train: Tensor, held_out: Tensor) -> Iterator[dict[str, Any]]:
    """One row: what is known of a model with this attention after its training."""
    how = Training(
        options.device,
        options.steps,
        options.seconds,
        options.batch_size,
        options.lr,
        options.precision,
        options.seed,
    )
    chosen = LanguageModelOptions(
        attention=name,
        alpha=options.alpha,
        context=options.context,
        size=options.size,
        layers=options.layers,
        heads=options.heads,
    )
    torch.manual_seed(how.seed)
    model = LanguageModel(chosen, len(Bytes())).to(how.device)
    if options.start is not None:
        model.load_state_dict(torch.load(options.start / f"{name}.pt", map_location=how.device))
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name}: {weights:,} weights, context {chosen.context:,}, {how.batch_size} windows in a step", flush=True)
    if how.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    curve = list(trained(model, how, train, chosen.context))
    peak = torch.cuda.max_memory_allocated() / 2**30 if how.device == "cuda" else None
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), options.keep / f"{name}.pt")
    rates = [part["tokens_per_second"] for part in curve if part["tokens_per_second"]]
    row = {
        "attention": name,
        "model": asdict(chosen),
        "weights": weights,
        "steps": curve[-1]["step"],
        "seconds": curve[-1]["seconds"],
        "tokens": curve[-1]["step"] * how.batch_size * chosen.context,
        # of the second half: weights are as sparse then as they get
        "tokens_per_second": median(rates[len(rates) // 2 :]) if rates else None,
        "peak_gib": peak,
        "curve": curve,
    }
    yield row if options.speed_only else {**row, **quality(model, how, chosen, held_out)}


def quality(model: LanguageModel, how: Training, chosen: LanguageModelOptions, held_out: Tensor) -> dict[str, Any]:
    """What a model has learned, how sparse its attention is, and what it writes."""
    model.eval()
    bits = bits_per_byte(model, how, held_out)
    with how.autocast():
        layers = model.statistics(held_out[:1, :-1].to(how.device))
    for number, layer in enumerate(layers):
        print(f"layer {number}\n{layer}")
    alphas = model.alphas()
    return {
        "bits_per_byte": bits,
        "perplexity": 2**bits,
        **attention_report(layers),
        "mean_support_by_head": [layer.mean_support.tolist() for layer in layers],
        "zeros_by_head": [layer.zeros.tolist() for layer in layers],
        "empty_tiles_by_head": [layer.empty_tiles.tolist() for layer in layers],
        "alpha_by_head": None if alphas is None else alphas.tolist(),
        "sample": sample(model, chosen),
    }


def trained(model: LanguageModel, how: Training, train: Tensor, context: int) -> Iterator[dict[str, Any]]:
    """Train, and tell at each measurement: the step, seconds, the mean loss since the last one, and tokens a second.

    Seconds are those of the clock on a GPU, and those of the processor on a CPU, after the first steps.
    """
    generator = torch.Generator().manual_seed(how.seed)
    optimizer = torch.optim.AdamW(model.parameters(), how.lr, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[Tensor] = []
    # on a CPU that others use, too, the processor's time tells what a training takes
    clock = perf_counter if how.device == "cuda" else process_time
    step, told, begun = 0, 0, clock()
    since, steps_timed = begun, 0
    while True:
        progress = how.progress(step, clock() - begun if step >= WARM else 0.0)
        if how.measures(step, progress, told) and losses:
            if how.device == "cuda":
                torch.cuda.synchronize()
            now = clock()
            rate = steps_timed * how.batch_size * context / (now - since) if steps_timed else None
            loss = float(torch.stack(losses).mean()) / math.log(2)
            part = {"step": step, "seconds": now - begun, "bits": loss, "tokens_per_second": rate}
            shown = f"{rate:>10,.0f} tokens/s" if rate else ""
            print(f"step {step:>6}  {now - begun:>7.1f} s  {loss:.4f} bits a token {shown}", flush=True)
            yield part
            told, losses = int(progress * PARTS), []
            since, steps_timed = clock(), 0
            # the time of what measures the model is not the training's
            begun += since - now
        if progress >= 1:
            return
        for group in optimizer.param_groups:
            group["lr"] = how.rate(step, progress)
        starts = torch.randint(len(train) - context, (how.batch_size, 1), generator=generator)
        batch = batch_of(train[starts + torch.arange(context + 1)], how.device)
        with how.autocast():
            total, count = model.loss(batch)["loss"]
        optimizer.zero_grad()
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total.detach() / count)
        step, steps_timed = step + 1, steps_timed + 1
        if step == WARM:
            if how.device == "cuda":
                torch.cuda.synchronize()
            # kernels are compiled until here: a training is not the shorter for it
            begun = since = clock()
            steps_timed = 0


def batch_of(windows: Tensor, device: str) -> Batch:
    """Windows (b, context + 1) as the model takes them: each byte is predicted from those before it."""
    inputs, targets = windows[:, :-1].to(device), windows[:, 1:].to(device)
    widths = torch.full((len(windows),), targets.shape[1], device=device)
    # no loss of the benchmarks asks for the numbers of targets in the data
    return Batch(inputs, targets, widths, torch.zeros_like(targets))


@torch.no_grad()
def bits_per_byte(model: LanguageModel, how: Training, windows: Tensor) -> float:
    """Of the windows that are held out."""
    bits = 0.0
    for some in windows.split(how.batch_size):
        with how.autocast():
            bits += float(model.loss(batch_of(some, how.device))["bits_per_byte"][0])
    return bits / windows[:, 1:].numel()


def sample(model: LanguageModel, options: LanguageModelOptions) -> str:
    """What the model writes after a few words, at temperature 0.8."""
    prompt = "The weights of attention"
    sampling = Sampling(longest=200, context=options.context, temperature=0.8)
    (found,) = continuations(model, [Bytes().encode(prompt).tolist()], sampling, [0])
    return prompt + Bytes().decode(found.tokens)


def table(rows: list[dict[str, Any]]) -> str:
    """What differs, a line for each attention; `-` for what was not measured."""
    columns = {
        "steps": ("steps", 7, "d"),
        "tokens_per_second": ("tokens/s", 12, ",.0f"),
        "bits_per_byte": ("bits/byte", 11, ".4f"),
        "zeros": ("zeros", 9, ".1%"),
        "empty_tiles": ("empty tiles", 13, ".1%"),
        "mean_support": ("mean support", 14, ".1f"),
        "peak_gib": ("peak GiB", 10, ".2f"),
    }
    lines = [f"{'attention':<17}" + "".join(f"{title:>{width}}" for title, width, _ in columns.values())]
    for row in rows:
        known = [(row.get(key), width, form) for key, (_, width, form) in columns.items()]
        shown = (f"{'-' if value is None else format(value, form):>{width}}" for value, width, form in known)
        lines.append(f"{row['attention']:<17}" + "".join(shown))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
