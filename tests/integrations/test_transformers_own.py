"""The command that runs the tests of Transformers with our attention: on a checkout of three tests."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
sys.path.insert(0, str(Path(__file__).parents[2]))

TESTS = """
import torch
from transformers import AttentionInterface

module = torch.nn.Module()
module.num_key_value_groups = 1
q = torch.randn(3, 1, 2, 4, 8)

def attend(name):
    found = AttentionInterface().get_interface(name, lambda module, q, k, v, mask: ((q @ k.mT / 8**.5).tril() @ v, q))
    return found(module, *q, None)

def test_eager_is_sdpa():
    torch.testing.assert_close(attend("eager")[0].shape, attend("sdpa")[0].shape)

def test_eager_is_without_polymax():
    assert attend("eager")[0].shape[1] == 2

def test_fails():
    raise AssertionError
"""


def test_a_checkout_is_run_twice_and_compared(tmp_path, capsys):
    from tests.transformers_own import __main__ as command

    folder = tmp_path / "tests" / "models" / "llama"
    folder.mkdir(parents=True)
    (folder / "test_modeling_llama.py").write_text(TESTS)
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "--models", "bert"])
    assert "not in the checkout" in capsys.readouterr().err
    assert command.main([str(tmp_path), "--models", "llama", "--mapping", "entmax"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["baseline: 1 of 3 tests pass", "polymax entmax: 1 of 3 tests pass"]
    assert [line.rsplit(".", 1)[1] for line in printed[2:]] == ["test_eager_is_without_polymax"]
