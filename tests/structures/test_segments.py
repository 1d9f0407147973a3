"""Times of words in the segments of a recording."""

import math
import random

import pytest
import torch
from tolerances import close

import polymax as pm

LETTERS = "-|abcdefghijklmnopqrstuvwxyz'"
DICTIONARY = {c: k for k, c in enumerate(LETTERS)}


def spoken(line):
    """Log-probabilities of frames that all but say a line of labels."""
    index = torch.tensor([DICTIONARY[c] for c in line])
    return torch.full((len(line), len(LETTERS)), 0.001).scatter(1, index[:, None], 0.9).log()


def test_words_and_characters():
    first, second = spoken("-hhe-l-lo||wor-ld-"), spoken("--a--")
    for emissions in ([first, second], torch.nn.utils.rnn.pad_sequence([first, second], batch_first=True)):
        one, two = pm.align_segments(emissions, ["Hello  WORLD ", "A"], DICTIONARY, 0.5, [0.0, 100.0])
        assert [(w.text, w.start, w.end) for w in one.words] == [("Hello", 0.5, 4.5), ("WORLD", 5.5, 8.5)]
        assert (one.text, one.start, one.end) == ("Hello  WORLD ", 0.5, 8.5)
        letters = [(c.text, c.start, c.end) for c in one.words[0].characters]
        assert letters == [("H", 0.5, 1.5), ("e", 1.5, 2.0), ("l", 2.5, 3.0), ("l", 3.5, 4.0), ("o", 4.0, 4.5)]
        assert all(abs(w.score - 0.9) < 1e-6 for w in one.words)
        assert all(abs(c.score - 0.9) < 1e-6 for w in one.words for c in w.characters)
        assert (two.words[0].text, two.words[0].start) == ("A", 101.0)
    assert two.words[0].end == 101.5 if isinstance(emissions, list) else two.words[0].end >= 101.5


def test_a_segment_is_a_forced_alignment():
    """Random emissions: the spans of `forced_align` and `merge_tokens`, one segment at a time."""
    draw = random.Random(0)
    texts = [" ".join("".join(draw.choices(LETTERS[2:], k=k)) for k in (3, 1, 4)) for _ in range(4)]
    emissions = [torch.randn(n, len(LETTERS), dtype=torch.float64).log_softmax(-1) for n in (40, 30, 25, 60)]
    for x, text, segment in zip(emissions, texts, pm.align_segments(emissions, texts, DICTIONARY, 1.0), strict=True):
        targets = torch.tensor([DICTIONARY[c] for c in text.replace(" ", "|")])
        labels, scores = pm.forced_align(x, targets)
        spans = pm.merge_tokens(labels, scores.exp())
        at = 0
        for word in segment.words:
            own = spans[at : at + len(word.text)]
            assert [(c.start, c.end) for c in word.characters] == [(s.start, s.end) for s in own]
            close(torch.tensor([c.score for c in word.characters]), torch.tensor([s.score for s in own]), "scores")
            assert (word.start, word.end) == (own[0].start, own[-1].end)
            assert math.isclose(word.score, sum(s.score for s in own) / len(own), rel_tol=1e-6)
            at += len(word.text) + 1


def test_wildcards():
    """A character that the dictionary lacks matches whatever is said, but not the blank."""
    [segment] = pm.align_segments([spoken("-a-xx-b-")], ["a9b"], DICTIONARY, 1.0)
    assert [(c.text, c.start, c.end) for c in segment.words[0].characters] == [("a", 1, 2), ("9", 3, 5), ("b", 6, 7)]
    close(torch.tensor(segment.words[0].score), torch.tensor(0.9), "the wildcard has the score of what is said")
    [segment] = pm.align_segments([spoken("-ab-")], ["é?"], DICTIONARY, 1.0)
    assert [(c.start, c.end) for c in segment.words[0].characters] == [(1, 2), (2, 3)], "neighbours need no blank"
    [segment] = pm.align_segments([spoken("a-x-b")], ["a-b"], DICTIONARY, 1.0)
    assert [(c.text, c.start) for c in segment.words[0].characters] == [("a", 0), ("-", 2), ("b", 4)], "not the blank"
    [only] = pm.align_segments([torch.zeros(2, 1)], ["?"], {"-": 0}, 1.0)
    assert only.words == [], "without a label there is nothing to match"


def test_spaces_and_separators():
    [segment] = pm.align_segments([spoken("a-b-c")], ["ab c"], DICTIONARY, 1.0, separator="_")
    assert [(w.text, w.start, w.end) for w in segment.words] == [("ab", 0, 3), ("c", 4, 5)]
    [segment] = pm.align_segments([spoken("a-b-c")], ["abc"], DICTIONARY, 1.0, spaces=False, characters=False)
    assert [(w.text, w.start, w.end, w.characters) for w in segment.words] == [
        ("a", 0, 1, ()),
        ("b", 2, 3, ()),
        ("c", 4, 5, ()),
    ]


