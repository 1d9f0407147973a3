"""How a kernel folder becomes a torch operator.

`kernels/<op>/__init__.py` declares the operator; `reference.py`, `cpu.py` and `cuda.py` beside it each hold a
function of the operator's name. The file name is the device: the CPU runs `cpu.py`, CUDA runs `cuda.py`, and every
other device, or a device without a file, runs `reference.py`. Kernel files are imported at their first call, so
that `import polymax` pays for neither Numba nor Triton.

torch.compile, torch.func, dispatch modes and profilers see the operator. Where none of them looks, a call goes straight
to the function of the device: torch's way to a Python function takes longer than many kernels.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from polymax.backend.function import refuse_trace, tracing

# the library object owns the registrations: they live as long as it does
_LIBRARY = torch.library.Library("polymax", "DEF")
_FILES = {"CPU": "cpu", "CUDA": "cuda"}
# what all instances share: the arrays of a hypergraph
_SHARED = ("first", "tails", "part")


def declare(package: str, schema: str, fake: Callable[..., Any]) -> "Operator":
    """Declare an operator whose implementations are the files of `package`, and return it.

    Every tensor argument is `(*batch, ...)` with one shared batch shape, so the vmap rule is to prepend a dimension.
    """
    return _declared(package, schema, fake, _prepend)


def declare_instances(package: str, schema: str, fake: Callable[..., Any]) -> "Operator":
    """Declare an operator on instances: tensors are `(B, ...)`, or of a graph that all instances share.

    Where B instances come with fewer of something, groups of instances share it. The vmap rule is to make more
    instances. A chart, the second result of an inside pass, is opaque: it is that of all instances at once, and the
    inside pass is taken again where there are more instances than it was computed for.
    """
    return _declared(package, schema, fake, _fold)


def declare_function(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Declare an operator that is one function on all devices, and return it: torch.compile does not look inside."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"polymax::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.polymax, name).default


def _declared(package: str, schema: str, fake: Callable[..., Any], batching: Callable[..., Any]) -> "Operator":
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(name, _lazily(package, "reference", name), "CompositeExplicitAutograd")
    for key, file in _FILES.items():
        if find_spec(f"{package}.{file}") is not None:
            _LIBRARY.impl(name, _lazily(package, file, name), key)
    op = getattr(torch.ops.polymax, name).default
    torch.library.register_fake(f"polymax::{name}", fake, lib=_LIBRARY)
    torch.library.register_vmap(f"polymax::{name}", batching(op), lib=_LIBRARY)
    return Operator(op, package, name)


class ByDevice:
    """A function for each device: that of its file, or None where there is no such file."""

    cpu: Any
    cuda: Any
    op: Any = None

    def direct(self, x: Tensor, *others: Tensor | None) -> Callable[..., Any] | None:
        """The function of the device, for a call with these tensors that nothing looks at; None for other calls.

        It takes the arguments as they are, also those that the operator would refuse, and records no gradient.
        """
        if (
            torch.compiler.is_compiling()
            or transforming()
            or modes()
            or _profiling()
            or tracing()
            or forward_ad._current_level >= 0
            or type(x) not in PLAIN
            or _batched(x)
            or wrapped(x)
        ):
            return None
        for t in others:
            if t is not None and (type(t) not in PLAIN or _batched(t) or wrapped(t)):
                return None
        found = self.cpu if x.is_cpu else self.cuda if x.is_cuda else None
        # a device without a file has the reference, which takes what the operator takes
        return None if found is self.op else found


class Operator(ByDevice):
    """An operator of torch, and the functions behind it for plain calls."""

    def __init__(self, op: Any, package: str, name: str) -> None:
        self.op = op
        self._package = package
        self._name = name
        # the functions of the devices, each replaced by itself at its first call; the reference where there is no file
        # the operator itself for devices of other kinds
        self.functions: dict[str, Callable[..., Any]] = defaultdict(lambda: op)
        for device in _FILES.values():
            there = find_spec(f"{package}.{device}") is not None
            self._keep(device, partial(self._load, device) if there else op)

    def __call__(self, x: Tensor, *args: Any) -> Any:
        if (
            torch.compiler.is_compiling()
            or type(x) not in PLAIN
            or transforming()
            or _batched(x)
            or wrapped(x)
            or modes()
            or _profiling()
            or tracing()
            or (x.requires_grad and torch.is_grad_enabled())
        ):
            if tracing():
                refuse_trace()
            return self.op(x, *args)
        for a in args:
            # gradients taken many at once, by `is_grads_batched`, come without a sign that functions are transformed
            if isinstance(a, Tensor) and (_batched(a) or wrapped(a)):
                return self.op(x, *args)
        if x.is_cpu:
            return self.cpu(x, *args)
        return self.cuda(x, *args) if x.is_cuda else self.op(x, *args)

    def _load(self, device: str, *args: Any) -> Any:
        function = getattr(import_module(f"{self._package}.{device}"), self._name)
        self._keep(device, function)
        return function(*args)

    def _keep(self, device: str, function: Callable[..., Any]) -> None:
        setattr(self, device, function)
        self.functions[device] = function


class Shortcut(ByDevice):
    """A function that does the work of several operators at once on some devices, in <device>_<file>.py of a folder."""

    def __init__(self, package: str, file: str, name: str) -> None:
        for device in _FILES.values():
            source = f"{package}.{device}_{file}"
            setattr(self, device, partial(self._load, source, device, name) if find_spec(source) else None)

    def _load(self, source: str, device: str, name: str, *args: Any) -> Any:
        function = getattr(import_module(source), name)
        setattr(self, device, function)
        return function(*args)


# what may look at a call, asked for in tens of nanoseconds
PLAIN = (Tensor, torch.nn.Parameter)
transforming = torch._C._are_functorch_transforms_active
modes = torch._C._len_torch_dispatch_stack
_profiling = torch.autograd._profiler_enabled
_batched = torch._C._functorch.is_legacy_batchedtensor
# a tensor that torch.func wrapped outlives the transformation, in what a backward pass has saved
wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def bare(x: Tensor) -> bool:
    """True if a call with this tensor can go to the function of the CPU at once: nothing looks at it or derives it."""
    return (
        not torch.compiler.is_compiling()
        and x.is_cpu
        and type(x) in PLAIN
        and not (x.requires_grad and torch.is_grad_enabled())
        and not (transforming() or modes() or _profiling() or tracing())
        and forward_ad._current_level < 0
        and not _batched(x)
        and not wrapped(x)
    )


def plain(*tensors: Tensor) -> bool:
    """True if nothing looks at a call with these tensors: no compiler, transformation, mode or profiler."""
    if torch.compiler.is_compiling() or transforming() or modes() or _profiling() or tracing():
        return False
    # a loop is faster than any() of a generator
    seen = False
    for t in tensors:
        seen = seen or type(t) not in PLAIN or _batched(t) or wrapped(t)
    return not seen


def _lazily(package: str, file: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal function
        if function is None:
            function = getattr(import_module(f"{package}.{file}"), name)
        return function(*args)

    return call


def _prepend(op: Callable[..., Any]) -> Callable[..., Any]:
    """Vmap rule of a row operator: the mapped dimension is one more batch dimension, in front."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        front = [
            arg
            if not isinstance(arg, Tensor)
            else arg.movedim(d, 0)
            if d is not None
            else arg.expand(info.batch_size, *arg.shape)
            for arg, d in zip(args, in_dims, strict=True)
        ]
        out = op(*front)
        return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0

    return rule


