"""The regularized argmax over the simplex, its value, and the envelope theorem that links the two."""

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.derived import derived
from polymax.backend.dispatch import PLAIN
from polymax.backend.function import functional
from polymax.backend.widen import wide
from polymax.regularizers import sharded
from polymax.sharding.placements import is_sharded, plain


class Regularizer(ABC):
    """Omega: a convex function on the simplex, scaled by gamma.

        argmax(x) = argmax over p in the simplex of <x, p> - gamma Omega(p)        max(x) = its value

    A new one is a frozen dataclass with `argmax_rows` and `omega_rows`, both for gamma = 1 along the last dimension;
    -inf scores are forbidden entries. Fields may be tensors that broadcast against x with size 1 along `dim`.
    """

    gamma: float | Tensor = 1.0
    # Omega is 0 at the vertices of the simplex, which saves evaluating it there
    zero_at_vertices: ClassVar[bool] = False
    # Omega may depend on tensors that are not fields
    closes_over_tensors: ClassVar[bool] = False
    # what weights sum to
    mass: float | Tensor = 1.0

    @abstractmethod
    def argmax_rows(self, x: Tensor) -> Tensor:
        """The mapping, `(*batch, n) -> (*batch, n)`, at gamma = 1; zeros for a row of -inf."""

    @abstractmethod
    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        """Omega, `(*batch, n) -> (*batch,)`, at gamma = 1, on the entries to keep."""

    def argmax(self, x: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """The mapping: a drop-in replacement for torch.softmax(x, dim)."""
        if type(x) not in PLAIN and is_sharded(x):
            return sharded.argmax(self, x, dim, mask)
        if mask is None and not torch.compiler.is_compiling() and self._of_numbers and isinstance(x, Tensor):
            # the common call, kept short: it costs microseconds
            dims = x.dim()
            if dims and (dim == -1 or dim == dims - 1) and x.dtype in _check.FLOATS:
                return self.argmax_rows(x)
        _check.floating(x, "x")
        rows, scores = self._rows(_check.masked(x, mask), dim)
        y = rows.argmax_rows(rows._scaled(scores)).to(x.dtype)
        return _back(y, x, dim)

    def max(self, x: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """The smoothed max, whose gradient is argmax(x); it is -inf for a row of -inf."""
        if is_sharded(x):
            return sharded.maximum(self, x, dim, mask)
        _check.floating(x, "x")
        rows, scores = self._rows(_check.masked(x, mask), dim)
        keep = scores != -torch.inf
        top = _top(scores)
        scaled = rows._divided(scores, top, keep)
        y = rows.argmax_rows(scaled)
        if rows._learned():
            # derivatives in the parameters run through y as well; the terms that the envelope theorem drops are 0
            value = _objective(scaled, y, rows.omega_rows(y, keep))
        else:
            value = _smoothed_max(scaled, y, rows.omega_rows(y.detach(), keep))
        # a row of -inf has no derivative in gamma either
        dead = (scores == -torch.inf).all(-1)
        # the sum of the weights is known: add the maximum to the value, where it costs no digits
        whole = torch.where(dead, 0, value) * rows._gamma_of_rows() + rows.mass * top.squeeze(-1)
        return torch.where(dead, -torch.inf, whole).to(x.dtype)

    def omega(self, p: Tensor, dim: int = -1) -> Tensor:
        """The regularizer's value gamma Omega(p)."""
        if is_sharded(p):
            return sharded.omega(self, p, dim)
        _check.floating(p, "p")
        rows, point = self._rows(p, dim)
        return (rows.omega_rows(wide(point)) * rows._gamma_of_rows()).to(p.dtype)

    def sharded_alpha(self) -> float | None:
        """The alpha of this mapping if it is entmax with 1 <= alpha <= 2, to solve sharded rows; else None."""
        return None

    def _rows(self, x: Tensor, dim: int) -> tuple[Self, Tensor]:
        """This regularizer and x with `dim` moved to the end."""
        for name, t in self._tensors().items():
            if not is_sharded(x):
                plain(t, name, "x")
            _check.parameter(t, x, dim, name, full=name in ("lower", "upper", "reference"))
        if x.dim() == 0:
            return self, x.movedim(dim, -1).reshape(1)
        scores = x.movedim(dim, -1)
        if dim in (-1, x.dim() - 1):
            return self, scores
        return self._map_tensors(lambda t: _pad(t, x.dim()).movedim(dim, -1) if t.dim() else t), scores

    def _scaled(self, x: Tensor) -> Tensor:
        """x / gamma, shifted so that large scores keep their digits, and stay finite; x itself at gamma = 1."""
        return x if self._plain() else self._divided(x, _top(x), x != -torch.inf)

    def _divided(self, x: Tensor, top: Tensor, keep: Tensor) -> Tensor:
        """(x - top) / gamma: -inf still marks absent entries, and other entries stay finite."""
        centred = wide(x) - top
        if isinstance(self.gamma, Tensor):
            # a forbidden entry stays out of the derivative in gamma, where it would be inf * 0
            centred = _finite(torch.where(keep, centred, 0))
        if not self._plain():
            centred = centred / self.gamma
        return torch.where(keep, _finite(centred), -torch.inf)

    def _gamma_of_rows(self) -> float | Tensor:
        return self.gamma.squeeze(-1) if isinstance(self.gamma, Tensor) and self.gamma.dim() else self.gamma

    @cached_property
    def _of_numbers(self) -> bool:
        """True if gamma is 1 and no field is a tensor."""
        return self._plain() and not self._tensors()

    def _plain(self) -> bool:
        return isinstance(self.gamma, float | int) and self.gamma == 1

    def _learned(self) -> bool:
        tensors = [t for name, t in self._tensors().items() if name != "gamma"]
        return self.closes_over_tensors or any(functional() or t.requires_grad for t in tensors)

    def _tensors(self) -> dict[str, Tensor]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _map_tensors(self, change: Any) -> Self:
        moved = {name: change(value) for name, value in self._tensors().items()}
        return replace(self, **moved) if moved else self  # type: ignore[type-var]


class SmoothedMax(Function):
    """<x, y> - Omega(y) at its maximizer y; by the envelope theorem the gradient is y."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, omega: Tensor) -> Tensor:
        return _objective(x, y, omega)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        # y carries its own graph, so a second derivative goes through the Jacobian of the mapping
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return g.unsqueeze(-1) * y, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, *_: Tensor | None) -> Tensor:
        (y,) = ctx.saved_tensors
        # a score of -inf has no weight, and its tangent does not matter
        return torch.zeros_like(y).sum(-1) if dx is None else torch.where(y == 0, 0, y * dx).sum(-1)


_smoothed_max = derived(SmoothedMax)


def _objective(x: Tensor, y: Tensor, omega: Tensor) -> Tensor:
    return (torch.where(x == -torch.inf, 0, x) * y).sum(-1) - omega


def _top(x: Tensor) -> Tensor:
    """The maximum of each row, as a column; 0 for a row of -inf or without entries."""
    scores = wide(x.detach())
    if x.shape[-1] == 0:
        return scores.new_zeros(*x.shape[:-1], 1)
    top = scores.amax(-1, keepdim=True)
    return torch.where(top == -torch.inf, 0, top)


def _finite(x: Tensor) -> Tensor:
    """The scores with the lowest number in place of -inf; unlike with `clamp`, a NaN keeps its derivative."""
    lowest = torch.finfo(x.dtype).min
    return torch.where(x < lowest, lowest, x)


def _pad(t: Tensor, dims: int) -> Tensor:
    return t.reshape((1,) * (dims - t.dim()) + t.shape)


def _back(y: Tensor, x: Tensor, dim: int) -> Tensor:
    return y.reshape(()) if x.dim() == 0 else y.movedim(-1, dim)
