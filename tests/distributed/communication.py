"""What operations communicate: each row of the table on the page "Many processes", counted while it runs.

Bytes are those that a process hands to each collective. Sizes are in the names of the page: P processes, n rows, d
dimensions, b bytes a number.
"""

from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import polymax as pm
from tests.distributed.checks import mesh_of, placed

# the argument that is the process's own part, by operator
OWN = {
    "allreduce_": 0,
    "allgather_": 1,
    "reduce_scatter_": 1,
    "alltoall_": 1,
    "broadcast_": 0,
    "_allgather_base_": 1,
    "all_reduce": 0,
    "all_gather_into_tensor": 0,
    "reduce_scatter_tensor": 0,
    "all_to_all_single": 0,
}
KINDS = {"allreduce_": "all-reduce", "all_reduce": "all-reduce", "reduce_scatter_": "reduce-scatter"}
KINDS |= {"allgather_": "all-gather", "_allgather_base_": "all-gather", "all_gather_into_tensor": "all-gather"}
KINDS |= {"reduce_scatter_tensor": "reduce-scatter", "alltoall_": "all-to-all", "all_to_all_single": "all-to-all"}
KINDS |= {"broadcast_": "broadcast"}


class Counted(TorchDispatchMode):
    """Notes (collective, bytes) of each collective inside the block, also those of torch itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        space, _, name = func._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional") and name in OWN:
            size = sum(
                t.numel() * t.element_size() for t in tree_leaves(args[OWN[name]]) if isinstance(t, torch.Tensor)
            )
            self.found.append((KINDS[name], size))
        return func(*args, **(kwargs or {}))


def _said(name, call, expected):
    """A sentence if a call communicates anything else than expected: pairs of a collective and its bytes."""
    with Counted() as counted:
        result = call()
    found = Counter(counted.found)
    said = [] if found == Counter(expected) else [f"{name}: {dict(found)}, not {dict(Counter(expected))}"]
    return said, result


def table():
    """Each row of the table, forward and backward."""
    said = []
    for rows in (_batches, _rows, _words, _attention, _plans):
        said += rows(dist.get_world_size())
    return said


def _batches(size):
    """No communication where the batch is sharded; shared scores, and reductions."""
    mesh, b = mesh_of(size), 8
    x = placed(torch.randn(8, 9, dtype=torch.float64), mesh, [Shard(0)], True)
    said, mapped = _said("a mapping", lambda: pm.entmax(x), [])
    said += _said("its gradient", lambda: mapped.sum(-1).to_local().sum().backward(), [])[0]
    u = placed(torch.randn(8, 6, 4, dtype=torch.float64), mesh, [Shard(0)], True)
    t = placed(torch.randn(4, 4, dtype=torch.float64), mesh, [Replicate()], True)
    tags = placed(torch.randint(4, (8, 6)), mesh, [Shard(0)])
    more, loss = _said("losses", lambda: pm.crf_loss(pm.Chain(), (u, t), tags, reduction="none"), [])
    said += more
    slope = placed(torch.ones(8, dtype=torch.float64), mesh, [Shard(0)])
    more, _ = _said("shared scores", lambda: torch.autograd.grad(loss, [u, t], slope), [("all-reduce", 16 * b)])
    said += more
    more, _ = _said("a reduced loss", lambda: pm.crf_loss(pm.Chain(), (u, t), tags), [("all-reduce", 3 * b)])
    y = placed(torch.randint(9, (8,)), mesh, [Shard(0)])
    expected = [("all-reduce", 3 * b)]
    return said + more + _said("a weighted mean", lambda: pm.entmax_loss(x, y), expected)[0]


def _rows(size):
    """Rows that are sharded: two collectives, a sum of two numbers for each step of Newton's method, the gradient."""
    n, b = 10, 8
    x = placed(torch.randn(n, 1000, dtype=torch.float64) * 3, mesh_of(size), [Shard(1)], True)
    said, _ = _said("softmax", lambda: pm.softmax(x), [("all-reduce", 2 * n * b), ("all-reduce", n * b)])
    more, y = _said("entmax", lambda: pm.entmax(x), [("all-reduce", 4 * n * b), ("all-gather", 65 * n * b)])
    said += more
    v = placed(torch.randn(n, 1000, dtype=torch.float64), mesh_of(size), [Shard(1)])
    said += _said("gradient", lambda: torch.autograd.grad(y, x, v), [("all-reduce", 2 * n * b)])[0]
    with Counted() as counted:
        pm.entmax(placed(torch.randn(n, 1000, dtype=torch.float64) * 1e-3, mesh_of(size), [Shard(1)]))
    steps = counted.found[2:]
    if counted.found[:2] != [("all-reduce", 4 * n * b), ("all-gather", 65 * n * b)] or not 2 < len(steps) < 20:
        said.append(f"flat rows: {counted.found}")
    # the last one is the sum by which weights are divided
    if set(steps[:-1]) != {("all-reduce", 16 * n)} or steps[-1] != ("all-reduce", 8 * n):
        said.append(f"steps of Newton's method: {steps}")
    return said


