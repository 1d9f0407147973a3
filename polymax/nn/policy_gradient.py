"""The score function estimator of models that choose actions, from the log-probabilities of the actions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polymax.estimators.baselines import Baseline, Situation
from polymax.estimators.clipped import clipped_objective
from polymax.estimators.expected_loss import value_with_gradient


class PolicyGradient(nn.Module):
    """The expected loss of a model that draws its actions as it goes, as SPINN does.

        value: mean of L,        gradient: mean of dL + (L - b) d log p(actions)

    It is `ScoreFunction` for models whose actions cannot be scored in advance. The baseline is one of the baselines of
    `ScoreFunction`, or None for b = 0. SelfCritical needs `best_losses()`, the losses (B,) of the best actions; a
    learned baseline needs `features`.

    Shapes: losses (B,); log_prob (B,); the result ()

    Example:
        >>> spinn, expected = pm.nn.SPINN(3, 8, 5), PolicyGradient(pm.MovingAverage())
        >>> found = spinn(torch.randn(2, 4, 3), policy=pm.Marginals(pm.Simplex()))
        >>> expected(found.root.square().sum(-1), found.log_prob).backward()

    See: Williams 1992; Yogatama et al. 2017, Learning to compose words into sentences with reinforcement learning.
    """

    def __init__(self, baseline: Baseline | None = None) -> None:
        super().__init__()
        if baseline is not None and not isinstance(baseline, Baseline):
            raise TypeError(f"baseline must be a Baseline or None; got {type(baseline).__name__}")
        self.baseline = baseline

    def forward(
        self,
        losses: Tensor,
        log_prob: Tensor,
        features: Tensor | None = None,
        best_losses: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """The mean loss, ready for backward."""
        advantages = self.advantages(losses, features, best_losses)
        if log_prob.shape != losses.shape:
            raise ValueError(f"log_prob must be {tuple(losses.shape)}; got {tuple(log_prob.shape)}")
        value = value_with_gradient(losses.mean(), (advantages.detach() * log_prob).mean())
        return value_with_gradient(value, advantages.square().mean()) if advantages.requires_grad else value

    def advantages(
        self, losses: Tensor, features: Tensor | None = None, best_losses: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """L - b, (B,), with a gradient in the parameters of the baseline alone."""
        compared = losses.detach()
        if self.baseline is None:
            return compared

        def best() -> Tensor:
            if best_losses is None:
                raise ValueError("best_losses must be given for this baseline: the losses of the best actions, (B,)")
            with torch.no_grad():
                return best_losses()

        seen = () if features is None else (features.detach(),)
        counted = torch.ones_like(compared, dtype=torch.bool)[None]
        return self.baseline(compared[None], Situation(seen, best, counted))[0]


def clipped_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float = 0.2) -> Tensor:
    """The surrogate to minimize for several steps on the same actions, as in `Clipped`; its value is not the loss.

        mean of max(r a, clip(r, 1 - clip, 1 + clip) a),    r = exp(log_prob - old_log_prob),    a = L - b

    For log_prob under the current parameters, give the actions to the model again, such as `transitions` to SPINN.

    Shapes: all (B,); the result ()

    Example:
        >>> old = torch.tensor([-1.0, -2.0])
        >>> clipped_surrogate(old + 1.0, old, torch.tensor([1.0, -1.0]))  # e for what got worse, -1.2 for the better
        tensor(0.7591)

    See: Schulman et al. 2017, Proximal policy optimization algorithms, section 3.
    """
    if not 0 < clip < 1:
        raise ValueError(f"clip must be between 0 and 1; got {clip!r}")
    return clipped_objective(torch.exp(log_prob - old_log_prob.detach()), advantages.detach(), clip).mean()
