"""Losses of groups: sums over combinations, draws of each, and sentences that are judged together, by enumeration."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.estimators.policies import Policy
from polymax.nn import LatentDependency
from polymax.structures.base import tensors

SIZE, HIDDEN = 3, 4
TREES = pm.SpanningTree()


def judged(values, rows):
    """A loss that is no sum over members, nor symmetric in them, and another one for each group."""
    values = values.flatten(2)
    place = torch.arange(1, values.shape[1] + 1, dtype=values.dtype, device=values.device).unsqueeze(-1)
    return (values * place).prod(1).add(values[:, 0]).add(1 + rows.unsqueeze(-1)).square().mean(-1)


def first_of(y, at):
    return tensors(y)[0].flatten(1) + at.unsqueeze(-1)


def enumerated(listed, weigh):
    """sum over combinations of the product of p, weighed, times the loss; listed (values, p) of each member."""
    total = 0.0
    for chosen in product(*(range(len(p)) for _, p in listed)):
        p = torch.stack([p[k] for (_, p), k in zip(listed, chosen)]).prod()
        total = total + weigh(p, torch.stack([values[k] for (values, _), k in zip(listed, chosen)]))
    return total


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("smooth", "shapes"),
    [(pm.LocalMax(pm.Simplex(), pm.Gini()), [(4,)]), (pm.SparseMap(pm.Chain()), [(3, 2), (2, 2, 2)])],
    ids=["simplex", "chain"],
)
def test_sums_are_over_the_product(smooth, shapes, size):
    torch.manual_seed(0)
    scores = [torch.randn(2, size, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    loss = pm.JointLoss(first_of, judged)
    found = pm.SparseExpectation(smooth, reduction="none")(loss, *scores)
    expected = []
    for b in range(2):
        listed = []
        for i in range(size):
            y, p = smooth.distribution(*(x[b, i] for x in scores)).support()
            listed.append((first_of(y, torch.full((len(p),), b * size + i)), p))
        row = torch.tensor([b])
        expected.append(enumerated(listed, lambda p, v, row=row: p * judged(v.unsqueeze(0), row)[0]))
    close(found, torch.stack(expected), "E[L] = sum over combinations")
    slopes = (torch.autograd.grad(v.sum(), scores) for v in (found, torch.stack(expected)))
    for actual, right in zip(*slopes, strict=True):
        close(actual, right, "the product of probabilities has all their gradients")


@dataclass(frozen=True, eq=False)
class Dealt(Policy):
    """What it draws is known ahead, (samples, *batch, ...), as probable as a smoothing says."""

    smooth: pm.Marginals
    y: torch.Tensor

    @property
    def structure(self):
        return self.smooth.structure

    def actions(self, *scores):
        found = self.smooth.distribution(*scores)
        found.sample = lambda shape, generator=None: self.y
        return found

    def chosen(self, action):
        return action

    def with_lengths(self, lengths):
        return replace(self, smooth=self.smooth.with_lengths(lengths))


class Middle(torch.nn.Module):
    """What a learned baseline may be: a mean of what it sees, and a parameter."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, seen):
        return seen.flatten(1).sum(-1) + self.shift


BASELINES = [None, pm.SelfCritical(), pm.MovingAverage(), pm.Learned(Middle())]


def all_trees(n, width):
    """All trees over n tokens as arcs (count, width + 1, width + 1)."""
    y = TREES.vertices((n + 1, n + 1)).double()
    return torch.nn.functional.pad(y, (0, width - n, 0, width - n))


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda b: type(b).__name__)
def test_draws_of_pairs_are_unbiased(baseline):
    """A group for each combination, weighed by its probability, is the sum over all draws."""
    torch.manual_seed(0)
    sizes = (3, 4)
    x = torch.randn(2, 4, SIZE, dtype=torch.float64)
    scores = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    firsts, seconds = (all_trees(n, 4) for n in sizes)
    pairs = torch.cartesian_prod(torch.arange(len(firsts)), torch.arange(len(seconds)))
    y, count = torch.stack([firsts[pairs[:, 0]], seconds[pairs[:, 1]]], 1), len(pairs)
    # the same draw twice is the same mean
    method = pm.ScoreFunction(Dealt(pm.Marginals(TREES), y.expand(2, *y.shape)), baseline, samples=2)
    found = LatentDependency(SIZE, HIDDEN, method).double()
    every, lengths = x.repeat(count, 1, 1).requires_grad_(), torch.tensor(sizes).repeat(count)
    spread = scores.repeat(count, 1, 1)
    losses = found.loss(every, lengths, lambda e, rows: judged(e, 0 * rows), group=2, scores=spread).loss
    p = [torch.softmax((t * s).flatten(1).sum(-1), 0) for t, s in zip((firsts, seconds), scores)]
    joint = p[0][pairs[:, 0]] * p[1][pairs[:, 1]]
    of = [*found.composition.parameters(), scores]
    estimated = torch.autograd.grad((joint.detach() * losses).sum(), of, retain_graph=True)
    heads = TREES.decode(y.flatten(0, 1))
    encodings = found.encode(every, lengths, heads=heads).unflatten(0, (-1, 2))
    truth = (joint * judged(encodings, torch.zeros(count, dtype=torch.long))).sum()
    close((joint * losses).sum().detach(), truth.detach(), "the mean of draws is the expected loss")
    for actual, right in zip(estimated, torch.autograd.grad(truth, of), strict=True):
        close(actual, right, "the mean of draws is the gradient")


LENGTHS = [3, 4, 4, 1, 1, 1, 2, 3]


