"""Differentiable sparse and structured inference: regularized argmax over polytopes."""

from types import ModuleType as _ModuleType
from typing import Any as _Any

# modules
from polymax import distributed as distributed
from polymax import factors as factors
from polymax import nn as nn

# bands of cells for dynamic time warping
from polymax.bands import itakura as itakura
from polymax.bands import sakoe_chiba as sakoe_chiba

# edit distances and alignment scores
from polymax.edits import edit_distance as edit_distance
from polymax.edits import lcs_length as lcs_length
from polymax.edits import needleman_wunsch as needleman_wunsch
from polymax.edits import smith_waterman as smith_waterman
from polymax.edits import soft_edit_distance as soft_edit_distance

# elastic distances of series
from polymax.elastic import edr_distance as edr_distance
from polymax.elastic import erp_distance as erp_distance
from polymax.elastic import lcss_distance as lcss_distance
from polymax.elastic import msm_distance as msm_distance
from polymax.elastic import twe_distance as twe_distance

# estimators: gradients through discrete choices
from polymax.estimators import Baseline as Baseline
from polymax.estimators import Clipped as Clipped
from polymax.estimators import Estimator as Estimator
from polymax.estimators import ImplicitMLE as ImplicitMLE
from polymax.estimators import Interpolation as Interpolation
from polymax.estimators import JointLoss as JointLoss
from polymax.estimators import Learned as Learned
from polymax.estimators import LeaveOneOut as LeaveOneOut
from polymax.estimators import MovingAverage as MovingAverage
from polymax.estimators import NoisyEstimator as NoisyEstimator
from polymax.estimators import Normalized as Normalized
from polymax.estimators import PerturbAndMap as PerturbAndMap
from polymax.estimators import Relaxed as Relaxed
from polymax.estimators import ScoreFunction as ScoreFunction
from polymax.estimators import SelfCritical as SelfCritical
from polymax.estimators import SparseExpectation as SparseExpectation
from polymax.estimators import Spigot as Spigot
from polymax.estimators import StraightThrough as StraightThrough

# factor graphs: structures and constraints that share variables
from polymax.factors import Factor as Factor
from polymax.factors import FactorGraph as FactorGraph

# likelihoods of sequence models
from polymax.likelihoods import ctc_alignment as ctc_alignment
from polymax.likelihoods import ctc_loss as ctc_loss
from polymax.likelihoods import hmm_log_likelihood as hmm_log_likelihood
from polymax.likelihoods import hmm_posterior as hmm_posterior
from polymax.likelihoods import hmm_viterbi as hmm_viterbi
from polymax.likelihoods import viterbi_decode as viterbi_decode

# losses
from polymax.losses import Partial as Partial
from polymax.losses import crf_loss as crf_loss
from polymax.losses import entmax_loss as entmax_loss
from polymax.losses import fenchel_young as fenchel_young
from polymax.losses import linear_cross_entropy as linear_cross_entropy
from polymax.losses import linear_entmax_loss as linear_entmax_loss
from polymax.losses import linear_log_prob as linear_log_prob
from polymax.losses import linear_sparsemax_loss as linear_sparsemax_loss
from polymax.losses import margin_sparsemap_loss as margin_sparsemap_loss
from polymax.losses import perceptron_loss as perceptron_loss
from polymax.losses import smoothed_dp_loss as smoothed_dp_loss
from polymax.losses import sparsemap_loss as sparsemap_loss
from polymax.losses import sparsemax_loss as sparsemax_loss
from polymax.losses import svm_loss as svm_loss

# mappings: drop-in replacements for torch.softmax
from polymax.mappings import budgetmax as budgetmax
from polymax.mappings import csoftmax as csoftmax
from polymax.mappings import csparsemax as csparsemax
from polymax.mappings import entmax as entmax
from polymax.mappings import fusedmax as fusedmax
from polymax.mappings import groupedmax as groupedmax
from polymax.mappings import hardmax as hardmax
from polymax.mappings import normmax as normmax
from polymax.mappings import oscarmax as oscarmax
from polymax.mappings import softmax as softmax
from polymax.mappings import sparsemax as sparsemax
from polymax.mappings import sq_pnorm_max as sq_pnorm_max

# matching
from polymax.matching import linear_sum_assignment as linear_sum_assignment

