"""Sentences with their parts of speech, written for the demo: words that take more than one tag are frequent."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

TAGS = ("PRON", "DET", "ADJ", "NOUN", "VERB", "ADP")
# time passes like an arrow, or flies of some kind like one, or it is an order to time them
SHOWN = ["time", "flies", "like", "an", "arrow"]

# added to every count, so that pairs missing from these few sentences are not impossible
SMOOTHING = 0.02

# one sentence a line, each word with its tag
TEXT = """
time/NOUN flies/VERB
fruit/NOUN flies/NOUN like/VERB a/DET banana/NOUN
river/NOUN flies/NOUN like/VERB old/ADJ fruit/NOUN
house/NOUN flies/NOUN like/VERB a/DET house/NOUN
time/VERB the/DET flies/NOUN like/ADP the/DET plane/NOUN
the/DET time/NOUN is/VERB short/ADJ
time/NOUN runs/VERB like/ADP a/DET river/NOUN
they/PRON time/VERB the/DET runs/NOUN
we/PRON time/VERB the/DET old/ADJ clock/NOUN
the/DET flies/NOUN like/VERB fruit/NOUN
the/DET plane/NOUN flies/VERB over/ADP the/DET river/NOUN
the/DET bird/NOUN flies/VERB like/ADP a/DET plane/NOUN
an/DET arrow/NOUN flies/VERB over/ADP the/DET house/NOUN
she/PRON runs/VERB like/ADP the/DET wind/NOUN
they/PRON like/VERB an/DET old/ADJ house/NOUN
we/PRON like/VERB the/DET river/NOUN
the/DET child/NOUN runs/VERB with/ADP an/DET arrow/NOUN
she/PRON shot/VERB an/DET arrow/NOUN
the/DET shot/NOUN is/VERB like/ADP an/DET arrow/NOUN
he/PRON saw/VERB the/DET flies/NOUN
he/PRON saw/VERB a/DET bird/NOUN with/ADP the/DET child/NOUN
the/DET old/ADJ saw/NOUN is/VERB in/ADP the/DET house/NOUN
the/DET wind/NOUN is/VERB in/ADP the/DET house/NOUN
"""


def tagged_sentences() -> list[list[tuple[str, str]]]:
    """All sentences as pairs of word and tag."""
    lines = (line.split() for line in TEXT.strip().splitlines())
    return [[(word, tag) for word, _, tag in (token.partition("/") for token in line)] for line in lines]


def tag_scores(words: Sequence[str], smoothing: float = SMOOTHING) -> tuple[Tensor, Tensor]:
    """A hidden Markov model, counted in the sentences, as scores of a chain.

        unary[t, y] = log p(words[t] | y), and for t = 0 also log p(y first)        transition[y, z] = log p(z | y)

    `smoothing` is added to the count of every event.

    Shapes: unary (words, tags), transition (tags, tags)
    """
    sentences = tagged_sentences()
    vocabulary = sorted({word for sentence in sentences for word, _ in sentence})
    emitted = ((tag, word) for sentence in sentences for word, tag in sentence)
    moves = ((a, b) for sentence in sentences for (_, a), (_, b) in zip(sentence, sentence[1:]))
    firsts = (("", sentence[0][1]) for sentence in sentences)
    emission = _log_probabilities(emitted, TAGS, vocabulary, smoothing)
    initial = _log_probabilities(firsts, ("",), TAGS, smoothing)[0]
    unary = emission[:, [vocabulary.index(word) for word in words]].T.clone()
    unary[0] += initial
    return unary, _log_probabilities(moves, TAGS, TAGS, smoothing)


def _log_probabilities(
    events: Iterable[tuple[str, str]], given: Sequence[str], of: Sequence[str], smoothing: float
) -> Tensor:
    counts = Counter(events)
    table = torch.tensor([[counts[a, b] + smoothing for b in of] for a in given], dtype=torch.float64)
    return (table / table.sum(1, keepdim=True)).log()
