"""Schemes that write labelled spans as tags of tokens: reading, writing and detection."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polymax.nn import bio_constraints, bioes_constraints
from polymax_recipes.readers.spans import Span

# L and U, of BILOU, are E and S by other names
PREFIXES = {"O": "O", "B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}


@dataclass(frozen=True)
class Scheme:
    """The prefixes of the first, inner and last token of a span, and of a span of one token.

    `touching` is the prefix of a first token right after a span of the same type.

    Example:
        >>> BIOES.tags([Span(0, 1, "PER"), Span(3, 3, "LOC")], 4)
        ['B-PER', 'E-PER', 'O', 'S-LOC']
    """

    name: str
    first: str
    inner: str
    last: str
    single: str
    touching: str | None = None

    def tags(self, spans: Iterable[Span], n: int) -> list[str]:
        """The tags of n tokens whose spans do not overlap; spans that touch run together in IO."""
        tags = ["O"] * n
        for start, last, label in sorted(spans):
            if not 0 <= start <= last < n or any(tag != "O" for tag in tags[start : last + 1]):
                raise ValueError(f"spans must lie within {n} tokens and not overlap; got {Span(start, last, label)}")
            tags[start : last + 1] = [f"{self.inner}-{label}"] * (last - start + 1)
            tags[last] = f"{self.last}-{label}"
            tags[start] = f"{self.single if start == last else self.first}-{label}"
            if self.touching and start and tags[start - 1].partition("-")[2] == label:
                tags[start] = f"{self.touching}-{label}"
        return tags

    def convert(self, tags: Sequence[str]) -> list[str]:
        """The tags of any scheme, written in this one.

        Example:
            >>> BIO.convert(["I-PER", "I-PER", "O", "I-LOC"])
            ['B-PER', 'I-PER', 'O', 'B-LOC']
        """
        return self.tags(spans_of(tags), len(tags))


IO = Scheme("IO", "I", "I", "I", "I")
IOB1 = Scheme("IOB1", "I", "I", "I", "I", touching="B")
BIO = Scheme("BIO", "B", "I", "I", "B")
BIOES = Scheme("BIOES", "B", "I", "E", "S")


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The spans of tags in any of the schemes, broken ones included, as conlleval reads them.

    A span begins at B or S, after O, E or S, and where the type changes: I-X after O begins a span.

    Example:
        >>> spans_of(["B-PER", "I-PER", "I-LOC", "O", "I-LOC"])
        [Span(start=0, last=1, label='PER'), Span(start=2, last=2, label='LOC'), Span(start=4, last=4, label='LOC')]

    See: Tjong Kim Sang and De Meulder 2003, conlleval
    """
    spans: list[Span] = []
    before, kind_before = "O", ""
    for place, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        if prefix != "O":
            if prefix in "BS" or before in "OES" or kind != kind_before:
                spans.append(Span(place, place, kind))
            else:
                spans[-1] = spans[-1]._replace(last=place)
        before, kind_before = prefix, kind
    return spans


def split_tag(tag: str) -> tuple[str, str]:
    """The prefix and the type of a tag.

    Example:
        >>> split_tag("B-creative-work"), split_tag("U-LOC"), split_tag("O")
        (('B', 'creative-work'), ('S', 'LOC'), ('O', ''))
    """
    prefix, _, kind = tag.partition("-")
    if prefix not in PREFIXES or (prefix == "O") != (kind == ""):
        raise ValueError(f"tag must be O, or one of {', '.join(PREFIXES)} with a type, as in B-PER; got {tag!r}")
    return PREFIXES[prefix], kind


def detect(sequences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme whose rules all sequences keep: IO without B, then BIO, BIOES, IOB1.

    Example:
        >>> detect([["O", "I-PER"], ["I-PER", "B-PER"]]).name
        'IOB1'
    """
    # one pass over the sequences, which may come from a file
    prefixes: set[str] = set()
    keeps = {BIO.name: True, BIOES.name: True, IOB1.name: True}
    for tags in sequences:
        prefixes.update(split_tag(tag)[0] for tag in tags)
        for scheme in (BIO, BIOES):
            keeps[scheme.name] &= _keeps_rules(scheme, tags)
        keeps[IOB1.name] &= prefixes <= set("OIB") and list(tags) == IOB1.convert(tags)
    if prefixes <= {"O", "I"}:
        return IO
    for scheme in (BIO, BIOES, IOB1):
        if keeps[scheme.name]:
            return scheme
    raise ValueError(f"tags must keep to IO, BIO, BIOES or IOB1; got the prefixes {sorted(prefixes)}")


def _keeps_rules(scheme: Scheme, tags: Sequence[str]) -> bool:
    if scheme is BIO and any(split_tag(tag)[0] in "ES" for tag in tags):
        return False
    names = sorted(set(tags))
    allowed = bio_constraints(names) if scheme is BIO else bioes_constraints(names)
    places = [names.index(tag) for tag in tags]
    if not places:
        return True
    moves = allowed.transitions[places[:-1], places[1:]]
    return bool(allowed.start[places[0]] and allowed.end[places[-1]] and moves.all())
