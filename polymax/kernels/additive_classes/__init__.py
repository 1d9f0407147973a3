"""Log-probabilities of two classes at each pair of a row of e and a row of p, whose logits are the sum of both rows.

    total[t, u] = log sum over v of exp(e[t, v] + p[u, v])
    blank[t, u] = e[t, blank] + p[u, blank] - total[t, u]        label[t, u] = e[t, at[u]] + p[u, at[u]] - total[t, u]

Rows of e from `frames` on, and rows of p from `states` on, are padding: they are not read, and their results are 0. A
sum of -inf alone has no probabilities: all three are -inf. The backward pass is a product with the Jacobian. Its
results have the dtypes of e and p. Other results are in float32 at least.

Shapes: e (B, n, V), p (B, k, V), at (B, k), frames and states (B,), results and both g (B, n, k)

See: Kuang et al. 2022, Pruned RNN-T for fast, memory-efficient ASR training, section 2.2.
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances


def empty_results(e: Tensor, p: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty log-probabilities of both classes, and empty totals."""
    dtype = torch.float64 if e.dtype == torch.float64 else torch.float32
    first, second, third = (e.new_empty((*e.shape[:2], p.shape[1]), dtype=dtype) for _ in range(3))
    return first, second, third


def _gradients(e: Tensor, p: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    first, second = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (e, p))
    return first, second


additive_classes = declare_instances(
    __name__,
    "additive_classes(Tensor e, Tensor p, Tensor at, Tensor frames, Tensor states, int blank)"
    " -> (Tensor, Tensor, Tensor)",
    empty_results,
)
additive_classes_backward = declare_instances(
    __name__,
    "additive_classes_backward(Tensor e, Tensor p, Tensor at, Tensor frames, Tensor states, Tensor total,"
    " Tensor g_blank, Tensor g_label, int blank) -> (Tensor, Tensor)",
    _gradients,
)
