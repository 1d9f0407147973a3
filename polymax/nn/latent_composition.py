"""Vectors of sentences, composed along dependency trees: one tree or several for each sentence, or expected arcs."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.nn.graph_convolution import GraphConvolution
from polymax.nn.tree_lstm import ChildSumTreeLSTM
from polymax.structures.compact.heads import decode_heads


class Composition(nn.Module, ABC):
    """A vector of each tree over tokens that are 0 at padding.

    Shapes: tokens (B, n, size); lengths (B,); the results (count, hidden), or (B, hidden)
    """

    @abstractmethod
    def along(self, tokens: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        """Vectors of trees y (B, n + 1, n + 1), indicators [head, modifier], with a gradient in all arcs."""

    @abstractmethod
    def several(self, tokens: Tensor, lengths: Tensor, y: Tensor, at: Tensor) -> Tensor:
        """Vectors of trees y (count, n + 1, n + 1) over the tokens of instances at (count,), each composed once."""

    @abstractmethod
    def soft(self, tokens: Tensor, lengths: Tensor, mu: Tensor) -> Tensor:
        """Vectors along expected arcs mu (B, n + 1, n + 1)."""


class TreeLSTMComposition(Composition):
    """The root state of a child-sum Tree-LSTM.

    With expected arcs, states are updated `layers` times (see `ChildSumTreeLSTM.soft`); along a tree, once for each
    level up to the root.

    Example:
        >>> composition, y = TreeLSTMComposition(3, 8), pm.SpanningTree().encode(torch.tensor([[2, 0]]))
        >>> composition.along(torch.randn(1, 2, 3), torch.tensor([2]), y).shape
        torch.Size([1, 8])
    """

    def __init__(self, size: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.lstm = ChildSumTreeLSTM(size, hidden)
        self.layers = _check.whole(layers, "layers")

    def along(self, tokens: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        return self.lstm.along(tokens, y)

    def several(self, tokens: Tensor, lengths: Tensor, y: Tensor, at: Tensor) -> Tensor:
        return self.lstm(tokens, decode_heads(y), at).root

    def soft(self, tokens: Tensor, lengths: Tensor, mu: Tensor) -> Tensor:
        return self.lstm.soft(tokens, mu, self.layers + 1, lengths).root


class GraphComposition(Composition):
    """The mean over tokens of the states of a graph convolution; 0 for an empty sentence.

    Example:
        >>> mu = pm.Marginals(pm.SpanningTree())(torch.zeros(1, 3, 3))
        >>> GraphComposition(3, 8, layers=2).soft(torch.randn(1, 2, 3), torch.tensor([2]), mu).shape
        torch.Size([1, 8])
    """

    def __init__(self, size: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.gcn = GraphConvolution(size, hidden, layers)

    def along(self, tokens: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        return self.soft(tokens, lengths, y)

    def several(self, tokens: Tensor, lengths: Tensor, y: Tensor, at: Tensor) -> Tensor:
        return self.soft(tokens[at], lengths[at], y)

    def soft(self, tokens: Tensor, lengths: Tensor, mu: Tensor) -> Tensor:
        return mean_of(self.gcn(tokens, mu, lengths), lengths)


def mean_of(states: Tensor, lengths: Tensor) -> Tensor:
    """The mean (B, d) of states (B, n, d) that are 0 at padding; 0 for an empty sentence."""
    return states.sum(1) / lengths.clamp(min=1).unsqueeze(-1)


def before(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Tokens (B, n, d) with padding replaced by 0."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens.masked_fill((place >= lengths.unsqueeze(-1)).unsqueeze(-1), 0)
