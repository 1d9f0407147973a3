"""Functions with derivatives of their own, called at the least cost."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function, forward_ad
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import _disable_current_modes

# arguments that hold no tensors
_CONSTANTS = int, float, NoneType


def apply_function(function: type[Function], *args: Any) -> Any:
    """function.apply(*args), without the price of torch.func and torch.compile where neither looks at the call.

    To be ready for both, torch binds the arguments of each call by a signature: dozens of microseconds, more than the
    kernel of a small row takes.
    """
    # `under_transform`, written out
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return function.apply(*args)
    if not torch.is_grad_enabled():
        return function.forward(*args)
    derived = outlived = False
    for a in args:
        if isinstance(a, Tensor):
            derived = derived or a.requires_grad
            outlived = outlived or torch._C._functorch.is_functorch_wrapped_tensor(a)
        elif not isinstance(a, _CONSTANTS):
            # an object may hold tensors that require a gradient, which is not for what happens inside the function
            derived = True
    if not derived:
        return function.forward(*args)
    return (eager(function).apply if outlived else straight(function))(*args)


def under_transform() -> bool:
    """True if torch.compile, torch.func or derivatives in forward mode look at the call."""
    return torch.compiler.is_compiling() or functional()


def surely(condition: Any) -> bool:
    """Return True if a comparison of sizes holds; in a compiled graph, if it holds for all sizes of the graph.

    A graph gets no guard from it. The comparison of sizes that the compiler knows is what it is.
    """
    return statically_known_true(condition) if torch.compiler.is_compiling() else bool(condition)


def functional() -> bool:
    """True if torch.func or derivatives in forward mode look at the call: `requires_grad` does not tell all then."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# what torch.jit.trace has recorded, None where it does not look; the compiler knows this function
tracing = torch._C._get_tracing_state


def refuse_trace() -> None:
    """The error of a call under torch.jit.trace, which sees operations of torch alone: results would be constants."""
    raise RuntimeError(
        "torch.jit.trace cannot record the kernels and solvers of polymax: it would keep their results for the example "
        "inputs as constants; torch.compile and torch.export record them"
    )


def outside_transforms() -> AbstractContextManager[Any]:
    """A context in which neither torch.func nor a dispatch mode looks.

    It is for tables that outlive the call, which must be neither fake nor tensors of inference mode, and for solvers
    that read numbers.
    """
    # the compiler does not follow it, and has nothing to leave
    return nullcontext() if torch.compiler.is_compiling() else _untransformed()


def may_keep(device: torch.device) -> bool:
    """True if a tensor that is made during this call has a value of its own, and may be kept for later calls.

    One that torch.compile, a dispatch mode (fake tensors) or a CUDA graph sees being made belongs to them.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def keep_tensors(most: int) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for functions that make tensors for a device, which is their last argument, and may be kept."""

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        @lru_cache(maxsize=most)
        def kept(*args: Any) -> Any:
            with outside_transforms():
                return make(*args)

        def call(*args: Any) -> Any:
            return (kept if may_keep(args[-1]) else make)(*args)

        # for a caller who knows that they may be kept
        call.kept = kept  # type: ignore[attr-defined]
        return call

    return decorate


@contextmanager
def _untransformed() -> Iterator[None]:
    with temporarily_clear_interpreter_stack(), _disable_current_modes(), torch.inference_mode(False):
        yield


@contextmanager
def with_autograd() -> Iterator[None]:
    """A context with autograd, where a compiled graph has switched it off altogether."""
    exclude = torch._C._SetExcludeDispatchKeyGuard
    with exclude(torch._C.DispatchKey.AutogradFunctionality, False), torch.no_grad():
        yield


def leave_graph() -> None:
    """End the graph that torch.compile has recorded so far."""
    torch._dynamo.graph_break()


def largest(tensors: tuple[Tensor, ...]) -> float:
    """The largest absolute entry of all tensors, 0 if there is none; NaN or infinite if an entry is."""
    given = [x for x in tensors if x.numel()]
    if len(given) > 1 and given[0].is_cuda:
        # one read for all of them
        return float(torch.stack(torch._foreach_norm(given, torch.inf)).amax())
    most = 0.0
    for x in given:
        size = float(torch.linalg.vector_norm(x, torch.inf))
        # NaN stays
        most = size if not size <= most else most
        if most != most:
            break
    return most


def standard_gamma(shape: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws of the gamma distribution of these shapes, by a generator."""
    return torch._standard_gamma(shape, generator=generator)


def readable(t: Tensor) -> bool:
    """True if the values of a tensor can be read: it has values, is not traced, and nobody has to wait for a device."""
    return not (
        not t.is_cpu
        or torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(t)
        or not has_values(t)
    )


def mapped_over(t: Tensor) -> bool:
    """True if torch.vmap maps over t."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            return True
        t = torch._C._functorch.get_unwrapped(t)
    return False


def has_values(x: Tensor) -> bool:
    """False for fake tensors and those on the meta device, which have a shape alone."""
    return not (x.is_meta or isinstance(x, FakeTensor))


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context without torch.autocast for such a device; it does not know all of them."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: torch.device) -> bool:
    """True if torch.autocast is on for such a device; it does not know all of them."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def recording(x: Tensor) -> bool:
    """True if a CUDA graph records what is done with x: nothing can be read then."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def constant(t: Tensor, mapped: str) -> Tensor:
    """The tensor below what torch.func wraps it in for derivatives; a ValueError, `mapped`, if vmap maps over it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            raise ValueError(mapped)
        t = torch._C._functorch.get_unwrapped(t)
    return t


@cache
def straight(function: type[Function]) -> Callable[..., Any]:
    """`eager(function).apply` without a look for tensors that outlived a transformation of torch.func."""
    return super(Function, eager(function)).apply  # type: ignore[misc]


@cache
def eager(function: type[Function]) -> type[Function]:
    """The same function in the form that torch calls at a third of the cost, and cannot transform."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = function.forward(*args)
        function.setup_context(ctx, args, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    return type(function.__name__, (Function,), members)
