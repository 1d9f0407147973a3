"""Two classes of each row in torch."""

import torch
from torch import Tensor

from polymax.backend.widen import wide


def two_classes(x: Tensor, at: Tensor, blank: int) -> tuple[Tensor, Tensor, Tensor]:
    x = wide(x)
    total = x.logsumexp(-1)
    # -inf less -inf is NaN
    base = torch.where(total == -torch.inf, 0, total)
    return x[..., blank] - base, x.gather(-1, at.unsqueeze(-1)).squeeze(-1) - base, total


def two_classes_backward(x: Tensor, at: Tensor, total: Tensor, g_blank: Tensor, g_label: Tensor, blank: int) -> Tensor:
    base = torch.where(total == -torch.inf, 0, total).unsqueeze(-1)
    g = torch.sub(wide(x), base).exp_().mul_(-(g_blank + g_label).unsqueeze(-1))
    g[..., blank] += g_blank
    g.scatter_add_(-1, at.unsqueeze(-1), g_label.unsqueeze(-1).to(g.dtype))
    # the gradient of a padding row is 0, whatever its entries
    g.masked_fill_(((g_blank == 0) & (g_label == 0)).unsqueeze(-1), 0)
    return g.to(x.dtype).contiguous()
