"""Learn a latent structure from a downstream loss alone: every way to train through
a discrete choice, side by side.

A network reads x and scores latent structures y; a second one predicts t from x and
y. The latent y is a category, a chain of states or a dependency tree; its true
value is known, but only the first two methods look at it. Printed: the loss on new
data with the best structure, how often its parts are the true ones, the time of a
step, and, early in training, the bias and the spread of one gradient over the
length of the exact one. Figures are medians over seeds. Run: python
examples/07_latent_estimators.py --picture latent.png
"""

import argparse
import itertools
import math
import time
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

import polymax as pm

# steps are short: threads would only wait for each other
torch.set_num_threads(1)
BATCH, TESTED, DRAWS, WIDTH, EARLY, EACH = 32, 256, 64, 12, 20, 20


class Category:
    """t = w_k x, k the category of x: four clusters, four slopes."""

    structure, states = pm.Simplex(), 4

    def __init__(self) -> None:
        self.centers, self.slopes = 2 * torch.randn(4, WIDTH), torch.randn(4, WIDTH)
        self.reader = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 4)
        )
        self.writer = nn.Linear(WIDTH, 4)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        gold = torch.randint(4, (count,))
        x = self.centers[gold] + torch.randn(count, WIDTH)
        return x, gold, (self.slopes[gold] * x).sum(-1)

    def scores(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.reader(x),)

    def predict(self, x: Tensor, y: Tensor) -> Tensor:
        return (y * self.writer(x)).sum(-1)


