"""Who else sums over structures. All of them add up long scores in float32, so their gradients are less exact."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.baselines import JaxFunction, Mapping, Peer, TorchFunction

# ten times the error that polymax is allowed
SLACK = 10.0


@cache
def tags(shape: tuple[int, int], states: int, device: torch.device) -> Tensor:
    """Some tag for every word; each state occurs."""
    return (7 * torch.arange(shape[0] * shape[1], device=device) % states).view(shape)


def _torch_peer(name: str, call: Callable[[Any], Mapping], devices: tuple[str, ...] = ("cpu", "cuda")) -> Peer:
    return Peer(name, lambda package: TorchFunction(call(package)), devices, SLACK)


def _synjax(name: str, call: Callable[[Any], Mapping]) -> Peer:
    return Peer(name, lambda package: JaxFunction(call(package)), ("cpu",), SLACK)


def _torchcrf(use: Callable[[Any, Tensor, Tensor], Any]) -> Callable[[Any], Mapping]:
    """`use` takes a CRF without scores for the ends, unary scores and a mask of ones."""

    @cache
    def empty(package: Any, states: int, device: torch.device) -> Any:
        crf = package.CRF(states, batch_first=True).to(device)
        torch.nn.init.zeros_(crf.start_transitions)
        torch.nn.init.zeros_(crf.end_transitions)
        # as an attribute that is not a parameter, the transition scores can be anyone's
        del crf.transitions
        return crf

    @cache
    def everywhere(shape: tuple[int, int], device: torch.device) -> Tensor:
        return torch.ones(shape, dtype=torch.bool, device=device)

    def load(package: Any) -> Mapping:
        def call(unary: Tensor, transition: Tensor) -> Any:
            crf = empty(package, unary.shape[-1], unary.device)
            crf.transitions = transition
            return use(crf, unary, everywhere(unary.shape[:2], unary.device))

        return call

    return load


def _normalizer(crf: Any, unary: Tensor, mask: Tensor) -> Tensor:
    # not public, but what its loss has in common with the log-partition of the others
    return crf._compute_normalizer(unary.transpose(0, 1), mask.T)


def _loss(crf: Any, unary: Tensor, mask: Tensor) -> Tensor:
    return -crf(unary, tags(unary.shape[:2], unary.shape[-1], unary.device), mask, reduction="none")


def _decode(crf: Any, unary: Tensor, mask: Tensor) -> list[list[int]]:
    return crf.decode(unary, mask)


def _torch_struct_chain(package: Any) -> Mapping:
    def call(unary: Tensor, transition: Tensor) -> Tensor:
        edges = transition.T + unary[:, 1:, :, None]
        first = edges[:, :1] + unary[:, :1, None]
        return package.LinearChainCRF(torch.cat([first, edges[:, 1:]], 1)).partition

    return call


def _supar_chain(package: Any) -> Mapping:
    # the last row and column are of the states before the first and after the last word
    return lambda unary, transition: package.LinearChainCRF(unary, pad(transition, (0, 1, 0, 1))).log_partition


def _synjax_chain(package: Any) -> Mapping:
    jnp = import_module("jax.numpy")

    def call(unary: Any, transition: Any) -> Any:
        batch, _, states = unary.shape
        first = jnp.broadcast_to(unary[:, :1, None], (batch, 1, states, states))
        edges = jnp.concatenate([first, transition + unary[:, 1:, None]], 1)
        return package.LinearChainCRF(edges).log_partition()

    return call


def _torch_struct_spans(package: Any) -> Mapping:
    return lambda scores: package.TreeCRF(scores[..., None]).partition


def _supar_spans(package: Any) -> Mapping:
    # spans are between positions, of which there is one more than there are words
    return lambda scores: package.ConstituencyCRF(pad(scores, (1, 0, 0, 1))).log_partition


def _synjax_spans(package: Any) -> Mapping:
    return lambda scores: package.TreeCRF(scores[..., None]).log_partition()


def _torch_struct_heads(package: Any) -> Mapping:
    def call(scores: Tensor) -> Tensor:
        # without a gradient to compute it fails
        scores = scores if scores.requires_grad else scores.detach().requires_grad_()
        # the scores of roots are on the diagonal
        arcs = scores[:, 1:, 1:].diagonal_scatter(scores[:, 0, 1:], 0, 1, 2)
        return package.DependencyCRF(arcs, multiroot=False).partition

    return call


def _supar_heads(package: Any) -> Mapping:
    return lambda scores: package.DependencyCRF(scores.mT).log_partition


def _synjax_heads(package: Any) -> Mapping:
    options = {"directed": True, "projective": True, "single_root_edge": True}
    return lambda scores: package.SpanningTreeCRF(scores, **options).log_partition()


def _tslearn(package: Any) -> Mapping:
    loss = import_module("tslearn.metrics").SoftDTWLossPyTorch
    return lambda cost: loss(gamma=1.0, dist_func=lambda *_: cost)(*_series(cost))


def _pysdtw(package: Any) -> Mapping:
    loss = package.SoftDTW
    return lambda cost: loss(gamma=1.0, dist_func=lambda *_: cost, use_cuda=cost.is_cuda)(*_series(cost))


def _series(cost: Tensor) -> tuple[Tensor, Tensor]:
    """Two series as long as those between which the cost is: nobody reads their values."""
    return cost[:, :, :1], cost[:, 0, :, None]


CRF_NORMALIZER = _torch_peer("torchcrf.CRF", _torchcrf(_normalizer))
CRF_LOSS = _torch_peer("torchcrf.CRF", _torchcrf(_loss))
CRF_DECODE = replace(_torch_peer("torchcrf.CRF.decode", _torchcrf(_decode)), slack=1.0)
TORCH_STRUCT_CHAIN = _torch_peer("torch_struct.LinearChainCRF", _torch_struct_chain)
TORCH_STRUCT_SPANS = _torch_peer("torch_struct.TreeCRF", _torch_struct_spans)
TORCH_STRUCT_HEADS = _torch_peer("torch_struct.DependencyCRF", _torch_struct_heads)
SUPAR_CHAIN = _torch_peer("supar.LinearChainCRF", _supar_chain)
SUPAR_SPANS = _torch_peer("supar.ConstituencyCRF", _supar_spans)
SUPAR_HEADS = _torch_peer("supar.DependencyCRF", _supar_heads)
SYNJAX_CHAIN = _synjax("synjax.LinearChainCRF", _synjax_chain)
SYNJAX_SPANS = _synjax("synjax.TreeCRF", _synjax_spans)
SYNJAX_HEADS = _synjax("synjax.SpanningTreeCRF", _synjax_heads)
TSLEARN = _torch_peer("tslearn.SoftDTWLossPyTorch", _tslearn, devices=("cpu",))
PYSDTW = _torch_peer("pysdtw.SoftDTW", _pysdtw)
