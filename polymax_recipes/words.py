"""Losses of the next word by their names on the command line, their measures, and probabilities of words."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

import polymax as pm
from polymax_recipes.training.task import Measured

LOSSES = ("cross-entropy", "entmax", "sparsemax")
# the number added to every probability, since some are 0
EPSILON = 1e-6


def alpha_of(options: Any) -> float:
    """alpha of the entmax that a loss belongs to."""
    return {"cross-entropy": 1.0, "entmax": options.loss_alpha, "sparsemax": 2.0}[options.loss]


def words_loss(
    options: Any, states: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, ignored: int
) -> tuple[Tensor, Tensor | None]:
    """Return the sum of losses, and all scores if the loss is cross-entropy; sparse losses compute them in blocks.

    Shapes: states (n, size); weight (words, size); wanted (n,); scores (n, words)
    """
    if options.loss == "cross-entropy":
        scores = linear(states, weight, bias).float()
        return cross_entropy(scores, wanted, ignore_index=ignored, reduction="sum"), scores
    alpha = alpha_of(options)
    total = pm.linear_entmax_loss(
        _like(states, weight), weight, wanted, bias, alpha=alpha, ignore_index=ignored, reduction="sum"
    )  # fmt: skip
    return total, None


def teacher_loss(options: Any, states: Tensor, weight: Tensor, target: Tensor | pm.WordDistribution) -> Tensor:
    """Return the sum of Fenchel-Young losses at a teacher's distributions: for cross-entropy, its divergences.

    Shapes: states (n, size); weight (words, size); target (n, words), or a list for each row
    """
    return pm.linear_entmax_loss(_like(states, weight), weight, target, alpha=alpha_of(options), reduction="sum")


def _like(states: Tensor, weight: Tensor) -> Tensor:
    """Return states in the dtype of the weight, unless autocast chooses one."""
    device = states.device.type
    mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return states if mixed else states.to(weight.dtype)


@torch.no_grad()
def words_measured(
    options: Any, states: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, scores: Tensor | None
) -> Measured:
    """Sums and counts over words: right words, words of positive probability, and measures that allow a probability of
    0.

    `epsilon_nats` is the logarithm of the epsilon-perplexity. Shapes: as `words_loss` has them, without ignored rows
    """
    words = len(weight)
    count = torch.tensor(len(wanted), device=wanted.device)
    if scores is None:
        found = pm.linear_entmax(states.to(weight.dtype), weight, bias, alpha=alpha_of(options))
        mode, chosen, norm = found.mode, found.prob(wanted), found.squared_norm()
        divergence = pm.jensen_shannon(found, wanted)
        possible = found.support_size.sum()
    else:
        p = scores.softmax(-1)
        mode, chosen, norm = scores.argmax(-1), p.gather(1, wanted.unsqueeze(1)).squeeze(1), p.square().sum(-1)
        divergence = pm.jensen_shannon(p, wanted)
        possible = count * words
    chosen, norm = chosen.float(), norm.float()
    return {
        "accuracy": ((mode == wanted).sum(), count),
        "epsilon_nats": (-torch.log((chosen + EPSILON) / (1 + EPSILON * words)).sum(), count),
        "sparsemax_score": ((chosen + (1 - norm) / 2).sum(), count),
        "jensen_shannon": (divergence.float() * count, count),
        "possible_words": (possible, count),
        "impossible_share": (count * words - possible, count * words),
    }


def word_log_probs(options: Any, scores: Tensor) -> Tensor:
    """Return log-probabilities of all words, -inf for words that a sparse loss leaves out."""
    if options.loss == "cross-entropy":
        return scores.log_softmax(-1)
    return pm.entmax(scores, alpha_of(options)).log()
