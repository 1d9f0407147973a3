"""Fenchel-Young losses over structures: their laws, enumeration, and the losses they reduce to."""

import pytest
import torch
from loss_table import CASES, INDICATORS, LENGTHS, SMOOTHINGS, all_cases, grad, problem
from sets import BY_NAME, COUNTED, TABLE, every
from tolerances import close, equal
from torch.nn.functional import cross_entropy

import polymax as pm
from polymax.losses import (
    Partial,
    crf_loss,
    fenchel_young,
    margin_sparsemap_loss,
    perceptron_loss,
    smoothed_dp_loss,
    sparsemap_loss,
    svm_loss,
)
from polymax.smoothing.perturbed import Perturbed
from polymax.structures.base import tensors


@all_cases
def test_value_and_gradient(row, make, device):
    smooth = make(row.structure)
    for shape in row.shapes:
        scores, y = problem(row, (2, 2), shape, device)
        scores = tuple(x.requires_grad_() for x in scores)
        losses = fenchel_young(smooth, scores, row.structure.decode(y), reduction="none")
        expected = smooth.max(*scores) + smooth.omega(y) - row.structure.score(y, *scores)
        close(losses, expected, "the loss is max + Omega(y) - <scores, y>")
        linear = row.structure.score(row.structure.named(*(m.detach() for m in tensors(smooth(*scores)))), *scores)
        slopes = grad((linear - row.structure.score(y, *scores)).sum(), scores)
        for g, s in zip(grad(losses.sum(), scores), slopes, strict=True):
            torch.testing.assert_close(g, s, atol=1e-8, rtol=0, msg="the gradient is argmax - y")


@all_cases
def test_indices_are_indicators(row, make, device):
    scores, y = problem(row, device=device)
    losses = fenchel_young(make(row.structure), scores, row.structure.decode(y), reduction="none")
    for given in (y, tuple(tensors(y)), tensors(y)[0]):
        found = fenchel_young(make(row.structure), scores, given, reduction="none")
        equal(found, losses, "indicators, and the first of them, say what indices say")


@pytest.mark.parametrize(("row", "make"), [case for case in CASES if case.values[0].name != "ranking"])
def test_zero_where_the_prediction_is_y(row, make, device):
    scores, y = problem(row, (20,), device=device, scale=200.0)
    smooth = make(row.structure)
    scores = tuple(x.requires_grad_() for x in scores)
    best = row.structure.map(*scores)
    losses = fenchel_young(smooth, scores, best, reduction="none")
    if isinstance(smooth, pm.Marginals):
        assert bool((losses >= 0).all())
    else:
        # at this scale few scores are closer than the margin
        mu = smooth(*scores)
        same = torch.stack([(a == b).flatten(1).all(1) for a, b in zip(tensors(mu), tensors(best), strict=True)]).all(0)
        assert float(same.double().mean()) > 0.8
        assert bool((losses[same] == 0).all()), "the loss is exactly 0 where the prediction is y"
        assert bool((losses[~same] > 0).all()), "and only there"
    other = torch.stack([(a != b).flatten(1).any(1) for a, b in zip(tensors(y), tensors(best), strict=True)]).any(0)
    assert bool((fenchel_young(smooth, scores, y, reduction="none")[other] > 0).all())


@all_cases
def test_convex_and_not_negative(row, make, device):
    (a, y), (b, _) = problem(row, (12,), device=device), problem(row, (12,), device=device, seed=4)
    smooth = make(row.structure)
    first, last = (fenchel_young(smooth, x, y, reduction="none") for x in (a, b))
    middle = fenchel_young(smooth, tuple((p + q) / 2 for p, q in zip(a, b, strict=True)), y, reduction="none")
    assert bool((middle <= (first + last) / 2 + 1e-10).all())
    assert bool((torch.stack([first, middle, last]) >= -1e-12).all())


@every(COUNTED)
def test_crf_loss_is_minus_log_probability(row, device):
    scores, y = problem(row, (3,), device=device)
    _, values = row.enumerated(scores)
    gamma = 0.7
    losses = crf_loss(row.structure, scores, y, "none", gamma=gamma).cpu()
    expected = gamma * (values / gamma).logsumexp(0) - row.structure.score(y, *scores).cpu()
    close(losses, expected, "the CRF loss is -gamma log p(y)")


