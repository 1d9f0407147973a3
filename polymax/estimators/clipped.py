"""Several steps on the same draws: the clipped surrogate of proximal policy optimization."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polymax.estimators.expected_loss import LossFn, reduce_values
from polymax.estimators.joint import JointLoss
from polymax.estimators.score_function import Draws, ScoreFunction


def clipped_objective(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The clipped surrogate max(r a, clip(r, 1 - clip, 1 + clip) a), of any shape."""
    bounded = torch.where(advantages > 0, ratios.clamp(min=1 - clip), ratios.clamp(max=1 + clip))
    return torch.where(advantages == 0, 0, advantages * bounded)


@dataclass(frozen=True, eq=False)
class ClippedBatch:
    """Structures that were drawn once, for several steps."""

    draws: Draws
    clip: float
    reduction: str

    @property
    def loss(self) -> Tensor:
        """The mean loss of the draws, with gradients in the parameters of the loss function and of the baseline."""
        return self.draws.loss

    def ratios(self, *scores: Tensor) -> Tensor:
        """The probability of each draw under these scores, over its probability when drawn, (samples, *batch)."""
        found = self.draws.log_probs_under(*scores)
        # instances without a structure have no draw: their ratio is 1
        return torch.where(self.draws.counted, torch.exp(found - self.draws.log_probs.detach()), 1)

    def surrogate(self, *scores: Tensor) -> Tensor:
        """The surrogate objective, to be minimized in the scores; its value is not the loss."""
        return reduce_values(
            clipped_objective(self.ratios(*scores), self.draws.advantages, self.clip).mean(0), self.reduction
        )


class Clipped(nn.Module):
    """A score-function estimator whose draws serve for several steps.

        surrogate = mean of max(r a, clip(r, 1 - clip, 1 + clip) a),   r = p(y) / p_old(y),   a = L(y) - b

    A call of this object is a call of the estimator. `collect` draws once, and each step then minimizes `surrogate` of
    the current scores. Its gradient in the first step is the estimator's. A draw that is better than the baseline has
    no gradient once it is more probable by `clip`; a worse one, once it is less probable by `clip`.

    Example:
        >>> estimator = Clipped(pm.ScoreFunction(pm.Simplex(), pm.SelfCritical(), samples=4), clip=0.2)
        >>> scores = torch.zeros(3, 5, requires_grad=True)
        >>> batch = estimator.collect(lambda y, at: y[:, 0], scores, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(3):
        ...     (slope,) = torch.autograd.grad(batch.surrogate(scores), scores)
        ...     scores = (scores - slope).detach().requires_grad_()

    See: Schulman et al. 2017, Proximal policy optimization algorithms, section 3.
    """

    def __init__(self, estimator: ScoreFunction, clip: float = 0.2) -> None:
        super().__init__()
        if not isinstance(estimator, ScoreFunction):
            raise TypeError(f"estimator must be a ScoreFunction; got {type(estimator).__name__}")
        if not 0 < clip < 1:
            raise ValueError(f"clip must be between 0 and 1; got {clip!r}")
        self.estimator = estimator
        self.clip = clip

    def forward(
        self,
        loss_fn: LossFn | JointLoss,
        *scores: Tensor,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The expected loss, ready for backward; see the estimator."""
        return self.estimator(loss_fn, *scores, features=features, generator=generator)

    def collect(
        self,
        loss_fn: LossFn | JointLoss,
        *scores: Tensor,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> ClippedBatch:
        """Draws with their losses, for several steps."""
        draws = self.estimator.collect(loss_fn, *scores, features=features, generator=generator)
        return ClippedBatch(draws, self.clip, self.estimator.reduction)

    def with_lengths(self, lengths: Any) -> "Clipped":
        """A copy for a batch of these lengths; it shares the baseline."""
        return Clipped(self.estimator.with_lengths(lengths), self.clip)

    def extra_repr(self) -> str:
        return f"clip={self.clip}"
