"""The plan of the cost of several GPUs is that of the page, and its parts add up."""

from pathlib import Path

import pytest

from benchmarks import scaling

PAGE = Path(__file__).parents[2] / "docs" / "many-processes.md"


def test_the_page_has_the_plan():
    assert scaling.table() in PAGE.read_text(encoding="utf-8")


def test_one_gpu_takes_the_recorded_time():
    for plan in scaling.PLANS.values():
        assert plan(1).communicating == 0
    alone = scaling.vocabulary_loss(1).computing
    assert scaling.vocabulary_loss(8).computing == pytest.approx(alone / 8)
    assert scaling.sequence_attention(1, 1 << 17).computing == pytest.approx(
        4 * scaling.sequence_attention(1, 1 << 16).computing
    )


def test_collectives_take_the_slowest_link():
    # seven parts of 1 GB over NVLink, and a reduction that moves them twice
    assert scaling.all_gather(8, 1e9) == pytest.approx(scaling.LATENCY + 7e9 / scaling.NVLINK)
    assert scaling.all_reduce(64, 1e9) == pytest.approx(scaling.LATENCY + 2 * 63 / 64 * 1e9 / scaling.INFINIBAND)
    with pytest.raises(ValueError, match="no row of polymax"):
        scaling.recorded(scaling.LOSS, "another case", [1])