@every(INDICATORS)
def test_svm_loss(row, device):
    scores, y = problem(row, (4,), device=device)
    vertices, values = row.enumerated(scores)
    wrong = 1 - tensors(y)[0].double().cpu().clamp(max=1)
    dims = wrong.dim() - 1
    cost = torch.einsum("kx,bx->kb", vertices[0].flatten(1), wrong.flatten(1))
    losses = svm_loss(row.structure, scores, row.structure.decode(y), reduction="none")
    gold = row.structure.score(y, *scores).cpu()
    close(
        losses.cpu(), (values + cost).amax(0) - gold, "svm_loss is the maximum of score and cost, less the score of y"
    )
    best = tensors(row.structure.map(*scores))[0].double().cpu()
    assert bool((losses.cpu() >= (best * wrong).flatten(-dims).sum(-1) - 1e-9).all()), "it bounds the cost of MAP"
    twice = svm_loss(row.structure, scores, y, cost=2 * wrong.to(device), reduction="none")
    close(twice.cpu(), (values + 2 * cost).amax(0) - gold, "costs may be given")


@every([row for row in INDICATORS if row.name != "hypergraph"])
def test_margin_sparsemap_loss(row, device):
    scores, y = problem(row, (4,), device=device)
    augmented = (scores[0] + 1 - tensors(y)[0], *scores[1:])
    smooth = pm.SparseMap(row.structure, gamma=0.5)
    expected = smooth.max(*augmented) + smooth.omega(y) - row.structure.score(y, *scores)
    close(margin_sparsemap_loss(row.structure, scores, y, reduction="none", gamma=0.5), expected, "a margin is a cost")


def test_on_the_simplex_they_are_the_losses_of_classes(device):
    x = torch.randn(9, 5, dtype=torch.float64, device=device)
    y = torch.randint(5, (9,), device=device)
    simplex = pm.Simplex()
    close(crf_loss(simplex, x, y), cross_entropy(x, y), "CRF over one of n is cross-entropy")
    close(sparsemap_loss(simplex, x, y), pm.sparsemax_loss(x, y), "SparseMAP over one of n is sparsemax")
    for alpha in (1.5, 1.2):
        found = smoothed_dp_loss(simplex, pm.Tsallis(alpha), x, y)
        close(found, pm.entmax_loss(x, y, alpha), "LocalMax over one of n is its regularizer")
    gold = x.gather(1, y[:, None])[:, 0]
    others = x.scatter(1, y[:, None], -torch.inf).amax(1)
    close(perceptron_loss(simplex, x, y), (others - gold).clamp(min=0).mean(), "perceptron")
    close(svm_loss(simplex, x, y), (1 + others - gold).clamp(min=0).mean(), "the hinge of Crammer and Singer")


def test_the_chain_is_the_module(device):
    crf = pm.nn.CRF(3).double().to(device)
    emissions, tags = torch.randn(2, 4, 3, dtype=torch.float64, device=device), torch.randint(3, (2, 4), device=device)
    lengths = torch.tensor([4, 2], device=device)
    mask = torch.arange(4, device=device) < lengths[:, None]
    with torch.no_grad():
        crf.start_transitions.zero_()
        crf.end_transitions.zero_()
    found = crf_loss(pm.Chain(lengths), (emissions, crf.transitions), tags.masked_fill(~mask, -1))
    close(found.detach(), crf(emissions, tags, mask).detach(), "crf_loss is the loss of the module")
    unknown = tags.clone()
    unknown[:, 1] = -1
    found = crf_loss(
        pm.Chain(lengths), (emissions, crf.transitions), Partial(unknown.where(unknown >= 0, -2).where(mask, -1))
    )
    close(found.detach(), crf(emissions, unknown, mask).detach(), "and so with tags that are not known")


