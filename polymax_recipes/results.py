"""Results of trained models as objects: `Trained.results` returns one of them for each input.

Tensors are on the CPU. A probability is None if the training loss has no probabilities, such as the perceptron loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from polymax_recipes.readers.trees import Tree
from polymax_recipes.text.tokenizer import tokens as tokens_of_text


@dataclass(frozen=True, eq=False)
class TagResult:
    """Tags of the tokens; `probabilities` (n, names) has the probabilities of all tags at each token, with columns
    `names`.

    `names` are the tags that the model learns; with --scheme they may be in another scheme than `tags`.
    """

    tokens: list[str]
    tags: list[str]
    names: tuple[str, ...]
    probabilities: Tensor | None


@dataclass(frozen=True, eq=False)
class ParseResult:
    """The head of each token, counted from 1, 0 for the root, and its relation.

    `arcs` (n+1, n+1) has the probabilities of all arcs, [head, modifier]: every column but the first adds up to 1.
    """

    tokens: list[str]
    heads: list[int]
    relations: list[str]
    arcs: Tensor | None


@dataclass(frozen=True, eq=False)
class BracketResult:
    """The best tree; `spans` (n, n) has the probability that the words i, ..., j are a constituent."""

    tokens: list[str]
    tree: Tree
    spans: Tensor | None


@dataclass(frozen=True, eq=False)
class EntailResult:
    """The label, the probabilities of all labels, the words of both texts, and the weights with which they were
    compared.

    The end of a text is a word, too. Shapes: attention (hypothesis, premise), or (2, premise, hypothesis) of ESIM.
    """

    label: str
    probabilities: dict[str, float]
    premise: list[str]
    hypothesis: list[str]
    attention: Tensor


@dataclass(frozen=True, eq=False)
class LatentResult:
    """The label, the probabilities of all labels, and the tree of each sentence: spans of a binary tree, or heads.

    `rationales` are the places of the words that a model with rationales has chosen.
    """

    label: str
    probabilities: dict[str, float]
    tokens: list[list[str]]
    spans: list[tuple[tuple[int, int], ...]]
    heads: list[tuple[int, ...]]
    rationales: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class TranslationResult:
    """The text that was found, its words or pieces and those of the source, with END; attention (target, source)."""

    text: str
    target: list[str]
    source: list[str]
    attention: Tensor


@dataclass(frozen=True, eq=False)
class ContinuationResult:
    """The text and the tokens that a language model writes after a prompt; log_probs (n,) are the log-probabilities of
    the tokens at temperature 1, whatever the temperature of the draws.
    """

    prompt: str
    text: str
    tokens: list[int]
    log_probs: Tensor


@dataclass(frozen=True, eq=False)
class AlignmentResult:
    """The links of source and target words, from 0, and the mean weights of both directions, (source, target)."""

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    weights: Tensor


@dataclass(frozen=True, eq=False)
class SeriesResult:
    """The nearest class, and the discrepancy to each."""

    label: str
    discrepancies: dict[str, float]


@dataclass(frozen=True, eq=False)
class SpeechResult:
    """The tokens of an utterance and the seconds at which each begins and ends; weights (frames, tokens).

    The weights are the expected alignment under the smoothing of the training.
    """

    tokens: list[str]
    starts: list[float]
    ends: list[float]
    weights: Tensor


@dataclass(frozen=True, eq=False)
class SequenceResult:
    """Two sequences, their rows with gaps, the alignment as a CIGAR string and as pairs of places, from 0.

    `weights` (n, m) has the probabilities of all pairs.
    """

    first: str
    second: str
    rows: tuple[str, str]
    cigar: str
    links: list[tuple[int, int]]
    weights: Tensor | None


def token_lists(inputs: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The tokens of sentences: of raw text by the tokenizer, of lists unchanged; a ValueError for an empty sentence.

    Example:
        >>> token_lists(["Go on!", ["New York", "!"]])
        [['Go', 'on', '!'], ['New York', '!']]
    """
    found = [tokens_of_text(one) if isinstance(one, str) else [str(token) for token in one] for one in inputs]
    for place, one in enumerate(found):
        if not one or not all(one):
            raise ValueError(f"inputs must be texts or lists of tokens, none of them empty; got {inputs[place]!r}")
    return found


def two_texts(one: object) -> tuple[str, str]:
    """Return a pair of texts; a ValueError if the input is not a pair.

    Example:
        >>> two_texts(["a cat", "un chat"])
        ('a cat', 'un chat')
    """
    if isinstance(one, str) or not isinstance(one, Sequence) or len(one) != 2:
        raise ValueError(f"inputs must be pairs of texts; got {one!r}")
    return str(one[0]), str(one[1])
