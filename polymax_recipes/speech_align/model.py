"""A classifier of frames that learns from transcripts, by a sum over all alignments."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import polymax as pm
from polymax_recipes.speech_align.data import Batch, Utterances
from polymax_recipes.training.task import Model

SMOOTHINGS: dict[str, Callable[[pm.Monotonic], Any]] = {
    "marginals": pm.Marginals,
    "sparsemap": pm.SparseMap,
    "hard": pm.HardMax,
}


class FrameClassifier(Model):
    """Probabilities of tokens at each frame from the frames around it.

        loss = -max over alignments of <log p, alignment>, smoothed        an alignment gives each frame one token

    With "marginals" it is the forward-sum loss: minus the log of the sum over all alignments. With "hard" it is Viterbi
    training.

    See: Badlani et al. 2022, One TTS alignment to rule them all.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, options: Any, bands: int, tokens: int) -> None:
        super().__init__()
        self.smoothing = SMOOTHINGS[options.smoothing]
        self.around = nn.Conv1d(bands, options.hidden, 2 * options.context + 1, padding=options.context)
        self.tokens = nn.Linear(options.hidden, tokens)
        self.register_buffer("mean", torch.zeros(bands))
        self.register_buffer("scale", torch.ones(bands))

    @torch.no_grad()
    def start(self, data: Utterances) -> None:  # type: ignore[override]
        """Bands of the training have mean 0 and variance 1."""
        frames = torch.cat(data.values)
        self.mean.copy_(frames.mean(0))
        self.scale.copy_(frames.std(0, correction=0).clamp(min=1e-3))

    def forward(self, batch: Batch) -> Tensor:
        """log p of the tokens of each utterance at its frames, (b, n, m)."""
        inside = torch.arange(batch.values.shape[1], device=batch.values.device) < batch.lengths[:, None]
        values = (batch.values - self.mean) / self.scale * inside.unsqueeze(-1)
        hidden = torch.relu(self.around(values.mT)).mT
        log_probs = self.tokens(hidden).float().log_softmax(-1)
        return log_probs.gather(2, batch.tokens[:, None].expand(-1, log_probs.shape[1], -1))

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the negative log-likelihood, or its smoothed form, over frames."""
        smooth = self.smoothing(pm.Monotonic((batch.lengths, batch.token_lengths)))
        return {"loss": (-smooth.max(self(batch)).sum(), batch.lengths.sum())}

    @torch.no_grad()
    def found(self, batch: Batch, expected: bool) -> tuple[Tensor, Tensor]:
        """Return the best alignment (b, n, m) and, if wanted, the expected one; else the best one twice."""
        monotonic, scores = pm.Monotonic((batch.lengths, batch.token_lengths)), self(batch)
        best = monotonic.map(scores)
        return best, self.smoothing(monotonic)(scores) if expected else best
