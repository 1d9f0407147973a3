"""Kernels compiled ahead, and the word that is said when a first call compiles for long."""

import logging

import pytest
import torch
from typer.testing import CliRunner

from polymax.backend import numba_cache
from polymax_recipes.cli import application
from polymax_recipes.warmup import PROBLEMS, warm_up


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_can_be_computed(name):
    # the type that other tests have their kernels for
    gradient = PROBLEMS[name](torch.float64, "cpu")
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())


def test_names_are_checked():
    with pytest.raises(ValueError, match="got 'chess'"):
        list(warm_up(["chess"]))
    result = CliRunner().invoke(application(), ["warmup", "sparsemax", "--dtype", "int8"])
    assert result.exit_code == 1
    result = CliRunner().invoke(application(), ["warmup", "sparsemax", "--device", "abacus"])
    assert result.exit_code == 1
    assert "error: device 'abacus' cannot be used" in result.output


def test_the_command_prints_its_progress():
    result = CliRunner().invoke(application(), ["warmup", "sparsemax", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "sparsemax" in result.output


def test_long_compiling_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(numba_cache, "PATIENCE", 0.0)
    monkeypatch.setattr(numba_cache, "_told", False)
    with caplog.at_level(logging.INFO, logger="polymax"):
        for _ in range(2):
            numba_cache._say_when_it_takes_long()
            waiting = numba_cache._waiting
            if waiting is not None:
                waiting.join()
            numba_cache._compiled()
    assert [record.message for record in caplog.records if "compiling" in record.message] != []
    assert len(caplog.records) == 1
