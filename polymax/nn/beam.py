"""Straight-through beam search: the best of several parses, with gradients to the scores of all of them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.backend.widen import wide
from polymax.estimators.straight_through import StraightThrough
from polymax.nn.choice import Policy, checked_policy, choose, log_probs
from polymax.nn.spinn import SPINN, checked_sentences
from polymax.nn.thin_stack import ThinStack
from polymax.smoothing import Marginals
from polymax.structures.simplex import Simplex


class Beam(NamedTuple):
    """The result of a beam search, the most probable parse first.

    Shapes:
        root (B, d), of the chosen parse; weights (B, k), the choice; roots (B, k, d); transitions (B, k, 2 n - 1), -1
        at padding; log_prob (B, k), the sum over all actions of a parse, at least in float32, -inf if a
        sentence has fewer than k trees
    """

    root: Tensor
    weights: Tensor
    roots: Tensor
    transitions: Tensor
    log_prob: Tensor


class BeamSPINN(nn.Module):
    """The best of the k parses that a SPINN finds by beam search.

        s_j = sum_t log p(a_t),  for parses j among the k best after every step
        root = sum_j y_j root_j,        y = policy(s)

    By default y is the best parse, with the gradient of softmax over the beam: other parses get gradients from their
    roots. A beam of 1 is greedy; a beam as wide as the number of trees finds them all.

    Shapes: tokens (B, n, input_dim); lengths (B,)

    Example:
        >>> parser = BeamSPINN(SPINN(3, 8, 5), beam=4)
        >>> found = parser(torch.zeros(2, 3, 3), torch.tensor([3, 2]))
        >>> found.roots.shape, (found.log_prob > -torch.inf).sum(-1)
        (torch.Size([2, 4, 8]), tensor([2, 1]))

    See: Maillard and Clark 2018, Latent tree learning with differentiable parsers, section 3.
    """

    def __init__(
        self,
        spinn: SPINN,
        beam: int,
        policy: Policy = StraightThrough(Simplex(), Marginals(Simplex())),  # noqa: B008
    ) -> None:
        super().__init__()
        self.spinn = spinn
        self.beam = _check.whole(beam, "beam")
        self.policy = checked_policy(policy)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, generator: torch.Generator | None = None) -> Beam:
        """Parse sentences; the generator is used if the policy draws."""
        sizes, width = checked_sentences(tokens, lengths)
        reader, batch, k = self.spinn.reader, tokens.shape[0], self.beam
        rows = torch.arange(batch, device=tokens.device).repeat_interleave(k)
        machine = ThinStack(reader.leaves(tokens, sizes), rows, sizes.repeat_interleave(k), width)
        # a beam begins with one parse; the others have probability 0
        total = wide(tokens.new_full((batch, k), -torch.inf))
        total[:, 0] = 0
        steps = torch.full((batch, k, width), -1, dtype=torch.long, device=tokens.device)
        tracked = None
        for t in range(width):
            allowed = machine.allowed()
            tracked = reader.track(machine.seen, tracked)
            log_p = log_probs(reader.act(tracked, allowed)).reshape(batch, k, 2)
            # all parses of a sentence take equally many steps: finished sentences keep their beam
            done = ~allowed.reshape(batch, k, 2).any(-1)
            stay = torch.stack([total, torch.full_like(total, -torch.inf)], -1)
            extended = torch.where(done.unsqueeze(-1), stay, total.unsqueeze(-1) + log_p).flatten(1)
            order = extended.sort(dim=-1, descending=True, stable=True).indices[:, :k]
            total = extended.gather(1, order)
            parent = (order // 2 + torch.arange(batch, device=order.device).unsqueeze(-1) * k).flatten()
            allowed, seen = allowed[parent], machine.seen[parent]
            tracked = (tracked[0][parent], tracked[1][parent])
            machine.keep(parent)
            y = (order.reshape(-1, 1) % 2 == torch.arange(2, device=order.device)) & allowed
            node = (y.unsqueeze(-1) * reader.outcomes(seen, tracked[0], allowed)).sum(1)
            machine.push(node, y)
            steps = steps.gather(1, (order // 2).unsqueeze(-1).expand(-1, -1, width))
            steps[:, :, t] = torch.where(y.any(-1), order.flatten() % 2, -1).reshape(batch, k)
        roots = machine.roots()[:, : reader.cell.hidden_dim].reshape(batch, k, reader.cell.hidden_dim)
        none = (total == -torch.inf).unsqueeze(-1)
        roots = roots.masked_fill(none, 0)
        y = choose(self.policy, total, generator).to(roots.dtype)
        root = (y.unsqueeze(-1) * roots).sum(1)
        return Beam(root, y, roots, steps.masked_fill(none, -1), total)

    def extra_repr(self) -> str:
        return f"beam={self.beam}"
