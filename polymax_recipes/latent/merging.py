"""A parser that merges neighbours: it grows trees step by step, and all merges are scored at once."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax.nn import BinaryTreeLSTM, TreePlan
from polymax.nn.choice import chosen_log_prob, entropy, log_probs
from polymax.nn.shift_reduce import transitions_of_counts
from polymax_recipes.latent.parser import Judged
from polymax_recipes.training.vocabulary import PAD


class Merges(NamedTuple):
    """Trees, and all pairs of neighbours that were candidates while they grew.

    Shapes, S = n - 1 merges: transitions (b, 2 n - 1), -1 at padding; left and right (b, pairs), the nodes of a pair,
    as the steps of the transitions that make them; there (b, S, n), the pair that begins with token i before a merge;
    allowed (b, S, n), True if there is such a pair; y (b, S, n), the pair that was merged
    """

    transitions: Tensor
    left: Tensor
    right: Tensor
    there: Tensor
    allowed: Tensor
    y: Tensor


class MergeWalk(NamedTuple):
    """Merges, and the plan of their trees."""

    plan: TreePlan
    merges: Merges


class MergeParser(nn.Module):
    """A network that scores pairs of neighbours; one pair is merged at each step, until a single node is left.

        tokens   LSTM(words)        pair   TreeLSTMCell(left, right)        score   <q, h of the pair>

    Nodes of a given tree are composed level by level, and then all candidate pairs in one call: several
    updates on the same trees do not grow them again.

    Shapes: words (b, n); lengths (b,)

    See: Choi, Yoo and Lee 2018; Havrylov, Kruszewski and Joulin 2019, section 3.
    """

    def __init__(self, words: int, size: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size, padding_idx=PAD)
        self.lstm = nn.LSTM(size, hidden, batch_first=True)
        self.nodes = BinaryTreeLSTM(hidden, hidden)
        self.query = nn.Parameter(torch.randn(hidden) / hidden**0.5)

    def walk(self, merges: Merges, lengths: Tensor, plan: TreePlan) -> MergeWalk:
        """Merges with the plan of their trees, as `forward` takes them."""
        return MergeWalk(plan, merges)

    def forward(self, words: Tensor, walk: MergeWalk) -> Judged:
        """The log-probability of merges in their order, and their entropy."""
        _, left, right, there, allowed, y = walk.merges
        nodes = self.nodes(self._read(words), walk.plan, memory=True).nodes
        # a node of 0 after the last one stands for missing nodes
        nodes = nn.functional.pad(nodes, (0, 0, 0, 1))
        scores = self._score_pairs(*(_nodes_at(nodes, index) for index in (left, right)))[0]
        found = scores.gather(1, there.flatten(1)).reshape(there.shape)
        log_p = log_probs(found.masked_fill(~allowed, -torch.inf))
        return Judged(chosen_log_prob(log_p, y).sum(-1), entropy(log_p).sum(-1))

    @torch.no_grad()
    def draw(self, words: Tensor, lengths: Tensor, chance: Tensor) -> Merges:
        """Return merges: drawn at random if chance (b,) is True, else the most probable merge at each step.

        A node has the place of its first token, and stores the places of its neighbours; place n + 1 stands for none.
        """
        b, n = words.shape
        rows = torch.arange(b, device=words.device).unsqueeze(1)
        states = nn.functional.pad(self.nodes.leaf(self._read(words)), (0, 0, 0, 2))
        place = torch.arange(n + 2, device=words.device).expand(b, n + 2)
        following = (place + 1).clamp(max=n + 1)
        before = torch.where((place == 0) | (place > n), n + 1, place - 1)
        # nodes are numbered: tokens first, then as they are merged; and so are pairs
        number, pair = place.clone(), place.clone()
        fresh_pairs = n + 2 + torch.arange(2, device=words.device)
        scores, made = self._score_pairs(states[:, :-1], states[:, 1:])
        scores = nn.functional.pad(scores, (0, 1)).masked_fill(place + 1 >= lengths.unsqueeze(1), -torch.inf)
        made = nn.functional.pad(made, (0, 0, 0, 1))
        lefts, rights = [number.clone()], [following.clone()]
        theres: list[Tensor] = []
        alloweds: list[Tensor] = []
        chosen: list[Tensor] = []
        ends: list[Tensor] = []
        for s in range(n - 1):
            allowed = scores[:, :n] > -torch.inf
            noise = -(-torch.rand(b, n, device=words.device).clamp(min=1e-20).log()).log()
            noisy = scores[:, :n] + noise * chance.unsqueeze(1)
            # if one node is left, the missing node is merged
            at = torch.where(allowed.any(1), noisy.argmax(1), n + 1).unsqueeze(1)
            after = following.gather(1, at)
            end = following.gather(1, after)
            theres.append(pair[:, :n].clone())
            alloweds.append(allowed)
            chosen.append(at)
            ends.append(end)
            states[rows, at] = made[rows, at]
            number.scatter_(1, at, n + 2 + s)
            following.scatter_(1, at, end)
            before.scatter_(1, end, at)
            scores.scatter_(1, after, -torch.inf)
            # the two pairs that the node is in
            first, second = torch.cat([before.gather(1, at), at], 1), torch.cat([at, end], 1)
            found, fresh = self._score_pairs(states[rows, first], states[rows, second])
            real = (first <= n) & (second < lengths.unsqueeze(1)) & (at <= n)
            made[rows, first] = fresh
            scores.scatter_(1, first, found.masked_fill(~real, -torch.inf))
            lefts.append(number.gather(1, first))
            rights.append(number.gather(1, second))
            pair.scatter_(1, first, (fresh_pairs + 2 * s).expand(b, 2))
        transitions, nodes = _number_nodes(lengths, torch.cat([lengths.new_zeros(b, 0), *ends], 1), n)
        left, right = (nodes.gather(1, torch.cat(every, 1)) for every in (lefts, rights))
        none = torch.zeros(b, 0, n, dtype=torch.long, device=words.device)
        there, allowed = (torch.stack(every, 1) if every else none for every in (theres, alloweds))
        y = torch.stack(chosen, 1) == place[:, None, :n] if chosen else none
        return Merges(transitions, left, right, there, allowed.bool(), y.bool())

    def _score_pairs(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (b, k) of pairs of nodes (b, k, 2 d), and the nodes that they would be."""
        h, c = torch.stack([left, right], 2).split(self.nodes.cell.hidden_dim, -1)
        h, c = self.nodes.cell(h, c)
        return h @ self.query, torch.cat([h, c], -1)

    def _read(self, words: Tensor) -> Tensor:
        # a forward LSTM: padding at the end does not change earlier states
        with torch.autocast("cpu", enabled=False):
            return self.lstm(self.words(words))[0]


