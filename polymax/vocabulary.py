"""Words that can follow, without a matrix of logits, and measures that are finite if a target has probability 0."""

import math

import torch
from torch import Tensor

from polymax import _check
from polymax.distributions.words import WordDistribution as WordDistribution
from polymax.kernels.linear_loss import linear_loss
from polymax.kernels.linear_loss.reference import logits
from polymax.kernels.threshold import TSALLIS, threshold
from polymax.losses.linear import autocast, check_head, checked_softcap
from polymax.losses.sharded import listed_words
from polymax.sharding.placements import any_sharded

# logits of rows that are computed in whole at once
ENTRIES = 2**22


@torch.no_grad()
def linear_entmax(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float | Tensor = 1.5,
    softcap: float | None = None,
) -> WordDistribution:
    """entmax(linear(hidden, weight, bias), alpha) as a list of words for each row, without a matrix of all logits.

    It has no gradient: `linear_entmax_loss` is what models are trained by. At alpha = 1 every word is listed.

    Example:
        >>> hidden, weight = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.5, 0.5], [1.0, 0.0], [-1.0, 0.0]])
        >>> linear_entmax(hidden, weight, alpha=1.5)
        WordDistribution(ids=tensor([[1, 0]]), probs=tensor([[0.8307, 0.1693]]), words=3)
    """
    check_head(hidden, weight, bias, alpha)
    cap = checked_softcap(softcap)
    if any_sharded((hidden, weight, bias, alpha)):
        return WordDistribution(*listed_words(hidden, weight, bias, alpha, cap), len(weight))
    rows, matrix = autocast(hidden, weight)
    rows = rows.reshape(-1, rows.shape[-1])
    alpha = float(alpha)
    value, *_, ids, probs, count, extent = linear_loss(rows, matrix, bias, None, None, alpha, None, cap)
    longest = max(int(extent[1]), 1)
    inside = torch.arange(longest, device=rows.device) < count.unsqueeze(1)
    probs = torch.where(inside, probs[:, :longest], 0)
    ids = torch.where(probs > 0, ids[:, :longest].long(), -1)
    at = (count < 0).nonzero().squeeze(1)
    if len(at):
        ids, probs = _with_whole_rows(ids, probs, at, rows, matrix, bias, alpha, cap)
    # words that are equally likely come in the order of the vocabulary
    probs, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    used = max(int((probs > 0).sum(-1).amax()), 1) if len(rows) else 1
    shape = (*hidden.shape[:-1], used)
    ids = ids.gather(1, order)[:, :used].reshape(shape)
    probs = torch.where(value.isnan().unsqueeze(1), torch.nan, probs)
    return WordDistribution(ids, probs[:, :used].to(hidden.dtype).reshape(shape), len(weight))


def _with_whole_rows(
    ids: Tensor,
    probs: Tensor,
    at: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Lists in which rows `at` have words from all of their logits."""
    for rows in at.split(max(ENTRIES // len(weight), 1)):
        p = threshold(logits(hidden[rows], weight, bias, softcap), alpha, TSALLIS)
        longest = int((p > 0).sum(-1).amax())
        missing = (0, max(longest - ids.shape[1], 0))
        ids, probs = torch.nn.functional.pad(ids, missing, value=-1), torch.nn.functional.pad(probs, missing)
        sizes = (p > 0).sum(-1, keepdim=True)
        # positive weights first, in the order of words
        order = torch.sort((p > 0).to(torch.uint8), dim=-1, descending=True, stable=True).indices[:, :longest]
        inside = torch.arange(longest, device=p.device) < sizes
        ids[rows], probs[rows] = -1, 0
        ids[rows, :longest] = torch.where(inside, order, -1)
        probs[rows, :longest] = torch.where(inside, p.gather(1, order), 0)
    return ids, probs


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
