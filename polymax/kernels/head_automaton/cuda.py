"""Trees that score pairs of arcs, for Triton: a launch for each width of spans, a program for each span.

Rows of a tile are grandparents g, columns the choices of a maximum. Squares of a chart are symmetric, or [head,
modifier], so that choices lie along rows, whatever g is. In the backward pass the gradient that span (i, j) receives as
a left child is accumulated at [i, j], as a right child at [j, i]: the spans of a width then write to separate rows,
without atomics, and sums over all g are in registers. All arithmetic is in float64.
"""

import torch
from torch import Tensor

from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.head_automaton import GRANDPARENTS, SIBLINGS, chart_like
from polymax.kernels.head_automaton.cuda_inside import inside_span, root_value
from polymax.kernels.head_automaton.cuda_outside import outside_span, root_weights
from polymax.kernels.head_automaton.tangent import head_automaton_tangent
from polymax.kernels.local_max.triton_max import smoothing

__all__ = ["head_automaton_inside", "head_automaton_outside", "head_automaton_tangent"]

# choices in a tile; few sizes, since each is compiled separately
_CHOICES = (64, 256)
# entries of a tile
_TILE = 2048


def head_automaton_inside(
    arcs: Tensor, pairs: Tensor, lengths: Tensor, single_root: bool, order: int, alpha: float
) -> tuple[Tensor, Tensor]:
    value = arcs.new_zeros(arcs.shape[:1])
    chart = torch.zeros_like(chart_like(arcs, pairs, lengths, single_root, order))
    launch = _Launch(arcs, pairs, lengths, chart, single_root, order, alpha)
    for width in range(1, launch.last + 1):
        launch.spans(inside_span, width)
    launch.roots(root_value, value)
    return value, chart


def head_automaton_outside(
    arcs: Tensor, pairs: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool, order: int, alpha: float
) -> tuple[Tensor, Tensor]:
    heard = torch.zeros_like(chart)
    mu_arcs = torch.zeros(arcs.shape, dtype=torch.float64, device=arcs.device)
    size = arcs.shape[1]
    taken = mu_arcs.new_zeros((len(arcs), size, size, size) if order & SIBLINGS else (1,))
    launch = _Launch(arcs, pairs, lengths, chart.contiguous(), single_root, order, alpha)
    launch.roots(root_weights, g.contiguous(), heard, mu_arcs, taken)
    for width in range(launch.last, 0, -1):
        launch.spans(outside_span, width, heard, mu_arcs, taken)
    found = []
    if order & SIBLINGS:
        # [head, modifier, sibling] in the kernels
        found.append(taken.mT)
    if order & GRANDPARENTS:
        lanes = heard[:, 2].clone()
        # the root symbol has no head
        lanes[:, :, 0] = 0
        found.append(lanes)
    return mu_arcs.to(arcs.dtype), torch.stack([t.to(arcs.dtype) for t in found], 1)


class _Launch:
    """The first arguments of every kernel, and its launches."""

    def __init__(
        self, arcs: Tensor, pairs: Tensor, lengths: Tensor, chart: Tensor, single_root: bool, order: int, alpha: float
    ) -> None:
        self.arcs, self.single = arcs, single_root
        self.count, self.size = arcs.shape[:2]
        siblings = pairs[:, 0].mT.contiguous() if order & SIBLINGS else pairs
        grandparents = pairs[:, -1].contiguous() if order & GRANDPARENTS else pairs
        self.tensors = arcs.contiguous(), siblings, grandparents, lengths.contiguous(), chart
        self.lanes = chart.shape[2]
        self.first = 1 if single_root else 0
        # the widest span
        self.last = self.size - 1 - self.first if self.count else 0
        self.options = {
            **smoothing(alpha), "SIBS": bool(order & SIBLINGS), "GRAND": bool(order & GRANDPARENTS),
        }  # fmt: skip

    def spans(self, kernel, width: int, *tensors: Tensor) -> None:
        choices = next((c for c in _CHOICES if c >= width), ceil_power(width))
        # Triton 3.6 gives a single row two layouts, and then fails to compile
        lanes = min(max(_TILE // choices, 4), max(ceil_power(self.lanes), 4))
        grid = (self.size - self.first - width, self.count)
        with on_device(self.arcs):
            kernel[grid](
                *self.tensors, *tensors, width, self.size, self.lanes, self.first, **self.options, BG=lanes, BK=choices,
                num_warps=4, num_stages=1,
            )  # fmt: skip

    def roots(self, kernel, *tensors: Tensor) -> None:
        if not self.count:
            return
        choices = max(ceil_power(self.size), 64)
        with on_device(self.arcs):
            kernel[(self.count,)](
                *self.tensors, *tensors, self.size, self.lanes, **self.options, SINGLE=self.single, BR=choices,
                num_warps=4, num_stages=1,
            )  # fmt: skip
