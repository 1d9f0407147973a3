"""Beam search for a whole batch at once, on its device."""

from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.seq2seq.model import Seq2Seq
from polymax_recipes.training.vocabulary import BEGIN, END, PAD


class Search(NamedTuple):
    """Limits of a search: the number of hypotheses, the most words, and the power of the length that divides log-
    probabilities.
    """

    beam: int
    longest: int
    length_penalty: float


class Found(NamedTuple):
    """The best target of each sentence, to END, then PAD; its score; True if no target has a better score.

    If no hypothesis ended in time, the score is -inf, and the words are those of the best unfinished hypothesis.

    Shapes: words (b, longest); scores (b,); exact (b,)
    """

    words: Tensor
    scores: Tensor
    exact: Tensor


@torch.no_grad()
def beam_search(model: Seq2Seq, source: Tensor, lengths: Tensor, search: Search) -> Found:
    """Return the target with the largest log-probability / length^penalty among the hypotheses of a beam.

    A hypothesis is not extended if its probability is 0, or if it cannot overtake the best complete one: its
    log-probability only falls, so that its score stays below its log-probability divided by the largest length to the
    penalty. If no other hypothesis of a sentence was dropped, its result is exact; with sparse outputs this is likely.
    Otherwise the search ends when `beam` complete hypotheses have better scores than all unfinished ones.

    See: Peters, Niculae and Martins 2019, Sparse sequence-to-sequence models, Section 4.
    """
    encoded, state = model.encode(source, lengths)
    rows = torch.arange(len(source), device=source.device).unsqueeze(1)
    words = torch.full_like(rows, BEGIN).unsqueeze(2)
    scores = torch.zeros_like(rows, dtype=torch.float32)
    never, last = torch.tensor([PAD, BEGIN], device=source.device), torch.tensor([END], device=source.device)
    # the best scores of complete hypotheses
    ends = torch.full_like(scores, -torch.inf).expand(-1, search.beam)
    found = Found(
        torch.full_like(rows, PAD).repeat(1, search.longest),
        torch.full_like(scores[:, 0], -torch.inf),
        torch.ones_like(rows[:, 0], dtype=torch.bool),
    )
    for length in range(1, search.longest + 1):
        state, _ = model.step(model.target(words[:, :, -1]), encoded, state)
        extended = scores.unsqueeze(2) + model.log_probs(state.fed)
        extended = extended.index_fill(2, never, -torch.inf)
        ended = extended[..., END] / length**search.length_penalty
        ends = torch.cat([ends, ended], 1).topk(search.beam, 1).values
        found = _better_ending(found, words, ended)
        live = extended.index_fill(2, last, -torch.inf)
        hopeless = live / search.longest**search.length_penalty <= found.scores[:, None, None]
        live = live.masked_fill(hopeless, -torch.inf).flatten(1)
        going = (live.amax(1) / length**search.length_penalty > ends[:, -1]) & (length < search.longest)
        possible = (live > -torch.inf).sum(1)
        found = found._replace(exact=found.exact & (possible <= torch.where(going, search.beam, 0)))
        if not bool(going.any()):
            break
        live = live.masked_fill(~going.unsqueeze(1), -torch.inf)
        scores, chosen = live.topk(min(search.beam, live.shape[1]), 1)
        parents, following = chosen // extended.shape[2], chosen % extended.shape[2]
        words = torch.cat([words[rows, parents], following.unsqueeze(2)], 2)
        state = state.chosen(parents)
    # the first hypothesis is the best unfinished one
    missing = (found.scores == -torch.inf).unsqueeze(1)
    begun = torch.where(missing, words[:, 0, 1:], found.words[:, : words.shape[2] - 1])
    return found._replace(words=torch.cat([begun, found.words[:, words.shape[2] - 1 :]], 1))


def _better_ending(found: Found, words: Tensor, scores: Tensor) -> Found:
    """Return the better of the result so far and the complete hypotheses: scores are (b, k), words (b, k, m)."""
    score, which = scores.max(1)
    better = score > found.scores
    rows = torch.arange(len(which), device=which.device)
    length = words.shape[2]
    complete = torch.full_like(found.words, PAD)
    complete[:, : length - 1] = words[rows, which, 1:]
    complete[:, length - 1] = END
    return found._replace(
        words=torch.where(better.unsqueeze(1), complete, found.words), scores=torch.where(better, score, found.scores)
    )
