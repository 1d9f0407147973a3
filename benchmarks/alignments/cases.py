"""Monotonic search, forced alignment, transducers, and alignments with gaps."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

import polymax as pm
from benchmarks.alignments import oracles, peers
from benchmarks.baselines import Tensors, ours
from benchmarks.memory import MemoryCase
from benchmarks.record import Bar
from benchmarks.workload import BOTH, FORWARD, Case, FunctionCase, Problems, Shape, Signature, Size, gaussian

OPEN, EXTEND = -2.0, -0.5


def tokens(scores: Tensor) -> Tensor:
    return pm.monotonic_alignment_search(scores, output="tokens")


def path(scores: Tensor) -> Tensor:
    return pm.monotonic_alignment_search(scores)


def labels(log_probs: Tensor) -> Tensor:
    return pm.forced_align(log_probs, peers.spoken(log_probs.shape[1] // 8, log_probs.shape[2], log_probs.device))[0]


def spelled(frames: int, classes: int, device: torch.device) -> tuple[str, dict[str, int]]:
    """A text of words of five characters, .3 characters a frame, and the labels of characters; spaces have none."""
    letters = [chr(ord("A") + label) for label in peers.spoken(3 * frames // 10, classes, device).tolist()]
    words = ["".join(letters[k : k + 5]) for k in range(0, len(letters), 5)]
    return " ".join(words), {chr(ord("A") + label): label for label in range(classes)}


def word_times(log_probs: Tensor) -> Tensor:
    """The labels of frames from the times of characters, of all segments."""
    batch, frames, classes = log_probs.shape
    text, dictionary = spelled(frames, classes, log_probs.device)
    found = pm.align_segments(log_probs, [text] * batch, dictionary, frame_seconds=1.0)
    times = [(c.start, c.end) for s in found for w in s.words for c in w.characters]
    start, end = torch.tensor(times, dtype=torch.long).reshape(batch, -1, 2).unbind(-1)
    change = torch.zeros(batch, frames + 1, dtype=torch.long)
    each = peers.spoken(start.shape[1], classes, torch.device("cpu")).expand(batch, -1)
    return change.scatter_add(1, start, each).scatter_add(1, end, -each).cumsum(1)[:, :-1].to(log_probs.device)


def exact_word_times(log_probs: Tensor) -> Tensor:
    targets = peers.spoken(3 * log_probs.shape[1] // 10, log_probs.shape[2], log_probs.device)
    return oracles.labelling(log_probs, targets)


def transduced(logits: Tensor) -> Tensor:
    batch, frames, states, classes = logits.shape
    targets = peers.spoken(states - 1, classes - 1, logits.device).expand(batch, -1)
    return pm.rnnt_loss(logits, targets, *lengths(batch, frames, states - 1, logits.device), reduction="none")


def additive(encoder: Tensor, predictor: Tensor) -> Tensor:
    (batch, frames, classes), states = encoder.shape, predictor.shape[1]
    targets = peers.spoken(states - 1, classes - 1, encoder.device).expand(batch, -1)
    given = lengths(batch, frames, states - 1, encoder.device)
    return pm.additive_rnnt_loss(encoder, predictor, targets, *given, reduction="none")


DURATIONS = (0, 1, 2, 3, 4)
HIDDEN = 64


def with_durations(logits: Tensor, duration_logits: Tensor) -> Tensor:
    batch, frames, states, classes = logits.shape
    targets = peers.spoken(states - 1, classes - 1, logits.device).expand(batch, -1)
    given = lengths(batch, frames, states - 1, logits.device)
    return pm.tdt_loss(logits, duration_logits, targets, *given, classes - 1, DURATIONS, reduction="none")


def exact_with_durations(logits: Tensor, duration_logits: Tensor) -> Tensor:
    targets = peers.spoken(logits.shape[2] - 1, logits.shape[3] - 1, logits.device)
    return oracles.token_and_duration(logits, duration_logits, targets, DURATIONS)


def jointly(encoder: Tensor, predictor: Tensor, weight: Tensor) -> Tensor:
    (batch, frames, _), states, classes = encoder.shape, predictor.shape[1], weight.shape[0]
    targets = peers.spoken(states - 1, classes - 1, encoder.device).expand(batch, -1)
    given = lengths(batch, frames, states - 1, encoder.device)
    return pm.joint_rnnt_loss(encoder, predictor, weight, targets, *given, reduction="none")


def joint_logits(encoder: Tensor, predictor: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(encoder.unsqueeze(2) + predictor.unsqueeze(1)) @ weight.mT


@cache
def lengths(batch: int, frames: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """All instances are as long as the longest."""
    return torch.full((batch,), frames, device=device), torch.full((batch,), tokens, device=device)


def gapped(pairs: Tensor) -> Tensor:
    return pm.Marginals(pm.GappedAlignment()).max(pairs, pairs.new_full((), OPEN), pairs.new_full((), EXTEND))


def best_labels(log_probs: Tensor) -> Tensor:
    targets = peers.spoken(log_probs.shape[1] // 8, log_probs.shape[2], log_probs.device)
    return oracles.labelling(log_probs, targets)


def exact_loss(logits: Tensor) -> Tensor:
    return oracles.transducer(logits, peers.spoken(logits.shape[2] - 1, logits.shape[3] - 1, logits.device))


def exact_additive(encoder: Tensor, predictor: Tensor) -> Tensor:
    return exact_loss(encoder.unsqueeze(2) + predictor.unsqueeze(1))


def exact_gapped(pairs: Tensor) -> Tensor:
    return oracles.gapped(pairs, OPEN, EXTEND)


def log_probs(shape: Shape, generator: torch.Generator) -> Tensors:
    return (gaussian(shape, generator)[0].log_softmax(-1),)


def two_terms(shape: Shape, generator: torch.Generator) -> Tensors:
    batch, frames, states, classes = shape
    return *gaussian((batch, frames, classes), generator), *gaussian((batch, states, classes), generator)


def tokens_and_durations(shape: Shape, generator: torch.Generator) -> Tensors:
    return *gaussian(shape, generator), *gaussian((*shape[:3], len(DURATIONS)), generator)


def joint_terms(shape: Shape, generator: torch.Generator) -> Tensors:
    batch, frames, states, classes = shape
    terms = (batch, frames, HIDDEN), (batch, states, HIDDEN), (classes, HIDDEN)
    return tuple(gaussian(term, generator)[0] for term in terms)


def score_alone(inputs: Tensors, outputs: Tensors) -> Tensors:
    """A path is as good as its score: rounding decides between paths that are all but equally good."""
    (x,), (y,) = inputs, outputs
    found = (x * y).sum(2) if y.dim() == 3 else x.gather(2, y.long().unsqueeze(2)).squeeze(2)
    return (found.sum(1),)


def nothing(shape: Shape) -> tuple[Shape, ...]:
    """No output that has a derivative."""
    return ()


def one_each(shape: Shape) -> tuple[Shape, ...]:
    """A number for each instance."""
    return (shape[:1],)


def sizes(timed: str, signature: Signature, quick: Shape, *shapes: Shape) -> Problems:
    """The same problems on both devices."""
    return Problems({device: tuple(map(Size, shapes)) for device in ("cpu", "cuda")}, (timed,), signature, quick)


def units(inputs: Callable[[Shape, torch.Generator], Tensors], shared: int = 0, *cuda: Shape) -> Problems:
    """Losses of sub-word units, each device with a size of its own; the last `shared` inputs serve the batch."""
    more = {"cuda": cuda}
    sizes = {device: tuple(map(Size, (shape, *more.get(device, ())))) for device, shape in UNITS.items()}
    return Problems(sizes, (BOTH,), Signature(inputs, one_each, shared), (2, 5, 3, 7))


PATHS = Signature(gaussian, nothing, compared=score_alone)
LABELS = Signature(log_probs, nothing, compared=score_alone)
SPEECH = (64, 1000, 200)
JOINT = (8, 200, 41, 256)
# the vocabulary of Parakeet: 13 GB of logits
PARAKEET = (16, 400, 61, 8193)
# logits of sub-word units: what a CPU and a GPU take
UNITS = {"cpu": (2, 100, 31, 1025), "cuda": (16, 400, 61, 1025)}

JOINTLY = ours(jointly, lambda *terms: exact_loss(joint_logits(*terms)))

ALIGNMENTS: list[Case] = [
    FunctionCase(
        "monotonic search",
        ours(tokens, oracles.monotonic),
        sizes(FORWARD, PATHS, (3, 9, 4), SPEECH),
        (peers.MONOTONIC_ALIGN.behind(5),),
        {("cuda", FORWARD): Bar(1e3, "eager_us")},
    ),
    FunctionCase(
        "monotonic path",
        ours(path, oracles.monotonic),
        sizes(FORWARD, PATHS, (3, 9, 4), SPEECH),
        (peers.MONOTONIC_ALIGN,),
    ),
    FunctionCase(
        "forced alignment",
        ours(labels, best_labels),
        sizes(FORWARD, LABELS, (3, 16, 5), (64, 400, 64)),
        (peers.FORCED_ALIGN.behind(20),),
    ),
    FunctionCase(
        "times of words",
        ours(word_times, exact_word_times),
        # 20 minutes of speech in 60 segments
        Problems({"cpu": (Size((60, 1000, 32)),)}, (FORWARD,), LABELS, (3, 20, 9)),
        bars={("cpu", FORWARD): Bar(50e3, "eager_us")},
    ),
    FunctionCase(
        "transducer",
        ours(transduced, exact_loss),
        sizes(BOTH, Signature(gaussian, one_each), (2, 5, 3, 7), JOINT),
        (peers.RNNT_LOSS.behind(1 / 1.2),),
    ),
    FunctionCase(
        "additive transducer",
        ours(additive, exact_additive),
        sizes(BOTH, Signature(two_terms, one_each), (2, 5, 3, 7), JOINT),
        (peers.formed(transduced),),
    ),
    FunctionCase(
        "token-and-duration transducer",
        ours(with_durations, exact_with_durations),
        units(tokens_and_durations, 0, PARAKEET),
        (peers.diagonals(exact_with_durations).behind(2),),
    ),
    FunctionCase(
        "joint transducer",
        JOINTLY,
        units(joint_terms, shared=1),
        (peers.joined(lambda *terms: transduced(joint_logits(*terms))),),
    ),
    FunctionCase(
        "gapped alignment",
        ours(gapped, exact_gapped),
        sizes(BOTH, Signature(gaussian, one_each), (3, 7, 5), (64, 512, 512)),
        (peers.wavefront(OPEN, EXTEND).behind(10),),
        {("cuda", BOTH): Bar(3e3, "eager_us")},
    ),
]

MEMORY: list[Case] = [
    MemoryCase(
        "joint transducer",
        JOINTLY,
        Problems(
            {"cpu": (Size((2, 150, 41, 4097)),), "cuda": (Size(UNITS["cuda"]),)},
            signature=Signature(joint_terms, one_each, 1),
            quick=(2, 5, 3, 7),
        ),
        # logits and their gradient together, divided by 20; tiny problems are one block
        lambda shape: max(math.prod(shape) // 10, 1 << 16),
    ),
]
