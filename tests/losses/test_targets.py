"""Targets that are no structure are refused: the message says which instance, where, and what is wrong."""

import pytest
import torch
from sets import RAGGED, TABLE, every

import polymax as pm
from polymax.losses import Partial, crf_loss, fenchel_young, perceptron_loss, smoothed_dp_loss, svm_loss
from polymax.structures.base import tensors

CHAIN = (torch.zeros(2, 3, 4), torch.zeros(4, 4))
ARCS = torch.zeros(2, 6, 6)
SEGMENTS = (torch.zeros(2, 5, 3, 2), torch.zeros(2, 2))
DIAMOND = pm.Dag([(0, 1), (0, 2), (1, 3), (2, 3)])
DERIVED = pm.Hypergraph(heads=[2, 2, 3, 3], tails=[(0,), (1,), (2,), (2, 2)])
SPANS = [[0, 0], [1, 1], [2, 2], [0, 2], [0, 1]]

FAULTS = [
    (pm.Chain(), CHAIN, [[0, 1, 2], [0, 4, 1]], r"no tag sequence: position 1 of instance \(1,\) has tag 4.*\[0, 4\)"),
    (pm.Chain(), CHAIN, [[0, 1, 2], [0, 3, -1]], r"position 2 of instance \(1,\) has no tag \(-1\)"),
    (pm.Chain(), CHAIN, [[0, 1, 2], [0, -2, 1]], r"position 1 of instance \(1,\) is not known \(-2\).*Partial"),
    (
        pm.Chain(torch.tensor([2, 3])),
        CHAIN,
        [[0, 1, 2], [0, 3, 1]],
        r"position 2 of instance \(0,\).*beyond its length 2",
    ),
    (pm.Chain(), CHAIN, [[0, 1], [0, 1]], r"y must be tags \(\*batch, n\), \(2, 3\); got \(2, 2\)"),
    (
        pm.SpanningTree(),
        ARCS,
        [[0, 1, 1, 1, 1], [0, 1, 5, 1, 3]],
        r"no tree: token [35] of instance \(1,\) is in a cycle",
    ),
    (
        pm.SpanningTree(),
        ARCS,
        [[0, 1, 1, 1, 1], [0, 2, 1, 1, 1]],
        r"token 2 of instance \(1,\) is in a cycle \(2 -> 2\)",
    ),
    (pm.SpanningTree(), ARCS, [[0, 1, 1, 1, 1], [0, 1, 0, 1, 1]], r"tokens 1 and 3 of instance \(1,\) all hang from"),
    (pm.SpanningTree(), ARCS, [[0, 1, 1, 1, 6], [0, 1, 1, 1, 1]], r"token 5 of instance \(0,\) has head 6.*\[0, 5\]"),
    (
        pm.SpanningTree(torch.tensor([5, 3])),
        ARCS,
        [[0, 1, 1, 1, 1], [0, 1, 5, -1, -1]],
        r"token 3 of instance \(1,\) has head 5, not one in \[0, 3\]",
    ),
    (
        pm.ProjectiveTree(),
        ARCS,
        [[0, 1, 1, 1, 1], [0, 4, 1, 1, 3]],
        r"arcs 4 -> 2 and 3 -> 5 of instance \(1,\) cross.*Spa",
    ),
    (pm.ProjectiveTree(), ARCS, [[0, 1, 1, 1, 1], [2, 0, 4, 3, 1]], r"is in a cycle \((3 -> 4 -> 3|4 -> 3 -> 4)\)"),
    (
        pm.Assignment(),
        torch.zeros(2, 3, 4),
        [[0, 1, 2], [3, 0, 3]],
        r"column 3 of instance \(1,\) belongs to rows 0 and 2",
    ),
    (pm.Assignment(), torch.zeros(2, 3, 4), [[0, 1, 2], [3, -1, 0]], r"row 1 of instance \(1,\) has no column"),
    (pm.Assignment(), torch.zeros(2, 3, 4), [[0, 1, 2], [3, 4, 0]], r"row 1 of instance \(1,\) has column 4, not one"),
    (pm.Assignment(), torch.zeros(2, 3, 2), [[0, 1, -1], [0, -1, -1]], r"column 1 of instance \(1,\) has no row"),
    (
        pm.SemiMarkov(3),
        SEGMENTS,
        [[[0, 2, 0], [3, 1, 0]], [[0, 1, 0], [3, 1, 1]]],
        r"positions 2 to 2 of instance \(1,\)",
    ),
    (pm.SemiMarkov(3), SEGMENTS, [[[0, 2, 0], [3, 1, 0]], [[0, 2, 0], [2, 2, 1]]], r"overlap at position 2"),
    (
        pm.SemiMarkov(3),
        SEGMENTS,
        [[[0, 2, 0], [3, 2, 0]], [[0, 2, 0], [3, 1, 1]]],
        r"segment \(3, 2, 0\) of instance \(0,\)",
    ),
    (pm.SemiMarkov(3), SEGMENTS, [[[0, 2, 0], [3, 1, 2]], [[0, 2, 0], [3, 1, 1]]], r"part \(3, 1, 2\).*\(5, 3, 2\)"),
    (pm.Alignment(), torch.zeros(1, 3, 3), [[[0, 0], [1, 1], [1, 1], [2, 2]]], "it jumps"),
    (
        pm.Alignment(),
        torch.zeros(1, 3, 3),
        [[[0, 0], [2, 2]]],
        r"jumps of instance \(0,\) from cell \(0, 0\) to \(2, 2\)",
    ),
    (pm.Alignment(), torch.zeros(1, 3, 3), [[[0, 1], [1, 2], [2, 2]]], r"first cell of instance \(0,\) is \(0, 1\)"),
    (pm.Alignment(), torch.zeros(1, 3, 3), [[[0, 0], [1, 1], [1, 2]]], r"last cell of instance \(0,\) is \(1, 2\)"),
    (pm.Alignment(), torch.zeros(1, 3, 3), [[[-1, -1]]], "there are 0 cells"),
    (pm.Monotonic(), torch.zeros(1, 4, 3), [[0, 2, 2, 2]], r"frame 1 of instance \(0,\) has token 2, not 0 or 1"),
    (pm.Monotonic(), torch.zeros(1, 4, 3), [[0, 1, 0, 1]], "frame 2 of instance .* has token 0, not 1 or 2"),
    (pm.Monotonic(), torch.zeros(1, 4, 3), [[1, 1, 2, 2]], "frame 0 of instance .* has token 1, not 0"),
    (pm.Monotonic(), torch.zeros(1, 4, 3), [[0, 0, 1, 1]], "its last token of instance .* is 1, not 2"),
    (pm.SpanTree(labelled=False), torch.zeros(1, 3, 3), [[*SPANS[:4], [2, 1]]], r"span \[2, 1\] of instance \(0,\)"),
    (pm.SpanTree(labelled=False), torch.zeros(1, 3, 3), [[*SPANS, [1, 2]]], r"spans \[0, 1\] and \[1, 2\] .*cross"),
    (pm.SpanTree(labelled=False), torch.zeros(1, 3, 3), [SPANS[:4]], "it has 4 spans of instance .* not 5"),
    (pm.SpanTree(labelled=False), torch.zeros(1, 3, 3), [[*SPANS, [0, 1]]], r"part \(0, 1\).*listed twice"),
    (DIAMOND, torch.zeros(2, 4), [[0, 2], [0, 3]], r"node 1 of instance \(1,\) is reached, but not left"),
    (DIAMOND, torch.zeros(2, 4), [[0, 2], [3, -1]], r"node 0 of instance \(1,\) is the source, and not left"),
    (DIAMOND, torch.zeros(2, 4), [[0, 2], [0, 4]], r"part 4 of instance \(1,\) is not one of \(4,\)"),
    (DERIVED, torch.zeros(1, 4), [[3, 0]], r"node 2 of instance \(0,\) is derived 1 times, but asked for 2"),
    (pm.Simplex(), torch.zeros(2, 3), [0, 3], r"3 of instance \(1,\) is not one in \[0, 3\)"),
    (pm.Subset(2), torch.zeros(2, 3), [[0, 1], [0, -1]], r"1 parts of instance \(1,\) are used, not 2"),
    (pm.Subset(2), torch.zeros(2, 3), [[0, 1], [1, 1]], r"part 1 of instance \(1,\) is listed twice"),
    (pm.Explicit(torch.eye(2)), torch.zeros(2, 2), [0, 2], r"2 of instance \(1,\) is not one in \[0, 2\)"),
    (pm.Ranking(), torch.zeros(2, 3), [[1, 2, 3], [1, 1, 3]], r"rank 2 of instance \(1,\) is not given once"),
]