def test_segments_without_words():
    emissions = [spoken("ab"), spoken("ab"), spoken("a-a"), spoken("aa"), torch.full((2, len(LETTERS)), -math.inf)]
    found = pm.align_segments(emissions, ["abcd", " ", "aa", "aa", "ab"], DICTIONARY, [1.0, 2.0, 1.0, 1.0, 1.0])
    assert [len(s.words) for s in found] == [0, 0, 1, 0, 0]
    assert [(s.start, s.end) for s in found] == [(0, 2), (0, 4), (0, 3), (0, 2), (0, 2)]
    assert pm.align_segments([], [], DICTIONARY) == []
    assert pm.align_segments(torch.zeros(0, 3, 4), [], DICTIONARY) == []


def test_scores_of_a_segment_are_its_own():
    """+inf in a frame of a word spoils neither the score of the next word nor the next segment."""
    emissions = [spoken("a-|b-"), spoken("a-|b-")]
    emissions[0][0, DICTIONARY["a"]] = math.inf
    one, two = pm.align_segments(emissions, ["a b", "a b"], DICTIONARY, 1.0)
    assert one.words[0].score == math.inf
    assert math.isfinite(one.words[1].score)
    assert [w.score for w in two.words] == [pytest.approx(0.9)] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_of_emissions(dtype):
    line = spoken("-hhe-l-lo||wor-ld-").to(dtype)
    [segment] = pm.align_segments([line.requires_grad_()], ["hello world!"], DICTIONARY, 0.5)
    assert (segment.words[0].start, segment.words[0].end) == (0.5, 4.5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pm.align_segments([spoken("a")], "a", DICTIONARY), TypeError, "transcripts must be a list of strings"),
        (lambda: pm.align_segments([spoken("a")], ["a", "b"], DICTIONARY), ValueError, "emissions must be as many"),
        (
            lambda: pm.align_segments([spoken("a")], ["a"], DICTIONARY, starts=[0.0, 1.0]),
            ValueError,
            "starts must be as many as transcripts, 1; got 2",
        ),
        (
            lambda: pm.align_segments([spoken("a"), torch.zeros(2, 5)], ["a", "b"], DICTIONARY),
            ValueError,
            r"emissions\[1\] must be \(frames, 29\); got \(2, 5\)",
        ),
        (
            lambda: pm.align_segments([spoken("a").long()], ["a"], DICTIONARY),
            TypeError,
            r"emissions\[0\] must be float",
        ),
        (
            lambda: pm.align_segments(iter([spoken("a")]), ["a"], DICTIONARY),
            TypeError,
            r"emissions must be a list of tensors \(frames, labels\), or a tensor.*got list_iterator",
        ),
        (lambda: pm.align_segments([spoken("a")], [b"a"], DICTIONARY), TypeError, r"transcripts\[0\] must be a str"),
        (lambda: pm.align_segments([spoken("a")], ["a"], [*LETTERS]), TypeError, "dictionary must map characters"),
        (lambda: pm.align_segments([spoken("a")], ["a"], {"a": "2"}), TypeError, r"dictionary\['a'\] must be an int"),
        (lambda: pm.align_segments([spoken("a")], ["a"], DICTIONARY, -0.02), ValueError, "must be positive; got -0.02"),
        (lambda: pm.align_segments([spoken("a")], ["a"], DICTIONARY, "x"), ValueError, "must be a finite number, or"),
        (
            lambda: pm.align_segments([spoken("a")], ["a"], DICTIONARY, starts=[math.nan]),
            ValueError,
            "starts must be a finite number, or a number for each segment",
        ),
        (lambda: pm.merge_tokens(torch.tensor([1]), torch.tensor([1])), TypeError, "scores must be float64"),
        (lambda: pm.align_segments([spoken("a")], ["a"], DICTIONARY, blank=99), ValueError, "blank must be one of"),
        (lambda: pm.align_segments([spoken("a")], ["A"], {"A": 29}), ValueError, "got 29 for 'A'"),
        (lambda: pm.align_segments([spoken("a")], ["a"], {"a": 2, "|": 40}), ValueError, "got 40 for '|'"),
        (
            lambda: pm.align_segments([spoken("a")], ["a"], {"a": 77}),
            ValueError,
            r"dictionary must have labels in \[0, 29\), those of emissions; got 77 for 'a'",
        ),
    ],
)
def test_what_segments_refuse(call, error, message):
    with pytest.raises(error, match=message):
        call()
