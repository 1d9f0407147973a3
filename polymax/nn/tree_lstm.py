"""Tree-LSTMs: states of trees composed bottom-up, all trees of a batch level by level."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.nn.child_sums import child_sums, for_children
from polymax.nn.latent_arcs import zeros_with_arc_gradient
from polymax.nn.tree_plan import TreePlan, binary_plan, fits, heads_plan
from polymax.structures.compact.heads import decode_heads


class TreeStates(NamedTuple):
    """The state of each root (count, d), and of all nodes (count, T, d), 0 at padding."""

    root: Tensor
    nodes: Tensor


class TreeLSTMCell(nn.Module):
    """A cell that composes two nodes to one.

        i, f_l, f_r, o = sigmoid(W [h_l, h_r, e] + b),    g = tanh(...),    all of them one product
        c = f_l c_l + f_r c_r + i g,        h = o tanh(c)

    e is a context, such as the state of a tracker, used if context_dim is not 0. Forget gates start at sigmoid(1).

    Shapes: h and c (*batch, 2, d), the left child, then the right; context (*batch, context_dim); results (*batch, d)

    Example:
        >>> h, c = TreeLSTMCell(4)(torch.zeros(3, 2, 4), torch.ones(3, 2, 4))
        >>> h.shape, c.shape
        (torch.Size([3, 4]), torch.Size([3, 4]))

    See: Tai, Socher and Manning 2015, section 3.2, with N = 2; Bowman et al. 2016, equations 4 to 6.
    """

    def __init__(self, hidden_dim: int, context_dim: int = 0) -> None:
        super().__init__()
        self.hidden_dim = _check.whole(hidden_dim, "hidden_dim")
        self.gates = nn.Linear(2 * hidden_dim + context_dim, 5 * hidden_dim)
        with torch.no_grad():
            self.gates.bias.zero_()
            self.gates.bias[: 2 * hidden_dim] = 1

    def forward(self, h: Tensor, c: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        d = self.hidden_dim
        pair = h.flatten(-2)
        gates = self.gates(pair if context is None else torch.cat([pair, context], -1))
        # the gradients of `split` are joined in one operation
        logits, proposed = gates.split([4 * d, d], -1)
        forget, add, out = torch.sigmoid(logits).split([2 * d, d, d], -1)
        kept = (forget.unflatten(-1, (2, d)) * c).sum(-2)
        state = torch.addcmul(kept, add, torch.tanh(proposed))
        return out * torch.tanh(state), state


class BinaryTreeLSTM(nn.Module):
    """States of binary trees.

        token   h, c = W x + b
        node    TreeLSTMCell of its two children

    Trees are transitions, or a plan made of them by `binary_plan`. With `at`, tree c is over the tokens of instance
    at[c], as in loss functions of `SparseExpectation` and `ScoreFunction`: each tree is composed once, and each token
    projected once. An empty tree has the state 0. States are h; with `memory`, they are [h, c].

    Shapes: tokens (B, n, input_dim); trees (count, T), 0 to shift, 1 to reduce, -1 at padding; at (count,)

    Example:
        >>> lstm = BinaryTreeLSTM(3, 4)
        >>> lstm(torch.zeros(2, 5, 3), pm.nn.left_branching(torch.tensor([5, 2]))).root.shape
        torch.Size([2, 4])

    See: Tai, Socher and Manning 2015, Improved semantic representations from tree-structured long short-term memory.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(_check.whole(input_dim, "input_dim"), 2 * _check.whole(hidden_dim, "hidden_dim"))
        self.cell = TreeLSTMCell(hidden_dim)

    def forward(
        self, tokens: Tensor, trees: Tensor | TreePlan, at: Tensor | None = None, *, memory: bool = False
    ) -> TreeStates:
        _check.floating(tokens, "tokens")
        if isinstance(trees, TreePlan):
            fits(trees, tokens, at)
        else:
            trees = binary_plan(trees, _width(tokens), _instances_of_trees(trees, tokens, at))
        plan = trees.to(tokens.device)
        d = self.cell.hidden_dim
        leaves = _tokens_by_level(plan, tokens, self.leaf)
        leaf_h, leaf_c = leaves.split(d, -1)
        counts = [level.tokens for level in plan.levels]
        below = leaf_h, leaf_c
        blocks = []
        for level, pairs, *block in zip(
            plan.levels, plan.links_by_level(), leaf_h.split(counts), leaf_c.split(counts), strict=True
        ):
            if level.composed:
                made = self.cell(*(x.index_select(0, pairs).reshape(level.composed, 2, d) for x in below))
                block = [torch.cat(both) if level.tokens else both[0] for both in zip(made, block, strict=True)]
            below = (block[0], block[1])
            blocks.append(torch.cat(below, -1) if memory else block[0])
        return _states(plan, blocks, (leaves if memory else leaf_h)[:0])