@pytest.mark.parametrize(("structure", "scores", "y", "message"), FAULTS)
def test_a_target_that_is_no_structure(structure, scores, y, message):
    with pytest.raises(ValueError, match=message):
        perceptron_loss(structure, scores, torch.tensor(y))


def with_one(structure, y, *place):
    parts = tuple(t.clone() for t in tensors(y))
    parts[0][place] = 1.0
    return structure.named(*parts)


def test_indicators_that_are_no_structure():
    tree = pm.SpanningTree()
    arcs = tree.encode(torch.tensor([[0, 1, 1], [0, 1, 2]]))
    with pytest.raises(ValueError, match=r"no tree: token 3 of instance \(1,\) has 2 heads"):
        perceptron_loss(tree, torch.zeros(2, 4, 4), with_one(tree, arcs, 1, 1, 3))
    with pytest.raises(ValueError, match=r"root symbol 0 of instance \(0,\) has a head"):
        perceptron_loss(tree, torch.zeros(2, 4, 4), with_one(tree, arcs, 0, 1, 0))
    chain = pm.Chain()
    tags = chain.encode(torch.tensor([[0, 1, 2], [0, 1, 3]]), 4)
    with pytest.raises(ValueError, match=r"position 2 of instance \(1,\) has 2 tags"):
        perceptron_loss(chain, CHAIN, with_one(chain, tags, 1, 2, 1))
    tags.transition[0, 1, 2, 2] = 1
    with pytest.raises(ValueError, match=r"part \(1, 2, 2\) of instance \(0,\) does not go with the others"):
        perceptron_loss(chain, CHAIN, tags)
    matched = pm.Assignment().encode(torch.tensor([[0, 1, 2]]), 4)
    with pytest.raises(ValueError, match=r"row 1 of instance .* has 2 columns"):
        perceptron_loss(pm.Assignment(), torch.zeros(1, 3, 4), with_one(pm.Assignment(), matched, 0, 1, 3))


