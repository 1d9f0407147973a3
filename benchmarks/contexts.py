"""Language models of long contexts by their attention, on the Python sources of the installed packages.

    python -m benchmarks.contexts minutes runs --device cuda --minutes 10
    python -m benchmarks.contexts full runs --device cuda --keep
    python -m benchmarks.contexts cpu runs --machine laptop --keep

A plan says contexts, sizes and lengths of trainings: `minutes` is for one GPU and ten minutes, `full` for days of one,
`cpu` for a quarter of an hour of one core. Models of a context differ in their attention alone: first weights and
windows are the same. Each is trained once for a number of steps, and once for a number of seconds; in `minutes` at a
learning rate that does not depend on them, so that trainings by seconds can be compared by steps, too. Whole packages
are held out. A name that ends in +scaling has scores multiplied by a learned function of the number of keys; one that
ends in +window sees the last keys alone. Softmax uses the fastest of torch's kernels, which are timed first.
"""

import argparse
import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks import grid, softmax_kernels
from benchmarks.language_model import Training, batch_of, trained
from polymax_recipes.lm.data import Windows
from polymax_recipes.lm.model import LanguageModel
from polymax_recipes.lm.sources import source_documents
from polymax_recipes.lm.task import LanguageModelOptions
from polymax_recipes.lm.tokens import Bytes

SCALED = "+scaling"
WINDOWED = "+window"
NAMES = ("softmax", "entmax", "sparsemax", "adaptive-entmax")
ALL = (*NAMES, *(name + SCALED for name in NAMES), "softmax" + WINDOWED)
# supports are measured on windows of at most so many tokens: the time is quadratic
MEASURED = 8_192
# positions whose scores of all tokens are computed at once
POSITIONS = 8_192


@dataclass(frozen=True)
class Shape:
    """A model and its training: the context, sizes, windows in a step, and the most that a training takes.

    budgets: (steps, seconds) of each training of a model by its name; 0 is no limit
    every: steps between two measurements, 0 for ten over the training
    constant: whether the learning rate stays after it has risen
    """

    context: int
    size: int
    layers: int
    heads: int
    batch_size: int
    budgets: dict[str, tuple[int, float]]
    attentions: tuple[str, ...] = ALL
    seeds: int = 3
    lr: float = 1e-3
    precision: str = "bf16"
    every: int = 0
    constant: bool = False


@dataclass(frozen=True)
class Plan:
    """Shapes of models, and the bytes of text they learn from and are tested on."""

    shapes: tuple[Shape, ...]
    learned: int
    held_out: int


FULL: dict[str, Any] = {"size": 768, "layers": 12, "heads": 12}
BRIEF: dict[str, Any] = {"size": 512, "layers": 6, "heads": 8, "constant": True}
BRIEF |= {"attentions": ("softmax", "softmax+window", "entmax", "sparsemax")}
PLANS = {
    "full": Plan(
        (
            Shape(4_096, batch_size=16, budgets={"steps": (4_000, 0), "seconds": (0, 900)}, **FULL),
            Shape(32_768, batch_size=2, budgets={"steps": (4_000, 0), "seconds": (0, 1_800)}, seeds=1, **FULL),
            Shape(
                131_072,
                batch_size=1,
                budgets={"seconds": (0, 3_600)},
                attentions=("softmax", "entmax"),
                seeds=1,
                **FULL,
            ),
        ),
        learned=256 << 20,
        held_out=2 << 20,
    ),
    "minutes": Plan(
        (
            Shape(32_768, batch_size=1, budgets={"seconds": (0, 30), "steps": (440, 0)}, every=60, **BRIEF),
            Shape(4_096, batch_size=8, budgets={"seconds": (0, 8), "steps": (300, 0)}, every=60, **BRIEF),
            # a small model: a step of the others takes a second
            Shape(
                131_072,
                batch_size=1,
                budgets={"seconds": (0, 25)},
                every=30,
                **{**BRIEF, "size": 256, "layers": 2, "heads": 4},
            ),
        ),
        learned=64 << 20,
        held_out=1 << 20,
    ),
    "cpu": Plan(
        (
            Shape(
                256,
                size=64,
                layers=2,
                heads=4,
                batch_size=8,
                budgets={"steps": (200, 0), "seconds": (0, 10)},
                attentions=("softmax", "entmax", "sparsemax", "entmax+scaling"),
                lr=5e-3,
                precision="float32",
            ),
        ),
        learned=4 << 20,
        held_out=32 << 10,
    ),
}


