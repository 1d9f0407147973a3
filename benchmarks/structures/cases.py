"""Sums over structures and their gradients, the marginals: the time they take, and the memory."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import polymax as pm
from benchmarks.baselines import Tensors, ours
from benchmarks.memory import MemoryCase
from benchmarks.record import Bar
from benchmarks.structures import oracles, peers
from benchmarks.workload import BOTH, FORWARD, Bars, Case, FunctionCase, Problems, Shape, Signature, Size, gaussian
from polymax.kernels.projective_tree import chart_like


def chain(unary: Tensor, transition: Tensor) -> Tensor:
    return pm.Marginals(pm.Chain()).max(unary, transition)


def chain_means(unary: Tensor, transition: Tensor) -> Tensor:
    return pm.Marginals(pm.Chain())(unary, transition).unary


def tag_score(unary: Tensor, transition: Tensor, y: Tensor) -> Tensor:
    return unary.gather(2, y[..., None]).sum((1, 2)) + transition[y[:, :-1], y[:, 1:]].sum(1)


def crf_loss(log_partition: Callable[[Tensor, Tensor], Tensor], unary: Tensor, transition: Tensor) -> Tensor:
    """The negative log-likelihood of some tags."""
    y = peers.tags(unary.shape[:2], unary.shape[-1], unary.device)
    return log_partition(unary, transition) - tag_score(unary, transition, y)


def best_tags(unary: Tensor, transition: Tensor) -> Tensor:
    return pm.Chain().decode(pm.Chain().map(unary, transition))


def span_tree(scores: Tensor) -> Tensor:
    return pm.Marginals(pm.SpanTree()).max(scores)


def projective_tree(scores: Tensor) -> Tensor:
    return pm.Marginals(pm.ProjectiveTree()).max(scores)


def chain_scores(shape: Shape, generator: torch.Generator) -> Tensors:
    """Unary scores, and transition scores that all instances and positions share."""
    states = shape[-1]
    return *gaussian(shape, generator), *gaussian((states, states), generator)


def costs(shape: Shape, generator: torch.Generator) -> Tensors:
    """Squared distances between Gaussian numbers."""
    batch, n, m = shape
    (x,), (y,) = gaussian((batch, n, 1), generator), gaussian((batch, 1, m), generator)
    return ((x - y) ** 2,)


def one_each(shape: Shape) -> tuple[Shape, ...]:
    """A number for each instance."""
    return (shape[:1],)


def nothing(shape: Shape) -> tuple[Shape, ...]:
    """No output that has a derivative."""
    return ()


def score_alone(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Tags are as good as their score: rounding decides between sequences that are all but equally good."""
    unary, transition = inputs
    return (tag_score(unary, transition, outputs[0].long()),)


CHAINS = Signature(chain_scores, one_each, shared=1)
DECODED = Signature(chain_scores, nothing, shared=1, compared=score_alone)
TREES = Signature(gaussian, one_each)
ALIGNMENTS = Signature(costs, one_each)

CHAIN_MEANS = ours(chain_means, oracles.chain_means)
CHAIN, SPAN_TREE = ours(chain, oracles.chain), ours(span_tree, oracles.span_tree)
PROJECTIVE_TREE, SOFT_DTW = ours(projective_tree, oracles.projective_tree), ours(pm.soft_dtw, oracles.soft_dtw)
CRF_LOSS = ours(partial(crf_loss, chain), partial(crf_loss, oracles.chain))

NARROW: tuple[Shape, ...] = ((32, 25, 9), (32, 100, 9), (32, 400, 9))
WIDE: tuple[Shape, ...] = ((32, 25, 50), (32, 100, 50), (32, 400, 50))


def both(signature: Signature, quick: Shape, cpu: tuple[Shape, ...] = (), cuda: tuple[Shape, ...] = ()) -> Problems:
    """Problems of which the value and the gradient are timed together."""
    return Problems({"cpu": tuple(map(Size, cpu)), "cuda": tuple(map(Size, cuda))}, (BOTH,), signature, quick)


def within(milliseconds: float) -> Bars:
    """A bar on the time on the GPU."""
    return {("cuda", BOTH): Bar(1e3 * milliseconds, "eager_us")}


