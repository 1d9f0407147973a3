"""Texts that go on: one token after the other, for a batch of prompts of different lengths."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.lm.model import Cache, LanguageModel
from polymax_recipes.lm.tokens import BOUNDARY
from polymax_recipes.training.batches import mixed


class Sampling(NamedTuple):
    """Limits and randomness of continuations: the most tokens, the context in tokens, the temperature (0 takes the
    best token), a seed.
    """

    longest: int
    context: int
    temperature: float = 0.0
    seed: int = 0


class Continuation(NamedTuple):
    """The tokens after a prompt, to the boundary of the text or the most tokens, and the log-probability of each."""

    tokens: list[int]
    log_probs: Tensor


@torch.no_grad()
def continuations(
    model: LanguageModel, prompts: Sequence[Sequence[int]], sampling: Sampling, numbers: Sequence[int]
) -> list[Continuation]:
    """Return the continuations of prompts, none of them empty.

    The random numbers of a prompt are a function of the seed and of the prompt's own number: they do not depend on the
    prompts beside it.
    """
    device = model.embedding.weight.device
    uniform = torch.stack([draws(sampling.seed, number, sampling.longest) for number in numbers]).to(device)
    kept = [list(prompt)[-sampling.context :] for prompt in prompts]
    longest = max(map(len, kept))
    # prompts end together, so that all go on in the same step
    missing = torch.tensor([longest - len(prompt) for prompt in kept], device=device).unsqueeze(1)
    padded = [[BOUNDARY] * (longest - len(prompt)) + prompt for prompt in kept]
    tokens = torch.tensor(padded, device=device)
    places = torch.arange(longest, device=device) - missing
    there = places >= 0
    caches: list[Cache] | None = None
    going = torch.ones(len(kept), dtype=torch.bool, device=device)
    chosen, log_probs = [], []
    for step in range(sampling.longest):
        mask = None if bool(there.all()) else there[:, None, None]
        states, caches = model.states(tokens, places.clamp(min=0), caches, mask)
        plain = model.log_probs(states[:, -1])
        # a temperature above 0 changes scores before they become probabilities, and some of these 0
        drawn = model.log_probs(states[:, -1], sampling.temperature) if sampling.temperature else plain
        token = next_tokens(drawn, float(sampling.temperature > 0), uniform[:, step])
        log_probs.append(plain.gather(1, token.unsqueeze(1)).squeeze(1))
        chosen.append(torch.where(going, token, BOUNDARY))
        going = going & (token != BOUNDARY)
        if not bool(going.any()):
            break
        tokens, places = token.unsqueeze(1), places[:, -1:] + 1
        # the oldest is forgotten where a context is full
        first = max(0, there.shape[1] + 1 - sampling.context)
        there = torch.cat([there, torch.ones_like(there[:, :1])], 1)[:, first:]
        caches = [Cache(cache.keys[..., first:, :], cache.values[..., first:, :]) for cache in caches]
    rows = torch.stack(chosen, 1).tolist() if chosen else [[] for _ in kept]
    logs = torch.stack(log_probs, 1).cpu() if log_probs else torch.zeros(len(kept), 0)
    found = []
    for row, log in zip(rows, logs):
        length = row.index(BOUNDARY) if BOUNDARY in row else len(row)
        found.append(Continuation(row[:length], log[:length]))
    return found


def next_tokens(scores: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """Return the token of the best score or, at a temperature above 0, the token drawn by a number of [0, 1).

    Shapes: scores (b, tokens); uniform (b,) float64; tokens (b,)

    Example:
        >>> scores = torch.tensor([[0.0, 1.0, 0.5]]).repeat(2, 1)
        >>> next_tokens(scores, 0.0, torch.zeros(2)), next_tokens(scores, 1.0, torch.tensor([0.1, 0.9]).double())
        (tensor([1, 1]), tensor([0, 2]))
    """
    if temperature == 0:
        return scores.argmax(-1)
    sums = (scores.double() / temperature).softmax(-1).cumsum(-1)
    # rounding must leave the last sum at least as large as any draw
    return (sums <= (uniform * sums[:, -1]).unsqueeze(1)).sum(-1).clamp(max=scores.shape[-1] - 1)


def draws(seed: int, number: int, count: int) -> Tensor:
    """Numbers of [0, 1) for the steps of one prompt, (count,) float64; fewer are the first of more."""
    return torch.rand(count, generator=torch.Generator().manual_seed(mixed(seed, number)), dtype=torch.float64)
