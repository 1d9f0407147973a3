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


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("keep", [False, True])
def test_rows_are_combined_from_the_first_to_the_last(axis, keep):
    """Halves of all rows at once, by a function of several entries that is associative and no more."""
    import triton
    import triton.language as tl

    check_accesses()
    # kernels find functions among the names of their module
    global then

    @triton.jit
    def then(a_scale, a_shift, b_scale, b_shift):
        return a_scale * b_scale, a_shift * b_scale + b_shift

    @triton.jit
    def maps(p_x, p_y, AXIS: tl.constexpr, KEEP: tl.constexpr):
        o = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
        x, y = tl.load(p_x + o), tl.load(p_x + 32 + o)
        there = tl.associative_scan((x, y), AXIS, then)
        back = tl.associative_scan((x, y), AXIS, then, reverse=True)
        for k in tl.static_range(2):
            tl.store(p_y + 64 * k + o, there[k])
            tl.store(p_y + 128 + 64 * k + o, back[k])
        _, whole = tl.reduce((x, y), AXIS, then, keep_dims=KEEP)
        if KEEP:
            tl.store(p_y + 320 + o, whole + tl.zeros_like(x))
        else:
            tl.store(p_y + 320 + tl.arange(0, 8 if AXIS == 0 else 4), whole)

    x, y = torch.randn(2, 4, 8, dtype=torch.float64), torch.zeros(400, dtype=torch.float64)
    maps[(1,)](x, y, AXIS=axis, KEEP=keep)

    def loop(parts):
        rows = [torch.stack(r) for r in zip(*(t.unbind(axis) for t in parts), strict=True)]
        found = [rows[0]]
        for scale, shift in rows[1:]:
            found.append(torch.stack([found[-1][0] * scale, found[-1][1] * scale + shift]))
        return torch.stack(found, axis + 1)

    for place, expected in ((0, loop(x)), (128, loop(x.flip(axis + 1)).flip(axis + 1))):
        for k in range(2):
            torch.testing.assert_close(y[place + 64 * k :][:32].view(4, 8), expected[k])
    last = loop(x)[1].select(axis, -1)
    if keep:
        torch.testing.assert_close(y[320:352].view(4, 8), last.unsqueeze(axis).expand(4, 8))
    else:
        torch.testing.assert_close(y[320 : 320 + len(last)], last)