@every(TABLE)
def test_every_structure_passes(row):
    """All of the enumeration, as a batch, in both forms."""
    vertices = tuple(t.float() for t in tensors(row.structure.vertices(row.shape)))
    y = row.structure.named(*vertices)
    scores = tuple(torch.zeros_like(t) for t in vertices)
    index = row.structure.decode(y)
    assert torch.equal(row.structure.compact.check(index, *scores), index)
    row.structure.compact.check_parts(y, *scores)
    again = tensors(row.structure.complete(row.structure.compact.first(index, *scores)))
    for a, b in zip(again, vertices, strict=True):
        assert torch.equal(a.float(), b)


@every([row for row in TABLE if row.name not in ("explicit", "hypergraph", "simplex")])
def test_most_other_indicators_do_not(row):
    """Any change of one part of a structure is refused, unless it is another structure."""
    vertices = tuple(t.float() for t in tensors(row.structure.vertices(row.shape)))
    known = {tuple(v.flatten().tolist()) for v in vertices[0]}
    v = vertices[0][len(vertices[0]) // 2]
    for place in range(v.numel()):
        changed = v.clone().flatten()
        changed[place] = 1 - changed[place]
        first = changed.reshape(v.shape)
        y = row.structure.complete(first)
        scores = tuple(torch.zeros_like(t) for t in tensors(y))
        if tuple(changed.tolist()) in known:
            row.structure.compact.check_parts(y, *scores)
        else:
            with pytest.raises(ValueError, match="y is no"):
                row.structure.compact.check_parts(y, *scores)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: crf_loss(pm.Chain(), CHAIN, torch.zeros(2, 3, 5)),
            ValueError,
            r"indicators \(2, 3, 4\).*got \(2, 3, 5\)",
        ),
        (lambda: crf_loss(pm.Chain(), CHAIN, [[0, 1, 2]]), TypeError, "y must be a tensor of integers, indicators"),
        (lambda: crf_loss(pm.Chain(), CHAIN, torch.zeros(2, 3, 4, dtype=torch.bool)), TypeError, "y is bool: Partial"),
        (lambda: crf_loss(pm.Chain(), CHAIN, torch.full((2, 3, 4), 0.25)), ValueError, "y must have 2 tensors"),
        (lambda: crf_loss(pm.Chain(), CHAIN[0], torch.zeros(2, 3).long()), TypeError, "a chain has two score tensors"),
        (
            lambda: crf_loss(pm.Chain(), "abc", torch.zeros(2, 3).long()),
            TypeError,
            "scores must be a tensor or a tuple",
        ),
        (lambda: crf_loss(pm.Chain(), CHAIN, torch.zeros(2, 3).long(), "avg"), ValueError, "reduction must be"),
        (lambda: crf_loss(pm.Assignment(), ARCS, torch.zeros(2, 6).long()), TypeError, "#P-complete"),
        (lambda: svm_loss(pm.Ranking(), torch.zeros(2), torch.tensor([1, 2])), ValueError, "cost must be given"),
        (
            lambda: svm_loss(pm.Explicit(torch.eye(2)), torch.zeros(2), torch.tensor(0)),
            ValueError,
            "cost must be given",
        ),
        (
            lambda: svm_loss(pm.Chain(), CHAIN, torch.zeros(2, 3).long(), torch.zeros(5)),
            ValueError,
            "cost must broadcast",
        ),
        (
            lambda: svm_loss(pm.Chain(), CHAIN, torch.zeros(2, 3).long(), (torch.zeros(()),) * 3),
            TypeError,
            "at most 2; got 3",
        ),
        (
            lambda: svm_loss(pm.Chain(), CHAIN, torch.zeros(2, 3).long(), reduction="avg"),
            ValueError,
            "reduction must be",
        ),
        (
            lambda: fenchel_young(pm.HardMax(pm.Chain()), CHAIN, torch.zeros(2, 3).long(), ignore_index=0),
            TypeError,
            "belong to a Regularizer",
        ),
        (
            lambda: smoothed_dp_loss(pm.Chain(), pm.Fused(), CHAIN, torch.zeros(2, 3).long()),
            ValueError,
            "no closed form with Fused",
        ),
        (
            lambda: fenchel_young(pm.Gini(), torch.zeros(2), torch.tensor(0), generator=torch.Generator()),
            TypeError,
            "generator is for",
        ),
        (
            lambda: fenchel_young(
                pm.HardMax(pm.Simplex()), torch.zeros(2), torch.tensor(0), generator=torch.Generator()
            ),
            TypeError,
            "unexpected keyword argument 'generator'",
        ),
        (lambda: Partial(torch.zeros(3)), TypeError, "known must be a tensor of bool or integers"),
        (lambda: crf_loss(pm.Chain(), CHAIN, Partial(torch.full((2, 3), 4))), ValueError, "has tag 4"),
        (lambda: crf_loss(pm.Chain(), CHAIN, Partial(torch.zeros(2, 3).long() - 1)), ValueError, "has no tag"),
        (lambda: crf_loss(pm.SpanningTree(), ARCS, Partial(torch.full((2, 5), 6))), ValueError, "has head 6"),
        (
            lambda: perceptron_loss(pm.Assignment(), ARCS, Partial(torch.full((2, 6), 6))),
            ValueError,
            "has column 6",
        ),
        (lambda: crf_loss(pm.Simplex(), torch.zeros(3), Partial(torch.tensor(5))), ValueError, "5 is not one in"),
        (
            lambda: crf_loss(pm.Alignment(), torch.zeros(2, 2), Partial(torch.zeros(1, 2).long())),
            TypeError,
            "Partial of Alignment takes a bool tensor",
        ),
        (
            lambda: crf_loss(pm.Chain(), CHAIN, Partial(torch.ones(7, dtype=torch.bool))),
            ValueError,
            "known must broadcast",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@every(TABLE)
def test_encode_refuses_what_is_no_structure(row):
    y = row.structure.named(*(t.float() for t in tensors(row.structure.vertices(row.shape))))
    index = row.structure.decode(y)
    with pytest.raises(TypeError, match="index must be a tensor of integers"):
        row.structure.encode(index.float(), *row.sizes(row.shape))
    for beyond in (99, -2):
        wrong = index.clone()
        wrong.view(-1)[0] = beyond
        with pytest.raises(ValueError, match=r"y is no|must be in"):
            row.structure.encode(wrong, *row.sizes(row.shape))
    if row.name == "gapped":
        # no pairs are an alignment of gaps alone
        return
    # an instance without a structure is zeros, and back
    none = row.structure.encode(torch.full_like(index[:1], -1), *row.sizes(row.shape))
    assert all(bool((t == 0).all()) for t in tensors(none))


@pytest.mark.parametrize(
    ("structure", "index", "shape", "message"),
    [
        (pm.Simplex(), 7, (3,), r"y is no class: 7 is not one in \[0, 3\)"),
        (pm.Simplex(), 1, (), "encode takes the index and the number of classes"),
        (pm.Explicit(torch.eye(2)), 2, (2,), r"2 is not one in \[0, 2\)"),
        (pm.Chain(), [0, -1, 1], (3,), r"position 1 has no tag \(-1\)"),
        (pm.Chain(), [0, 1], (3, 3), "encode takes the index and the number of states"),
        (pm.SemiMarkov(2), [[0, 2, 0]], (4, 2), r"part \(0, 2, 0\) is not one of \(4, 2, 2\)"),
        (pm.SemiMarkov(2), [[0, 0, 0], [2, 0, 0]], (4, 2), "positions 1 to 1 are in no segment"),
        (pm.SemiMarkov(2), [[3, 1, 0]], (4, 2), "in no segment|beyond"),
        (pm.SemiMarkov(2), [[0, 1]], (4, 2), r"index must be the used parts, \(\*batch, used, 3\)"),
        (pm.Subset(2), [1, 1], (3,), "part 1 is listed twice"),
        (pm.Subset(2), [1], (3,), "1 parts are used, not 2"),
        (
            pm.SpanTree(),
            [[0, 0, 1], [1, 1, 0], [0, 1, 0]],
            (2, 2),
            r"index must be the used parts, \(\*batch, used, 2\)",
        ),
        (pm.SpanTree(), [[0, 0], [1, 1]], (2, 2), "it has 2 spans, leaves included, not 3"),
        (pm.SpanTree(), [[0, 0], [1, 1], [1, 0]], (2, 2), "is none of its"),
        (pm.Alignment(), [[0, 0, 0], [1, 1, 1]], (2, 2), r"index must be the used parts, \(\*batch, used, 2\)"),
        (pm.Alignment(), [0, 1], (2, 2), r"index must be the used parts, \(\*batch, used, 2\)"),
        (pm.Alignment(), [[0, 0], [2, 2]], (3, 3), r"it jumps from cell \(0, 0\) to \(2, 2\)"),
        (pm.Alignment(), [[0, 1], [1, 1]], (2, 2), r"its first cell is \(0, 1\)"),
        (pm.Alignment(), [[0, 0], [1, 1]], (2,), "encode takes the index and"),
        (pm.SpanningTree(), [2, 1], (), r"in a cycle \((1 -> 2 -> 1|2 -> 1 -> 2)\)"),
        (pm.SpanningTree(), [0, 0], (), "tokens 1 and 2 all hang from the root"),
        (pm.SpanningTree(), [0, -1, 1], (), "token 2 has no head"),
        (pm.ProjectiveTree(), [0, 4, 1, 1, 3], (), "arcs 4 -> 2 and 3 -> 5 cross"),
        (pm.Assignment(), [0, 0], (2, 3), "column 0 belongs to rows 0 and 1"),
        (pm.Ranking(), [1, 1, 3], (), "rank 2 is not given once"),
        (DIAMOND, [0, 3], (4,), "node 1 is reached, but not left"),
        (DIAMOND, [0, 0], (4,), "part 0 is listed twice"),
        (DERIVED, [3, 0], (4,), "node 2 is derived 1 times, but asked for 2 times"),
    ],
)
def test_encode_says_what_is_wrong(structure, index, shape, message):
    with pytest.raises((ValueError, TypeError), match=message):
        structure.encode(torch.tensor(index), *shape)


@every(RAGGED)
def test_encode_takes_shorter_structures(row):
    """Padding is -1, at the end."""
    if row.name == "gapped":
        pytest.skip("the pairs of a global alignment do not tell how long the gap after the last one is")
    lengths = torch.arange(row.least, row.size() + 1)
    structure = row.with_lengths(lengths)
    scores = row.scores(batch=lengths.shape)
    y = structure.map(*scores)
    again = row.structure.encode(structure.decode(y), *row.sizes(row.shape))
    for a, b in zip(tensors(again), tensors(y), strict=True):
        assert torch.equal(a.double(), b)
