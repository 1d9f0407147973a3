"""Multi-head attention with any mapping in the place of softmax."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, pad

from polymax import _check
from polymax.mappings import softmax
from polymax.nn.attention import attention_weights, scaled_dot_product_attention
from polymax.nn.attention_mapping import Mapping, check_heads, checked_mapping
from polymax.nn.attention_sharded import attend_parts
from polymax.nn.attention_values import weighted_sum
from polymax.nn.packed_attention import as_jagged, as_strided
from polymax.sharding.placements import is_sharded


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with a mapping: the same arguments, parameters, masks and results.

        head_h = mapping(scale (query W_h^Q) (key W_h^K)^T + masks) value W_h^V        out = concat(heads) W^O + b

    A state_dict loads in both directions; a mapping that is a module, such as `AdaptiveEntmax(num_heads)` or
    `LengthScaling(num_heads)`, adds its own parameters. A mapping may be given by name: `mapping="entmax"`.
    As in torch, masks are True where attention is *not* allowed, or floats that are added; a query that may attend to
    nothing gets the bias of the output instead of NaN, and is_causal needs no attn_mask. With need_weights=False the
    heads are `scaled_dot_product_attention`, which need not hold all weights at once. Nested tensors of both layouts
    are taken, with batch_first=True.

    Shapes: as in torch; weights are (N, L, S), or (N, num_heads, L, S) with average_attn_weights=False

    Example:
        >>> attention = MultiheadAttention(8, 2, batch_first=True, mapping=pm.sparsemax)
        >>> x = torch.randn(3, 5, 8)
        >>> out, weights = attention(x, x, x, is_causal=True)
        >>> weights.shape, bool((weights.triu(1) == 0).all())
        (torch.Size([3, 5, 5]), True)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        mapping: Mapping = softmax,
    ) -> None:
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim must be a positive multiple of num_heads; got {embed_dim} and {num_heads}")
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.mapping = checked_mapping(mapping)
        check_heads(self.mapping, num_heads, "MultiheadAttention")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The context (N, L, E), or (L, N, E) without batch_first, and the weights if they are needed."""
        strided = isinstance(query, Tensor) and query.is_nested and query.layout == torch.strided
        if strided and all(isinstance(t, Tensor) and t.is_nested for t in (key, value)):
            query, key, value = (as_jagged(t) for t in (query, key, value))
        self._check_inputs(query, key, value)
        if query.is_nested and need_weights:
            raise ValueError("need_weights must be False if query is a nested tensor: its weights have several shapes")
        batched = query.dim() == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)

        q, k, v = self._projections(query, key, value)
        # all queries see the added keys, which takes a mask; without added keys is_causal is enough
        told = is_causal and self.bias_k is None and not self.add_zero_attn
        mask = self._mask(q, k, key_padding_mask, attn_mask, is_causal and not told)
        k, v, mask = self._with_extra_keys(k, v, mask)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = None
        if need_weights and is_sharded(q):
            heads, weights = attend_parts(partial(self._with_weights, told), q, k, v, mask, None, self.mapping)
        elif need_weights:
            heads, weights = self._with_weights(told, q, k, v, mask, None, self.mapping)
        else:
            drop = self.dropout if self.training else 0.0
            heads = scaled_dot_product_attention(q, k, v, mask, drop, told, mapping=self.mapping)
        out = self.out_proj(heads.transpose(1, 2).flatten(2))

        if strided:
            out = as_strided(out)
        elif not batched:
            out = out[0]
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if weights is None:
            return out, None
        weights = weights if batched else weights[0]
        return out, weights.mean(-3) if average_attn_weights else weights

    def _with_weights(
        self, is_causal: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: None, mapping: Mapping
    ) -> tuple[Tensor, Tensor]:
        """The heads (N, heads, L, V), and the weights by which they sum values."""
        weights = attention_weights(q, k, mask, is_causal, mapping=mapping, sinks=sinks)
        weights = dropout(weights, self.dropout, self.training)
        return weighted_sum(weights, v).to(v.dtype), weights

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        given = (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim))
        if isinstance(query, Tensor) and query.is_nested:
            if not all(isinstance(t, Tensor) and t.is_nested and t.layout == torch.jagged for t in (query, key, value)):
                raise ValueError("query, key and value must all be nested tensors of one layout, or none of them")
            if not self.batch_first:
                raise ValueError("batch_first must be True for nested tensors, whose first dim is the batch")
        for name, t, channels in given:
            if not isinstance(t, Tensor):
                raise TypeError(f"{name} must be a tensor; got {type(t).__name__}")
            if t.dim() == 0 or t.shape[-1] != channels:
                raise ValueError(f"{name} must have {channels} channels in its last dim; got {tuple(t.shape)}")
        if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
            shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
            raise ValueError(f"query, key and value must all have 3 dims, or 2 without a batch; got {shapes}")
        if query.is_nested:
            return
        if key.shape[:-1] != value.shape[:-1]:
            shape = (*key.shape[:-1], self.vdim)
            raise ValueError(f"value must be {shape}, one for each key; got {tuple(value.shape)}")
        batch = 0 if self.batch_first else 1
        if query.dim() == 3 and query.shape[batch] != key.shape[batch]:
            raise ValueError(
                f"key must have the batch of query, {query.shape[batch]} in dim {batch}; got {tuple(key.shape)}"
            )

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # if this is True, torch's encoder layer takes a fast path that computes softmax
        self._qkv_same_embed_dim = False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # tensor parallelism keeps the three projections apart
        names = [f"{prefix}{name}_proj_weight" for name in "qkv"]
        if self.in_proj_weight is not None and all(name in state_dict for name in names):
            state_dict[f"{prefix}in_proj_weight"] = torch.cat([state_dict.pop(name) for name in names])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _projections(self, *inputs: Tensor) -> list[Tensor]:
        if self.in_proj_weight is not None:
            matrices = self.in_proj_weight.chunk(3)
        else:
            matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [linear(x, matrix, bias) for x, matrix, bias in zip(inputs, matrices, biases, strict=True)]

    def _mask(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool
    ) -> Tensor | None:
        """The float mask that is added to the scores, broadcasting to (N, num_heads, L, S); None for no mask."""
        n, lengths = q.shape[0], (q.shape[1], k.shape[1])
        masks = []
        if key_padding_mask is not None:
            masks.append(_additive(key_padding_mask, q, "key_padding_mask", (n, lengths[1]))[:, None, None])
        if attn_mask is not None:
            flat = not isinstance(attn_mask, Tensor) or attn_mask.dim() == 2
            added = _additive(attn_mask, q, "attn_mask", lengths if flat else (n * self.num_heads, *lengths))
            masks.append(added if flat else added.unflatten(0, (n, self.num_heads)))
        if is_causal:
            later = q.new_ones(lengths, dtype=torch.bool).triu(1)
            masks.append(_additive(later, q, "is_causal", lengths))
        return sum(masks[1:], masks[0]) if masks else None

    def _with_extra_keys(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values, followed by the learned bias key and the key of zeros if used, and the padded mask."""
        columns = k.shape[1]
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([t, b.expand(len(t), 1, -1)], 1) for t, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
        return k, v, None if mask is None else pad(mask, (0, k.shape[1] - columns))


def _additive(mask: Tensor, q: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(mask, Tensor) or (mask.dtype != torch.bool and not mask.is_floating_point()):
        raise TypeError(f"{name} must be a bool tensor (True = not allowed) or a float tensor; got {_check.kind(mask)}")
    if mask.shape != shape:
        raise ValueError(f"{name} must be {shape}; got {tuple(mask.shape)}")
    return q.new_zeros(shape).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask
