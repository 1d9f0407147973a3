"""How many instances a second, from one alone to a large batch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.baselines import Competitor
from benchmarks.record import Absent, Row
from benchmarks.workload import Case, FunctionCase, Problems


@dataclass(frozen=True)
class ThroughputCase(Case):
    """A function on batches of different sizes; instances are along the first dimension."""

    name: str
    ours: Competitor
    problems: Problems

    def runs_on(self, device: str) -> bool:
        return bool(self.problems.sizes.get(device))

    def absent(self, device: str) -> list[Absent]:
        return []

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        for row in FunctionCase(self.name, self.ours, self.problems).rows(device, quick):
            # who is not timed has no rate
            yield replace(row, per_second=1e6 * row.shape[0] / row.eager_us) if row.eager_us else row
