"""Launches of the kernels of short rows."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from polymax.backend.triton_launch import Bound
from polymax.kernels.sparse_attention.cuda_dense import dense_heads
from polymax.kernels.sparse_attention.cuda_dense_rows import dense_contexts, dense_thresholds
from polymax.kernels.sparse_attention.cuda_short_contexts import short_contexts
from polymax.kernels.sparse_attention.cuda_short_slopes import short_key_gradients, short_query_gradients

if TYPE_CHECKING:
    from polymax.kernels.sparse_attention.cuda_call import Call

# launch options in half precision for heads of up to 64 channels and for wider heads, then in float32: (queries of a
# block, keys of a tile, warps, loop steps loaded ahead, registers of a thread or 0 for the compiler's choice)
LAUNCH = {
    "contexts": ((64, 64, 4, 3, 168), (64, 64, 4, 2, 0), (64, 32, 4, 2, 0)),
    "query_gradients": ((64, 64, 4, 3, 168), (128, 64, 8, 3, 0), (64, 64, 8, 2, 0)),
    "key_gradients": ((64, 64, 4, 2, 0), (64, 64, 4, 2, 0), (64, 64, 4, 2, 0)),
    # of dense heads, which float32 has not
    "dense_thresholds": ((64, 64, 4, 3, 128), (64, 64, 4, 3, 128)),
    "dense_contexts": ((128, 64, 8, 3, 0), (128, 64, 8, 3, 0)),
    "dense_query_gradients": ((64, 64, 4, 3, 168), (128, 64, 8, 3, 0)),
    "dense_key_gradients": ((64, 64, 4, 2, 168), (64, 64, 4, 2, 0)),
}
# keys that are sampled to find dense heads
SAMPLED_KEYS = 128
# errors of the sum of weights before the last of Newton's steps in half precision, for sparsemax and alpha 1.5
ROUGH = {1: 0.05, 2: 0.3}


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


def gradient_launches(call: "Call", grad: Tensor, key_heads: int, dense: bool = False) -> tuple[Bound, Bound]:
    """Return the launches of the gradients of queries and of keys, for short rows or for `dense` heads of long rows."""
    kind = "dense_" if dense else ""
    first = (*grad.stride()[:3], *call.strides, *call.of_v, *call.masked, *call.places)
    last = (*_flag(call), *call.numbers, *call.sides, call.drop)
    rows, constants = _constants(call, f"{kind}query_gradients")
    blocks = -(-call.longest_q // rows)
    launch = short_query_gradients.prepared(**constants, DENSE=dense)
    queries = Bound(launch, (blocks, call.heads), *first, blocks, *last)
    _, constants = _constants(call, f"{kind}key_gradients")
    del constants["SINKS"]
    tiles = -(-call.longest_k // constants["BN"])
    launch = short_key_gradients.prepared(**constants, DENSE=dense)
    return queries, Bound(launch, (tiles, key_heads), *first, *last)


def dense_launches(call: "Call", counts: bool, key_heads: int) -> tuple[Bound, Bound, Bound]:
    """Return the launches that find dense heads, their thresholds and their contexts; alpha is 1.5 or 2, in half
    precision.
    """
    flags = {name: value for name, value in call.flags.items() if name != "LEARNED"}
    numbers = (*call.strides, *call.masked, *call.places, *call.sizes, *call.numbers, *call.sides, *call.dense)
    found = dense_heads.prepared(**flags, BN=SAMPLED_KEYS, PRECISION=call.precision, num_warps=4)
    finding = Bound(found, (key_heads,), *numbers)
    rows, constants = _constants(call, "dense_thresholds")
    constants = {name: value for name, value in constants.items() if name not in ("LEARNED", "DROP", "V", "BV")}
    blocks = -(-call.longest_q // rows)
    first = (*call.strides, *call.masked, *call.places, blocks, *_flag(call))
    launch, grid = dense_thresholds.prepared(**constants), (blocks, call.heads)
    thresholds = Bound(launch, grid, *first, *call.numbers, *call.sides)
    rows, constants = _constants(call, "dense_contexts")
    del constants["LEARNED"]
    blocks = -(-call.longest_q // rows)
    first = (*call.strides, *call.of_v, *call.masked, *call.places, blocks, *_flag(call))
    launch, grid = dense_contexts.prepared(**constants, COUNT=counts), (blocks, call.heads)
    return finding, thresholds, Bound(launch, grid, *first, *call.numbers, *call.sides, call.drop)


def _flag(call: "Call") -> tuple[int, int]:
    """Return the size of a head's plan, and the place of its first fourth bound."""
    return call.plan.size, call.plan.blocks * call.plan.tiles + 3


def _constants(call: "Call", name: str) -> tuple[int, dict[str, Any]]:
    rows, keys, warps, stages, registers = LAUNCH[name][2 if call.single else int(call.deep)]
    found = {**call.more, "BR": rows, "BN": keys, "PRECISION": call.precision, "num_warps": warps, "STAGES": stages}
    if call.one_row and call.more["MASK"]:
        found["MASK"] = call.more["MASK"] + 2
    # the entries of a mask take registers of their own
    if registers and found["MASK"] not in (1, 2):
        found["maxnreg"] = registers
    return rows, found
