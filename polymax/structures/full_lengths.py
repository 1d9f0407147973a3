"""The lengths of a batch without padding, made once for each size: calls without lengths launch nothing for them."""

import torch
from torch import Tensor

from polymax.backend.dispatch import modes
from polymax.backend.function import outside_transforms

# sizes that are remembered; all are forgotten when there are more
MOST = 512
_known: dict[tuple[int, int, torch.device], Tensor] = {}


def full_lengths(count: int, size: int, device: torch.device) -> Tensor:
    """`size` for each instance, int64 (count,); the tensor is shared, and must not be written to."""
    # `may_keep`, written out: every call of a dynamic program comes through here
    if torch.compiler.is_compiling() or modes() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return torch.full((count,), size, dtype=torch.long, device=device)
    found = _known.get((count, size, device))
    if found is None:
        # it outlives the call and may be saved for a gradient; a copy from the host is complete for every stream
        with outside_transforms():
            found = torch.full((count,), size, dtype=torch.long, device="cpu").to(device)
        if len(_known) >= MOST:
            _known.clear()
        _known[count, size, device] = found
    return found
