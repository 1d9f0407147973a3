"""Fenchel-Young losses: how far the scores are from predicting y.

    loss(scores, y) = max(scores) + Omega(y) - <scores, y>        its gradient in the scores is argmax(scores) - y

Never negative, zero when the prediction is y, convex in the scores. On the simplex Shannon gives cross-entropy, Zero
the perceptron loss, Gini the sparsemax loss, Tsallis the entmax losses; over structures HardMax gives the structured
perceptron, Marginals the CRF, SparseMap its own loss.
See: Blondel, Martins and Niculae 2020, Learning with Fenchel-Young losses.
"""

from polymax.losses.fenchel_young import fenchel_young as fenchel_young
from polymax.losses.linear import linear_cross_entropy as linear_cross_entropy
from polymax.losses.linear import linear_entmax_loss as linear_entmax_loss
from polymax.losses.linear import linear_log_prob as linear_log_prob
from polymax.losses.linear import linear_sparsemax_loss as linear_sparsemax_loss
from polymax.losses.named import crf_loss as crf_loss
from polymax.losses.named import margin_sparsemap_loss as margin_sparsemap_loss
from polymax.losses.named import perceptron_loss as perceptron_loss
from polymax.losses.named import smoothed_dp_loss as smoothed_dp_loss
from polymax.losses.named import sparsemap_loss as sparsemap_loss
from polymax.losses.named import svm_loss as svm_loss
from polymax.losses.simplex import entmax_loss as entmax_loss
from polymax.losses.simplex import sparsemax_loss as sparsemax_loss
from polymax.losses.targets import Partial as Partial
