"""Lines of docs/migrating.md against the libraries they name, in value and gradient; absent libraries are skipped."""

import pytest
import torch
from plain_peers import import_plain
from tolerances import close

import polymax as pm

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def same(ours, theirs, *leaves):
    """Two values and their gradients are the same."""
    close(ours, theirs, "the value")
    if leaves:
        slope = torch.randn_like(ours)
        slopes = [torch.autograd.grad(y, leaves, slope, retain_graph=True) for y in (ours, theirs)]
        for a, b in zip(*slopes, strict=True):
            close(a, b, "the gradient")


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_entmax():
    peer = pytest.importorskip("entmax")
    x, target = leaf(4, 9), torch.randint(9, (4,))
    same(pm.sparsemax(x), peer.sparsemax(x, dim=-1), x)
    same(pm.entmax(x, dim=-1), peer.entmax15(x, dim=-1), x)
    same(pm.entmax(x, dim=0), peer.entmax15(x, 0), x)
    same(pm.entmax(x, alpha=1.3), peer.entmax_bisect(x, alpha=1.3), x)
    same(pm.entmax_loss(x, target), peer.entmax15_loss(x, target).mean(), x)
    same(pm.sparsemax_loss(x, target), peer.sparsemax_loss(x, target).mean(), x)
    same(pm.normmax(x, alpha=2.0), peer.normmax_bisect(x, alpha=2, n_iter=90), x)


def test_pytorch_crf():
    peer = pytest.importorskip("torchcrf")
    theirs, ours = peer.CRF(3, batch_first=True).double(), pm.nn.CRF(3).double()
    ours.load_state_dict(theirs.state_dict())
    x, tags = leaf(2, 5, 3), torch.randint(3, (2, 5))
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    same(ours(x, tags, mask), -theirs(x, tags, mask, reduction="mean"), x)
    assert ours.decode(x, mask) == theirs.decode(x, mask)


def test_torch_struct():
    peer = pytest.importorskip("torch_struct")
    unary, transition = leaf(2, 5, 3), leaf(3, 3)
    lengths = torch.tensor([5, 3])
    # its edges are [next, previous], and the first one has the scores of two states
    first = torch.nn.functional.pad(unary[:, :1, None], (0, 0, 0, 0, 0, 3))
    edges = transition.T + unary[:, 1:, :, None] + first
    theirs = peer.LinearChainCRF(edges, lengths=lengths)
    smooth = pm.Marginals(pm.Chain(lengths))
    same(smooth.max(unary, transition), theirs.partition, unary, transition)
    same(smooth(unary, transition).transition.mT, theirs.marginals)
    same(smooth.distribution(unary, transition).entropy(), theirs.entropy)
    same(pm.Chain(lengths).map(unary, transition).transition.mT, theirs.argmax)
    same(smooth.distribution(unary, transition).topk(3)[0].transition.movedim(1, 0).mT, theirs.topk(3))


def test_soft_dtw():
    import_plain()
    pysdtw, tslearn = pytest.importorskip("pysdtw"), pytest.importorskip("tslearn.metrics")
    x, y = leaf(2, 5, 3), torch.randn(2, 4, 3, dtype=torch.float64)
    ours = pm.soft_dtw(pm.squared_euclidean(x, y), gamma=1.0)
    # pysdtw computes in float32
    theirs = pysdtw.SoftDTW(gamma=1.0, use_cuda=False)(x, y)
    torch.testing.assert_close(ours, theirs, atol=0, rtol=1e-6)
    slopes = [torch.autograd.grad(t.sum(), x, retain_graph=True)[0] for t in (ours, theirs)]
    torch.testing.assert_close(*slopes, atol=1e-4, rtol=1e-5)
    rows = [(a.detach().numpy(), b.numpy()) for a, b in zip(x, y, strict=True)]
    same(ours.detach(), torch.tensor([tslearn.soft_dtw(a, b, gamma=1.0) for a, b in rows], dtype=torch.float64))
    squares = torch.tensor([tslearn.dtw(a, b) ** 2 for a, b in rows], dtype=torch.float64)
    same(pm.dtw(pm.squared_euclidean(x, y)).detach(), squares)
    band = torch.from_numpy(tslearn.sakoe_chiba_mask(4, 4, 1))
    assert torch.equal(pm.sakoe_chiba(4, 4, 1), band), "bands are tslearn's where both lengths are equal"


def test_gumbel_softmax():
    """The mean gradient of 4,000 draws."""
    scores, values = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([3.0, 1.0, 0.0])

    def slope(draw):
        x = scores.expand(4000, 3).clone().requires_grad_()
        return torch.autograd.grad(draw(x) @ values, x, torch.ones(4000))[0].mean(0)

    for tau in (1.0, 0.5):
        ours = pm.PerturbAndMap(pm.Simplex(), through=pm.Marginals(pm.Simplex(), gamma=tau))
        theirs = slope(lambda x, tau=tau: torch.nn.functional.gumbel_softmax(x, tau, hard=True))
        torch.testing.assert_close(slope(ours), theirs, atol=0.06, rtol=0)
    assert not torch.allclose(slope(pm.PerturbAndMap(pm.Simplex())), theirs, atol=0.5), "the identity is another one"


def test_torch():
    x, targets = leaf(20, 2, 6), torch.randint(1, 6, (2, 5))
    lengths = torch.tensor([20, 17]), torch.tensor([5, 3])
    log_probs = x.log_softmax(-1)
    same(pm.ctc_loss(log_probs, targets, *lengths), torch.nn.functional.ctc_loss(log_probs, targets, *lengths), x)
    same(pm.softmax(x, 1), torch.softmax(x, 1), x)
    q, k, v = leaf(2, 2, 5, 4), leaf(2, 2, 5, 4), leaf(2, 2, 5, 4)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    same(pm.nn.scaled_dot_product_attention(q, k, v, mapping=pm.softmax), theirs, q, k, v)


def test_torchsort():
    peer = pytest.importorskip("torchsort")
    x = torch.randn(3, 6, requires_grad=True)
    for kind, name in (("quadratic", "l2"), ("kl", "kl")):
        options = {"regularization": name, "regularization_strength": 0.5}
        same(pm.soft_rank(x, 0.5, regularization=kind), peer.soft_rank(x, **options), x)
        same(pm.soft_sort(x, 0.5, regularization=kind), peer.soft_sort(x, **options), x)
