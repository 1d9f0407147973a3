"""The keys that a query may see, by position."""

import torch
from torch import Tensor


def allowed(
    queries: int,
    keys: int,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    left: int,
    right: int,
    offset: int,
    device: torch.device,
) -> Tensor:
    """Return a mask (queries, keys), bool, that is True if query i sees key j.

    Query i has position i + offset, and sees `left` keys before and `right` keys after it; -1 means no limit. In packed
    sequences positions are counted within each sequence, and no query sees another sequence.
    """
    i, j = torch.arange(queries, device=device), torch.arange(keys, device=device)
    sees = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if starts_q is not None and starts_k is not None:
        of_q = torch.bucketize(i, starts_q[1:].to(device), right=True)
        of_k = torch.bucketize(j, starts_k[1:].to(device), right=True)
        sees = (of_q[:, None] == of_k) & (of_q[:, None] < len(starts_q) - 1)
        i, j = i - _at(starts_q, of_q), j - _at(starts_k, of_k)
    ahead = j - (i[:, None] + offset)
    if left >= 0:
        sees = sees & (ahead >= -left)
    return sees & (ahead <= right) if right >= 0 else sees


def _at(starts: Tensor, sequence: Tensor) -> Tensor:
    """Return the start of the sequence of each token; tokens after the last sequence belong to none and get the last
    start.
    """
    return starts.to(sequence.device)[sequence.clamp(max=len(starts) - 2)]
