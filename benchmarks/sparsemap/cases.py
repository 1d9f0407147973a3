"""SparseMAP with its gradient, sums over spanning trees, and the best trees and assignments."""

from torch import Tensor

import polymax as pm
from benchmarks.baselines import Competitor, Tensors, ours
from benchmarks.record import Bar
from benchmarks.sparsemap import oracles, peers
from benchmarks.structures import cases as structures
from benchmarks.structures.cases import ALIGNMENTS, CHAINS, TREES, chain_scores, nothing
from benchmarks.throughput import ThroughputCase
from benchmarks.workload import BOTH, FORWARD, Case, FunctionCase, Problems, Shape, Signature, Size


def sparse_chain(unary: Tensor, transition: Tensor) -> Tensor:
    return pm.SparseMap(pm.Chain())(unary, transition).unary


def sparse_tree(scores: Tensor) -> Tensor:
    return pm.SparseMap(pm.SpanningTree())(scores)


def sparse_assignment(scores: Tensor) -> Tensor:
    return pm.SparseMap(pm.Assignment())(scores)


def best_tree(scores: Tensor) -> Tensor:
    return pm.SpanningTree().decode(pm.SpanningTree().map(scores))


def spanning_tree(scores: Tensor) -> Tensor:
    return pm.Marginals(pm.SpanningTree()).max(scores)


def best_assignment(scores: Tensor) -> Tensor:
    return pm.Assignment().decode(pm.Assignment().map(scores))


def detected(cost: Tensor) -> Tensor:
    """The query of each object, for images with different numbers of objects."""
    sizes = oracles.objects(*cost.shape, cost.device)
    return pm.linear_sum_assignment(cost, lengths=sizes, infeasible="skip")[1]


