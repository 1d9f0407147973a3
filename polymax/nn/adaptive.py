"""Attention whose sparsity is learned."""

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.mappings import entmax


class AdaptiveEntmax(nn.Module):
    """Entmax with a learned alpha for each head, from softmax (1) to sparsemax (2).

        weights_h = entmax(scores_h, alpha_h)        alpha = 1 + sigmoid(logits)

    Pass it wherever a mapping is accepted: `MultiheadAttention(512, 8, mapping=AdaptiveEntmax(8))`. alpha starts at
    1.5. With num_heads=1 all heads share one alpha.

    Shapes: scores (*batch, num_heads, L, S), and weights of the same shape

    Example:
        >>> mapping = AdaptiveEntmax(2)
        >>> mapping(torch.tensor([-2.0, 0.0, 0.5]).expand(2, 1, 3))[0].detach()
        tensor([[0.0000, 0.3260, 0.6740]])
        >>> mapping.alpha.shape
        torch.Size([2])

    See: Correia, Niculae and Martins 2019, Adaptively sparse transformers.
    """

    def __init__(self, num_heads: int) -> None:
        _check.whole(num_heads, "num_heads")
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_heads))

    @property
    def alpha(self) -> Tensor:
        """The alpha of each head, (num_heads,), in [1, 2]."""
        return 1 + torch.sigmoid(self.logits)

    @property
    def num_heads(self) -> int:
        """The number of heads that have an alpha."""
        return len(self.logits)

    def forward(self, x: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        if x.dim() > 2 and self.num_heads not in (1, x.shape[-3]):
            raise ValueError(
                f"scores must have the {self.num_heads} heads of AdaptiveEntmax in dim -3; got {tuple(x.shape)}. "
                "pm.distributed.attention_plan divides heads and their alpha over processes"
            )
        return entmax(x, self.alpha[:, None, None], dim, mask)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"
