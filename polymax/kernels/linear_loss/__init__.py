"""The smoothed maximum of entmax over the words of a vocabulary, without a matrix of all their logits.

    x = scale softcap tanh(l / softcap), l = hidden weight^T + bias        value = max over p of <x, p> - Omega(p)

Omega is the Tsallis entropy of alpha, and x is taken less its largest entry `top`, so that values are exact around 0.
The operator returns the parts of losses, and the tensors saved for their gradients:

    value, chosen = x of the words in `named`, mean = sum over words of spread x, moment = <x, p> (alpha = 1 alone)
    dx = p (value' + moment' (1 + x - moment)) + mean' spread + chosen' e_named        dl = dx scale (1 - tanh^2)

For alpha > 1 few words have weight: p is `probs` of the words `ids`, `count` of them in a row. If a row has more words
than lists hold, or alpha is not in (1, 2], count is FLAT, and p is recomputed in blocks. It is ((alpha - 1) (x - top) -
tau)_+ ^ (1 / (alpha - 1)), or exp(x - top - tau) at alpha = 1. `slope` is the derivative of value in alpha. `extent`,
(2,) on the CPU, is the number of FLAT rows, and the length of the longest list.

`linear_loss_slopes` returns values and, for gradients of values that are known in advance, the gradients of hidden,
weight and bias: logits of FLAT rows are computed once, and kept in the memory that the gradient of weight fills later.
`linear_loss_scale` multiplies these gradients by a number, and does nothing if it is 1.

Shapes: hidden (n, d); weight (words, d); bias (words,); named (n, k), below 0 for no word; spread (words,) or
(n, words); value, mean, moment, top, tau, slope, count (n,); chosen (n, k); ids and probs (n, capacity). A row whose
named words are all below 0 does not count.
"""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.dispatch import declare
from polymax.kernels.linear_loss.problem import GRADS, SAVED, SCHEMA

# the longest list of a row: for longer lists, gradients in blocks are faster
CAPACITY = 512
FLAT = -1


def capacity(words: int) -> int:
    """Return the number of places in the list of a row."""
    return min(CAPACITY, words)


def _named(hidden: Tensor, named: Tensor | None, dtype: torch.dtype) -> Tensor:
    return hidden.new_empty((hidden.shape[0], 0) if named is None else named.shape, dtype=dtype)


def _fake(*given: Any) -> tuple[Tensor, ...]:
    hidden, weight, _, named = given[:4]
    n, wide = hidden.shape[0], torch.promote_types(hidden.dtype, torch.float32)
    value, mean, moment, top, tau, slope = (hidden.new_empty(n, dtype=wide) for _ in range(6))
    lists = [hidden.new_empty((n, capacity(weight.shape[0])), dtype=dtype) for dtype in (torch.int32, wide)]
    count = hidden.new_empty(n, dtype=torch.int32)
    extent = torch.empty(2, dtype=torch.int64, device="cpu")
    return value, _named(hidden, named, wide), mean, moment, top, tau, slope, *lists, count, extent


def _gradients(hidden: Tensor, weight: Tensor, of_hidden: bool, of_words: bool) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (
        hidden.new_empty(hidden.shape if of_hidden else 0),
        weight.new_empty(weight.shape if of_words else 0),
        hidden.new_empty(weight.shape[0] if of_words else 0, dtype=wide),
    )


def _fake_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(given[4], given[5], *given[-2:])


def _fake_slopes(*given: Any) -> tuple[Tensor, ...]:
    hidden, weight, _, named = given[3:7]
    wide = torch.promote_types(hidden.dtype, torch.float32)
    value, mean = (hidden.new_empty(hidden.shape[0], dtype=wide) for _ in range(2))
    return value, _named(hidden, named, wide), mean, *_gradients(hidden, weight, *given[-2:])


def _fake_scale(x: Tensor, factor: Tensor) -> None:
    pass


linear_loss = declare(
    __name__,
    f"linear_loss({SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "
    "Tensor)",
    _fake,
)
# the gradients of hidden, and of weight and bias; empty unless needed
linear_loss_backward = declare(
    __name__,
    f"linear_loss_backward({GRADS}, Tensor? grad_moment, {SCHEMA}, {SAVED}, bool of_hidden, bool of_words) "
    "-> (Tensor, Tensor, Tensor)",
    _fake_backward,
)
# value, chosen and mean, then the same gradients
linear_loss_slopes = declare(
    __name__,
    f"linear_loss_slopes({GRADS}, {SCHEMA}, bool of_hidden, bool of_words) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_slopes,
)
# x times a number, in its place
linear_loss_scale = declare(__name__, "linear_loss_scale(Tensor(a!) x, Tensor factor) -> ()", _fake_scale)
