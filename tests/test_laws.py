"""The laws that users get hold for every set of the table, and find what is wrong with flawed classes."""

from dataclasses import dataclass

import pytest
import torch
from sets import TABLE

import polymax as pm
from polymax.hypergraphs import Builder, Derivations


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in TABLE])
def test_sets_keep_the_laws(row):
    for law in pm.testing.laws(row.structure, [tuple(row.events(row.few or row.shape))], row.recursion):
        law()


@pytest.mark.parametrize("law", pm.testing.laws(pm.Subset(2), [(2,), (4,)]))
def test_laws_are_parameters_of_a_test(law):
    law()


def test_laws_have_names():
    laws = pm.testing.laws(pm.Chain(), [((3, 2), (2, 2)), ((1, 2), (2, 2))])
    assert laws[0].__name__ == "structures_are_listed_once-3x2"
    assert len({law.__name__ for law in laws}) == len(laws)
    assert "value_is_the_recursion" not in {law.__name__ for law in laws}
    with_recursion = pm.testing.laws(pm.Simplex(), [(3,)], lambda maximum, x: maximum(x))
    assert with_recursion[-1].__name__ == "value_is_the_recursion"
    # abilities that a set does not have have no laws
    assert len(pm.testing.laws(pm.Ranking(), [(3,)])) < len(pm.testing.laws(pm.SpanningTree(), [(3, 3)]))


class Twice(pm.DynamicProgram):
    """One of n parts; the first of them is derived twice."""

    may_be_empty = False

    def derivations(self, *scores):
        (x,) = scores
        *batch, n = x.shape
        builder = Builder(parts=n)
        builder.add(1, torch.arange(n).numpy(), 0)
        builder.add(1, 0, 0)
        rows = x.reshape(-1, n)
        roots = torch.ones(len(rows), dtype=torch.long)
        return Derivations(rows, builder.build(2), roots, torch.Size(batch), lambda mu: mu.reshape(x.shape))

    def event_dims(self, *scores):
        return (1,)

    def vertices(self, event_shape):
        return torch.eye(*event_shape)


class Fractions(pm.Structure):
    """One of n parts; the mean of the best ones."""

    may_be_empty = False

    def map(self, scores):
        best = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
        return best / best.sum(-1, keepdim=True)

    def event_dims(self, *scores):
        return (1,)

    def vertices(self, event_shape):
        return torch.eye(*event_shape)


class Greedy(Fractions):
    """One of n parts; NaN and -inf are not looked for."""

    def map(self, scores):
        return torch.nn.functional.one_hot(scores.nan_to_num(-5.0).argmax(-1), scores.shape[-1]).to(scores.dtype)


class Widened(Fractions):
    """One of n parts, always in float64."""

    def map(self, scores):
        return pm.Simplex().map(scores).double()


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (Twice(), "5 structures are counted, and there are 4"),
        (Fractions(), "map must return a vertex, not their mean.*instance 0 is no vertex"),
        (Greedy(), r"all is forbidden: the value is -inf, map \[1.0, 0.0, 0.0, 0.0\]"),
        (Widened(), "torch.float32 became torch.float64"),
    ],
    ids=["derived-twice", "fractions-at-ties", "forbidden", "dtype"],
)
def test_flawed_structures_are_found(structure, message):
    with pytest.raises(AssertionError, match=message):
        pm.testing.check_structure(structure, (4,))


@dataclass(frozen=True)
class Flawed(pm.Regularizer):
    """Shannon's entropy, with one flaw."""

    flaw: str = ""
    gamma: float = 1.0

    def argmax_rows(self, x):
        if self.flaw == "nan":
            x = torch.where(x.isnan(), 0, x)
        if self.flaw == "empty" and not x.shape[-1]:
            raise RuntimeError("no scores")
        if self.flaw == "large":
            y = x.exp()
            return torch.where((x == -torch.inf).all(-1, keepdim=True), 0, y / y.sum(-1, keepdim=True))
        if self.flaw == "low":
            x = torch.where(x == -1e30, torch.nan, x)
        return pm.Shannon().argmax(x)

    def omega_rows(self, p, keep=None):
        return pm.Shannon().omega(p)


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("nan", "a row of NaN has weights"),
        ("empty", "Rows of length 0 have no weights.*no scores"),
        ("large", "Scores of 1e4 and of -1e30 .*nan"),
        ("low", "Scores of 1e4 and of -1e30 .*nan"),
    ],
)
def test_flawed_regularizers_are_found(flaw, message):
    pm.testing.check_regularizer(Flawed())
    with pytest.raises(AssertionError, match=message):
        pm.testing.check_regularizer(Flawed(flaw))