def tree_score(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Heads are as good as their score, if they are a tree."""
    return (oracles.tree_score(inputs[0], outputs[0].long()),)


def assignment_score(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Columns are as good as their score, if they are an assignment."""
    return (oracles.assignment_score(inputs[0], outputs[0].long()),)


def detected_cost(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Queries are as good as their cost, if they are an assignment."""
    return (oracles.detected_cost(inputs[0], outputs[0].long()),)


TAG_MEANS = Signature(chain_scores, shared=1)
PART_MEANS = Signature()
HEADS = Signature(outputs=nothing, compared=tree_score)
COLUMNS = Signature(outputs=nothing, compared=assignment_score)
QUERIES = Signature(outputs=nothing, compared=detected_cost)

SPARSE_CHAIN, SPARSE_TREE = ours(sparse_chain, oracles.sparse_chain), ours(sparse_tree, oracles.sparse_tree)
SPARSE_ASSIGNMENT = ours(sparse_assignment, oracles.sparse_assignment)
BEST_TREE, BEST_ASSIGNMENT = ours(best_tree, oracles.arborescence), ours(best_assignment, oracles.assignment)
SPANNING_TREE = ours(spanning_tree, oracles.spanning_tree)


def within(milliseconds: float, *shape: int) -> Size:
    """A size with a bar on our time."""
    return Size(shape, bar=Bar(1e3 * milliseconds, "eager_us"))


def both(signature: Signature, quick: Shape, cpu: tuple[Size, ...] = (), cuda: tuple[Size, ...] = ()) -> Problems:
    """Problems of which the value and the gradient are timed together."""
    return Problems({"cpu": cpu, "cuda": cuda}, (BOTH,), signature, quick)


def found(signature: Signature, quick: Shape, cpu: tuple[Size, ...] = (), cuda: tuple[Size, ...] = ()) -> Problems:
    """Problems of which the best structure is timed: it has no gradient."""
    return Problems({"cpu": cpu, "cuda": cuda}, (FORWARD,), signature, quick)


# bars on SparseMAP are times: the package of the paper, github.com/vene/sparsemap, is no peer here. It took 11.6 ms for
# the chains on two cores with 100 inner steps, four times the bar
SPARSEMAP: list[Case] = [
    FunctionCase(
        "sparsemap chain",
        SPARSE_CHAIN,
        both(TAG_MEANS, (3, 5, 4), cpu=(within(2.9, 16, 25, 9),), cuda=(within(8, 256, 64, 32),)),
    ),
    FunctionCase(
        "sparsemap tree",
        SPARSE_TREE,
        both(
            PART_MEANS, (3, 6, 6), cpu=(within(6.5, 16, 21, 21), within(24, 16, 41, 41)), cuda=(within(40, 64, 41, 41),)
        ),
    ),
    FunctionCase(
        "sparsemap assignment",
        SPARSE_ASSIGNMENT,
        both(
            PART_MEANS, (3, 5, 5), cpu=(within(3.9, 16, 20, 20), within(18, 16, 40, 40)), cuda=(within(20, 64, 20, 20),)
        ),
    ),
    FunctionCase(
        "arborescence",
        BEST_TREE,
        found(HEADS, (3, 6, 6), cpu=(Size((32, 41, 41)),), cuda=(Size((32, 41, 41)),)),
        (peers.SUPAR_HEADS.behind(50),),
    ),
    # networkx takes a tenth of a second for each tree
    FunctionCase(
        "few arborescences",
        BEST_TREE,
        found(HEADS, (2, 6, 6), cpu=(Size((2, 41, 41)),)),
        (peers.NETWORKX,),
    ),
    FunctionCase(
        "spanning tree",
        SPANNING_TREE,
        both(TREES, (3, 6, 6), cpu=(Size((64, 41, 41)),), cuda=(within(1.5, 64, 41, 41),)),
        (peers.TORCH_STRUCT_TREES, peers.SUPAR_TREES, peers.SYNJAX_TREES),
    ),
    FunctionCase(
        "assignment",
        BEST_ASSIGNMENT,
        found(
            COLUMNS,
            (3, 5, 5),
            cpu=(Size((64, 200, 200)), Size((256, 350, 350))),
            cuda=(within(12, 208, 300, 300), within(7, 256, 350, 350)),
        ),
        (peers.SCIPY.behind(1), peers.LAPJV.behind(1), peers.LAPJVS, peers.TORCH_LINEAR_ASSIGNMENT),
    ),
    FunctionCase(
        "large assignment",
        BEST_ASSIGNMENT,
        found(
            COLUMNS,
            (1, 6, 6),
            cpu=(Size((1, 1024, 1024)), Size((1, 4096, 4096))),
            cuda=(within(6, 1, 1024, 1024), within(100, 1, 4096, 4096)),
        ),
        (peers.SCIPY.behind(1), peers.LAPJV),
    ),
    # all layers of a detector's decoder: layers, images, objects, queries
    FunctionCase(
        "detector assignment",
        ours(detected, oracles.detected),
        found(QUERIES, (2, 3, 6, 9), cpu=(Size((7, 16, 60, 300)),), cuda=(within(1, 7, 16, 60, 300),)),
        (peers.SCIPY_DETECTED.behind(1),),
    ),
]

BATCHES = (1, 4, 16, 64, 256, 1024)


def throughput(
    name: str, competitor: Competitor, signature: Signature, event: Shape, timed: str = BOTH
) -> ThroughputCase:
    """A function of instances of a shape, in batches."""
    sizes = tuple(Size((batch, *event)) for batch in BATCHES)
    problems = Problems({"cpu": sizes, "cuda": sizes}, (timed,), signature, (3, *(min(n, 5) for n in event)))
    return ThroughputCase(name, competitor, problems)


THROUGHPUT: list[Case] = [
    throughput("chain", structures.CHAIN, CHAINS, (25, 9)),
    throughput("span tree", structures.SPAN_TREE, TREES, (20, 20)),
    throughput("projective tree", structures.PROJECTIVE_TREE, TREES, (21, 21)),
    throughput("spanning tree", SPANNING_TREE, TREES, (21, 21)),
    throughput("alignment", structures.SOFT_DTW, ALIGNMENTS, (50, 50)),
    throughput("assignment", BEST_ASSIGNMENT, COLUMNS, (20, 20), FORWARD),
    throughput("sparsemap chain", SPARSE_CHAIN, TAG_MEANS, (25, 9)),
    throughput("sparsemap tree", SPARSE_TREE, PART_MEANS, (21, 21)),
    throughput("sparsemap assignment", SPARSE_ASSIGNMENT, PART_MEANS, (20, 20)),
]
