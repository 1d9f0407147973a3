"""Attention to a few blocks of keys, which a sparse mapping over summaries of the blocks chooses for the queries."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from polymax.backend.function import functional
from polymax.backend.widen import wide
from polymax.mappings import entmax, softmax
from polymax.nn.attention import attention_weights, scaled_dot_product_attention
from polymax.nn.attention_call import AttentionCall
from polymax.nn.attention_checks import default_scale
from polymax.nn.attention_mapping import Mapping, apply_mapping, check_heads, checked_mapping
from polymax.nn.attention_scores import repeat_heads

# the number of queries that share a list of blocks
GROUP = 64


class BlockRoutedAttention(nn.Module):
    """Attention inside blocks of keys that a sparse mapping chooses, with a gradient to the choice.

        prior_J = router(router_scale_h scale <q, summary_J>)        weights = mapping(scores + log prior)

    J runs over the blocks of `block` keys. The last `window` blocks up to the one of the query, and the first `sinks`
    blocks, are always on: their prior is 1. The router, entmax or sparsemax, distributes 1 over the other blocks that
    the query may see. Blocks of prior 0 are not read: time and memory grow with the number of chosen blocks. A summary
    is the mean of the keys of a block, or, with `head_dim`, their mean under a softmax of products with a learned
    vector of each head. `prior` is a factor of the weights of softmax, so that the router has an exact gradient.

    Arguments:
        num_heads: the number of heads, each with its own router_scale
        block: keys of a block
        window: blocks that are always on, counted back from the block of the query, at least 1
        sinks: blocks at the start that are always on
        router: the mapping of blocks; its exact zeros decide which blocks are read
        mapping: the mapping of keys inside the chosen blocks
        query_block: neighbouring queries that share a choice. In causal attention the first of them makes it, so that
            no later query has influence; otherwise their mean does. Decoding from a cache needs 1
        head_dim: the channels of keys; with it, summaries are learned

    Shapes: query (batch, num_heads, L, E); key (batch, heads, S, E) and value (batch, heads, S, V), where heads divide
    num_heads; the context (batch, num_heads, L, V)

    Example:
        >>> attention = BlockRoutedAttention(2, block=4, router="sparsemax")
        >>> query, key, value = torch.randn(3, 1, 2, 32, 8).unbind()
        >>> attention(query, key, value, is_causal=True).shape
        torch.Size([1, 2, 32, 8])
        >>> attention.prior(query, key, is_causal=True).shape
        torch.Size([1, 2, 32, 8])

    See: Huang et al. 2026, DashAttention, https://arxiv.org/abs/2605.18753, in which queries choose blocks by entmax.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        block: int = 64,
        window: int = 1,
        sinks: int = 1,
        router: Mapping = entmax,
        mapping: Mapping = softmax,
        query_block: int = 1,
        head_dim: int | None = None,
    ) -> None:
        super().__init__()
        given = {"num_heads": (num_heads, 1), "block": (block, 1), "window": (window, 1), "sinks": (sinks, 0)}
        for name, (size, least) in {**given, "query_block": (query_block, 1)}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < least:
                raise ValueError(f"{name} must be an integer from {least} on; got {size!r}")
        self.block, self.window, self.sinks, self.query_block = block, window, sinks, query_block
        self.router, self.mapping = checked_mapping(router), checked_mapping(mapping)
        for inner in (self.router, self.mapping):
            check_heads(inner, num_heads, "BlockRoutedAttention")
        self.router_scale = nn.Parameter(torch.ones(num_heads))
        self.summary = None if head_dim is None else nn.Parameter(torch.zeros(num_heads, head_dim))

    @property
    def num_heads(self) -> int:
        """The number of heads that have a router."""
        return len(self.router_scale)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        dropout_p: float = 0.0,
        *,
        causal_offset: int = 0,
        **options: Any,
    ) -> Tensor:
        """Return the context; `options` are softcap and sinks of `scaled_dot_product_attention`.

        Masks are those of `scaled_dot_product_attention`, too. A query stands at key i + causal_offset, and its window
        is counted from there.
        """
        call = self._call(query, key, value, attn_mask, is_causal, scale, causal_offset)
        told = {"scale": scale, "mapping": self.mapping, **options}
        routes = self._routes(call)
        # a compiler does not know the lengths of lists: use a mask over all keys
        if torch.compiler.is_compiling() or functional() or 0 in (*query.shape, *key.shape):
            mask = self._mask(call, routes)
            return scaled_dot_product_attention(query, key, value, mask, dropout_p, enable_gqa=True, **told)
        return self._gathered(call, routes, dropout_p, told)

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        *,
        causal_offset: int = 0,
        **options: Any,
    ) -> Tensor:
        """Return the weights (batch, num_heads, L, S) of all keys."""
        call = self._call(query, key, key, attn_mask, is_causal, scale, causal_offset)
        mask = self._mask(call, self._routes(call))
        return attention_weights(query, key, mask, scale=scale, enable_gqa=True, mapping=self.mapping, **options)

    def prior(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        *,
        causal_offset: int = 0,
    ) -> Tensor:
        """Return the priors (batch, num_heads, L, blocks): 1 for blocks that are always on, 0 for those not read."""
        call = self._call(query, key, key, attn_mask, is_causal, scale, causal_offset)
        prior = self._of_queries(self._routes(call).bias, query.shape[2]).exp()
        if not is_causal:
            return prior
        # blocks that begin after the query are not read
        places = torch.arange(query.shape[2], device=prior.device)[:, None] + call.pattern.offset
        first = torch.arange(prior.shape[-1], device=prior.device) * self.block
        return prior.masked_fill(first > places, 0)

    def extra_repr(self) -> str:
        sizes = f"block={self.block}, window={self.window}, sinks={self.sinks}, query_block={self.query_block}"
        return f"num_heads={self.num_heads}, {sizes}"

    def _call(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        is_causal: bool,
        scale: float | None,
        offset: int,
    ) -> AttentionCall:
        call = AttentionCall(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=True, causal_offset=offset
        )
        if query.dim() != 4:
            raise ValueError(f"query must be (batch, num_heads, L, E); got {tuple(query.shape)}")
        call.check()
        check_heads(self, call.heads(), f"query {tuple(query.shape)}")
        return call

    def _routes(self, call: AttentionCall) -> "_Routes":
        """The log priors of blocks for each block of queries."""
        queries, keys, device = call.query.shape[2], call.key.shape[2], call.query.device
        blocks, step = -(-keys // self.block), self.query_block
        first = torch.arange(0, queries, step, device=device) + call.pattern.offset
        number = torch.arange(blocks, device=device)
        at = (first // self.block)[:, None]
        if call.is_causal:
            # blocks after the first query's block are on, too: later queries of its group see some of their keys
            always = number > at - self.window
            candidates = number <= at - self.window
        else:
            always = (number - at).abs() < self.window
            candidates = ~always
        always = always | (number < self.sinks)
        candidates = candidates & ~always
        kept = self._kept_blocks(call, blocks)
        if kept is not None:
            always, candidates = always & kept, candidates & kept
        scores = self._router_scores(call, blocks).masked_fill(~candidates, -torch.inf)
        prior = apply_mapping(self.router, scores)
        chosen = candidates & (prior > 0)
        bias = torch.where(chosen, torch.where(chosen, prior, 1).log(), -torch.inf)
        return _Routes(bias.masked_fill(always, 0.0), always | chosen)

    def _router_scores(self, call: AttentionCall, blocks: int) -> Tensor:
        """Scores (batch, num_heads, blocks of queries, blocks of keys) of the router."""
        q, k = wide(call.query), wide(call.key)
        step = self.query_block
        if step > 1 and not call.is_causal:
            short = -q.shape[2] % step
            counts = torch.full((-(-q.shape[2] // step), 1), step, device=q.device)
            counts[-1:] -= short
            q = pad(q, (0, 0, 0, short)).unflatten(2, (-1, step)).sum(3) / counts
        else:
            q = q[:, :, ::step]
        k = repeat_heads(k, q, "key")
        held = torch.ones(k.shape[2], dtype=torch.bool, device=k.device)
        mask = call.attn_mask
        if mask is not None:
            # keys that no query sees, such as padding, are left out of summaries
            seen = mask if mask.dtype == torch.bool else mask > -torch.inf
            seen = seen if seen.dim() < 2 else seen.any(-2)
            held = seen.expand(*k.shape[:2], k.shape[2]) if seen.dim() < 3 else seen.expand(*k.shape[:3])
            k = k.masked_fill(~held[..., None], 0)
        short = -k.shape[2] % self.block
        parts = pad(k, (0, 0, 0, short)).unflatten(2, (blocks, self.block))
        held = pad(held, (0, short)).unflatten(-1, (blocks, self.block))
        likes = parts.new_zeros(parts.shape[:-1])
        if self.summary is not None:
            likes = (parts @ self.summary.to(parts.dtype)[:, None, :, None]).squeeze(-1)
        shares = softmax(likes.masked_fill(~held, -torch.inf), dim=-1)
        summaries = (shares[..., None] * parts).sum(3)
        scale = default_scale(call.query.shape[-1]) if call.scale is None else call.scale
        return self.router_scale.to(q.dtype)[:, None, None] * scale * (q @ summaries.mT)

    def _kept_blocks(self, call: AttentionCall, blocks: int) -> Tensor | None:
        """A bool tensor (*batch, blocks of queries, blocks), True if the mask lets a query see a key of a block."""
        mask = call.attn_mask
        if mask is None:
            return None
        keep = mask if mask.dtype == torch.bool else mask > -torch.inf
        keep = keep.expand(*keep.shape[:-1], call.key.shape[2])
        keep = pad(keep, (0, blocks * self.block - keep.shape[-1])).unflatten(-1, (blocks, self.block)).any(-1)
        if keep.dim() == 1 or keep.shape[-2] == 1:
            return keep
        queries = keep.shape[-2]
        keep = pad(keep, (0, 0, 0, -queries % self.query_block))
        return keep.unflatten(-2, (-1, self.query_block)).any(-2)

    def _of_queries(self, t: Tensor, queries: int) -> Tensor:
        """Rows of blocks of queries, repeated for each query."""
        return t.repeat_interleave(self.query_block, -2)[..., :queries, :] if self.query_block > 1 else t

    def _mask(self, call: AttentionCall, routes: "_Routes") -> Tensor:
        """The log priors of all keys plus the masks: -inf for hidden keys, (batch, num_heads, L, S)."""
        queries, keys = call.query.shape[2], call.key.shape[2]
        mask = self._of_queries(routes.bias, queries).repeat_interleave(self.block, -1)[..., :keys]
        places = torch.arange(queries, device=mask.device)[:, None] + call.pattern.offset
        if call.is_causal:
            mask = mask.masked_fill(torch.arange(keys, device=mask.device) > places, -torch.inf)
        return _with_mask(mask, call.attn_mask)

    def _gathered(self, call: AttentionCall, routes: "_Routes", dropout_p: float, told: dict[str, Any]) -> Tensor:
        """The context by attention of groups of queries to the blocks that one of them has chosen."""
        (B, H, L, _), S, block = call.query.shape, call.key.shape[2], self.block
        group = max(GROUP // self.query_block, 1) * self.query_block
        short = -L % group
        needed = pad(self._of_queries(routes.used.expand(B, H, -1, -1), L), (0, 0, 0, short))
        needed = needed.unflatten(2, (-1, group)).any(3)
        if call.is_causal:
            ends = torch.arange(group, L + short + 1, group, device=needed.device) - 1 + call.pattern.offset
            needed = needed & (torch.arange(needed.shape[-1], device=needed.device) * block <= ends[:, None])
        most = max(int(needed.sum(-1).max()), 1)
        # the needed blocks of each group come first, in order
        lists = (~needed).to(torch.uint8).sort(dim=-1, stable=True).indices[..., :most].transpose(1, 2)
        valid = needed.transpose(1, 2).gather(-1, lists)
        q = pad(call.query, (0, 0, 0, short)).unflatten(2, (-1, group)).transpose(1, 2)
        k, v = (self._blocks_of(t, lists, H) for t in (call.key, call.value))

        # (batch, groups, heads, queries of a group, keys of its blocks)
        at = (lists[..., None] * block + torch.arange(block, device=lists.device)).flatten(-2)
        bias = pad(self._of_queries(routes.bias.expand(B, H, -1, -1), L), (0, 0, 0, short))
        bias = bias.unflatten(2, (-1, group)).transpose(1, 2)
        bias = bias.gather(-1, lists[..., None, :].expand(*bias.shape[:-1], most)).repeat_interleave(block, -1)
        hidden = ~(valid.repeat_interleave(block, -1) & (at < S))[..., None, :]
        if call.is_causal:
            places = torch.arange(L + short, device=at.device).view(-1, group) + call.pattern.offset
            hidden = hidden | (at[..., None, :] > places[:, None, :, None])
        bias = bias.masked_fill(hidden, -torch.inf)
        if call.attn_mask is not None:
            mask = call.attn_mask.expand(B, H, -1, S) if call.attn_mask.dim() > 1 else call.attn_mask.expand(B, H, 1, S)
            if mask.shape[2] > 1:
                mask = pad(mask, (0, 0, 0, short)).unflatten(2, (-1, group)).transpose(1, 2)
            else:
                mask = mask[:, None].expand(-1, lists.shape[1], -1, -1, -1)
            index = at.clamp(max=S - 1)[..., None, :].expand(*mask.shape[:-1], -1)
            bias = _with_mask(bias, mask.gather(-1, index))
        told = {**told, "dropout_p": dropout_p}
        out = scaled_dot_product_attention(q, k, v, bias.to(q.dtype), **told)
        return out.transpose(1, 2).flatten(2, 3)[:, :, :L]

    def _blocks_of(self, t: Tensor, lists: Tensor, heads: int) -> Tensor:
        """The keys or values (batch, groups, num_heads, keys, channels) of the blocks in lists."""
        parts = pad(t, (0, 0, 0, -t.shape[2] % self.block)).unflatten(2, (-1, self.block))
        batch = torch.arange(len(t), device=t.device)[:, None, None, None]
        head = torch.arange(heads, device=t.device)[:, None] // (heads // t.shape[1])
        # the gradient of such an index is a sum in a fixed order
        return parts[batch, head, lists].flatten(3, 4)


class _Routes(NamedTuple):
    """Log priors of blocks, and masks of blocks to read: both (batch, num_heads, blocks of queries, blocks of keys)."""

    bias: Tensor
    used: Tensor


def _with_mask(bias: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
