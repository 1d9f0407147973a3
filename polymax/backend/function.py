"""Autograd functions with their own derivatives, called with little overhead."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache, wraps
from types import NoneType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function, forward_ad
from torch.utils._python_dispatch import _disable_current_modes

# types of arguments that hold no tensors
_CONSTANTS = int, float, NoneType
# types of devices that torch.autocast supports; torch.compile of torch 2.11 cannot trace the question itself
_AUTOCAST = frozenset(t for t in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia") if torch.amp.is_autocast_available(t))


def apply_function(function: type[Function], *args: Any) -> Any:
    """Return function.apply(*args), without overhead for torch.func and torch.compile unless either is active.

    For these, torch binds the arguments of each call by a signature, which takes dozens of microseconds: more than the
    kernel of a small row.
    """
    # inlined `under_transform`
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
            # an object may hold tensors that require a gradient, which must not be tracked inside the function
            derived = True
    if not derived:
        return function.forward(*args)
    return (eager(function).apply if outlived else straight(function))(*args)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward pass whose results raise an error if they are derived again.

    torch's decorator of this name makes results that no input leads to: `torch.autograd.grad` in an input leaves their
    part out without an error. Here a node leads from the inputs to the results.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return found
        sources = [t for t in (*grads, *ctx.saved_tensors) if isinstance(t, Tensor) and t.requires_grad]
        places = [k for k, t in enumerate(found) if isinstance(t, Tensor)]
        if not sources or not places:
            return found
        final = list(found)
        for k, t in zip(places, _Final.apply(len(places), *(found[k] for k in places), *sources), strict=True):
            final[k] = t
        return tuple(final)

    return checked


class _Final(Function):
    """The first `count` tensors; a derivative in the others is an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.clone() for t in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: there is no derivative."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise RuntimeError("this derivative cannot be derived again: ask for it without create_graph=True")


class Stepwise(Function):
    """Tensors that depend on other tensors, the first `count` arguments, by steps alone: derivatives in these are 0.

    A gradient that is constant almost everywhere is made a function of the scores in this way: under `create_graph`
    it can be derived again, and again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        # views of a function of several outputs cannot be changed in place
        return tuple(t.clone() for t in tensors[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors[: ctx.count])

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        origins = ctx.saved_tensors
        zeros = tuple(torch.zeros_like(x) for x in origins)
        return None, *(apply_function(Stepwise, ctx.count, *origins, *zeros) if torch.is_grad_enabled() else zeros), *g


def under_transform() -> bool:
    """Return True if torch.compile, torch.func or forward-mode derivatives are active."""
    return torch.compiler.is_compiling() or functional()


def surely(condition: Any) -> bool:
    """Return True if a comparison of sizes holds; in a compiled graph, if it holds for all sizes of the graph.

    No guard is added to the graph. A comparison of sizes that the compiler knows has its plain value.
    """
    if not torch.compiler.is_compiling():
        return bool(condition)
    # a compiler has loaded the module, whose import takes a third of the time of polymax's own
    return torch.fx.experimental.symbolic_shapes.statically_known_true(condition)


def functional() -> bool:
    """Return True if torch.func or forward-mode derivatives are active: then `requires_grad` alone does not decide."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# advice at the end of errors of exports
_ONNX = (
    "torch.onnx.export takes them with dynamo=True and "
    "custom_translation_table=polymax.integrations.onnx.translation_table(): see the how-to Export to ONNX"
)

# returns what torch.jit.trace has recorded, None if it is not active; torch.compile supports this function
tracing = torch._C._get_tracing_state


def refuse_trace() -> None:
    """Raise the error of a call under torch.jit.trace, which only records torch operations: results would be
    constants.
    """
    raise RuntimeError(
        "torch.jit.trace cannot record the kernels and solvers of polymax: it would keep their results for the example "
        f"inputs as constants; torch.compile and torch.export record them; {_ONNX}"
    )


def refuse_untranslated(name: str) -> None:
    """Raise RuntimeError if an ONNX export, which has no translation of the operator, is under way.

    The exporter's own error names the operator, but not where its translation is.
    """
    if torch.onnx.is_in_onnx_export() and "polymax.integrations.onnx" not in sys.modules:
        raise RuntimeError(f"polymax::{name} needs a translation to ONNX; {_ONNX}")