def _number_nodes(lengths: Tensor, ends: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Transitions, and the step that makes each node: of tokens and two placeholders, then of merges.

    Shapes: ends (b, S), the token after the merged nodes, n + 1 without a merge; nodes (b, n + 2 + S)
    """
    done = ends <= n
    last = torch.where(done, ends - 1, n)
    counts = lengths.new_zeros(len(lengths), n + 1).scatter_add(1, last, done.long())[:, :n]
    transitions = transitions_of_counts(counts, lengths)
    none = transitions.shape[1]
    place = torch.arange(n, device=lengths.device)
    shift = place + counts.cumsum(1) - counts
    shift = nn.functional.pad(torch.where(place < lengths.unsqueeze(1), shift, none), (0, 2), value=none)
    # among the nodes that end in one token, earlier merged nodes are inside of later ones
    inside = ((last.unsqueeze(1) == last.unsqueeze(2)) & done.unsqueeze(1)).tril(-1).sum(2)
    return transitions, torch.cat([shift, torch.where(done, shift.gather(1, last) + 1 + inside, none)], 1)


def _nodes_at(nodes: Tensor, index: Tensor) -> Tensor:
    """The nodes at the given places: (b, k, d) of (b, m, d)."""
    return nodes.gather(1, index.unsqueeze(-1).expand(-1, -1, nodes.shape[-1]))
