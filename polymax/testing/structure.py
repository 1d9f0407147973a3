"""The laws that a structure of your own must keep, because the library relies on them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from polymax.hypergraphs.entropy import UnknownOmega
from polymax.losses import perceptron_loss
from polymax.regularizers import Gini, Shannon
from polymax.smoothing import HardMax, LocalMax, Marginals
from polymax.smoothing.sparse_map import SparseMap
from polymax.structures.base import Counted, Sampled, Structure, tensors
from polymax.structures.dynamic import DynamicProgram
from polymax.testing.law import Law, keep

Shape = tuple[int, ...]


def check_structure(structure: Structure, *shapes: Shape, seed: int = 0) -> None:
    """Check the laws of a structure on random scores; AssertionError names the first broken one.

    The structure must have `vertices`, which only these checks need.

    `shapes` are those of its score tensors, for one instance, small enough that `vertices` can list all structures.
    The laws are those of `laws`.

    Example:
        >>> from polymax import Chain
        >>> check_structure(Chain(), (3, 2), (2, 2))
    """
    keep(laws(structure, [shapes], seed=seed))


def laws(
    structure: Structure,
    shapes: Sequence[Any],
    recursion: Callable[..., Tensor] | None = None,
    *,
    seed: int = 0,
) -> list[Law]:
    """The laws of a structure, as tests to be called, for each of the shapes.

    Each shape is that of the scores of one instance, (n, m), or a tuple of the shapes of all score tensors,
    ((n, s), (s, s)); small enough that `vertices` can list all structures. After the first tensor, a matrix is shared
    by all instances. `recursion(maximum, *scores)` is the value of a dynamic program by plain loops, in which
    `maximum(a)` is taken along the last dim.

    Laws of abilities that the structure does not have are left out: sums of `Counted`, draws and the k best of
    `Sampled`, smoothed recursions of `DynamicProgram`.

    Example:
        >>> for law in pm.testing.laws(pm.Chain(), [((3, 2), (2, 2))]):
        ...     law()

        In a test file:

            @pytest.mark.parametrize("law", pm.testing.laws(MySet(), [(3, 3), (4, 4)]))
            def test_my_set(law):
                law()
    """
    found = []
    for shape in shapes:
        events = tuple(shape) if not shape or not isinstance(shape[0], int) else (tuple(shape),)
        case = _Case(tuple(tuple(s) for s in events), seed, recursion)
        where = "x".join(map(str, case.events[0])) if len(shapes) > 1 else ""
        found += [Law(structure, check, (case,), where) for kind, check in _LAWS if isinstance(structure, kind)]
        if recursion is not None and isinstance(structure, DynamicProgram):
            found.append(Law(structure, _value_is_the_recursion, (case,), where))
    return found


class _Case(NamedTuple):
    """The shapes of the score tensors of one instance, a seed, and the recursion by plain loops."""

    events: tuple[Shape, ...]
    seed: int
    recursion: Callable[..., Tensor] | None

    def scores(self, scale: float = 1.0, batch: int = 3) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(self.seed)
        return tuple(
            scale * torch.randn(*(() if k and len(s) == 2 else (batch,)), *s, generator=generator, dtype=torch.float64)
            for k, s in enumerate(self.events)
        )


def _all_structures(structure: Structure, scores: tuple[Tensor, ...], shape: Shape) -> tuple[Tensor, Tensor]:
    """First tensors of all structures (count, ...), and their scores (count, batch)."""
    first = tensors(structure.vertices(shape))[0].double()
    batch = scores[0].shape[0]
    spread = first.unsqueeze(1).expand(first.shape[0], batch, *first.shape[1:])
    return first, structure.score(structure.complete(spread), *scores)


def _no_vertex(structure: Structure, y: Any, shape: Shape) -> str | None:
    """The error message if one of the structures (batch, ...) is not in the list of vertices, else None."""
    first, y = tensors(structure.vertices(shape))[0].double(), tensors(y)[0].double()
    for b in range(y.shape[0]):
        if not bool((first == y[b]).flatten(1).all(1).any()):
            return f"instance {b} is no vertex: {y[b].tolist()}"
    return None


def _structures_are_listed_once(structure: Structure, case: _Case) -> str | None:
    """The vertices differ from each other."""
    first = tensors(structure.vertices(case.events[0]))[0].flatten(1)
    if len(first.unique(dim=0)) != len(first):
        return f"{len(first)} are listed, and {len(first.unique(dim=0))} differ"
    return None


def _map_is_the_best_vertex(structure: Structure, case: _Case) -> str | None:
    """map is the vertex with the highest score."""
    scores = case.scores()
    _, values = _all_structures(structure, scores, case.events[0])
    problem = _no_vertex(structure, structure.map(*scores), case.events[0])
    return problem or _apart(structure.best_score(*scores), values.amax(0))


def _map_is_a_vertex_at_ties(structure: Structure, case: _Case) -> str | None:
    """If several structures are best, map must return a vertex, not their mean, and the same vertex at each call."""
    scores = case.scores(2.0)
    for given in (tuple(torch.zeros_like(x) for x in scores), tuple(x.round() for x in scores)):
        once, again = (tensors(structure.map(*given)) for _ in range(2))
        if not all(torch.equal(a, b) for a, b in zip(once, again, strict=True)):
            return "two calls differ"
        problem = _no_vertex(structure, structure.map(*given), case.events[0])
        _, values = _all_structures(structure, given, case.events[0])
        problem = problem or _apart(structure.best_score(*given), values.amax(0))
        if problem:
            return problem
    return None


def _instances_are_independent(structure: Structure, case: _Case) -> str | None:
    """An instance has the same result alone as in a batch, and an empty batch has an empty result."""
    scores = case.scores()
    whole = [tensors(structure.map(*scores))]
    whole += [(SparseMap(structure).max(*scores),)]
    if isinstance(structure, Counted):
        whole += [tensors(structure.marginals(*scores))]
    for b in range(scores[0].shape[0]):
        one = tuple(x[b : b + 1] if k == 0 or len(case.events[k]) != 2 else x for k, x in enumerate(scores))
        alone = [tensors(structure.map(*one)), (SparseMap(structure).max(*one),)]
        alone += [tensors(structure.marginals(*one))] if isinstance(structure, Counted) else []
        for together, single in zip(whole, alone, strict=True):
            for x, y in zip(together, single, strict=True):
                if problem := _apart(y[0], x[b]):
                    return f"instance {b}: {problem}"
    none = tuple(x[:0] if k == 0 or len(case.events[k]) != 2 else x for k, x in enumerate(scores))
    if tensors(structure.map(*none))[0].shape != none[0].shape:
        return f"map of {tuple(none[0].shape)} is {tuple(tensors(structure.map(*none))[0].shape)}"
    return None


def _scores_keep_their_dtype(structure: Structure, case: _Case) -> str | None:
    """map has the dtype of the scores, and does not change them."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        scores = tuple(x.to(dtype) for x in case.scores())
        before = tuple(x.clone() for x in scores)
        y = tensors(structure.map(*scores))[0]
        if y.dtype != dtype:
            return f"{dtype} became {y.dtype}"
        if not all(torch.equal(a, b) for a, b in zip(scores, before, strict=True)):
            return "scores were written to"
        if problem := _no_vertex(structure, y, case.events[0]):
            return f"{dtype}: {problem}"
    return None


