"""Heads of a process: parameters for all heads are cut to its own, and packed rows do not see each other."""

from types import SimpleNamespace

import pytest
import torch
from tolerances import close

import polymax as pm

pytest.importorskip("transformers", reason="transformers is not installed")
forward = pytest.importorskip("polymax.integrations.transformers.forward")
from polymax.integrations.transformers import process_heads  # noqa: E402
from polymax.integrations.transformers.process_heads import Sharing  # noqa: E402


def module():
    found = torch.nn.Module()
    found.config = SimpleNamespace()
    return found


def tensors(rows=1, heads=4, tokens=6):
    return [torch.randn(rows, heads, tokens, 8, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize(
    "mapping",
    [
        pm.nn.AdaptiveEntmax(4),
        pm.nn.LengthScaling(4, pm.nn.AdaptiveEntmax(4)),
        pm.nn.BlockRoutedAttention(4, block=2, head_dim=8),
        pm.Tsallis(torch.tensor([1.2, 1.4, 1.6, 1.8], dtype=torch.float64)[:, None, None]),
    ],
    ids=lambda mapping: type(mapping).__name__,
)
def test_each_process_has_the_parameters_of_its_heads(mapping, monkeypatch):
    if isinstance(mapping, torch.nn.Module):
        for p in mapping.double().parameters():
            torch.nn.init.uniform_(p, 0.1, 1.0)
    q, k, v = tensors()
    more = {"s_aux": torch.randn(4, dtype=torch.float64), "position_bias": torch.randn(1, 4, 6, 6, dtype=torch.float64)}
    whole, _ = forward.attention(mapping, module(), q, k, v, None, **more)
    for rank in (0, 1):
        monkeypatch.setattr(process_heads, "sharing", lambda module, rank=rank: Sharing(rank, 2, None))
        heads = slice(2 * rank, 2 * rank + 2)
        part, _ = forward.attention(mapping, module(), *(t[:, heads] for t in (q, k, v)), None, **more)
        close(part, whole[:, :, heads], "the heads of one process")


def test_heads_that_nothing_divides_are_refused():
    q, k, v = (t[:, :2] for t in tensors())
    with pytest.raises(ValueError, match=r"a query of 2 heads, and parameters for 4 heads; it is not shared"):
        forward.attention(pm.nn.AdaptiveEntmax(4), module(), q, k, v, None)


def test_documents_in_rows_of_a_batch_do_not_see_each_other():
    q, k, v = tensors(rows=2)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1]])
    found, _ = forward.attention(pm.entmax, module(), q, k, v, None, position_ids=positions)
    for row, cut in ((0, 3), (1, 4)):
        for part in (slice(0, cut), slice(cut, 6)):
            alone = [t[row : row + 1, :, part] for t in (q, k, v)]
            expected, _ = forward.attention(pm.entmax, module(), *alone, None)
            close(found[row : row + 1, part], expected, "a document alone")
    # one row of positions stands for all rows
    shared, _ = forward.attention(pm.entmax, module(), q, k, v, None, position_ids=positions[:1])
    close(shared[:1], found[:1], "the first row")
    assert not torch.allclose(shared[1], found[1])
