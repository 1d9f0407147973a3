"""Alignments of speech: monotonic alignment search, forced alignment, the spans of its tokens, and times of words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
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


class AlignedCharacter(NamedTuple):
    """A character, the seconds at which it starts and ends, and the mean probability of its frames.

    Example:
        >>> AlignedCharacter("a", 0.5, 0.75, 0.9).text
        'a'
    """

    text: str
    start: float
    end: float
    score: float


class AlignedWord(NamedTuple):
    """A word, the seconds at which it starts and ends, the mean score of its characters, and the characters.

    Example:
        >>> AlignedWord("a", 0.5, 0.75, 0.9, ())._asdict()
        {'text': 'a', 'start': 0.5, 'end': 0.75, 'score': 0.9, 'characters': ()}
    """

    text: str
    start: float
    end: float
    score: float
    characters: tuple[AlignedCharacter, ...]


class AlignedSegment(NamedTuple):
    """A transcript, the seconds at which its first word starts and its last one ends, and its words.

    Without words, `start` and `end` are those of the emissions.

    Example:
        >>> AlignedSegment("", 0.0, 20.0, []).end
        20.0
    """

    text: str
    start: float
    end: float
    words: list[AlignedWord]


def monotonic_alignment_search(
    scores: Tensor, lengths: tuple[Tensor, Tensor] | None = None, output: str = "path"
) -> Tensor:
    """The best monotonic path through frames and tokens, as 0 and 1: each frame has one token, and none is skipped.

    It is `pm.Monotonic(lengths).map(scores)`, by the name it has in text-to-speech. The sum over tokens is 1 for each
    frame, the sum over frames is the duration of a token. If keeping a token and moving on are equally good, the path,
    read from the last frame backwards, keeps its token. The package `monotonic_align` has the same rule, and so gives
    the same path.

    Writing the path takes longer than finding it: `output="tokens"` gives the token of each frame instead, -1 at
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
    the largest of all labels, or 0. Labels are -1 and scores 0 at padding, and in instances in which scores of -inf
    forbid every labelling; targets that need more frames than there are raise a ValueError.

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
    # uint8 has no -1
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
    _check.floating(scores, "scores")
    tokens, counts = torch.unique_consecutive(labels, return_counts=True)
    ends = counts.cumsum(0)
    rows = zip(tokens.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)
    return [TokenSpan(t, a, b, float(scores[a:b].mean())) for t, a, b in rows if t not in (blank, -1)]


def align_segments(
    emissions: Sequence[Tensor] | Tensor,
    transcripts: Sequence[str],
    dictionary: Mapping[str, int],
    frame_seconds: float | Sequence[float] = 0.02,
    starts: Sequence[float] | None = None,
    blank: int = 0,
    separator: str = "|",
    spaces: bool = True,
    characters: bool = True,
) -> list[AlignedSegment]:
    """The times of words, and of characters, in the segments of a recording, all segments aligned in one call.

    Each segment is aligned as by `forced_align`. A character that the dictionary lacks, also in lower and in upper
    case, is a wildcard: in each frame, its score is the largest of all labels but the blank. So is a character that
    has the label of the blank. Spaces have the label of
    the separator, if there is one, and no times. A transcript that does not fit into its frames has no words.

    Arguments:
        emissions: log-probabilities of each segment, (frames, labels), in a list, or (segments, frames, labels)
        transcripts: a string for each segment; words are separated by spaces
        dictionary: the label of each character
        frame_seconds: seconds from a frame to the next, for all segments or for each
        starts: seconds at which segments start in the recording, 0 by default
        blank: the label of the blank
        separator: the character by which the dictionary calls a space
        spaces: without them, as in Chinese, each character is a word
        characters: without them, words have none, which takes less time

    Example:
        >>> dictionary = {"-": 0, "|": 1, "a": 2, "b": 3}
        >>> emissions = torch.eye(4)[[0, 2, 1, 3, 3, 0]].clamp(min=0.1).log()
        >>> [segment] = align_segments([emissions], ["a B"], dictionary, starts=[10.0])
        >>> [(word.text, round(word.start, 2), round(word.end, 2), round(word.score, 2)) for word in segment.words]
        [('a', 10.02, 10.04, 1.0), ('B', 10.06, 10.1, 1.0)]

    See: Bain et al. 2023, WhisperX: time-accurate speech transcription of long-form audio, section 3.3.
    """
    frames, classes = _segment_sizes(emissions, transcripts)
    seconds = _numbers(frame_seconds, len(transcripts), "frame_seconds")
    begins = _numbers(0.0 if starts is None else starts, len(transcripts), "starts")
    if min(seconds, default=1.0) <= 0:
        raise ValueError(f"frame_seconds must be positive; got {min(seconds)}")
    if not isinstance(dictionary, Mapping):
        raise TypeError(f"dictionary must map characters to labels; got {type(dictionary).__name__}")
    if not transcripts:
        return []
    known, between = _labels_of(set().union(*transcripts), dictionary, separator, blank, classes)
    spelled = _spelled(transcripts, known, between, spaces, classes)
    fits = np.array([_needed(each.labels) <= n for each, n in zip(spelled, frames, strict=True)])
    counts = np.array([len(each.labels) for each in spelled]) * fits
    targets = np.zeros((len(spelled), int(counts.max())), np.int64)
    for row, each, count in zip(targets, spelled, counts, strict=True):
        row[:count] = each.labels[:count]
    log_probs = _with_wildcard(emissions, frames, classes, blank, wild=bool((targets >= classes).any()))
    rows, n_of, m_of = (torch.from_numpy(x).to(log_probs.device) for x in (targets, np.array(frames), counts))
    labels, scores = (t.cpu() for t in forced_align(log_probs, rows, n_of, m_of, blank))
    spans = _spans(labels.numpy(), scores.double().exp().numpy(), blank)
    aligned = []
    for k, (text, each) in enumerate(zip(transcripts, spelled, strict=True)):
        own = slice(spans.first[k], spans.first[k + 1])
        start, end = (begins[k] + seconds[k] * x[own] for x in (spans.start, spans.end))
        # a transcript without a labelling has no spans
        words = _words(each, start, end, spans.score[own], characters) if len(start) else []
        whole = (words[0].start, words[-1].end) if words else (begins[k], begins[k] + seconds[k] * frames[k])
        aligned.append(AlignedSegment(text, *whole, words))
    return aligned


