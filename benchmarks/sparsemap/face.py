"""Proof of a SparseMAP solution: the face of the polytope that it lies on, and the projection onto it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# how far from the best a structure of a mean may be, relative to its score: its square root bounds the mean's error
PROOF = 1e-11
# scores are nudged by less than rounding to float32 does, and by more than the error of the mean
NUDGE = 1e-7
TIED = 1e-9


@dataclass(frozen=True)
class Face:
    """The structures that are best for scores - mu, of which there are more than mu is made of.

    `score` takes structures (batch, k, ...) and scores (batch, ...) to (batch, k), `best` scores to structures.
    Weights of the last structures that an active set finds may be as small as rounding: these few matter little to
    mu, but each is a direction in which mu can move.
    """

    score: Callable[[Tensor, Tensor], Tensor]
    best: Callable[[Tensor], Tensor]

    def mean(self, scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """The mean mu of structures (batch, k, ...) under weights (batch, k), with its gradient, if it is optimal.

        gram p + tau = score(y, scores),  sum p = 1        optimal if y are best for scores - mu
        """
        with torch.no_grad():
            proposed = (weights[:, None] @ y.flatten(2)).reshape(scores.shape)
            y, used = self._completed(y, weights > 0, scores - proposed)
        mu = self._projection(scores, y, used)
        with torch.no_grad():
            rest = scores - mu
            top = self.score(self.best(rest)[:, None], rest)
            missing = torch.where(used, (self.score(y, rest) - top).abs() / (1 + top.abs()), 0).amax()
            moved = (mu - proposed).abs().amax()
            # what has weight but is no structure misses the best score, too
            if not (missing <= PROOF and moved <= NUDGE and bool((weights >= 0).all())):
                raise ValueError(f"no optimum: a structure misses the best by {missing:.1e}, mu moves by {moved:.1e}")
        return mu

    def _completed(self, y: Tensor, used: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """More structures, until nudges orthogonal to all of their differences find no other."""
        generator = torch.Generator().manual_seed(0)
        top = self.score(self.best(rest)[:, None], rest)
        found = True
        while found:
            found = False
            nudge = _orthogonal(torch.randn(rest.shape, generator=generator, dtype=rest.dtype), y, used)
            for sign in (1, -1):
                more = self.best(rest + sign * NUDGE * nudge)[:, None].to(y.dtype)
                apart = ((more - y[:, :1]).flatten(2) @ nudge.flatten(1)[:, :, None]).abs()[..., 0] > TIED**0.5
                other = apart & (self.score(more, rest) >= top - TIED * (1 + top.abs()))
                if bool(other.any()):
                    y, used = torch.cat([y, more], 1), torch.cat([used, other], 1)
                    found = True
                    break
        return y, used

    def _projection(self, scores: Tensor, y: Tensor, used: Tensor) -> Tensor:
        """The point nearest to the scores in the affine hull of the structures used."""
        batch, k = used.shape
        ones, flat = used.to(scores.dtype), y.flatten(2)
        # a place that is not used weighs nothing
        gram = flat @ flat.mT * ones[:, :, None] * ones[:, None] + torch.diag_embed(1 - ones)
        above = torch.cat([gram, ones[:, :, None]], 2)
        below = torch.cat([ones, ones.new_zeros(batch, 1)], 1)[:, None]
        known = torch.cat([self.score(y, scores) * ones, ones.new_ones(batch, 1)], 1)
        p = torch.linalg.solve(torch.cat([above, below], 1), known)[:, :k]
        return (p[:, None] @ flat).reshape(scores.shape)


def _orthogonal(nudge: Tensor, y: Tensor, used: Tensor) -> Tensor:
    """The part of a nudge that makes no difference between the structures used, of which the first is one."""
    apart = (y - y[:, :1]).flatten(2) * used[:, :, None]
    along = torch.linalg.pinv(apart @ apart.mT, hermitian=True) @ (apart @ nudge.flatten(1)[:, :, None])
    return nudge - (apart.mT @ along).reshape(nudge.shape)