def _fold(op: Any) -> Callable[..., Any]:
    """Vmap rule of an operator on instances: the mapped dimension joins the first."""
    names = [argument.name for argument in op._schema.arguments]
    inside = op._schema.name.endswith("_inside")

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        folded, mapped = dict(zip(names, args, strict=True)), set()
        for name, arg, d in zip(names, args, in_dims, strict=True):
            if d is not None:
                mapped.add(name)
            if d is not None and name in (*_SHARED, "chart"):
                raise ValueError(f"{name} of {op._schema.name} belongs to all instances, and cannot be mapped over")
            if isinstance(arg, Tensor) and name not in (*_SHARED, "chart"):
                front = arg.movedim(d, 0) if d is not None else arg.expand(info.batch_size, *arg.shape)
                folded[name] = front.flatten(0, 1)
        if "chart" in folded:
            folded["chart"] = _chart_of(op, folded, mapped)
        out = op(*folded.values())
        if not isinstance(out, tuple):
            return out.unflatten(0, (info.batch_size, -1)), 0
        apart = tuple(t if inside and k == 1 else t.unflatten(0, (info.batch_size, -1)) for k, t in enumerate(out))
        return apart, tuple(None if inside and k == 1 else 0 for k in range(len(out)))

    return rule


def _chart_of(op: Any, folded: dict[str, Any], mapped: set[str]) -> Tensor:
    """The chart of the folded instances.

    Where what the inside pass takes is mapped over, that pass was folded alike, and its chart is the one. Where it is
    not, as in a Jacobian, which maps over cotangents alone, the chart is that of fewer instances.
    """
    kind = op._schema.name.removeprefix("polymax::").rpartition("_")[0]
    inside = getattr(torch.ops.polymax, f"{kind}_inside").default
    taken = [argument.name for argument in inside._schema.arguments]
    return folded["chart"] if mapped.intersection(taken) else inside(*(folded[name] for name in taken))[1]
