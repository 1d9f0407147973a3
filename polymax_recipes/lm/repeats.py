"""Measures of repetition: words that a language model would write again, and the different n-grams of its texts."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def repeats(best: Tensor, inputs: Tensor, within: int) -> Tensor:
    """Return whether the best next word is among the last `within` words of the context.

    Shapes: best (b, n), the best word after each input; inputs (b, n); result (b, n)

    Example:
        >>> repeats(torch.tensor([[5, 4, 4]]), torch.tensor([[4, 5, 6]]), within=2)
        tensor([[False,  True, False]])

    See: Welleck et al. 2020, Neural text generation with unlikelihood training, Section 6.1.
    """
    found = torch.zeros_like(best, dtype=torch.bool)
    for back in range(min(within, best.shape[1])):
        found[:, back:] |= best[:, back:] == inputs[:, : best.shape[1] - back]
    return found


def distinct(texts: Iterable[Sequence[int]], n: int) -> float | None:
    """Return the share of different n-grams among all n-grams of texts; None if there are none.

    Example:
        >>> distinct([[1, 2, 1, 2], [1, 2]], 2)
        0.5

    See: Li et al. 2016, A diversity-promoting objective function for neural conversation models.
    """
    grams = [tuple(text[k : k + n]) for text in texts for k in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
