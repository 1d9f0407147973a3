"""Latent dependency trees: each method's loss and gradient are its definition, by enumeration of all trees."""

import copy
import io
import pickle

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.nn import LatentDependency, left_chain, right_chain
from polymax.nn.latent_methods import METHODS

N, SIZE, HIDDEN = 4, 3, 3
# more rounds than twice the depth of any tree change nothing
ROUNDS = 2 * N + 2
CHOSEN = [name for name in METHODS if name != "given"]
QUIET = [name for name in CHOSEN if name not in ("perturb", "score-function")]

methods = pytest.mark.parametrize("method", CHOSEN)
compositions = pytest.mark.parametrize("composition", ["tree-lstm", "gcn"])
sets = pytest.mark.parametrize("projective", [False, True], ids=["spanning", "projective"])


def model(method, composition, projective=False, layers=None):
    torch.manual_seed(0)
    layers = layers or (2 if composition == "gcn" else 1)
    return LatentDependency(
        SIZE, HIDDEN, method, projective=projective, composition=composition, layers=layers
    ).double()


def sentences(count=1, scale=1.0):
    """Tokens, and scores of arcs, which want gradients."""
    x = torch.randn(count, N, SIZE, dtype=torch.float64, requires_grad=True)
    scores = (scale * torch.randn(count, N + 1, N + 1, dtype=torch.float64)).requires_grad_()
    return x, scores


def loss_fn(encoding, rows):
    """A loss that is not linear, and another one for each sentence."""
    target = torch.linspace(-1, 1, HIDDEN, dtype=encoding.dtype, device=encoding.device)
    return (encoding - target * (1 + rows.unsqueeze(-1))).square().sum(-1)


def composed(found, x, arcs):
    """Encodings along arcs (count, n + 1, n + 1) over the one sentence x, as equations that hold for weights too."""
    x = x.expand(len(arcs), -1, -1)
    if hasattr(found.composition, "gcn"):
        return found.composition.gcn(x, arcs).mean(1)
    return found.composition.lstm.soft(x, arcs, ROUNDS).root


def trees(found):
    return found.structure.vertices((N + 1, N + 1)).double()


def totals(found, scores):
    return (trees(found) * scores).flatten(1).sum(-1)


def best(found, scores):
    return trees(found)[totals(found, scores).argmax()].unsqueeze(0)


def gibbs(found, scores):
    """Marginals, by the sum over all trees."""
    return torch.einsum("k,kij->ij", totals(found, scores[0]).softmax(0), trees(found)).unsqueeze(0)


def sparse(found, scores):
    """The trees (k, ...) and weights of the projection onto the hull, from its optimality conditions."""
    support, p = pm.SparseMap(found.structure).distribution(scores.detach()).support()
    v = support[p > 0]
    gram = torch.ones(len(v) + 1, len(v) + 1, dtype=v.dtype)
    gram[:-1, :-1], gram[-1, -1] = torch.einsum("aij,bij->ab", v, v), 0
    right = torch.cat([(v * scores).flatten(1).sum(-1), scores.new_ones(1)])
    weights = torch.linalg.solve(gram, right)[:-1]
    mu = torch.einsum("k,kij->ij", weights, v)
    slope = (scores.squeeze(0) - mu).detach()
    assert weights.min() > 0
    assert totals(found, slope).max() < (slope * mu).sum() + 1e-9, "no tree is a better direction"
    return v, weights, mu.unsqueeze(0)


def chosen(found, x, scores, y, pull):
    """The loss at the tree y, and its gradients, of which that in the arcs is turned into one in the scores."""
    y = y.detach().requires_grad_()
    loss = loss_fn(composed(found, x, y), torch.zeros(1))
    parameters = list(found.composition.parameters())
    slope, *others = torch.autograd.grad(loss.sum(), [y, x, *parameters])
    return loss, [pull(y.detach(), slope), *others]


def exact(found, x, scores, loss):
    parameters = list(found.composition.parameters())
    return loss, list(torch.autograd.grad(loss.sum(), [scores, x, *parameters]))


def straight_through(found, x, scores):
    used = trees(found).any(0)
    return chosen(found, x, scores, best(found, scores), lambda y, g: torch.where(used, g, 0))