# noise for perturbed scores
from polymax.noise import Gumbel as Gumbel
from polymax.noise import Noise as Noise
from polymax.noise import Normal as Normal
from polymax.noise import SmoothNoise as SmoothNoise
from polymax.noise import SumOfGamma as SumOfGamma

# regularizers: Omega on the simplex
from polymax.regularizers import AlphaDivergence as AlphaDivergence
from polymax.regularizers import Bounded as Bounded
from polymax.regularizers import Custom as Custom
from polymax.regularizers import Fused as Fused
from polymax.regularizers import Gini as Gini
from polymax.regularizers import Grouped as Grouped
from polymax.regularizers import Norm as Norm
from polymax.regularizers import Oscar as Oscar
from polymax.regularizers import Regularizer as Regularizer
from polymax.regularizers import Shannon as Shannon
from polymax.regularizers import SquaredPNorm as SquaredPNorm
from polymax.regularizers import Tsallis as Tsallis
from polymax.regularizers import Zero as Zero

# soft and random selections
from polymax.selection import SoftTopK as SoftTopK
from polymax.selection import gumbel_softmax as gumbel_softmax
from polymax.selection import soft_topk as soft_topk

# alignments of sequences with gaps, to read
from polymax.sequences import aligned_strings as aligned_strings
from polymax.sequences import cigar as cigar
from polymax.sequences import write_fasta as write_fasta
from polymax.sequences import write_stockholm as write_stockholm

# smoothed maxima over structures
from polymax.smoothing import HardMax as HardMax
from polymax.smoothing import LocalMax as LocalMax
from polymax.smoothing import Marginals as Marginals
from polymax.smoothing import Smoothing as Smoothing
from polymax.smoothing.perturbed import Perturbed as Perturbed
from polymax.smoothing.sparse_map import SparseMap as SparseMap
from polymax.smoothing.top_k import TopKSparsemax as TopKSparsemax
from polymax.solvers import ActiveSet as ActiveSet
from polymax.solvers import AwayStep as AwayStep
from polymax.solvers import FrankWolfe as FrankWolfe
from polymax.solvers import Pairwise as Pairwise
from polymax.solvers import Solver as Solver
from polymax.solvers import WarmStart as WarmStart

# alignments of speech
from polymax.speech import AlignedCharacter as AlignedCharacter
from polymax.speech import AlignedSegment as AlignedSegment
from polymax.speech import AlignedWord as AlignedWord
from polymax.speech import TokenSpan as TokenSpan
from polymax.speech import align_segments as align_segments
from polymax.speech import forced_align as forced_align
from polymax.speech import merge_tokens as merge_tokens
from polymax.speech import monotonic_alignment_search as monotonic_alignment_search

# structures: what inference ranges over
from polymax.structures import CTC as CTC
from polymax.structures import Alignment as Alignment
from polymax.structures import Assignment as Assignment
from polymax.structures import BudgetChain as BudgetChain
from polymax.structures import Chain as Chain
from polymax.structures import Counted as Counted
from polymax.structures import Dag as Dag
from polymax.structures import DynamicProgram as DynamicProgram
from polymax.structures import EditPath as EditPath
from polymax.structures import Explicit as Explicit
from polymax.structures import GappedAlignment as GappedAlignment
from polymax.structures import GrandparentTree as GrandparentTree
from polymax.structures import Hypergraph as Hypergraph
from polymax.structures import Monotonic as Monotonic
from polymax.structures import ProjectiveTree as ProjectiveTree
from polymax.structures import Ranking as Ranking
from polymax.structures import Sampled as Sampled
from polymax.structures import SegmentChain as SegmentChain
from polymax.structures import SemiMarkov as SemiMarkov
from polymax.structures import SiblingGrandparentTree as SiblingGrandparentTree
from polymax.structures import SiblingTree as SiblingTree
from polymax.structures import Simplex as Simplex
from polymax.structures import SpanningTree as SpanningTree
from polymax.structures import SpanTree as SpanTree
from polymax.structures import Structure as Structure
from polymax.structures import Subsequence as Subsequence
from polymax.structures import Subset as Subset
from polymax.structures import Transducer as Transducer
from polymax.structures import soft_rank as soft_rank
from polymax.structures import soft_sort as soft_sort
from polymax.transduction import additive_rnnt_loss as additive_rnnt_loss
from polymax.transduction import rnnt_loss as rnnt_loss
from polymax.transduction_durations import tdt_loss as tdt_loss
from polymax.transduction_joint import joint_rnnt_loss as joint_rnnt_loss

