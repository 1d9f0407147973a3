"""The price of a call: how many functions of ours it enters, and by which way it goes."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import polymax as pm
from polymax.backend import dispatch

HOME = str(Path(pm.__file__).parent)


def entered(call):
    """The functions of ours that a call enters once everything is loaded and compiled."""
    for _ in range(3):
        call()
    found = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            found.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def bounded(x):
    return pm.csparsemax(x, upper=0.15)


@pytest.mark.parametrize(
    ("mapping", "most", "most_derived"),
    [(pm.sparsemax, 8, 8), (pm.entmax, 9, 9), (pm.softmax, 8, 8)]
    + [(pm.fusedmax, 15, 23), (pm.oscarmax, 15, 23), (bounded, 15, 23)],
    ids=lambda f: getattr(f, "__name__", None),
)
def test_routes_are_short(mapping, most, most_derived):
    x = torch.randn(8, 32)
    found = entered(lambda: mapping(x))
    assert len(found) <= most, found
    found = entered(lambda: mapping(x.requires_grad_()))
    assert len(found) <= most_derived, found


CHAIN = torch.randn(8, 10, 5), torch.randn(5, 5)
SQUARE = (torch.randn(8, 5, 5),)


@pytest.mark.parametrize(
    ("function", "scores", "most"),
    [
        (lambda *x: pm.Marginals(pm.Chain()).max(*x), CHAIN, 40),
        (lambda *x: pm.Marginals(pm.Chain())(*x).unary, CHAIN, 58),
        (pm.soft_dtw, SQUARE, 58),
        (lambda *x: pm.SparseMap(pm.Chain())(*x).unary, CHAIN, 50),
        (lambda *x: pm.SparseMap(pm.SpanningTree())(*x), SQUARE, 50),
        (lambda *x: pm.SparseMap(pm.Assignment())(*x), SQUARE, 52),
    ],
    ids=["chain", "chain expectation", "soft-dtw", "sparsemap chain", "sparsemap tree", "sparsemap assignment"],
)
def test_routes_of_structures_are_short(function, scores, most):
    """Forward and backward together."""
    leaves = tuple(x.clone().requires_grad_() for x in scores)

    def call():
        y = function(*leaves)
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    found = entered(call)
    assert len(found) <= most, found


def test_functions_record_what_their_arguments_hold_no_more_than_torch_does():
    """A gradient of what an object holds is not recorded inside a function that is given the object."""
    from polymax.backend.function import apply_function

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(held, x):
            return held[0] * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    weight = torch.ones((), requires_grad=True)
    assert not apply_function(Times, [weight], torch.ones(2)).requires_grad


def test_kernels_give_their_memory_back():
    unary, transition = torch.randn(1, 4, 200), torch.randn(200, 200)
    chain = pm.Marginals(pm.Chain())

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("memory is read from /proc")
    chain.max(unary, transition)
    before = resident()
    # 160 kB each
    for _ in range(500):
        chain.max(unary, transition)
    assert resident() - before < 40e6


def test_threads_have_flags_of_their_own():
    """What one thread leaves to the kernels in logarithms does not send another one there, nor stay undone."""
    easy, transition = torch.randn(4, 12, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    wide = 1e4 * easy
    chain = pm.Marginals(pm.Chain())
    expected = [[chain.max(x, transition), *chain(x, transition)] for x in (easy, wide)]
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda k: (chain.max(x := (easy, wide)[k % 2], transition), *chain(x, transition)), range(200))
        )
    for k, results in enumerate(found):
        assert all(map(torch.equal, results, expected[k % 2]))


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_straight_calls_are_operators_where_something_looks():
    """A profiler and a dispatch mode see the operator; a plain call gives the same bits without it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.randn(3, 5)
    with Watch():
        watched = pm.sparsemax(x)
    assert any("threshold" in name for name in seen)
    with torch.profiler.profile() as profile:
        profiled = pm.sparsemax(x)
    assert any("polymax::threshold" in event.key for event in profile.key_averages())
    assert torch.equal(watched, pm.sparsemax(x))
    assert torch.equal(profiled, pm.sparsemax(x))


