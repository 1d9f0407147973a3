"""Mappings of DTensors: batch dimensions stay sharded, and rows that are sharded themselves are solved exactly.

Softmax, sparsemax and entmax of 1 <= alpha <= 2 of a sharded row exchange a few numbers a row (`sharding.rows`). Other
regularizers gather the row, and cut the result like the scores.
"""

from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.sharding import rows
from polymax.sharding.placements import Argument, Placed, Sharded, local_part, locally, placed


def argmax(regularizer: Any, x: Sharded, dim: int, mask: Sharded) -> Tensor:
    """Regularizer.argmax of a DTensor: a DTensor placed like x."""
    _check.floating(x, "x")
    scores, kept, moved = _moved(regularizer, x, dim, mask)
    of_rows = _row_dims(scores)
    if not of_rows:
        return _locally(type(moved).argmax, moved, scores, kept).movedim(-1, dim)
    alpha = moved.sharded_alpha()
    if alpha is None:
        whole = _gathered(scores, of_rows)
        kept = None if kept is None else _gathered(kept, of_rows)
        found: Any = _locally(type(moved).argmax, moved, whole, kept)
        return found.redistribute(scores.device_mesh, scores.placements).movedim(-1, dim)
    row = _Row(moved, scores, kept, of_rows)
    y = rows.weights(row.scaled(), alpha, row.groups).to(x.dtype)
    return row.whole(y).movedim(-1, dim)


def maximum(regularizer: Any, x: Sharded, dim: int, mask: Sharded) -> Tensor:
    """Regularizer.max of a DTensor: (*batch,), replicated if the row was sharded."""
    _check.floating(x, "x")
    scores, kept, moved = _moved(regularizer, x, dim, mask)
    of_rows = _row_dims(scores)
    alpha = moved.sharded_alpha() if of_rows else None
    if alpha is None:
        whole = _gathered(scores, of_rows)
        return _locally(type(moved).max, moved, whole, None if kept is None else _gathered(kept, of_rows))
    row = _Row(moved, scores, kept, of_rows)
    top = rows.tops(row.scores, row.groups)
    scaled = row.scaled(top)
    y = rows.weights(scaled, alpha, row.groups)
    # this form of Omega is a sum over entries, without a constant
    omega = _sum_over_entries(y.detach(), alpha)
    value = rows.maximum(scaled, y, omega, row.groups)
    dead = rows.tops(torch.where(row.scores == -torch.inf, 0.0, 1.0), row.groups).squeeze(-1) == 0
    found = torch.where(dead, 0, value) * row.regularizer._gamma_of_rows() + top.squeeze(-1)
    return row.of_rows(torch.where(dead, -torch.inf, found).to(x.dtype))


def omega(regularizer: Any, p: Sharded, dim: int) -> Tensor:
    """Regularizer.omega of a DTensor: (*batch,), replicated if the row was sharded."""
    _check.floating(p, "p")
    scores, _, moved = _moved(regularizer, p, dim, None)
    return _locally(type(moved).omega, moved, _gathered(scores, _row_dims(scores)), None)


def _sum_over_entries(p: Tensor, alpha: float) -> Tensor:
    """The share of entries p in the Tsallis entropy: (sum p^alpha - p) / (alpha (alpha - 1)), or sum p log p."""
    if alpha == 1:
        return torch.special.xlogy(p, p).sum(-1)
    return (p**alpha - p).sum(-1) / (alpha * (alpha - 1))


