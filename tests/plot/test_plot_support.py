"""Pictures of sparse distributions: what is drawn, not only that it is."""

import pytest
import torch

import polymax as pm

SENTENCE = ["a", "small", "dog", "barks"]


def one(structure, *shapes):
    generator = torch.Generator().manual_seed(4)
    return pm.SparseMap(structure, gamma=2.0).distribution(*(torch.randn(s, generator=generator) for s in shapes))


DISTRIBUTIONS = {
    "spanning-tree": (one(pm.SpanningTree(), (5, 5)), SENTENCE, None),
    "projective-tree": (one(pm.ProjectiveTree(), (5, 5)), SENTENCE, None),
    "span-tree": (one(pm.SpanTree(), (4, 4)), SENTENCE, None),
    "chain": (one(pm.Chain(), (4, 3), (3, 3)), SENTENCE, ["D", "N", "V"]),
    "assignment": (one(pm.Assignment(), (4, 4)), SENTENCE, ["un", "petit", "chien", "aboie"]),
    "alignment": (one(pm.Alignment(), (4, 3)), SENTENCE, ["un", "chien", "aboie"]),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_support(name, tmp_path):
    distribution, tokens, others = DISTRIBUTIONS[name]
    grid = pm.plot.support(distribution, tokens, others, k=3)
    expected = [f"{p:.2f}" for p in distribution.probs.tolist() if p > 0][:3]
    assert [ax.get_title(loc="left") for ax in grid] == expected, "each structure has its probability"
    assert len(expected) > 1
    for ax in grid:
        assert ax.collections or ax.patches, "a structure is drawn"
    grid[0].figure.savefig(tmp_path / "support.png", dpi=50)


def test_matching():
    mu = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]], requires_grad=True)
    ax = pm.plot.matching(mu, ["le", "chat"], ["the", "cat", "sleeps"])
    lines = ax.collections[0]
    assert len(lines.get_segments()) == 3, "exact zeros draw nothing"
    assert lines.get_linewidths()[2] == 2 * lines.get_linewidths()[0], "lines are as wide as their weights"
    assert [t.get_text() for t in ax.texts] == ["le", "chat", "the", "cat", "sleeps"]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="must be"):
        pm.plot.matching(torch.zeros(3))
    batch = pm.SparseMap(pm.Simplex()).distribution(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one instance"):
        pm.plot.support(batch)
    with pytest.raises(TypeError, match="no picture"):
        pm.plot.support(pm.SparseMap(pm.Simplex()).distribution(torch.zeros(3)))
