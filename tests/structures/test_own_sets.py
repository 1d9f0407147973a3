"""Sets that users write keep what the library promises for every set."""

import own_sets
import pytest
import torch

import polymax as pm


@pytest.mark.parametrize(("k", "n"), [(1, 1), (2, 2), (2, 6), (3, 5), (3, 6)])
def test_omega_of_a_recursion_with_dead_branches_is_minus_the_entropy(k, n):
    cuts = own_sets.documented("Cuts")(k)
    x = torch.randn(3, n, n, dtype=torch.float64)
    marginals = pm.Marginals(cuts)
    mu = marginals(x)
    totals = torch.einsum("kij,bij->bk", cuts.vertices((n, n)).double(), x)
    entropy = torch.distributions.Categorical(logits=totals).entropy()
    torch.testing.assert_close(marginals.omega(mu), -entropy)
    torch.testing.assert_close(pm.fenchel_young(marginals, x, mu), torch.zeros((), dtype=torch.float64))


def test_omega_where_expected_parts_leave_the_recursion_open():
    """The segments of four cuts of six positions occur as the second and as the third."""
    x = torch.randn(6, 6, dtype=torch.float64)
    marginals = pm.Marginals(own_sets.documented("Cuts")(4))
    with pytest.raises(ValueError, match="the expected parts of Cuts do not determine its Omega"):
        marginals.omega(marginals(x))


def test_omega_where_the_root_chooses_among_nodes_that_are_used_elsewhere():
    """Instances of all lengths, each with a root of its own, beside the entropy of the enumeration."""
    lengths = torch.tensor([0, 1, 2, 5, 3])
    x = torch.randn(5, 5, 2, dtype=torch.float64)
    for smooth in (pm.Marginals(own_sets.Hops(lengths), 0.7), pm.LocalMax(own_sets.Hops(lengths), pm.Gini())):
        mu = smooth(x)
        equality = smooth.structure.score(mu, x) - smooth.omega(mu)
        torch.testing.assert_close(smooth.max(x), equality)
    for b, n in enumerate(lengths.tolist()):
        y = own_sets.Hops().vertices((n, 2)).double()
        p = torch.distributions.Categorical(logits=(y * x[b, :n] / 0.7).sum((1, 2)))
        omega = pm.Marginals(own_sets.Hops(lengths), 0.7).omega(pm.Marginals(own_sets.Hops(lengths), 0.7)(x))[b]
        torch.testing.assert_close(omega, -0.7 * p.entropy())


@pytest.mark.parametrize("name", ["Cuts", "Rooks", "Hops"])
def test_targets_of_other_sets_are_refused(name):
    structure = {"Cuts": own_sets.documented("Cuts"), "Rooks": lambda k: own_sets.documented("Rooks")()}.get(
        name, lambda k: own_sets.Hops()
    )(2)
    shape = (4, 2) if name == "Hops" else (4, 4)
    vertices = structure.vertices(shape)
    scores = torch.randn(len(vertices), *shape)
    smooth = pm.HardMax(structure)
    assert pm.fenchel_young(smooth, scores, structure.decode(vertices)) >= 0
    known = {tuple(v.flatten().tolist()) for v in vertices}
    for place in range(vertices[0].numel()):
        changed = vertices[:1].clone()
        changed.view(-1)[place] = 1 - changed.view(-1)[place]
        if tuple(changed.flatten().tolist()) in known:
            continue
        for y in (changed, structure.decode(changed)):
            with pytest.raises(ValueError, match=r"y is no structure: no structure of \w+ has the parts \["):
                pm.fenchel_young(smooth, scores[:1], y)
    twice = structure.decode(vertices[:1])[:, [0, 0]]
    with pytest.raises(ValueError, match="is listed twice"):
        pm.fenchel_young(smooth, scores[:1], twice)


def test_documented_rooks_meet_scores_that_forbid_and_are_undefined():
    rooks = own_sets.documented("Rooks")()
    pm.testing.check_structure(rooks, (3, 3))
    scores = torch.randn(4, 3, 3)
    scores[1, :, 0] = -torch.inf
    scores[2] = -torch.inf
    scores[3, 1, 1] = torch.nan
    y = rooks.map(scores)
    assert (y[:2].sum((1, 2)) == 2).all()
    assert (y[1, :, 0] == 0).all()
    assert (y[2] == 0).all()
    assert y[3].isnan().all()
    assert rooks.best_score(scores)[2] == -torch.inf


class Squared(pm.Smoothing):
    """max over mu of <x, mu> - |mu|^2 over the simplex, written as a user would: without `omega_at`."""

    structure = pm.Simplex()

    def max(self, x):
        mu = self.argmax(x)
        return (x * mu).sum(-1) - self.omega(mu)

    def argmax(self, x):
        return pm.sparsemax(x / 2)

    def omega(self, mu):
        return mu.square().sum(-1)


def test_losses_of_a_smoothing_of_ones_own_take_its_omega():
    smooth, x = Squared(), torch.tensor([[2.0, 0.5, 1.0]], dtype=torch.float64)
    y = torch.tensor([2])
    expected = smooth.max(x) + 1 - x[:, 2]
    torch.testing.assert_close(pm.fenchel_young(smooth, x, y), expected.squeeze())
    indicators = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(pm.fenchel_young(smooth, x, indicators), expected.squeeze())
    only = pm.Partial(torch.tensor([[False, False, True]]))
    torch.testing.assert_close(pm.fenchel_young(smooth, x, only), expected.squeeze())


class Narrow(pm.Estimator):
    def vjp(self, y, g, *scores):
        return g[..., :1]


def test_gradients_of_an_estimator_have_the_shape_of_the_scores():
    x = torch.randn(2, 3, requires_grad=True)
    y = Narrow(pm.Simplex())(x)
    with pytest.raises(ValueError, match=r"Narrow.vjp must return a gradient .* \[\(2, 3\)\]; got \[\(2, 1\)\]"):
        y.sum().backward()


class Corners(pm.Counted):
    """The corners of a cube, by the sum over them alone: nothing else is defined."""

    def map(self, *scores):
        return (scores[0] > 0).to(scores[0].dtype)

    def vertices(self, event_shape):
        return torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * event_shape[0])

    def event_dims(self, *scores):
        return (1,)

    def logsumexp(self, *scores):
        return torch.nn.functional.softplus(scores[0]).sum(-1)


def test_marginals_follow_from_a_sum():
    """Scores with and without a gradient, and derivatives of derivatives."""
    x = torch.randn(2, 3, dtype=torch.float64)
    marginals = pm.Marginals(Corners())
    torch.testing.assert_close(marginals(x), x.sigmoid())
    assert not marginals(x).requires_grad
    x.requires_grad_()
    torch.testing.assert_close(marginals(x), x.sigmoid())
    assert torch.autograd.gradcheck(marginals, (x,))
    assert torch.autograd.gradgradcheck(marginals, (x,))
