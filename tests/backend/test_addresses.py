"""Kernels of rows on the CPU give the same bits wherever in memory their rows lie."""

import pytest
import torch
from tolerances import equal

from polymax.backend.cpu_rows import REALS
from polymax.kernels.capped import cpu as capped
from polymax.kernels.oscarmax import cpu as oscarmax
from polymax.kernels.segment_mean import cpu as segment_mean
from polymax.kernels.threshold import NORM, TSALLIS, cpu_gradients
from polymax.kernels.threshold import cpu as threshold

# between arrays, in entries: loops that LLVM has vectorised look whether arrays are this close to each other
GAPS = (0, 1, 8, 64, 3000)
WIDTHS = pytest.mark.parametrize("n", [3, 6, 17, 20, 40, 100, 300, 500])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def everywhere(call, *given):
    """Call a kernel with the addresses of what is given and of its result, in one memory, in several orders."""
    size, results = given[0].numel(), []
    count = len(given) + 1
    for gap in GAPS:
        for first in range(count):
            memory = torch.zeros(count * (size + gap), dtype=given[0].dtype)
            parts = [memory[(first + k) % count * (size + gap) :][:size].view_as(given[0]) for k in range(count)]
            for part, values in zip(parts, given, strict=False):
                part.copy_(values)
            call(*(part.data_ptr() for part in parts))
            results.append(parts[-1].clone())
    for result in results[1:]:
        equal(result, results[0], "bits do not depend on addresses")


@DTYPES
@WIDTHS
@pytest.mark.parametrize(
    ("name", "alpha"),
    [
        ("_softmax_rows", 1.0),
        ("_sparsemax_short", 2.0),
        ("_sparsemax_long", 2.0),
        ("_entmax15_short", 1.5),
        ("_entmax15_long", 1.5),
        ("_between_short", 1.33),
        ("_between_long", 1.33),
        ("_general", 1.33),
        ("_below_1", 0.7),
    ],
)
def test_weights(name, alpha, n, dtype):
    kernel, real = getattr(threshold, name), REALS[dtype]
    for rows in (1, 2):
        x = torch.randn(rows, n, dtype=dtype)
        everywhere(lambda x_at, y_at, rows=rows: kernel(0, rows, n, x_at, y_at, real, alpha, 0, TSALLIS), x)


@DTYPES
@WIDTHS
@pytest.mark.parametrize(
    ("name", "alpha", "family"),
    [
        ("_softmax_backward", 1.0, TSALLIS),
        ("_sparsemax_backward", 2.0, TSALLIS),
        ("_entmax15_backward", 1.5, TSALLIS),
        ("_tsallis_backward", 1.33, TSALLIS),
        ("_between_short_backward", 1.33, TSALLIS),
        ("_between_long_backward", 1.33, TSALLIS),
        ("_threshold_backward", 1.5, NORM),
    ],
)
def test_gradients(name, alpha, family, n, dtype):
    kernel, real = getattr(cpu_gradients, name), REALS[dtype]
    for rows in (1, 2):
        y = torch.softmax(torch.randn(rows, n, dtype=dtype), -1)
        y[:, ::3] = 0
        # of a row that is almost empty, the support alone is looked at
        y[0, n // 8 + 1 :] = 0

        def call(y_at, v_at, out_at, rows=rows):
            kernel(0, rows, n, y_at, v_at, out_at, real, alpha, 0, family)

        everywhere(call, y, torch.randn(rows, n, dtype=dtype))


@DTYPES
@WIDTHS
@pytest.mark.parametrize("strength", [0.001, 0.02, 1.0])
def test_clusters(strength, n, dtype):
    real, x = REALS[dtype], torch.randn(1, n, dtype=dtype)
    code, number = torch.empty(1, n, dtype=torch.int32), torch.tensor([strength], dtype=dtype)
    at = code.data_ptr(), number.data_ptr()
    everywhere(
        lambda x_at, y_at: oscarmax._oscarmax(0, 1, n, x_at, at[1], y_at, at[0], real, real, False),
        x,
    )
    everywhere(
        lambda v_at, out_at: oscarmax._oscarmax_backward(0, 1, n, at[0], v_at, out_at, real),
        torch.randn(1, n, dtype=dtype),
    )


@DTYPES
@WIDTHS
def test_gradients_of_bounds_and_runs(n, dtype):
    real, bounds = REALS[dtype], torch.tensor([0.0, 0.4], dtype=dtype)
    y = torch.softmax(torch.randn(1, n, dtype=dtype), -1)
    y[:, ::3] = 0
    v = torch.randn(1, n, dtype=dtype)
    low, high = bounds.data_ptr(), bounds[1:].data_ptr()
    everywhere(
        lambda y_at, v_at, out_at: capped._capped_backward(
            0, 1, n, y_at, v_at, low, high, out_at, real, real, real, real, False, False, False
        ),
        y,
        v,
    )
    everywhere(
        lambda z_at, v_at, y_at, out_at: segment_mean._supported_mean(
            0, 1, n, z_at, v_at, out_at, real, real, 0, y_at, real
        ),
        (4 * y).round(),
        v,
        y,
    )
