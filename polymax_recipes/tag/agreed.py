"""The best tags that keep rules: exactly if the rules need few counters, else by a factor graph and its relaxation.

If the relaxation leaves tags between 0 and 1, the tag with the largest value is set to 1, and the relaxation is solved
again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import polymax as pm
from polymax.factors.infeasible import Infeasible
from polymax_recipes.tag.automaton import LARGEST, exact_tags, size_of
from polymax_recipes.tag.rules import Rule


class Unkept(ValueError):
    """The error of a text for which no tags keep all rules."""


@torch.no_grad()
def agreed_tags(rules: Sequence[Rule], unary: list[Tensor], transition: Tensor) -> list[Tensor]:
    """Return the tags (n,) of the sentences of a document that keep all rules; Unkept names rules that cannot be kept.

    Shapes: unary (n, s) of each sentence; transition (s, s)

    Example:
        >>> rules = [Rule("at most", (1,), count=1, document=True)]
        >>> unary = [torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([[0.0, 0.5]])]
        >>> [tags.tolist() for tags in agreed_tags(rules, unary, torch.zeros(2, 2))]
        [[0, 1], [0]]
    """
    sizes = [len(scores) for scores in unary]
    if size_of(rules, sizes, len(transition)) <= LARGEST:
        given = [scores.double().cpu().numpy() for scores in unary], transition.double().cpu().numpy()
        exact = exact_tags(rules, *given)
        if exact is None:
            raise _unkept_error(_conflicting_rules(rules, *given), sizes)
        return [torch.from_numpy(tags) for tags in exact]
    return relaxed_tags(rules, unary, transition)


def _conflicting_rules(rules: Sequence[Rule], *scores: Any) -> Sequence[Rule]:
    """Return a minimal set of rules that cannot be kept together."""
    kept = list(rules)
    for rule in rules:
        others = [other for other in kept if other is not rule]
        if exact_tags(others, *scores) is None:
            kept = others
    return kept


def _unkept_error(rules: Sequence[Rule], sizes: list[int]) -> Unkept:
    what = "; ".join(f"{rule.where}: '{rule.text}'" for rule in rules) or "the rules of the scheme"
    return Unkept(f"{what} cannot be kept by a text of {len(sizes)} sentences and {sum(sizes)} tokens")


@torch.no_grad()
def relaxed_tags(rules: Sequence[Rule], unary: list[Tensor], transition: Tensor) -> list[Tensor]:
    """Return the tags of `agreed_tags`, found by a factor graph of chains and logic that must agree."""
    tags = transition.shape[0]
    sizes = [len(scores) for scores in unary]
    longest = max(sizes)
    starts = torch.tensor([0, *sizes]).cumsum(0) * tags
    factors: list[object] = []
    places = []
    for n, start in zip(sizes, starts.tolist()):
        at = torch.full((longest, tags), -2)
        at[:n] = start + torch.arange(n * tags).reshape(n, tags)
        factors.append(pm.Factor(pm.Chain(torch.tensor(n)), at))
        places.append(at[:n])
    owners, count = _logic(rules, places, factors, int(starts[-1]))
    graph = pm.FactorGraph(count, factors)
    # scores of tags, -inf for tags that a scheme forbids; the variables added by rules have score 0
    scores = torch.cat([*(t.double().flatten() for t in unary), transition.new_zeros(count - int(starts[-1])).double()])
    private = [transition.double().expand(max(longest - 1, 0), tags, tags)] * len(unary)
    try:
        found = _integral(graph, scores, private, sizes, tags)
    except Infeasible as error:
        raise _unkept_error([owners[error.factor]] if error.factor in owners else rules, sizes) from None
    return [t.reshape(-1, tags).argmax(-1) for t in found.split([n * tags for n in sizes])]


def _logic(
    rules: Sequence[Rule], places: list[Tensor], factors: list[object], count: int
) -> tuple[dict[int, Rule], int]:
    """Add the factors of rules to the graph; return the rule of each factor, and the new number of variables."""
    logic = pm.factors
    owners: dict[int, Rule] = {}
    for rule in rules:
        for at in [torch.cat(places)] if rule.document else places:
            left, right = (at[:, list(labels)].flatten() for labels in (rule.left, rule.right))
            wanted = min(rule.count, len(at))
            new: list[object] = []
            if rule.kind in ("at most", "exactly"):
                new.append(logic.budget(left, rule.count))
            if rule.kind in ("at least", "exactly") and wanted:
                new.append(logic.at_least(left, wanted))
            if rule.kind == "implies":
                new.append(logic.or_out(right, count))
                new += [logic.implies(int(one), count) for one in left]
                count += 1
            if rule.kind == "excludes":
                new.append(logic.or_out(left, count))
                new += [logic.implies(count, int(one), negated=[False, True]) for one in right]
                count += 1
            for factor in new:
                owners[len(factors)] = rule
                factors.append(factor)
    return owners, count


def _integral(graph: pm.FactorGraph, scores: Tensor, private: list[Tensor], sizes: list[int], tags: int) -> Tensor:
    """Return a best point of the relaxation with tags 0 or 1; tags in between are set one by one."""
    words = sum(sizes) * tags
    for _ in range(sum(sizes) + 1):
        found = pm.HardMax(graph).solve(scores, *private)
        mu = found.variables[:words].reshape(-1, tags)
        between = torch.where((mu > 1e-6) & (mu < 1 - 1e-6), mu, 0)
        if not bool((between > 0).any()):
            return found.variables[:words]
        word, tag = divmod(int(between.argmax()), tags)
        decided = scores.clone()
        decided[:words].reshape(-1, tags)[word, torch.arange(tags) != tag] = -torch.inf
        if not bool(pm.HardMax(graph).solve(decided, *private).feasible):
            decided = scores.clone()
            decided[word * tags + tag] = -torch.inf
        scores = decided
    return found.variables[:words]