def spigot(found, x, scores):
    used = trees(found).any(0)
    return chosen(found, x, scores, best(found, scores), lambda y, g: y - sparse(found, y - torch.where(used, g, 0))[2])


def perturb(found, x, scores):
    noisy = (scores + pm.Gumbel().sample(scores, (), torch.Generator().manual_seed(5))).detach().requires_grad_()
    mu = gibbs(found, noisy)
    return chosen(found, x, scores, best(found, noisy), lambda y, g: torch.autograd.grad(mu, noisy, g)[0])


def sparse_expectation(found, x, scores):
    v, weights, _ = sparse(found, scores)
    return exact(found, x, scores, (weights * loss_fn(composed(found, x, v), torch.zeros(len(v)))).sum().reshape(1))


def expected_arcs(mean):
    def oracle(found, x, scores):
        mu = mean(found, scores)
        rows = torch.zeros(1)
        if hasattr(found.composition, "gcn"):
            return exact(found, x, scores, loss_fn(composed(found, x, mu), rows))
        lstm = found.composition.lstm
        return exact(found, x, scores, loss_fn(lstm.soft(x, mu, found.composition.layers + 1).root, rows))

    return oracle


ORACLES = {
    "structured-attention": expected_arcs(gibbs),
    "sparsemap": expected_arcs(lambda found, scores: sparse(found, scores)[2]),
    "straight-through": straight_through,
    "spigot": spigot,
    "perturb": perturb,
    "sparse-expectation": sparse_expectation,
}


@sets
@compositions
@pytest.mark.parametrize("method", ORACLES)
def test_gradients_are_those_of_the_definition(method, composition, projective):
    found = model(
        method, composition, projective, layers=2 if method in ("structured-attention", "sparsemap") else None
    )
    x, scores = sentences()
    generator = torch.Generator().manual_seed(5)
    given = found.loss(x, None, loss_fn, scores=scores, generator=generator)
    parameters = list(found.composition.parameters())
    grads = torch.autograd.grad(given.loss.sum(), [scores, x, *parameters])
    value, expected = ORACLES[method](found, x, scores)
    close(given.loss, value.detach(), "the loss of its definition")
    equal(given.value, given.loss.detach(), "the value is the loss")
    assert not given.value.requires_grad
    for actual, right in zip(grads, expected, strict=True):
        close(actual, right, f"the gradient of {method}")
    assert grads[0].abs().max() > 1e-4


@sets
@compositions
def test_score_function_is_unbiased(composition, projective):
    found = model("score-function", composition, projective)
    x, scores = (t.detach().expand(3000, *t.shape[1:]).clone().requires_grad_() for t in sentences())
    losses = found.loss(x, None, lambda e, rows: loss_fn(e, 0 * rows), scores=scores).loss
    draws = torch.autograd.grad(losses.sum(), [scores, x])
    x, scores = (t[:1].detach().requires_grad_() for t in (x, scores))
    every = loss_fn(composed(found, x, trees(found)), torch.zeros(len(trees(found))))
    truth = (totals(found, scores).softmax(0) * every).sum()
    close_to(losses.detach(), truth.detach())
    for draw, right in zip(draws, torch.autograd.grad(truth, [scores, x]), strict=True):
        close_to(draw, right[0])


def close_to(draws, truth):
    """The mean of draws is within five standard errors of the truth, and the error is small."""
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - truth).abs() <= 5 * error + 1e-9).all()


@compositions
def test_every_tree_of_the_support_is_composed_once(composition):
    found = model("sparse-expectation", composition)
    x, scores = sentences(5)
    rows = []
    found.loss(x, None, lambda e, at: rows.append(at) or loss_fn(e, at), scores=scores)
    size = found.distribution(x, scores=scores).support_size
    assert size.max() > 1
    equal(torch.cat(rows).bincount(minlength=5), size, "one row for each tree")


