"""The heads of an attention module that a process has, where several processes share them.

Tensor parallelism divides the projections of a module by heads. Sequence parallelism by exchanges (Ulysses) gives each
process all tokens of some heads. Parameters for all heads, such as a learned alpha, sinks or biases of positions, are
then cut to the heads of the process.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from polymax.nn.attention_heads import part_of_heads
from polymax.sharding.collectives import shared
from polymax.sharding.placements import is_sharded


class Sharing(NamedTuple):
    """The number of processes that share the heads of a module, and the rank of this one among them."""

    rank: int
    ways: int
    # the group over which gradients of parameters must be added up; None if the trainer does it, as of all parameters
    group: Any


class PerHead(NamedTuple):
    """Arguments of attention that differ between heads: mapping, sinks (heads,), and bias (N, heads or 1, L, S)."""

    mapping: Any
    sinks: Tensor | None
    bias: Tensor | None


def of_process(module: nn.Module, heads: int, given: PerHead) -> PerHead:
    """Return the mapping, sinks and bias of the heads of this process, of which the query of a call has `heads`."""
    sinks = given.sinks.to_local() if is_sharded(given.sinks) else given.sinks  # type: ignore[union-attr]
    own = getattr(given.mapping, "num_heads", None) if isinstance(given.mapping, nn.Module) else None
    bias = given.bias
    counts = [own, None if sinks is None else sinks.numel(), None if bias is None else bias.shape[1]]
    found = sharing(module)
    tensor_parallel = found is not None and found.group is not None
    if all(count in (None, 1, heads) for count in counts) and not (tensor_parallel and own == 1):
        return given._replace(sinks=sinks)
    whole = max(count for count in counts if count is not None)
    if found is None or (heads * found.ways != whole and whole != 1):
        ways = "is not shared by processes" if found is None else f"is shared by {found.ways} processes"
        raise ValueError(
            f"{type(module).__name__} has a query of {heads} heads, and parameters for {whole} heads; it {ways} that "
            "polymax knows: tp_plan of Transformers and sequence parallelism of DeepSpeed are"
        )
    first = found.rank * heads
    each = _identity if found.group is None else _adds_up(found.group)
    return PerHead(
        part_of_heads(given.mapping, whole, first, heads, each),
        sinks if sinks is None or sinks.numel() in (1, heads) else each(sinks).narrow(0, first, heads),
        bias if bias is None or bias.shape[1] in (1, heads) else each(bias).narrow(1, first, heads),
    )


def sharing(module: nn.Module) -> Sharing | None:
    """Return how processes share the heads of a module: by tensor parallelism, by DeepSpeed's exchanges, or not."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    mesh = _mesh_of(module)
    if mesh is not None and mesh.size() > 1:
        return Sharing(mesh.get_local_rank(), mesh.size(), mesh.get_group())
    # a package that is not imported divides nothing
    exchanges = sys.modules.get("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    if exchanges is None:
        return None
    try:
        rank, ways = exchanges.get_sequence_parallel_rank(), exchanges.get_sequence_parallel_world_size()
    except AssertionError:
        # no groups of sequence parallelism were made
        return None
    return Sharing(rank, ways, None) if ways > 1 else None


def _mesh_of(module: nn.Module) -> Any:
    """The device mesh, of one dim, over which parameters of a module are divided; None without one."""
    for p in module.parameters():
        if is_sharded(p) and any(place.is_shard() for place in p.placements):  # type: ignore[attr-defined]
            mesh = p.device_mesh  # type: ignore[attr-defined]
            return mesh if mesh.ndim == 1 else mesh["tp"]
    return None


def _identity(t: Tensor) -> Tensor:
    return t


def _adds_up(group: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that leaves its tensor as it is, and adds up gradients over a group."""

    def each(t: Tensor) -> Tensor:
        return shared(t, (group,))

    return each
