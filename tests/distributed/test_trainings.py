"""Two processes train as one does: 20 steps by each trainer, under DDP, FSDP2 and tensor parallelism."""

import pytest

from tests.distributed import trainings
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