@compositions
@methods
def test_batch_is_one_by_one_and_padding_is_a_shorter_sentence(method, composition, device):
    found = model(method, composition).to(device)
    # such scores leave nothing to chance
    scale = 1.0 if method in QUIET else 1e4
    x, scores = (t.detach().to(device) for t in sentences(5, scale))
    lengths = torch.tensor([4, 2, 0, 1, 4], device=device)
    spoiled = x.clone()
    spoiled[1, 2:], spoiled[3, 1:] = torch.nan, torch.inf
    given = {} if method.endswith("chain") else {"scores": scores}
    spoiled.requires_grad_()
    together = found.loss(spoiled, lengths, loss_fn, **given)
    (slope,) = torch.autograd.grad(together.loss.sum(), spoiled)
    assert slope.isfinite().all()
    encoded, heads = found.encode(spoiled, lengths, **given), found.trees(spoiled, lengths, **given)
    for b, n in enumerate(lengths.tolist()):
        alone = x[b : b + 1, :n].requires_grad_()
        given = {} if method.endswith("chain") else {"scores": scores[b : b + 1, : n + 1, : n + 1]}
        own = found.loss(alone, None, lambda e, rows, b=b: loss_fn(e, rows + b), **given)
        close(together.value[b : b + 1], own.value, "a batch is its sentences")
        if n:
            close(slope[b : b + 1, :n], torch.autograd.grad(own.loss.sum(), alone)[0], "a batch is its sentences")
        assert (slope[b, n:] == 0).all()
        close(encoded[b : b + 1], found.encode(alone, **given), "a batch is its sentences")
        assert heads[b, :n].tolist() == found.trees(alone, **given)[0].tolist()
        assert (heads[b, n:] == -1).all()


@compositions
@methods
def test_the_parser_learns_unless_trees_are_fixed(method, composition):
    found = model(method, composition)
    x = torch.randn(6, N, SIZE, dtype=torch.float64)
    found.loss(x, None, loss_fn).loss.sum().backward()
    assert all(p.grad.abs().max() > 0 for p in found.composition.parameters())
    if found.scorer is not None:
        learns = found.scorer.head.weight.grad is not None and bool(found.scorer.head.weight.grad.abs().max() > 0)
        assert learns == (method != "best")


@compositions
def test_given_trees(composition):
    found, x = model("given", composition), torch.randn(2, 3, SIZE, dtype=torch.float64)
    lengths = torch.tensor([3, 2])
    for rule in (left_chain, right_chain):
        heads = rule(lengths, 3)
        named = model(rule.__name__.replace("_", "-"), composition)
        close(found.encode(x, lengths, heads=heads), named.encode(x, lengths), "a chain is a tree")
        equal(named.trees(x, lengths), heads, "the trees of a rule")
    other = model("sparse-expectation", composition)
    other.loss(x, lengths, loss_fn, heads=heads).loss.sum().backward()
    assert other.scorer.root.grad is None
    equal(other.trees(x, lengths, heads=heads), heads, "heads are trees to take, whatever the method")


def test_objects_for_methods():
    trees = pm.ProjectiveTree()
    x, scores = sentences(3)
    for method in (
        pm.Relaxed(pm.Marginals(trees, gamma=0.5)),
        pm.LocalMax(trees, pm.Gini()),
        pm.ImplicitMLE(trees),
        pm.ScoreFunction(trees, pm.LeaveOneOut(), samples=2),
        pm.ScoreFunction(trees, pm.Learned(torch.nn.Sequential(torch.nn.Linear(SIZE, 1), torch.nn.Flatten(0)))),
        pm.SparseExpectation(pm.TopKSparsemax(trees, 3)),
        pm.nn.Given(trees, right_chain),
    ):
        found = model(method, "gcn")
        given = {} if found.scorer is None else {"scores": scores}
        losses = found.loss(x, None, loss_fn, **given).loss
        assert losses.shape == (3,)
        losses.sum().backward()
        equal(found.encode(x, **given), found.encode(x, **given), "prediction has no noise")


def test_distributions():
    x, scores = sentences(2)
    for method in ("structured-attention", "sparsemap", "sparse-expectation", "score-function"):
        found = model(method, "gcn")
        arcs, p = found.distribution(x, scores=scores).topk(3)
        assert (p.diff(dim=-1) <= 0).all()
        equal(found.structure.decode(arcs[:, 0]), found.trees(x, scores=scores), "the best tree comes first")
    for method in ("spigot", "perturb", "best", "left-chain"):
        with pytest.raises(TypeError, match="has no distribution over trees"):
            model(method, "gcn").distribution(x)


