"""The campaign as a command: it runs, finds a planted fault, and calls it again by the line that it prints."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import polymax as pm
from tests.campaign import mappings, truths
from tests.campaign.__main__ import campaign, main, operators

# a seed for each family: what is tested here is the campaign
ROUNDS = {"sparsemax": 0, "fusedmax": 0, "csoftmax": 0, "hard/chain": 0, "marginals/alignment": 0, "gradients": 0}
ROUNDS |= {"attention": 0, "linear-loss": 0, "local/transducer": 1795071537, "linear-sum-assignment": 0}


@pytest.mark.parametrize(("only", "seed"), ROUNDS.items(), ids=list(ROUNDS))
def test_round_without_breaches(only, seed):
    lines = []
    rows, breaches, _ = campaign(0, seed, only=only, rounds=2, say=lines.append)
    assert rows.total() > 0
    assert not breaches.total(), "\n".join(lines)


def test_planted_fault_is_found_and_called_again(monkeypatch, tmp_path, capsys):
    right = pm.Gini.argmax_rows

    def wrong(self, x):
        # the two largest of three scores share what the largest one gets
        return right(self, 1.5 * x) if x.shape[-1] == 3 else right(self, x)

    monkeypatch.setattr(pm.Gini, "argmax_rows", wrong)
    out = tmp_path / "breaches.txt"
    assert main(["--rounds", "8", "--only", "sparsemax", "--out", str(out)]) == 1
    record = out.read_text()
    assert "below the best" in record
    assert "breaches are in" in capsys.readouterr().out
    seed, number = re.search(r"--seed (\d+) --device cpu --only sparsemax --trial (\d+)", record).groups()
    assert main(["--seed", seed, "--only", "sparsemax", "--trial", number]) == 1
    again = capsys.readouterr().out
    assert all(line.strip() in again for line in record.split("\n\n")[0].splitlines()), "a trial is the same every time"


def test_trials_that_raise_are_breaches(monkeypatch):
    def fail(self, x):
        raise FloatingPointError("planted")

    monkeypatch.setattr(pm.Gini, "argmax_rows", fail)
    lines = []
    assert campaign(0, only="sparsemax", trial=0, say=lines.append)[1].total() == 1
    assert "FloatingPointError: planted" in lines[0]


def test_command(tmp_path):
    out = tmp_path / "breaches.txt"
    command = [sys.executable, "-m", "tests.campaign", "--minutes", "0.01", "--only", "hardmax", "--out", str(out)]
    run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"hardmax +\d+ +0 ", run.stdout)


def test_every_mapping_and_structure_has_trials():
    names = set(operators())
    functions = {name for name in vars(pm) if name.endswith("max") and callable(getattr(pm, name)) and name.islower()}
    # a head of words takes states and weights, and a draw is another at each call
    assert functions - {"linear_entmax", "gumbel_softmax"} <= names, "a mapping without trials"
    assert {"hard/chain", "local/chain", "marginals/spanning-tree", "sparse/assignment", "ragged", "large"} <= names
    assert {"attention", "linear-loss", "hard/alignment", "marginals/gapped", "linear-sum-assignment"} <= names


def test_bounds_are_reached():
    """The bounds of the campaign, from duals, are the values of the oracles, from optimality."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        x = torch.randn(5, generator=generator, dtype=torch.float64)
        row = x.numpy().astype(np.longdouble)
        for name, parameters in (
            ("fusedmax", {"strength": 0.3}),
            ("oscarmax", {"strength": 0.2}),
            ("groupedmax", {"strength": 0.2}),
            ("csparsemax", {"lower": 0.05, "upper": 0.4}),
            ("csoftmax", {"lower": 0.05, "upper": 0.4}),
        ):
            mapping = mappings.MAPPINGS[name]
            p = mapping.make(**parameters).argmax(x).numpy().astype(np.longdouble)
            reached = truths.objective(row, p, lambda p: mapping.omega(p, **parameters))  # noqa: B023
            assert abs(float(mapping.best(row, **parameters) - reached)) < 1e-14
