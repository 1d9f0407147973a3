"""Scores of predictions: accumulators that take batches by `add` and give their scores by `result`."""

from polymax_recipes.metrics.alignment import AlignmentErrorRate as AlignmentErrorRate
from polymax_recipes.metrics.alignment import AlignmentScores as AlignmentScores
from polymax_recipes.metrics.attachment import Attachment as Attachment
from polymax_recipes.metrics.attachment import AttachmentScore as AttachmentScore
from polymax_recipes.metrics.attention import AttentionRuns as AttentionRuns
from polymax_recipes.metrics.attention import AttentionShape as AttentionShape
from polymax_recipes.metrics.binary_trees import TreeF1 as TreeF1
from polymax_recipes.metrics.binary_trees import TreeScores as TreeScores
from polymax_recipes.metrics.binary_trees import self_f1 as self_f1
from polymax_recipes.metrics.brackets import BracketF1 as BracketF1
from polymax_recipes.metrics.brackets import BracketScores as BracketScores
from polymax_recipes.metrics.counts import F1 as F1
from polymax_recipes.metrics.tagging import EntityF1 as EntityF1
from polymax_recipes.metrics.tagging import EntityScores as EntityScores
from polymax_recipes.metrics.tagging import TokenAccuracy as TokenAccuracy
