"""The last layer of a model over a large vocabulary, with its loss."""

import torch
from torch import Tensor, nn

from polymax.distributions.words import WordDistribution
from polymax.losses.linear import linear_entmax_loss
from polymax.vocabulary import linear_entmax


class LinearEntmaxLoss(nn.Module):
    """A linear layer to the words of a vocabulary and the entmax loss of its logits, which are never stored.

    Parameters are those of `torch.nn.Linear(size, words)`, whose state_dict loads. `weight` may be shared with an
    embedding: `head.weight = embedding.weight`. See `pm.linear_entmax_loss` for the options.

    Shapes: hidden (*batch, size); target (*batch,); the loss (), or (*batch,) with reduction "none"

    Example:
        >>> _ = torch.manual_seed(0)
        >>> head = LinearEntmaxLoss(8, 1000)
        >>> hidden = torch.randn(2, 5, 8)
        >>> loss = head(hidden, torch.randint(1000, (2, 5)))
        >>> head.distribution(hidden).probs.sum(-1)[0]
        tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """

    bias: nn.Parameter | None
    class_weights: Tensor | None

    def __init__(
        self,
        size: int,
        words: int,
        bias: bool = True,
        *,
        alpha: float = 1.5,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        reduction: str = "mean",
        z_loss: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        layer = nn.Linear(size, words, bias, device=device, dtype=dtype)
        self.weight = layer.weight
        self.register_parameter("bias", layer.bias)
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.alpha, self.softcap, self.z_loss = alpha, softcap, z_loss
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return linear_entmax_loss(
            hidden,
            self.weight,
            target,
            self.bias,
            alpha=self.alpha,
            class_weights=self.class_weights,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            softcap=self.softcap,
            reduction=self.reduction,
            z_loss=self.z_loss,
        )

    def distribution(self, hidden: Tensor) -> WordDistribution:
        """The distribution of words: the words with positive probability; without a gradient."""
        with torch.no_grad():
            return linear_entmax(hidden, self.weight, self.bias, alpha=self.alpha, softcap=self.softcap)

    def extra_repr(self) -> str:
        words, size = self.weight.shape
        return f"{size}, {words}, bias={self.bias is not None}, alpha={self.alpha}"
