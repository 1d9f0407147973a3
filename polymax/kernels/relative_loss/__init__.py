"""The smoothed maximum over the words of a vocabulary, relative to a reference, without a matrix of all logits.

    x = scale softcap tanh(l / softcap), l = hidden weight^T + bias
    value = max over p of <x, p> - D(p, reference), D the alpha-divergence of `relative_threshold`

x is taken less its largest entry `top` among words whose reference is not 0. Rows are computed in blocks, with all
words of a row at once, and are computed again for gradients, from `top` and the root:

    value, chosen = x of the words in `named`, mean = sum over words of spread x
    dx = p value' + mean' spread + chosen' e_named        dl = dx scale (1 - tanh^2)

Shapes: hidden (n, d); weight (words, d); bias (words,); reference and spread (words,) or (n, words); named (n, k), -1
for no word; value, mean, top, root (n,); chosen (n, k). A row whose named words are all -1 does not count.
"""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.dispatch import declare

# logits that are in memory at once
ENTRIES = 2**22
SCHEMA = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor reference, Tensor? named, Tensor? spread, float alpha, "
    "float softcap, float scale"
)


def _fake(hidden: Tensor, weight: Tensor, bias: Any, reference: Tensor, named: Tensor | None, *_: Any) -> Any:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    n = hidden.shape[0]
    value, mean, top = (hidden.new_empty(n, dtype=wide) for _ in range(3))
    chosen = hidden.new_empty((n, 0) if named is None else named.shape, dtype=wide)
    return value, chosen, mean, top, hidden.new_empty(n, dtype=torch.float64)


def _fake_backward(of_value: Tensor, of_chosen: Tensor, of_mean: Tensor, *given: Any) -> Any:
    hidden, weight = given[:2]
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return torch.empty_like(hidden), torch.empty_like(weight), hidden.new_empty(weight.shape[0], dtype=wide)


relative_loss = declare(__name__, f"relative_loss({SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", _fake)
# the gradients of hidden, weight and bias
relative_loss_backward = declare(
    __name__,
    f"relative_loss_backward(Tensor of_value, Tensor of_chosen, Tensor of_mean, {SCHEMA}, Tensor top, Tensor root) -> "
    "(Tensor, Tensor, Tensor)",
    _fake_backward,
)
