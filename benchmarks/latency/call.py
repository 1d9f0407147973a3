"""The price of a small call, beside that of torch.softmax on eight rows of 32 scores."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import torch

from benchmarks import timing
from benchmarks.baselines import Competitor, Peer, Tensors
from benchmarks.machine import Others
from benchmarks.record import OK, Absent, Row
from benchmarks.simplex.peers import SOFTMAX
from benchmarks.timing import QUICK, Effort
from benchmarks.workload import BOTH, FORWARD, Bars, Case, Shape, Signature, Size, gate, judged, tasks_of, times_of

DEVICES = ("cpu", "cuda")
ROWS: Shape = (8, 32)
ONE_TENSOR = Signature()
# calls in a row. The queue of a GPU holds about a thousand launches, and none of these calls makes more than thirty
CALLS = 32
EFFORT = Effort(seconds=0.3, least=20, most=200)


@dataclass(frozen=True)
class CallCase(Case):
    """A function of ours on a small problem, beside torch.softmax on rows of its own and peers of the function."""

    name: str
    ours: Competitor
    shape: Shape = ROWS
    signature: Signature = ONE_TENSOR
    peers: tuple[Peer, ...] = ()
    bars: Bars = field(default_factory=dict)

    def runs_on(self, device: str) -> bool:
        return device in DEVICES

    def absent(self, device: str) -> list[Absent]:
        found = [(peer.name, peer.competitor(device, self.ours.oracle)) for peer in self.peers]
        return [Absent(name, peer) for name, peer in found if isinstance(peer, str)]

    def rows(self, device: str, quick: bool) -> Iterator[Row]:
        loaded = [peer.competitor(device, self.ours.oracle) for peer in self.peers]
        own = [self.ours, *(peer for peer in loaded if isinstance(peer, Competitor))]
        count = 2 if quick else CALLS
        pools = {SOFTMAX.name: _pool(Size(ROWS), ONE_TENSOR, device, count)}
        pools |= dict.fromkeys([c.name for c in own], _pool(Size(self.shape), self.signature, device, count))
        checked = gate(self.name, [SOFTMAX], Size(ROWS), pools[SOFTMAX.name][0], ONE_TENSOR)
        checked |= gate(self.name, own, Size(self.shape), pools[self.ours.name][0], self.signature)
        fit = [c for c in (SOFTMAX, *own) if checked[c.name].status == OK]
        for timed in (FORWARD, BOTH):
            tasks = {c.name: tasks_of(c, timed, pools[c.name]) for c in fit}
            others = Others()
            with others.watched():
                found = timing.calls(tasks, QUICK if quick else EFFORT, _wait(device))
            for competitor in (SOFTMAX, *own):
                known = asdict(checked[competitor.name]) | {"timed": timed, "others": others.share}
                if competitor in fit:
                    known |= times_of(competitor.name, SOFTMAX.name, found, {})
                bar = self.bars.get((device, timed)) if competitor is self.ours else None
                yield Row(**known | judged(bar, known))


def _pool(size: Size, signature: Signature, device: str, count: int) -> list[tuple[Tensors, Tensors]]:
    """Inputs and cotangents for calls in a row, so that what is kept for a tensor serves no other."""
    generator = torch.Generator(device).manual_seed(0)
    return [signature.problem(size, generator) for _ in range(count)]


def _wait(device: str) -> timing.Task:
    return torch.cuda.synchronize if device == "cuda" else lambda: None
