"""Who else aligns: a compiled loop of the usual code of text-to-speech, torchaudio, and wavefronts in NumPy."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines import Function, Mapping, Peer, Tensors, TorchFunction

SLACK = 10.0
NONE = np.float32(-np.inf)


@cache
def _usual() -> Any:
    """Frame by frame and token by token, values in the place of scores; instances in parallel."""
    import numba

    @numba.njit(parallel=True, nogil=True)
    def search(paths: np.ndarray, values: np.ndarray, frames: int, tokens: int) -> None:
        for b in numba.prange(paths.shape[0]):
            path, value = paths[b], values[b]
            for t in range(frames):
                for j in range(max(0, tokens + t - frames), min(tokens, t + 1)):
                    stay = np.float32(-1e9) if j == t else value[t - 1, j]
                    if j == 0:
                        move = np.float32(0.0) if t == 0 else np.float32(-1e9)
                    else:
                        move = value[t - 1, j - 1]
                    value[t, j] += max(move, stay)
            j = tokens - 1
            for t in range(frames - 1, -1, -1):
                path[t, j] = 1
                if j != 0 and (j == t or value[t - 1, j] < value[t - 1, j - 1]):
                    j -= 1

    return search


def _monotonic_align(package: Any) -> Function:
    def call(scores: Tensor) -> Tensor:
        package.set_num_threads(min(torch.get_num_threads(), package.config.NUMBA_NUM_THREADS))
        values = scores.numpy().copy()
        paths = np.zeros(values.shape, np.int32)
        _usual()(paths, values, values.shape[1], values.shape[2])
        return torch.from_numpy(paths)

    return TorchFunction(call)


def _forced_align(package: Any) -> Function:
    """It takes one utterance at a time."""

    def call(log_probs: Tensor) -> Tensor:
        targets = spoken(log_probs.shape[1] // 8, log_probs.shape[2], log_probs.device)[None].int()
        align = package.functional.forced_align
        return torch.cat([align(one[None], targets, blank=0)[0] for one in log_probs]).long()

    return TorchFunction(call)


def _rnnt(package: Any) -> Function:
    def call(logits: Tensor) -> Tensor:
        batch, frames, states, classes = logits.shape
        targets = spoken(states - 1, classes - 1, logits.device).int().expand(batch, -1).contiguous()
        sizes = (torch.full((batch,), k, dtype=torch.int32, device=logits.device) for k in (frames, states - 1))
        return package.functional.rnnt_loss(logits, targets, *sizes, reduction="none")

    return TorchFunction(call)


@cache
def spoken(count: int, classes: int, device: torch.device) -> Tensor:
    """Targets (count,) from 1 on, none equal to the one before."""
    return 1 + 7 * torch.arange(count, device=device) % (classes - 1)


@dataclass(frozen=True)
class Wavefront(Function):
    """Gotoh's sums by anti-diagonals, all instances and cells of one in NumPy's vectors; then the same backwards."""

    opened: float
    extended: float

    def prepare(self, inputs: Tensors, cotangents: Tensors) -> tuple[np.ndarray, np.ndarray]:
        return inputs[0].numpy(), cotangents[0].numpy()

    def forward(self, problem: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return self._values(problem[0])[1]

    def both(self, problem: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        scores, g = problem
        values, total = self._values(scores)
        return total, self._marginals(scores, values, total, g)

    def tensors(self, arrays: Any) -> Tensors:
        return tuple(map(torch.from_numpy, arrays if isinstance(arrays, tuple) else (arrays,)))

    def _rows(self, d: int, n: int, m: int) -> np.ndarray:
        return np.arange(max(0, d - m), min(n, d) + 1)

    def _values(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """M, X and Y of all cells, by diagonal, (n + m + 1, 3, n + 1, B), and the sum (B,)."""
        count, n, m = scores.shape
        o, e = np.float32(self.opened), np.float32(self.extended)
        v = np.full((n + m + 1, 3, n + 1, count), NONE, np.float32)
        v[0, 0, 0] = 0
        for d in range(1, n + m + 1):
            i = self._rows(d, n, m)
            down, right = i[i > 0], i[d - i > 0]
            both = i[(i > 0) & (d - i > 0)]
            if d > 1 and len(both):
                last = v[d - 2][:, both - 1]
                v[d, 0, both] = (
                    np.logaddexp(np.logaddexp(last[0], last[1]), last[2]) + scores[:, both - 1, d - both - 1].T
                )
            v[d, 1, down] = np.logaddexp(v[d - 1, 0, down - 1] + o, v[d - 1, 1, down - 1] + e)
            before = v[d - 1][:, right]
            v[d, 2, right] = np.logaddexp(np.logaddexp(before[0], before[1]) + o, before[2] + e)
        end = v[-1][:, n]
        return v, np.logaddexp(np.logaddexp(end[0], end[1]), end[2])

    def _marginals(self, scores: np.ndarray, v: np.ndarray, total: np.ndarray, g: np.ndarray) -> np.ndarray:
        count, n, m = scores.shape
        o, e = np.float32(self.opened), np.float32(self.extended)
        out = np.zeros_like(scores)
        # how much flows through M, X and Y of a diagonal and of the two before it
        flows = [np.zeros((3, n + 1, count), np.float32) for _ in range(3)]
        flows[0][:, n] = np.exp(v[-1][:, n] - total) * g
        for d in range(n + m, 0, -1):
            now, one, two = flows
            i = self._rows(d, n, m)
            down, right = i[i > 0], i[d - i > 0]
            both = i[(i > 0) & (d - i > 0)]
            if d > 1 and len(both):
                out[:, both - 1, d - both - 1] = now[0, both].T
                last = v[d - 2][:, both - 1]
                sums = np.logaddexp(np.logaddexp(last[0], last[1]), last[2])
                two[:, both - 1] += now[0, both] * _ratio(last, sums)
            one[0, down - 1] += now[1, down] * _ratio(v[d - 1, 0, down - 1] + o, v[d, 1, down])
            one[1, down - 1] += now[1, down] * _ratio(v[d - 1, 1, down - 1] + e, v[d, 1, down])
            one[0, right] += now[2, right] * _ratio(v[d - 1, 0, right] + o, v[d, 2, right])
            one[1, right] += now[2, right] * _ratio(v[d - 1, 1, right] + o, v[d, 2, right])
            one[2, right] += now[2, right] * _ratio(v[d - 1, 2, right] + e, v[d, 2, right])
            now[:] = 0
            flows = [one, two, now]
        return out


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """exp(part - whole), 0 where there is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(part > NONE, np.exp(part - whole), np.float32(0))


