"""Losses of DTensors: each process computes the losses of its rows or its words, and all get the same reduced loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from polymax import _check
from polymax.losses.targets import Partial
from polymax.sharding import collectives, words
from polymax.sharding.placements import (
    Argument,
    Placed,
    Sharded,
    is_sharded,
    of_process,
    placed,
    score_arguments,
    within,
)


def reduced(
    place: Placed, losses: Tensor, reduction: str, weight: Tensor | None = None, error: Exception | None = None
) -> Tensor:
    """The loss of all processes from this process's losses (*batch,); the mean is weighted by `weight` (*batch,).

    Each process says whether it has an error of its own in the collective that adds losses up: none is left waiting.
    """
    if reduction == "none":
        if error is not None:
            raise error
        return place.whole(losses)
    total = losses.sum()
    weights = torch.zeros_like(total) if weight is None else weight.sum().to(total.dtype)
    failed = torch.full_like(total, float(error is not None))
    found: Sharded = place.total(torch.stack([total, weights, failed]))
    sums = found.to_local()
    if error is not None:
        raise error
    if _check.readable(sums) and bool(sums[2].detach() > 0):
        raise RuntimeError("another process has an error in its part of the loss: its own message says what is wrong")
    value = sums[0]
    if reduction == "mean":
        value = value / (place.batch.numel() if weight is None else sums[1])
    return place.replicated(value)


def _or_error(compute: Callable[[], Tensor], like: Tensor) -> tuple[Tensor, Exception | None]:
    """The losses of this process and None, or zeros of the dtype of `like` and the error of a wrong argument."""
    try:
        return compute(), None
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        return like.new_zeros(1), error


def of_structures(
    local: Callable[..., Tensor], smooth: Any, scores: tuple[Tensor, ...], y: Any, cost: Any, reduction: str
) -> Tensor:
    """The loss of structures; `local(smooth, scores, y, cost)` gives the losses of plain tensors, one an instance."""
    arguments = score_arguments(smooth.structure, scores)
    place = placed(arguments)
    batch = len(place.batch)
    parts = tuple(place.local(a) for a in arguments)
    target, costs = _target(y, place, batch), _costs(cost, arguments, place)
    losses, error = _or_error(lambda: local(of_process(smooth, place), parts, target, costs), parts[0])
    return reduced(place, losses, reduction, error=error)


def _target(y: Any, place: Placed, batch: int) -> Any:
    """This process's part of a target."""
    if isinstance(y, Distribution):
        raise TypeError("y must be a DTensor of structures or expectations, as scores are DTensors; got a distribution")
    if isinstance(y, Partial):
        return Partial(_target(y.known, place, batch))
    if isinstance(y, Tensor):
        return place.local(_argument("y", y, y.dim() - batch))
    parts = [place.local(_argument(f"y[{k}]", t, t.dim() - batch)) for k, t in enumerate(y)]
    return y._make(parts) if hasattr(y, "_make") else tuple(parts)


def _costs(cost: Any, arguments: list[Argument], place: Placed) -> Any:
    if cost is None:
        return None
    costs = (cost,) if isinstance(cost, Tensor) else tuple(cost)
    found = []
    for c, a in zip(costs, arguments):
        found.append(None if c is None else place.local(_argument("cost", c, min(a.events, c.dim()))))
    return found[0] if isinstance(cost, Tensor) else tuple(found)


def _argument(name: str, t: Any, events: int) -> Argument:
    if not is_sharded(t):
        came = f"a plain tensor {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(f"{name} must be a DTensor, as scores are; got {came}")
    return Argument(name, t, events)