STRUCTURES: list[Case] = [
    FunctionCase(
        "chain",
        CHAIN,
        both(CHAINS, (3, 7, 4), cpu=NARROW, cuda=((256, 64, 32),)),
        (
            peers.CRF_NORMALIZER.behind(10),
            peers.SYNJAX_CHAIN.behind(1),
            peers.SUPAR_CHAIN,
            # its tree of matrix products takes s^3 steps: minutes, and gigabytes, for the wide chains
            peers.TORCH_STRUCT_CHAIN,
        ),
        within(0.6),
    ),
    FunctionCase(
        "wide chain",
        CHAIN,
        both(CHAINS, (3, 7, 12), cpu=WIDE),
        (peers.CRF_NORMALIZER.behind(10), peers.SYNJAX_CHAIN.behind(1), peers.SUPAR_CHAIN),
    ),
    FunctionCase("long chain", CHAIN, both(CHAINS, (2, 30, 3), cuda=((32, 512, 16),)), bars=within(1.5)),
    FunctionCase(
        "crf loss",
        CRF_LOSS,
        both(CHAINS, (3, 7, 4), cpu=(*NARROW, *WIDE), cuda=((256, 64, 32),)),
        (peers.CRF_LOSS.behind(10),),
    ),
    FunctionCase(
        "viterbi",
        ours(best_tags, oracles.best_tags),
        Problems({"cpu": tuple(map(Size, (*NARROW, *WIDE)))}, (FORWARD,), DECODED, (3, 7, 4)),
        (peers.CRF_DECODE,),
    ),
    FunctionCase(
        "span tree",
        SPAN_TREE,
        both(TREES, (3, 6, 6), cpu=((16, 40, 40),), cuda=((64, 40, 40),)),
        (peers.TORCH_STRUCT_SPANS.behind(8), peers.SYNJAX_SPANS, peers.SUPAR_SPANS),
        within(2),
    ),
    FunctionCase(
        "projective tree",
        PROJECTIVE_TREE,
        both(TREES, (3, 6, 6), cpu=((32, 41, 41),), cuda=((64, 41, 41),)),
        (peers.TORCH_STRUCT_HEADS.behind(15), peers.SYNJAX_HEADS, peers.SUPAR_HEADS),
        within(4),
    ),
    FunctionCase(
        "soft-dtw",
        SOFT_DTW,
        both(ALIGNMENTS, (3, 6, 5), cpu=((16, 400, 400),), cuda=((32, 1024, 1024),)),
        (peers.TSLEARN.behind(8), peers.PYSDTW.behind(8)),
        within(4),
    ),
]


def charts(numbers: float, rest: int = 0) -> Callable[[Shape], int]:
    """How many numbers for each entry of the scores, less `rest` rows and columns that are not of words."""

    def count(shape: Shape) -> int:
        batch, n, m = shape
        return int(numbers * batch * (n - rest) * (m - rest))

    return count


def squares(shape: Shape) -> int:
    """Two charts of projective trees in float64."""
    return 2 * 2 * chart_like(torch.empty(shape, device="meta")).numel()


# on the CPU memory is known to some hundred kilobytes, so batches are larger than those that are timed
MEMORY: list[Case] = [
    MemoryCase("chain", CHAIN, both(CHAINS, (3, 7, 4), ((512, 64, 32),), ((256, 64, 32),)), charts(2)),
    MemoryCase("long chain", CHAIN, both(CHAINS, (2, 30, 3), ((128, 512, 16),), ((32, 512, 16),)), charts(2)),
    MemoryCase("span tree", SPAN_TREE, both(TREES, (3, 6, 6), ((1024, 40, 40),), ((64, 40, 40),)), charts(4)),
    MemoryCase("projective tree", PROJECTIVE_TREE, both(TREES, (3, 6, 6), ((1024, 41, 41),)), charts(8, rest=1)),
    # the CPU sums in float32 where it can, the GPU in float64
    MemoryCase("projective tree", PROJECTIVE_TREE, both(TREES, (3, 6, 6), cuda=((64, 41, 41),)), squares),
    MemoryCase("soft-dtw", SOFT_DTW, both(ALIGNMENTS, (3, 6, 5), ((16, 400, 400),), ((32, 1024, 1024),)), charts(3)),
]
