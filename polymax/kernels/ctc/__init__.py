"""The best labelling of frames that reads as given targets, frame by frame. Blanks between targets may take no frame,
except between equal targets: after target i - 1 comes blank i, then target i.

    blank(t, i) = x(t, blank)     + max(blank(t - 1, i), target(t - 1, i - 1))
    target(t, i) = x(t, target i) + max(target(t - 1, i), blank(t - 1, i), target(t - 1, i - 1) if they differ)

Ties go to the first option in this order, and at the end to the blank. Values are added up in float64. Only cells on a
path from the first frame to the last are read; NaN in one of them makes the value NaN. The value is -inf if all paths
are forbidden, or if there is none because targets do not fit or are invalid labels. Then no frame has a label.

Shapes: x (B, n, labels), targets (B, s), counts and frames (B,), the targets and the frames of each instance; the label
of each frame (B, n) int64, -1 for none, and the value (B,) float64
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances


def _fake(x: Tensor, targets: Tensor, counts: Tensor, frames: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:2], dtype=torch.long), x.new_empty(x.shape[:1], dtype=torch.float64)


ctc_search = declare_instances(
    __name__, "ctc_search(Tensor x, Tensor targets, Tensor counts, Tensor frames, int blank) -> (Tensor, Tensor)", _fake
)
