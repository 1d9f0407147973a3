"""A shift-reduce parser: it chooses actions step by step, and all actions of given trees are scored at once."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax.nn import BinaryTreeLSTM, TreePlan, tree_spans
from polymax.nn.choice import chosen_log_prob, entropy, log_probs
from polymax.nn.shift_reduce import REDUCE, SHIFT
from polymax_recipes.training.vocabulary import PAD


class Judged(NamedTuple):
    """The log-probability (b,) of the actions of each sentence, and their entropy (b,), summed over steps."""

    log_prob: Tensor
    entropy: Tensor


class Drawn(NamedTuple):
    """The actions that a parser took. Shapes: transitions (b, 2 n - 1), -1 at padding"""

    transitions: Tensor


class Walk(NamedTuple):
    """States, allowed actions and scores of a parser along given transitions, and the plan of their trees.

    Shapes, T = 2 n - 1: seen (b, 3 T), for each step the first node of the buffer, the topmost and the second of the
    stack; nodes are given by the steps that make them, T for missing ones; allowed and y (b, T, 2), of shifting and
    reducing
    """

    plan: TreePlan
    seen: Tensor
    allowed: Tensor
    y: Tensor


def walk_along(transitions: Tensor, lengths: Tensor, plan: TreePlan) -> Walk:
    """Return the `Walk` along transitions (b, 2 n - 1) over sentences of lengths (b,).

    The last step made the topmost node. The step before the first token of the topmost node was shifted made the
    second.
    """
    b, steps = transitions.shape
    n = (steps + 1) // 2
    shifts = transitions == SHIFT
    place = torch.arange(steps, device=transitions.device).expand(b, steps)
    shifted = shifts.cumsum(1) - shifts.long()
    size = (torch.where(shifts, 1, -1) * (transitions >= 0)).cumsum(1)
    size = nn.functional.pad(size[:, :-1], (1, 0))
    # the step that shifts each token; other steps write beyond the end
    step_of = torch.full((b, n + 1), steps, device=transitions.device)
    step_of = step_of.scatter(1, torch.where(shifts, shifted, n), torch.where(shifts, place, steps))
    first = nn.functional.pad(tree_spans(transitions)[:, :-1, 0].clamp(min=0), (1, 0))
    can_shift = shifted < lengths.unsqueeze(1)
    buffer = torch.where(can_shift, step_of.gather(1, shifted), steps)
    top = torch.where(size > 0, place - 1, steps)
    second = torch.where(size > 1, step_of.gather(1, first) - 1, steps)
    y = transitions.unsqueeze(-1) == torch.arange(2, device=transitions.device)
    return Walk(plan, torch.stack([buffer, top, second], -1).flatten(1), torch.stack([can_shift, size > 1], -1), y)


class TransitionParser(nn.Module):
    """A network that scores actions from the nodes on the stack and in the buffer, without a recurrent state.

        tokens   LSTM(words)            nodes   BinaryTreeLSTM(tokens, tree)
        scores   0 to shift, W tanh(V [first of the buffer, topmost, second]) + b to reduce

    With a recurrent state, actions could be scored only step by step. So `forward` scores all steps of given trees at
    once, level by level, for several updates on the same trees.

    Shapes: words (b, n); lengths (b,); transitions (b, 2 n - 1), 0 to shift, 1 to reduce, -1 at padding

    Example:
        >>> parser, words, lengths = TransitionParser(9, 4, 5), torch.tensor([[4, 5, 6]]), torch.tensor([3])
        >>> trees = torch.tensor([[0, 0, 1, 0, 1], [0, 0, 0, 1, 1]])
        >>> found = parser(words.expand(2, 3), walk_along(trees, lengths.expand(2), pm.nn.binary_plan(trees, 3)))
        >>> bool(torch.isclose(found.log_prob.exp().sum(), torch.tensor(1.0)))
        True
    """

    def __init__(self, words: int, size: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size, padding_idx=PAD)
        self.lstm = nn.LSTM(size, hidden, batch_first=True)
        self.nodes = BinaryTreeLSTM(hidden, hidden)
        self.seen = nn.Linear(3 * hidden, hidden)
        self.reduce = nn.Linear(hidden, 1)

    def walk(self, drawn: Drawn, lengths: Tensor, plan: TreePlan) -> Walk:
        """The walk along transitions, as `forward` takes it."""
        return walk_along(drawn.transitions, lengths, plan)

    def forward(self, words: Tensor, walk: Walk) -> Judged:
        """Log-probability and entropy of given transitions."""
        nodes = self.nodes(self._read(words), walk.plan).nodes
        # a node of 0 after the last one stands for missing nodes
        nodes = nn.functional.pad(nodes, (0, 0, 0, 1))
        seen = nodes.gather(1, walk.seen.unsqueeze(-1).expand(-1, -1, nodes.shape[-1]))
        logits = self.reduce(torch.tanh(self.seen(seen.unflatten(1, (-1, 3)).flatten(2)))).squeeze(-1)
        scores = torch.stack([torch.zeros_like(logits), logits], -1).masked_fill(~walk.allowed, -torch.inf)
        log_p = log_probs(scores)
        return Judged(chosen_log_prob(log_p, walk.y).sum(-1), entropy(log_p).sum(-1))

    @torch.no_grad()
    def draw(self, words: Tensor, lengths: Tensor, chance: Tensor) -> Drawn:
        """Return transitions: drawn at random if chance (b,) is True, else the most probable action at each step."""
        b, n = words.shape
        width = max(2 * n - 1, 0)
        leaves = self.nodes.leaf(self._read(words))
        d = leaves.shape[-1] // 2
        rows = torch.arange(b, device=words.device)
        # the largest of two scores with Gumbel noise: their difference has logistic noise
        uniform = torch.rand(b, width, device=words.device).clamp(1e-7, 1 - 1e-7)
        noise = torch.where(chance.unsqueeze(1), uniform.logit(), 0)
        # nodes are stored by the step that made them; the last row stands for missing nodes
        nodes = leaves.new_zeros(b, width + 1, 2 * d)
        leaves = nn.functional.pad(leaves, (0, 0, 0, 1))
        stack = torch.full((b, n + 2), width, device=words.device)
        size, moved = torch.zeros_like(lengths), torch.zeros_like(lengths)
        actions = []
        for t in range(width):
            can_shift, can_reduce = moved < lengths, size > 1
            first = leaves[rows, torch.where(can_shift, moved, n)]
            top = nodes[:, t - 1] * (size > 0).unsqueeze(1) if t else nodes[:, width]
            below = nodes[rows, stack[rows, size - 1]]
            seen = torch.cat([first[:, :d], top[:, :d], below[:, :d]], -1)
            logit = self.reduce(torch.tanh(self.seen(seen))).squeeze(-1)
            reduce = can_reduce & ((logit + noise[:, t] > 0) | ~can_shift)
            shift = can_shift & ~reduce
            h, c = torch.stack([below, top], 1).split(d, -1)
            made = torch.cat(self.nodes.cell(h, c), -1)
            nodes[:, t] = torch.where(reduce.unsqueeze(1), made, first)
            size = size + shift.long() - reduce.long()
            moved = moved + shift.long()
            # place `size` holds the topmost node; below the bottom are missing nodes
            stack[rows, torch.where(shift | reduce, size, 0)] = torch.where(shift | reduce, t, width)
            actions.append(torch.where(reduce, REDUCE, torch.where(shift, SHIFT, -1)))
        return Drawn(torch.stack(actions, 1) if actions else words.new_zeros(b, 0))

    def _read(self, words: Tensor) -> Tensor:
        # a forward LSTM: padding at the end does not change earlier states
        with torch.autocast("cpu", enabled=False):
            return self.lstm(self.words(words))[0]
