"""The table of translations that torch's exporter takes."""

from collections.abc import Callable
from typing import Any

from polymax.integrations.onnx.rows import capped, threshold
from polymax.integrations.onnx.sequences import chain_inside, chain_outside, ctc_search, token_order, tokens_first
from polymax.kernels.capped import capped as capped_operator
from polymax.kernels.chain import chain_inside as inside_operator
from polymax.kernels.chain import chain_outside as outside_operator
from polymax.kernels.ctc import ctc_search as search_operator
from polymax.kernels.threshold import threshold as threshold_operator
from polymax.kernels.tokens import token_order as order_operator
from polymax.kernels.tokens import tokens_first as first_operator


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the table for `torch.onnx.export(..., dynamo=True, custom_translation_table=translation_table())`.

    It has the mappings `softmax`, `sparsemax`, `entmax` for alpha in [1, 2], `csoftmax`, `csparsemax` and `budgetmax`,
    `HardMax` and `Marginals` of a `Chain`, `pm.nn.CRF.best_tags` and `.marginals`, and `forced_align`. Batches and
    lengths may be dynamic. Graphs compute in float64, and need opset 18.

    Softmax, sparsemax and entmax with alpha 1.5 are computed in closed form after sorting. Entmax with another alpha
    halves [0, 1] 40 times for the threshold u of p_i = (1 + (alpha - 1) (x_i - max x) - u)_+^(1 / (alpha - 1)), and
    normalises p. For n scores, the weights q differ from the exact ones, p, by

        sum |q - p| <= 2 expm1(2^-40 n^(alpha - 1) / (alpha - 1))

    which is below 4e-7 for 100,000 scores and any alpha from 1.01 to 2, before rounding.

    Proof: the halvings keep u below the exact u* by at most d = 2^-40. So each p_i(u)^(alpha - 1) exceeds the exact one
    by at most d. By Minkowski's inequality, the norm of order 1 / (alpha - 1) of these numbers, which is 1 at u*, is at
    most 1 + d n^(alpha - 1), and the sum S of p(u) at most exp(d n^(alpha - 1) / (alpha - 1)). As p(u) >= p(u*), the
    parts of p above q = p(u) / S sum to at most 1 - 1 / S, as do those of q above p.

    The package onnxscript must be installed: `pip install polymax[onnx]`.

    Example:
        >>> sorted(op.name() for op in translation_table())[-1]
        'polymax::tokens_first'
    """
    return {
        threshold_operator.op: threshold,
        capped_operator.op: capped,
        inside_operator.op: chain_inside,
        outside_operator.op: chain_outside,
        search_operator.op: ctc_search,
        order_operator.op: token_order,
        first_operator.op: tokens_first,
    }
