"""A shift-reduce parser apart from what is made of its trees: it acts step by step, and is judged all at once."""

import torch
from torch import Tensor, nn

from polymax.nn.shift_reduce import REDUCE, SHIFT, tree_spans
from polymax.nn.spinn import Parsed, parsed
from polymax.nn.tree_lstm import BinaryTreeLSTM
from polymax.nn.tree_plan import TreePlan
from polymax.recipes.training.vocabulary import PAD


class TransitionParser(nn.Module):
    """Scores of actions from what lies on the stack and in the buffer; no state runs along with the actions.

        tokens   LSTM(words)            nodes   BinaryTreeLSTM(tokens, tree)
        scores   0 to shift, W tanh(V [first of the buffer, topmost, second]) + b to reduce

    With a state of its own the parser could be judged only step by step. So `forward` takes all steps of given
    trees at once, level by level of the trees, which is what several updates on the same trees need.

    Shapes: words (b, n); lengths (b,); transitions (b, 2 n - 1), 0 to shift, 1 to reduce, -1 at padding
    """

    def __init__(self, words: int, size: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size, padding_idx=PAD)
        self.lstm = nn.LSTM(size, hidden, batch_first=True)
        self.nodes = BinaryTreeLSTM(hidden, hidden)
        self.seen = nn.Linear(3 * hidden, hidden)
        self.reduce = nn.Linear(hidden, 1)

    def forward(self, words: Tensor, lengths: Tensor, transitions: Tensor, plan: TreePlan) -> Parsed:
        """Scores and probabilities of given transitions, with the plan of their trees; `root` is the parser's own."""
        read = self._read(words)
        root, nodes = self.nodes(read, plan)
        steps = transitions.clamp(min=0)
        shifts = transitions == SHIFT
        # what is not there is a node of 0 after the last
        none = nodes.shape[1]
        nodes = nn.functional.pad(nodes, (0, 0, 0, 1))
        place = torch.arange(none, device=words.device)
        moved = shifts.cumsum(1)
        before = moved - shifts.long()
        size = (torch.where(shifts, 1, -1) * (transitions >= 0)).cumsum(1)
        size = nn.functional.pad(size[:, :-1], (1, 0))
        # the step that shifts each token
        step_of = torch.full_like(nn.functional.pad(words, (0, 1)), none)
        step_of = step_of.scatter(1, torch.where(shifts, before, words.shape[1]), place.expand_as(steps))
        step_of[:, -1] = none
        first_token = nn.functional.pad(tree_spans(transitions)[:, :-1, 0].clamp(min=0), (1, 0))
        top = torch.where(size > 0, place - 1, none)
        second = torch.where(size > 1, step_of.gather(1, first_token) - 1, none)
        buffer = torch.where(before < lengths.unsqueeze(1), step_of.gather(1, before), none)
        seen = torch.cat([_picked(nodes, index) for index in (buffer, top, second)], -1)
        logits = self.reduce(torch.tanh(self.seen(seen))).squeeze(-1)
        allowed = torch.stack([before < lengths.unsqueeze(1), size > 1], -1)
        scores = torch.stack([torch.zeros_like(logits), logits], -1).masked_fill(~allowed, -torch.inf)
        y = (transitions.unsqueeze(-1) == torch.arange(2, device=words.device)).to(scores.dtype)
        return parsed(root, scores, y, 1.0)

    @torch.no_grad()
    def draw(self, words: Tensor, lengths: Tensor, chance: Tensor) -> Tensor:
        """Transitions, drawn where chance (b,) is True, the most probable action at each step where it is not."""
        b, n = words.shape
        width = max(2 * n - 1, 0)
        leaves = self.nodes.leaf(self._read(words))
        d = leaves.shape[-1] // 2
        rows = torch.arange(b, device=words.device)
        # the largest of two scores with Gumbel noise: their difference has logistic noise
        uniform = torch.rand(b, width, device=words.device).clamp(1e-7, 1 - 1e-7)
        noise = torch.where(chance.unsqueeze(1), uniform.logit(), 0)
        # nodes are kept by the step that made them; the last row is what is not there
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
            # place `size` holds the topmost; below the bottom is what is not there
            stack[rows, torch.where(shift | reduce, size, 0)] = torch.where(shift | reduce, t, width)
            actions.append(torch.where(reduce, REDUCE, torch.where(shift, SHIFT, -1)))
        return torch.stack(actions, 1) if actions else words.new_zeros(b, 0)

    def _read(self, words: Tensor) -> Tensor:
        # from left to right: what pads the end has no say
        with torch.autocast("cpu", enabled=False):
            return self.lstm(self.words(words))[0]


def _picked(nodes: Tensor, index: Tensor) -> Tensor:
    """Nodes (b, k, d) of (b, m, d)."""
    return nodes.gather(1, index.unsqueeze(-1).expand(-1, -1, nodes.shape[-1]))