def _formed(loss: Mapping) -> Mapping:
    return lambda encoder, predictor: loss(encoder.unsqueeze(2) + predictor.unsqueeze(1))


MONOTONIC_ALIGN = Peer("numba.monotonic_align", _monotonic_align, ("cpu",))
FORCED_ALIGN = Peer("torchaudio.forced_align", _forced_align)
RNNT_LOSS = Peer("torchaudio.rnnt_loss", _rnnt, slack=SLACK)


def diagonals(loss: Mapping) -> Peer:
    """A recursion in torch, all cells of a diagonal together."""
    return Peer("torch.loop over diagonals", lambda _: TorchFunction(loss), slack=SLACK)


def joined(loss: Mapping) -> Peer:
    """The loss of logits of a joint network, which are computed together."""
    return Peer("torch.all logits together", lambda _: TorchFunction(loss), slack=SLACK)


def wavefront(opened: float, extended: float) -> Peer:
    """The peer for these gap scores."""
    return Peer("numpy.wavefront", lambda _: Wavefront(opened, extended), ("cpu",), SLACK)


def formed(loss: Mapping) -> Peer:
    """A loss of logits, of two terms that are added up first."""
    return Peer("torch.sum of both terms", lambda _: TorchFunction(_formed(loss)), slack=SLACK)
