"""Tokens first, by a loop over each instance, for Numba."""

import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, run
from polymax.backend.numba_math import kernel, rows_at
from polymax.kernels.tokens import reference

token_order = reference.token_order


def tokens_first(x: Tensor, start: Tensor, end: Tensor, order: Tensor | None, lengths: Tensor) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _run(_first, y, order, lengths, x.contiguous(), y, start.contiguous(), end.contiguous())
    return y


def tokens_back(g: Tensor, order: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.empty_like(g, memory_format=torch.contiguous_format)
    start, end = (g.new_zeros(g.shape[0], g.shape[2]) for _ in range(2))
    _run(_back, x, order, lengths, g.contiguous(), x, start, end)
    return x, start, end


def _run(function, like, order, lengths, *tensors):
    batch, n, s = like.shape
    places = None if order is None else order.contiguous()
    sizes = lengths.contiguous()
    if like.numel():
        at = 0 if places is None else places.data_ptr()
        run(function, batch, n * s, n, s, at, sizes.data_ptr(), *(t.data_ptr() for t in tensors), REALS[like.dtype])


@kernel
def _first(first, last, n, s, order_at, sizes_at, x_at, y_at, start_at, end_at, real):
    order, sizes = rows_at(order_at, last if order_at else 0, n, 0), rows_at(sizes_at, 1, last, 0)[0]
    x, y = rows_at(x_at, last * n, s, real), rows_at(y_at, last * n, s, real)
    start, end = rows_at(start_at, last, s, real), rows_at(end_at, last, s, real)
    for b in range(first, last):
        for p in range(n):
            here, there = x[b * n + (order[b, p] if order_at else p)], y[b * n + p]
            for j in range(s):
                there[j] = here[j]
        for j in range(s):
            y[b * n, j] += start[b, j]
            if sizes[b] > 0:
                y[b * n + sizes[b] - 1, j] += end[b, j]


@kernel
def _back(first, last, n, s, order_at, sizes_at, g_at, x_at, start_at, end_at, real):
    order, sizes = rows_at(order_at, last if order_at else 0, n, 0), rows_at(sizes_at, 1, last, 0)[0]
    g, x = rows_at(g_at, last * n, s, real), rows_at(x_at, last * n, s, real)
    start, end = rows_at(start_at, last, s, real), rows_at(end_at, last, s, real)
    for b in range(first, last):
        for p in range(n):
            here, there = g[b * n + p], x[b * n + (order[b, p] if order_at else p)]
            for j in range(s):
                there[j] = here[j]
        for j in range(s):
            start[b, j] = g[b * n, j]
            if sizes[b] > 0:
                end[b, j] = g[b * n + sizes[b] - 1, j]