class ChildSumTreeLSTM(nn.Module):
    """States of dependency trees, whose nodes are tokens with any number of children.

        i, o = sigmoid(W x_j + U s_j + b),    u = tanh(...),    s_j = sum over children m of h_m
        f_jm = sigmoid(W_f x_j + U_f h_m + b_f)
        c_j = i u + sum over children m of f_jm c_m,        h_j = o tanh(c_j)

    Trees are heads, or a plan made of them by `heads_plan`; `at` is as in `BinaryTreeLSTM`. The root state is the sum
    of h over the tokens that hang from the root symbol; in a tree with a single root, there is one such token.

    Shapes: tokens (B, n, input_dim); trees (count, n), 0 the root symbol, -1 at padding; at (count,)

    Example:
        >>> lstm = ChildSumTreeLSTM(3, 4)
        >>> root, nodes = lstm(torch.randn(2, 3, 3), torch.tensor([[2, 0, 2], [0, 1, -1]]))
        >>> bool((root[0] == nodes[0, 1]).all()), nodes[1, 2]
        (True, tensor([0., 0., 0., 0.], grad_fn=<SelectBackward0>))

    See: Tai, Socher and Manning 2015, section 3.1.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = _check.whole(hidden_dim, "hidden_dim")
        self.input = nn.Linear(_check.whole(input_dim, "input_dim"), 4 * hidden_dim)
        self.gates = nn.Linear(hidden_dim, 3 * hidden_dim, bias=False)
        self.forget = nn.Linear(hidden_dim, hidden_dim, bias=False)
        with torch.no_grad():
            self.input.bias.zero_()
            self.input.bias[3 * hidden_dim :] = 1

    def forward(self, tokens: Tensor, trees: Tensor | TreePlan, at: Tensor | None = None) -> TreeStates:
        _check.floating(tokens, "tokens")
        if isinstance(trees, TreePlan):
            fits(trees, tokens, at)
        elif trees.shape[-1] != _width(tokens):
            raise ValueError(f"heads must be (count, {_width(tokens)}); got {tuple(trees.shape)}")
        plan = trees if isinstance(trees, TreePlan) else heads_plan(trees, _instances_of_trees(trees, tokens, at))
        plan = plan.to(tokens.device)
        blocks = [h for h, _ in self._states_by_level(plan, tokens)]
        return _states(plan, blocks, tokens.new_zeros(0, self.hidden_dim))

    def along(self, tokens: Tensor, y: Tensor) -> Tensor:
        """Root states (B, d) of trees y, with the gradient in y that the sums over children have in their weights.

            s_j = sum_m y[j, m] h_m,        c_j = i u + sum_m y[j, m] f_jm c_m,        root = sum_m y[0, m] h_m

        An arc that is not in the tree has a gradient, too: that of adding a copy of m below j. It is the derivative of
        `soft` with enough rounds to converge, at the cost of one tree.

        Shapes: tokens (B, n, input_dim), 0 at padding; y (B, n + 1, n + 1), indicators [head, modifier]
        """
        kept_tokens(tokens, y, None)
        plan = heads_plan(decode_heads(y.detach())).to(tokens.device)
        none = tokens.new_zeros(0, self.hidden_dim)
        if not (torch.is_grad_enabled() and y.requires_grad):
            return _states(plan, [h for h, _ in self._states_by_level(plan, tokens)], none).root
        with torch.no_grad():
            h, c = (_states(plan, list(blocks), none).nodes for blocks in zip(*self._states_by_level(plan, tokens)))
            forget = nn.functional.linear(tokens, *(t[3 * self.hidden_dim :] for t in self.input.parameters()))
            below = self.forget(h)
        added = zeros_with_arc_gradient(y[:, 1:, 1:], h, c, forget, below)
        root = _states(plan, [h for h, _ in self._states_by_level(plan, tokens, added)], none).root
        hanging = y[:, 0, 1:]
        return root + ((hanging - hanging.detach()).unsqueeze(1) @ h).squeeze(1)

    def _states_by_level(
        self, plan: TreePlan, tokens: Tensor, added: tuple[Tensor, Tensor] | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """h and c of each level; `added` (B, n, d) are further terms of s and of c of each token."""
        d = self.hidden_dim
        inputs = _tokens_by_level(plan, tokens, self.input)
        counts = [level.composed for level in plan.levels]
        more: list[tuple[Tensor, ...]] = [()] * len(counts)
        if added is not None:
            rows = plan.used.index_select(0, plan.tokens)
            more = list(zip(*(t.flatten(0, 1).index_select(0, rows).split(counts) for t in added)))
        h = c = inputs[:0, :d]
        blocks = []
        for level, x, parents, starts, terms in zip(
            plan.levels, inputs.split(counts), plan.links_by_level(), plan.starts_by_level(), more, strict=True
        ):
            gates, forget = x.split([3 * d, d], -1)
            total, kept = terms or (None, None)
            if level.children:
                held = torch.sigmoid(for_children(forget, parents, starts) + self.forget(h)) * c
                sums = child_sums(torch.cat([h, held], -1), parents, starts).split(d, -1)
                total, kept = sums if total is None or kept is None else (sums[0] + total, sums[1] + kept)
            h, c = self._state(gates, total, kept)
            blocks.append((h, c))
        return blocks

    def soft(self, tokens: Tensor, mu: Tensor, rounds: int, lengths: Tensor | None = None) -> TreeStates:
        """States in which each token m is a child of every other token h, with weight mu[h, m].

            s_j = sum_m mu[j, m] h_m,        c_j = i u + sum_m mu[j, m] f_jm c_m

        These equations are circular: their right-hand sides are evaluated `rounds` times, from h = c = 0. If mu is a
        tree with at most `rounds` levels, the result is that of the Tree-LSTM. The root state is sum_m mu[0, m] h_m.

        Shapes: tokens (*batch, n, input_dim); mu (*batch, n + 1, n + 1), [head, modifier], 0 the root symbol
        """
        _check.whole(rounds, "rounds")
        d = self.hidden_dim
        gates, forget = self.input(kept_tokens(tokens, mu, lengths)).split([3 * d, d], -1)
        mu = mu[..., 1:]
        h, c = self._state(gates, None, None)
        for _ in range(rounds - 1):
            pairs = torch.sigmoid(forget.unsqueeze(-2) + self.forget(h).unsqueeze(-3))
            kept = (mu[..., 1:, :].unsqueeze(-1) * pairs * c.unsqueeze(-3)).sum(-2)
            h, c = self._state(gates, mu[..., 1:, :] @ h, kept)
        if lengths is not None:
            h = _before(h, lengths)
        return TreeStates((mu[..., :1, :] @ h).squeeze(-2), h)

    def _state(self, x: Tensor, h: Tensor | None, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """h and c from W x + b, the sum over children of h, and the sum of f c; None if there are no children."""
        d = self.hidden_dim
        logits, proposed = (x if h is None else x + self.gates(h)).split([2 * d, d], -1)
        add, out = torch.sigmoid(logits).split(d, -1)
        c = add * torch.tanh(proposed)
        c = c if kept is None else c + kept
        return out * torch.tanh(c), c


def _tokens_by_level(plan: TreePlan, tokens: Tensor, layer: nn.Linear) -> Tensor:
    """The tokens of all trees, in the order of levels, after a layer that is applied once to each distinct token."""
    flat = tokens.flatten(0, 1)
    if plan.used.numel() == plan.tokens.numel():
        return layer(flat.index_select(0, plan.used.index_select(0, plan.tokens)))
    # trees share tokens: the backward of indexing adds up gradients in a fixed order on every device
    return layer(flat.index_select(0, plan.used))[plan.tokens]


def _states(plan: TreePlan, blocks: list[Tensor], none: Tensor) -> TreeStates:
    """The states of roots and nodes, from blocks (size, d) of levels."""
    last = blocks[-1] if blocks else none
    # the row after the last is 0, for nodes that do not exist
    top = nn.functional.pad(last, (0, 0, 0, 1)).index_select(0, plan.roots.flatten())
    nodes = torch.cat([*blocks, none.new_zeros(1, none.shape[1])]).index_select(0, plan.nodes.flatten())
    return TreeStates(
        top.reshape(*plan.roots.shape, none.shape[1]).sum(1), nodes.reshape(*plan.nodes.shape, none.shape[1])
    )


def kept_tokens(tokens: Tensor, mu: Tensor, lengths: Tensor | None) -> Tensor:
    """Tokens, 0 at padding; a ValueError if the shape of mu does not fit them."""
    _check.floating(tokens, "tokens")
    n = tokens.shape[-2] + 1 if tokens.dim() > 1 else 0
    if tokens.dim() < 2 or mu.shape != (*tokens.shape[:-2], n, n):
        raise ValueError(f"mu must be (*batch, n + 1, n + 1) for tokens {tuple(tokens.shape)}; got {tuple(mu.shape)}")
    return tokens if lengths is None else _before(tokens, lengths)


def _before(x: Tensor, lengths: Tensor) -> Tensor:
    place = torch.arange(x.shape[-2], device=x.device)
    return x.masked_fill((place >= lengths.to(x.device).unsqueeze(-1)).unsqueeze(-1), 0)


def _width(tokens: Tensor) -> int:
    if tokens.dim() != 3:
        raise ValueError(f"tokens must be (B, n, dim); got {tuple(tokens.shape)}")
    return tokens.shape[1]


def _instances_of_trees(trees: Tensor, tokens: Tensor, at: Tensor | None) -> Tensor | None:
    """The instance `at` of each tree; None is allowed only if the numbers of trees and instances agree."""
    if at is None and trees.shape[0] != tokens.shape[0]:
        raise ValueError(f"trees must be ({tokens.shape[0]}, ...), or come with at; got {tuple(trees.shape)}")
    if at is not None and _check.readable(at) and at.numel() and not 0 <= int(at.min()) <= int(at.max()) < len(tokens):
        raise ValueError(f"at must be in [0, {len(tokens)}); got values in [{at.min()}, {at.max()}]")
    return at
