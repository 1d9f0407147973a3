"""Two processes train as one does: 20 steps by each trainer, under DDP, FSDP2 and tensor parallelism."""

import pytest

from tests.distributed import parallel_trainers, trainings
from tests.distributed.processes import Processes


@pytest.fixture(scope="module")
def two():
    processes = Processes(2)
    yield processes
    processes.close()


TRAININGS = {
    trainings.plain_loops: None,
    trainings.accelerate: "accelerate",
    trainings.lightning: "lightning",
    trainings.trainer: "transformers",
    trainings.sharded_heads: "transformers",
}


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.__name__)
def test_losses_are_those_of_one_process(two, training):
    package = TRAININGS[training]
    if package is not None:
        pytest.importorskip(package, reason=f"{package} is not installed")
    assert two.run(training) == [[]] * 2


def test_a_plan_of_transformers_keeps_each_heads_alpha(two, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert two.run(trainings.tensor_parallel_model, str(tmp_path)) == [[]] * 2


def test_trainer_of_a_plan_has_the_losses_of_one_process(two, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert two.run(parallel_trainers.trainer_tensor_parallel, str(tmp_path)) == [[]] * 2


# the last ones: DeepSpeed replaces the attention of the processes
def test_exchanges_over_heads(two):
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    assert two.run(trainings.exchanged_heads) == [[]] * 2


def test_accelerate_exchanges_heads():
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    processes = Processes(2)
    try:
        assert processes.run(parallel_trainers.accelerate_exchanges) == [[]] * 2
    finally:
        processes.close()
