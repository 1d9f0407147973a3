"""Who learns: polymax, all classes at once in float32, and tslearn, class by class in float64."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.series.problem import Learner, Problem
from polymax_recipes.series.model import TOLERANCE, Centroids
from polymax_recipes.training.batches import sorted_batches

# what tslearn stops at unless it is told otherwise
TSLEARN_TOLERANCE = 1e-3


def _fit(problem: Problem, nothing: None) -> Centroids:
    model, data = problem.started(), problem.encoded[0]
    batch = data[torch.arange(len(data.labels))]
    optimizer = model.optimizer(0.0, 0.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        total, count = model.loss(batch)["loss"]
        loss = total / count
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return model.eval()


@torch.no_grad()
def _distances(problem: Problem, nothing: None, model: Centroids) -> Tensor:
    data = problem.encoded[1]
    batches = sorted_batches(data.sizes, problem.options.batch)
    found = torch.cat([model.distances(data[rows]).amin(2) for rows in batches])
    return found[torch.cat(batches).argsort()]


OURS = Learner("polymax", "float32", lambda problem: None, _fit, _distances)


def tslearn(tolerance: float) -> Learner:
    """It stops where no entry of the gradient, or no relative change of the value, exceeds the tolerance."""
    barycenter = import_module("tslearn.barycenters").softdtw_barycenter
    distances = import_module("tslearn.metrics").cdist_soft_dtw
    dataset = import_module("tslearn.utils").to_time_series_dataset

    def prepare(problem: Problem) -> Any:
        classes = [[s.values.numpy() for s in problem.train if s.label == label] for label in problem.labels]
        return classes, dataset([series.values.numpy() for series in problem.test])

    def fit(problem: Problem, prepared: Any) -> Any:
        means = problem.started().centroids.detach()[:, 0].double().numpy()
        learn = partial(barycenter, gamma=problem.gamma, max_iter=problem.iterations, tol=tolerance)
        return [learn(series, init=mean) for series, mean in zip(prepared[0], means, strict=True)]

    def predict(problem: Problem, prepared: Any, centroids: Any) -> Tensor:
        return torch.as_tensor(distances(prepared[1], dataset(centroids), gamma=problem.gamma))

    name = "tslearn" if tolerance == TOLERANCE else f"tslearn, tol={tolerance:g}"
    return Learner(name, "float64", prepare, fit, predict)