# words of a large vocabulary
from polymax.vocabulary import StoredWords as StoredWords
from polymax.vocabulary import WordDistribution as WordDistribution
from polymax.vocabulary import distillation_loss as distillation_loss
from polymax.vocabulary import epsilon_perplexity as epsilon_perplexity
from polymax.vocabulary import jensen_shannon as jensen_shannon
from polymax.vocabulary import linear_entmax as linear_entmax
from polymax.vocabulary import sparsemax_score as sparsemax_score

# dynamic time warping
from polymax.warping import dtw as dtw
from polymax.warping import smoothed_dtw as smoothed_dtw
from polymax.warping import soft_dtw as soft_dtw
from polymax.warping import soft_dtw_barycenter as soft_dtw_barycenter
from polymax.warping import soft_dtw_divergence as soft_dtw_divergence
from polymax.warping import squared_euclidean as squared_euclidean
from polymax.warping_pairs import pairwise as pairwise

__version__ = "0.1.0"

# modules that are loaded when asked for: matplotlib and the packages for training are extras
_LAZY = {
    "explore": "polymax_recipes.explore",
    "plot": "polymax.plot",
    "recipes": "polymax_recipes",
    "testing": "polymax.testing",
}
_MODULES = ("distributed", "factors", "nn")
# names in other packages, and their counterparts here
_ELSEWHERE = {
    "AlignmentCRF": "pm.Marginals(pm.Alignment())",
    "DependencyCRF": "pm.Marginals(pm.ProjectiveTree())",
    "Entmax15": "pm.entmax(x, alpha=1.5)",
    "Entmax15Loss": "pm.entmax_loss",
    "EntmaxBisect": "pm.entmax",
    "LinearChainCRF": "pm.Marginals(pm.Chain())",
    "NonProjectiveDependencyCRF": "pm.Marginals(pm.SpanningTree())",
    "SemiMarkovCRF": "pm.Marginals(pm.SemiMarkov(width))",
    "SoftDTW": "pm.soft_dtw",
    "SparsemaxLoss": "pm.sparsemax_loss",
    "TreeCRF": "pm.Marginals(pm.SpanTree())",
    "budget_bisect": "pm.budgetmax",
    "entmax15": "pm.entmax(x, alpha=1.5)",
    "entmax15_loss": "pm.entmax_loss",
    "entmax_bisect": "pm.entmax",
    "entmax_bisect_loss": "pm.entmax_loss",
    "normmax_bisect": "pm.normmax",
    "sparsemax_bisect": "pm.sparsemax",
}

# all that is imported above
__all__ = sorted(
    name
    for name, value in globals().items()
    if not name.startswith("_") and (name in _MODULES or not isinstance(value, _ModuleType))
)

# files of the package are not among its names: `pm.sparsemap` would pass for a function; a folder, as `pm.structures`,
# may be
for _name, _value in list(globals().items()):
    _own = _name in _MODULES or _name.startswith("_") or hasattr(_value, "__path__")
    if isinstance(_value, _ModuleType) and not _own:
        del globals()[_name]


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        from importlib import import_module

        return import_module(_LAZY[name])
    advice = "" if name.startswith("_") else _advice(name)
    raise AttributeError(f"module 'polymax' has no attribute {name!r}{advice}")


def _advice(name: str) -> str:
    """Return advice for an error about an unknown name: names that are similar."""
    from difflib import get_close_matches

    inside = [f"pm.{module}.{name}" for module in _MODULES if hasattr(globals()[module], name)]
    cased = [f"pm.{own}" for own in __all__ if own.lower() == name.lower()]
    close = [f"pm.{own}" for own in get_close_matches(name, __all__, 1)]
    found = [*([_ELSEWHERE[name]] if name in _ELSEWHERE else []), *inside, *cased, *close]
    return f"; did you mean {found[0]}?" if found else ""


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, *(name for name in globals() if name.startswith("__"))})
