"""Alignments once more: plain recursions for float64 and autograd, without any kernel of polymax."""

import torch
from torch import Tensor
from torch.nn.functional import pad

NONE = float("-inf")
# a score that is all but forbidden, and has a derivative
LEAST = -1e30


def monotonic(scores: Tensor) -> Tensor:
    """The token of each frame of the best monotonic alignment."""
    value, moves = pad(scores[:, 0, :1], (0, scores.shape[2] - 1), value=NONE), []
    for now in scores.unbind(1)[1:]:
        before = pad(value[:, :-1], (1, 0), value=NONE)
        moves.append(before > value)
        value = now + torch.maximum(value, before)
    tokens = [torch.full_like(value[:, :1], scores.shape[2] - 1, dtype=torch.long)]
    for moved in reversed(moves):
        tokens.append(tokens[-1] - moved.gather(1, tokens[-1]).long())
    return torch.cat(tokens[::-1], 1)


def labelling(log_probs: Tensor, targets: Tensor) -> Tensor:
    """The best label of each frame that reads as the targets (s,), which have no equal neighbours."""
    states = torch.zeros(2 * len(targets) + 1, dtype=torch.long, device=log_probs.device)
    states[1::2] = targets
    x = log_probs[..., states]
    skips = torch.where(states > 0, 0.0, NONE)
    value, back = pad(x[:, 0, :2], (0, len(states) - 2), value=NONE), []
    for now in x.unbind(1)[1:]:
        ways = torch.stack(
            [value, pad(value[:, :-1], (1, 0), value=NONE), pad(value[:, :-2], (2, 0), value=NONE) + skips]
        )
        best = ways.max(0)
        back.append(best.indices)
        value = now + best.values
    at = [len(states) - 2 + value[:, -2:].argmax(1, keepdim=True)]
    for step in reversed(back):
        at.append(at[-1] - step.gather(1, at[-1]))
    return states[torch.cat(at[::-1], 1)]


def transducer(logits: Tensor, targets: Tensor) -> Tensor:
    """- log of the sum over all alignments; logits (B, T, U + 1, V), targets (U,), the last class is the blank."""
    log_probs = logits.log_softmax(-1)
    blank = log_probs[..., -1]
    index = targets[None, None, :, None].expand(*logits.shape[:2], -1, 1)
    labels = pad(log_probs[:, :, :-1].gather(3, index).squeeze(3).cumsum(-1), (1, 0))
    value = labels[:, 0]
    for t in range(1, logits.shape[1]):
        value = labels[:, t] + torch.logcumsumexp(value + blank[:, t - 1] - labels[:, t], -1)
    return -(value[:, -1] + blank[:, -1, -1])


def token_and_duration(logits: Tensor, duration_logits: Tensor, targets: Tensor, durations: tuple[int, ...]) -> Tensor:
    """Minus the log of the sum over all steps of a token-and-duration transducer, diagonal by diagonal.

    logits (B, T, U + 1, V), of which the last class is the blank, duration_logits (B, T, U + 1, D), targets (U,)
    """
    batch, n, states, _ = logits.shape
    tokens, long = logits.log_softmax(-1), duration_logits.log_softmax(-1)
    index = targets[None, None, :, None].expand(batch, n, -1, 1)
    emitted = pad(tokens[:, :, :-1].gather(3, index).squeeze(3), (0, 1), value=LEAST)
    # line s has the cells (s - u, u); cells that are not there are all but forbidden
    t = torch.arange(n + states - 1, device=logits.device)[:, None] - torch.arange(states, device=logits.device)
    there = (t >= 0) & (t < n)
    u = torch.arange(states, device=logits.device).expand(t.shape)
    at = t.clamp(0, n - 1)
    blank = torch.where(there, tokens[:, at, u, -1], LEAST)
    label = torch.where(there, emitted[:, at, u], LEAST)
    steps = [torch.where(there, long[:, at, u, i], LEAST) for i in range(len(durations))]
    value = [pad(logits.new_zeros(batch, 1), (0, states - 1), value=LEAST)]
    for s in range(1, n + states - 1):
        ways = []
        for d, step in zip(durations, steps, strict=True):
            if 0 < d <= s:
                ways.append(value[s - d] + blank[:, s - d] + step[:, s - d])
            if d < s:
                moved = value[s - d - 1] + label[:, s - d - 1] + step[:, s - d - 1]
                ways.append(pad(moved[:, :-1], (1, 0), value=LEAST))
        found = torch.stack(ways).logsumexp(0)
        value.append(torch.where(there[s], found, LEAST))
    last = [
        value[n - d + states - 1][:, -1] + blank[:, n - d + states - 1, -1] + step[:, n - d + states - 1, -1]
        for d, step in zip(durations, steps, strict=True)
        if 0 < d <= n
    ]
    return -torch.stack(last).logsumexp(0)


def gapped(pairs: Tensor, opened: float, extended: float) -> Tensor:
    """The log-sum-exp of the scores of all global alignments with affine gaps, row by row."""
    count, n, m = pairs.shape
    place = extended * torch.arange(1, m + 1, dtype=pairs.dtype, device=pairs.device)
    none = pairs.new_full((count, m + 1), NONE)
    first = pairs.new_zeros(count, 1)
    match = torch.cat([first, none[:, 1:]], 1)
    deleted = none
    inserted = torch.cat([first + NONE, first + opened + place - extended], 1)
    for i in range(n):
        whole = torch.logaddexp(torch.logaddexp(match, deleted), inserted)
        # logaddexp of -inf with itself has no derivative
        reached = torch.maximum(match, deleted) > NONE
        sums = torch.logaddexp(
            torch.where(reached, match + opened, 0.0), torch.where(reached, deleted + extended, NONE)
        )
        deleted = torch.where(reached, sums, NONE)
        match = torch.cat([first + NONE, whole[:, :-1] + pairs[:, i]], 1)
        before = torch.where((match > NONE) | (deleted > NONE), _added(match, deleted), NONE)[:, :-1] + opened
        inserted = torch.cat([first + NONE, place + torch.logcumsumexp(before - place, -1)], 1)
    return _added(_added(match, deleted), inserted)[:, -1]


def _added(a: Tensor, b: Tensor) -> Tensor:
    """logaddexp whose derivative is 0, and not NaN, where both are -inf."""
    most = torch.maximum(a, b)
    there = most > NONE
    return torch.where(there, torch.logaddexp(torch.where(there, a, 0.0), torch.where(there, b, 0.0)), NONE)