def test_operators_do_not_record():
    """An operator is no part of the graph, called straight or not."""
    from polymax.kernels.threshold import threshold

    assert isinstance(threshold, dispatch.Operator)
    x = torch.randn(3, 5, requires_grad=True)
    with torch.no_grad():
        assert not threshold(x, 2.0, 0).requires_grad


def test_numbers_are_checked_once_and_still_refused():
    x = torch.randn(3)
    for _ in range(2):
        with pytest.raises(ValueError, match="gamma"):
            pm.sparsemax(x, gamma=-1.0)
        with pytest.raises(TypeError, match="gamma"):
            pm.sparsemax(x, gamma="1")
        with pytest.raises(TypeError, match="gamma"):
            pm.sparsemax(x, gamma=[1.0])


def test_a_number_kept_in_inference_mode_can_be_saved():
    x = torch.randn(2, 7)
    with torch.inference_mode():
        pm.csparsemax(x, upper=0.613)
    x.requires_grad_()
    pm.csparsemax(x, upper=0.613)[0, 0].backward()
    assert x.grad is not None


LAUNCHES = '''
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

launched = []

class Device:
    """A Hopper GPU for which kernels are compiled, and which notes what it is to run."""

    class utils:
        load_binary = staticmethod(lambda *_: (1, 2, 0, 0, 1024))
        get_device_properties = staticmethod(lambda _: {"max_shared_mem": 232448})

    launcher_cls = staticmethod(lambda src, metadata: lambda *args: launched.append(args))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda _: 7)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

driver.set_active(Device())
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda _: 7

import triton
import triton.language as tl

from polymax.backend import triton_launch
from polymax.kernels.tsallis_slope.cuda import tsallis_slope

@triton_launch.Entry
@triton.jit
def add(both, p_out, TWO: tl.constexpr):
    tl.store(p_out + TWO[0], tl.load(both[0]) + both[1][0] + TWO[1])

x, out = torch.randn(4), torch.randn(4)
for known in (True, True, False):
    triton_launch.KNOWN = known
    add[(1,)]((x, (3, 16)), out, TWO=(1, 2))
ours, again, theirs = launched
assert ours[9:] == again[9:] == theirs[9:] == ((x, (3, 16)), out, (1, 2)), (ours, theirs)
add[(1,)]((x, (1, 16)), out, TWO=(1, 2))
assert len(add.prepared(TWO=(1, 2))._compiled) == 1, "Triton launches as it does"
triton_launch.KNOWN = True
add[(1,)]((x, (1, 16)), out, TWO=(1, 2))
assert len(add.prepared(TWO=(1, 2))._compiled) == 2, "a 1 in a tuple is compiled for"

launched.clear()
args = torch.randn(3, 5), torch.randn(3, 5), torch.randn(3)
for known in (True, True, False):
    triton_launch.KNOWN = known
    tsallis_slope(*args)
ours, again, theirs = launched
# the metadata and hooks of Triton are for profilers; the result is a tensor of each call
assert len(ours) == len(theirs) == 18, (len(ours), len(theirs))
for one, other, at in zip(ours, theirs, range(len(ours))):
    assert at in (6, 7, 8, 12) or one is other or one == other, (at, one, other)

from polymax.kernels.threshold.cuda import _forward_bound, threshold

# a launch that is bound to its numbers: asked for, at hand, of scores that are not aligned, and Triton's own
x = torch.randn(3, 5)
launched.clear()
for known, scores in ((True, x), (True, x), (True, torch.randn(16)[1:].view(3, 5)), (False, x)):
    triton_launch.KNOWN = known
    threshold(scores, 2.0, 0)
asked, ready, apart, theirs = launched
assert len(ready) == len(apart) == len(theirs)
for one, two, other, at in zip(asked, ready, theirs, range(len(theirs))):
    assert at in (6, 7, 8, 9, 10, 11) or one is two is other or one == two == other, (at, one, two, other)
assert asked[9] is theirs[9] is x
assert ready[9] == x.data_ptr(), "a tensor is its address"
assert ready[12:15] == apart[12:15] == (3, 5, 2.0), (ready, apart)
bound = _forward_bound(x.shape, x.dtype, 2.0, 0)
assert len(bound.launch._compiled) == 2, "scores that are not aligned have a kernel of their own"

# a launch takes addresses in place of tensors once it is ready, if they are aligned
triton_launch.KNOWN = True
alone = triton_launch.Bound(bound.launch, bound.grid, *bound.numbers)
odd, y = torch.randn(16)[1:].view(3, 5), torch.empty(3, 5)
at, to = x.data_ptr(), y.data_ptr()
for given in ((at, to, to), (odd, y, y), (odd.data_ptr(), to, to)):
    assert not triton_launch.ready(alone)
    try:
        alone(*given)
    except TypeError as error:
        assert "takes tensors until it is ready" in str(error)
    else:
        assert given[0] is odd, "an address was taken for a number"
launched.clear()
alone(x, y, y)
assert triton_launch.ready(alone) and triton_launch.ready(bound, alone)
alone(at, to, to)
assert launched[1][9:12] == (at, to, to)
assert len(bound.launch._compiled) == 2
alone.on((2,), (x, y, y), (6, 5, 2.0))
assert launched[2][0] == 2 and launched[2][12:15] == (6, 5, 2.0), "numbers of the same kinds"
try:
    alone(odd.data_ptr(), to, to)
except TypeError as error:
    assert "multiples of 16" in str(error)
else:
    raise AssertionError("a kernel for aligned tensors ran on others")
'''


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("room", [0, 16])
def test_straight_launches_hand_on_what_launchers_do(room, monkeypatch):
    from polymax.backend.triton_launch import TRIED
    from polymax.backend.triton_straight import straight

    if not importlib.metadata.version("triton").startswith(TRIED):
        pytest.skip("Triton launches its kernels itself")
    driver = importlib.import_module("triton.backends.nvidia.driver")
    handed = []
    launcher = object.__new__(driver.CudaLauncher)
    known = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": True, "arg_annotations": ["*fp32", "i32"]}
    known |= {"kernel_signature": b"ab", "launch": lambda *args: handed.append(args)}
    known |= {f"{kind}_scratch_{what}": room for kind in ("global", "profile") for what in ("size", "align")}
    vars(launcher).update(known)
    allocation = importlib.import_module("triton.runtime._allocation")
    for name in ("_allocator", "_profile_allocator"):
        monkeypatch.setattr(allocation, name, type("Memory", (), {"get": staticmethod(lambda: lambda *asked: asked)}))
    args = 4, 2, 1, 7, "function", "metadata", None, None, None, 1 << 40, (3, 1.5), 16
    launcher(*args)
    straight(launcher)(*args)
    ours, theirs = handed
    assert ours == theirs
    assert (straight(launcher) is launcher) == (room > 0), "memory is asked for by the launcher"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_launches_are_those_of_triton(tmp_path):
    """A version of Triton that is said to have been tried is given the arguments that it gives itself."""
    from polymax.backend.triton_launch import TRIED

    if not importlib.metadata.version("triton").startswith(TRIED):
        pytest.skip("Triton launches its kernels itself")
    given = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # Triton reads the source of a kernel
    (tmp_path / "launches.py").write_text(LAUNCHES)
    given["PYTHONPATH"] = os.pathsep.join((str(Path(pm.__file__).parents[1]), given.get("PYTHONPATH", "")))
    found = subprocess.run([sys.executable, tmp_path / "launches.py"], env=given, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
