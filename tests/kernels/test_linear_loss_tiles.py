"""A product that is read tile by tile, and does not reach memory: its sums of exponentials."""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from tolerances import close

from polymax.kernels.linear_loss.problem import Parts

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="the kernels need Triton"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def test_sums_of_tiles():
    """Sums of exponentials of all words from those of tiles, some of which have no finite score."""
    from polymax.kernels.linear_loss.cuda_tiles import add_tiles

    x = 4 * torch.randn(7, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[:, :10], x[5], x[3, 17] = -torch.inf, -torch.inf, torch.nan
    parts = []
    for tile in x.split(10, 1):
        top = torch.where(tile.isnan(), -torch.inf, tile).amax(1)
        u = tile - torch.where(top.isfinite(), top, 0).unsqueeze(1)
        parts.append(torch.stack([top, u.exp().sum(1), torch.where(u == -torch.inf, 0, u * u.exp()).sum(1)]))
    tiles = torch.stack(parts).float().to(DEVICE)
    top, total, moment = (torch.empty(7, device=DEVICE) for _ in range(3))
    add_tiles[(2,)](tiles, top, total, moment, 7, 4, BT=2, BN=4)
    fine = torch.tensor([0, 1, 2, 4, 6])
    close(top.cpu()[fine], x.amax(1)[fine], "the largest score")
    u = x - x.amax(1, keepdim=True)
    close(total.cpu()[fine], u.exp().sum(1)[fine], "the sum")
    close(moment.cpu()[fine], torch.where(u == -torch.inf, 0, u * u.exp()).sum(1)[fine], "the moment")
    assert total[3].isnan(), "a NaN is not hidden"
    assert (top[5], total[5]) == (-torch.inf, 0)


@pytest.mark.device
@pytest.mark.skipif(not GPU or torch.cuda.get_device_capability()[0] != 9, reason="the kernel needs Hopper")
@pytest.mark.parametrize(
    ("dtype", "softcap", "scale", "biased"),
    [(torch.bfloat16, 0.0, 1.0, False), (torch.bfloat16, 20.0, 0.5, True), (torch.float16, 0.0, 1.0, True)],
)
def test_tiles_are_blocks(dtype, softcap, scale, biased, monkeypatch):
    """All parts are those of blocks in memory, for sizes that fill no tile, and rows that are left out."""
    cuda, tiles = (import_module(f"polymax.kernels.linear_loss.{file}") for file in ("cuda", "cuda_tiles"))
    monkeypatch.setattr(tiles, "LEAST", 1)
    n, d, words = 333, 200, 21_111
    generator = torch.Generator().manual_seed(5)
    hidden, weight = torch.randn(n, d, generator=generator), torch.randn(words, d, generator=generator) * 3 / d**0.5
    bias = torch.randn(words, generator=generator).to(DEVICE) if biased else None
    named = torch.randint(words, (n, 3), generator=generator)
    hidden[7], hidden[9], named[9], named[::3, 1] = torch.nan, torch.nan, -100, -1
    problem = (hidden.to(DEVICE, dtype), weight.to(DEVICE, dtype), bias, named.to(DEVICE), None, 1.0, None)
    assert tiles.tiled_sums(*problem[:4], cuda.Cap(softcap, scale)) is not None
    found, again = (Parts(*cuda.linear_loss(*problem, softcap, scale)) for _ in range(2))
    monkeypatch.setattr(cuda, "STEPS", replace(cuda.STEPS, tiled=None))
    truth = Parts(*cuda.linear_loss(*problem, softcap, scale))
    for name in ("value", "chosen", "moment", "top"):
        a, b, c = (getattr(t, name) for t in (found, truth, again))
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5, equal_nan=True)
        torch.testing.assert_close(a, c, atol=0, rtol=0, equal_nan=True)
    assert found.value[7].isnan()
    assert found.value[9] == 0


def test_which_matrices_are_copied_by_tiles(monkeypatch):
    """Rows of other types, of odd distances, of columns apart, or that share memory take blocks."""
    from polymax.kernels.linear_loss import cuda_tiles

    monkeypatch.setattr(cuda_tiles, "_copies_tiles", lambda device: True)
    whole = torch.zeros(4, 64, dtype=torch.bfloat16)
    for fine in (whole, whole.half(), whole[:, :40], whole[1:]):
        assert cuda_tiles._fits(fine)
    for other in (whole.float(), whole[:, ::2], whole.mT, whole[:, 1:], whole[0].expand(4, 64), whole[:, :9].clone()):
        assert not cuda_tiles._fits(other)