def test_same_seed_same_loss_and_baselines_are_saved():
    method = pm.ScoreFunction(pm.SpanningTree(), pm.MovingAverage())
    found, (x, scores) = model(method, "tree-lstm"), sentences(4)
    twin = copy.deepcopy(found)
    first, second = (
        f.loss(x, None, loss_fn, scores=scores, generator=torch.Generator().manual_seed(1)) for f in (found, twin)
    )
    equal(first.value, second.value, "the same call gives the same bits")
    buffer = io.BytesIO()
    torch.save(found.state_dict(), buffer)
    before = found.method.baseline.mean.value
    assert before != 0
    # a new model has another mean, until it is loaded
    loaded = model(pm.ScoreFunction(pm.SpanningTree(), pm.MovingAverage()), "tree-lstm")
    assert loaded.method.baseline.mean.value != before
    loaded.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    for copied in (loaded, pickle.loads(pickle.dumps(found))):
        assert copied.method.baseline.mean.value == before


def test_refusals():
    x, scores = sentences(2)
    with pytest.raises(ValueError, match=r"method must be one of structured-attention, .*; got 'attention'"):
        LatentDependency(3, 3, "attention")
    with pytest.raises(TypeError, match="method must range over SpanningTree or ProjectiveTree; got Chain"):
        LatentDependency(3, 3, pm.Marginals(pm.Chain()))
    with pytest.raises(TypeError, match="method must be a name, a smoothing, an estimator or Given; got Perturbed"):
        LatentDependency(3, 3, pm.Perturbed(pm.SpanningTree()))
    with pytest.raises(ValueError, match="projective must be False"):
        LatentDependency(3, 3, pm.Marginals(pm.SpanningTree()), projective=True)
    with pytest.raises(ValueError, match="composition must be one of tree-lstm, gcn; got 'lstm'"):
        LatentDependency(3, 3, "spigot", composition="lstm")
    with pytest.raises(ValueError, match="layers must be 1 for a Tree-LSTM over single trees; got 2"):
        LatentDependency(3, 3, "spigot", layers=2)
    found = model("given", "gcn")
    with pytest.raises(ValueError, match=r"heads must be \(2, 4\), the trees that are given; got None"):
        found.encode(x)
    with pytest.raises(ValueError, match="in a cycle"):
        found.encode(x, heads=torch.tensor([[0, 3, 2, 1], [0, 1, 1, 1]]))
    with pytest.raises(TypeError, match="trees that are given have no scores"):
        found.scores(x)
    with pytest.raises(ValueError, match=r"scores must be \(2, 5, 5\), \[head, modifier\]; got \(2, 4, 4\)"):
        model("spigot", "gcn").encode(x, scores=scores[:, 1:, 1:])
    with pytest.raises(ValueError, match="loss_fn must return"):
        model("spigot", "gcn").loss(x, None, lambda e, rows: e.sum())


def test_arcs_in_parts_are_arcs_at_once(monkeypatch):
    found, (x, scores) = model("straight-through", "tree-lstm"), sentences(3)
    (whole,) = torch.autograd.grad(found.loss(x, None, loss_fn, scores=scores).loss.sum(), scores)
    monkeypatch.setattr("polymax.nn.latent_arcs._AT_ONCE", 3 * N * HIDDEN)
    (parts,) = torch.autograd.grad(found.loss(x, None, loss_fn, scores=scores).loss.sum(), scores)
    close(parts, whole, "tokens are taken few at a time where there are many")


def test_projections_of_long_sentences_end():
    """Warnings are errors: SPIGOT's points are near the hull, where the last structures have next to no weight."""
    torch.manual_seed(0)
    found = LatentDependency(64, 64, "spigot", composition="gcn")
    x = torch.randn(8, 40, 64)
    found.loss(x, None, lambda e, rows: e.square().sum(-1)).loss.mean().backward()
    assert found.scorer.head.weight.grad.abs().max() > 0
