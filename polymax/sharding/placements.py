"""The rules of public operators for DTensors.

A call computes, on each process, what belongs to the process's part of the batch:

    a batch dimension         may be sharded; results are sharded alike, and nothing is communicated
    shared scores             (a chain's (s, s) transition) are replicated; their gradient is the sum over all processes
    an event dimension        must be whole on every process: a ValueError says which one to gather
    a partial sum             is added up first
    numbers of a structure    (lengths, targets of CTC) may be plain tensors of all rows; each process takes its own
    any other plain tensor    beside a DTensor is a TypeError

Nothing here is torch's registration of sharding strategies for operators: that interface has changed with every release
since torch 2.6, and it cannot say that a structure's lengths go with the batch.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.dispatch import PLAIN

# a DTensor: torch.distributed is imported only for one
Sharded = Any

# fields of structures that hold numbers for each instance, and how many dimensions they have besides the batch
_OF_ROWS = {"lengths": 0, "target_lengths": 0, "targets": 1}


def is_sharded(x: Any) -> bool:
    """Return True if x is a DTensor, without importing torch.distributed."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def any_sharded(values: Any) -> bool:
    """Return True if one of the values is a DTensor, looking into tuples and lists."""
    if isinstance(values, tuple | list):
        return any(any_sharded(v) for v in values)
    return is_sharded(values)


def plain(t: Tensor, name: str, beside: str) -> None:
    """Refuse a DTensor beside a plain tensor, whose name is `beside`."""
    if type(t) not in PLAIN and is_sharded(t):
        raise TypeError(f"{name} must be a plain tensor, like {beside}; got a DTensor: {name}.to_local() makes one")


class Argument(NamedTuple):
    """A tensor of a call: its name in errors, and how many of its last dimensions belong to one instance."""

    name: str
    tensor: Sharded
    events: int


