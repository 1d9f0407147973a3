"""Turn kernel folders into torch operators.

`kernels/<op>/__init__.py` declares the operator; `reference.py`, `cpu.py` and `cuda.py` beside it each hold a
function of the operator's name. The file name is the device: the CPU runs `cpu.py`, CUDA runs `cuda.py`, and every
other device, or a device without a file, runs `reference.py`. Kernel files are imported at their first call, so
that `import polymax` loads neither Numba nor Triton.

torch.compile, torch.func, dispatch modes and profilers see the operator. If none of them is active, a call goes
straight to the function of the device, since torch's dispatch to a Python function takes longer than many kernels.
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

from polymax.backend.function import refuse_trace, refuse_untranslated, tracing

# the library object owns the registrations: they exist as long as it does
_LIBRARY = torch.library.Library("polymax", "DEF")
_FILES = {"CPU": "cpu", "CUDA": "cuda"}
# arguments that all instances share: the arrays of a hypergraph
_SHARED = ("first", "tails", "part")


def declare(package: str, schema: str, fake: Callable[..., Any]) -> "Operator":
    """Declare an operator whose implementations are the files of `package`, and return it.

    Every tensor argument is `(*batch, ...)` with one shared batch shape, so the vmap rule is to prepend a dimension.
    """
    return _declared(package, schema, fake, _prepend)


def declare_instances(package: str, schema: str, fake: Callable[..., Any]) -> "Operator":
    """Declare an operator on instances: tensors are `(B, ...)`, or the arrays of a graph that all instances share.

    If a tensor has fewer than B entries, groups of instances share each entry. The vmap rule is to make more instances.
    A chart, the second result of an inside pass, is opaque: it belongs to all instances at once. The inside pass is run
    again if there are more instances than it was computed for.
    """
    return _declared(package, schema, fake, _fold)


def declare_function(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Declare one function on all devices as an operator and return it: torch.compile does not trace its body."""
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

    def known(*args: Any) -> Any:
        refuse_untranslated(name)
        return fake(*args)

    torch.library.register_fake(f"polymax::{name}", known, lib=_LIBRARY)
    torch.library.register_vmap(f"polymax::{name}", batching(op), lib=_LIBRARY)
    return Operator(op, package, name)


class ByDevice:
    """A function for each device: the one in the device's file, or None if there is no such file."""

    cpu: Any
    cuda: Any
    op: Any = None

    def direct(self, x: Tensor, *others: Tensor | None) -> Callable[..., Any] | None:
        """Return the function of the device for a plain call with these tensors, or None if the operator must handle
        the call.

        It takes its arguments unchecked, also those that the operator would refuse, and records no gradient.
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
            or x.is_neg()
        ):
            return None
        for t in others:
            if t is not None and (
                type(t) not in PLAIN or _batched(t) or wrapped(t) or t.is_neg() or t.is_cpu is not x.is_cpu
            ):
                return None
        found = self.cpu if x.is_cpu else self.cuda if x.is_cuda else None
        # a device without a file uses the reference, which takes the arguments of the operator
        return None if found is self.op else found


class Operator(ByDevice):
    """A torch operator, and the functions behind it for plain calls."""

    def __init__(self, op: Any, package: str, name: str) -> None:
        self.op = op
        self._package = package
        self._name = name
        # by device: a loader that replaces itself by the function at its first call; the operator without a file, and
        # for devices of other kinds
        self.functions: dict[str, Callable[..., Any]] = defaultdict(lambda: op)
        for device in _FILES.values():
            there = find_spec(f"{package}.{device}") is not None
            self._keep(device, partial(self._load, device) if there else op)

    def __call__(self, x: Tensor, *args: Any) -> Any:
        if (
            torch.compiler.is_compiling()
            or transforming()
            or type(x) not in PLAIN
            or _batched(x)
            or wrapped(x)
            or x.is_neg()
            or modes()
            or _profiling()
            or tracing()
            or (x.requires_grad and torch.is_grad_enabled())
        ):
            if tracing():
                refuse_trace()
            return self.op(x, *args)
        for a in args:
            if isinstance(a, Tensor) and (type(a) not in PLAIN or _batched(a) or wrapped(a) or a.is_neg()):
                return self.op(x, *args)
        if x.is_cpu:
            for a in args:
                # a pointer of another device would end the process
                if isinstance(a, Tensor) and not a.is_cpu:
                    raise RuntimeError(f"{self._name} expects all tensors on cpu, as the first one is; got {a.device}")
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
    """A function that replaces several operators at once on some devices, in <device>_<file>.py of a folder."""

    def __init__(self, package: str, file: str, name: str) -> None:
        for device in _FILES.values():
            source = f"{package}.{device}_{file}"
            setattr(self, device, partial(self._load, source, device, name) if find_spec(source) else None)

    def _load(self, source: str, device: str, name: str, *args: Any) -> Any:
        function = getattr(import_module(source), name)
        setattr(self, device, function)
        return function(*args)


# checks for code that intercepts calls, each of tens of nanoseconds: they are written out at each place, since a
# function around them would cost more. Gradients batched by `is_grads_batched` do not show up as a transformation of
# functions; a subclass, such as a DTensor, keeps its numbers elsewhere; a negative view, such as the imaginary part of
# a conjugate, keeps them with other signs.
PLAIN = (Tensor, torch.nn.Parameter)
transforming = torch._C._are_functorch_transforms_active
modes = torch._C._len_torch_dispatch_stack
_profiling = torch.autograd._profiler_enabled
_batched = torch._C._functorch.is_legacy_batchedtensor
# a backward pass may have saved a wrapped tensor of torch.func, which outlives its transformation
wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def bare(x: Tensor) -> bool:
    """Return True if the CPU function can take this tensor: nothing intercepts the call, and it needs no derivative."""
    return (
        not torch.compiler.is_compiling()
        and x.is_cpu
        and not (x.requires_grad and torch.is_grad_enabled())
        and not (transforming() or modes() or _profiling() or tracing())
        and forward_ad._current_level < 0
        and type(x) in PLAIN
        and not (_batched(x) or wrapped(x) or x.is_neg())
    )


def plain(*tensors: Tensor) -> bool:
    """Return True if no compiler, transformation, mode or profiler intercepts a call with these tensors."""
    if torch.compiler.is_compiling() or transforming() or modes() or _profiling() or tracing():
        return False
    # a loop is faster than any() of a generator
    seen = False
    for t in tensors:
        seen = seen or type(t) not in PLAIN or _batched(t) or wrapped(t) or t.is_neg()
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
    """Return the vmap rule of a row operator: the mapped dimension becomes one more batch dimension, in front."""

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
    """Return the vmap rule of an operator on instances: the mapped dimension joins the first."""
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
    """Return the chart of the folded instances.

    If vmap maps over an input of the inside pass, that pass was folded as well, and its chart is valid. Otherwise, as
    in a Jacobian, which maps over cotangents only, the chart belongs to fewer instances, and the inside pass is run
    again.
    """
    kind = op._schema.name.removeprefix("polymax::").rpartition("_")[0]
    inside = getattr(torch.ops.polymax, f"{kind}_inside").default
    taken = [argument.name for argument in inside._schema.arguments]
    return folded["chart"] if mapped.intersection(taken) else inside(*(folded[name] for name in taken))[1]
