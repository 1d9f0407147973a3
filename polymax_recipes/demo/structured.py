"""The structured problems that the demo shows: two series, tags of a sentence, and trees over one."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import polymax as pm
from polymax.structures.base import tensors
from polymax_recipes.demo import tagged

# temperatures at which readings share their weight
WARPING, TAGGING, PARSING = 0.3, 3.0, 1.0

SENTENCE = ["she", "saw", "the", "man", "with", "the", "telescope"]
KINDS = ["PRON", "VERB", "DET", "NOUN", "ADP", "DET", "NOUN"]
# scores of a span by the kinds of its first and its last word; 0 for others
SPANS = {
    ("DET", "NOUN"): 2.0,
    ("ADP", "NOUN"): 1.5,
    ("VERB", "NOUN"): 1.5,
    ("PRON", "NOUN"): 1.0,
}
# scores of an arc by the kinds of head and modifier, to the left and to the right; a little less for each word between
LEFTWARDS = {("VERB", "PRON"): 2.0, ("NOUN", "DET"): 2.0}
RIGHTWARDS = {
    ("ROOT", "VERB"): 2.0,
    ("VERB", "NOUN"): 1.0,
    ("VERB", "ADP"): 1.0,
    ("NOUN", "ADP"): 0.5,
    ("ADP", "NOUN"): 1.5,
}
OTHERS, BETWEEN = -2.0, 0.2


@dataclass(frozen=True)
class Shown:
    """A structure, its scores, and a temperature.

    All scores are float64, so that one variant of each kernel is compiled.
    """

    name: str
    structure: pm.DynamicProgram
    scores: tuple[Tensor, ...]
    gamma: float

    def smoothings(self) -> dict[str, pm.Smoothing]:
        """The best, the sparse and the dense smoothing, by the expressions that make them."""
        made = type(self.structure).__name__
        return {
            f"pm.HardMax(pm.{made}())": pm.HardMax(self.structure),
            f"pm.LocalMax(pm.{made}(), pm.Gini(), gamma={self.gamma:g})": pm.LocalMax(
                self.structure, pm.Gini(), self.gamma
            ),
            f"pm.Marginals(pm.{made}(), gamma={self.gamma:g})": pm.Marginals(self.structure, self.gamma),
        }

    def expected(self) -> tuple[Any, ...]:
        """The best structure, and the expected ones: sparse and dense."""
        return tuple(smooth(*self.scores) for smooth in self.smoothings().values())

    def positive(self) -> list[int]:
        """Return, for each of the three smoothings, the number of parts with a weight above 0."""
        return [sum(int((t > 0).sum()) for t in tensors(mu)) for mu in self.expected()]

    def count(self) -> str:
        """Return the number of structures: the sum of exp(0) over all of them."""
        zeros = [torch.zeros_like(x) for x in self.scores]
        found = float(self.structure.logsumexp(*zeros).exp())
        return f"{found:,.0f}" if found < 1e6 else f"{found:.1e}"


def series() -> tuple[Tensor, Tensor]:
    """Return two noisy recordings of three bumps, the second later and slower, (48,) and (60,)."""
    generator = torch.Generator().manual_seed(0)

    # float64 holds the weights of cells that float32 would round to 0
    def recorded(n: int, centres: tuple[float, ...], width: float) -> Tensor:
        t = torch.linspace(0, 1, n, dtype=torch.float64)
        heights = (1.0, -0.8, 1.4)
        bumps = sum(h * torch.exp(-(((t - c) / width) ** 2)) for h, c in zip(heights, centres))
        return torch.as_tensor(bumps) + 0.06 * torch.randn(n, generator=generator, dtype=torch.float64)

    return recorded(48, (0.18, 0.42, 0.66), 0.07), recorded(60, (0.30, 0.62, 0.82), 0.08)


def shown_structures() -> tuple[Shown, ...]:
    """The alignment of the series, the tags, the constituents and the dependencies."""
    x, y = series()
    cost = pm.squared_euclidean(x[:, None], y[:, None])
    return (
        Shown("alignment", pm.Alignment(), (-cost,), WARPING),
        Shown("tags", pm.Chain(), tagged.tag_scores(tagged.SHOWN), TAGGING),
        Shown("constituents", pm.SpanTree(), (_spans(),), PARSING),
        Shown("dependencies", pm.ProjectiveTree(), (_arcs(),), PARSING),
    )


def _spans() -> Tensor:
    return torch.tensor(
        [[SPANS.get((first, last), 0.0) for last in KINDS] for first in KINDS], dtype=torch.float64
    ).triu(1)


def _arcs() -> Tensor:
    kinds = ("ROOT", *KINDS)
    scores = torch.full((len(kinds), len(kinds)), OTHERS, dtype=torch.float64)
    for h, head in enumerate(kinds):
        for m, modifier in enumerate(kinds):
            rules = LEFTWARDS if m < h else RIGHTWARDS
            # the root stands beside every word
            between = abs(h - m) - 1 if h else 0
            scores[h, m] = rules.get((head, modifier), OTHERS) - BETWEEN * between
    return scores
