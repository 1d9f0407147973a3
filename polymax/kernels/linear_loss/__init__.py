"""The smoothed maximum of entmax over the words of a vocabulary, without a matrix of all their logits.

    x = softcap tanh(l / softcap), l = hidden weight^T + bias        value = max over p of <x, p> - Omega(p)

Omega is the Tsallis entropy of alpha, and x is taken less its largest entry `top`, so that values are exact around 0.
The operator returns the parts of losses, and the tensors saved for their gradients:

    value, chosen = x of the target, mean = sum over words of spread x
    dl = (value' p + mean' spread + chosen' e_target) (1 - (x / softcap)^2)

For alpha > 1 few words have weight: p is `probs` of the words `ids`, `count` of them in a row. If a row has more words
than lists hold, or alpha is not in (1, 2], count is FLAT, and p is ((alpha - 1) (x - top) - tau)_+ ^ (1 / (alpha - 1)),
or exp(x - top - tau) at alpha = 1, which is recomputed in blocks. `slope` is the derivative of value in alpha.
`extent`, (2,) on the CPU, is the number of FLAT rows, and the length of the longest list.

Shapes: hidden (n, d); weight (words, d); bias and spread (words,); target (n,), -1 for a row that does not count;
value, chosen, mean, top, tau, slope, count (n,); ids and probs (n, capacity)
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


def _fake(*given: Any) -> tuple[Tensor, ...]:
    hidden, weight = given[:2]
    n, wide = hidden.shape[0], torch.promote_types(hidden.dtype, torch.float32)
    rows = [hidden.new_empty(n, dtype=wide) for _ in range(6)]
    lists = [hidden.new_empty((n, capacity(weight.shape[0])), dtype=dtype) for dtype in (torch.int32, wide)]
    return (*rows, *lists, hidden.new_empty(n, dtype=torch.int32), torch.empty(2, dtype=torch.int64, device="cpu"))


def _fake_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = given[3:5]
    of_hidden, of_words = given[-2:]
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (
        hidden.new_empty(hidden.shape if of_hidden else 0),
        weight.new_empty(weight.shape if of_words else 0),
        hidden.new_empty(weight.shape[0] if of_words else 0, dtype=wide),
    )


linear_loss = declare(
    __name__,
    f"linear_loss({SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
# the gradients of hidden, and of weight and bias; empty unless needed
linear_loss_backward = declare(
    __name__,
    f"linear_loss_backward({GRADS}, {SCHEMA}, {SAVED}, bool of_hidden, bool of_words) -> (Tensor, Tensor, Tensor)",
    _fake_backward,
)