def main() -> int:
    """Train what has no file yet, print losses and speeds, and keep all of it if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contexts", description=__doc__)
    grid.add_options(parser, [*PLANS])
    parser.add_argument("--context", type=int, action="append", help="one of the plan; may be repeated; all by default")
    parser.add_argument("--attention", action="append", choices=ALL, help="may be repeated; by default the plan's")
    parser.add_argument("--budget", action="append", choices=("steps", "seconds"), help="by default both")
    parser.add_argument("--steps", type=int, default=0, help="of each training by steps, in the place of the plan's")
    parser.add_argument("--seconds", type=float, default=0.0, help="of each training by seconds, likewise")
    parser.add_argument("--compile", action="store_true", help="compile the layers with torch.compile")
    return grid.main("contexts", parser.parse_args(), jobs, table)


def jobs(options: argparse.Namespace) -> Iterator[grid.Job]:
    """Yield the trainings. Seeds are the outermost loop: what is stopped early has fewer seeds of everything."""
    plan = PLANS[options.plan]
    known = [shape.context for shape in plan.shapes]
    unknown = [context for context in options.context or () if context not in known]
    if unknown:
        raise ValueError(f"--context: {options.plan} has {', '.join(map(str, known))}; got {unknown[0]}")
    for seed in grid.seeds(options):
        for shape in plan.shapes:
            if seed >= shape.seeds or shape.context not in (options.context or known):
                continue
            for kind, (steps, seconds) in shape.budgets.items():
                for attention in options.attention or shape.attentions:
                    if kind not in (options.budget or (kind,)):
                        continue
                    steps, seconds = (
                        (options.steps or steps) * bool(steps),
                        (options.seconds or seconds) * bool(seconds),
                    )
                    how = Training(
                        options.device, steps, seconds, shape.batch_size, shape.lr, shape.precision, seed,
                        shape.every, shape.constant,
                    )  # fmt: skip
                    facts = {"attention": attention, "budget": kind, "seed": seed, "context": shape.context}
                    facts |= {"model": asdict(chosen(shape, attention)), "compiled": options.compile}
                    facts |= {"steps_asked": steps, "seconds_asked": seconds, "batch_size": shape.batch_size}
                    facts |= {"lr": shape.lr, "constant": shape.constant, "precision": shape.precision}
                    work = partial(run, plan, shape, attention, how, options.compile)
                    yield grid.Job(f"{options.plan}-{shape.context}-{attention}-{kind}-{seed}", facts, work)


def chosen(shape: Shape, attention: str) -> LanguageModelOptions:
    """Return the options of `polymax train lm` for a model."""
    return LanguageModelOptions(
        attention=attention.removesuffix(SCALED).removesuffix(WINDOWED),
        length_scaling=attention.endswith(SCALED),
        context=shape.context,
        size=shape.size,
        layers=shape.layers,
        heads=shape.heads,
    )


def run(plan: Plan, shape: Shape, attention: str, how: Training, compiled: bool) -> dict[str, Any]:
    """Train one model, and return its curve, losses, supports, speed and memory."""
    train, windows, facts = texts(plan, shape.context)
    torch.manual_seed(how.seed)
    model = LanguageModel(chosen(shape, attention), len(Bytes())).to(how.device)
    facts["weights"] = sum(parameter.numel() for parameter in model.parameters())
    kernel, facts["kernels"], facts["kernel"] = kernel_of(shape, attention, how)
    if how.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if compiled:
        for block in model.layers:
            block.compile()
    curve = []
    peak = 0.0
    with kernel:
        for part in trained(model, how, train, shape.context):
            # of steps: the memory of what measures the model does not count
            if how.device == "cuda":
                peak = max(peak, torch.cuda.max_memory_allocated() / 2**30)
            model.eval()
            # shapes of what measures the model are not worth a compilation
            with torch.compiler.set_stance("force_eager"):
                few = losses(model, how, windows[::8])
                part |= {"held_out": float(few.mean()) / math.log(2), "supports": supports(model, how, windows)}
            curve.append(part)
            grid.tell(f"{'':>12}held out {part['held_out']:.4f} bits a byte, an eighth of the windows")
            model.train()
            if how.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
        model.eval()
        with torch.compiler.set_stance("force_eager"):
            found = losses(model, how, windows)
    rates = [part["tokens_per_second"] for part in curve if part["tokens_per_second"]]
    alphas = model.alphas()
    return {
        **facts,
        "curve": curve,
        "steps": curve[-1]["step"],
        "seconds": curve[-1]["seconds"],
        "bits_per_byte": float(found.mean()) / math.log(2),
        "by_position": by_position(found),
        "mean_support": mean(curve[-1]["supports"]["mean_support"]),
        "alphas": None if alphas is None else alphas.tolist(),
        # of the second half: weights are as sparse then as they get
        "tokens_per_second": median(rates[len(rates) // 2 :]) if rates else None,
        "peak_gib": peak or None,
    }


def kernel_of(
    shape: Shape, attention: str, how: Training
) -> tuple[AbstractContextManager[None], dict[str, float], str | None]:
    """Return where a model attends by the fastest of torch's kernels, their milliseconds, and the name of that one."""
    window = attention.endswith(WINDOWED)
    if how.device == "cpu" or not attention.startswith("softmax"):
        return softmax_kernels.windows(softmax_kernels.blocks) if window else nullcontext(), {}, None
    found = softmax_kernels.kernels(shape.context, window)
    dtype = torch.bfloat16 if shape.precision == "bf16" else torch.float32
    size = shape.batch_size, shape.heads, shape.context, shape.size // shape.heads
    with how.autocast():
        # as in the training, so that what is compiled here is used there
        taken = softmax_kernels.times(found, size, dtype)
    best = min(taken, key=taken.__getitem__)
    return softmax_kernels.windows(found[best]) if window else softmax_kernels.all_keys(best), taken, best


