"""Who attends beside polymax: torch's softmax attention, which is the baseline, and AdaSplash."""

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention import oracles
from benchmarks.baselines import Competitor, Function, Peer, TorchFunction


def _softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # torch's fast kernels ask for a batch of heads
    return scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def _decoded(q: Tensor, k: Tensor, v: Tensor, boxes: Tensor) -> Tensor:
    return scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _adasplash(package: Any) -> Function:
    return TorchFunction(lambda q, k, v: package.adasplash(q[None], k[None], v[None], alpha=1.5, is_causal=True)[0])


SDPA = Competitor("torch.sdpa", TorchFunction(_softmax), oracles.softmax)
SDPA_DECODING = Competitor("torch.sdpa", TorchFunction(_decoded), oracles.decoded_softmax)
ADASPLASH = Peer("adasplash.adasplash", _adasplash, devices=("cuda",))
