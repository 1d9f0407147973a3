"""How far results may be from the truth: one number per dtype, the same on every machine."""

import torch

# half precision is judged against rounding the float32 result, see test_numerics
ABSOLUTE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def close(actual, expected, law):
    """Values agree to the tolerance of `actual`'s dtype; -inf, and NaN, only with themselves."""
    tolerance = ABSOLUTE[actual.dtype]
    torch.testing.assert_close(
        actual.double(),
        torch.as_tensor(expected, device=actual.device).double(),
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
        msg=lambda difference: f"{law} is broken: {difference}",
    )


def equal(actual, expected, law):
    """Values agree bit for bit."""
    same = (actual == expected) | (torch.isnan(actual) & torch.isnan(expected))
    assert actual.dtype == expected.dtype, f"{law} is broken: {actual.dtype} is not {expected.dtype}"
    assert actual.shape == expected.shape, f"{law} is broken: {actual.shape} is not {expected.shape}"
    assert bool(same.all()), f"{law} is broken: {actual} is not {expected}"
