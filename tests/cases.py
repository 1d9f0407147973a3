"""The table of regularizers. A new one is a new row, and gets every law."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations

import oracles
import pytest
import torch
from torch import Tensor

import polymax as pm
from polymax.regularizers.bounded import Budget
from polymax.regularizers.grouped import _order
from polymax.testing import generic_scores


@dataclass(frozen=True)
class Case:
    """A regularizer and what is known about it.

    `weights(x, **parameters)` and `penalty(p, **parameters)` are the argmax and Omega at gamma = 1, without
    the library. Weights sum to `total` and exist for rows of at least `least` entries.
    """

    name: str
    make: Callable[..., pm.Regularizer]
    weights: Callable[..., Tensor]
    penalty: Callable[..., Tensor]
    parameters: dict[str, float] = field(default_factory=dict)
    gamma: float | None = 1.0
    total: float = 1.0
    least: int = 1
    permutes: bool = True
    fuses: bool = False
    compiles: bool = True
    # forward-mode derivatives exist
    forward: bool = False

    def regularizer(self, **changes):
        temperature = {} if self.gamma is None else {"gamma": self.gamma}
        return self.make(**{**self.parameters, **temperature, **changes})

    def oracle(self, x):
        return self.weights(x.double() / (self.gamma or 1), **self.parameters).to(x.device)

    def omega(self, p):
        return (1 if self.gamma is None else self.gamma) * self.penalty(p, **self.parameters)

    def scores(self, rows=3, n=6, seed=0):
        """Scores away from kinks, float64."""
        return generic_scores(self.regularizer(), rows, n, seed)

    @property
    def learnable(self):
        return [
            *self.parameters,
            *([] if self.gamma is None else ["gamma"]),
        ]


def bounded_shannon(lower, upper, gamma=1.0):
    return pm.Bounded(pm.Shannon(gamma), lower, upper)


def bounded_gini(lower, upper, gamma=1.0):
    return pm.Bounded(pm.Gini(gamma), lower, upper)


def budget(k, gamma=1.0):
    return Budget(k, gamma)


def custom(fn):
    return lambda gamma=1.0: pm.Custom(fn, gamma)


def negative_entropy(p):
    return -torch.special.entr(p).sum(-1)


def half_square(p):
    return (p.square().sum(-1) - 1) / 2


def half_squared_norm(p, power=1.5):
    return ((p**power).sum(-1) ** (2 / power) - 1) / 2


def tsallis_penalty(p, alpha):
    return negative_entropy(p) if alpha == 1 else ((p**alpha).sum(-1) - 1) / (alpha * (alpha - 1))


def divergence_penalty(p, reference, alpha):
    u = p / reference
    f = -torch.special.entr(u) if alpha == 1 else (u**alpha - u) / (alpha * (alpha - 1))
    return (reference * f).sum(-1)


def norm_penalty(p, alpha):
    return (p**alpha).sum(-1) ** (1 / alpha) - 1


def fused_penalty(p, strength):
    return half_square(p) + strength * p.diff(dim=-1).abs().sum(-1)


def oscar_penalty(p, strength):
    pairs = [torch.maximum(p[..., i], p[..., j]) for i, j in combinations(range(p.shape[-1]), 2)]
    return half_square(p) + strength * sum(pairs, torch.zeros_like(p.sum(-1)))


def one_group_penalty(p, strength):
    return half_square(p) + strength * (p.shape[-1] * p.square().sum(-1)).sqrt()


@dataclass(frozen=True)
class OneGroup(pm.Regularizer):
    """Grouped with all entries in one group, for rows of any length."""

    strength: float | Tensor = 0.1
    gamma: float | Tensor = 1.0

    def argmax_rows(self, x):
        return pm.Grouped([0] * x.shape[-1], self.strength).argmax_rows(x)

    def omega_rows(self, p, keep=None):
        return pm.Grouped([0] * p.shape[-1], self.strength).omega_rows(p, keep)


ROWS = [
    Case("zero", pm.Zero, oracles.zero, lambda p: 0 * p.sum(-1), gamma=None),
    Case("shannon", pm.Shannon, oracles.shannon, negative_entropy, forward=True),
    Case("gini", pm.Gini, oracles.gini, half_square, forward=True),
    *(
        Case(f"tsallis-{alpha}", pm.Tsallis, oracles.tsallis, tsallis_penalty, {"alpha": alpha}, forward=True)
        for alpha in (0.25, 0.75, 1.0, 1.1, 1.33, 1.5, 1.75, 2.0, 2.5, 3.0)
    ),
    *(
        Case(
            f"divergence-{reference}-{alpha}",
            pm.AlphaDivergence,
            oracles.divergence,
            divergence_penalty,
            {"reference": reference, "alpha": alpha},
            forward=True,
        )
        for reference, alpha in ((0.2, 0.5), (0.2, 1.0), (0.3, 1.25), (0.2, 1.5), (3.0, 1.5), (0.2, 2.0), (0.5, 2.5))
    ),
    *(
        Case(f"norm-{alpha}", pm.Norm, oracles.norm, norm_penalty, {"alpha": alpha}, forward=True)
        for alpha in (1.5, 2.0, 3.0)
    ),
    *(
        Case(
            f"squared-norm-{p}",
            pm.SquaredPNorm,
            oracles.squared_norm,
            lambda y, p: half_squared_norm(y, p),
            {"p": p},
            forward=True,
        )
        for p in (1.2, 1.5, 2.0, 3.0)
    ),
    *(
        Case(
            f"fused-{strength}",
            pm.Fused,
            oracles.fused,
            fused_penalty,
            {"strength": strength},
            permutes=strength == 0,
            fuses=True,
        )
        for strength in (0.0, 0.1, 1.0, 50.0)
    ),
    *(
        Case(f"oscar-{strength}", pm.Oscar, oracles.oscar, oscar_penalty, {"strength": strength}, fuses=True)
        for strength in (0.0, 0.01, 0.3)
    ),
    Case("one-group", OneGroup, oracles.one_group, one_group_penalty, {"strength": 0.3}, forward=True),
    *(
        Case(
            f"bounded-{name}-{lower}-{upper}",
            make,
            oracle,
            lambda p, lower, upper, penalty=penalty: penalty(p),
            {"lower": lower, "upper": upper},
            least=least,
        )
        for name, make, oracle, penalty in (
            ("shannon", bounded_shannon, oracles.bounded_shannon, negative_entropy),
            ("gini", bounded_gini, oracles.bounded_gini, half_square),
        )
        for lower, upper, least in ((0.0, 1.0, 1), (0.0, 0.4, 3), (0.1, 1.0, 1), (0.05, 0.3, 4))
    ),
    *(
        Case(
            f"budget-{k}",
            budget,
            oracles.budget,
            lambda p, k: p.square().sum(-1) / 2,
            {"k": k},
            total=k,
            least=least,
        )
        for k, least in ((0.5, 2), (1.0, 1), (2.0, 2), (2.5, 3))
    ),
    Case("custom-softmax", custom(negative_entropy), oracles.shannon, negative_entropy, compiles=False),
    Case("custom-sparsemax", custom(half_square), oracles.gini, half_square, compiles=False),
    Case(
        "custom-squared-norm",
        custom(half_squared_norm),
        lambda x: oracles.squared_norm(x, p=1.5),
        half_squared_norm,
        compiles=False,
    ),
]

# gamma is divided out of the scores before a regularizer sees them, the same way for all: one row of each has another
TEMPERED = [
    *("shannon", "gini", "tsallis-0.75", "tsallis-1.5", "norm-3.0", "squared-norm-1.5", "fused-0.1", "oscar-0.01"),
    *("one-group", "bounded-shannon-0.05-0.3", "bounded-gini-0.05-0.3", "budget-2.5", "custom-sparsemax"),
]
COOLED = [replace(row, name=f"{row.name}-gamma", gamma=0.6) for row in ROWS if row.name in TEMPERED]
CASES = ROWS + COOLED
# all learnable numbers
PARAMETERS = [
    pytest.param(row, name, id=f"{row.name}-{name}")
    for row in ROWS
    for name in row.learnable
    if name != "gamma" or row.name in TEMPERED
]


def every(cases):
    """Parametrise a law over cases."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def _rows(n):
    """Scores `(2, 3, n)`: plain rows, one with -inf inside, one of -inf, one with a NaN."""
    x = torch.randn(6, n, generator=torch.Generator().manual_seed(n)).double()
    x[1, 1::3] = -torch.inf
    x[2] = -torch.inf
    if n > 2:
        x[3, 2] = torch.nan
    return x.reshape(2, 3, n)


