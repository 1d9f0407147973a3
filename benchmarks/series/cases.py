"""Fitting barycenters and classifying by the nearest, beside tslearn: same start, gamma and number of iterations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.machine import Others
from benchmarks.record import OK, PARITY_FAILED, Absent, Bar, Row
from benchmarks.series.peers import OURS, TSLEARN_TOLERANCE, tslearn
from benchmarks.series.problem import Learner, Problem, made, read
from benchmarks.structures.oracles import soft_dtw
from benchmarks.timing import EFFORTS, QUICK
from benchmarks.workload import Case, judged
from polymax import squared_euclidean
from polymax_recipes.series.model import TOLERANCE as SAME

FIT, PREDICT, WHOLE = "fit", "predict", "fit+predict"
# how many times as long tslearn should take, with the same tolerance and at most as many iterations
BEHIND = 5.0
TOLERANCE = 1e-4
# test series whose discrepancies are compared with the oracle's
COMPARED = 8


@dataclass(frozen=True)
class SeriesCase(Case):
    """Series of a training and a test: how long it takes to learn and to classify, and how often that is right."""

    name: str
    problem: Callable[[], Problem]

    def runs_on(self, device: str) -> bool:
        return device == "cpu"

    def absent(self, device: str) -> list[Absent]:
        found = _peers()
        return [Absent("tslearn", found)] if isinstance(found, str) else []

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        problem = replace(self.problem(), iterations=2) if quick else self.problem()
        peers = _peers()
        learners = [OURS, *(() if isinstance(peers, str) else peers)]
        prepared = {learner.name: learner.prepare(problem) for learner in learners}
        centroids = {learner.name: learner.fit(problem, prepared[learner.name]) for learner in learners}
        effort = QUICK if quick else EFFORTS[device]
        fits = {c.name: [_fit(c, problem, prepared[c.name])] for c in learners}
        predictions = {c.name: [_predict(c, problem, prepared[c.name], centroids[c.name])] for c in learners}
        others = Others()
        with others.watched():
            times = {FIT: timing.wall(fits, effort), PREDICT: timing.wall(predictions, effort)}
        times[WHOLE] = {name: _both(times[FIT][name], times[PREDICT][name]) for name in fits}
        for learner in learners:
            known = _checked(problem, learner, prepared[learner.name], centroids[learner.name])
            for timed, found in times.items():
                row = Row(self.name, timed, learner.name, problem.shape, learner.dtype, **known, others=others.share)
                yield _judged(_timed(row, found) if row.status == OK else row)


def from_files(files: Sequence[Path]) -> list[Case]:
    """A case for every two files, a training and a test."""
    if len(files) % 2:
        raise ValueError(f"series come in pairs of files, TRAIN TEST TRAIN TEST ...; got {len(files)}")
    pairs = list(zip(files[::2], files[1::2]))
    return [SeriesCase(_name(train), partial(read, train, test)) for train, test in pairs]


def _name(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".ts").removesuffix("_TRAIN")


def _peers() -> tuple[Learner, ...] | str:
    try:
        return tslearn(SAME), tslearn(TSLEARN_TOLERANCE)
    # as with any peer: it may be missing, or fail to load in its own way
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def _fit(learner: Learner, problem: Problem, prepared: Any) -> timing.Task:
    return lambda: learner.fit(problem, prepared)


def _predict(learner: Learner, problem: Problem, prepared: Any, centroids: Any) -> timing.Task:
    return lambda: learner.distances(problem, prepared, centroids)


def _checked(problem: Problem, learner: Learner, prepared: Any, centroids: Any) -> dict[str, Any]:
    """Accuracy, what was minimised, and whether discrepancies are those of the oracle."""
    means = _tensor(centroids)
    found = learner.distances(problem, prepared, centroids).double()
    expected = torch.stack([_discrepancies(series.values, means, problem.gamma) for series in problem.test[:COMPARED]])
    error = float((found[:COMPARED] - expected).abs().max() / expected.abs().max())
    objective = torch.stack([_own(problem, k, means) for k in range(len(problem.train))]).mean()
    note = f"accuracy {problem.right(found):.4f}, objective {objective:.4f}"
    known = {"parity": {"forward": error, "tolerance": TOLERANCE}, "note": note}
    return known if error <= TOLERANCE else known | {"status": PARITY_FAILED, "note": f"error {error:.0e}"}


def _own(problem: Problem, row: int, means: Tensor) -> Tensor:
    """The discrepancy of a training series to the centroid of its class."""
    series = problem.train[row]
    own = problem.labels.index(series.label or "")
    return _discrepancies(series.values, means[own : own + 1], problem.gamma)[0]


def _discrepancies(values: Tensor, means: Tensor, gamma: float) -> Tensor:
    """Of a series to centroids, by the oracle in float64: soft_dtw of gamma is gamma soft_dtw of cost / gamma."""
    return gamma * soft_dtw(squared_euclidean(means, values.double()) / gamma)


def _tensor(centroids: Any) -> Tensor:
    if isinstance(centroids, torch.nn.Module):
        return centroids.get_parameter("centroids").detach()[:, 0].double()
    return torch.stack([torch.as_tensor(each) for each in centroids]).double()


def _both(first: timing.Times, second: timing.Times) -> timing.Times:
    return timing.Times(first.median_us + second.median_us, first.spread_us + second.spread_us)


def _timed(row: Row, times: dict[str, timing.Times]) -> Row:
    own, base = times[row.competitor], times[OURS.name]
    ratio = own.median_us / base.median_us
    return replace(row, eager_us=own.median_us, eager_spread_us=own.spread_us, ratio=ratio, ratio_of="eager_us")


def _judged(row: Row) -> Row:
    # by its own tolerance tslearn stops early, farther from the least discrepancy
    barred = row.competitor == "tslearn" and row.timed == WHOLE
    return replace(row, **judged(Bar(BEHIND, least=True), {"ratio": row.ratio})) if barred else row


SERIES: list[Case] = [SeriesCase("made", made)]
