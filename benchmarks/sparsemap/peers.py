"""Who else finds the best trees and assignments, and sums over trees; costs are scores negated."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines import JaxFunction, Mapping, Peer, TorchFunction
from benchmarks.sparsemap.oracles import objects
from benchmarks.structures.peers import SLACK


def _finder(name: str, call: Callable[[Any], Mapping], devices: tuple[str, ...] = ("cpu",)) -> Peer:
    return Peer(name, lambda package: TorchFunction(call(package)), devices)


def _supar_heads(package: Any) -> Mapping:
    return lambda scores: package.MatrixTree(scores.mT).argmax[:, 1:]


def _networkx_heads(package: Any) -> Mapping:
    def call(scores: Tensor) -> list[list[int]]:
        # it has no limit on root arcs but their price
        price = scores.shape[-1] * float(scores.max() - scores.min())
        return [heads(each, price) for each in scores.tolist()]

    def heads(scores: list[list[float]], price: float) -> list[int]:
        words = range(1, len(scores))
        graph = package.DiGraph()
        graph.add_weighted_edges_from((0, j, scores[0][j] - price) for j in words)
        graph.add_weighted_edges_from((i, j, scores[i][j]) for i in words for j in words if i != j)
        head = {j: i for i, j in package.maximum_spanning_arborescence(graph).edges}
        return [head[j] for j in words]

    return call


def _torch_struct_trees(package: Any) -> Mapping:
    def call(scores: Tensor) -> Tensor:
        # the scores of roots are on the diagonal
        arcs = scores[:, 1:, 1:].diagonal_scatter(scores[:, 0, 1:], 0, 1, 2)
        return package.NonProjectiveDependencyCRF(arcs, multiroot=False).partition

    return call


def _supar_trees(package: Any) -> Mapping:
    return lambda scores: package.MatrixTree(scores.mT).log_partition


def _synjax_trees(package: Any) -> Mapping:
    options = {"directed": True, "projective": False, "single_root_edge": True}
    return lambda scores: package.SpanningTreeCRF(scores, **options).log_partition()


def _scipy(package: Any) -> Mapping:
    solve = import_module("scipy.optimize").linear_sum_assignment
    return lambda scores: _stacked(solve(each, maximize=True)[1] for each in scores.numpy())


def _scipy_detected(package: Any) -> Mapping:
    solve = import_module("scipy.optimize").linear_sum_assignment

    def call(cost: Tensor) -> Tensor:
        counts = objects(*cost.shape, cost.device)[0].flatten().tolist()
        found = np.full((len(counts), cost.shape[2]), -1)
        for row, each, count in zip(found, cost.flatten(0, 1).numpy(), counts, strict=True):
            row[:count] = solve(each[:count])[1]
        return torch.from_numpy(found.reshape(cost.shape[:3]))

    return call


def _lapjv(package: Any) -> Mapping:
    return lambda scores: _stacked(package.lapjv(each, return_cost=False)[0] for each in -scores.numpy())


def _lapjvs(package: Any) -> Mapping:
    # the fastest of its batched solvers, in as many threads as torch
    def call(scores: Tensor) -> Tensor:
        return _stacked(package.lapjvs_batch(-scores.numpy(), return_cost=False, n_threads=torch.get_num_threads())[1])

    return call


def _torch_linear_assignment(package: Any) -> Mapping:
    return lambda scores: package.batch_linear_assignment(-scores)


def _stacked(columns: Any) -> Tensor:
    return torch.from_numpy(np.stack(list(columns)))


SUPAR_HEADS = _finder("supar.MatrixTree.argmax", _supar_heads)
NETWORKX = _finder("networkx.arborescence", _networkx_heads)
TORCH_STRUCT_TREES = Peer("torch_struct.NonProjective", lambda p: TorchFunction(_torch_struct_trees(p)), slack=SLACK)
SUPAR_TREES = Peer("supar.MatrixTree", lambda p: TorchFunction(_supar_trees(p)), slack=SLACK)
SYNJAX_TREES = Peer("synjax.SpanningTreeCRF", lambda p: JaxFunction(_synjax_trees(p)), ("cpu",), SLACK)
SCIPY = _finder("scipy.linear_sum_assignment", _scipy)
SCIPY_DETECTED = _finder("scipy.linear_sum_assignment", _scipy_detected)
LAPJV = _finder("lap.lapjv", _lapjv)
LAPJVS = _finder("lap.lapjvs_batch", _lapjvs)
TORCH_LINEAR_ASSIGNMENT = _finder("torch_linear_assignment", _torch_linear_assignment, ("cpu", "cuda"))
