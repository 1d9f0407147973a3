"""Train a model on short sequences of a problem, and test it on longer ones."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from polymax_recipes.lengths.model import Decoder
from polymax_recipes.lengths.problems import Examples, Problem

# tokens that every problem has: of the beginning, between source and target, of the end
BEGIN, BETWEEN, END = range(3)
SPECIAL = 3
# the target of a place without a prediction
NOTHING = -100
# test data are of seeds that no training has
TEST = 2**40
# tokens of a batch of the test
AT_ONCE = 65_536
PARTS = 10


@dataclass(frozen=True)
class Setting:
    """The model, its attention, and its training, on sources of `shortest` to `longest` tokens."""

    attention: str
    alpha: float = 1.5
    size: int = 256
    layers: int = 2
    heads: int = 8
    shortest: int = 32
    longest: int = 64
    steps: int = 100_000
    batch_size: int = 128
    lr: float = 1e-3
    warmup: int = 1_000
    seed: int = 0


def batch_of(examples: Examples) -> tuple[Tensor, Tensor]:
    """Return inputs (b, n) and the tokens to predict from each of them (b, n), NOTHING within the source."""
    source, target = (part + SPECIAL for part in examples)
    special = torch.tensor([BEGIN, BETWEEN, END]).expand(len(source), 3)
    row = torch.cat([special[:, :1], source, special[:, 1:2], target, special[:, 2:]], 1)
    wanted = row[:, 1:].clone()
    # the token between is given, too
    wanted[:, : source.shape[1] + 1] = NOTHING
    return row[:, :-1], wanted


def model_of(problem: Problem, setting: Setting) -> Decoder:
    """Return the model of a setting, with first weights by its seed."""
    torch.manual_seed(setting.seed)
    return Decoder(
        problem.tokens + SPECIAL, setting.attention, setting.alpha, setting.size, setting.layers, setting.heads
    )


def learn(
    model: Decoder, problem: Problem, setting: Setting, device: str, tell: Callable[[str], None]
) -> list[dict[str, float]]:
    """Train, and return the step, the seconds and the mean loss of each tenth of the steps.

    Examples are drawn as they are needed, of one length in a batch; seeds decide them, so that models that differ in
    their attention see the same ones.
    """
    generator = torch.Generator().manual_seed(setting.seed)
    optimizer = torch.optim.AdamW(model.parameters(), setting.lr, betas=(0.9, 0.99), weight_decay=0.0)
    model.train()
    curve, losses, began = [], [], perf_counter()
    for step in range(1, setting.steps + 1):
        rate = min(1.0, step / max(1, setting.warmup)) * 0.5 * (1 + math.cos(math.pi * step / setting.steps))
        for group in optimizer.param_groups:
            group["lr"] = setting.lr * rate
        length = int(torch.randint(setting.shortest, setting.longest + 1, (), generator=generator))
        inputs, wanted = batch_of(problem.draw(setting.batch_size, length, generator))
        loss = _loss(model(inputs.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if step * PARTS // setting.steps > (step - 1) * PARTS // setting.steps:
            mean = float(torch.stack(losses).mean())
            curve.append({"step": step, "seconds": round(perf_counter() - began, 1), "loss": mean})
            tell(f"step {step:>7}  {curve[-1]['seconds']:>8.1f} s  loss {mean:.4f}")
            losses = []
    return curve


def _loss(scores: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=NOTHING)


@torch.no_grad()
def tested(
    model: Decoder, problem: Problem, lengths: Sequence[int], count: int, device: str, tell: Callable[[str], None]
) -> list[dict[str, float]]:
    """Return, for each length of a source, the shares of whole targets and of single tokens that are right.

    A target is right if the best token is the right one after every right beginning of it. A model would
    write the same target, one best token after the other; one pass is enough. Lengths are those of `Problem.draw`.
    """
    model.eval()
    found = []
    for length in lengths:
        generator = torch.Generator().manual_seed(TEST + length)
        whole = tokens = predicted = done = 0
        while done < count:
            some = min(count - done, max(1, AT_ONCE // (2 * length)))
            inputs, wanted = batch_of(problem.draw(some, length, generator))
            best, wanted = model(inputs.to(device)).argmax(-1), wanted.to(device)
            there = wanted != NOTHING
            right = (best == wanted) & there
            whole += int((right == there).all(1).sum())
            tokens, predicted, done = tokens + int(right.sum()), predicted + int(there.sum()), done + some
        found.append({"length": length, "exact": whole / count, "tokens": tokens / predicted, "count": count})
        tell(f"length {length:>7}  exact {whole / count:>6.1%}  tokens {tokens / predicted:>6.1%}")
    return found


def run(
    problem: Problem,
    setting: Setting,
    lengths: Sequence[int],
    count: int = 1_000,
    device: str = "cpu",
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train a model of a setting, test it at lengths, and return the curve, the tests, and the weights' number."""
    model = model_of(problem, setting).to(device)
    curve = learn(model, problem, setting, device, tell)
    weights = sum(parameter.numel() for parameter in model.parameters())
    return {"weights": weights, "curve": curve, "tests": tested(model, problem, lengths, count, device, tell)}