@pytest.mark.parametrize("composition", ["tree-lstm", "gcn"])
@pytest.mark.parametrize("smooth", [pm.SparseMap(TREES, gamma=3.0), pm.Marginals(TREES)], ids=["support", "all"])
def test_pairs_of_sentences_are_summed_over_both_trees(smooth, composition, device):
    torch.manual_seed(0)
    found = LatentDependency(SIZE, HIDDEN, pm.SparseExpectation(smooth), composition=composition).double()
    found.to(device)
    x = torch.randn(len(LENGTHS), 4, SIZE, dtype=torch.float64).to(device)
    scores = torch.randn(len(LENGTHS), 5, 5, dtype=torch.float64).to(device).requires_grad_()
    counts = []

    def loss_fn(encodings, rows):
        counts.append(rows.bincount())
        return judged(encodings, rows)

    losses = found.loss(x, torch.tensor(LENGTHS, device=device), loss_fn, group=2, scores=scores).loss
    listed, sizes = [], []
    for i, n in enumerate(LENGTHS):
        alone = scores[i : i + 1, : n + 1, : n + 1]
        y, p = (t[0] for t in found.distribution(x[i : i + 1, :n], scores=alone).support())
        sizes.append(len(p))
        listed.append((found.encode(x[i, :n].expand(len(p), -1, -1), heads=TREES.decode(y)), p))
    expected = [
        torch.einsum(
            "a,b,ab->",
            p,
            q,
            judged(_crossed(u, v), torch.full((len(p) * len(q),), k, device=device)).reshape(len(p), len(q)),
        )
        for k, ((u, p), (v, q)) in enumerate(zip(listed[::2], listed[1::2], strict=True))
    ]
    assert max(sizes) > 2
    equal(counts[0].cpu(), torch.tensor(sizes).reshape(-1, 2).prod(1), "each combination is judged once")
    close(losses, torch.stack(expected), "E[L] of pairs")
    of = [*found.composition.parameters(), scores]
    slopes = (torch.autograd.grad(torch.as_tensor(sum(v)), of) for v in (losses.unbind(), expected))
    for actual, right in zip(*slopes, strict=True):
        close(actual, right, "dE of pairs, in the trees and in the composition")


def _crossed(u, v):
    """(a b, 2, d), from encodings (a, d) and (b, d)."""
    return torch.stack([u.repeat_interleave(len(v), 0), v.repeat(len(u), 1)], 1)


@pytest.mark.parametrize("method", ["structured-attention", "spigot", "score-function", "sparse-expectation"])
def test_groups_of_one_are_single_sentences(method):
    torch.manual_seed(0)
    found, x = LatentDependency(SIZE, HIDDEN, method), torch.randn(5, 4, SIZE)
    lengths = torch.tensor([4, 0, 1, 3, 2])

    def loss_of(group):
        def loss_fn(encodings, rows):
            return judged(encodings if group else encodings.unsqueeze(1), rows)

        return found.loss(x, lengths, loss_fn, group=group, generator=torch.Generator().manual_seed(1))

    single, groups = loss_of(None), loss_of(1)
    equal(single.value, groups.value, "to the bit")
    equal(*(torch.autograd.grad(v.loss.sum(), found.scorer.head.weight)[0] for v in (single, groups)), "to the bit")


def test_steps_on_draws_of_groups():
    scores = torch.randn(3, 2, 4, requires_grad=True)
    loss = pm.JointLoss(first_of, judged)
    estimator = pm.Clipped(pm.ScoreFunction(pm.Simplex(), pm.LeaveOneOut(), samples=4))
    batch = estimator.collect(loss, scores, generator=torch.Generator().manual_seed(0))
    same = estimator(loss, scores, generator=torch.Generator().manual_seed(0))
    assert batch.draws.log_probs.shape == (4, 3)
    equal(batch.ratios(scores), torch.ones(4, 3), "as probable as when they were drawn")
    close(*(torch.autograd.grad(v, scores)[0] for v in (batch.surrogate(scores), same)), "the estimator's gradient")


@pytest.mark.parametrize("estimator", [pm.SparseExpectation(pm.Simplex()), pm.ScoreFunction(pm.Simplex())])
def test_a_group_without_a_structure_has_no_loss(estimator):
    scores = torch.zeros(2, 2, 3)
    scores[0, 1] = -torch.inf
    estimator = type(estimator)(pm.Simplex(), reduction="none")
    losses = estimator(pm.JointLoss(lambda y, at: y, lambda y, at: y.sum((1, 2))), scores)
    assert losses.tolist() == [0, 2]


@pytest.mark.parametrize("estimator", [pm.SparseExpectation(pm.Simplex()), pm.ScoreFunction(pm.Simplex())])
def test_what_does_not_fit_is_refused(estimator):
    with pytest.raises(ValueError, match="for a JointLoss; got a single instance"):
        estimator(pm.JointLoss(first_of, judged), torch.zeros(3))
    with pytest.raises(ValueError, match=r"each must return \(6, ...\), values of each structure; got \(3,\)"):
        estimator(pm.JointLoss(lambda y, at: torch.zeros(3), judged), torch.eye(6).reshape(3, 2, 6) * 9)
    with pytest.raises(ValueError, match=r"group must divide the number of sentences, 3; got 2"):
        LatentDependency(SIZE, HIDDEN, "best").loss(torch.zeros(3, 2, SIZE), None, judged, group=2)
    with pytest.raises(ValueError, match="group must be a positive integer; got 0"):
        LatentDependency(SIZE, HIDDEN, "best").loss(torch.zeros(3, 2, SIZE), None, judged, group=0)