class _Spelled(NamedTuple):
    """The labels of a transcript, the character of each, and for each word its text and the place of its label."""

    labels: list[int]
    letters: str
    words: list[tuple[str, int]]


class _Spans(NamedTuple):
    """The frames start, ..., end - 1 of tokens, their mean scores, and the first token of each segment."""

    start: np.ndarray
    end: np.ndarray
    score: np.ndarray
    first: np.ndarray


def _spans(labels: np.ndarray, scores: np.ndarray, blank: int) -> _Spans:
    """The spans of the tokens of all segments, one after the other."""
    rows, n = labels.shape
    # a column of blanks ends the runs of a segment
    line = np.concatenate([labels, np.full((rows, 1), blank)], 1).ravel()
    spoken = (line != blank) & (line != -1)
    changed = np.concatenate([[True], line[1:] != line[:-1]])
    start = np.flatnonzero(spoken & changed)
    end = np.flatnonzero(spoken & np.concatenate([changed[1:], [True]])) + 1
    means = _means(np.concatenate([scores, np.zeros((rows, 1))], 1).ravel(), start, end)
    segment = start // (n + 1)
    first = np.searchsorted(segment, np.arange(rows + 1))
    return _Spans(start - segment * (n + 1), end - segment * (n + 1), means, first)


