"""A plan of the cost of several GPUs, up to 1,024: python -m benchmarks.scaling.

Nothing here is measured on several GPUs. The times of one GPU are records of `results/h200`; bandwidths are those that
makers publish; what a collective moves is counted by `tests/distributed/communication.py`. The model has no overlap of
computing and communicating.
"""

import json
from pathlib import Path
from typing import NamedTuple

RECORDS = Path(__file__).parent / "results" / "h200"
LOSS = "linear_loss/2026-11-16-recorded-37c431d.json"
ATTENTION = "attention/2026-11-18-recorded-495a366.json"
# GPUs that NVLink connects
NODE = 8
# bytes a second of a GPU in one direction: NVLink of an H200, and InfiniBand NDR with one adapter for each GPU
NVLINK, INFINIBAND = 450e9, 50e9
# seconds that a collective takes for nothing; assumed
LATENCY = 20e-6
SIZES = (1, 8, 64, 256, 1024)


class Cost(NamedTuple):
    """Milliseconds of one step of an operation on so many GPUs."""

    gpus: int
    computing: float
    communicating: float

    @property
    def total(self) -> float:
        return self.computing + self.communicating


def recorded(file: str, case: str, shape: list[int]) -> float:
    """Return the seconds, forward and backward, of polymax in a record of one H200."""
    for row in json.loads((RECORDS / file).read_text(encoding="utf-8"))["runs"][0]["rows"]:
        if (row["case"], row["shape"], row["competitor"]) == (case, shape, "polymax"):
            return row["eager_us"] * 1e-6
    raise ValueError(f"{file} has no row of polymax for {case} {shape}")


def ring(gpus: int, received: float) -> float:
    """Return the seconds of a ring in which each GPU receives so many bytes: over the slowest link."""
    if gpus == 1:
        return 0.0
    return LATENCY + received / (NVLINK if gpus <= NODE else INFINIBAND)


def all_reduce(gpus: int, size: float) -> float:
    """Return the seconds of an all-reduce of so many bytes."""
    return ring(gpus, 2 * (gpus - 1) / gpus * size)


def all_gather(gpus: int, part: float) -> float:
    """Return the seconds of an all-gather, or of a reduction that scatters, of parts of so many bytes."""
    return ring(gpus, (gpus - 1) * part)


def vocabulary_loss(gpus: int) -> Cost:
    """The entmax loss of 4,096 states of 4,096 dims over 128,256 words in bfloat16, words on all GPUs."""
    n, d, words = 4096, 4096, 128256
    alone = recorded(LOSS, "entmax 1.5, deviation 1", [n, d, words])
    told = all_reduce(gpus, 4 * n * 4) + all_gather(gpus, 67 * n * 4) + all_reduce(gpus, n * d * 2)
    return Cost(gpus, alone / gpus * 1e3, told * 1e3)


def data_parallel_loss(gpus: int) -> Cost:
    """That loss with words on the 8 GPUs of a node, whose states differ from those of other nodes.

    Each node has 4,096 states. The gradient of the weight, which all nodes add up, is that of any training by data, and
    is left out.
    """
    return vocabulary_loss(min(gpus, NODE))


def sequence_attention(gpus: int, tokens: int) -> Cost:
    """Causal entmax attention of 16 heads of 64 channels in bfloat16 over a sequence on all GPUs, in balanced order.

    More than 65,536 tokens take a time that grows with their square.
    """
    heads, channels, measured = 16, 64, 65536
    alone = recorded(ATTENTION, "gaussian scores", [heads, measured, channels]) * (tokens / measured) ** 2
    part = 2 * heads * tokens / gpus * channels * 2
    return Cost(gpus, alone / gpus * 1e3, (all_gather(gpus, 16) + 2 * all_gather(gpus, part)) * 1e3)


PLANS = {
    "vocabulary loss, words on all GPUs": vocabulary_loss,
    "vocabulary loss, words on 8 GPUs": data_parallel_loss,
    "attention, 65,536 tokens": lambda gpus: sequence_attention(gpus, 65536),
    "attention, 1,048,576 tokens": lambda gpus: sequence_attention(gpus, 1 << 20),
}


def table() -> str:
    """Return the plan as a table of the page: computing + communicating, in milliseconds."""
    lines = ["| operation | " + " | ".join(f"{gpus:,}" for gpus in SIZES) + " |", "|---" * (len(SIZES) + 1) + "|"]
    for name, plan in PLANS.items():
        costs = [plan(gpus) for gpus in SIZES]
        cells = (f"{_short(cost.computing)} + {_short(cost.communicating)}" for cost in costs)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _short(milliseconds: float) -> str:
    """Two digits, or whole milliseconds."""
    return f"{milliseconds:,.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"


if __name__ == "__main__":
    print(table())
