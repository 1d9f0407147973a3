"""Launches of the kernels of short rows."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from polymax.backend.triton_launch import Bound
from polymax.kernels.sparse_attention.cuda_short_rows import short_contexts
from polymax.kernels.sparse_attention.cuda_short_slopes import short_key_gradients, short_query_gradients

if TYPE_CHECKING:
    from polymax.kernels.sparse_attention.cuda_call import Call

# launch options in half precision for heads of up to 64 channels and for wider heads, then in float32: (queries of a
# block, keys of a tile, warps, loop steps loaded ahead, registers of a thread or 0 for the compiler's choice)
LAUNCH = {
    "contexts": ((64, 64, 4, 2, 168), (64, 64, 8, 2, 0), (64, 32, 4, 2, 0)),
    "query_gradients": ((64, 64, 4, 3, 168), (64, 64, 4, 2, 0), (64, 64, 8, 2, 0)),
    "key_gradients": ((64, 64, 4, 2, 0), (64, 64, 8, 2, 0), (64, 64, 4, 2, 0)),
}
# errors of the sum of weights before the last of Newton's steps in half precision, for sparsemax and alpha 1.5
ROUGH = {1: 0.05, 2: 0.1}


def forward_launch(call: "Call", counts: bool, tolerance: float) -> Bound:
    """Return the launch of thresholds and contexts, which writes the sizes of supports if `counts`.

    `tolerance` is that of Newton's steps: see last_error.
    """
    # for alpha 1.5 and 2 in half precision, the last pass tells if a rough threshold is close enough
    rough = ROUGH.get(call.more["R"]) if not call.single else None
    rows, constants = _constants(call, "contexts")
    blocks = -(-call.longest_q // rows)
    numbers = (*call.strides, *call.of_v, *call.masked, *call.places, blocks, *call.numbers, *call.sides)
    launch = short_contexts.prepared(**constants, COUNT=counts, ROUGH=rough is not None)
    return Bound(launch, (blocks, call.heads), *numbers, call.drop, tolerance if rough is None else rough)


def gradient_launches(call: "Call", grad: Tensor, key_heads: int) -> tuple[Bound, Bound]:
    """Return the launches of the gradients of queries and of keys."""
    first = (*grad.stride()[:3], *call.strides, *call.of_v, *call.masked, *call.places)
    last = (*call.numbers, *call.sides, call.drop)
    rows, constants = _constants(call, "query_gradients")
    blocks = -(-call.longest_q // rows)
    queries = Bound(short_query_gradients.prepared(**constants), (blocks, call.heads), *first, blocks, *last)
    _, constants = _constants(call, "key_gradients")
    del constants["SINKS"]
    tiles = -(-call.longest_k // constants["BN"])
    return queries, Bound(short_key_gradients.prepared(**constants), (tiles, key_heads), *first, *last)


def _constants(call: "Call", name: str) -> tuple[int, dict[str, Any]]:
    rows, keys, warps, stages, registers = LAUNCH[name][2 if call.single else int(call.deep)]
    found = {**call.more, "BR": rows, "BN": keys, "PRECISION": call.precision, "num_warps": warps, "STAGES": stages}
    if call.one_row and call.more["MASK"]:
        found["MASK"] = call.more["MASK"] + 2
    # the entries of a mask take registers of their own
    if registers and found["MASK"] not in (1, 2):
        found["maxnreg"] = registers
    return rows, found
