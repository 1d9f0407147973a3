"""Scores of substitutions and of gaps, learned from known alignments."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import polymax as pm
from polymax_recipes.protein_align.data import Batch
from polymax_recipes.training.task import Model

LOSSES: dict[str, Callable[..., Tensor]] = {
    "crf": pm.crf_loss,
    "sparse-dp": lambda gapped, *rest, **named: pm.smoothed_dp_loss(gapped, pm.Gini(), *rest, **named),
    "sparsemap": pm.sparsemap_loss,
    "perceptron": pm.perceptron_loss,
}
SMOOTHINGS: dict[str, Callable[[pm.GappedAlignment], Any]] = {
    "crf": pm.Marginals,
    "sparse-dp": lambda gapped: pm.LocalMax(gapped, pm.Gini()),
    "sparsemap": pm.SparseMap,
}
# scores before training: of equal letters, of different letters, of the first position of a gap, of later positions
EQUAL, OTHER, OPEN, EXTEND = 2.0, -1.0, -3.0, -1.0


class Substitutions(Model):
    """A symmetric matrix of scores of letters, and scores of a gap that is opened and extended.

        scores_ij = S[a_i, b_j]        loss = max over alignments of <scores, alignment>, smoothed, - <scores, known>

    Shapes: S (letters, letters); open and extend ()

    See: Do, Gross and Batzoglou 2006, CONTRAlign; Petti et al. 2023, End-to-end learning of multiple sequence
    alignments with differentiable Smith-Waterman.
    """

    def __init__(self, options: Any, letters: int) -> None:
        super().__init__()
        self.options = options
        start = torch.where(torch.eye(letters, dtype=torch.bool), EQUAL, OTHER)
        self.letters = nn.Parameter(start)
        self.open, self.extend = nn.Parameter(torch.tensor(OPEN)), nn.Parameter(torch.tensor(EXTEND))

    def matrix(self) -> Tensor:
        """The symmetric matrix S of substitution scores, (letters, letters)."""
        return (self.letters + self.letters.T) / 2

    def forward(self, batch: Batch) -> tuple[pm.GappedAlignment, tuple[Tensor, Tensor, Tensor]]:
        """The set of alignments of a batch, and its scores."""
        gapped = pm.GappedAlignment(self.options.mode, lengths=(batch.first_lengths, batch.second_lengths))
        pairs = self.matrix()[batch.first[:, :, None], batch.second[:, None]]
        return gapped, (pairs, self.open, self.extend)

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The chosen loss, over pairs of sequences."""
        gapped, scores = self(batch)
        total = LOSSES[self.options.loss](gapped, scores, batch.links, reduction="sum")
        return {"loss": (total, torch.ones_like(batch.first_lengths).sum())}

    @torch.no_grad()
    def found(self, batch: Batch, expected: bool) -> tuple[Tensor, Tensor | None]:
        """Return the pairs of the best alignment, (b, n, m), and, if wanted, their expectations; None if the loss has
        no expectations.
        """
        gapped, scores = self(batch)
        smoothing = SMOOTHINGS.get(self.options.loss) if expected else None
        return gapped.map(*scores).pairs, None if smoothing is None else smoothing(gapped)(*scores).pairs
