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
