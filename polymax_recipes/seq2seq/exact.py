"""Exact search: hypotheses are extended by their bounds, until none can be better than the best complete one.

Words of probability 0 are never followed; sparse losses give 0 to almost all words, so that few hypotheses remain.
"""

from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.seq2seq.attention import Source
from polymax_recipes.seq2seq.model import Seq2Seq, State
from polymax_recipes.seq2seq.search import Found, Search, beam_search
from polymax_recipes.training.vocabulary import BEGIN, END, PAD

# hypotheses that are extended at once
TOGETHER = 32


class Hypothesis(NamedTuple):
    """Words after BEGIN, their log-probability, and the state before the last word is read, with its row in a batch of
    states.
    """

    words: tuple[int, ...]
    log_prob: float
    states: State
    which: int


def exact_search(model: Seq2Seq, source: Tensor, lengths: Tensor, search: Search, most: int) -> Found:
    """Return the result of `beam_search`; for each sentence without a proof that its result is the best, return the
    best target of all.

    At most `most` hypotheses of a sentence are extended; if the search does not end by then, the best target so far is
    returned, and `exact` is False.
    """
    found = beam_search(model, source, lengths, search)
    for row in (~found.exact).nonzero().flatten().tolist():
        n = int(lengths[row])
        words, score, proven = _best(model, source[row : row + 1, :n], search, float(found.scores[row]), most)
        found.exact[row] = proven
        if words is not None:
            found.words[row] = PAD
            found.words[row, : len(words)] = torch.tensor(words, device=source.device)
            found.scores[row] = score
    return found


@torch.no_grad()
def _best(
    model: Seq2Seq, source: Tensor, search: Search, least: float, most: int
) -> tuple[tuple[int, ...] | None, float, bool]:
    """Words with a better score than given, if any were found; their score; True if they are proven to be the best."""
    encoded, state = model.encode(source, torch.tensor([source.shape[1]], device=source.device))
    # a heap with the largest bound first: log-probabilities only fall, so that the score at the greatest length is a
    # bound
    waiting = [(0.0, 0, Hypothesis((), 0.0, state, 0))]
    best, score, number, dropped = None, least, 1, -inf
    while waiting and most > 0:
        chosen: list[Hypothesis] = []
        while waiting and len(chosen) < min(TOGETHER, most):
            bound, _, one = heappop(waiting)
            if -bound > score:
                chosen.append(one)
        if not chosen:
            break
        most -= len(chosen)
        states, log_probs = _extend(model, encoded, chosen)
        for which, one in enumerate(chosen):
            length = len(one.words) + 1
            row = one.log_prob + log_probs[which]
            ended = float(row[END]) / length**search.length_penalty
            if ended > score:
                best, score = (*one.words, END), ended
            if length == search.longest:
                continue
            row[[PAD, BEGIN, END]] = -inf
            bounds, order = (row / search.longest**search.length_penalty).sort(descending=True, stable=True)
            # hypotheses beyond `most` are dropped; if one had a better bound, the result is not proven
            kept = min(int((bounds > score).sum()), most)
            dropped = max(dropped, float(bounds[kept]) if kept < len(bounds) else -inf)
            for bound, word in zip(bounds[:kept].tolist(), order[:kept].tolist()):
                following = Hypothesis((*one.words, word), float(row[word]), states, which)
                heappush(waiting, (-bound, number, following))
                number += 1
    return best, score, max([dropped, *(-bound for bound, _, _ in waiting)]) <= score


def _extend(model: Seq2Seq, source: Source, chosen: list[Hypothesis]) -> tuple[State, Tensor]:
    """The states after the last words of hypotheses were read, and log-probabilities of the next words, (k, words)."""
    parts = zip(*(State(*(part[0, one.which] for part in one.states)) for one in chosen))
    state = State(*(torch.stack(part).unsqueeze(0) for part in parts))
    last = torch.tensor([[one.words[-1] if one.words else BEGIN for one in chosen]], device=source.mask.device)
    state, _ = model.step(model.target(last), source, state)
    # in float64, so that sums over many words keep their digits
    return state, model.log_probs(state.fed)[0].double().cpu()
