"""Attention whose heads are on several processes: DTensors, and the plan of tensor parallelism."""

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

import polymax as pm
from tests.distributed.checks import EXACT, differences, mesh_of, placed

HEADS, TOKENS, SIZE = 4, 5, 8


def attention():
    """Batches and heads that are sharded, with masks, sinks, shared keys and a learned alpha."""
    said = []
    alpha = torch.tensor([1.2, 1.4, 1.6, 1.8], dtype=torch.float64)[:, None, None]
    for shape, places in (((4,), [Shard(0)]), ((4,), [Shard(1)]), ((2, 2), [Shard(0), Shard(1)]), ((4,), [Shard(-3)])):
        mesh = mesh_of(*shape)
        for key_heads, sinks, masked, mapping in (
            (HEADS, False, False, pm.entmax),
            (HEADS, True, True, pm.softmax),
            (1, False, False, partial(pm.entmax, alpha=1.3)),
            (HEADS, True, False, "alpha"),
            (HEADS, False, True, pm.nn.AdaptiveEntmax(HEADS).double()),
            # a mask of each sentence and head is cut as the queries are
            (HEADS, False, "each", pm.sparsemax),
        ):
            said += _attended(mesh, places, key_heads, sinks, masked, mapping, alpha)
    return said


def _attended(mesh, places, key_heads, sinks, masked, mapping, alpha):
    whole = [Replicate()] * mesh.ndim
    q = torch.randn(4, HEADS, TOKENS, SIZE, dtype=torch.float64)
    k, v = (torch.randn(4, key_heads, TOKENS, SIZE, dtype=torch.float64) for _ in range(2))
    # a head that all queries share cannot be divided
    of_keys = [Replicate() if key_heads == 1 and p.dim in (1, -3) else p for p in places]
    given = [q, k, v, *([torch.randn(HEADS, dtype=torch.float64)] if sinks else [])]
    placements = [places, of_keys, of_keys, whole]
    if mapping == "alpha":
        given, placements = [*given, alpha], [*placements[: len(given)], whole]
    leaves = [t.clone().requires_grad_() for t in given]
    parts = [placed(t, mesh, p, True) for t, p in zip(given, placements)]
    of_mask = (4, HEADS, TOKENS, TOKENS) if masked == "each" else (TOKENS, TOKENS)
    mask = torch.rand(of_mask) > 0.3 if masked else None
    results = []
    for tensors, at in ((leaves, lambda t: t), (parts, lambda t: placed(t, mesh, whole))):
        options = {"is_causal": True, "enable_gqa": key_heads != HEADS, "mapping": mapping}
        if sinks:
            options["sinks"] = tensors[3]
        if mapping == "alpha":
            options["mapping"] = partial(pm.entmax, alpha=tensors[-1])
        if isinstance(mapping, nn.Module):
            options["mapping"] = own = copy.deepcopy(mapping)
            own.logits = nn.Parameter(at(own.logits.detach()))
            tensors = [*tensors, own.logits]
        kept = None if mask is None else at(mask)
        out = pm.nn.scaled_dot_product_attention(*tensors[:3], kept, **options)
        weights = pm.nn.attention_weights(*tensors[:2], kept, **options)
        total = out.square().sum() + weights.square().sum()
        results.append([out, weights, *torch.autograd.grad(total, tensors)])
    return differences(f"{places} {key_heads} {sinks} {masked} {mapping}", results[1], results[0])


MODULES = {
    "entmax": lambda: {"mapping": "entmax"},
    "an alpha for each head": lambda: {"mapping": pm.nn.AdaptiveEntmax(HEADS)},
    "an alpha for all heads": lambda: {"mapping": pm.nn.AdaptiveEntmax(1)},
    "scaling": lambda: {"mapping": pm.nn.LengthScaling(HEADS, pm.nn.AdaptiveEntmax(HEADS))},
    "bias of keys": lambda: {"mapping": pm.sparsemax, "add_bias_kv": True},
    "matrices apart": lambda: {"mapping": pm.sparsemax, "bias": False, "kdim": SIZE, "vdim": SIZE},
}


def plans():
    """MultiheadAttention by `attention_plan`: outputs, weights, all gradients, and the state_dict of one process."""
    said, x = [], torch.randn(3, TOKENS, SIZE, dtype=torch.float64)
    for name, make in MODULES.items():
        for first in (True, False):
            torch.manual_seed(5)
            whole = pm.nn.MultiheadAttention(SIZE, HEADS, batch_first=first, **make()).double()
            split = copy.deepcopy(whole)
            parallelize_module(split, mesh_of(dist.get_world_size()), pm.distributed.attention_plan())
            lengths = x.shape[1::-1] if not first else x.shape[:2]
            padding = torch.arange(lengths[1]).expand(lengths) >= lengths[1] - 1
            for options in ({"is_causal": True}, {"key_padding_mask": padding}, {"need_weights": False}):
                results = [_results(module, x, options) for module in (whole, split)]
                for key, expected in results[0].items():
                    if not torch.allclose(results[1][key], expected, rtol=EXACT, atol=EXACT):
                        said.append(f"{name} {first} {list(options)}: {key}")
            again = copy.deepcopy(whole)
            again.load_state_dict({key: t.full_tensor() for key, t in split.state_dict().items()})
            if any(not torch.equal(a, b) for a, b in zip(again.state_dict().values(), whole.state_dict().values())):
                said.append(f"{name}: another state_dict")
    for wrong, sentence in (
        (pm.nn.MultiheadAttention(9, 3), "num_heads must be divisible by"),
        (nn.Linear(3, 3), "attention_plan is for pm.nn.MultiheadAttention"),
    ):
        try:
            parallelize_module(wrong, mesh_of(dist.get_world_size()), pm.distributed.attention_plan())
            said.append(f"no error: {sentence}")
        except (TypeError, ValueError) as error:
            said += [] if sentence in str(error) else [f"another error: {error}"]
    return said


def _results(module, x, options):
    """The output, the weights and all gradients of a module, by name; the three matrices as one."""
    module.zero_grad()
    given = x.clone().requires_grad_()
    out, weights = module(given, given, given, **options)
    total = out.square().sum() + (0 if weights is None else weights.square().sum())
    total.backward()
    found = {name: p.grad for name, p in module.named_parameters()}
    found = {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in found.items()}
    if "q_proj_weight" in found:
        found["in_proj_weight"] = torch.cat([found.pop(f"{name}_proj_weight") for name in "qkv"])
    more = {} if weights is None else {"weights": weights.detach()}
    return {"out": out.detach(), "inputs": given.grad, **found, **more}