@cache
def _tokens(part: str, most: int) -> Tensor:
    return Windows(source_documents(part, 1, most), Bytes()).values.long()


def texts(plan: Plan, context: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return the tokens to learn from, windows (count, context + 1) of held-out packages, and digests of both."""
    train, test = _tokens("train", plan.learned), _tokens("test", plan.held_out)
    if len(test) <= context:
        raise ValueError(
            f"the held-out packages of this Python have {len(test):,} bytes, too few for a context of {context:,}"
        )
    digests = {f"{name}_digest": _digest(tokens) for name, tokens in (("train", train), ("test", test))}
    facts: dict[str, Any] = {"train_bytes": len(train), "test_bytes": len(test), **digests}
    return train, test.unfold(0, context + 1, context), facts


def _digest(tokens: Tensor) -> str:
    return hashlib.sha256(tokens.short().numpy().tobytes()).hexdigest()[:16]


@torch.no_grad()
def losses(model: LanguageModel, how: Training, windows: Tensor) -> Tensor:
    """Return the mean loss of windows at each position, in nats, (context,)."""
    found = torch.zeros(windows.shape[1] - 1, dtype=torch.float64)
    for some in windows.split(how.batch_size):
        batch = batch_of(some, how.device)
        with how.autocast():
            states = model.states(batch.inputs)[0]
            for start in range(0, len(found), POSITIONS):
                part = slice(start, start + POSITIONS)
                scores = model.scores(states[:, part]).float()
                each = cross_entropy(scores.transpose(1, 2), batch.targets[:, part], reduction="none")
                found[part] += each.double().sum(0).cpu()
    return found / len(windows)


def by_position(found: Tensor) -> dict[str, float]:
    """Return the bits per byte of positions 0 to 63, 64 to 127, 128 to 255, ... by the first of each."""
    edges = [0]
    while (following := max(64, 2 * edges[-1])) < len(found):
        edges.append(following)
    ends = [*edges[1:], len(found)]
    return {str(a): float(found[a:b].mean()) / math.log(2) for a, b in zip(edges, ends)}


def supports(model: LanguageModel, how: Training, windows: Tensor) -> dict[str, list[float]]:
    """Return, for each layer, the keys that a query attends to and the share of exact zeros, means over heads."""
    with how.autocast():
        layers = model.statistics(windows[:1, : min(MEASURED, windows.shape[1] - 1)].to(how.device))
    return {
        "mean_support": [float(layer.mean_support.mean()) for layer in layers],
        "zeros": [float(layer.zeros.mean()) for layer in layers],
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each context, budget and attention: means over seeds."""
    lines = [f"{'context':>8} {'budget':<8} {'attention':<24} seeds  steps  bits/byte   tokens/s  keys  peak GiB"]
    kinds = dict.fromkeys((row["context"], row["budget"], row["attention"]) for row in rows)
    for kind in kinds:
        context, budget, attention = kind
        some = [row for row in rows if (row["context"], row["budget"], row["attention"]) == kind]
        bits = mean(row["bits_per_byte"] for row in some)
        rate = mean(row["tokens_per_second"] or 0 for row in some)
        keys, steps = mean(row["mean_support"] for row in some), mean(row["steps"] for row in some)
        peak = "" if some[0]["peak_gib"] is None else f"{some[0]['peak_gib']:.1f}"
        lines.append(
            f"{context:>8} {budget:<8} {attention:<24} {len(some):>5} {steps:>6.0f} {bits:>10.4f} {rate:>10,.0f} "
            f"{keys:>5.0f}  {peak}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
