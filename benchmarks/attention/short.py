"""Entmax attention of short rows, forward and backward: by the call's own kernels and by the others, beside torch's.

Shapes are (batches times heads, keys, channels). The suite compiles kernels in processes of its own, all at once.
"""

import subprocess
import sys
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import polymax as pm
from benchmarks.attention import oracles
from benchmarks.attention.cases import clustered, like_queries
from benchmarks.baselines import Competitor, Peer, Tensors, TorchFunction, ours
from benchmarks.record import Bar
from benchmarks.workload import BOTH, Case, FunctionCase, Problems, Shape, Signature, Size, tasks_of
from polymax.nn.attention_call import AttentionCall, Route
from polymax.nn.fused_attention import fused_heads

Bars = dict[Shape, float | None]

GAUSSIAN: Bars = {
    (96, 512, 64): 1.3,
    (96, 1024, 64): 1.3,
    (96, 2048, 64): 1.3,
    (384, 512, 64): 1.3,
    (16, 1024, 128): 1.3,
    (16, 4096, 64): 1.1,
}
FLAT: Bars = {(96, 512, 64): 1.5, (96, 1024, 64): 1.5, (96, 2048, 64): 1.5, (16, 4096, 64): 1.5}
PADDED: Bars = {(96, 512, 64): 1.3, (96, 1024, 64): 1.3, (96, 2048, 64): 1.3}
# without a bar: which kernels are faster
POWERS: Bars = {(96, 512, 64): None, (96, 2048, 64): None}
SINGLE: Bars = {(96, 512, 64): None, (96, 1024, 64): None}


def drawn(spread: float, shape: Shape, generator: torch.Generator) -> Tensors:
    """Gaussian queries, keys and values; queries times `spread`."""
    q, k, v = clustered(0, shape, generator)
    return spread * q, k, v


@cache
def unpadded(keys: int, device: torch.device) -> Tensor:
    """A mask (1, 1, 1, keys) that hides the last quarter."""
    return (torch.arange(keys, device=device) < keys - keys // 4)[None, None, None]


def _told(padded: bool, k: Tensor) -> dict[str, Any]:
    return {"attn_mask": unpadded(k.shape[-2], k.device)} if padded else {"is_causal": True}


def _called(mapping: pm.Tsallis, padded: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return pm.nn.scaled_dot_product_attention(q[None], k[None], v[None], mapping=mapping, **_told(padded, k))[0]


def _by_others(mapping: pm.Tsallis, padded: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by the kernels that the call does not take: those of short rows, or those of long rows."""
    call = AttentionCall(q[None], k[None], v[None], mapping=mapping, **_told(padded, k))
    options = call.options(call.query, call.key, call.attn_mask)
    options = options._replace(short=call.sparse_route(k.shape[-2]) is not Route.SHORT)
    return fused_heads(call.query, call.key, call.value, call.mapping, options)[0]


def _softmax(padded: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q[None], k[None], v[None], **_told(padded, k))[0]


def case(
    name: str,
    alpha: float,
    spread: float,
    padded: bool,
    bars: Bars,
    dtype: torch.dtype = torch.bfloat16,
) -> FunctionCase:
    """`bars` are ratios to torch's softmax attention, by shape."""
    sizes = tuple(Size(shape, dtype, None if bar is None else Bar(bar)) for shape, bar in bars.items())
    signature = Signature(partial(drawn, spread), like_queries)
    oracle, soft = (oracles.padded(alpha), oracles.padded(1.0)) if padded else (oracles.causal(alpha), oracles.softmax)
    mapping = pm.Tsallis(alpha)
    others = Peer("polymax.other_kernels", lambda _: TorchFunction(partial(_by_others, mapping, padded)))
    return FunctionCase(
        name,
        ours(partial(_called, mapping, padded), oracle),
        Problems({"cuda": sizes}, (BOTH,), signature, quick=(2, 80, 16)),
        (others,),
        base=Competitor("torch.sdpa", TorchFunction(partial(_softmax, padded)), soft),
        before=compile_all,
    )


@cache
def compile_all() -> None:
    """Compile the kernels of all cases into Triton's cache, a process for each case and size."""
    command = [sys.executable, "-m", "benchmarks.attention.short"]
    places = [(str(i), str(j)) for i, each in enumerate(SHORT_CASES) for j in range(len(each.problems.sizes["cuda"]))]
    running = [subprocess.Popen([*command, *place]) for place in places]
    for process in running:
        process.wait()


def compile_one(at: int, size: int) -> None:
    """Call our competitors of a case once."""
    chosen = SHORT_CASES[at]
    problem = chosen.problems.signature.problem(
        chosen.problems.sizes["cuda"][size], torch.Generator("cuda").manual_seed(0)
    )
    for competitor in (chosen.ours, *(peer.competitor("cuda", chosen.ours.oracle) for peer in chosen.peers)):
        if isinstance(competitor, Competitor):
            for task in tasks_of(competitor, BOTH, [problem]):
                task()


SHORT_CASES = [
    case("short rows", 1.5, 1.0, False, GAUSSIAN),
    case("short rows, sparsemax", 2.0, 1.0, False, GAUSSIAN),
    case("flat short rows", 1.5, 0.0, False, FLAT),
    case("flat short rows, sparsemax", 2.0, 0.0, False, FLAT),
    case("padded short rows", 1.5, 1.0, True, PADDED),
    case("short rows, alpha 1.3", 1.3, 1.0, False, POWERS),
    case("short rows, float32", 1.5, 1.0, False, SINGLE, torch.float32),
]
ATTENTION_SHORT: list[Case] = [*SHORT_CASES]

if __name__ == "__main__":
    compile_one(int(sys.argv[1]), int(sys.argv[2]))
