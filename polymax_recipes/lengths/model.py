"""A small decoder-only transformer: half of its heads know no positions, the other half prefer what is near."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import polymax as pm

Mapping = Callable[..., Tensor]
ATTENTIONS: dict[str, Callable[[int, float], Mapping]] = {
    "softmax": lambda heads, alpha: pm.softmax,
    "scaled-softmax": lambda heads, alpha: pm.nn.LengthScaling(heads, pm.softmax),
    "entmax": lambda heads, alpha: partial(pm.entmax, alpha=alpha),
    "asentmax": lambda heads, alpha: pm.nn.LengthScaling(heads, partial(pm.entmax, alpha=alpha)),
    "sparsemax": lambda heads, alpha: pm.sparsemax,
    "adaptive-entmax": lambda heads, alpha: pm.nn.AdaptiveEntmax(heads),
}
# queries of heads with distances that are computed at once: their biases are a tensor
ROWS = 1024


class Attention(nn.Module):
    """Causal attention; scores of the second half of the heads fall by a slope times the distance (ALiBi).

    Shapes: (b, n, size) -> (b, n, size)

    See: Press, Smith and Lewis 2022, Train short, test long; Kazemnejad et al. 2023, The impact of positional
    encoding on length generalization in Transformers.
    """

    slopes: Tensor

    def __init__(self, attention: str, alpha: float, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.entering = nn.Linear(size, 3 * size, bias=False)
        self.leaving = nn.Linear(size, size, bias=False)
        half = heads // 2
        self.of_content = ATTENTIONS[attention](heads - half, alpha)
        self.of_distance = ATTENTIONS[attention](half, alpha)
        slopes = 2.0 ** (-8 * torch.arange(1, half + 1) / half)
        self.register_buffer("slopes", slopes[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.entering(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        first = self.heads - self.heads // 2
        query, key, value = parts[:, :, :first]
        content = pm.nn.scaled_dot_product_attention(query, key, value, is_causal=True, mapping=self.of_content)
        near = self._near(*parts[:, :, first:])
        return self.leaving(torch.cat([content, near], 1).transpose(1, 2).flatten(2))

    def _near(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found = []
        for start in range(0, query.shape[2], ROWS):
            end = min(start + ROWS, query.shape[2])
            distance = torch.arange(start, end, device=query.device)[:, None] - torch.arange(end, device=query.device)
            found.append(
                pm.nn.scaled_dot_product_attention(
                    query[:, :, start:end],
                    key[:, :, :end],
                    value[:, :, :end],
                    (-self.slopes * distance).to(query.dtype),
                    is_causal=True,
                    causal_offset=start,
                    mapping=self.of_distance,
                )
            )
        return torch.cat(found, 2)


class Layer(nn.Module):
    """Attention, then a network, each on normed states and added to them. Shapes: (b, n, size) -> (b, n, size)"""

    def __init__(self, attention: str, alpha: float, size: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size)
        self.attention = Attention(attention, alpha, size, heads)
        self.network_norm = nn.RMSNorm(size)
        self.up = nn.Linear(size, 4 * size, bias=False)
        self.down = nn.Linear(4 * size, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(gelu(self.up(self.network_norm(x))))


class Decoder(nn.Module):
    """Scores of the next token. Shapes: tokens (b, n) -> (b, n, tokens)"""

    def __init__(self, tokens: int, attention: str, alpha: float, size: int, layers: int, heads: int) -> None:
        super().__init__()
        if heads < 2 or size % heads:
            raise ValueError(f"--size must be a multiple of --heads, and these at least 2; got {size} and {heads}")
        self.embedding = nn.Embedding(tokens, size)
        self.layers = nn.ModuleList(Layer(attention, alpha, size, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(size)
        self.out = nn.Linear(size, tokens, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                added = name.endswith(("leaving.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if added else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Any = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))
