"""Forward and backward of hidden states x weight over a vocabulary, beside torch's linear and cross_entropy.

The shape is rows x size x words, and logits are Gaussian of a standard deviation that the name says. Memory is the most
in use beyond the inputs and the gradients.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

import polymax as pm
from benchmarks import timing
from benchmarks.baselines import Tensors
from benchmarks.linear_loss import oracles
from benchmarks.machine import Others
from benchmarks.memory import peak
from benchmarks.parity import TOLERANCE
from benchmarks.record import ERROR, OK, PARITY_FAILED, Absent, Bar, Row
from benchmarks.timing import EFFORTS, QUICK
from benchmarks.workload import BOTH, Case, judged

SHAPES = {"cpu": (512, 512, 32_000), "cuda": (4096, 4096, 128_256)}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
# what trainers of language models give at once
LARGE = (8192, 4096, 151_936)
QUICK_SHAPE = (8, 16, 300)
BASE = "torch cross_entropy(linear)"
COMPILED = "compiled cross_entropy(linear)"

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def _cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(linear(hidden, weight), target)


def _dense(alpha: float, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return pm.entmax_loss(linear(hidden, weight), target, alpha)


@cache
def _compiled() -> Loss:
    return torch.compile(_cross_entropy)


def _liger() -> Loss | str:
    """The fused cross-entropy of Liger, or why it is absent."""
    try:
        loss = import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()
        return lambda hidden, weight, target: loss(weight, hidden, target)
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]


@dataclass(frozen=True)
class LossCase(Case):
    """The loss of one alpha on logits of one deviation, beside cross-entropy from all logits."""

    name: str
    alpha: float
    deviation: float
    bars: dict[str, Bar]
    # words in the list of a teacher for each row; 0 for one word as target
    teacher: int = 0

    def runs_on(self, device: str) -> bool:
        return device in SHAPES

    def absent(self, device: str) -> list[Absent]:
        found = _liger() if device == "cuda" else "runs on cuda only"
        return [Absent("liger_kernel.LigerFusedLinearCrossEntropyLoss", found)] if isinstance(found, str) else []

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        shape = QUICK_SHAPE if quick else SHAPES[device]
        problem = _problem(shape, device, self.deviation)
        losses: dict[str, tuple[Loss, float]] = {
            BASE: (_cross_entropy, 1.0),
            "polymax": (partial(_fused, self.alpha), self.alpha),
            "polymax entmax_loss(linear)": (partial(_dense, self.alpha), self.alpha),
        }
        liger = _liger() if device == "cuda" else ""
        if not isinstance(liger, str):
            losses["liger_kernel"] = (liger, 1.0)
        # the loss of lists beside that of one word
        target = _teacher(problem[2], shape[2], self.teacher)
        if self.teacher:
            losses = {
                "polymax, one word": losses["polymax"],
                "polymax": (partial(_fused, self.alpha, target=target), self.alpha),
            }
        elif device == "cuda" and not quick:
            losses[COMPILED] = (_compiled(), 1.0)
        base = BASE if BASE in losses else "polymax, one word"
        exact = {alpha: oracles.gradients(alpha, problem[0], problem[1], problem[2]) for _, alpha in losses.values()}
        truths = {name: exact[alpha] for name, (_, alpha) in losses.items()}
        if self.teacher:
            truths["polymax"] = oracles.gradients(self.alpha, problem[0], problem[1], target)
        known = {name: _checked(loss, problem, truths[name]) for name, (loss, _) in losses.items()}
        tasks = {
            name: [partial(_both, loss, problem)]
            for name, (loss, _) in losses.items()
            if known[name].get("status") == OK
        }
        others = Others()
        with others.watched():
            effort = QUICK if quick else EFFORTS[device]
            found = timing.wall(tasks, effort) if device == "cpu" else timing.eager(tasks, effort)
        gradients = sum(t.numel() * t.element_size() for t in problem[:2])
        for name, row in known.items():
            if name in found:
                row |= {"eager_us": found[name].median_us, "eager_spread_us": found[name].spread_us}
                peaks = [peak(tasks[name][0], device) for _ in range(1 if quick else 3)]
                row["extra_bytes"] = max(0, min(peaks) - gradients)
                if base in found:
                    row |= {"ratio": found[name].median_us / found[base].median_us, "ratio_of": "eager_us"}
            dtype = str(DTYPES[device]).removeprefix("torch.")
            bar = self.bars.get(device) if name == "polymax" and not quick else None
            yield Row(self.name, BOTH, name, shape, dtype, others=others.share, **row | judged(bar, row))


def _problem(shape: tuple[int, int, int], device: str, deviation: float) -> Tensors:
    rows, size, words = shape
    generator = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(rows, size, generator=generator, device=device)
    weight = torch.randn(words, size, generator=generator, device=device) * (deviation / size**0.5)
    target = torch.randint(words, (rows,), generator=generator, device=device)
    return hidden.to(DTYPES[device]), weight.to(DTYPES[device]), target


def _checked(loss: Loss, problem: Tensors, truth: Tensors) -> dict[str, Any]:
    """The errors of a loss and its gradients, relative to their norms."""
    try:
        value, found = _both(loss, problem)
    # whatever a competitor raises is a result of this competitor alone
    except Exception as error:
        return {"status": ERROR, "note": f"{type(error).__name__}: {error}".partition("\n")[0]}
    forward = float((value.double() - truth[0]).abs() / truth[0].abs())
    gradient = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, truth[1:], strict=True))
    tolerance = TOLERANCE[problem[0].dtype]
    parity = {"forward": forward, "gradient": gradient, "tolerance": tolerance, "rows": len(problem[0]), "kinks": 0}
    right = forward <= tolerance and gradient <= tolerance
    return {"status": OK if right else PARITY_FAILED, "parity": parity}


def _fused(
    alpha: float, hidden: Tensor, weight: Tensor, classes: Tensor, target: pm.WordDistribution | None = None
) -> Tensor:
    return pm.linear_entmax_loss(hidden, weight, classes if target is None else target, alpha=alpha)


def _teacher(classes: Tensor, words: int, count: int) -> pm.WordDistribution:
    """A list of words for each row, the class among them, with probabilities that fall."""
    count = max(min(count, words), 1)
    # words that are apart from each other
    ids = (classes.unsqueeze(1) + torch.arange(count, device=classes.device) * (words // count)) % words
    probs = torch.softmax(-0.2 * torch.arange(count, device=classes.device).float(), 0)
    return pm.WordDistribution(ids, probs.expand(len(classes), count), words)


@dataclass(frozen=True)
class CompiledCase(Case):
    """Cross-entropy beside that of torch.compile, with a row for each bar."""

    name: str
    shape: tuple[int, int, int]
    bars: tuple[Bar, ...]

    def runs_on(self, device: str) -> bool:
        return device == "cuda"

    def absent(self, device: str) -> list[Absent]:
        return []

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        shape = QUICK_SHAPE if quick else self.shape
        problem = _problem(shape, device, 1.0)
        truth = oracles.gradients(1.0, *problem)
        losses: dict[str, Loss] = {COMPILED: _compiled(), "polymax": partial(_fused, 1.0)}
        known = {name: _checked(loss, problem, truth) for name, loss in losses.items()}
        tasks = {name: [partial(_both, loss, problem)] for name, loss in losses.items()}
        others = Others()
        with others.watched():
            found = timing.eager(tasks, QUICK if quick else EFFORTS[device])
        gradients = sum(t.numel() * t.element_size() for t in problem[:2])
        for name, row in known.items():
            row |= {"eager_us": found[name].median_us, "eager_spread_us": found[name].spread_us}
            row |= {"ratio": found[name].median_us / found[COMPILED].median_us, "ratio_of": "eager_us"}
            row["extra_bytes"] = max(0, min(peak(tasks[name][0], device) for _ in range(3)) - gradients)
            dtype = str(DTYPES[device]).removeprefix("torch.")
            bars = self.bars if name == "polymax" and not quick else (None,)
            for bar in bars:
                label = f"{name}, {bar.column}" if bar is not None and bar is not bars[0] else name
                yield Row(self.name, BOTH, label, shape, dtype, others=others.share, **row | judged(bar, row))


@dataclass(frozen=True)
class LogProbCase(Case):
    """Log-probabilities of one word for each row, with entropy, beside the one product of matrices."""

    name: str
    shapes: dict[str, tuple[int, int, int]]
    bars: dict[str, Bar]

    def runs_on(self, device: str) -> bool:
        return device in self.shapes

    def absent(self, device: str) -> list[Absent]:
        return []

    @torch.no_grad()
    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        shape = QUICK_SHAPE if quick else self.shapes[device]
        hidden, weight, ids = _problem(shape, device, 1.0)
        logs = hidden[:64].double() @ weight.double().T
        logs = logs.log_softmax(-1)
        truth = logs.gather(1, ids[:64, None])[:, 0], -(logs.exp() * logs).sum(-1)
        found = pm.linear_log_prob(hidden, weight, ids, entropy=True)
        error = max(float((a[:64].double() - b).abs().max() / b.abs().max()) for a, b in zip(found, truth, strict=True))
        tolerance = TOLERANCE[hidden.dtype]
        parity = {"forward": error, "tolerance": tolerance, "rows": len(hidden), "kinks": 0}
        tasks: dict[str, list[timing.Task]] = {
            "torch product": [lambda: linear(hidden, weight)],
            "polymax": [lambda: pm.linear_log_prob(hidden, weight, ids, entropy=True)],
        }
        others = Others()
        with others.watched():
            effort = QUICK if quick else EFFORTS[device]
            times = timing.wall(tasks, effort) if device == "cpu" else timing.eager(tasks, effort)
        for name, own in tasks.items():
            row: dict[str, Any] = {"status": OK if error <= tolerance else PARITY_FAILED, "parity": parity}
            row |= {"eager_us": times[name].median_us, "eager_spread_us": times[name].spread_us}
            row |= {"ratio": times[name].median_us / times["torch product"].median_us, "ratio_of": "eager_us"}
            row["extra_bytes"] = peak(own[0], device)
            dtype = str(DTYPES[device]).removeprefix("torch.")
            bar = self.bars.get(device) if name == "polymax" and not quick else None
            yield Row(self.name, "forward", name, shape, dtype, others=others.share, **row | judged(bar, row))


def _both(loss: Loss, problem: Tensors) -> tuple[Tensor, Tensors]:
    hidden, weight = (t.detach().requires_grad_() for t in problem[:2])
    value = loss(hidden, weight, problem[2])
    return value.detach(), torch.autograd.grad(value, (hidden, weight))


MOST = {"cuda": Bar(9_000, "eager_us"), "cpu": Bar(1.0)}
FLAT = {"cuda": Bar(20_000, "eager_us"), "cpu": Bar(1.0)}

CROSS = {"cuda": Bar(19_000, "eager_us"), "cpu": Bar(1.0)}
NAMES = {1.0: "cross-entropy", 1.25: "entmax 1.25", 1.5: "entmax 1.5", 2.0: "sparsemax"}


LINEAR_LOSS: list[Case] = [
    LossCase("entmax 1.5, deviation 1", 1.5, 1.0, MOST),
    LossCase("entmax 1.5, deviation 3", 1.5, 3.0, MOST),
    LossCase("entmax 1.25, deviation 1", 1.25, 1.0, {"cuda": Bar(14_000, "eager_us"), "cpu": Bar(1.0)}),
    LossCase("sparsemax, deviation 1", 2.0, 1.0, MOST),
    LossCase("cross-entropy, deviation 1", 1.0, 1.0, CROSS),
    *(
        LossCase(f"{name}, flat logits (deviation {deviation})", alpha, deviation, FLAT)
        for alpha, name in NAMES.items()
        for deviation in (0.02, 0.1)
    ),
    LossCase("entmax 1.5, a teacher's list of 64 words", 1.5, 1.0, {"cuda": Bar(1.2), "cpu": Bar(1.2)}, 64),
    CompiledCase("cross-entropy beside torch.compile", SHAPES["cuda"], (Bar(1.0), Bar(200e6, "extra_bytes"))),
    CompiledCase("cross-entropy of 8,192 rows", LARGE, (Bar(60_000, "eager_us"), Bar(2**31, "extra_bytes"))),
    LogProbCase(
        "log-probability and entropy", {"cpu": SHAPES["cpu"], "cuda": LARGE}, {"cuda": Bar(1.1), "cpu": Bar(1.3)}
    ),
]
