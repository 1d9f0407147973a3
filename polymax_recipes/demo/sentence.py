"""The word alignment scores that the demo shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from polymax_recipes.demo.catalogue import MAPPINGS, name
from polymax_recipes.demo.corpus import pairs
from polymax_recipes.demo.lexicon import Lexicon

# after three rounds, words still share probability; the slope distinguishes the two "the"
ROUNDS, SLOPE = 3, 2.0
# the target word whose weights are listed
WORD = "pas"


@dataclass(frozen=True)
class Sentence:
    """Alignment scores of one sentence pair: (target words, source words)."""

    scores: Tensor
    target: list[str]
    source: list[str]

    def weights(self) -> dict[str, list[float]]:
        """The weights that each mapping gives the source words for the listed target word."""
        row = self.scores[self.target.index(WORD)]
        return {name(mapping): mapping(row).tolist() for mapping in MAPPINGS}


def shown_sentence() -> Sentence:
    """Scores of the last pair of the corpus, from a lexicon learnt on all of it."""
    corpus = pairs()
    source, target = corpus[-1]
    return Sentence(Lexicon(corpus, ROUNDS).scores(corpus[-1], SLOPE), target, source)


def counts(row: Sequence[float]) -> tuple[int, int]:
    """The number of zeros, and of groups: distinct positive weights.

    Example:
        >>> counts([0.5, 0.0, 0.25, 0.25])
        (1, 2)
    """
    return sum(weight == 0 for weight in row), len({weight for weight in row if weight > 0})


def short(weight: float) -> str:
    """A weight as text of three characters.

    Example:
        >>> [short(weight) for weight in (0.0, 0.001, 0.25, 1.0)]
        ['·', '.00', '.25', '1.0']
    """
    if weight == 0:
        return "·"
    return f"{weight:.2f}"[1:] if weight < 0.995 else f"{weight:.1f}"
