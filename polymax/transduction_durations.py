"""The loss of token-and-duration transducers."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.widen import wide
from polymax.hypergraphs.passes import SHANNON, Problem, kernel_passes
from polymax.kernels.duration_transducer import (
    duration_transducer_inside,
    duration_transducer_outside,
    duration_transducer_tangent,
)
from polymax.kernels.duration_transducer.reference import recorded
from polymax.transduction import Lengths, Sizes, chosen, clamped, padded_sizes, reduced

PASSES = duration_transducer_inside, duration_transducer_outside, duration_transducer_tangent
REDUCTIONS = "mean", "mean_batch", "mean_volume", "sum", "none"


def tdt_loss(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    durations: Sequence[int],
    sigma: float = 0.0,
    reduction: str = "mean",
    fastemit_lambda: float = 0.0,
    omega: float = 0.0,
    clamp: float = -1,
) -> Tensor:
    """TDT: minus the log-probability of targets by a token-and-duration transducer, as in NeMo and Hugging Face.

        p(v, i at frame t after u tokens) = softmax(token_logits[t, u])[v] softmax(duration_logits[t, u])[i]

    A token, or a blank, with duration durations[i] leads to frame t + durations[i]. A blank takes a frame at least, and
    the last step is a blank that leads to the end of the frames exactly. Targets that no steps fit have an infinite
    loss and no gradient. With durations [0, 1], the alignments whose tokens all have duration 0 are those of
    `rnnt_loss`.

    "mean" divides each loss by its number of tokens, at least 1, and takes the mean; "mean_batch" is the mean of
    losses, "mean_volume" their sum divided by the number of all tokens.

    Arguments:
        sigma: is subtracted from every log-probability of a blank or a token, which favours long durations
        fastemit_lambda: gradients in the log-probabilities of tokens are multiplied by 1 + fastemit_lambda, and the
            value too, as in NeMo; they are not the derivatives of the value
        omega: the weight of `rnnt_loss` of the token logits in the loss; NeMo draws one of the two losses with this
            probability, and the mean over its draws is this loss
        clamp: a positive number bounds the entries of the gradient in the token logits

    Shapes:
        token_logits (N, T, U + 1, V); duration_logits (N, T, U + 1, durations); targets (N, U); lengths (N,)

    Example:
        >>> tokens, steps = torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 2, 2)
        >>> tdt_loss(tokens, steps, torch.tensor([[0]]), [2], [1], blank=1, durations=[0, 1])
        tensor(2.3671)

    See: Xu et al. 2023, Efficient sequence transduction by jointly predicting tokens and durations; Yu et al. 2021,
    FastEmit.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, REDUCTIONS))}; got {reduction!r}")
    _check.number(sigma, "sigma", "finite", lambda x: abs(x) < torch.inf)
    _check.number(fastemit_lambda, "fastemit_lambda", "at least 0", lambda x: x >= 0)
    _check.number(omega, "omega", "in [0, 1]", lambda x: 0 <= x <= 1)
    steps = _checked_durations(durations, duration_logits, token_logits)
    shape = tuple(token_logits.shape[:3])
    sizes = padded_sizes(token_logits.shape[-1], targets, logit_lengths, target_lengths, blank, token_logits, shape)
    x = clamped(token_logits, clamp)
    ends, labels = chosen(x, sizes.ahead[:, None, :].expand(shape), sizes.blank, True)
    labels = labels[:, :, :-1]
    if fastemit_lambda:
        labels = _Emphasized.apply(labels, 1 + fastemit_lambda)
    losses = -_log_likelihood(ends - sigma, labels - sigma, duration_logits, sizes, steps)
    if omega:
        plain = reduced(ends, labels, sizes, "none", losses.dtype)
        losses = (1 - omega) * losses + omega * plain if omega < 1 else plain
    if fastemit_lambda:
        losses = losses + fastemit_lambda * losses.detach()
    counts = sizes.counts.to(losses.dtype)
    if reduction == "mean":
        losses = (losses / counts.clamp(min=1)).mean()
    elif reduction == "mean_batch":
        losses = losses.mean()
    elif reduction != "none":
        losses = losses.sum() / (counts.sum().clamp(min=1) if reduction == "mean_volume" else 1)
    return losses.to(token_logits.dtype)


def _log_likelihood(
    ends: Tensor, labels: Tensor, duration_logits: Tensor, sizes: Sizes, durations: tuple[int, ...]
) -> Tensor:
    """The log of the sum over all steps that lead to the end, (N,)."""
    t, u = (torch.arange(k, device=ends.device) for k in ends.shape[1:])
    inside = (t[:, None] < sizes.frames[:, None, None]) & (u <= sizes.counts[:, None, None])
    # replace the entries of padding; a row of -inf allows no steps
    x = torch.where(inside.unsqueeze(-1), wide(duration_logits), 0)
    none = (x == -torch.inf).all(-1, keepdim=True)
    long = torch.where(none, -torch.inf, torch.where(none, 0, x).log_softmax(-1))
    passes = kernel_passes(*PASSES, recorded=recorded, scores=3, options=(durations,))
    problem = Problem(passes, (ends, labels, long, sizes.frames, sizes.counts), ends.shape[:1], tuple)
    # tokens need a frame
    return torch.where((sizes.frames == 0) & (sizes.counts > 0), -torch.inf, problem.value(SHANNON))


def _checked_durations(durations: Sequence[int], duration_logits: Tensor, token_logits: Tensor) -> tuple[int, ...]:
    """The durations; raise an error if they, or the logits of both kinds, do not fit each other."""
    for logits, name in ((token_logits, "token_logits"), (duration_logits, "duration_logits")):
        _check.floating(logits, name)
    if token_logits.dim() != 4 or not token_logits.shape[2]:
        raise ValueError(f"token_logits must be (N, T, U + 1, V); got {tuple(token_logits.shape)}")
    if not isinstance(durations, Iterable):
        raise TypeError(f"durations must be a list of integers; got {type(durations).__name__}")
    steps = tuple(_check.integer(d, "each of durations") for d in durations)
    if not any(steps) or min(steps) < 0 or len(set(steps)) < len(steps):
        raise ValueError(f"durations must be different integers from 0 on, one of them positive; got {list(steps)}")
    expected = (*token_logits.shape[:3], len(steps)), token_logits.dtype, token_logits.device
    came = tuple(duration_logits.shape), duration_logits.dtype, duration_logits.device
    if came != expected:
        wanted, got = (f"{shape} {dtype} on {device}" for shape, dtype, device in (expected, came))
        raise ValueError(f"duration_logits must be {wanted}, as the token logits; got {got}")
    return steps


class _Emphasized(Function):
    """The tensor itself; its gradient is multiplied by a factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.factor, None  # type: ignore[attr-defined]
