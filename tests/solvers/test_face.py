"""The face of a SparseMAP solution: structures of no weight, along which the mean moves all the same."""

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.solvers.loops import reference as lockstep
from polymax.solvers.loops.reference_face import spanned
from polymax.structures.base import tensors


@pytest.mark.parametrize(
    ("structure", "shape"),
    [
        (pm.SpanningTree(), (4, 41, 41)),
        (pm.Assignment(), (4, 40, 40)),
        (pm.Chain(), (4, 30, 12)),
        (pm.SpanTree(), (4, 12, 12)),
    ],
    ids=["trees", "assignments", "chains", "brackets"],
)
def test_directions_of_tiny_weight(structure, shape):
    """The last structures weigh less than rounding, and are directions of mu all the same."""
    x, v, d = torch.randn(3, *shape, dtype=torch.float64)
    more = (torch.randn(shape[-1], shape[-1], dtype=torch.float64),) if isinstance(structure, pm.Chain) else ()
    smooth, h = pm.SparseMap(structure), 1e-6

    def along(z):
        return (tensors(smooth(z, *more))[0] * v).sum((1, 2))

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(along(leaf).sum(), leaf)
    measured = (along(x + h * d) - along(x - h * d)) / (2 * h)
    torch.testing.assert_close((slope * d).sum((1, 2)), measured, rtol=1e-4, atol=1e-3)


def test_symmetric_face():
    """All permutations are equally good: mu moves in every direction that keeps row and column sums."""
    x, v = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True), torch.randn(3, 3, dtype=torch.float64)
    (slope,) = torch.autograd.grad(pm.SparseMap(pm.Assignment())(x), x, v)
    close(slope, v - v.mean(0) - v.mean(1, keepdim=True) + v.mean(), "double centring")
    found = pm.SparseMap(pm.Assignment()).distribution(x)
    assert found.probs.shape[-1] == int(found.support_size), "structures without weight are not part of the support"


@pytest.mark.parametrize(
    ("structure", "scores", "dimension"),
    [
        (pm.Assignment(), (torch.zeros(2, 3, 3),), 4),
        (pm.Chain(), (torch.zeros(2, 3, 2), torch.zeros(2, 2)), 3),
    ],
    ids=["assignments", "chains"],
)
def test_face_in_lock_step(structure, scores, dimension):
    """Where everything is tied the face is the polytope, whoever looks for it, and in whatever form."""
    scores = tuple(x.double() for x in scores)
    around = lockstep._Problem(structure, scores).around
    found = {
        "compiled": pm.ActiveSet().solve(structure, scores, whole=True),
        "lock-step": lockstep.solve(pm.ActiveSet(), structure, scores, None, None, whole=True)[0],
        "lists": spanned(structure, pm.ActiveSet().solve(structure, scores), around),
    }
    for name, solution in found.items():
        y = solution.vertices.flatten(2)
        assert bool((torch.linalg.matrix_rank(y - y[:, :1]) == dimension).all()), name
        kept = torch.einsum("bkd,bld->bkl", y, y)
        equal(solution.overlaps.double(), kept, f"overlaps of {name}")