class Tags(Category):
    """t_i = w_k x_i, k the state of x_i; states tend to follow each other in a
    circle.
    """

    structure, states = pm.Chain(), 3

    def __init__(self) -> None:
        self.centers, self.slopes = torch.randn(3, WIDTH), torch.randn(3, WIDTH)
        self.reader = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 3)
        )
        self.reader.transition = nn.Parameter(torch.zeros(3, 3))
        self.writer = nn.Linear(WIDTH, 3)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        steps = (torch.rand(count, 4) < 0.9).long()
        gold = torch.cat([torch.randint(3, (count, 1)), steps], 1).cumsum(1) % 3
        x = self.centers[gold] + torch.randn(count, 5, WIDTH)
        return x, gold, (self.slopes[gold] * x).sum(-1)

    def scores(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.reader(x), self.reader.transition

    def predict(self, x: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
        return (y[0] * self.writer(x)).sum(-1)


class Heads(Category):
    """t_m = V x_h, h the head of token m: a token's features say which head it
    wants.
    """

    structure = pm.SpanningTree()

    def __init__(self) -> None:
        self.wish, self.meaning = (
            torch.randn(WIDTH, WIDTH) / 2,
            torch.randn(WIDTH, 3),
        )
        self.reader, self.writer = (
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.Linear(WIDTH, 3),
        )

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(count, 5, WIDTH)
        gold = self.structure.decode(self.structure.map(x @ self.wish @ x.mT))
        heads = gold.unsqueeze(-1).expand(-1, -1, WIDTH)
        return x, gold, x.gather(1, heads) @ self.meaning

    def scores(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.reader(x) @ x.mT,)

    def predict(self, x: Tensor, y: Tensor) -> Tensor:
        return y[..., 1:].mT @ self.writer(x)


def exact(structure, loss_fn, *scores):
    """The expected loss under the Gibbs distribution, by enumeration."""
    many = structure.vertices(tuple(scores[0].shape[1:]))
    listed = many if isinstance(many, tuple) else (many,)
    count, batch = len(listed[0]), len(scores[0])
    totals = structure.score(structure.complete(listed[0].unsqueeze(1)), *scores).T
    each = [t.repeat(batch, *[1] * (t.dim() - 1)) for t in listed]
    losses = loss_fn(
        each[0] if len(each) == 1 else each,
        torch.arange(batch).repeat_interleave(count),
    )
    return (torch.softmax(totals, -1) * losses.reshape(batch, count)).sum(-1).mean()


def one(estimator):
    """An estimator that returns a vertex, or a point of the hull, for each
    instance.
    """
    return lambda loss_fn, *scores: loss_fn(
        estimator(*scores), torch.arange(len(scores[0]))
    ).mean()


def methods(structure) -> dict:
    """Name -> a function from loss_fn and scores to a loss for backward."""
    gibbs, score = pm.Marginals(structure), partial(pm.ScoreFunction, structure)
    return {
        "pretrained parser": one(pm.HardMax(structure)),
        "multi-task": one(pm.StraightThrough(structure, through=gibbs)),
        "exact sum": partial(exact, structure),
        "REINFORCE": score(),
        "  moving average": score(pm.MovingAverage()),
        "  self-critical": score(pm.SelfCritical()),
        "  leave-one-out, 4": score(pm.LeaveOneOut(), samples=4),
        "  clipped, 3 steps": pm.Clipped(score(pm.Normalized(pm.SelfCritical()))),
        "straight-through": one(pm.StraightThrough(structure)),
        "  via marginals": one(pm.StraightThrough(structure, through=gibbs)),
        "SPIGOT": one(pm.Spigot(structure)),
        "perturb, via marginals": one(pm.PerturbAndMap(structure, through=gibbs)),
        "implicit MLE": one(pm.ImplicitMLE(structure)),
        "interpolation": one(pm.Interpolation(structure)),
        "marginals": one(gibbs),
        "SparseMAP": one(pm.SparseMap(structure)),
        "relaxed Gumbel": one(pm.Relaxed(gibbs)),
        "perturbed mean, 8": one(pm.Perturbed(structure, samples=8)),
        "sparse expectation": pm.SparseExpectation(pm.SparseMap(structure)),
    }


def losses(problem, x: Tensor, t: Tensor):
    """The squared error of structures y for the instances `at`."""
    return lambda y, at: (
        (problem.predict(x[at], y) - t[at]).square().reshape(len(at), -1).mean(1)
    )


def tested(problem, x: Tensor, gold: Tensor, t: Tensor) -> tuple[float, float]:
    """The loss with the best structures, and the share of their parts that are
    right, up to names of states.
    """
    with torch.no_grad():
        y = problem.structure.map(*problem.scores(x))
        loss = losses(problem, x, t)(y, torch.arange(len(x))).mean()
    found = problem.structure.decode(y)
    if isinstance(problem, Heads):
        return loss.item(), (found == gold).float().mean().item()
    names = itertools.permutations(range(problem.states))
    return loss.item(), max(
        (torch.tensor(name)[found] == gold).float().mean().item() for name in names
    )


def trained(kind: type, name: str, steps: int, seed: int):
    """The problem after training by a method, the losses on the way, and loss,
    accuracy, milliseconds per step.
    """
    torch.manual_seed(seed)
    problem = kind()
    data, test = [problem.draw(BATCH) for _ in range(steps)], problem.draw(TESTED)
    method = methods(problem.structure)[name]
    optimizer = torch.optim.Adam(
        [*problem.reader.parameters(), *problem.writer.parameters()], lr=0.05
    )

    def update(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    curve, spent = [], 0.0
    for step, (x, gold, t) in enumerate(data):
        start = time.perf_counter()
        loss_fn, scores = losses(problem, x, t), problem.scores(x)
        if isinstance(method, pm.Clipped):
            batch = method.collect(loss_fn, *scores)
            for k in range(3):
                update(
                    batch.surrogate(*problem.scores(x))
                    + (batch.loss if k == 0 else 0)
                )
        elif name == "pretrained parser" and step < steps // 2:
            update(pm.crf_loss(problem.structure, scores, gold))
        elif name == "multi-task":
            update(
                method(loss_fn, *scores)
                + pm.crf_loss(problem.structure, scores, gold)
            )
        else:
            update(method(loss_fn, *scores))
        spent += time.perf_counter() - start
        if step % EACH == EACH - 1:
            curve.append(tested(problem, *test)[0])
    return problem, curve, (*tested(problem, *test), 1e3 * spent / steps)


def compared(problem, name: str) -> tuple[float, float, float]:
    """Bias and spread of the gradient in the scores over the length of the exact
    one, and the cosine with it.
    """
    torch.manual_seed(1)
    x, _, t = problem.draw(BATCH)
    scores = [s.detach().requires_grad_() for s in problem.scores(x)]
    known = methods(problem.structure)

    def gradient(method) -> Tensor:
        found = torch.autograd.grad(method(losses(problem, x, t), *scores), scores)
        return torch.cat([g.flatten() for g in found])

    right = gradient(known["exact sum"])
    draws = torch.stack([gradient(known[name]) for _ in range(DRAWS)])
    mean = draws.mean(0)
    spread = (draws - mean).square().sum(-1).mean().sqrt() / right.norm()
    return (
        ((mean - right).norm() / right.norm()).item(),
        spread.item(),
        torch.cosine_similarity(mean, right, 0).item(),
    )


def main(steps: int, seeds: int, picture: str | None) -> None:
    results = {}
    for kind in (Category, Tags, Heads):
        early, _, _ = trained(kind, "exact sum", EARLY, seed=0)
        print(
            f"\n{kind.__doc__}\n{'method':24s}  loss  right  ms/step   bias",
            " spread  cosine",
        )
        for name in methods(kind.structure):
            runs = [trained(kind, name, steps, seed)[1:] for seed in range(seeds)]
            loss, right, ms = map(median, zip(*(figures for _, figures in runs)))
            line = f"{name:24s} {loss:5.2f}  {right:5.0%}  {ms:7.2f}"
            blind = name not in ("pretrained parser", "multi-task")
            bias, spread, cosine = (
                compared(early, name) if blind else (math.nan,) * 3
            )
            print(
                line
                + (f"  {bias:5.2f}  {spread:6.2f}  {cosine:6.2f}" if blind else ""),
                flush=True,
            )
            results[kind, name] = (
                [median(values) for values in zip(*(curve for curve, _ in runs))],
                spread,
                cosine,
            )
    if picture:
        draw(results, picture)


def draw(results: dict, picture: str) -> None:
    """Learning curves above, and below how far one gradient is spread and where its
    mean points.
    """
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(kind for kind, _ in results))
    figure, axes = plt.subplots(
        2, len(kinds), figsize=(6 * len(kinds), 9), layout="constrained"
    )
    for (above, below), kind in zip(axes.T, kinds):
        own = {
            name.strip(): found for (k, name), found in results.items() if k is kind
        }
        for color, (name, (curve, spread, cosine)) in zip(
            plt.get_cmap("tab20").colors, own.items()
        ):
            steps = range(EACH, EACH * len(curve) + 1, EACH)
            above.plot(steps, curve, color=color, label=name)
            below.plot(max(spread, 0.01), cosine, "o", color=color)
            if not math.isnan(cosine):
                below.annotate(name, (max(spread, 0.01), cosine), fontsize=7)
        above.set(
            title=f"latent {kind.__name__.lower()}",
            xlabel="step",
            ylabel="loss on new data",
            yscale="log",
        )
        below.set(
            xlabel="spread of one gradient",
            ylabel="cosine of its mean with the exact one",
            xscale="log",
        )
    axes[0, -1].legend(fontsize=7)
    figure.savefig(picture, dpi=80)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--picture")
main(**vars(parser.parse_args()))
