"""Small calls, as decoders, small batches and first experiments make them: what the host spends on each."""

from functools import partial

import polymax as pm
from benchmarks.baselines import ours
from benchmarks.latency.call import CallCase
from benchmarks.record import Bar
from benchmarks.simplex import oracles, peers
from benchmarks.simplex.cases import csoftmax
from benchmarks.sparsemap.cases import PART_MEANS, SPARSE_ASSIGNMENT, SPARSE_CHAIN, SPARSE_TREE, TAG_MEANS
from benchmarks.structures.cases import ALIGNMENTS, CHAIN, CHAIN_MEANS, CHAINS, SOFT_DTW
from benchmarks.workload import BOTH, FORWARD, Bars, Case, ImportCase, Shape


def mapping_bars(cpu: tuple[float, float], cuda: tuple[float, float]) -> Bars:
    """Bars on the ratio to torch.softmax: forward without a gradient, and forward and backward."""
    limits = {"cpu": cpu, "cuda": cuda}
    return {(device, timed): Bar(limit) for device in limits for timed, limit in zip((FORWARD, BOTH), limits[device])}


def gradient_bars(cpu: float, cuda: float) -> Bars:
    """Bars on the ratio to torch.softmax, forward and backward."""
    return {("cpu", BOTH): Bar(cpu), ("cuda", BOTH): Bar(cuda)}


THRESHOLD = mapping_bars(cpu=(5.0, 2.5), cuda=(3.0, 1.6))
GROUPED = mapping_bars(cpu=(10.0, 4.0), cuda=(6.0, 2.5))
SPARSE = gradient_bars(cpu=12.0, cuda=8.0)
TAGGED: Shape = (8, 10, 5)
SQUARE: Shape = (8, 5, 5)

LATENCY: list[Case] = [
    CallCase("softmax", ours(pm.softmax, oracles.softmax), bars=THRESHOLD),
    CallCase("sparsemax", ours(pm.sparsemax, oracles.sparsemax), peers=peers.SPARSEMAX, bars=THRESHOLD),
    CallCase("entmax 1.5", ours(pm.entmax, oracles.entmax(1.5)), peers=peers.ENTMAX15, bars=THRESHOLD),
    CallCase("entmax 1.33", ours(partial(pm.entmax, alpha=1.33), oracles.entmax(1.33)), bars=THRESHOLD),
    CallCase("fusedmax", ours(pm.fusedmax, oracles.fusedmax(0.1)), bars=GROUPED),
    CallCase("oscarmax", ours(pm.oscarmax, oracles.oscarmax(0.01)), bars=GROUPED),
    CallCase("csparsemax", ours(partial(pm.csparsemax, upper=0.15), oracles.csparsemax(0.15)), bars=GROUPED),
    CallCase("csoftmax", ours(csoftmax, oracles.csoftmax(2.0))),
    CallCase("chain", CHAIN, TAGGED, CHAINS, bars=gradient_bars(cpu=5.0, cuda=3.0)),
    CallCase("chain expectation", CHAIN_MEANS, TAGGED, TAG_MEANS, bars=gradient_bars(cpu=7.0, cuda=4.0)),
    CallCase("soft-dtw", SOFT_DTW, (8, 10, 10), ALIGNMENTS),
    CallCase("sparsemap chain", SPARSE_CHAIN, TAGGED, TAG_MEANS, bars=SPARSE),
    CallCase("sparsemap tree", SPARSE_TREE, SQUARE, PART_MEANS, bars=SPARSE),
    CallCase("sparsemap assignment", SPARSE_ASSIGNMENT, SQUARE, PART_MEANS, bars=SPARSE),
    ImportCase("import", Bar(0.5e6, "eager_us")),
]
