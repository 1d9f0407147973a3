"""Words that can follow, without a matrix of logits, and measures that are finite if a target has probability 0."""

import math

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.widen import wide
from polymax.distributions.stored_words import StoredWords as StoredWords
from polymax.distributions.words import WordDistribution as WordDistribution
from polymax.losses.linear import autocast, check_head, checked_softcap, linear_log_prob
from polymax.losses.linear_targets import check_target
from polymax.losses.listed_words import listed_rows
from polymax.losses.sharded import listed_words
from polymax.sharding.placements import any_sharded


def linear_entmax(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float | Tensor = 1.5,
    softcap: float | None = None,
) -> WordDistribution:
    """entmax(linear(hidden, weight, bias), alpha) as a list of words for each row, without a matrix of all logits.

    Probabilities have a first derivative in hidden, weight and bias. At alpha = 1 every word is listed.

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.5, 0.5], [1.0, 0.0], [-1.0, 0.0]])
        >>> linear_entmax(hidden, weight, alpha=1.5)
        WordDistribution(ids=tensor([[1, 0]]), probs=tensor([[0.8307, 0.1693]]), words=3)
    """
    check_head(hidden, weight, bias, alpha)
    cap = checked_softcap(softcap)
    if any_sharded((hidden, weight, bias, alpha)):
        with torch.no_grad():
            return WordDistribution(*listed_words(hidden, weight, bias, alpha, cap), len(weight))
    rows, matrix = autocast(hidden, weight)
    ids, probs, value = listed_rows(rows.reshape(-1, rows.shape[-1]), matrix, bias, float(alpha), cap)
    # words that are equally likely come in the order of the vocabulary
    probs, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    used = max(int((probs > 0).sum(-1).amax()), 1) if len(probs) else 1
    shape = (*hidden.shape[:-1], used)
    ids = ids.gather(1, order)[:, :used].reshape(shape)
    probs = torch.where(value.isnan().unsqueeze(1), torch.nan, probs)
    return WordDistribution(ids, probs[:, :used].to(hidden.dtype).reshape(shape), len(weight))


