"""Linear loss on CUDA: products of matrices by cuBLAS, in blocks that a kernel reads once; lists by Triton."""

import torch
import triton
from torch import Tensor

from polymax.backend.triton_math import ceil_power, on_device
from polymax.backend.widen import wide
from polymax.kernels.linear_loss.cuda_flat import flat_slopes, solve_rows
from polymax.kernels.linear_loss.cuda_lists import add_columns, add_rows
from polymax.kernels.linear_loss.cuda_scan import scan_rows, settle_rows
from polymax.kernels.linear_loss.flat import slopes_in_torch, solve_in_torch
from polymax.kernels.linear_loss.gradients import gradients
from polymax.kernels.linear_loss.passes import value_and_lists
from polymax.kernels.linear_loss.steps import FlatRows, Lists, Steps

# from 2.8 on torch multiplies half precision into float32; before, wider copies of a block are multiplied
MIXED = hasattr(torch.ops.aten.mm, "dtype")
# WIDTH: logits of a row that are scanned at once
# WARPS: warps that scan them
WIDTH, WARPS = 1024, 1
# PART: entries of a list whose rows are gathered at once
# CHANNELS: channels of a program
PART, CHANNELS = 4, 1024
# logits of a step over whole rows
CHUNK = 8192


def linear_loss(hidden: Tensor, *args) -> tuple[Tensor, ...]:
    with torch.autocast("cuda", enabled=False), on_device(hidden):
        return value_and_lists(STEPS, hidden, *args)


def linear_loss_backward(grad_value: Tensor, *args) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast("cuda", enabled=False), on_device(grad_value):
        return gradients(STEPS, grad_value, *args)


def product(a: Tensor, b: Tensor) -> Tensor:
    if MIXED and a.dtype in (torch.float16, torch.bfloat16) and a.is_cuda:
        return torch.mm(a, b.mT, out_dtype=torch.float32)
    return wide(a) @ wide(b).mT


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif MIXED and a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += product(a, b.mT)


def scan(
    x: Tensor, bias: Tensor | None, target: Tensor | None, first: int, lists: Lists, alpha: float, softcap: float
) -> None:
    rows, words = x.shape
    size = lists.values.shape[1]
    width = min(WIDTH, ceil_power(words))
    given = x if bias is None else bias
    flags = {"BIAS": bias is not None, "CAP": softcap > 0, "BN": width}
    scan_rows[(rows,)](
        x, given, lists.count if target is None else target, lists.count, lists.ids, lists.values, lists.bound,
        lists.chosen, first, words, alpha - 1, softcap, size, TARGET=target is not None, **flags, num_warps=WARPS,
    )  # fmt: skip
    settle_rows[(rows,)](
        x, given, *lists[:5], first, words, alpha - 1, softcap, size, R=_power(alpha), BK=ceil_power(size), **flags,
        num_warps=1,
    )  # fmt: skip


def solve(
    x: Tensor, bias: Tensor | None, alpha: float, softcap: float, sloped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if sloped or not 1 <= alpha <= 2 or x.dtype == torch.float64:
        return solve_in_torch(x, bias, alpha, softcap, sloped)
    rows, words = x.shape
    top, value, tau = (torch.empty(rows, dtype=x.dtype, device=x.device) for _ in range(3))
    solve_rows[(rows,)](
        x, x if bias is None else bias, top, value, tau, words, alpha, softcap, R=_power(alpha),
        BIAS=bias is not None, CAP=softcap > 0, BN=min(CHUNK, ceil_power(words)), num_warps=16,
    )  # fmt: skip
    return top, value, tau, torch.zeros_like(value)


def slopes(
    x: Tensor,
    bias: Tensor | None,
    spread: Tensor | None,
    rows: FlatRows,
    alpha: float,
    softcap: float,
    dtype: torch.dtype,
) -> Tensor:
    if not 1 <= alpha <= 2 or x.dtype == torch.float64:
        return slopes_in_torch(x, bias, spread, rows, alpha, softcap, dtype)
    n, words = x.shape
    out = torch.empty((n, words), dtype=dtype, device=x.device)
    width = min(2048, ceil_power(words))
    flat_slopes[(n, triton.cdiv(words, width))](
        x, x if bias is None else bias, x if spread is None else spread, *rows, out, words, alpha - 1, softcap,
        R=_power(alpha), BIAS=bias is not None, SPREAD=spread is not None, CAP=softcap > 0, BN=width,
    )  # fmt: skip
    return out


def row_sums(words: Tensor, coefs: Tensor, sizes: Tensor, weight: Tensor) -> Tensor:
    n, d = len(words), weight.shape[1]
    out = torch.empty((n, d), dtype=weight.dtype, device=weight.device)
    weight = weight if weight.stride(-1) == 1 else weight.contiguous()
    if n and d:
        width = min(CHANNELS, ceil_power(d))
        add_rows[(n, triton.cdiv(d, width))](
            words.contiguous(), coefs.contiguous(), sizes, weight, out, words.shape[1], weight.stride(0), d,
            BR=PART, BD=width,
        )  # fmt: skip
    return out


def column_sums(
    starts: Tensor, rows: Tensor, coefs: Tensor, hidden: Tensor, dw: Tensor, db: Tensor, added: bool
) -> None:
    words, d = dw.shape
    hidden = hidden if hidden.stride(-1) == 1 else hidden.contiguous()
    if words and d:
        width = min(CHANNELS, ceil_power(d))
        add_columns[(words, triton.cdiv(d, width))](
            starts, rows, coefs, hidden, dw, db, hidden.stride(0), d, ADDED=added, BR=PART, BD=width,
        )  # fmt: skip


def _power(alpha: float) -> int:
    """Return 1 / (alpha - 1) if it is 1 or 2, -1 for the exponential function, 0 for any other power."""
    return {2.0: 1, 1.5: 2, 1.0: -1}.get(alpha, 0)


STEPS = Steps(
    rows=4096,
    entries=2**25,
    flat=2**24,
    half=True,
    product=product,
    add_product=add_product,
    scan=scan,
    solve=solve,
    slopes=slopes,
    row_sums=row_sums,
    column_sums=column_sums,
)
