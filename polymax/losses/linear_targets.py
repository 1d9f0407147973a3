"""Targets of losses over a vocabulary: a word for each row, or a distribution over words."""

from typing import NamedTuple

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.widen import wide
from polymax.distributions.words import WordDistribution
from polymax.losses.linear_reference import WordPenalty

# by dtype: how far from 1 the sum of a distribution may be
ROOM = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class WeightedParts(NamedTuple):
    """The loss of each row as a sum: of_value value + <of_chosen, chosen> + of_mean mean + constant.

    `named` are the words whose scores are chosen; a number below 0 stands for no word. `spread` are the weights of the
    mean, which is 0 without them, `counted` the rows that count, and `size` the denominator of the mean over rows. The
    first product of a GPU waits for all that is launched before it, so that a constant of 0 is None.

    Shapes: of_value, of_mean, constant and counted (n,); of_chosen and named (n, k); spread (words,) or (n, words)
    """

    of_value: Tensor
    of_chosen: Tensor
    of_mean: Tensor
    constant: Tensor | None
    named: Tensor | None
    spread: Tensor | None
    counted: Tensor
    size: Tensor


class Weighting(NamedTuple):
    """The options of a loss that change the weights of words."""

    class_weights: Tensor | None
    ignore_index: int
    label_smoothing: float


def check_target(target: Tensor | WordDistribution, hidden: Tensor, weight: Tensor, ignore_index: int) -> None:
    words, batch = len(weight), tuple(hidden.shape[:-1])
    if isinstance(target, WordDistribution):
        _check_distribution(target, batch, words)
        return
    if not isinstance(target, Tensor):
        raise TypeError(
            f"target must be a tensor of words or of probabilities, or a WordDistribution; got {type(target).__name__}"
        )
    if target.is_floating_point():
        _check_probabilities(target, batch, words)
        return
    if target.dtype == torch.bool:
        raise TypeError("target must be words, which are integers, or probabilities; got torch.bool")
    if target.shape != batch:
        raise ValueError(f"target must be {batch}, a word for each row; got {tuple(target.shape)}")
    if _check.readable(target):
        wrong = ((target < 0) | (target >= words)) & (target != ignore_index)
        if bool(wrong.any()):
            came = int(target[wrong][0])
            raise ValueError(f"target must hold words in [0, {words}) or ignore_index; got {came}")


def _check_probabilities(target: Tensor, batch: tuple[int, ...], words: int) -> None:
    _check.floating(target, "target")
    if target.shape != (*batch, words):
        raise ValueError(
            f"target must be {(*batch, words)}, the probabilities of all words for each row; got {tuple(target.shape)}"
        )
    if target.requires_grad:
        raise ValueError("target must not require a gradient if it has the probabilities of all words: detach() it")
    _check_sums(target, torch.ones_like(target[..., 0], dtype=torch.bool), "target")


def _check_distribution(target: WordDistribution, batch: tuple[int, ...], words: int) -> None:
    ids, probs = target.ids, target.probs
    _check.floating(probs, "target.probs")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError(f"target.ids must be integers; got {ids.dtype}")
    if ids.shape != probs.shape or tuple(ids.shape[:-1]) != batch:
        raise ValueError(
            f"target.ids and target.probs must be {batch} with one more dim, a list for each row; "
            f"got {tuple(ids.shape)} and {tuple(probs.shape)}"
        )
    if target.words != words:
        raise ValueError(f"target must be over the {words} words of weight; got a distribution over {target.words}")
    if not _check.readable(ids) or not _check.readable(probs):
        return
    if bool((ids >= words).any()):
        raise ValueError(f"target.ids must be in [0, {words}), or -1 for no word; got {int(ids.amax())}")
    used = torch.where(ids < 0, -1, ids).sort(-1).values
    twice = (used[..., 1:] == used[..., :-1]) & (used[..., 1:] >= 0)
    if bool(twice.any()):
        word = int(used[..., 1:][twice][0])
        raise ValueError(f"target.ids must list a word once in each row; got word {word} twice")
    _check_sums(torch.where(ids < 0, 0, probs.detach()), (ids >= 0).any(-1), "target.probs")


def _check_sums(probs: Tensor, counted: Tensor, name: str) -> None:
    if not _check.readable(probs) or not probs.numel():
        return
    if bool((probs < 0).any()):
        raise ValueError(f"{name} must not be negative; got {float(probs.amin()):g}")
    wide_sums = wide(probs).sum(-1)
    far = (wide_sums - 1).abs() > ROOM[probs.dtype]
    # a NaN shows in the loss of its row
    if bool((far & counted).any()):
        came = float(wide_sums[far & counted][0])
        raise ValueError(f"{name} must sum to 1 in each row; got a sum of {came:.6g}: divide a cut list by its sum")