def _tailed(n):
    """The same with -inf at the end of rows alone."""
    x = _rows(n)
    x[0, 1] = torch.where(x[0, 1] > -torch.inf, x[0, 1], 0)
    x[0, 1, n - n // 3 :] = -torch.inf
    return x


def _per_row(*values):
    return torch.tensor(values, dtype=torch.float64).repeat(6)[:6].reshape(2, 3)


def _point(n):
    """Weights `(2, 3, n)` with zeros; one row of zeros."""
    p = torch.rand(6, n, generator=torch.Generator().manual_seed(n)).double()
    p[:, ::4] = 0
    p[:, -1:] = 0.5
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-9)
    p[2] = 0
    return p.reshape(2, 3, n)


def _direction(n):
    return torch.randn(2, 3, n, generator=torch.Generator().manual_seed(n + 1)).double()


def _levels(n):
    """Few different values, so that neighbours are often equal; -inf among them."""
    z = torch.randint(0, 3, (2, 3, n), generator=torch.Generator().manual_seed(n)).double()
    z[0, 1, 1::3] = -torch.inf
    z[1, 1] = -torch.inf
    return z


def _supported(z):
    """Weights that are positive where z is more than the least of its values."""
    return (z - 0.5).clamp(min=0)


def _permutation(n):
    generator = torch.Generator().manual_seed(n)
    return torch.stack([torch.randperm(n, generator=generator) for _ in range(6)]).reshape(2, 3, n).int()