@every(LENGTHS)
@pytest.mark.parametrize("smoothing", ["hard", "marginals", "sparse"])
def test_ragged_is_shorter(row, smoothing, device):
    kind, make = SMOOTHINGS[smoothing]
    if not isinstance(row.structure, kind):
        pytest.skip("out of reach")
    lengths = torch.arange(row.size(), max(row.least - 1, 0), -1, device=device)
    structure = row.with_lengths(lengths)
    scores = row.scores(None, (len(lengths),), device=device)
    y = structure.map(*row.scores(None, (len(lengths),), device=device, seed=5))
    scores = tuple(x.requires_grad_() for x in scores)
    losses = fenchel_young(make(structure), scores, structure.decode(y), reduction="none")
    hinge = svm_loss(structure, scores, structure.decode(y), reduction="none")
    for k, n in enumerate(lengths.tolist()):
        # each tensor of an instance, but for one that all share
        own = row.cut(tuple(x[k] if x.shape[0] == len(lengths) and x.dim() > 2 else x for x in scores), n)
        cut = row.structure.named(*row.cut(tuple(t[k] for t in tensors(y)), n))
        close(losses[k], fenchel_young(make(row.structure), own, cut), "padding is a shorter problem")
        close(hinge[k], svm_loss(row.structure, own, cut), "padding costs nothing")
    slopes = grad(losses.sum(), scores)
    kept = row.cut(tuple(g[-1] if g.dim() > 2 else g for g in slopes), int(lengths[-1]))[0]
    assert int((kept != 0).sum()) == int((slopes[0][-1] != 0).sum()), "padding has no gradient"


@every([row for row in LENGTHS if isinstance(row.structure, pm.Chain | pm.ProjectiveTree | pm.SpanningTree)])
def test_targets_that_cannot_be_read(row, monkeypatch):
    """As on a GPU, or while code is compiled: nothing is checked, and what stands at padding is ignored."""
    size = row.size()
    structure = row.with_lengths(torch.tensor([size, size - 1, 1]))
    scores = row.scores(batch=(3,))
    index = structure.decode(structure.map(*row.scores(batch=(3,), seed=5)))
    losses = [(loss, loss(structure, scores, index, reduction="none")) for loss in (crf_loss, svm_loss, sparsemap_loss)]
    padded = index.clamp(min=0)
    with pytest.raises(ValueError, match="padding is -1"):
        crf_loss(structure, scores, padded)
    monkeypatch.setattr("polymax._check.readable", lambda t: False)
    for loss, expected in losses:
        equal(loss(structure, scores, padded, reduction="none"), expected, "padding is ignored")


@every([BY_NAME[n] for n in ("chain", "segments", "alignment", "span-tree-labelled", "spanning-tree", "hypergraph")])
@pytest.mark.parametrize("smoothing", ["marginals", "sparse"])
def test_derivatives(row, smoothing, device):
    scores, y = problem(row, (2,), shape=row.shapes[-2] if len(row.shapes) > 2 else None, device=device)
    scores = tuple(x.requires_grad_() for x in scores)
    index = row.structure.decode(y)
    gamma = torch.tensor(0.8, dtype=torch.float64, device=device, requires_grad=True)
    make = {"marginals": pm.Marginals, "sparse": pm.SparseMap}[smoothing]

    def loss(gamma, *scores):
        return fenchel_young(make(row.structure, gamma=gamma), scores, index)

    assert torch.autograd.gradcheck(loss, (gamma, *scores), fast_mode=True)
    assert torch.autograd.gradgradcheck(loss, (gamma.detach(), *scores), fast_mode=True)


@every(TABLE)
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_large_scores_in_float32(row, smoothing, device):
    kind, make = SMOOTHINGS[smoothing]
    if not isinstance(row.structure, kind):
        pytest.skip("out of reach")
    scores = tuple(x.float() for x in row.scores(batch=(16,), device=device, scale=1e4))
    exact = tuple(x.double() for x in scores)
    # targets that are right, and targets that are almost as good
    y = row.structure.decode(row.structure.map(*exact))
    near = row.structure.decode(row.structure.map(*(x + 3000 * torch.randn_like(x) for x in exact)))
    for target in (y, near):
        found = fenchel_young(make(row.structure), scores, target, reduction="none")
        truth = fenchel_young(make(row.structure), exact, target, reduction="none")
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=1e-6)


