"""Alignments of speech: monotonic alignment search, forced alignment and the spans of its tokens."""

from typing import NamedTuple

import torch
from torch import Tensor

from polymax import _check
from polymax.structures import CTC, Monotonic


class TokenSpan(NamedTuple):
    """A token, its frames start, ..., end - 1, and the mean score of these; its length is the number of frames.

    Example:
        >>> len(TokenSpan(token=3, start=1, end=3, score=0.75))
        2
    """

    token: int
    start: int
    end: int
    score: float

    def __len__(self) -> int:
        return self.end - self.start


def monotonic_alignment_search(
    scores: Tensor, lengths: tuple[Tensor, Tensor] | None = None, output: str = "path"
) -> Tensor:
    """The best monotonic path through frames and tokens, as 0 and 1: each frame has one token, and none is skipped.

    It is `pm.Monotonic(lengths).map(scores)`, by the name it has in text-to-speech. The sum over tokens is 1 for each
    frame, that over frames the durations. Where keeping a token and moving on are equally good, the path, read from the
    last frame backwards, keeps its token. That is the rule of `monotonic_align`, so that both give the same path.

    To write the path takes longer than to find it: `output="tokens"` gives the token of each frame instead, -1 at
    padding, and "durations" the number of frames of each token.

    Shapes:
        scores (*batch, frames, tokens); lengths a pair of (*batch,), frames and tokens; the path like scores, tokens
        (*batch, frames), durations (*batch, tokens)

    Example:
        >>> path = monotonic_alignment_search(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]]))
        >>> path.sum(-2)  # durations
        tensor([1., 2.])
        >>> monotonic_alignment_search(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]]), output="durations")
        tensor([1, 2])

    See: Kim et al. 2020, Glow-TTS, section 3.2.
    """
    if output not in ("path", "tokens", "durations"):
        raise ValueError(f"output must be 'path', 'tokens' or 'durations'; got {output!r}")
    if output == "path":
        return Monotonic(lengths).map(scores)
    tokens = Monotonic(lengths).tokens(scores)
    if output == "tokens":
        return tokens
    counts = tokens.new_zeros(*scores.shape[:-2], scores.shape[-1])
    return counts.scatter_add_(-1, tokens.clamp(min=0), (tokens >= 0).long()) if scores.shape[-1] else counts


def forced_align(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | None = None,
    target_lengths: Tensor | None = None,
    blank: int = 0,
) -> tuple[Tensor, Tensor]:
    """The most probable labelling of frames that reads as the targets, and the score of each label.

    It takes a whole batch. A score of -inf forbids a label in a frame; a wildcard is a further label whose scores are
    the largest of all labels, or 0. Labels are -1 and scores 0 at padding, and where -inf forbid every labelling;
    targets that need more frames than there are raise a ValueError.

    Shapes:
        log_probs (*batch, frames, labels); targets (*batch, s) or (s,); lengths (*batch,); result two tensors
        (*batch, frames), the labels in the dtype of the targets

    Example:
        >>> log_probs = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]]).log()
        >>> labels, scores = forced_align(log_probs, torch.tensor([1, 2]))
        >>> labels, scores.exp()
        (tensor([0, 1, 2]), tensor([0.6000, 0.8000, 0.6000]))
    """
    _check.floating(log_probs, "log_probs")
    ctc = CTC(targets, target_lengths, input_lengths, blank)
    labels = ctc.labels(log_probs)
    at = log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    # -1 is no number of uint8
    signed = targets.dtype.is_signed and targets.dtype != torch.bool
    return labels.to(targets.dtype) if signed else labels, torch.where(labels < 0, 0, at)


def merge_tokens(labels: Tensor, scores: Tensor, blank: int = 0) -> list[TokenSpan]:
    """The tokens of one forced alignment in order: runs of a label that is not the blank.

    Shapes: labels and scores (frames,), as `forced_align` gives them

    Example:
        >>> merge_tokens(torch.tensor([0, 3, 3, 0, 1]), torch.tensor([0.9, 0.5, 1.0, 0.9, 0.25]))
        [TokenSpan(token=3, start=1, end=3, score=0.75), TokenSpan(token=1, start=4, end=5, score=0.25)]
    """
    if labels.dim() != 1 or labels.shape != scores.shape:
        came = f"{tuple(labels.shape)} and {tuple(scores.shape)}"
        raise ValueError(f"labels and scores must be (frames,), of one utterance; got {came}")
    tokens, counts = torch.unique_consecutive(labels, return_counts=True)
    ends = counts.cumsum(0)
    rows = zip(tokens.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)
    return [TokenSpan(t, a, b, float(scores[a:b].mean())) for t, a, b in rows if t not in (blank, -1)]
