"""Tags that encode labelled spans: the rules of their scheme, and counts of right spans."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from polymax.nn import TagConstraints, bio_constraints, bioes_constraints
from polymax_recipes.readers.columns import Tagged
from polymax_recipes.readers.schemes import BIO, BIOES, detect, spans_of, split_tag

RULES = {BIO.name: bio_constraints, BIOES.name: bioes_constraints}
# the name of unknown tags: a span of unknown type
UNKNOWN_SPAN = "I-?"


def spell_spans(tags: Iterable[str]) -> bool:
    """Return True if all tags belong to a scheme for labelled spans.

    Example:
        >>> spell_spans(["O", "B-PER"]), spell_spans(["NOUN"])
        (True, False)
    """
    try:
        for tag in tags:
            split_tag(tag)
    except ValueError:
        return False
    return True


def is_like(tag: str, tags: Sequence[str]) -> bool:
    """Return True if a tag is in this list, or if its type is the type of a tag in it.

    Example:
        >>> is_like("I-LOC", ["O", "S-LOC"]), is_like("cat", ["O", "S-LOC"])
        (True, False)
    """
    kind = tag.partition("-")[2]
    return tag in tags or bool(kind and spell_spans([tag]) and any(kind == name.partition("-")[2] for name in tags))


def rules_of(examples: Sequence[Tagged]) -> str:
    """Return the scheme, BIO or BIOES, whose rules all examples keep; an empty text if there is none.

    Example:
        >>> rules_of([Tagged(["a", "b"], ["O", "B-PER"])]), rules_of([Tagged(["a", "b"], ["O", "I-PER"])])
        ('BIO', '')
    """
    tags = {tag for sentence in examples for tag in sentence.tags}
    # without O, no tags of some sentences might keep the rules
    if "O" not in tags or not spell_spans(tags):
        return ""
    try:
        name = detect(sentence.tags for sentence in examples).name
    except ValueError:
        return ""
    return name if name in RULES else ""


def constraints_of(rules: str, tags: Sequence[str]) -> TagConstraints | None:
    """Return the transitions that a scheme allows; None if it allows all of them."""
    return RULES[rules](tags) if rules else None


def counted_spans(names: Sequence[str], wanted: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Twice the number of right spans, and the number of wanted spans plus found spans: the ratio of their sums is F1.

    Shapes: wanted, found (b, n), numbers of tags; -1 is padding, -2 an unknown tag

    Example:
        >>> import torch
        >>> counted_spans(["B-X", "O"], torch.tensor([[0, 1, 0]]), torch.tensor([[0, 0, 1]]))
        (tensor(2), tensor(4))
    """
    right = total = 0
    for rows in zip(wanted.tolist(), found.tolist(), strict=True):
        gold, guess = (
            set(spans_of([names[tag] if tag >= 0 else UNKNOWN_SPAN for tag in row if tag != -1])) for row in rows
        )
        right += len(gold & guess)
        total += len(gold) + len(guess)
    return wanted.new_tensor(2 * right), wanted.new_tensor(total)
