"""The suites: each is a list of cases."""

from benchmarks.alignments.cases import ALIGNMENTS
from benchmarks.alignments.cases import MEMORY as MEMORY_OF_ALIGNMENTS
from benchmarks.attention.cases import ATTENTION
from benchmarks.attention.short import ATTENTION_SHORT
from benchmarks.factors.cases import FACTORS
from benchmarks.latency.cases import LATENCY
from benchmarks.linear_loss.cases import LINEAR_LOSS
from benchmarks.series.cases import SERIES
from benchmarks.simplex.cases import SIMPLEX
from benchmarks.sparsemap.cases import SPARSEMAP, THROUGHPUT
from benchmarks.structures.cases import MEMORY, STRUCTURES
from benchmarks.workload import Case

SUITES: dict[str, list[Case]] = {
    "simplex": SIMPLEX,
    "latency": LATENCY,
    "structures": STRUCTURES,
    "sparsemap": SPARSEMAP,
    "factors": FACTORS,
    "throughput": THROUGHPUT,
    "memory": [*MEMORY, *MEMORY_OF_ALIGNMENTS],
    "alignments": ALIGNMENTS,
    "attention": ATTENTION,
    "attention_short": ATTENTION_SHORT,
    "linear_loss": LINEAR_LOSS,
    "series": SERIES,
}