def test_long_chains_in_float32(device):
    """A score of 2e7 is known to 2 in float32: the loss is not a difference of two."""
    generator = torch.Generator().manual_seed(0)
    unary = (1e4 * torch.randn(2, 2000, 5, generator=generator)).to(device)
    for scale in (1.0, 1e4):
        transition = (scale * torch.randn(5, 5, generator=generator)).to(device)
        best = pm.Chain().decode(pm.Chain().map(unary.double(), transition.double()))
        assert bool((perceptron_loss(pm.Chain(), (unary, transition), best, "none") == 0).all())
        found = crf_loss(pm.Chain(), (unary, transition), best, "none")
        truth = crf_loss(pm.Chain(), (unary.double(), transition.double()), best, "none")
        torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every([BY_NAME["chain"], BY_NAME["spanning-tree"], BY_NAME["assignment"]])
def test_half_precision(row, dtype):
    scores, y = problem(row, (6,))
    half = tuple(x.to(dtype).requires_grad_() for x in scores)
    exact = tuple(x.detach().double() for x in half)
    for loss in (perceptron_loss, svm_loss, sparsemap_loss):
        found = loss(row.structure, half, y.to(dtype) if isinstance(y, torch.Tensor) else row.structure.decode(y))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), loss(row.structure, exact, y), atol=0, rtol=torch.finfo(dtype).eps)
        assert all(bool(g.isfinite().all()) for g in grad(found, half))


def test_forbidden_targets_and_broken_rows(device):
    unary = torch.randn(3, 4, 3, dtype=torch.float64, device=device)
    transition = torch.randn(3, 3, dtype=torch.float64, device=device)
    tags = torch.tensor([[0, 1, 2, 0]] * 3, device=device)
    alone = crf_loss(pm.Chain(), (unary, transition), tags, "none")
    unary[0, 1, 1] = -torch.inf
    unary[1, 2, 0] = torch.nan
    unary.requires_grad_()
    for loss in (crf_loss, perceptron_loss):
        losses = loss(pm.Chain(), (unary, transition), tags, "none")
        assert losses[0] == torch.inf, "a forbidden target has no likelihood"
        assert bool(losses[1].isnan()), "NaN stays in its row"
        assert bool(losses[2].isfinite())
        (slope,) = grad(losses[[0, 2]].sum(), (unary,))
        assert bool((slope[0] == 0).all())
        assert bool((slope[2] != 0).any())
    equal(crf_loss(pm.Chain(), (unary, transition), tags, "none")[2].detach(), alone[2], "rows do not meet")
    known = Partial(torch.tensor([[-2, 1, 2, 0]] * 3, device=device))
    assert crf_loss(pm.Chain(), (unary, transition), known, "none")[0] == torch.inf


def test_empty_sequences_cost_nothing(device):
    lengths = torch.tensor([2, 0], device=device)
    scores = (torch.randn(2, 3, 4, device=device), torch.randn(4, 4, device=device))
    tags = torch.tensor([[1, 2, -1], [-1, -1, -1]], device=device)
    for loss in (crf_loss, perceptron_loss, svm_loss, sparsemap_loss, margin_sparsemap_loss):
        assert float(loss(pm.Chain(lengths), scores, tags, reduction="none")[1]) == 0.0
    for loss in (crf_loss, perceptron_loss):
        assert float(loss(pm.Chain(lengths), scores, Partial(tags), reduction="none")[1]) == 0.0


@every([BY_NAME[n] for n in ("chain", "segments", "spanning-tree", "assignment", "simplex")])
def test_perturbed(row, device):
    """Its Omega is not known: the loss is one up to a constant."""
    scores, y = problem(row, (3,), device=device)
    scores = tuple(x.requires_grad_() for x in scores)
    smooth = Perturbed(row.structure, samples=4, gamma=0.5)

    def generator():
        return torch.Generator(device).manual_seed(7)

    losses = fenchel_young(smooth, scores, row.structure.decode(y), reduction="none", generator=generator())
    equal(fenchel_young(smooth, scores, y, reduction="none", generator=generator()), losses, "indicators are indices")
    gold = row.structure.score(y, *scores)
    close(losses, smooth.max(*scores, generator=generator()) - gold, "the loss is the maximum less the score")
    mu = row.structure.named(*(m.detach() for m in tensors(smooth(*scores, generator=generator()))))
    slopes = grad((row.structure.score(mu, *scores) - gold).sum(), scores)
    for g, s in zip(grad(losses.sum(), scores), slopes, strict=True):
        close(g, s, "the gradient is argmax - y")
    soft = fenchel_young(smooth, scores, mu, reduction="none", generator=generator())
    expected = smooth.max(*scores, generator=generator()) - row.structure.score(mu, *scores)
    close(soft, expected, "so is that of a point between structures")
    partial = fenchel_young(smooth, scores, Partial(tensors(y)[0] > 0), reduction="none", generator=generator())
    close(partial, losses, "the best that agrees is the target")