def _large_scores(structure: Structure, case: _Case) -> str | None:
    """map is best for scores of 1e4, and so are marginals, for they are map there."""
    scores = case.scores(1e4)
    _, values = _all_structures(structure, scores, case.events[0])
    if problem := _apart(structure.best_score(*scores), values.amax(0)):
        return problem
    if isinstance(structure, Counted):
        mu = tensors(structure.marginals(*scores))[0]
        expected = values.softmax(0)
        first = tensors(structure.vertices(case.events[0]))[0].double()
        return _apart(mu, torch.einsum("kb,k...->b...", expected, first))
    return None


def _forbidden_parts(structure: Structure, case: _Case) -> str | None:
    """A part of score -inf is not used; if all parts are forbidden, best_score is -inf and map is 0."""
    scores = case.scores()
    y = tensors(structure.map(*scores))[0]
    used = (y[0] != 0).nonzero()
    if not len(used):
        return None
    first = scores[0].clone()
    first[0][tuple(used[0].tolist())] = -torch.inf
    _, values = _all_structures(structure, (first, *scores[1:]), case.events[0])
    moved = tensors(structure.map(first, *scores[1:]))[0]
    if float(values[:, 0].max()) > -torch.inf and float(moved[0][tuple(used[0].tolist())]) != 0:
        return f"part {tuple(used[0].tolist())} is used"
    if problem := _apart(structure.best_score(first, *scores[1:]), values.amax(0)):
        return problem
    if not structure.may_be_empty:
        dead = scores[0].clone()
        dead[1] = -torch.inf
        value, moved = structure.best_score(dead, *scores[1:]), tensors(structure.map(dead, *scores[1:]))[0]
        # a ranking has numbers, not parts
        plain = bool((tensors(structure.vertices(case.events[0]))[0] <= 1).all())
        if float(value[1]) != -torch.inf or (plain and bool((moved[1] != 0).any())):
            return f"all is forbidden: the value is {float(value[1])}, map {moved[1].tolist()}"
        return _apart(value[0], structure.best_score(*scores)[0])
    return None


