"""A decoder-only transformer whose attention is softmax, sparsemax, or entmax with one alpha or one for each head."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

import polymax as pm
from polymax_recipes.lm.data import NOTHING, Batch
from polymax_recipes.training.task import Measured, Model
from polymax_recipes.words import teacher_loss, word_log_probs, words_loss, words_measured

ATTENTIONS: dict[str, Callable[[Any], Callable[..., Tensor]]] = {
    "softmax": lambda options: pm.softmax,
    "sparsemax": lambda options: pm.sparsemax,
    "entmax": lambda options: partial(pm.entmax, alpha=options.alpha),
    "adaptive-entmax": lambda options: pm.nn.AdaptiveEntmax(options.heads),
}


class Rotary(NamedTuple):
    """Cosines and sines of the angles by which pairs of entries are turned, (*batch, n, head / 2)."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, head: int) -> "Rotary":
        """The angles of positions (*batch, n), for heads of a size.

        See: Su et al. 2021, RoFormer, Section 3.2.
        """
        rates = 10_000.0 ** (-torch.arange(0, head, 2, device=positions.device) / head)
        angles = positions.unsqueeze(-1) * rates
        return cls(angles.cos(), angles.sin())

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys (b, heads, n, head) at their positions: inner products depend on differences alone."""
        first, second = x.float().chunk(2, -1)
        cos, sin = (part.unsqueeze(-3) for part in self)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


class Cache(NamedTuple):
    """Keys and values (b, heads, n, head) of a layer for all tokens so far."""

    keys: Tensor
    values: Tensor


class Block(nn.Module):
    """A layer of the transformer: attention to earlier tokens, then a gated network, each on normed states and added to
    them.

    See: Xiong et al. 2020, On layer normalization in the transformer architecture; Shazeer 2020, GLU variants.
    """

    def __init__(self, options: Any) -> None:
        super().__init__()
        size = options.size
        # a multiple of 32 near 8/3 of the size: as many weights as a plain network of four times the size
        inner = max(32, 32 * round(size / 12))
        self.heads = options.heads
        self.attention_norm = nn.RMSNorm(size)
        self.entering = nn.Linear(size, 3 * size, bias=False)
        self.leaving = nn.Linear(size, size, bias=False)
        self.network_norm = nn.RMSNorm(size)
        self.gate = nn.Linear(size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)
        self.dropout = nn.Dropout(options.dropout)
        mapping = ATTENTIONS[options.attention](options)
        self.mapping = pm.nn.LengthScaling(self.heads, mapping) if options.length_scaling else mapping

    def queries_keys_values(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values: each (b, heads, n, head)."""
        parts = self.entering(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        return rotary.rotate(query), rotary.rotate(key), value

    def forward(
        self, x: Tensor, rotary: Rotary, cache: Cache | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """States (b, n, size) after the layer, and the keys and values so far, those of a cache included."""
        query, key, value = self.queries_keys_values(x, rotary)
        if cache is not None:
            key, value = torch.cat([cache.keys, key], -2), torch.cat([cache.values, value], -2)
        context = pm.nn.scaled_dot_product_attention(
            query, key, value, mask, is_causal=cache is None, mapping=self.mapping
        )
        x = x + self.dropout(self.leaving(context.transpose(1, 2).flatten(2)))
        gate, up = self.gate(self.network_norm(x)).chunk(2, -1)
        return x + self.dropout(self.down(silu(gate) * up)), Cache(key, value)


class LanguageModel(Model):
    """Scores of the next token, whose vectors are those by which tokens are read.

    Shapes: tokens (b, n) -> scores (b, n, vocabulary)
    """

    def __init__(self, options: Any, vocabulary: int) -> None:
        super().__init__()
        if options.size % (2 * options.heads):
            raise ValueError(
                f"--size must be a multiple of {2 * options.heads}, twice the number of heads; got {options.size}"
            )
        self.options = options
        self.head = options.size // options.heads
        self.embedding = nn.Embedding(vocabulary, options.size)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.size)
        self.dropout = nn.Dropout(options.dropout)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # what is added to the states, once for each of their parts, stays as large as they are
                added = name.endswith(("leaving.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * options.layers) if added else 0.02)

        # in a list, which is no part of the model: its weights are not saved
        self.teachers: list[Any] = []

    def start(self, data: Any) -> None:
        """Open the teacher, if there is one."""
        if self.options.teacher:
            # a teacher may be a language model itself
            from polymax_recipes.lm.teacher import teacher_of

            self.teachers = [teacher_of(self.options.teacher, data)]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.states(tokens)[0])

    def states(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        caches: list[Cache] | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """States (b, n, size) of tokens, that come after those of caches, and the caches with them."""
        rotary = self.rotary(tokens, positions)
        x = self.dropout(self.embedding(tokens))
        seen = []
        for layer, block in enumerate(self.layers):
            x, cache = block(x, rotary, None if caches is None else caches[layer], mask)
            seen.append(cache)
        return self.norm(x), seen

    def rotary(self, tokens: Tensor, positions: Tensor | None = None) -> Rotary:
        """The angles of tokens (b, n), at positions (b, n) or, without any, counted from 0."""
        counted = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions
        return Rotary.of(counted, self.head)

    def scores(self, states: Tensor) -> Tensor:
        """Scores of all tokens, from states."""
        return linear(states, self.embedding.weight)

    def loss(self, batch: Batch) -> Measured:
        """The loss of each token; outside of training, bits for each byte and other measures of words."""
        if self.training and self.teachers:
            return self.distilled(batch)
        wanted = batch.targets.flatten()
        states, weight = self.states(batch.inputs)[0].flatten(0, 1), self.embedding.weight
        total, scores = words_loss(self.options, states, weight, None, wanted, NOTHING)
        there = wanted != NOTHING
        found: Measured = {"loss": (total, there.sum())}
        if scores is not None:
            found["bits_per_byte"] = total.detach() / math.log(2), batch.widths.sum()
            found["accuracy"] = (scores.detach().argmax(-1) == wanted).sum(), there.sum()
        if not self.training:
            given = None if scores is None else scores[there]
            found |= words_measured(self.options, states[there], weight, None, wanted[there], given)
        return found

    def distilled(self, batch: Batch) -> Measured:
        """The loss of each token whose target is the teacher's distribution."""
        there = batch.targets != NOTHING
        states = self.states(batch.inputs)[0][there]
        target = self.teachers[0].targets(batch)
        return {"loss": (teacher_loss(self.options, states, self.embedding.weight, target), there.sum())}

    def log_probs(self, states: Tensor, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities of all tokens, from states; -inf for tokens that a sparse loss makes impossible."""
        return word_log_probs(self.options, self.scores(states).float() / temperature)

    def optimizer(self, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """AdamW; gains of norms and alphas are not pulled to 0, which would be a choice of their own."""
        matrices = [parameter for parameter in self.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in self.parameters() if parameter.dim() < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr)

    @property
    def layers(self) -> list[Block]:
        """The layers, from the first to the last."""
        return cast(list[Block], list(self.blocks))

    def alphas(self) -> Tensor | None:
        """Return the learned alphas of the heads of each layer, (layers, heads)."""
        inner = [getattr(layer.mapping, "mapping", layer.mapping) for layer in self.layers]
        learned = [mapping for mapping in inner if isinstance(mapping, pm.nn.AdaptiveEntmax)]
        return torch.stack([mapping.alpha.detach() for mapping in learned]) if learned else None

    @torch.no_grad()
    def statistics(self, tokens: Tensor, tile: int = 64) -> list[pm.nn.AttentionStatistics]:
        """Return the sparsity of the attention of each layer on tokens (b, n)."""
        rotary = self.rotary(tokens)
        x = self.embedding(tokens)
        found = []
        for layer in self.layers:
            query, key, _ = layer.queries_keys_values(x, rotary)
            found.append(pm.nn.attention_statistics(query, key, is_causal=True, mapping=layer.mapping, tile=tile))
            x, _ = layer(x, rotary)
        return found