def test_reductions_and_costs():
    row = BY_NAME["chain"]
    scores, y = problem(row, (2, 3))
    losses = crf_loss(row.structure, scores, y, "none")
    assert losses.shape == (2, 3)
    equal(crf_loss(row.structure, scores, y), losses.mean(), "mean")
    equal(crf_loss(row.structure, scores, y, "sum"), losses.sum(), "sum")
    extra = (torch.rand(5, 3, dtype=torch.float64), torch.rand(3, 3, dtype=torch.float64))
    smooth = pm.HardMax(row.structure)
    both = fenchel_young(smooth, scores, y, extra, "none")
    costly = tuple(x + c for x, c in zip(scores, extra, strict=True))
    close(both, smooth.max(*costly) - row.structure.score(y, *scores), "costs of both tensors are added")
    steps = fenchel_young(smooth, scores, y, (None, extra[1]), "none")
    close(steps, smooth.max(scores[0], costly[1]) - row.structure.score(y, *scores), "None is no cost")


def test_compiles():
    scores = torch.randn(2, 4, 3), torch.randn(3, 3)
    tags = torch.randint(3, (2, 4))
    compiled = torch.compile(lambda u, t, y: crf_loss(pm.Chain(), (u, t), y), fullgraph=True, backend="eager")
    equal(compiled(*scores, tags), crf_loss(pm.Chain(), scores, tags), "compiled code computes the same")


def test_inputs_are_not_changed():
    row = BY_NAME["segments"]
    scores, y = problem(row)
    index = row.structure.decode(y)
    copies = [t.clone() for t in (*scores, index)]
    svm_loss(row.structure, scores, index)
    for a, b in zip((*scores, index), copies, strict=True):
        assert torch.equal(a, b)


def test_segments_by_index_have_the_transitions_of_their_steps():
    """Transitions that differ by step, beside indicators and the enumeration."""
    semi = pm.SemiMarkov(3)
    segments = torch.randn(2, 5, 3, 2, dtype=torch.float64)
    transition = torch.randn(2, 4, 2, 2, dtype=torch.float64)
    y = semi.map(segments + torch.randn_like(segments), transition)
    totals = torch.stack(
        [
            semi.score(
                semi.named(*(t[k].double().expand(2, *t.shape[1:]) for t in semi.vertices((5, 3, 2)))),
                segments,
                transition,
            )
            for k in range(len(semi.vertices((5, 3, 2))[0]))
        ]
    )
    expected = totals.logsumexp(0) - semi.score(y, segments, transition)
    for target in (semi.decode(y), y):
        found = crf_loss(semi, (segments, transition), target, reduction="none")
        torch.testing.assert_close(found, expected)


def test_sparsemap_of_an_empty_chain_beside_scores_of_any_size():
    unary = torch.full((3, 4, 2), 1e8, dtype=torch.float64) * torch.randn(3, 4, 2, dtype=torch.float64)
    lengths = torch.tensor([0, 4, 2])
    smooth = pm.SparseMap(pm.Chain(lengths))
    transition = 1e8 * torch.randn(2, 2, dtype=torch.float64)
    mu, value = smooth(unary, transition), smooth.max(unary, transition)
    assert value[0] == 0
    assert (mu.unary[0] == 0).all()
    assert pm.SparseMap(pm.Chain())(unary[:, :0], transition).unary.shape == (3, 0, 2)
    assert (pm.SparseMap(pm.Chain()).max(unary[:, :0], transition) == 0).all()
