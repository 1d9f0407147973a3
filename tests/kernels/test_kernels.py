"""Every operator, on every device that has a file for it, against its reference in float64."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from cases import KERNEL_CALLS
from tolerances import ABSOLUTE, close

import polymax
from polymax.backend.dispatch import Operator

FOLDERS = sorted(path.parent.name for path in Path(polymax.__file__).parent.glob("kernels/*/__init__.py"))
GPU = torch.cuda.is_available()
# the interpreter is slow: few sizes there
SIZES = {
    "cpu": [0, 1, 2, 3, 63, 64, 65, 500, 1000],
    # of the lengths that one program takes, the interpreter has some: each length is compiled for
    "cuda": [0, 3, 65, 1000] if GPU else [0, 1, 5],
}
DTYPES = {
    "cpu": list(ABSOLUTE),
    "cuda": list(ABSOLUTE) if GPU else [torch.float64, torch.float32, torch.bfloat16],
}


def operators(folder):
    """Names of the operators that a folder declares."""
    package = import_module(f"polymax.kernels.{folder}")
    return sorted(name for name, value in vars(package).items() if isinstance(value, Operator))


def exists(folder, file):
    return find_spec(f"polymax.kernels.{folder}.{file}") is not None and (
        file != "cuda" or find_spec("triton") is not None
    )


PARITY = [
    pytest.param(folder, file, call, dtype, n, id=f"{folder}-{file}-{call}-{str(dtype)[6:]}-{n}")
    for folder in FOLDERS
    for file in ("cpu", "cuda")
    if exists(folder, file)
    for name in operators(folder)
    for call in KERNEL_CALLS
    if call.partition("-")[0] == name
    for dtype in DTYPES[file]
    for n in SIZES[file]
    # scores of all dtypes are widened by the same lines: in the interpreter one length shows it
    if file == "cpu" or GPU or dtype == torch.float32 or n == SIZES[file][-1]
]


def files_that_name(folder):
    """Test files besides this one that name a folder: operators on instances, not rows, have tables of their own."""
    others = (path for path in Path(__file__).parents[1].rglob("test_*.py") if path != Path(__file__))
    names = (f'"{folder}"', f"kernels.{folder}", f"kernels import {folder}")
    return [path.name for path in others if any(name in path.read_text() for name in names)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_is_tested(folder):
    if not operators(folder):
        # loops without an operator: the specification of active_set is solvers/loops/reference.py
        assert files_that_name(folder), f"kernels/{folder} is named in no test"
        return
    assert exists(folder, "reference"), f"kernels/{folder} has no reference.py"
    reference = import_module(f"polymax.kernels.{folder}.reference")
    for name in operators(folder):
        assert callable(getattr(reference, name)), f"kernels/{folder}/reference.py has no {name}"
    rows = [name for name in operators(folder) if any(call.partition("-")[0] == name for call in KERNEL_CALLS)]
    if not rows or rows != operators(folder):
        assert files_that_name(folder), f"kernels/{folder} has no rows in KERNEL_CALLS, and no test file of its own"


def spread_out(t):
    """The same values, with strides that are not those of a contiguous tensor."""
    return t.repeat_interleave(2, -1)[..., ::2] if t.numel() else t


def outputs(result):
    return result if isinstance(result, tuple) else (result,)


# the interpreter computes the lanes that a GPU would mask, with NumPy's warnings about them
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:divide by zero:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(("folder", "file", "call", "dtype", "n"), PARITY)
def test_parity(folder, file, call, dtype, n):
    name, device = call.partition("-")[0], "cuda" if file == "cuda" and GPU else "cpu"
    kernel = getattr(import_module(f"polymax.kernels.{folder}.{file}"), name)
    reference = getattr(import_module(f"polymax.kernels.{folder}.reference"), name)
    arguments = [
        a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in KERNEL_CALLS[call](n)
    ]
    exact = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
    expected = outputs(reference(*exact))
    operator = getattr(torch.ops.polymax, name)
    declared = outputs(operator(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments)))
    for layout in (torch.Tensor.contiguous, spread_out):
        given = [layout(a).to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
        for actual, truth, fake in zip(outputs(kernel(*given)), expected, declared, strict=True):
            assert actual.shape == truth.shape
            assert actual.is_contiguous()
            if actual.is_floating_point():
                assert actual.dtype == fake.dtype
                close(actual.cpu(), truth, f"{file}.py == reference.py for {call}")
            else:
                assert torch.equal(actual.cpu(), truth), f"{file}.py == reference.py for {call}"
