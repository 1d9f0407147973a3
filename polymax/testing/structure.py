"""Does a structure of your own keep the laws that the rest of the library relies on?"""

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from polymax.smoothing.sparse_map import SparseMap
from polymax.structures.base import Structure, tensors


def check_structure(structure: Structure, *shapes: tuple[int, ...], seed: int = 0) -> None:
    """Check the laws of a structure on random scores; AssertionError names the first broken one.

    The structure must have `vertices`, which nothing else needs.

    `shapes` are those of its score tensors, for one instance, small enough that `vertices` can list all structures.
    The laws: `map` is one of the vertices, the best, the same at each call, for each instance of a batch; its score is
    `best_score`; SparseMap is optimal among all means of vertices, and its first and second derivatives are those of
    finite differences.

    Example:
        >>> from polymax import Chain
        >>> check_structure(Chain(), (3, 2), (2, 2))
    """
    structure.vertices(shapes[0])
    generator = torch.Generator().manual_seed(seed)
    scores = tuple(torch.randn(3, *s, generator=generator, dtype=torch.float64) for s in shapes)
    # one transition matrix for all instances
    scores = tuple(x if k == 0 or len(shapes[k]) != 2 else x[0] for k, x in enumerate(scores))
    for law in _LAWS:
        name = (law.__doc__ or "").rstrip(".")
        try:
            broken = law(structure, scores, shapes[0])
        except Exception as error:
            raise AssertionError(f"{structure} breaks a law: {name}; {error}") from error
        if broken is not None:
            raise AssertionError(f"{structure} breaks a law: {name}; {broken}")


def _all_structures(structure: Structure, scores: tuple[Tensor, ...], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """First tensors of all structures (count, ...), and their scores (count, batch)."""
    first = tensors(structure.vertices(shape))[0].double()
    batch = scores[0].shape[0]
    spread = first.unsqueeze(1).expand(first.shape[0], batch, *first.shape[1:])
    return first, structure.score(structure.complete(spread), *scores)


def _best_vertex(structure: Structure, scores: tuple[Tensor, ...], shape: tuple[int, ...]) -> str | None:
    """map is the vertex with the highest score."""
    first, values = _all_structures(structure, scores, shape)
    y = tensors(structure.map(*scores))[0]
    for b in range(y.shape[0]):
        if not bool((first == y[b]).flatten(1).all(1).any()):
            return f"instance {b} is no vertex: {y[b].tolist()}"
    came = structure.best_score(*scores)
    if not torch.allclose(came, values.amax(0), atol=1e-9):
        return f"it scores {came.tolist()}, the best {values.amax(0).tolist()}"
    return None


def _same_again(structure: Structure, scores: tuple[Tensor, ...], shape: tuple[int, ...]) -> str | None:
    """map is the same at each call, also where all are equally good."""
    zeros = tuple(torch.zeros_like(x) for x in scores)
    for given in (scores, zeros):
        once, again = (tensors(structure.map(*given)) for _ in range(2))
        if not all(torch.equal(a, b) for a, b in zip(once, again, strict=True)):
            return "two calls differ"
    return None


def _optimal(structure: Structure, scores: tuple[Tensor, ...], shape: tuple[int, ...]) -> str | None:
    """No structure improves on the mean that SparseMap finds."""
    first, values = _all_structures(structure, scores, shape)
    found = SparseMap(structure).distribution(*scores)
    mu = tensors(found.mean)[0].flatten(1)
    gains = values - first.flatten(1) @ mu.T
    current = structure.score(found.mean, *scores) - mu.square().sum(-1)
    gap = float((gains.amax(0) - current).max())
    return f"one does, by {gap:g}" if gap > 1e-9 * (1 + float(values.abs().max())) else None


def _derivatives(structure: Structure, scores: tuple[Tensor, ...], shape: tuple[int, ...]) -> str | None:
    """The derivatives of SparseMap are those of finite differences."""
    inputs = tuple(x.clone().requires_grad_() for x in scores)
    smooth = SparseMap(structure)
    gradcheck(smooth.max, inputs, atol=1e-5, fast_mode=True)
    gradgradcheck(smooth.max, inputs, atol=1e-5, fast_mode=True)
    return None


_LAWS = (_best_vertex, _same_again, _optimal, _derivatives)
