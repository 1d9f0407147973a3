"""Paths of a transducer by the kernels of the general hypergraph, which are fast enough on the CPU."""

from typing import Any

from torch import Tensor

from polymax.kernels.transducer import chart_like
from polymax.kernels.transducer.reference import general


def transducer_inside(*args: Any) -> tuple[Tensor, Tensor]:
    return general.inside(*args), chart_like(*args).zero_()


def transducer_outside(*args: Any) -> tuple[Tensor, ...]:
    return general.outside(*args[:4], *args[5:])


def transducer_tangent(*args: Any) -> tuple[Tensor, ...]:
    return general.tangent(*args[:4], *args[5:])