def _bounds(n):
    count = max(n, 1)
    return torch.full((2, 3, n), 0.3 / count).double(), torch.full((2, 3, n), max(4 / count, 0.25)).double()


def _groups(n):
    """Every fifth entry in no group, the others in three."""
    groups = [tuple(i for i in range(n) if i % 5 != 4 and i % 3 == g) for g in range(3)]
    entries, first, *numbers = _order(tuple(g for g in groups if g), n, torch.device("cpu"))
    return entries[None, None], first[None, None], *numbers


def _classes(n):
    """A class of each row."""
    return torch.randint(0, n, (2, 3), generator=torch.Generator().manual_seed(n))


def _one(value, dims):
    """A number that stands for one in every place."""
    return torch.full((1,) * dims, value, dtype=torch.float64)


# arguments of each operator, in float64, for rows of n; what follows the hyphen tells calls apart
KERNEL_CALLS = {
    **{
        f"threshold-{family}-{alpha}": lambda n, alpha=alpha, number=number: (_rows(n), alpha, number, None)
        for number, (family, alphas) in enumerate(
            {
                "tsallis": (0.5, 1.0, 1.2, 1.5, 1.8, 2.0, 2.5),
                "norm": (1.5, 3.0),
                "squared": (1.2, 1.5, 3.0),
            }.items()
        )
        for alpha in alphas
    },
    **{
        f"threshold-{family}-rows": lambda n, number=number, values=values: (
            _rows(n),
            0.0,
            number,
            _per_row(*values),
        )
        for number, (family, values) in enumerate(
            {"tsallis": (1.0, 0.5, 1.25, 2.0, 3.0), "norm": (1.25, 3.0, 2.0), "squared": (1.25, 3.0, 2.0)}.items()
        )
    },
    **{
        f"threshold_backward-{family}-{alpha}": lambda n, alpha=alpha, number=number: (
            _point(n),
            _direction(n),
            alpha,
            number,
            None,
        )
        for number, (family, alphas) in enumerate(
            {"tsallis": (0.5, 1.0, 1.2, 1.5, 2.0, 2.5), "norm": (1.5, 3.0), "squared": (1.5, 3.0)}.items()
        )
        for alpha in alphas
    },
    "threshold_backward-rows": lambda n: (_point(n), _direction(n), 0.0, 0, _per_row(1.0, 1.25, 0.5, 2.0, 2.5)),
    "tsallis_slope": lambda n: (_point(n), _direction(n), _per_row(1.0, 1.25, 0.5, 2.0, 1.0078125, 2.5)),
    "capped-numbers": lambda n: (_rows(n), _one(0.0, 3), _one(max(4 / max(n, 1), 0.25), 3), _one(1.0, 2), False),
    "capped-many": lambda n: (_rows(n), _one(0.0, 3), _one(max(2 / max(n, 1), 0.04), 3), _one(1.0, 2), False),
    "capped-gini": lambda n: (_rows(n), *_bounds(n), _per_row(1.0), False),
    "capped-shannon": lambda n: (_rows(n), *_bounds(n), _per_row(1.0), True),
    "capped-budget": lambda n: (
        _rows(n),
        torch.zeros(2, 3, n).double(),
        torch.ones(2, 3, n).double(),
        _per_row(1.0, 0.0, 0.5),
        False,
    ),
    "capped_backward-gini": lambda n: (_point(n), _direction(n), _one(0.0, 3), _one(0.25, 3), False),
    "capped_backward-shannon": lambda n: (_point(n), _direction(n), *_bounds(n), True),
    "tv_prox": lambda n: (_rows(n), _per_row(0.25, 1.0, 0.5, 0.0, 50.0)),
    "tv_prox-number": lambda n: (_rows(n), _one(0.25, 2)),
    "grouped": lambda n: (_rows(n), _per_row(0.25, 0.0, 1.0, 0.5), *_groups(n)),
    "grouped-number": lambda n: (_rows(n), _one(0.125, 2), *_groups(n)),
    "grouped_backward": lambda n: (_rows(n), _point(n), _direction(n), _per_row(0.25, 0.0, 1.0), *_groups(n)),
    "isotonic": lambda n: (_tailed(n),),
    "isotonic_kl": lambda n: (_rows(n), _direction(n)),
    "two_classes": lambda n: (_rows(n + 1), _classes(n + 1), n // 2),
    "two_classes_backward": lambda n: (
        _rows(n + 1),
        _classes(n + 1),
        _rows(n + 1).logsumexp(-1),
        *_direction(2).unbind(-1),
        n // 2,
    ),
    "segment_mean": lambda n: (_levels(n), _direction(n), None),
    "segment_mean-order": lambda n: (_levels(n), _direction(n), _permutation(n)),
    "segment_mean-centred": lambda n: (_levels(n), _direction(n), None, _supported(_levels(n))),
    "segment_mean-centred-order": lambda n: (
        _levels(n),
        _direction(n),
        _levels(n).sort(dim=-1, descending=True, stable=True).indices.int(),
        _supported(_levels(n)),
    ),
}
