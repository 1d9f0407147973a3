"""Laws of metrics: values by hand, batches in any cut, nothing at all, and sentences that do not fit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from polymax_recipes import metrics as m
from polymax_recipes.readers import Tree, parse_tree

F1 = m.F1


def flat(result):
    """All numbers of a result."""
    if isinstance(result, dict):
        return [number for key in sorted(result) for number in flat(result[key])]
    return [number for part in result for number in flat(part)] if isinstance(result, tuple) else [result]


def tags(*sentences: str) -> list[list[str]]:
    return [sentence.split() for sentence in sentences]


def trees(*sentences: str) -> list[Tree]:
    return [parse_tree(sentence) for sentence in sentences]


@dataclass(frozen=True)
class Case:
    """An accumulator, columns of sentences that `add` takes, and the result by hand."""

    name: str
    make: Callable[[], Any]
    columns: tuple[list[Any], ...]
    result: Any

    def scored(self, *batches: slice):
        metric = self.make()
        for batch in batches:
            metric.add(*(column[batch] for column in self.columns))
        return metric.result()


CASES = [
    Case("accuracy", m.TokenAccuracy, ([[1, 2, 3], [], [4]], [[1, 2, 0], [], [4]]), 3 / 4),
    # of 4 entities 2 are found among 4: the first LOC is too short, and another stands for the second ORG
    Case(
        "entities",
        m.EntityF1,
        (
            tags("B-PER I-PER O B-LOC I-LOC", "B-ORG B-ORG"),
            tags("B-PER I-PER O B-LOC O", "I-ORG I-LOC"),
        ),
        m.EntityScores(
            F1(2 / 4, 2 / 4, 1 / 2), {"LOC": F1(0.0, 0.0, 0.0), "ORG": F1(1.0, 1 / 2, 2 / 3), "PER": F1(1.0, 1.0, 1.0)}
        ),
    ),
    # conlleval: I after O, after another type and after E begins an entity; S and U are entities of one token
    Case(
        "entities of broken tags",
        m.EntityF1,
        (tags("O I-A I-A I-B O", "B-A E-A I-A S-A U-A"), tags("O B-A E-A S-B O", "I-A I-A B-A B-A B-A")),
        m.EntityScores(F1(1.0, 1.0, 1.0), {"A": F1(1.0, 1.0, 1.0), "B": F1(1.0, 1.0, 1.0)}),
    ),
    # heads: 4 of 5; relations: a right one with another subtype counts, a right one at a wrong head does not
    Case(
        "attachment",
        m.AttachmentScore,
        (
            [[2, 0, 2], [0, 1]],
            [[2, 0, 1], [0, 1]],
            [["nsubj:pass", "root", "punct"], ["root", "obj"]],
            [["nsubj", "root", "punct"], ["root", "iobj"]],
        ),
        m.Attachment(4 / 5, 3 / 5),
    ),
    Case(
        "attachment with subtypes",
        partial(m.AttachmentScore, subtypes=True),
        ([[2, 0]], [[2, 0]], [["nsubj:pass", "root"]], [["nsubj", "root"]]),
        m.Attachment(1.0, 1 / 2),
    ),
    # first: gold S NP VP NP, found S NP VP of S NP VP PP (the stop is taken out, the label differs once);
    # second: all of S VP NP
    Case(
        "brackets",
        m.BracketF1,
        (
            trees(
                "(TOP (S (NP (PRP I)) (VP (VBD saw) (NP (PRP it))) (. .)))",
                "( (S (VP (VB go) (NP (NN home)))))",
            ),
            trees(
                "(S (NP (PRP I)) (VP (VBD saw) (PP (PRP it)) (. .)))",
                "(ROOT (S (VP (VB go) (NP (NN home)))))",
            ),
        ),
        m.BracketScores(F1(6 / 7, 6 / 7, 6 / 7), F1(1.0, 1.0, 1.0), 1 / 2),
    ),
    # PRT counts as ADVP; NP over NP is there twice, and found once; a bracket of punctuation alone is none
    Case(
        "brackets twice",
        m.BracketF1,
        (
            trees("(S (NP (NP (N a))) (ADVP (R b)) (PRN (: -)))"),
            trees("(S (NP (N a)) (PRT (R b)) (: -))"),
        ),
        m.BracketScores(F1(1.0, 3 / 4, 6 / 7), F1(1.0, 3 / 4, 6 / 7), 0.0),
    ),
    Case(
        "brackets and punctuation",
        partial(m.BracketF1, punctuation=frozenset()),
        (trees("(S (X (N a) (. .)) (N b))"), trees("(S (X (N a)) (. .) (N b))")),
        m.BracketScores(F1(1 / 2, 1 / 2, 1 / 2), F1(1 / 2, 1 / 2, 1 / 2), 0.0),
    ),
    # 2 of 3 and 1 of 1; a word alone has no span
    Case(
        "binary trees",
        m.TreeF1,
        (
            [[(0, 1), (0, 2), (0, 3)], [(0, 1)], []],
            [[(0, 1), (2, 3), (0, 3)], [(0, 1), (1, 1)], [(0, 0)]],
        ),
        m.TreeScores(3 / 4, 5 / 6),
    ),
    Case(
        "binary trees without the whole",
        partial(m.TreeF1, whole=False),
        ([[(0, 1), (0, 2), (0, 3)], [(0, 1)]], [[(0, 1), (2, 3), (0, 3)], [(0, 1)]]),
        m.TreeScores(1 / 2, 1 / 2),
    ),
    # A = 5, S = 3, 2 of them in A, 4 of A possible
    Case(
        "alignments",
        m.AlignmentErrorRate,
        (
            [[(0, 0), (1, 1)], [(0, 1)]],
            [[(0, 0), (1, 2), (2, 2)], [(0, 1), (1, 1)]],
            [[(0, 0), (1, 2)], [(1, 1)]],
        ),
        m.AlignmentScores(1 - (2 + 4) / (5 + 3), 4 / 5, 2 / 3),
    ),
    Case(
        "sure alignments",
        m.AlignmentErrorRate,
        ([[(0, 0), (1, 1)], [(0, 1)]], [[(0, 0), (1, 2)], []]),
        m.AlignmentScores(1 - 2 * 1 / (2 + 3), 1 / 2, 1 / 3),
    ),
]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@cases
def test_values_by_hand(case):
    result = case.scored(slice(None))
    assert type(result) is type(case.result)
    assert flat(result) == pytest.approx(flat(case.result), rel=1e-12)


@cases
def test_batches_in_any_cut(case):
    whole = case.scored(slice(None))
    assert case.scored(slice(0, 0), slice(0, 1), slice(1, None)) == whole


@cases
def test_nothing_at_all(case):
    assert set(flat(case.make().result())) <= {0.0}


@cases
def test_the_gold_standard_is_right(case):
    metric = case.make()
    gold = case.columns[0] if case.name.startswith("attach") else None
    columns = (gold, gold, case.columns[2], case.columns[2]) if gold else (case.columns[0], case.columns[0])
    metric.add(*columns)
    best = 0.0 if "alignments" in case.name else 1.0
    assert flat(metric.result())[0] == best
    assert set(flat(metric.result())[1:]) <= {1.0}


@cases
def test_another_number_of_sentences_is_refused(case):
    first, second, *others = case.columns
    with pytest.raises(ValueError, match=r"(predicted|heads) must be of \d sentences, as the gold ones; got \d"):
        case.make().add(first, second[:-1], *others)


@pytest.mark.parametrize(
    ("make", "columns"),
    [
        (m.TokenAccuracy, ([[1, 2]], [[1]])),
        (m.EntityF1, ([["O"]], [["O", "O"]])),
        (m.AttachmentScore, ([[0]], [[0, 1]], [["a"]], [["a"]])),
        (m.AttachmentScore, ([[0]], [[0]], [["a"]], [["a", "b"]])),
        (m.AttachmentScore, ([[0]], [[0]], [[]], [["a"]])),
        (m.BracketF1, (trees("(A a)"), trees("(A b)"))),
    ],
)
def test_another_sentence_is_refused(make, columns):
    with pytest.raises(ValueError, match="predicted"):
        make().add(*columns)


def test_agreement_of_runs():
    left, right, flat_ = [[(0, 1), (0, 2)]], [[(1, 2), (0, 2)]], [[(0, 2)]]
    # 1/2 and 2/3 twice
    assert m.self_f1([left, right, flat_]).corpus == pytest.approx((1 / 2 + 2 / 3 + 2 / 3) / 3)
    assert m.self_f1([left, left], whole=False) == m.TreeScores(1.0, 1.0)
    assert m.self_f1([left, right], whole=False) == m.TreeScores(0.0, 0.0)
    with pytest.raises(ValueError, match="at least two; got 1"):
        m.self_f1([left])


ROWS = torch.tensor([[0.2, 0.2, 0.0, 0.1, 0.5], [0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])


def test_attention_by_hand():
    statistics = m.AttentionRuns()
    statistics.add(ROWS)
    # zeros 1, 4, 5; segments 2, 1, 0; groups 3, 1, 0
    assert statistics.result() == m.AttentionShape(10 / 15, 3 / 3, 4 / 3)
    assert m.AttentionRuns().result() == m.AttentionShape(0.0, 0.0, 0.0)


def test_masked_attention_is_shorter_attention():
    mask = torch.tensor([[True, True, False, True, True], [False] * 5, [False, True, True, False, True]])
    masked = m.AttentionRuns()
    masked.add(ROWS.expand(2, 3, 5), mask)
    shorter = m.AttentionRuns()
    for _ in range(2):
        for row, keep in zip(ROWS, mask):
            shorter.add(row[keep].unsqueeze(0)[:, : int(keep.sum())])
    assert masked.rows == 4
    assert masked.result() == shorter.result() == m.AttentionShape(3 / 7, 1 / 2, 3 / 2)


def test_attention_errors():
    with pytest.raises(ValueError, match="weights must be"):
        m.AttentionRuns().add(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"mask must broadcast .* \(3, 5\); got \(4,\)"):
        m.AttentionRuns().add(ROWS, torch.ones(4, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask must be a bool"):
        m.AttentionRuns().add(ROWS, torch.ones(5))


def test_spans_of_each_side_are_counted():
    scored = m.TreeF1()
    scored.add([[(0, 1), (0, 2), (0, 3)]], [[(2, 3)]])
    assert (scored.counts.gold, scored.counts.predicted, scored.counts.right) == (3, 1, 0)