def _nan_stays_in_its_instance(structure: Structure, case: _Case) -> str | None:
    """A score of NaN shows in the value of its instance, and in no other one."""
    scores = case.scores()
    used = (tensors(structure.map(*scores))[0][0] != 0).nonzero()
    if not len(used):
        return None
    first = scores[0].clone()
    first[0][tuple(used[0].tolist())] = torch.nan
    y, value = tensors(structure.map(first, *scores[1:]))[0], structure.best_score(first, *scores[1:])
    if not bool(value[0].isnan()):
        return f"the value is {float(value[0])}, map {y[0].tolist()}"
    return _apart(y[1:], tensors(structure.map(*scores))[0][1:]) or _apart(value[1:], structure.best_score(*scores)[1:])


def _compact_form_is_the_structure(structure: Structure, case: _Case) -> str | None:
    """Losses take every structure, by its compact form and as indicators, and are 0 at the best one."""
    first = tensors(structure.vertices(case.events[0]))[0].double()[:50]
    scores = case.scores(batch=len(first))
    y = structure.complete(first)
    by_parts = perceptron_loss(structure, scores, y, reduction="none")
    by_index = perceptron_loss(structure, scores, structure.decode(y), reduction="none")
    if problem := _apart(by_index, by_parts):
        return problem
    if not bool((by_parts >= -1e-9).all()):
        return f"a loss is {float(by_parts.min())}"
    best = perceptron_loss(structure, scores, structure.decode(structure.map(*scores)), reduction="none")
    return _apart(best, torch.zeros_like(best))


def _sparse_map_is_optimal(structure: Structure, case: _Case) -> str | None:
    """No structure improves on the mean that SparseMap finds."""
    scores = case.scores()
    first, values = _all_structures(structure, scores, case.events[0])
    found = SparseMap(structure).distribution(*scores)
    mu = tensors(found.mean)[0].flatten(1)
    gains = values - first.flatten(1) @ mu.T
    current = structure.score(found.mean, *scores) - mu.square().sum(-1)
    gap = float((gains.amax(0) - current).max())
    return f"one does, by {gap:g}" if gap > 1e-9 * (1 + float(values.abs().max())) else None


def _sparse_map_derivatives(structure: Structure, case: _Case) -> str | None:
    """The derivatives of SparseMap are those of finite differences."""
    inputs = tuple(x.clone().requires_grad_() for x in case.scores())
    smooth = SparseMap(structure)
    gradcheck(smooth.max, inputs, atol=1e-5, fast_mode=True)
    gradgradcheck(smooth.max, inputs, atol=1e-5, fast_mode=True)
    return None


def _sums_count_each_structure_once(structure: Counted, case: _Case) -> str | None:
    """logsumexp is the log of the sum over all structures: a recursion derives each of them once."""
    scores = case.scores()
    _, values = _all_structures(structure, scores, case.events[0])
    zeros = tuple(torch.zeros_like(x) for x in scores)
    counted = structure.logsumexp(*zeros)[0].exp()
    if problem := _apart(counted, counted.new_tensor(float(len(values)))):
        return f"{float(counted):g} structures are counted, and there are {len(values)}"
    return _apart(structure.logsumexp(*scores), values.logsumexp(0)) or problem


def _marginals_are_the_mean(structure: Counted, case: _Case) -> str | None:
    """Marginals are the mean of all structures under p(y) = exp(<scores, y>) / Z; derivatives by finite differences."""
    scores = case.scores()
    _, values = _all_structures(structure, scores, case.events[0])
    vertices = [t.double() for t in tensors(structure.vertices(case.events[0]))]
    for mu, v in zip(tensors(structure.marginals(*scores)), vertices, strict=True):
        if problem := _apart(mu, torch.einsum("kb,k...->b...", values.softmax(0), v)):
            return problem
    inputs = tuple(x.clone().requires_grad_() for x in scores)
    gradcheck(Marginals(structure).max, inputs, atol=1e-5, fast_mode=True)
    gradgradcheck(Marginals(structure).max, inputs, atol=1e-5, fast_mode=True)
    return None


