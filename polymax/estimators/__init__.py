"""Estimators of gradients through discrete structures.

Most return a vertex with a surrogate gradient; ScoreFunction and SparseExpectation return an expected loss.
"""

from polymax.estimators.base import Estimator as Estimator
from polymax.estimators.base import NoisyEstimator as NoisyEstimator
from polymax.estimators.baselines import Baseline as Baseline
from polymax.estimators.baselines import Learned as Learned
from polymax.estimators.baselines import LeaveOneOut as LeaveOneOut
from polymax.estimators.baselines import MovingAverage as MovingAverage
from polymax.estimators.baselines import Normalized as Normalized
from polymax.estimators.baselines import SelfCritical as SelfCritical
from polymax.estimators.clipped import Clipped as Clipped
from polymax.estimators.implicit_mle import ImplicitMLE as ImplicitMLE
from polymax.estimators.interpolation import Interpolation as Interpolation
from polymax.estimators.joint import JointLoss as JointLoss
from polymax.estimators.perturb_and_map import PerturbAndMap as PerturbAndMap
from polymax.estimators.perturb_and_map import Relaxed as Relaxed
from polymax.estimators.score_function import ScoreFunction as ScoreFunction
from polymax.estimators.sparse_expectation import SparseExpectation as SparseExpectation
from polymax.estimators.spigot import Spigot as Spigot
from polymax.estimators.straight_through import StraightThrough as StraightThrough
