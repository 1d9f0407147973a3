"""The lengths of a batch without padding, cached by size, so that calls without lengths launch no kernel for them."""

import torch
from torch import Tensor

from polymax.backend.dispatch import modes
from polymax.backend.function import outside_transforms

# the largest number of cached tensors; the cache is cleared when it is full
MOST = 512
_known: dict[tuple[int, int, torch.device], Tensor] = {}


def full_lengths(count: int, size: int, device: torch.device) -> Tensor:
    """A tensor of `size` for each instance, int64 (count,); do not write to it, since it is shared."""
    # `may_keep` is written out: every call of a dynamic program runs this function
    if torch.compiler.is_compiling() or modes() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return torch.full((count,), size, dtype=torch.long, device=device)
    found = _known.get((count, size, device))
    if found is None:
        # the tensor outlives the call and may be saved for a gradient; a copy from the host is complete for all streams
        with outside_transforms():
            found = torch.full((count,), size, dtype=torch.long, device="cpu").to(device)
        if len(_known) >= MOST:
            _known.clear()
        _known[count, size, device] = found
    return found
