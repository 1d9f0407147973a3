"""Several processes equal one: values and gradients to 1e-12 in float64, on meshes of 4 and of 2 x 2 processes.

Two processes that share one GPU, with gloo, run these tests by

    POLYMAX_DISTRIBUTED_DEVICE=cuda python -m pytest -p no:xdist tests/distributed/test_distributed.py
"""

import pytest

from tests.distributed import checks, communication, heads, modules
from tests.distributed.processes import DEVICE, Processes

SIZE = 4 if DEVICE == "cpu" else 2


@pytest.fixture(scope="module")
def four():
    processes = Processes(SIZE, DEVICE)
    yield processes
    processes.close()


EXACT = [
    checks.mappings,
    checks.long_rows,
    checks.parameters,
    checks.structures,
    checks.chains,
    checks.estimators,
    checks.class_losses,
    checks.loss_dtypes,
    checks.word_losses,
    checks.attention,
    heads.attention,
    heads.plans,
    checks.decoding,
    checks.partial_sums,
    modules.gradients,
]


@pytest.mark.parametrize("check", EXACT, ids=lambda check: f"{check.__module__.rpartition('.')[2]}.{check.__name__}")
def test_several_processes_equal_one(four, check):
    assert four.run(check) == [[]] * SIZE


def test_loss_takes_two_collectives(four):
    rows, width = 32, 64 + 3
    expected = {"all_reduce": 1, "all_gather": 1}
    # the larger of largest logit and bound, each with a flag for NaN; then the list of each row in float64
    expected |= {"all_reduce bytes": rows * 2 * 2 * 8, "all_gather bytes": rows * width * 8}
    assert four.run(checks.word_collectives) == [expected] * SIZE


def test_mapping_of_a_sharded_row_takes_two_collectives(four):
    rows, width = 10, 64 + 1
    expected = {"all_reduce": 1, "all_gather": 1}
    expected |= {"all_reduce bytes": rows * 2 * 2 * 8, "all_gather bytes": rows * width * 8}
    assert four.run(checks.row_collectives) == [expected] * SIZE


def test_the_table_of_the_page_is_what_is_communicated(four):
    assert four.run(communication.table) == [[]] * SIZE


def test_all_processes_have_the_same_bits(four):
    assert len(set(four.run(checks.same_bits))) == 1


def test_errors_name_what_is_wrong(four):
    found = four.run(checks.errors)
    said = found[0]
    assert all(other == said for other in found), "all processes say the same"
    expected = {
        "plain transition": ("TypeError", "scores[1] must be a DTensor, as scores[0] is"),
        "plain unary": ("TypeError", "scores[0] must be a DTensor"),
        "sharded event": ("ValueError", "scores[0] must be whole along dim 1"),
        "plain mask": ("TypeError", "mask must be a DTensor"),
        "distribution": ("TypeError", "takes plain tensors"),
        "plain hidden": ("TypeError", "hidden must be a DTensor"),
        "plain target": ("TypeError", "target must be a DTensor"),
        "sharded columns": ("ValueError", "weight must be whole along dim 1"),
        "alpha": ("ValueError", "alpha must be in [1, 2] if weight is sharded by words; got 3"),
        "target": ("ValueError", "target must hold words in [0, 9) or ignore_index; got 9"),
        "two meshes": ("ValueError", "one device mesh"),
        "z loss": ("TypeError", "z_loss and return_normalizer need plain tensors"),
        "target of classes": ("TypeError", "y must be a DTensor"),
        "alpha beside plain scores": ("TypeError", "alpha must be a plain tensor, like x; got a DTensor"),
        "gamma beside plain scores": ("TypeError", "gamma must be a plain tensor, like x; got a DTensor"),
        "strength beside plain scores": ("TypeError", "strength must be a plain tensor, like x; got a DTensor"),
        "mask beside plain scores": ("TypeError", "mask must be a plain tensor, like x; got a DTensor"),
        "lengths beside plain scores": ("TypeError", "lengths must be a plain tensor, like scores; got a DTensor"),
        "pair of lengths": ("TypeError", "lengths[0] must be a plain tensor, like scores; got a DTensor"),
        "target beside plain scores": ("TypeError", "scores must be a DTensor, as y, cost or weight is"),
        "weight beside plain scores": ("TypeError", "scores must be a DTensor, as y, cost or weight is"),
    }
    if DEVICE != "cpu":
        # values of targets are not read there
        del expected["target"]
    for name, (kind, sentence) in expected.items():
        assert said[name].startswith(f"{kind}: "), f"{name}: {said[name]}"
        assert sentence in said[name], f"{name}: {said[name]}"


def test_an_error_of_one_process_is_raised_by_all(four):
    found = four.run(checks.lonely_errors)
    of_values = {
        "classes": "must hold",
        "words": "target must hold words in [0, 9) or ignore_index; got 70",
        "tags": "70",
    }
    for name, sentence in of_values.items() if DEVICE == "cpu" else ():
        *others, last = [said[name] for said in found]
        assert sentence in last, name
        if name == "words":
            # processes with different words have the same rows
            assert all(sentence in said for said in others)
        else:
            assert all("another process has an error" in said for said in others), f"{name}: {others}"
    assert all("heads, dims, dtypes and options" in said["heads"] for said in found)
    assert "query must be (*batch, tokens of this process, dim); got (8,)" in found[0]["dims"]
    assert all("process 0 of the group has wrong arguments" in said["dims"] for said in found[1:])
