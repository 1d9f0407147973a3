"""Centroids of classes under dynamic time warping; a series gets the class of the nearest centroid."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

import polymax as pm
from polymax.warping import resample
from polymax_recipes.series.data import Batch, LabelledSeries, Shape
from polymax_recipes.series.warp import discrepancy
from polymax_recipes.training.task import Model

# rounds of Lloyd's algorithm, which splits a class before its centroids are learned
ROUNDS = 10
# relative to the distance of series from the mean of their class: smaller changes are rounding of float32
TOLERANCE = 1e-7
# cells that the CPU compares in one call, so that they stay in its caches
CELLS = 1 << 20


class Classes(Model):
    """A model that classifies a series by its discrepancies to stored series of each class."""

    @abstractmethod
    def distances(self, batch: Batch) -> Tensor:
        """Return the discrepancies (b, classes, k) of series to the stored series of each class."""

    @abstractmethod
    def own(self, batch: Batch) -> Tensor:
        """Return the discrepancies (b,) of series in training to their own class."""

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the discrepancies of series to their own class; in evaluation also the number of right classes.

        A series of an unknown class counts with its least discrepancy to any class.
        """
        count = batch.labels.new_full((), len(batch.labels))
        if self.training:
            # in float64: a line search compares close values
            return {"loss": (self.own(batch).double().sum(), count)}
        nearest = self.distances(batch).amin(2)
        numbers = torch.arange(nearest.shape[1], device=nearest.device)
        labels = batch.labels.unsqueeze(1)
        own = torch.where((labels == numbers) | (labels < 0), nearest, torch.inf).amin(1)
        right = (nearest.argmin(1) == batch.labels).sum()
        return {"loss": (own.double().sum(), count), "accuracy": (right, count)}


class Nearest(Classes):
    """The nearest neighbour among all series of the training; there are no parameters to learn.

    Shapes: values (count, longest, d), 0 after the end of a series; lengths and labels (count,)

    See: Bagnall et al. 2017, The great time series classification bake off, Section 3.
    """

    learns = False
    values: Tensor
    lengths: Tensor
    labels: Tensor

    def __init__(self, options: Any, shape: Shape, count: int, longest: int) -> None:
        super().__init__()
        self.options = options
        self.classes = len(shape.sizes)
        self.register_buffer("values", torch.zeros(count, longest, shape.dimensions))
        self.register_buffer("lengths", torch.zeros(count, dtype=torch.long))
        self.register_buffer("labels", torch.zeros(count, dtype=torch.long))

    def start(self, data: LabelledSeries) -> None:  # type: ignore[override]
        """Keep all series of the training."""
        self.values.copy_(torch.nn.utils.rnn.pad_sequence(data.values, batch_first=True))
        self.lengths.copy_(data.sizes)
        self.labels.copy_(data.labels)

    def distances(self, batch: Batch) -> Tensor:
        """Return the discrepancies (b, classes, 1) of series to the nearest stored series of each class."""
        pairs = (batch.lengths, self.lengths)
        every = pm.pairwise(batch.values, self.values, self._discrepancy, lengths=pairs)
        found = every.new_full((len(every), self.classes), torch.inf)
        return found.scatter_reduce(1, self.labels.expand_as(every), every, "amin").unsqueeze(2)

    def own(self, batch: Batch) -> Tensor:
        # the distance of a series to itself is 0
        return batch.values.new_zeros(len(batch.labels))

    def _discrepancy(self, cost: Tensor, lengths: Any) -> Tensor:
        return discrepancy(self.options.chosen, cost, self.options.gamma, lengths, self.options.band or None)


