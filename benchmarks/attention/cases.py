"""Causal entmax attention of 16 heads, forward and backward, by how many tiles of scores hold support; and decoding.

Decoding is one query of each of 32 heads over a cache, of which all pages of keys matter, or one in twenty.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

import polymax as pm
from benchmarks.attention import oracles
from benchmarks.attention.peers import ADASPLASH, SDPA, SDPA_DECODING
from benchmarks.baselines import Tensors, ours
from benchmarks.record import Bar
from benchmarks.structures.cases import nothing
from benchmarks.workload import BOTH, FORWARD, Case, FunctionCase, Problems, Shape, Signature, Size

Draw = Callable[[Shape, torch.Generator], Tensors]

# queries and keys of a tile share a cluster, and look for keys of their own
TILE = 64


def clustered(clusters: int, shape: Shape, generator: torch.Generator) -> Tensors:
    """Queries, keys and values (heads, n, d): Gaussian, or around the centre of a cluster for each tile."""

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device)

    if clusters == 0:
        return noise(*shape), noise(*shape), noise(*shape)
    heads, n, d = shape
    centre = noise(heads, clusters, d)
    centre = 1.5 * d**0.5 * centre / centre.norm(dim=-1, keepdim=True)
    drawn = torch.randint(clusters, (heads, -(-n // TILE)), generator=generator, device=generator.device)
    which = drawn.repeat_interleave(TILE, 1)[:, :n, None].expand(shape)
    base = centre.gather(1, which)
    return base + 0.7 * noise(*shape), base + 0.7 * noise(*shape), noise(*shape)


def like_queries(shape: Shape) -> tuple[Shape, ...]:
    return (shape,)


def flat(deviation: float, shape: Shape, generator: torch.Generator) -> Tensors:
    """Gaussian queries, keys and values; queries and keys with this deviation."""
    q, k, v = clustered(0, shape, generator)
    return deviation * q, deviation * k, v


def case(name: str, draw: Draw, bars: dict[tuple[int, int], float], alpha: float = 1.5) -> FunctionCase:
    """`bars` are ratios to torch's softmax attention, by length and channels."""
    sizes = {
        "cpu": tuple(Size((4, n, 64)) for n in (1024, 2048)),
        "cuda": tuple(Size((16, n, d), torch.bfloat16, Bar(bar)) for (n, d), bar in bars.items()),
    }
    signature = Signature(draw, like_queries)
    problems = Problems(sizes, (BOTH,), signature, quick=(2, 80, 16))
    call = partial(pm.nn.scaled_dot_product_attention, is_causal=True, mapping=pm.Tsallis(alpha))
    peers = (ADASPLASH,) if alpha == 1.5 else ()
    return FunctionCase(name, ours(call, oracles.causal(alpha)), problems, peers, base=SDPA)


def decoding(name: str, clusters: int, bar: float) -> FunctionCase:
    sizes = {"cuda": (Size((32, 131072, 64), torch.bfloat16, Bar(bar)),)}
    problems = Problems(sizes, (FORWARD,), Signature(partial(cached, clusters), nothing), quick=(2, 200, 16))
    return FunctionCase(name, ours(_decoded, oracles.decoded_entmax15), problems, base=SDPA_DECODING)


def cached(clusters: int, shape: Shape, generator: torch.Generator) -> Tensors:
    """A query, keys and values for each head, and boxes of keys; pages around centres, the query around the first."""

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device)

    heads, n, d = shape
    q, k = noise(heads, 1, d), noise(*shape)
    if clusters > 0:
        centre = noise(heads, clusters, d)
        centre = 1.5 * d**0.5 * centre / centre.norm(dim=-1, keepdim=True)
        of_page = (torch.arange(n, device=generator.device) // TILE) % clusters
        q, k = centre[:, :1] + 0.3 * q, centre[:, of_page] + 0.3 * k
    return q, k, noise(*shape), pm.nn.key_boxes(k)


def _decoded(q: Tensor, k: Tensor, v: Tensor, boxes: Tensor) -> Tensor:
    return pm.nn.scaled_dot_product_attention(q, k, v, mapping=pm.entmax, key_boxes=boxes)


# blocks of 64 keys, and how sharp a router is that takes all blocks of a query's cluster
BLOCK, ROUTER_SCALE = 64, 0.02


@cache
def router(heads: int, device: torch.device) -> pm.nn.BlockRoutedAttention:
    """Attention to the blocks that sparsemax chooses."""
    module = pm.nn.BlockRoutedAttention(heads, block=BLOCK, router="sparsemax").to(device)
    torch.nn.init.constant_(module.router_scale, ROUTER_SCALE)
    return module.requires_grad_(False)


def _routed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return router(len(q), q.device)(q[None], k[None], v[None], is_causal=True)[0]


def routed(name: str, bars: dict[tuple[int, int], float]) -> FunctionCase:
    """A quarter of the blocks of keys: each belongs to one of four clusters, and queries look for their own."""
    sizes = {"cuda": tuple(Size((16, n, d), torch.bfloat16, Bar(bar)) for (n, d), bar in bars.items())}
    problems = Problems(sizes, (BOTH,), Signature(partial(clustered, 4), like_queries), quick=(2, 250, 16))
    return FunctionCase(name, ours(_routed, oracles.routed(ROUTER_SCALE, BLOCK)), problems, base=SDPA)


FLAT = {(4096, 64): 1.5, (4096, 128): 1.5, (16384, 64): 1.5, (16384, 128): 1.5}
LONG_FLAT = {(16384, 64): 1.5}

ATTENTION: list[Case] = [
    case(
        "gaussian scores",
        partial(clustered, 0),
        {(4096, 64): 1.1, (16384, 64): 1.0, (16384, 128): 0.85, (65536, 64): 0.9},
    ),
    case(
        "a third of the tiles",
        partial(clustered, 3),
        {(4096, 64): 1.0, (16384, 64): 0.75, (16384, 128): 0.975, (65536, 64): 0.6},
    ),
    case(
        "15 % of the tiles",
        partial(clustered, 7),
        {(4096, 64): 0.8, (16384, 64): 0.5, (16384, 128): 0.65, (65536, 64): 0.35},
    ),
    case("5 % of the tiles", partial(clustered, 20), {(16384, 128): 0.33}),
    case("flat scores", partial(flat, 0.1), FLAT),
    case("flat scores, sparsemax", partial(flat, 0.1), FLAT, 2.0),
    case("equal scores", partial(flat, 0.0), LONG_FLAT),
    case("equal scores, sparsemax", partial(flat, 0.0), LONG_FLAT, 2.0),
    case("flat scores, deviation 0.3", partial(flat, 0.3), LONG_FLAT),
    case("flat scores, deviation 0.3, sparsemax", partial(flat, 0.3), LONG_FLAT, 2.0),
    routed("a quarter of the blocks, routed", {(8192, 64): 1.0, (32768, 64): 0.45}),
    decoding("decoding", 0, 1.0),
    decoding("decoding, 5 % of the pages", 20, 0.5),
]