def distillation_loss(
    hidden: Tensor,
    weight: Tensor,
    teacher: WordDistribution,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.5,
    softcap: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The generalized Jensen-Shannon divergence of a linear layer's words p from a teacher's q, without stored logits.

        beta KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p
        beta = 0: KL(q || p)        beta = 1: KL(p || q)

    p is entmax of the logits, softmax for alpha = 1. Between 0 and 1 the divergence is finite for all p and q, and only
    the teacher's words need to be computed. At beta = 0 it is infinite if p leaves out a word of the teacher, at
    beta = 1 if p has other words than the teacher: there alpha must be above 1, or the teacher must list all words.
    Rows of the teacher without a word are left out. The Fenchel-Young loss, which is finite and convex in the logits,
    is `linear_entmax_loss` with the teacher as its target.

    Shapes: hidden (*batch, d); weight (words, d); teacher.ids and teacher.probs (*batch, k)

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 0.0]])
        >>> teacher = pm.WordDistribution(torch.tensor([[0, 1]]), torch.tensor([[0.75, 0.25]]), words=3)
        >>> pm.distillation_loss(hidden, weight, teacher)
        tensor(0.0048)

    See: Agarwal et al. 2024, On-policy distillation of language models, Section 3.
    """
    check_head(hidden, weight, bias, alpha)
    _check.number(beta, "beta", "in [0, 1]", lambda b: 0 <= b <= 1)
    if not isinstance(teacher, WordDistribution):
        raise TypeError(f"teacher must be a WordDistribution; got {type(teacher).__name__}: list its words with top-k")
    if any_sharded((hidden, weight, bias, teacher.ids, teacher.probs)):
        raise TypeError(
            "distillation_loss takes no DTensors: linear_entmax_loss does, with class numbers as its target"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {reduction!r}")
    whole = teacher.ids.shape[-1] == len(weight)
    if alpha == 1 and beta == 1 and not whole:
        raise ValueError(
            "beta must be below 1 for alpha = 1: softmax gives weight to words that the teacher has not listed, and "
            "KL(p || q) is infinite"
        )
    check_target(teacher, hidden, weight, -100)
    rows, matrix = autocast(hidden, weight)
    flat = rows.reshape(-1, rows.shape[-1])
    ids = teacher.ids.reshape(len(flat), teacher.ids.shape[-1])
    counted = (ids >= 0).any(1)
    flat = torch.where(counted.unsqueeze(1), flat, 0)
    q = torch.where(ids < 0, 0, teacher.probs.reshape(ids.shape).to(wide(flat[:, :0]).dtype))
    cap = checked_softcap(softcap)
    if alpha == 1:
        p = linear_log_prob(flat, matrix, ids.clamp(min=0), bias, softcap=softcap).exp()  # type: ignore[union-attr]
        found = None
    else:
        found = listed_rows(flat, matrix, bias, float(alpha), cap)
        p = _at(found.ids, found.probs, ids)
        p = torch.where(found.value.isnan().unsqueeze(1), torch.nan, p)
    p = torch.where(ids < 0, 0, p)
    if beta == 0:
        each = _divergence(q, p)
    elif found is not None and beta == 1:
        # rows without a teacher have a divergence that is finite, and is not counted
        each = _divergence(found.probs, torch.where(counted.unsqueeze(1), _at(ids, q, found.ids), 1))
        each = torch.where(found.value.isnan(), torch.nan, each)
    elif beta == 1:
        each = _divergence(p, q)
    else:
        mixed = beta * q + (1 - beta) * p
        # words that the teacher has not listed have m = (1 - beta) p
        rest = 1 - p.sum(1)
        each = beta * _divergence(q, mixed) + (1 - beta) * (_divergence(p, mixed) - rest * math.log(1 - beta))
    each = torch.where(counted, each, 0)
    if reduction == "mean":
        return (each.sum() / counted.sum()).to(hidden.dtype)
    return (each.sum() if reduction == "sum" else each.reshape(hidden.shape[:-1])).to(hidden.dtype)


def _at(ids: Tensor, probs: Tensor, wanted: Tensor) -> Tensor:
    """The probabilities of words `wanted` (n, k) in lists (n, j): 0 for words that are not listed, and for -1."""
    sorted_ids, order = ids.sort(1)
    place = torch.searchsorted(sorted_ids, wanted).clamp(max=max(ids.shape[1] - 1, 0))
    found = (sorted_ids.gather(1, place) == wanted) & (wanted >= 0)
    return torch.where(found, probs.gather(1, order.gather(1, place)), 0)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """The sum of p log(p / q) of each row; words with p = 0 have no part, and no gradient."""
    inside = p != 0
    ratio = torch.where(inside, p, 1) / torch.where(inside, q, 1)
    return torch.where(inside, p * torch.log(ratio), 0).sum(1)


def epsilon_perplexity(probs: Tensor | WordDistribution, target: Tensor, epsilon: float = 1e-6) -> Tensor:
    """The perplexity of targets after epsilon is added to every probability: it is finite also where a target has none.

        exp(-mean log((p_target + epsilon) / (1 + epsilon words)))

    Shapes: probs (*batch, words), or a distribution; target (*batch,)

    Example:
        >>> epsilon_perplexity(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0]), epsilon=0.0)
        tensor(2.)

    See: Martins, Marinho and Martins 2020, Sparse text generation, Section 4.
    """
    _check.number(epsilon, "epsilon", "at least 0", lambda e: e >= 0)
    chosen, words = _chosen(probs, target), _words(probs)
    return torch.exp(-torch.log((chosen + epsilon) / (1 + epsilon * words)).mean())


def sparsemax_score(probs: Tensor | WordDistribution, target: Tensor) -> Tensor:
    """The mean over targets of p_target + (1 - sum p^2) / 2: between 0 and 1, and defined where p_target is 0.

    Shapes: probs (*batch, words), or a distribution; target (*batch,)

    Example:
        >>> sparsemax_score(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.7500)

    See: Martins, Marinho and Martins 2020, Sparse text generation, Section 4.
    """
    norm = probs.squared_norm() if isinstance(probs, WordDistribution) else probs.square().sum(-1)
    return (_chosen(probs, target) + (1 - norm) / 2).mean()


def jensen_shannon(probs: Tensor | WordDistribution, target: Tensor) -> Tensor:
    """The mean Jensen-Shannon divergence between distributions and their targets, in nats: log 2 where p_target is 0.

    Shapes: probs (*batch, words), or a distribution; target (*batch,)

    Example:
        >>> jensen_shannon(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor(0.3466)

    See: Martins, Marinho and Martins 2020, Sparse text generation, Section 4.
    """
    p = _chosen(probs, target)
    # the mean of both is (1 + p) / 2 at the target and p_i / 2 elsewhere
    of_target = math.log(2) - torch.log1p(p)
    of_words = torch.xlogy(p, 2 * p / (1 + p)) + (1 - p) * math.log(2)
    return ((of_target + of_words) / 2).mean()


def _chosen(probs: Tensor | WordDistribution, target: Tensor) -> Tensor:
    if isinstance(probs, WordDistribution):
        _check_shapes(target, probs.ids.shape)
        return probs.prob(target)
    _check.floating(probs, "probs")
    _check_shapes(target, probs.shape)
    return probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _words(probs: Tensor | WordDistribution) -> int:
    return probs.words if isinstance(probs, WordDistribution) else probs.shape[-1]


def _check_shapes(target: Tensor, shape: torch.Size) -> None:
    if not isinstance(target, Tensor) or target.is_floating_point():
        raise TypeError("target must be a tensor of words, which are integers")
    if target.shape != shape[:-1]:
        raise ValueError(f"target must be {tuple(shape[:-1])}, a word for each row; got {tuple(target.shape)}")
