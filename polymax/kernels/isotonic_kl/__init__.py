"""Entropic isotonic regression: the runs of pooled entries of a row.

    v = argmin over v_1 >= v_2 >= ... of sum_i exp(s_i - v_i) + exp(w_i) v_i

On a pooled run B, v is logsumexp(s_B) - logsumexp(w_B). The result numbers the runs: 0 for the first, and so on. From
them v, and its derivatives, follow in closed form. A row with an infinity or a NaN is one run.

Shapes: s, w `(*batch, n)`; the result like s, in int64.

See: Blondel et al. 2020, Fast differentiable sorting and ranking, section 5 and Appendix B.
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare


def _fake(s: Tensor, w: Tensor) -> Tensor:
    return torch.empty_like(s, dtype=torch.int64, memory_format=torch.contiguous_format)


isotonic_kl = declare(__name__, "isotonic_kl(Tensor s, Tensor w) -> Tensor", _fake)
