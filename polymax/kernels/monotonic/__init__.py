"""The best monotonic alignment of frames to tokens, row by row:

    v(t, j) = x(t, j) + max(v(t - 1, j), v(t - 1, j - 1))

At ties a frame keeps the token of the frame before. Values are added up in the dtype of the scores, in float32 for half
precision, in the order of the frames. Only cells on a path from the first cell to the last are read. NaN in one of them
makes the value NaN. If all paths are forbidden, the value is -inf, and no frame has a token.

A second operator makes cells (B, n, m) of tokens: 1 at the token of each frame, 0 elsewhere. If the value is NaN, all
cells on a path from the first to the last are NaN.

Shapes: x (B, n, m), frames and tokens (B,); the token of each frame (B, n) int64, -1 for none, and the value (B,)
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances
from polymax.backend.widen import like_argument


def _fake(x: Tensor, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:2], dtype=torch.long), x.new_empty(x.shape[:1], dtype=torch.float64)


monotonic_search = declare_instances(
    __name__, "monotonic_search(Tensor x, Tensor frames, Tensor tokens) -> (Tensor, Tensor)", _fake
)


monotonic_cells = declare_instances(
    __name__,
    "monotonic_cells(Tensor x, Tensor path, Tensor value, Tensor frames, Tensor tokens) -> Tensor",
    like_argument(0),
)
