"""The tests look at every access of a kernel in Triton's interpreter."""

import importlib.util
import os

import pytest
import torch
from interpreted import check_accesses

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="kernels do not run in Triton's interpreter",
)


def test_accesses_outside_of_tensors_are_errors():
    import triton
    import triton.language as tl

    check_accesses()

    @triton.jit
    def add(p_x, p_y, n, m, SIZE: tl.constexpr):
        o = tl.arange(0, SIZE)
        tl.store(p_y + o, tl.load(p_x + o, mask=o < n) + 1, mask=o < m)

    x, y = torch.zeros(5), torch.zeros(16)[:5]
    add[(1,)](x, y, 5, 5, SIZE=8)
    assert y.tolist() == [1.0] * 5
    for n, m, does in ((6, 5, "reads 1 of 6"), (5, 7, "writes 2 of 7")):
        with pytest.raises(triton.runtime.errors.InterpreterError, match=does):
            add[(1,)](x, y, n, m, SIZE=8)
    with pytest.raises(triton.runtime.errors.InterpreterError, match="reads 1 of 1"):
        add[(1,)](x[:0], y, 1, 1, SIZE=8)
    with pytest.raises(triton.runtime.errors.InterpreterError, match="reads 1 of 1"):
        add[(1,)]((x[:0], x)[0], y, 1, 1, SIZE=8)