@dataclass(frozen=True)
class Placed:
    """The placement of a call's batch: `axes` has, for each dimension of the mesh, the batch dimension that it shards.

    Batch dimensions are counted from the last one, -1; None is a mesh dimension that shards none of them. `batch` is
    the batch shape of all processes together.
    """

    mesh: Any
    axes: tuple[int | None, ...]
    batch: torch.Size

    def groups(self) -> tuple[Any, ...]:
        """The process groups over which the batch is sharded."""
        return tuple(self.mesh.get_group(m) for m, axis in enumerate(self.axes) if axis is not None)

    def local(self, argument: Argument) -> Tensor:
        """The part of a tensor that belongs to this process; gradients of broadcast tensors are summed."""
        from torch.distributed.tensor import Partial

        t = argument.tensor
        target, slopes = [], []
        for axis in self.axes:
            place, broadcast = self._place(t, argument.events, axis)
            target.append(place)
            slopes.append(Partial() if broadcast else place)
        return local_part(t, target, slopes)

    def _place(self, t: Tensor, events: int, axis: int | None) -> tuple[Any, bool]:
        """The placement of a tensor along a mesh dimension, and whether all processes there share the tensor."""
        from torch.distributed.tensor import Replicate, Shard

        if axis is None:
            return Replicate(), False
        dim = t.dim() - events + axis
        if dim < 0 or (t.shape[dim] == 1 and self.batch[axis] != 1):
            return Replicate(), True
        return Shard(dim), False

    def of_rows(self, t: Tensor, events: int) -> Tensor:
        """This process's rows of a plain tensor that holds the rows of all processes."""
        from torch.distributed.tensor import DTensor, Replicate

        whole = DTensor.from_local(t, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        return self.local(Argument("rows", whole, events)).detach()

    def whole(self, t: Tensor) -> Tensor:
        """The DTensor of all processes, of which t, (*batch of this process, ...), is the part of this one."""
        from torch.distributed.tensor import DTensor, Replicate, Shard

        rank = len(self.batch)
        shape = torch.Size((*self.batch, *t.shape[rank:]))
        places = [Replicate() if axis is None else Shard(rank + axis) for axis in self.axes]
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(t.contiguous(), self.mesh, places, run_check=False, shape=shape, stride=stride)

    def replicated(self, t: Tensor) -> Tensor:
        """The DTensor of t, which all processes have."""
        from torch.distributed.tensor import DTensor, Replicate

        return DTensor.from_local(t, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)

    def total(self, t: Tensor) -> Tensor:
        """The replicated DTensor of the sum of t over the processes that share the batch."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        places = [Replicate() if axis is None else Partial() for axis in self.axes]
        return DTensor.from_local(t, self.mesh, places, run_check=False).redistribute(
            self.mesh, [Replicate()] * self.mesh.ndim
        )


def local_part(t: Sharded, targets: Sequence[Any], slopes: Sequence[Any] | None = None) -> Tensor:
    """The part of this process of a DTensor that is moved to `targets`; its gradient is placed by `slopes`.

    It is `redistribute` and `to_local`. Under torch 2.11 the gradient of `to_local` has no derivative of its own, and
    second derivatives would be zero; this one has.
    """
    if tuple(t.placements) != tuple(targets):
        t = t.redistribute(t.device_mesh, targets)
    return _LocalPart.apply(t, tuple(targets if slopes is None else slopes))


class _LocalPart(Function):
    @staticmethod
    def forward(ctx: Any, t: Sharded, slopes: tuple[Any, ...]) -> Tensor:
        ctx.given = t.device_mesh, t.placements, slopes, t.shape
        part = t.to_local()
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, None]:
        from torch.distributed.tensor import DTensor

        mesh, placements, slopes, shape = ctx.given
        stride = torch.empty(shape, device="meta").stride()
        found = DTensor.from_local(g.contiguous(), mesh, slopes, run_check=False, shape=shape, stride=stride)
        # parts of a gradient that processes share are added up
        return found.redistribute(mesh, placements), None


def placed(arguments: Sequence[Argument]) -> Placed:
    """Decide where the batch of a call is; refuse plain tensors, several meshes and sharded event dimensions."""
    mesh = check_alike(arguments)
    shapes = [a.tensor.shape[: a.tensor.dim() - a.events] for a in arguments]
    batch = torch.broadcast_shapes(*shapes)
    axes = tuple(_axis(arguments, m, batch) for m in range(mesh.ndim))
    return Placed(mesh, axes, batch)


def check_alike(arguments: Sequence[Argument]) -> Any:
    """Return the device mesh of the arguments; refuse plain tensors beside DTensors, and several meshes."""
    first = next(a for a in arguments if is_sharded(a.tensor))
    mesh = first.tensor.device_mesh
    for a in arguments:
        if not is_sharded(a.tensor):
            raise TypeError(
                f"{a.name} must be a DTensor, as {first.name} is; got a plain tensor {tuple(a.tensor.shape)}: "
                "DTensor.from_local or distribute_tensor makes one"
            )
        if a.tensor.device_mesh != mesh:
            raise ValueError(f"{a.name} and {first.name} must be on one device mesh; got two")
    return mesh


def _axis(arguments: Sequence[Argument], m: int, batch: torch.Size) -> int | None:
    """The batch dimension that a mesh dimension shards, from the last one."""
    found: int | None = None
    for a in arguments:
        place = a.tensor.placements[m]
        if not place.is_shard():
            continue
        axis = place.dim - (a.tensor.dim() - a.events)
        if axis >= 0:
            raise ValueError(
                f"{a.name} must be whole along dim {place.dim}, which belongs to one instance; it is sharded over mesh "
                f"dim {m}: gather it with {a.name}.redistribute(placements=[Replicate()]) or shard a batch dim"
            )
        if found is None and a.tensor.shape[place.dim] == batch[axis]:
            found = axis
    return found


def locally(
    function: Callable[..., Any], holder: Any, arguments: Sequence[Argument], options: dict[str, Any] | None = None
) -> Any:
    """Call function(holder, *tensors) on the part of each process, and return the DTensors of all processes.

    `holder` is an operator or a structure: its tensors of rows are cut to the process's rows. Results are
    (*batch, ...), one tensor or a NamedTuple of tensors.
    """
    place = placed(arguments)
    found = function(of_process(holder, place), *(place.local(a) for a in arguments), **(options or {}))
    if isinstance(found, Tensor):
        return place.whole(found)
    parts = [place.whole(t) for t in found]
    return found._make(parts) if hasattr(found, "_make") else tuple(parts)


def of_process(holder: Any, place: Placed) -> Any:
    """Return the operator or structure with its tensors of rows cut to those of this process."""
    if not is_dataclass(holder) or isinstance(holder, type):
        return holder
    changes = {}
    for field in fields(holder):
        value = getattr(holder, field.name)
        if field.name in _OF_ROWS:
            cut = _cut(value, place, _OF_ROWS[field.name])
        elif is_sharded(value):
            cut = place.local(Argument(field.name, value, 0))
        elif is_dataclass(value) and not isinstance(value, type):
            cut = of_process(value, place)
        else:
            cut = value
        if cut is not value:
            changes[field.name] = cut
    return replace(holder, **changes) if changes else holder


def _cut(value: Any, place: Placed, events: int) -> Any:
    """The process's rows of the numbers of a structure: a tensor, a tuple of tensors, or None."""
    if isinstance(value, tuple):
        return tuple(_cut(v, place, events) for v in value)
    if not isinstance(value, Tensor) or value.dim() != len(place.batch) + events:
        return value
    if is_sharded(value):
        return place.local(Argument("lengths", value, events))
    return place.of_rows(value, events)


def score_arguments(structure: Any, scores: Sequence[Any]) -> list[Argument]:
    """The score tensors of a call on a structure, with the number of event dimensions of each."""
    events = structure.event_dims(*scores)
    names = ["scores"] if len(scores) == 1 else [f"scores[{k}]" for k in range(len(scores))]
    return [Argument(name, x, min(dims, x.dim())) for name, x, dims in zip(names, scores, events, strict=True)]


def by_process(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a structure or smoothing, which takes scores, so that it takes DTensors too."""

    @wraps(method)
    def call(self: Any, *scores: Any, **options: Any) -> Any:
        for x in scores:
            if type(x) not in PLAIN and any_sharded(x):
                given = tuple(t for s in scores for t in (s if isinstance(s, tuple) else (s,)))
                structure = getattr(self, "structure", self)
                arguments = score_arguments(structure, given)
                if len(given) == len(scores):
                    return locally(method, self, arguments, options)
                return locally(_of_parts(method, type(scores[0]), options), self, arguments)
        return method(self, *scores, **options)

    return call


def _of_parts(method: Callable[..., Any], kind: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """The method of one structure, a NamedTuple of this kind, as a function of the structure's tensors."""
    return lambda holder, *parts: method(holder, kind._make(parts), **options)


def only_local(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method so that it refuses DTensors: its result could not be put together again."""

    @wraps(method)
    def call(self: Any, *scores: Any, **options: Any) -> Any:
        for x in scores:
            if type(x) not in PLAIN and any_sharded(x):
                raise TypeError(
                    f"{type(self).__name__}.{method.__name__} takes plain tensors: call it on this process's part, "
                    "scores.to_local(), with the lengths of that part; got a DTensor"
                )
        return method(self, *scores, **options)

    return call


def wrap_methods(cls: type, names: Sequence[str], decorate: Callable[[Any], Any]) -> None:
    """Decorate those methods of these names that the class itself defines, unless they are abstract."""
    for name in names:
        method = cls.__dict__.get(name)
        if callable(method) and not getattr(method, "__isabstractmethod__", False):
            setattr(cls, name, decorate(method))


def within(t: Any, like: Any, events: int) -> Any:
    """t placed as the batch of `like` (*batch, n) is, where t is (*batch, ...) and both are DTensors."""
    if not (is_sharded(t) and is_sharded(like)) or t.device_mesh != like.device_mesh:
        return t
    from torch.distributed.tensor import Replicate

    last = like.dim() - 1
    places = [p if p.is_shard() and p.dim != last else Replicate() for p in like.placements]
    return t.redistribute(t.device_mesh, places)
