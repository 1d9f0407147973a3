"""Schemes of tags: what one writes all read, and broken tags are read as conlleval reads them."""

from itertools import pairwise, product

import pytest

from polymax_recipes import readers as r

SPANS = [r.Span(0, 1, "A"), r.Span(2, 2, "A"), r.Span(4, 6, "B-c"), r.Span(7, 7, "A")]
WRITTEN = {
    r.IO: "I-A I-A I-A O I-B-c I-B-c I-B-c I-A",
    r.IOB1: "I-A I-A B-A O I-B-c I-B-c I-B-c I-A",
    r.BIO: "B-A I-A B-A O B-B-c I-B-c I-B-c B-A",
    r.BIOES: "B-A E-A S-A O B-B-c I-B-c E-B-c S-A",
}


@pytest.mark.parametrize("scheme", WRITTEN, ids=lambda scheme: scheme.name)
def test_schemes(scheme):
    tags = WRITTEN[scheme].split()
    assert scheme.tags(SPANS, 8) == tags
    assert r.detect(iter([["O"], tags])) == scheme
    if scheme is not r.IO:
        assert r.spans_of(tags) == SPANS
        assert [other.convert(tags) for other in WRITTEN] == [text.split() for text in WRITTEN.values()]
    assert r.spans_of(r.BIO.convert(tags)) == r.spans_of(tags)


# pairs of prefixes, previous and next, at which conlleval ends and begins a span; so does a change of type
ENDS = {"BB", "BS", "BO", "IB", "IS", "IO", "EB", "EI", "EE", "ES", "EO", "SB", "SI", "SE", "SS", "SO"}
BEGINS = {"BB", "IB", "EB", "SB", "OB", "BS", "IS", "ES", "SS", "OS", "EE", "EI", "SE", "SI", "OE", "OI"}


def test_spans_are_those_of_the_tables_of_conlleval():
    tags = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in "XY")]
    for triple in product(tags, repeat=3):
        spans, start = [], None
        for place, (old, new) in enumerate(pairwise(["O", *triple, "O"])):
            moved, other = old[0] + new[0], old[1:] != new[1:]
            if start is not None and (moved in ENDS or (old != "O" and other)):
                spans.append(r.Span(start, place - 1, old[2:]))
                start = None
            if moved in BEGINS or (new != "O" and other):
                start = place
        assert r.spans_of(triple) == spans


def test_tags_of_unknown_schemes_are_refused():
    assert r.detect([["U-A", "B-A", "L-A"]]) == r.BIOES
    with pytest.raises(ValueError, match="tags must keep to IO, BIO"):
        r.detect([["B-A", "I-A", "E-A"], ["I-A", "B-A"]])
    for tags in (["X-A"], ["B"], ["O-A"], ["b-A"]):
        with pytest.raises(ValueError, match="tag must be O, or one of"):
            r.spans_of(tags)
    for spans in ([r.Span(0, 1, "A"), r.Span(1, 2, "A")], [r.Span(2, 3, "A")], [r.Span(1, 0, "A")]):
        with pytest.raises(ValueError, match="not overlap"):
            r.BIO.tags(spans, 3)
