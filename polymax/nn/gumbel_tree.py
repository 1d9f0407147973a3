"""Gumbel Tree-LSTM: a tree grown bottom-up, each time by the best pair of neighbours."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.backend.widen import wide
from polymax.estimators.base import Estimator
from polymax.estimators.perturb_and_map import PerturbAndMap
from polymax.nn.choice import Policy, checked_policy, choose, chosen_log_prob, entropy, log_probs, temperature
from polymax.nn.shift_reduce import transitions_of_merges
from polymax.nn.spinn import checked_sentences
from polymax.nn.tree_lstm import TreeLSTMCell
from polymax.smoothing import HardMax, Marginals
from polymax.structures.simplex import Simplex


class Merged(NamedTuple):
    """Trees grown by merging neighbours.

    Shapes:
        root (B, d): 0 for an empty sentence
        merges (B, n - 1): the index of the merged pair, from the left among the remaining nodes; -1 at padding
        transitions (B, 2 n - 1)
        log_prob (B,): of the merges in their order, at least in float32; a tree has several orders
        entropy (B,): the sum over merges, at least in float32
    """

    root: Tensor
    merges: Tensor
    transitions: Tensor
    log_prob: Tensor
    entropy: Tensor


class GumbelTreeLSTM(nn.Module):
    """Grows binary trees by merging chosen pairs of neighbours, and computes their states.

        token   s_i = [h, c] = W x + b
        pair    t_i = TreeLSTMCell(s_i, s_(i+1)),    score_i = <q, h of t_i>,    y = policy(scores)
        merge   s_i <- (1 - y_1 - ... - y_i) s_i + y_i t_i + (y_1 + ... + y_(i-1)) s_(i+1)

    until one node is left. Without a `policy`, training chooses pairs by straight-through Gumbel-softmax, and
    evaluation takes the best pair. A single token is a tree; an empty sentence has a root of 0.

    Shapes: tokens (B, n, input_dim); lengths (B,)

    Example:
        >>> tree = GumbelTreeLSTM(3, 8).eval()
        >>> found = tree(torch.randn(2, 4, 3), torch.tensor([4, 1]))
        >>> found.root.shape, found.transitions[1].tolist()
        (torch.Size([2, 8]), [0, -1, -1, -1, -1, -1, -1])

    See: Choi, Yoo and Lee 2018, Learning to compose task-specific tree structures.
    """

    def __init__(self, input_dim: int, hidden_dim: int, gamma: float = 1.0) -> None:
        super().__init__()
        self.leaf = nn.Linear(_check.whole(input_dim, "input_dim"), 2 * _check.whole(hidden_dim, "hidden_dim"))
        self.cell = TreeLSTMCell(hidden_dim)
        self.query = nn.Parameter(torch.randn(hidden_dim) / hidden_dim**0.5)
        self.drawing = PerturbAndMap(Simplex(), through=Marginals(Simplex(), gamma=gamma))

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        policy: Policy | None = None,
        generator: torch.Generator | None = None,
    ) -> Merged:
        """Grow trees, by a policy as in `SPINN`."""
        if policy is None:
            policy = self.drawing if self.training else HardMax(Simplex())
        scale = temperature(checked_policy(policy))
        sizes, _ = checked_sentences(tokens, lengths)
        n, d = tokens.shape[1], self.cell.hidden_dim
        outside = (torch.arange(n, device=tokens.device) >= sizes.unsqueeze(-1)).unsqueeze(-1)
        states = self.leaf(tokens.masked_fill(outside, 0)).masked_fill(outside, 0)
        merges: list[Tensor] = []
        log_p = spread = wide(tokens.new_zeros(tokens.shape[0]))
        made = self._pair_nodes(states[:, :-1], states[:, 1:])
        for step in range(n - 1):
            place = torch.arange(n - 1 - step, device=tokens.device)
            there = place < (sizes - step - 1).unsqueeze(-1)
            scores = (made[..., :d] @ self.query).masked_fill(~there, -torch.inf)
            y = choose(policy, scores, generator)
            at = torch.where(there.any(-1), y.detach().argmax(-1), -1)
            if isinstance(policy, Estimator):
                states = _weighted_states(states, made, y)
                made = self._pair_nodes(states[:, :-1], states[:, 1:])
            else:
                states, made = self._after_merge(states, made, at)
            each = log_probs(scores / scale)
            log_p, spread = log_p + chosen_log_prob(each, y), spread + entropy(each)
            merges.append(at)
        root = states[:, 0, :d] if n else states.new_zeros(tokens.shape[0], d)
        order = torch.stack(merges, 1) if merges else sizes.new_zeros(tokens.shape[0], 0)
        steps = transitions_of_merges(order, sizes) if n else order
        return Merged(root, order, steps, log_p, spread)

    def _pair_nodes(self, left: Tensor, right: Tensor) -> Tensor:
        """The nodes (B, m, 2 d) that pairs of neighbours would become."""
        h, c = torch.stack([left, right], 2).split(self.cell.hidden_dim, -1)
        return torch.cat(self.cell(h, c), -1)

    def _after_merge(self, states: Tensor, made: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """The states and pairs after the pair `at` (B,) is merged; -1 merges none.

        Without a gradient in the choice, only the two pairs with the new node are computed again.
        """
        count = made.shape[1]
        place = torch.arange(count, device=at.device)
        at = torch.where(at < 0, count, at).unsqueeze(-1)
        merged = (place == at).unsqueeze(-1)
        states = torch.where(merged, made, _rows_at(states, place + (place > at)))
        if count < 2:
            return states, made[:, :0]
        pairs = place[:-1]
        made = _rows_at(made, pairs + (pairs > at))
        # the first and the last node are in one pair only, which is then composed twice
        around = torch.cat([at - 1, at], 1).clamp(0, count - 2)
        fresh = self._pair_nodes(_rows_at(states, around), _rows_at(states, around + 1))
        for k in range(2):
            made = torch.where((pairs == around[:, k : k + 1]).unsqueeze(-1), fresh[:, k : k + 1], made)
        return states, made


def _weighted_states(states: Tensor, made: Tensor, y: Tensor) -> Tensor:
    """The states after a merge, weighted by the choice y (B, m)."""
    weight = y.unsqueeze(-1)
    until = weight.cumsum(1)
    return (1 - until) * states[:, :-1] + weight * made + (until - weight) * states[:, 1:]


def _rows_at(x: Tensor, index: Tensor) -> Tensor:
    """The rows of x (B, m, w) at the given places: (B, k, w)."""
    return x[torch.arange(x.shape[0], device=x.device).unsqueeze(-1), index]