def _means(x: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The means of x[start:end] for each pair; pairs are in order, and end before the last entry of x."""
    # sums from each start to its end, and between: what is infinite in one of them is not in another
    return np.add.reduceat(x, np.stack([start, end], 1).ravel())[::2] / (end - start)


def _words(
    spelled: _Spelled, start: np.ndarray, end: np.ndarray, score: np.ndarray, characters: bool
) -> list[AlignedWord]:
    """The words of a segment from the times and scores of its tokens."""
    texts = [text for text, _ in spelled.words]
    first = np.array([at for _, at in spelled.words])
    last = first + [len(text) for text in texts]
    means = _means(np.concatenate([score, [0.0]]), first, last)
    inner: Iterator[tuple[AlignedCharacter, ...]] = repeat((), len(texts))
    if characters:
        rows = zip(spelled.letters, start.tolist(), end.tolist(), score.tolist(), strict=True)
        each = list(map(AlignedCharacter._make, rows))
        inner = (tuple(each[a:b]) for a, b in zip(first.tolist(), last.tolist(), strict=True))
    columns = texts, start[first].tolist(), end[last - 1].tolist(), means.tolist(), inner
    return list(map(AlignedWord._make, zip(*columns, strict=True)))


def _spelled(
    transcripts: Sequence[str], known: Mapping[str, int], between: list[int], spaces: bool, wild: int
) -> list[_Spelled]:
    """Each transcript in labels, with the label `between` words, if there is one."""
    spelled = []
    for text in transcripts:
        parts = text.split()
        labels: list[int] = []
        words = []
        for part in parts:
            labels += between if labels else []
            at = len(labels)
            words += [(part, at)] if spaces else [(c, at + i) for i, c in enumerate(part)]
            labels += [known[c] for c in part]
        for at in range(1, len(labels) if wild in known.values() else 0):
            # neighbours differ: a wildcard after a wildcard needs no blank between them
            labels[at] += labels[at] == labels[at - 1] == wild
        spelled.append(_Spelled(labels, (" " if between else "").join(parts), words))
    return spelled


def _labels_of(
    characters: Iterable[str], dictionary: Mapping[str, int], separator: str, blank: int, wild: int
) -> tuple[dict[str, int], list[int]]:
    """The labels of characters, also of those in another case, and the label of the separator; the wildcard if it has
    none.
    """
    # some dictionaries call the blank by a character that transcripts have, too
    found = {c: label for c, label in dictionary.items() if label != blank}
    forms = {c: next((form for form in (c, c.lower(), c.upper()) if form in found), None) for c in characters}
    for c in {separator, *filter(None, forms.values())} & found.keys():
        if not 0 <= _check.integer(found[c], f"dictionary[{c!r}]") < wild:
            raise ValueError(
                f"dictionary must have labels in [0, {wild}), those of emissions; got {found[c]} for {c!r}"
            )
    known = {c: wild if form is None else found[form] for c, form in forms.items()}
    return known, [found[separator]] if separator in found else []


def _needed(labels: Sequence[int]) -> int:
    """The number of frames that labels need: equal neighbours have a blank between them."""
    return len(labels) + sum(map(int.__eq__, labels, labels[1:]))


def _numbers(given: float | Sequence[float], count: int, name: str) -> list[float]:
    """A finite number for each segment, from numbers or from one number for all."""
    values = np.asarray(given, dtype=float) if not isinstance(given, str) else np.asarray(np.nan)
    if values.ndim > 1 or not np.isfinite(values).all():
        raise ValueError(f"{name} must be a finite number, or a number for each segment; got {given!r}")
    if values.ndim and len(values) != count:
        raise ValueError(f"{name} must be as many as transcripts, {count}; got {len(values)}")
    return values.tolist() if values.ndim else [float(values)] * count


def _segment_sizes(emissions: Sequence[Tensor] | Tensor, transcripts: Sequence[str]) -> tuple[list[int], int]:
    """The number of frames of each segment, and of labels, of checked emissions."""
    if isinstance(transcripts, str):
        raise TypeError("transcripts must be a list of strings, one for each segment; got one string")
    if not isinstance(emissions, Tensor | Sequence):
        expected = "a list of tensors (frames, labels), or a tensor (segments, frames, labels)"
        raise TypeError(f"emissions must be {expected}; got {type(emissions).__name__}")
    for k, text in enumerate(transcripts):
        if not isinstance(text, str):
            raise TypeError(f"transcripts[{k}] must be a string; got {type(text).__name__}")
    if len(emissions) != len(transcripts):
        raise ValueError(f"emissions must be as many as transcripts, {len(transcripts)}; got {len(emissions)}")
    for k, each in enumerate(emissions):
        _check.floating(each, f"emissions[{k}]")
        if each.dim() != 2 or each.shape[1] != emissions[0].shape[1]:
            expected = f"(frames, {emissions[0].shape[1] if emissions[0].dim() == 2 else 'labels'})"
            raise ValueError(f"emissions[{k}] must be {expected}; got {tuple(each.shape)}")
    return [len(each) for each in emissions], emissions[0].shape[1] if len(emissions) else 0


def _with_wildcard(
    emissions: Sequence[Tensor] | Tensor, frames: Sequence[int], classes: int, blank: int, wild: bool
) -> Tensor:
    """Emissions (segments, frames, labels) as one tensor; if `wild`, with two wildcards after all other labels."""
    if isinstance(emissions, Tensor) and not wild:
        return emissions.detach()
    whole = emissions[0].new_zeros(len(frames), max(frames), classes + 2 * wild)
    for k, each in enumerate(emissions):
        whole[k, : len(each), :classes] = each.detach()
    if wild and 0 <= blank < classes:
        parts = [x for x in (whole[..., :blank], whole[..., blank + 1 : classes]) if x.shape[-1]]
        best = torch.stack([x.amax(-1) for x in parts]).amax(0) if parts else whole[..., 0].new_tensor(-torch.inf)
        whole[..., classes], whole[..., classes + 1] = best, best
    return whole