class Centroids(Classes):
    """Learned series x, several for each class, near the series y of their class.

        minimize over x  sum over classes c and y in c of  min over k of  discrepancy(x_ck, y)

    The centroids of a class have as many points as its shape says; entries after these are 0 and unused.

    Shapes: centroids (classes, k, largest size, d); sizes (classes,)

    See: Cuturi and Blondel 2017, sections 4.2 and 4.4.
    """

    sizes: Tensor

    def __init__(self, options: Any, shape: Shape) -> None:
        super().__init__()
        self.options = options
        space = (len(shape.sizes), options.centroids, max(shape.sizes), shape.dimensions)
        self.centroids = nn.Parameter(torch.zeros(space))
        # not saved, since it follows from the vocabularies
        self.register_buffer("sizes", torch.tensor(shape.sizes), persistent=False)
        self.scale = 0.0

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """L-BFGS takes all series at once."""
        return self.options.optimizer == "lbfgs"

    def optimizer(self, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        if not self.whole:
            return super().optimizer(lr, weight_decay)
        most = self.options.iterations
        return torch.optim.LBFGS(
            self.parameters(),
            max_iter=most,
            max_eval=4 * most,
            tolerance_change=TOLERANCE * self.scale,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

    @torch.no_grad()
    def start(self, data: LabelledSeries) -> None:  # type: ignore[override]
        """Means of the series of a class, or of groups of them, each stretched to the size of its centroids."""
        apart = 0.0
        for c, size in enumerate(self.sizes.tolist()):
            rows = torch.nonzero(data.labels == c).flatten().tolist()
            points = torch.stack([resample(data.values[row], size) for row in rows])
            self.centroids[c, :, :size] = grouped_means(points, self.centroids.shape[1])
            apart += float((points - points.mean(0)).square().sum())
        self.scale = apart / len(data.labels)

    def points(self, label: int) -> Tensor:
        """The centroids of a class without unused entries, (k, size, d)."""
        return self.centroids[label, :, : int(self.sizes[label])]

    def distances(self, batch: Batch) -> Tensor:
        """The distance of each series to every centroid, (b, classes, k)."""
        rows, points, dimensions = batch.values.shape
        cells = self.centroids.numel() // dimensions * points
        together = max(1, CELLS // cells) if batch.values.device.type == "cpu" else rows
        parts = [Batch(*part) for part in zip(*(tensor.split(together) for tensor in batch))]
        every, sizes = self.centroids.unsqueeze(0), self.sizes[:, None]
        return torch.cat([self._from(every.expand(len(p.labels), -1, -1, -1, -1), sizes, p) for p in parts])

    def _from(self, centroids: Tensor, sizes: Tensor, batch: Batch) -> Tensor:
        """The distances of each series to its row of centroids of some sizes: (b, *any, size, d) to (b, *any)."""
        shape = centroids.shape[:-2]
        alone = [1] * (len(shape) - 1)
        values = batch.values.reshape(len(batch.values), *alone, *batch.values.shape[1:])
        lengths = batch.lengths.reshape(-1, *alone).expand(shape)
        cost = pm.squared_euclidean(centroids, values)
        return discrepancy(self.options.chosen, cost, self.options.gamma, (sizes.expand(shape), lengths))

    def own(self, batch: Batch) -> Tensor:
        return self._from(self.centroids[batch.labels], self.sizes[batch.labels, None], batch).amin(1)


def grouped_means(points: Tensor, k: int) -> Tensor:
    """The means of k groups of points, by Lloyd's algorithm started from points far from each other; for k = 1 the mean
    of all.

    Shapes: points (count, size, d); result (k, size, d)

    Example:
        >>> grouped_means(torch.tensor([0.0, 1.0, 9.0]).view(3, 1, 1), 2).flatten()
        tensor([0.5000, 9.0000])
    """
    flat = points.flatten(1)
    means = flat.mean(0, keepdim=True)
    if k > 1:
        means = flat[torch.cdist(flat, means).argmin(0)]
        while len(means) < k:
            # the point farthest from all chosen ones
            means = torch.cat([means, flat[torch.cdist(flat, means).amin(1).argmax()].unsqueeze(0)])
        for _ in range(ROUNDS):
            chosen = torch.cdist(flat, means).argmin(1)
            # a group that is empty keeps its mean
            means = torch.stack([flat[chosen == g].mean(0) if (chosen == g).any() else means[g] for g in range(k)])
    return means.unflatten(1, points.shape[1:])