def _words(size):
    """The loss of a last layer sharded by words, and the gradient of hidden."""
    said = []
    for dtype, b, wide in ((torch.float64, 8, 8), (torch.float32, 4, 4), (torch.bfloat16, 2, 4)):
        for alpha, width in ((1.5, 67), (1.0, 4)):
            said += _word_loss(size, dtype, alpha, b, wide, width)
    return said


def _word_loss(size, dtype, alpha, b, wide, width):
    n, d = 32, 16
    h = placed((torch.randn(n, d) * 3).to(dtype), mesh_of(size), [Replicate()], True)
    w = placed(torch.randn(900, d).to(dtype), mesh_of(size), [Shard(0)], True)
    y = placed(torch.randint(900, (n,)), mesh_of(size), [Replicate()])
    expected = [("all-reduce", 4 * n * wide), ("all-gather", width * n * wide)]
    call = pm.linear_entmax_loss
    said, loss = _said(f"words {alpha} {dtype}", lambda: call(h, w, y, alpha=alpha, reduction="sum"), expected)
    return said + _said(f"its gradient {dtype}", lambda: loss.backward(), [("all-reduce", n * d * b)])[0]


def _attention(size):
    """Sequence-parallel attention, attention over sharded keys, and attention by heads."""
    h, m, d, b = 3, 5, 8, 8
    q, k, v = (torch.randn(1, h, m, d, dtype=torch.float64).requires_grad_() for _ in range(3))
    expected = [("all-gather", 32), ("all-gather", 2 * h * m * d * b)]
    call = pm.distributed.sequence_parallel_attention
    said, out = _said("sequence", lambda: call(q, k, v, mapping=pm.entmax), expected)
    # gloo has no reduction that scatters
    expected = [("all-reduce", size * 2 * h * m * d * b)]
    said += _said("its gradient", lambda: out.sum().backward(), expected)[0]
    rows = h
    one = torch.randn(1, h, 1, d, dtype=torch.float64)
    call = pm.distributed.sharded_keys_attention
    expected = [("all-reduce", 4 * rows * b), ("all-gather", 65 * rows * b), ("all-reduce", rows * d * b)]
    said += _said("decoding", lambda: call(one, k.detach(), v.detach(), mapping=pm.entmax), expected)[0]
    whole = [placed(t.repeat(1, size, 1, 1), mesh_of(size), [Shard(1)]) for t in (q, k, v)]
    return said + _said("heads", lambda: pm.nn.scaled_dot_product_attention(*whole, mapping=pm.entmax), [])[0]


def _plans(size):
    """Tensor parallelism of an attention: an all-reduce of the output, and one of the gradient of the input."""
    from torch.distributed.tensor.parallel import parallelize_module

    n, tokens, d, b = 2, 5, 8, 4
    module = pm.nn.MultiheadAttention(d, 4, batch_first=True, bias=False, mapping=pm.entmax)
    parallelize_module(module, mesh_of(size), pm.distributed.attention_plan())
    x = torch.randn(n, tokens, d).requires_grad_()
    expected = [("all-reduce", n * tokens * d * b)]
    said, out = _said("a plan", lambda: module(x, x, x, need_weights=False)[0], expected)
    return said + _said("gradient of a plan", lambda: out.sum().backward(), expected)[0]