def of_classes(
    local: Callable[..., Tensor],
    smooth: Any,
    scores: Sharded,
    y: Sharded,
    cost: Sharded,
    reduction: str,
    dim: int,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """The loss of classes along `dim`: rows that are sharded along it are gathered, batch dimensions stay sharded."""
    from torch.distributed.tensor import Replicate

    _check.floating(scores, "scores")
    if not is_sharded(scores):
        raise TypeError(f"scores must be a DTensor, as y, cost or weight is; got a plain tensor {tuple(scores.shape)}")
    x = scores.movedim(dim, -1)
    last = x.dim() - 1
    whole = [Replicate() if p.is_shard() and p.dim == last else p for p in x.placements]
    x = x.redistribute(x.device_mesh, whole)
    distribution = isinstance(y, Tensor) and y.is_floating_point()
    if distribution:
        _argument("y", y, 1)
        y = y.movedim(dim, -1)
    arguments = [Argument("scores", x, 1), _argument("y", within(y, x, int(distribution)), int(distribution))]
    if cost is not None:
        _argument("cost", cost, 1)
        arguments.append(Argument("cost", within(cost.expand(scores.shape).movedim(dim, -1), x, 1), 1))
    if weight is not None:
        arguments.append(_argument("weight", weight, 1))
    place = placed(arguments)
    rows, target, *rest = (place.local(a) for a in arguments)
    margin = rest.pop(0) if cost is not None else None
    classes = rest.pop(0) if weight is not None else None
    options = {"weight": classes, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    losses, error = _or_error(
        lambda: local(of_process(smooth, place), rows, target, margin, "none", dim=-1, **options), rows
    )
    if distribution or error is not None:
        return reduced(place, losses, reduction, error=error)
    valid = target != ignore_index
    counted = torch.ones_like(losses) if classes is None else classes.to(losses.dtype)[torch.where(valid, target, 0)]
    return reduced(place, losses, reduction, torch.where(valid, counted, 0))


def of_words(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    alpha: float | Tensor,
    class_weights: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float,
    reduction: str,
) -> Tensor:
    """The loss of a linear layer over words, whose weight may be sharded by words."""
    split = Split(hidden, weight, bias, {"target": (target, 0)}, class_weights, alpha)
    y = split.rows["target"].reshape(-1).long()
    rows = split.hidden.reshape(-1, hidden.shape[-1])
    valid = y != ignore_index
    wrong = valid & ((y < 0) | (y >= len(weight)))
    if _check.readable(y):
        bad = bool(wrong.any())
        # before the collectives of the loss, in which others would wait for this process
        others = bool(collectives.max_over(torch.tensor(float(bad), device=y.device), split.place.groups()))
        if bad:
            raise ValueError(f"target must hold words in [0, {len(weight)}) or ignore_index; got {int(y[wrong][0])}")
        if others:
            raise RuntimeError("another process has an error in its targets: its own message says what is wrong")
    mine = valid & (y >= split.first) & (y < split.first + len(split.weight))
    at = torch.where(valid, torch.where(mine, y - split.first, 0), -1)
    classes = split.class_weights
    real = torch.promote_types(rows.dtype, torch.float32)
    each = torch.where(valid, 1.0, 0.0).to(real)
    if classes is not None:
        # all processes send one dtype, also processes without words
        own = classes.to(real)[at.clamp(min=0)] if len(classes) else torch.zeros_like(each)
        each = split.total(torch.where(mine, own, torch.zeros_like(own)))
    spread = None
    mass: float | Tensor = 1.0
    if label_smoothing:
        spread = split.weight.new_ones(len(split.weight), dtype=real) if classes is None else classes.to(real)
        spread = spread / len(weight)
        mass = split.total(spread.sum())
    value, chosen, mean, _ = words.smoothed_max(
        rows, split.weight, split.bias, at, mine, spread, split.alpha, softcap, split.groups
    )
    losses = torch.where(valid, each * (value - chosen), 0)
    if label_smoothing:
        losses = (1 - label_smoothing) * losses + label_smoothing * torch.where(valid, mass * value - mean, 0)
    shape = split.rows["target"].shape
    found = reduced(split.place, losses.reshape(shape), reduction, each.reshape(shape))
    return found


def log_prob(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    bias: Tensor | None,
    scale: float,
    softcap: float,
    entropy: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """The log-probabilities of one word for each row, and the entropy, of a weight that may be sharded by words."""
    if ids.dim() != hidden.dim() - 1:
        raise ValueError(
            f"ids must be {tuple(hidden.shape[:-1])}, a word for each row, if a tensor of the call is a DTensor; "
            f"got {tuple(ids.shape)}"
        )
    split = Split(hidden, weight, bias, {"ids": (ids, 0)}, None, 1.0)
    y = split.rows["ids"].reshape(-1).long()
    wrong = (y < 0) | (y >= len(weight))
    if _check.readable(y) and bool(wrong.any()):
        raise ValueError(f"ids must be words in [0, {len(weight)}); got {int(y[wrong][0])}")
    mine = (y >= split.first) & (y < split.first + len(split.weight))
    at = torch.where(mine, y - split.first, 0)
    rows = split.hidden.reshape(-1, hidden.shape[-1])
    value, chosen, _, moment = words.smoothed_max(
        rows, split.weight, split.bias, at, mine, None, 1.0, softcap, split.groups, scale
    )
    shape = split.rows["ids"].shape
    found = split.place.whole((chosen - value).reshape(shape))
    return (found, split.place.whole((value - moment).reshape(shape))) if entropy else found


def listed_words(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, alpha: float | Tensor, softcap: float
) -> tuple[Tensor, Tensor]:
    """The words that have weight in each row and their weights, (*batch, k) DTensors, the likeliest first."""
    split = Split(hidden, weight, bias, {}, None, alpha)
    rows = split.hidden.reshape(-1, hidden.shape[-1])
    ids, probs = words.listed(rows, split.weight, split.bias, split.first, split.alpha, softcap, split.groups)
    width = collectives.max_over(probs.new_tensor([float(ids.shape[-1])]), split.place.groups())
    missing = (0, int(width) - ids.shape[-1])
    ids, probs = torch.nn.functional.pad(ids, missing, value=-1), torch.nn.functional.pad(probs, missing)
    found = (t.reshape(*split.hidden.shape[:-1], int(width)) for t in (ids, probs.to(hidden.dtype)))
    ids, probs = (split.place.whole(t) for t in found)
    return ids, probs


class Split:
    """The process's part of a call on a linear layer: its rows, its words, and the groups that have other words."""

    def __init__(
        self,
        hidden: Sharded,
        weight: Sharded,
        bias: Sharded,
        rows: dict[str, tuple[Sharded, int]],
        class_weights: Sharded,
        alpha: Any,
    ) -> None:
        from torch.distributed.tensor import Partial as Sum
        from torch.distributed.tensor import Replicate

        given = {"hidden": hidden, "weight": weight, "bias": bias, "class_weights": class_weights}
        given |= {name: t for name, (t, _) in rows.items()} | ({"alpha": alpha} if isinstance(alpha, Tensor) else {})
        first = next(name for name, t in given.items() if is_sharded(t))
        for name, t in given.items():
            if t is not None and not is_sharded(t):
                raise TypeError(f"{name} must be a DTensor, as {first} is; got a plain tensor {tuple(t.shape)}")
        mesh = weight.device_mesh
        if any(t is not None and t.device_mesh != mesh for t in given.values()):
            raise ValueError("all tensors of a call must be on one device mesh; got several")
        places = weight.placements
        for m, p in enumerate(places):
            if p.is_shard() and p.dim != 0:
                raise ValueError(
                    f"weight must be whole along dim {p.dim}: it may be sharded by words, Shard(0); it is sharded over "
                    f"mesh dim {m}: gather it with weight.redistribute(placements=[Replicate()])"
                )
        by_words = tuple(m for m, p in enumerate(places) if p.is_shard())
        self.groups = tuple(mesh.get_group(m) for m in by_words)
        arguments = {"hidden": Argument("hidden", hidden, 1)}
        arguments |= {name: Argument(name, t, events) for name, (t, events) in rows.items()}
        # processes with different words need the same rows
        for name, a in arguments.items():
            whole = [Replicate() if m in by_words else p for m, p in enumerate(a.tensor.placements)]
            arguments[name] = a._replace(tensor=a.tensor.redistribute(mesh, whole))
        self.place = place = placed(list(arguments.values()))
        self.rows = {name: place.local(arguments[name]) for name in rows}
        local, slopes = [], []
        for m, axis in enumerate(place.axes):
            local.append(place._place(arguments["hidden"].tensor, 1, axis)[0])
            # each process has the part of the gradient that its words give
            slopes.append(Sum() if m in by_words else local[-1])
        self.hidden: Tensor = arguments["hidden"].tensor.redistribute(mesh, local).to_local(grad_placements=slopes)
        self._mesh, self._by_words = mesh, by_words
        self.weight = self._of_words(weight)
        self.bias = None if bias is None else self._of_words(bias)
        self.class_weights = None if class_weights is None else self._of_words(class_weights).detach()
        self.first = _first(weight, by_words)
        self.alpha: Any = alpha
        if is_sharded(alpha):
            replicated = [Replicate()] * mesh.ndim
            summed = [Replicate() if m in by_words or axis is None else Sum() for m, axis in enumerate(place.axes)]
            self.alpha = alpha.redistribute(mesh, replicated).to_local(grad_placements=summed)

    def _of_words(self, t: Sharded) -> Tensor:
        from torch.distributed.tensor import Partial as Sum
        from torch.distributed.tensor import Replicate, Shard

        target = [Shard(0) if m in self._by_words else Replicate() for m in range(self._mesh.ndim)]
        slopes = [
            p if m in self._by_words or axis is None else Sum()
            for m, (p, axis) in enumerate(zip(target, self.place.axes))
        ]
        return t.redistribute(self._mesh, target).to_local(grad_placements=slopes)

    def total(self, t: Tensor) -> Tensor:
        """The sum of t over the processes of the groups, which have different words; without a derivative."""
        return collectives.sum_over(t.detach(), self.groups)


def _first(weight: Sharded, by_words: tuple[int, ...]) -> int:
    """The number of the first word of this process."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = weight.device_mesh
    numbers = torch.arange(len(weight), device=mesh.device_type)
    whole = DTensor.from_local(numbers, mesh, [Replicate()] * mesh.ndim, run_check=False)
    target = [Shard(0) if m in by_words else Replicate() for m in range(mesh.ndim)]
    mine = whole.redistribute(mesh, target).to_local()
    return int(mine[0]) if len(mine) else 0
