"""The trees of a trained model: found on data, compared with others, and written."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import polymax as pm
from polymax.nn import tree_spans
from polymax_recipes.latent.classifier import Classifier, Read
from polymax_recipes.latent.data import Examples, Spans
from polymax_recipes.metrics import AttachmentScore, TreeF1
from polymax_recipes.metrics.counts import share
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import to_device
from polymax_recipes.training.task import Report

# entries of the n by n tables of all sentences that are parsed together, at most
LARGEST = 2**24
SHAPES = {"left": pm.nn.left_branching, "right": pm.nn.right_branching, "balanced": pm.nn.balanced}


class Found(NamedTuple):
    """Label scores (count, labels) of examples, and the tree of each sentence.

    `spans` or `heads` is empty if the model has no such trees; `probability` is the probability of all actions of the
    parser, empty without a parser. `chosen` are the places of the words of rationales.
    """

    scores: Tensor
    spans: list[Spans]
    heads: list[tuple[int, ...]]
    probability: list[float]
    chosen: Sequence[tuple[int, ...]] = ()


@torch.no_grad()
def find_trees(model: Classifier, data: Examples, batch_size: int) -> Found:
    """The best trees of all sentences, and scores of labels, in the order of the data."""
    batches = [part for rows in sorted_batches(data.sizes, batch_size) for part in _fewer(data.sizes, rows)]
    scores: list[Tensor] = []
    # spans, heads, probabilities and chosen words: a list of each, with an entry for each example
    columns: tuple[list[Any], ...] = ([], [], [], [])
    for rows in batches:
        judged, read = model(to_device(data[rows], model))
        scores.append(judged.cpu())
        for column, values in zip(columns, _trees_as_lists(read)):
            column += [values[k : k + data.sides] for k in range(0, len(values), data.sides)]
    order = places(batches)
    sides = ([side for k in order.tolist() for side in column[k]] if column else [] for column in columns)
    return Found(torch.cat(scores)[order], *sides)


def _fewer(sizes: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """Parts of a batch that fit into memory: the memory of a parser grows with the square of the length."""
    return rows.split(max(1, LARGEST // int(sizes[rows].max()) ** 2))


def _trees_as_lists(read: Read) -> tuple[list[Any], ...]:
    spans = spans_of(read.transitions) if read.transitions is not None else []
    heads = [tuple(h for h in row if h >= 0) for row in read.heads.tolist()] if read.heads is not None else []
    chosen = (
        [tuple(i for i, w in enumerate(row) if w) for row in read.chosen.tolist()] if read.chosen is not None else []
    )
    return spans, heads, read.log_prob.exp().tolist() if read.log_prob is not None else [], chosen


def spans_of(transitions: Tensor) -> list[Spans]:
    """The spans of more than one token of trees (count, T).

    Example:
        >>> spans_of(pm.nn.left_branching(torch.tensor([3, 1])))
        [((0, 1), (0, 2)), ()]
    """
    every = tree_spans(transitions).tolist() if transitions.shape[1] else [[]] * len(transitions)
    return [tuple((first, last) for first, last in row if first < last) for row in every]


def binary_measures(trees: Sequence[Spans], gold: Sequence[Spans] | None, lengths: Tensor) -> Report:
    """Mean F1 over sentences against gold trees and trees of known shape, and mean depth.

    The span of the whole sentence counts, as in Williams et al. 2018; sentences of one token are left out.
    """
    others = {name: spans_of(shape(lengths)) for name, shape in SHAPES.items()}
    report: Report = {}
    for name, other in (({"gold": gold} if gold is not None else {}) | others).items():
        f1 = TreeF1()
        f1.add(other, trees)
        report[f"f1_{name}"] = f1.result().sentence
    return {**report, "depth": share(sum(map(depth, trees)), len(trees))}


def head_measures(trees: Sequence[tuple[int, ...]], gold: Sequence[tuple[int, ...]] | None) -> Report:
    """Return the shares of tokens with the head of the gold tree, and of tokens that hang from the previous or the
    next token.
    """
    others = {"left": [tuple(range(len(t))) for t in trees], "right": [(*range(2, len(t) + 1), 0) for t in trees]}
    report = {f"uas_{name}": uas(o, trees) for name, o in (({"gold": gold} if gold else {}) | others).items()}
    return {**report, "depth": share(sum(map(head_depth, trees)), len(trees))}


def uas(gold: Sequence[tuple[int, ...]], trees: Sequence[tuple[int, ...]]) -> float:
    """Return the share of tokens with equal heads."""
    none = [[""] * len(t) for t in trees]
    score = AttachmentScore()
    score.add(gold, trees, none, none)
    return score.result().uas


def depth(spans: Spans) -> int:
    """Return the number of spans around the deepest token.

    Example:
        >>> depth(((0, 1), (0, 2))), depth(())
        (2, 0)
    """
    change: dict[int, int] = {}
    for first, last in spans:
        change[first] = change.get(first, 0) + 1
        change[last + 1] = change.get(last + 1, 0) - 1
    deepest = now = 0
    for place in sorted(change):
        now += change[place]
        deepest = max(deepest, now)
    return deepest


def head_depth(heads: tuple[int, ...]) -> int:
    """Return the number of arcs between the root and the farthest token.

    Example:
        >>> head_depth((2, 0, 2, 3))
        3
    """
    known = {0: 0}
    for token in range(1, len(heads) + 1):
        path = []
        while token not in known:
            path.append(token)
            token = heads[token - 1]
        for k, above in enumerate(reversed(path), 1):
            known[above] = known[token] + k
    return max(known.values())
