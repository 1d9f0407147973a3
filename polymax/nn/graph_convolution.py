"""Graph convolution over expected dependency trees."""

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.nn.tree_lstm import kept_tokens


class GraphConvolution(nn.Module):
    """A graph convolution along expected arcs: the sum over a token's heads and modifiers, weighted by mu.

        x_j <- relu(W x_j + w + sum_h mu[h, j] (V x_h + v) + mu[0, j] r + sum_m mu[j, m] (U x_m + u))

    once for each layer, with its own parameters; r is the vector of the root symbol. For a tree, mu are its indicators.

    Shapes: tokens (*batch, n, input_dim); mu (*batch, n + 1, n + 1), [head, modifier], 0 the root symbol; lengths
    (*batch,); the result (*batch, n, hidden_dim), 0 at padding

    Example:
        >>> mu = pm.Marginals(pm.SpanningTree())(torch.zeros(4, 4))
        >>> GraphConvolution(5, 8, layers=2)(torch.randn(3, 5), mu).shape
        torch.Size([3, 8])

    See: Marcheggiani and Titov 2017, Encoding sentences with graph convolutional networks; Corro and Titov 2019.
    """

    def __init__(self, input_dim: int, hidden_dim: int, layers: int = 1) -> None:
        super().__init__()
        sizes = [_check.whole(input_dim, "input_dim")] + [_check.whole(hidden_dim, "hidden_dim")] * _check.whole(
            layers, "layers"
        )
        # W, V and U in one matrix
        self.layers = nn.ModuleList(nn.Linear(a, 3 * b) for a, b in zip(sizes[:-1], sizes[1:], strict=True))
        self.roots = nn.ParameterList(torch.randn(hidden_dim) / hidden_dim**0.5 for _ in range(layers))

    def forward(self, tokens: Tensor, mu: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = kept_tokens(tokens, mu, lengths)
        arcs, hanging = mu[..., 1:, 1:], mu[..., 0, 1:].unsqueeze(-1)
        for layer, root in zip(self.layers, self.roots, strict=True):
            own, head, modifier = layer(x).chunk(3, -1)
            x = torch.relu(own + arcs.transpose(-2, -1) @ head + hanging * root + arcs @ modifier)
        return x if lengths is None else kept_tokens(x, mu, lengths)
