"""Scores that break things: near ties, extremes, forbidden entries, NaN, and tensors in odd layouts."""

import random
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BATCHES = ((), (1,), (5,), (2, 3), (3, 1, 2), (0,), (2, 0), (16,))


@dataclass
class Draw:
    """The random choices of one trial: the same ones for the same seed, operator and number."""

    seed: int
    operator: str
    number: int
    device: str = "cpu"
    # what was drawn, for the record of a breach
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        digest = sha256(f"{self.seed} {self.operator} {self.number}".encode()).digest()
        self.random = random.Random(digest)
        self.generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def choice(self, options):
        return self.random.choice(list(options))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def note(self, text: str) -> None:
        self.notes.append(text)


def dtype(draw: Draw) -> torch.dtype:
    """Mostly the dtypes that people compute in."""
    return draw.random.choices(FLOATS, (6, 3, 1, 1))[0]


def numbers(draw: Draw, rows: int, n: int, kind: torch.dtype, wild: bool = True) -> Tensor:
    """Finite scores (rows, n) of a hostile sort, exact in this dtype; without `wild`, of a size that sums bear."""
    sorts = [*TAME, *(WILD if wild else ())]
    sort = draw.choice(sorts)
    draw.note(sort.__name__)
    top = torch.finfo(kind).max
    return sort(draw, rows, n, kind).clamp(-top, top).to(kind)


def plain(draw, rows, n, kind):
    return draw.normal(rows, n)


def spread(draw, rows, n, kind):
    return draw.normal(rows, n) * 10 ** draw.random.uniform(-9, 3)


def shifted(draw, rows, n, kind):
    return draw.normal(rows, n) + 10 ** draw.random.uniform(0, 4)


def constant(draw, rows, n, kind):
    return torch.full((rows, n), draw.choice([0.0, 1.0, -3.5, 1e-3])).double()


def grid(draw, rows, n, kind):
    return draw.integers(-3, 4, rows, n).double() * draw.choice([0.125, 0.5, 1.0, 1 / 3])


def near_ties(draw, rows, n, kind):
    """A grid, moved by a few units in the last place."""
    ulps = draw.integers(-3, 4, rows, n).double() * torch.finfo(kind).eps
    return (grid(draw, rows, n, kind) - draw.choice([0.0, 2.0, 5.0])) * (1 + ulps)


def at_the_threshold(draw, rows, n, kind):
    """Steps down from the maximum that end where the support of sparsemax and its relatives does."""
    step = draw.choice([1.0, 0.5, 2.0, 1 / max(n, 1), 2 / max(n * (n - 1), 1)])
    ranks = (
        torch.stack([torch.randperm(n, generator=draw.generator) for _ in range(rows)]) if rows else draw.normal(0, n)
    )
    return -step * ranks.double() * (1 + draw.integers(-1, 2, rows, n) * torch.finfo(kind).eps)


def far_below(draw, rows, n, kind):
    """A few scores of size 1 among many far below."""
    low = torch.rand(rows, n, generator=draw.generator) < 0.6
    return torch.where(low, -(10 ** draw.random.uniform(1, 4)) + draw.normal(rows, n), draw.normal(rows, n))


def large_ties(draw, rows, n, kind):
    """Large scores of few values, moved a little."""
    size = 10 ** draw.random.uniform(4, 8)
    return (
        size * draw.integers(0, 3, rows, n).double()
        + draw.choice([0.0, 1e-3, 1.0]) * draw.integers(0, 3, rows, n).double()
    )


def all_sizes(draw, rows, n, kind):
    largest = torch.finfo(kind).max
    reach = torch.tensor(largest, dtype=torch.float64).log10().item() - 8
    exponents = (torch.rand(rows, n, generator=draw.generator, dtype=torch.float64) * 2 - 1) * reach
    return draw.normal(rows, n).sign() * 10**exponents


def huge(draw, rows, n, kind):
    return draw.normal(rows, n) * (torch.finfo(kind).max / 10 ** draw.random.uniform(1, 8))


def tiny(draw, rows, n, kind):
    return draw.normal(rows, n) * torch.finfo(kind).tiny * 10 ** draw.random.uniform(-2, 6)


def extremes(draw, rows, n, kind):
    info = torch.finfo(kind)
    values = torch.tensor([info.max, info.min, info.tiny, -info.tiny, 0.0, -0.0, 1.0, -1.0, info.eps]).double()
    if kind == torch.float64:
        values[:2] = torch.tensor([info.max, info.min], dtype=torch.float64)
    return values[draw.integers(0, len(values), rows, n)]


# near ties break most, and rarely
TAME = (plain, spread, shifted, constant, grid, *[near_ties] * 7, at_the_threshold, far_below)
WILD = (large_ties, all_sizes, huge, tiny, extremes)


def forbidden(draw: Draw, rows: int, n: int) -> Tensor:
    """Which entries are forbidden (rows, n), True for -inf, in one of several patterns."""
    none = torch.zeros(rows, n, dtype=torch.bool)
    pattern = draw.choice(["none", "none", "some", "most", "tail", "head", "every other", "whole rows"])
    draw.note(f"forbidden: {pattern}")
    position = torch.arange(n).expand(rows, n)
    some = torch.rand(rows, n, generator=draw.generator)
    if pattern in ("some", "most"):
        return some < (0.3 if pattern == "some" else 0.9)
    if pattern in ("tail", "head"):
        cut = draw.integers(0, n + 1, rows, 1)
        return position >= cut if pattern == "tail" else position < cut
    if pattern == "every other":
        return position % 2 == 1
    if pattern == "whole rows":
        return none | (some[:, :1] < 0.5)
    return none


def laid_out(draw: Draw, x: Tensor) -> Tensor:
    """The same values in memory of another layout."""
    layout = draw.choice(["contiguous", "contiguous", "transposed", "strided", "offset", "negative"])
    draw.note(layout)
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan")) if x.dim() else x
        if x.dim():
            wide[..., 1::2] = x
            return wide[..., 1::2]
    if layout == "offset" and x.dim():
        wide = x.new_full((x.shape[0] + 1, *x.shape[1:]), float("nan"))
        wide[1:] = x
        return wide[1:]
    # memory has the numbers with other signs, as for the imaginary part of a conjugate
    return torch._neg_view(-x) if layout == "negative" else x.clone()
