"""SPINN: a shift-reduce parser that composes a sentence while it parses."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.nn.choice import Policy, checked_policy, choose, chosen_log_prob, entropy, log_probs, temperature
from polymax.nn.shift_reduce import check_transitions
from polymax.nn.thin_stack import ThinStack
from polymax.nn.tree_lstm import TreeLSTMCell
from polymax.smoothing import HardMax
from polymax.structures.base import checked_lengths
from polymax.structures.simplex import Simplex


class Parsed(NamedTuple):
    """The result of parsing a batch of sentences.

    Shapes:
        root (B, d): the state of each tree, 0 for an empty sentence
        transitions (B, 2 n - 1): -1 at padding
        log_prob (B,): the sum over all actions of a sentence, at least in float32
        entropy (B,): the sum over its steps, at least in float32
        scores (B, 2 n - 1, 2): of shifting and reducing, -inf for actions that are not possible
    """

    root: Tensor
    transitions: Tensor
    log_prob: Tensor
    entropy: Tensor
    scores: Tensor


class Reader(nn.Module):
    """The parts of the machine: states of tokens, a tracker of stack and buffer, scores of actions, and a cell.

    token     h, c = W x + b
    tracker   e = LSTM(h of the first in the buffer, of the topmost and the second on the stack)
    scores    W e + b, of shifting and reducing
    node      TreeLSTMCell(left, right, e)
    """

    def __init__(self, input_dim: int, hidden_dim: int, tracker_dim: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(_check.whole(input_dim, "input_dim"), 2 * _check.whole(hidden_dim, "hidden_dim"))
        self.tracker = nn.LSTMCell(3 * hidden_dim, _check.whole(tracker_dim, "tracker_dim"))
        self.action = nn.Linear(tracker_dim, 2)
        self.cell = TreeLSTMCell(hidden_dim, tracker_dim)

    def leaves(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """States (B, n, 2 d) of tokens, [h, c]."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        outside = (place >= lengths.unsqueeze(-1)).unsqueeze(-1)
        return self.leaf(tokens.masked_fill(outside, 0))

    def track(self, seen: Tensor, memory: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """The tracker's next state, given nodes (R, 3, 2 d): the buffer's first, the stack's topmost and second."""
        return self.tracker(seen[..., : self.cell.hidden_dim].flatten(1), memory)

    def act(self, memory: tuple[Tensor, Tensor], allowed: Tensor) -> Tensor:
        """Scores (R, 2) of actions, -inf for actions that are not possible."""
        return self.action(memory[0]).masked_fill(~allowed, -torch.inf)

    def outcomes(self, seen: Tensor, e: Tensor, allowed: Tensor) -> Tensor:
        """The nodes (R, 2, 2 d) made by shifting and by reducing, 0 for actions that are not possible."""
        d = self.cell.hidden_dim
        first, top, second = seen.unbind(1)
        h, c = torch.stack([second, top], 1).split(d, -1)
        node = torch.cat(self.cell(h, c, e), -1)
        # the node of an action that is not possible is 0, even if it is not finite
        return torch.stack([first, node], 1).masked_fill(~allowed.unsqueeze(-1), 0)


class SPINN(nn.Module):
    """A parser and interpreter of sentences: at each step it shifts a token or reduces two nodes to one.

        p(action t) = softmax(scores_t / gamma) over the possible actions
        node t = y_shift (first of the buffer) + y_reduce (composition of the two topmost),        y the choice

    Without given transitions, `policy` chooses y. HardMax(Simplex()) takes the best action. Marginals(Simplex()) draws,
    for the score function. StraightThrough and PerturbAndMap choose an action for the stack, and have the gradient in y
    of the equation above. gamma is the policy's, or 1 if it has none. A sentence of n tokens takes 2 n - 1 steps. A
    single token is shifted with probability 1. An empty sentence has no step, and a root of 0.

    Shapes: tokens (B, n, input_dim); lengths (B,); transitions (B, 2 n - 1), 0 to shift, 1 to reduce, -1 at padding

    Example:
        >>> spinn = SPINN(3, 8, 5)
        >>> found = spinn(torch.zeros(2, 4, 3), torch.tensor([4, 1]))
        >>> found.root.shape, found.transitions[1].tolist()
        (torch.Size([2, 8]), [0, -1, -1, -1, -1, -1, -1])

    See: Bowman et al. 2016, A fast unified model for parsing and sentence understanding; Yogatama et al. 2017.
    """

    def __init__(self, input_dim: int, hidden_dim: int, tracker_dim: int) -> None:
        super().__init__()
        self.reader = Reader(input_dim, hidden_dim, tracker_dim)

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        transitions: Tensor | None = None,
        policy: Policy = HardMax(Simplex()),  # noqa: B008
        generator: torch.Generator | None = None,
    ) -> Parsed:
        """Parse by given transitions, or by a policy."""
        scale = temperature(checked_policy(policy))
        sizes, width = checked_sentences(tokens, lengths)
        given = None if transitions is None else _checked_transitions(transitions, sizes, width)
        leaves = self.reader.leaves(tokens, sizes)
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        machine = ThinStack(leaves, rows, sizes, width)
        memory = None
        scores, actions = [], []
        for t in range(width):
            seen, allowed = machine.seen, machine.allowed()
            memory = self.reader.track(seen, memory)
            each = self.reader.act(memory, allowed)
            if given is None:
                y = choose(policy, each, generator)
            else:
                y = (given[:, t : t + 1] == torch.arange(2, device=each.device)).to(each.dtype)
            node = (y.unsqueeze(-1) * self.reader.outcomes(seen, memory[0], allowed)).sum(1)
            machine.push(node, y.detach())
            scores.append(each)
            actions.append(y)
        root = machine.roots()[:, : self.reader.cell.hidden_dim]
        return result_of_parse(root, _stack_steps(scores, tokens), _stack_steps(actions, tokens), scale)


def result_of_parse(root: Tensor, scores: Tensor, y: Tensor, scale: float | Tensor) -> Parsed:
    """The result of a parse, from its scores and choices y, both (B, T, 2)."""
    log_p = log_probs(scores / scale)
    some = y.detach().amax(-1) > 0 if y.shape[1] else y.new_zeros(y.shape[:2], dtype=torch.bool)
    steps = torch.where(some, y.detach().argmax(-1) if y.shape[1] else 0, -1)
    return Parsed(root, steps, chosen_log_prob(log_p, y).sum(-1), entropy(log_p).sum(-1), scores)


def checked_sentences(tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, int]:
    """Lengths (B,) of tokens (B, n, dim), and the number of steps 2 n - 1."""
    _check.floating(tokens, "tokens")
    if tokens.dim() != 3:
        raise ValueError(f"tokens must be (B, n, dim); got {tuple(tokens.shape)}")
    sizes = checked_lengths(lengths, tokens.shape[:1], tokens.shape[1], tokens.device, "lengths")
    return sizes, max(2 * tokens.shape[1] - 1, 0)


def _checked_transitions(transitions: Tensor, lengths: Tensor, width: int) -> Tensor:
    steps = check_transitions(transitions, lengths)
    if steps.shape != (lengths.shape[0], width):
        raise ValueError(f"transitions must be {(lengths.shape[0], width)}; got {tuple(steps.shape)}")
    return steps.to(lengths.device)


def _stack_steps(rows: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(rows, 1) if rows else like.new_zeros(like.shape[0], 0, 2)
