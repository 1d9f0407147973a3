"""The mean of all logits under fixed weights, which is linear in hidden: one row times a matrix.

mean = sum over words of spread (x - top)
"""

import torch
from torch import Tensor

from polymax.kernels.linear_loss.steps import pieces

# rows that are widened at once
PIECE = 1024


def linear_mean(hidden: Tensor, weight: Tensor, bias: Tensor | None, spread: Tensor, top: Tensor) -> Tensor:
    """Return the sum over words of spread (x - top), which is linear in hidden."""
    c = spread.to(top.dtype)
    mean = _rows_times(hidden, _mixed(weight, c)) - c.sum() * top
    return mean if bias is None else mean + c @ bias.to(c.dtype)


def add_linear_mean(
    hidden: Tensor, weight: Tensor, spread: Tensor, grad_mean: Tensor, dh: Tensor, dw: Tensor, db: Tensor
) -> None:
    c = spread.to(grad_mean.dtype)
    of_rows, of_words = _mixed(weight, c), _mixed(hidden, grad_mean)
    for rows in pieces(len(dh), PIECE):
        dh[rows] = (dh[rows] + grad_mean[rows].unsqueeze(1) * of_rows).to(dh.dtype)
    for words in pieces(len(dw), PIECE):
        dw[words] = (dw[words] + c[words].unsqueeze(1) * of_words).to(dw.dtype)
    if len(db):
        db += c * grad_mean.sum()


def _mixed(matrix: Tensor, weights: Tensor) -> Tensor:
    """Return weights^T matrix, in the dtype of the weights; rows of weight 0 may hold anything."""
    total = weights.new_zeros(matrix.shape[1])
    for rows in pieces(len(matrix), PIECE):
        total += weights[rows] @ torch.where(weights[rows].unsqueeze(1) == 0, 0, matrix[rows].to(weights.dtype))
    return total


def _rows_times(matrix: Tensor, vector: Tensor) -> Tensor:
    parts = [matrix[rows].to(vector.dtype) @ vector for rows in pieces(len(matrix), PIECE)]
    return torch.cat(parts) if parts else vector.new_zeros(0)
