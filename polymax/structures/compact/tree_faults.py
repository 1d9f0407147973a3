"""Checks of dependency trees, and their error messages: heads, cycles, roots, crossing arcs."""

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.compact.faults import check_padding, check_shape, ends, in_words, inside, of, refuse

_WHAT = "tree"


def check_heads(heads: Tensor, x: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    """Heads (*batch, n), -1 at all padding; a ValueError if they are not trees for scores x (*batch, n + 1, n + 1)."""
    within = _within(heads, x, lengths)
    if _check.readable(heads):
        _check_trees(heads, within, single_root)
    return torch.where(within, heads, -1)


def check_encoded_heads(heads: Tensor, single_root: bool) -> None:
    """Refuse heads (*batch, n) that are not trees over the tokens up to the last token with a head."""
    if _check.readable(heads):
        _check_trees(heads, inside(ends(heads), heads.shape[:-1], heads.shape[-1], heads.device), single_root)


def _check_trees(heads: Tensor, within: Tensor, single_root: bool) -> None:
    check_padding(_WHAT, "token", "head", heads, within, start=1)
    _check_range(heads, within)
    up = torch.nn.functional.pad(torch.where(within, heads, 0), (1, 0))
    _check_cycles(heads, up)
    if single_root:
        roots = within & (heads == 0)

        def many(instance: tuple[int, ...], _: int) -> str:
            tokens = [t + 1 for t in roots[instance].nonzero()[:, 0].tolist()]
            return f"tokens {in_words(tokens)}{of(instance)} all hang from the root, but single_root allows one"

        refuse(_WHAT, roots.sum(-1, keepdim=True) > 1, many)


def check_known_heads(heads: Tensor, x: Tensor, lengths: Tensor | None) -> None:
    """Refuse heads that are neither a token, nor the root symbol, nor -2 for unknown."""
    within = _within(heads, x, lengths)
    if _check.readable(heads):
        check_padding(_WHAT, "token", "head", torch.where(within & (heads == -2), 0, heads), within, start=1)
        _check_range(heads, within)


def check_projective(heads: Tensor) -> None:
    """Refuse heads (*batch, n), -1 at padding, with arcs that cross."""
    if not _check.readable(heads):
        return
    tokens = torch.arange(1, heads.shape[-1] + 1, device="cpu")
    left, right = torch.minimum(heads, tokens), torch.maximum(heads, tokens)
    a, b, c, d = left.unsqueeze(-1), right.unsqueeze(-1), left.unsqueeze(-2), right.unsqueeze(-2)
    # padding has an arc from -1, which must not count as crossing
    bad = ((a < c) & (c < b) & (b < d) & (a >= 0)).flatten(-2)

    def explain(instance: tuple[int, ...], place: int) -> str:
        pair = (place // heads.shape[-1], place % heads.shape[-1])
        first, second = (f"{int(heads[(*instance, m)])} -> {m + 1}" for m in pair)
        return f"arcs {first} and {second}{of(instance)} cross; SpanningTree takes such trees"

    refuse("projective tree", bad, explain)


def check_arcs(y: Tensor) -> None:
    """Refuse arcs (*batch, n + 1, n + 1) if a token has two heads, or the root symbol has one."""
    count = (y != 0).sum(-2)
    refuse(_WHAT, count[..., :1] > 0, lambda i, _: f"the root symbol 0{of(i)} has a head")
    refuse(_WHAT, count[..., 1:] > 1, lambda i, m: f"token {m + 1}{of(i)} has {int(count[(*i, m + 1)])} heads, not one")


def _within(heads: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    n = x.shape[-1] - 1
    check_shape(heads, (*x.shape[:-2], n), "heads (*batch, n) of tokens 1..n")
    return inside(lengths, x.shape[:-2], n, heads.device)


def _check_range(heads: Tensor, within: Tensor) -> None:
    n = within.sum(-1, keepdim=True)

    def explain(instance: tuple[int, ...], place: int) -> str:
        came = int(heads[(*instance, place)])
        return f"token {place + 1}{of(instance)} has head {came}, not one in [0, {int(n[instance])}]"

    refuse(_WHAT, within & (heads > n), explain)


def _check_cycles(heads: Tensor, up: Tensor) -> None:
    """Refuse heads that do not lead from every token to the root symbol: up (*batch, n + 1) is one step."""
    reached = up
    # each round doubles the steps
    for _ in range(heads.shape[-1].bit_length()):
        reached = reached.gather(-1, reached)

    def explain(instance: tuple[int, ...], place: int) -> str:
        # as many steps as there are tokens end inside the cycle
        token = int(reached[(*instance, place)])
        cycle = [token]
        while len(cycle) == 1 or cycle[-1] != token:
            cycle.append(int(up[(*instance, cycle[-1])]))
        return f"token {token}{of(instance)} is in a cycle ({' -> '.join(map(str, cycle))})"

    refuse(_WHAT, reached != 0, explain)