class _Row:
    """This process's part of rows that are sharded, scaled by gamma, and methods that assemble results."""

    def __init__(self, regularizer: Any, x: Sharded, mask: Sharded, of_rows: tuple[int, ...]) -> None:
        from torch.distributed.tensor import Replicate

        self._like, self._dims = x, of_rows
        mesh = x.device_mesh
        self.groups = tuple(mesh.get_group(m) for m in of_rows)
        self.scores = local_part(x, x.placements)
        if mask is not None:
            whole = mask.expand(x.shape).redistribute(mesh, x.placements).to_local()
            self.scores = self.scores.masked_fill(~whole, -torch.inf)
        batch: list[Any] = [Replicate() if m in of_rows else place for m, place in enumerate(x.placements)]
        axes = tuple(None if p.is_replicate() else p.dim - (x.dim() - 1) for p in batch)
        self._place = Placed(mesh, axes, x.shape[:-1])
        self.regularizer = self._of_process(regularizer)

    def scaled(self, top: Tensor | float = 0.0) -> Tensor:
        """Return the scores less `top`, divided by gamma."""
        return self.regularizer._divided(self.scores, top, self.scores != -torch.inf)

    def _of_process(self, regularizer: Any) -> Any:
        from torch.distributed.tensor import Partial

        def local(t: Sharded) -> Tensor:
            if not hasattr(t, "device_mesh"):
                raise TypeError("the regularizer's parameters must be DTensors, as x is; got a plain tensor")
            targets, slopes = [], []
            for m, axis in enumerate(self._place.axes):
                place, broadcast = self._place._place(t, min(t.dim(), 1), axis)
                targets.append(place)
                # each process of the row has a part of the gradient
                slopes.append(Partial() if broadcast or m in self._dims else place)
            return local_part(t, targets, slopes)

        return regularizer._map_tensors(local)

    def whole(self, y: Tensor) -> Tensor:
        """The DTensor, placed like the scores, whose part on this process is y."""
        from torch.distributed.tensor import DTensor

        like = self._like
        stride = torch.empty(like.shape, device="meta").stride()
        return DTensor.from_local(
            y.contiguous(), like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=stride
        )

    def of_rows(self, value: Tensor) -> Tensor:
        """The DTensor (*batch,) of values that all processes of a row have."""
        return self._place.whole(value)


def _locally(function: Any, regularizer: Any, x: Sharded, mask: Sharded) -> Tensor:
    """The regularizer's function on this process's rows."""
    tensors = regularizer._tensors()
    arguments = [Argument("x", x, 1)]
    arguments += [Argument(name, t, min(t.dim(), 1)) for name, t in tensors.items()]
    if mask is not None:
        arguments.append(Argument("mask", mask, 1))
    names = list(tensors)

    def call(holder: Any, scores: Tensor, *others: Tensor) -> Tensor:
        fields = dict(zip(names, others))
        if fields:
            from dataclasses import replace

            holder = replace(holder, **fields)
        given = () if mask is None else (-1, others[-1])
        return function(holder, scores, *given)

    return locally(call, regularizer, arguments)


def _moved(regularizer: Any, x: Sharded, dim: int, mask: Sharded) -> tuple[Sharded, Sharded, Any]:
    """x and mask with `dim` at the end, and the regularizer for them."""
    arguments = [Argument("x", x, 0)]
    if mask is not None:
        arguments.append(Argument("mask", mask, 0))
    # refuses plain tensors beside DTensors
    placed(arguments + [Argument(name, t, t.dim()) for name, t in regularizer._tensors().items() if not _is_plain(t)])
    partial = [p.is_partial() for p in x.placements]
    if any(partial):
        from torch.distributed.tensor import Replicate

        x = x.redistribute(x.device_mesh, [Replicate() if b else p for p, b in zip(x.placements, partial)])
    moved, scores = regularizer._rows(x, dim)
    kept = None
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be a bool tensor (True = keep); got {mask.dtype}")
        _check.broadcasts(mask, x, "mask")
        kept = mask.reshape((1,) * (x.dim() - mask.dim()) + tuple(mask.shape)).movedim(dim, -1)
    return scores, kept, moved


def _is_plain(t: Any) -> bool:
    if not hasattr(t, "device_mesh"):
        raise TypeError("the regularizer's parameters must be DTensors, as x is; got a plain tensor")
    return True


def _row_dims(x: Sharded) -> tuple[int, ...]:
    """The dimensions of the mesh that shard the last dimension of x."""
    last = x.dim() - 1
    return tuple(m for m, place in enumerate(x.placements) if place.is_shard() and place.dim == last)


def _gathered(x: Sharded, of_rows: tuple[int, ...]) -> Tensor:
    """x with its last dimension whole on every process."""
    if not of_rows:
        return x
    from torch.distributed.tensor import Replicate

    places = [Replicate() if m in of_rows else p for m, p in enumerate(x.placements)]
    if x.shape[-1] == 1:
        return x
    return x.redistribute(x.device_mesh, places)
