"""Recipes on two processes: --strategy fsdp trains as ddp does, and goes on with another number of processes."""

import csv

import pytest
import torch
from untrained import FILES

import polymax_recipes
from polymax_recipes.training.task import named
from tests.distributed import recipes
from tests.distributed.processes import Processes

pytest.importorskip("lightning", reason="lightning is not installed")

# by task: a word of the error under fsdp; others train
REFUSED = {"series": "--strategy must not be fsdp"}
OPTIONS = {
    "classify": {"method": "straight-through"},
    "listops": {"method": "straight-through"},
    "lm": {"longest": 4, "context": 16},
    "seq2seq": {"longest": 5},
}


@pytest.fixture(scope="module")
def two():
    processes = Processes(2)
    yield processes
    processes.close()


def task_files(name, folder):
    """Train and dev files of a task, and small options."""
    file, text, _, _ = FILES[name]
    path = folder / file
    path.write_text(text * (12 if name == "lm" else 4) if isinstance(text, str) else text(folder), encoding="utf-8")
    small = {key: 8 for key in ("hidden", "embedding") if key in named(name).Options.__dataclass_fields__}
    options = {**small, **OPTIONS.get(name, {}), "batch_size": 2}
    return {"train": [str(path)], "dev": [str(path)]}, options


def log(out):
    with (out / "log.csv").open(encoding="utf-8", newline="") as file:
        return [{k: float(v) for k, v in row.items() if "second" not in k} for row in csv.DictReader(file)]


def close(first, second):
    return len(first) == len(second) and all(a == pytest.approx(b, rel=1e-4) for a, b in zip(first, second))


@pytest.mark.parametrize("name", FILES)
def test_fsdp_trains_as_ddp(two, name, tmp_path):
    files, options = task_files(name, tmp_path)
    for strategy in ("ddp", "fsdp"):
        out = tmp_path / strategy
        said = two.run(recipes.train, name, files, str(out), {**options, "strategy": strategy, "epochs": 2})
        if strategy == "fsdp" and name in REFUSED:
            assert all(REFUSED[name] in sentence for sentence in said)
            assert not out.exists()
            return
        assert said == [None, None]
    assert close(log(tmp_path / "fsdp"), log(tmp_path / "ddp"))
    a, b = (polymax_recipes.load(tmp_path / strategy).model.state_dict() for strategy in ("ddp", "fsdp"))
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(b[key], a[key], rtol=1e-4, atol=1e-5)
    assert (tmp_path / "fsdp" / "last.ckpt" / ".metadata").exists(), "a checkpoint of torch.distributed.checkpoint"


def test_a_run_goes_on_with_other_processes(two, tmp_path):
    files, options = task_files("word-align", tmp_path)
    options |= {"strategy": "fsdp"}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert two.run(recipes.train, "word-align", files, str(whole), {**options, "epochs": 3}) == [None, None]
    assert two.run(recipes.train, "word-align", files, str(stopped), {**options, "epochs": 2}) == [None, None]
    # a process that is killed while a checkpoint takes its place leaves the one before it
    (stopped / "last.ckpt").rename(stopped / "last.ckpt.before")
    assert two.run(recipes.train, "word-align", files, str(stopped), {**options, "epochs": 3}, True) == [None, None]
    assert close(log(stopped), log(whole))
    before = torch.load(stopped / "weights.pt", weights_only=True)

    one = Processes(1)
    try:
        assert one.run(recipes.train, "word-align", files, str(stopped), {**options, "epochs": 4}, True) == [None]
        sentence = one.run(recipes.train, "word-align", files, str(stopped), {"strategy": "ddp", "epochs": 5}, True)[0]
    finally:
        one.close()
    assert sentence.startswith("--strategy must be fsdp")
    # four batches are two steps for two processes, and four for one
    assert [row["step"] for row in log(stopped)] == [2, 4, 6, 10]
    assert log(stopped)[3]["dev_loss"] < log(stopped)[0]["dev_loss"]
    after = torch.load(stopped / "weights.pt", weights_only=True)
    assert before.keys() == after.keys()