def of_target(
    target: Tensor | WordDistribution, words: int, penalty: WordPenalty, weighting: Weighting, real: torch.dtype
) -> WeightedParts:
    """The loss of each row as a sum of its parts, for checked targets; rows are flat."""
    weights = weighting.class_weights
    classes = None if weights is None else weights.detach().to(real)
    if isinstance(target, WordDistribution):
        return _of_list(target, words, penalty, classes, weighting.label_smoothing, real)
    if target.is_floating_point():
        return _of_probabilities(target.reshape(-1, words), penalty, classes, weighting.label_smoothing, real)
    return _of_words(target.reshape(-1).long(), words, penalty, classes, weighting, real)


def _of_words(
    y: Tensor, words: int, penalty: WordPenalty, classes: Tensor | None, weighting: Weighting, real: torch.dtype
) -> WeightedParts:
    valid = y != weighting.ignore_index
    each = valid.to(real)
    if classes is not None:
        each = torch.where(valid, classes[torch.where(valid, y, 0)], 0)
    of_value = of_mean = each
    share, constant = weighting.label_smoothing, None
    spread: Tensor | None = None
    if share:
        # the mean over classes of their losses
        spread = _uniform(words, classes, each)
        of_value = (1 - share) * each + torch.where(valid, share * spread.sum(), 0)
        of_mean = -share * valid.to(real)
    of_chosen = ((share - 1) * each).unsqueeze(1)
    # any number below 0 stands for no word
    named = (y if weighting.ignore_index < 0 else torch.where(valid, y, -1)).unsqueeze(1)
    if penalty.reference is not None:
        of_y, of_others = penalty.of_words(torch.where(valid, y, 0), spread, each)
        constant = torch.where(each == 0, 0, (1 - share) * each * of_y) + torch.where(valid, share * of_others, 0)
    return WeightedParts(of_value, of_chosen, of_mean, constant, named, spread, valid, each.sum())


def _of_list(
    target: WordDistribution, words: int, penalty: WordPenalty, classes: Tensor | None, share: float, real: torch.dtype
) -> WeightedParts:
    ids = target.ids.reshape(-1, target.ids.shape[-1]).long()
    q = torch.where(ids < 0, 0, target.probs.reshape(ids.shape).to(real))
    # words of probability 0 are not named: -inf is no score to multiply by 0
    named = torch.where(q == 0, -1, ids)
    counted = (ids >= 0).any(1)
    # a row counts by a word that is named
    named[:, :1] = torch.where((counted & (named < 0).all(1)).unsqueeze(1), ids.amax(1, keepdim=True), named[:, :1])
    spread: Tensor | None = None
    of_mean = torch.zeros_like(q[:, 0])
    rest = share / words
    mixed = torch.where(ids < 0, 0, (1 - share) * q + rest)
    omega = penalty.of_lists(ids, mixed)
    if share:
        spread = _uniform(words, classes, q)
        of_mean = -share * counted.to(real)
        omega = omega + penalty.of_rest(ids, rest, words, mixed)
    weighted = q if classes is None else q * classes[ids.clamp(min=0)]
    of_value = (1 - share) * weighted.sum(1)
    if spread is not None:
        of_value = of_value + torch.where(counted, share * spread.sum(), 0)
    of_value = torch.where(counted, of_value, 0)
    constant = torch.where(counted, of_value * omega, 0)
    of_chosen = torch.where(named < 0, 0, (share - 1) * weighted)
    return WeightedParts(of_value, of_chosen, of_mean, constant, named, spread, counted, _count(counted, real))


def _of_probabilities(
    q: Tensor, penalty: WordPenalty, classes: Tensor | None, share: float, real: torch.dtype
) -> WeightedParts:
    q = q.to(real)
    if share:
        q = (1 - share) * q + share / q.shape[1]
    of_value = torch.ones_like(q[:, 0])
    omega = penalty.of_rows(q)
    if classes is not None:
        q = q * classes
        of_value = q.sum(1)
    counted = torch.ones_like(of_value, dtype=torch.bool)
    constant, of_mean = of_value * omega, -torch.ones_like(of_value)
    return WeightedParts(of_value, q[:, :0], of_mean, constant, None, q, counted, _count(counted, real))


def _count(counted: Tensor, real: torch.dtype) -> Tensor:
    """The number of rows that count, in a dtype whose inverse has all digits of the loss."""
    return counted.sum().to(real)


def _uniform(words: int, classes: Tensor | None, like: Tensor) -> Tensor:
    """The weights of words in the mean over classes of their losses."""
    weights = like.new_ones(words) if classes is None else classes
    return weights / words
