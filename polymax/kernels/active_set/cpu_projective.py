"""Trees without crossing arcs for SparseMAP on the CPU: the derivations of their hypergraph."""

from polymax.kernels.active_set.cpu_spans import best as best
from polymax.kernels.active_set.cpu_spans import problem as problem
