"""First calls of sparse attention compile their kernels side by side: see triton_ahead.py."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymax.backend.triton_ahead import rehearsal
from polymax.backend.triton_math import on_device
from polymax.kernels.sparse_attention.options import Options

if TYPE_CHECKING:
    from polymax.kernels.sparse_attention.cuda_call import Call

# kinds of calls whose kernels were asked for before
_known: set[Hashable] = set()


def compile_ahead(call: "Call", q: Tensor, k: Tensor, v: Tensor, grad: Tensor | None, options: Options) -> None:
    """Have all kernels of a call compiled at once, if it is the first of its kind."""
    wide = call.longest_k > 1 << 16
    pass_of = ("forward", call.balls > 0) if grad is None else ("backward", call.row_numbers)
    kind = q.dtype, wide, *pass_of, *call.more.items()
    if not q.is_cuda or kind in _known:
        return
    _known.add(kind)

    def some(dtype: torch.dtype) -> Tensor:
        # only types and alignments count
        return torch.empty(0, dtype=dtype, device=q.device)

    floats, integers, lists = some(torch.float32), some(torch.int32), some(torch.int32 if wide else torch.int16)
    marks = tuple(q if t is None else t for t in options[1:6])
    seed = q if options.seed is None else options.seed
    tau = floats, floats
    with on_device(q), rehearsal():
        if grad is None:
            call.scan_all(q, k, marks, k, floats, floats, tau, integers)
            call.collect(q, k, *marks, integers, *tau, integers, lists)
            call.sum_values((q, k, v), marks, seed, (tau, integers, lists), integers, q, q)
        else:
            rows, slopes = some(call.row_numbers), (q, k, v, floats, floats)
            call.differentiate(grad, (q, k, v), q, marks, seed, (tau, integers, lists), floats, rows, slopes)