def outside_transforms() -> AbstractContextManager[Any]:
    """Return a context without torch.func and dispatch modes.

    It serves tables that outlive the call, which must be neither fake tensors nor tensors of inference mode, and
    solvers that read values.
    """
    # the compiler cannot trace it, and has no transforms to leave
    return nullcontext() if torch.compiler.is_compiling() else _untransformed()


def may_keep(device: torch.device) -> bool:
    """Return True if a tensor made during this call has real values and may be kept for later calls.

    A tensor made under torch.compile, a dispatch mode (fake tensors) or a CUDA graph belongs to them.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def keep_tensors(most: int) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that caches functions that make tensors for a device, their last argument, if these may be
    kept.
    """

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        @lru_cache(maxsize=most)
        def kept(*args: Any) -> Any:
            with outside_transforms():
                return make(*args)

        def call(*args: Any) -> Any:
            return (kept if may_keep(args[-1]) else make)(*args)

        # for callers that have checked `may_keep`
        call.kept = kept  # type: ignore[attr-defined]
        return call

    return decorate


@contextmanager
def _untransformed() -> Iterator[None]:
    with temporarily_clear_interpreter_stack(), _disable_current_modes(), torch.inference_mode(False):
        yield


@contextmanager
def with_autograd() -> Iterator[None]:
    """Return a context with autograd, also if a compiled graph has switched it off."""
    exclude = torch._C._SetExcludeDispatchKeyGuard
    with exclude(torch._C.DispatchKey.AutogradFunctionality, False), torch.no_grad():
        yield


def leave_graph() -> None:
    """End the graph that torch.compile has recorded so far."""
    torch._dynamo.graph_break()


def largest(tensors: tuple[Tensor, ...]) -> float:
    """Return the largest absolute entry of all tensors, 0 if there is none; NaN or inf if an entry is."""
    given = [x for x in tensors if x.numel()]
    if len(given) > 1 and given[0].is_cuda:
        # one read for all tensors
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
    """Return draws of the gamma distribution of these shapes, by a generator."""
    return torch._standard_gamma(shape, generator=generator)


def readable(t: Tensor) -> bool:
    """Return True if the values of a tensor can be read at once: it is on the CPU, not traced, and has values."""
    return not (
        not t.is_cpu
        or torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(t)
        or not has_values(t)
    )


def has_values(x: Tensor) -> bool:
    """Return False for fake tensors and tensors on the meta device, which have no values."""
    return not (x.is_meta or isinstance(x, FakeTensor))


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without torch.autocast for the type of the device, if autocast supports it."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: torch.device) -> bool:
    """Return True if torch.autocast supports the type of the device and is enabled for it."""
    return device.type in _AUTOCAST and torch.is_autocast_enabled(device.type)


def apart(t: Tensor, x: Tensor) -> bool:
    """Return True if a tensor is on another device than x; torch takes a number on the CPU anywhere."""
    return t.device != x.device and bool(t.dim() or not t.is_cpu)


def recording(x: Tensor) -> bool:
    """Return True if a CUDA graph records operations on x: no value can be read then."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def constant(t: Tensor, mapped: str) -> Tensor:
    """Return the tensor inside the wrappers of torch.func's derivatives; raise ValueError(mapped) if vmap maps over
    it.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            raise ValueError(mapped)
        t = torch._C._functorch.get_unwrapped(t)
    return t


@cache
def straight(function: type[Function]) -> Callable[..., Any]:
    """Return `eager(function).apply` without its check for tensors that outlived a transformation of torch.func."""
    return super(Function, eager(function)).apply  # type: ignore[misc]


@cache
def eager(function: type[Function]) -> type[Function]:
    """Return the function in the form that torch calls at a third of the cost, but cannot transform."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = function.forward(*args)
        function.setup_context(ctx, args, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    return type(function.__name__, (Function,), members)


def is_fixed(t: Tensor) -> bool:
    """Return True if the call may not depend on numbers in tensors: it is compiled, or captured as a CUDA graph."""
    return torch.compiler.is_compiling() or (t.is_cuda and torch.cuda.is_current_stream_capturing())


def require(condition: Tensor, message: str) -> None:
    """Raise a RuntimeError with the message unless `condition` is True, without reading it in compiled code."""
    torch._assert_async(condition, message)