def _omega_is_minus_the_entropy(structure: Counted, case: _Case) -> str | None:
    """Omega of Marginals is 0 at structures, and minus the entropy at marginals, or refused there."""
    scores = case.scores()
    smooth = Marginals(structure)
    y = structure.map(*scores)
    if problem := _apart(smooth.omega(y), torch.zeros_like(smooth.omega(y))):
        return f"at structures: {problem}"
    _, values = _all_structures(structure, scores, case.events[0])
    try:
        omega = smooth.omega(structure.marginals(*scores))
    except UnknownOmega:
        return None
    return _apart(omega, torch.special.entr(values.softmax(0)).sum(0).neg())


def _the_k_best_are_in_order(structure: Sampled, case: _Case) -> str | None:
    """kbest lists different structures by their scores, best first; draws are structures."""
    scores = case.scores()
    _, values = _all_structures(structure, scores, case.events[0])
    k = min(3, len(values))
    best, found = structure.kbest(scores, k)
    if problem := _apart(found, values.T.topk(k).values):
        return problem
    lead = tensors(best)[0].movedim(tensors(best)[0].dim() - 1 - structure.event_dims(*scores)[0], 0)
    for y in lead:
        if problem := _no_vertex(structure, y, case.events[0]):
            return problem
    y = tensors(Marginals(structure).distribution(*scores).sample(generator=torch.Generator().manual_seed(case.seed)))
    return _no_vertex(structure, y, case.events[0])


def _smoothed_recursions(structure: DynamicProgram, case: _Case) -> str | None:
    """Smoothed by Shannon every maximum is that of Marginals, and by Gini the gradient of max is argmax."""
    scores = case.scores()
    if problem := _apart(LocalMax(structure, Shannon()).max(*scores), structure.logsumexp(*scores)):
        return problem
    sparse = LocalMax(structure, Gini())
    full = tuple(x.clone().requires_grad_() for x in structure.full(*scores))
    slopes = torch.autograd.grad(sparse.max(*full).sum(), full, materialize_grads=True)
    for mu, g in zip(tensors(sparse(*scores)), slopes, strict=True):
        if problem := _apart(mu, g):
            return problem
    if problem := _apart(HardMax(structure).max(*scores), structure.best_score(*scores)):
        return problem
    return None


def _value_is_the_recursion(structure: DynamicProgram, case: _Case) -> str | None:
    """The value, smoothed or not, is that of the recursion by plain loops."""
    assert case.recursion is not None
    scores = case.scores()
    for omega in (Shannon(), Gini()):
        expected = case.recursion(lambda a, omega=omega: omega.max(a), *scores)
        if problem := _apart(LocalMax(structure, omega).max(*scores), expected):
            return f"with {type(omega).__name__}: {problem}"
    return _apart(structure.best_score(*scores), case.recursion(lambda a: a.amax(-1), *scores))


_LAWS: tuple[tuple[type[Structure], Callable[..., str | None]], ...] = (
    (Structure, _structures_are_listed_once),
    (Structure, _map_is_the_best_vertex),
    (Structure, _map_is_a_vertex_at_ties),
    (Structure, _scores_keep_their_dtype),
    (Structure, _instances_are_independent),
    (Structure, _large_scores),
    (Structure, _forbidden_parts),
    (Structure, _nan_stays_in_its_instance),
    (Structure, _compact_form_is_the_structure),
    (Structure, _sparse_map_is_optimal),
    (Structure, _sparse_map_derivatives),
    (Counted, _sums_count_each_structure_once),
    (Counted, _marginals_are_the_mean),
    (Counted, _omega_is_minus_the_entropy),
    (Sampled, _the_k_best_are_in_order),
    (DynamicProgram, _smoothed_recursions),
)


def _apart(actual: Tensor, expected: Tensor) -> str | None:
    """The difference of two results in words; None if they agree to a relative 1e-9, or 1e-4 in float32."""
    tolerance = 1e-4 if actual.dtype.itemsize <= 4 else 1e-9
    if torch.allclose(actual, expected.to(actual), rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    return f"{actual.tolist()} is not {expected.tolist()}"
