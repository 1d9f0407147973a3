"""torch.func over structures: vmap, jacrev, jacfwd and hessian agree with loops, or refuse."""

from functools import partial

import pytest
import torch
from sets import COUNTED, SETS, TABLE, every
from tolerances import close
from torch.autograd.functional import jacobian
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import polymax as pm
from polymax.structures.base import tensors

# torch's own code warns about itself when it differentiates forwards
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
# small enough for all second derivatives, large enough for a choice at every step
SMALL = {"chain": (3, 2), "chain-by-step": (2, 3), "segments": (2, 3, 2), "alignment": (2, 3), "span-tree": (3, 3),
         "span-tree-labelled": (2, 2, 2), "projective-tree": (3, 3), "projective-tree-many-roots": (3, 3),
         "spanning-tree": (3, 3), "spanning-tree-many-roots": (3, 3), "simplex": (3,), "subset": (3,),
         "subset-at-most": (3,), "projective-tree-labelled": (3, 3, 2), "spanning-tree-labelled": (3, 3, 2),
         "assignment": (2, 2), "assignment-wide": (2, 3)}  # fmt: skip


def smoothings(structure):
    """One for each kind of pass: Shannon's and another entropy in kernels, and a regularizer in torch."""
    yield pm.Marginals(structure, 0.7)
    if isinstance(structure, pm.DynamicProgram):
        yield pm.LocalMax(structure, pm.Gini(), 2.0)
        yield pm.LocalMax(structure, pm.Norm(2.0))


def functions(op, others):
    """The smoothed maximum and its argmax as functions of the first score tensor."""
    return lambda x: op.max(x, *others), lambda x: tensors(op(x, *others))[0]


def functions_of_all(op):
    """The smoothed maximum and its argmax as functions of all score tensors."""
    return op.max, lambda *scores: torch.cat([t.square().flatten() for t in tensors(op(*scores))])


def loop(fn, batch):
    return torch.stack([fn(x) for x in batch])


@every(COUNTED)
def test_jacobians(row):
    x, *others = row.scores(SMALL.get(row.name))
    for op in smoothings(row.structure):
        best, mu = functions(op, others)
        truth = jacobian(mu, x)
        close(jacrev(mu)(x), truth, "jacrev is the Jacobian")
        close(jacrev(grad(best))(x), truth, "jacrev of grad is the Hessian of max")
        # one node that chooses is a mapping of its own, which forward mode may not know
        if row.name not in ("simplex", "explicit"):
            close(jacfwd(mu)(x), truth, "jacfwd is the Jacobian")
            close(hessian(best)(x), truth, "hessian of max is the Jacobian of argmax")


@every(COUNTED)
def test_maps_within_maps(row):
    one, *others = row.scores(SMALL.get(row.name))
    x = torch.stack([torch.stack([one, -one]), torch.stack([2 * one, one + 1])])
    for op in smoothings(row.structure):
        best, mu = functions(op, others)
        for fn in (best, mu):
            close(vmap(vmap(fn))(x), torch.stack([loop(fn, row) for row in x]), "vmap of vmap is a loop of loops")
        truth = loop(partial(jacobian, mu), x[0])
        close(vmap(jacrev(mu))(x[0]), truth, "vmap of jacrev is a loop of Jacobians")
        whole = jacrev(vmap(mu))(x[0])
        each = torch.stack([whole[k].movedim(x.dim() - 2, 0)[k] for k in range(2)])
        close(each, truth, "jacrev of vmap has the Jacobians on its diagonal")
        close(vmap(jacrev(grad(best)), in_dims=1)(x[0].movedim(0, 1)), truth, "vmap over another dim is a loop")


@pytest.mark.parametrize("place", [0, 1])
def test_a_tensor_of_torch_func_beside_others(place):
    """A tensor that outlives its transformation may stand in any place; the others are ordinary."""
    (row,) = [row for row in COUNTED if row.name == "chain"]
    scores = [x.requires_grad_() for x in row.scores(SMALL["chain"])]
    kept = []
    grad(lambda x: (kept.append(x), x.sum())[1])(scores[place].detach())
    given = [kept[0] if k == place else x for k, x in enumerate(scores)]
    for op in smoothings(row.structure):
        for call in functions_of_all(op):
            close(call(*given).detach(), call(*scores).detach(), "its value is read")
            wanted = scores[1 - place]
            found, expected = (torch.autograd.grad(call(*x).sum(), wanted)[0] for x in (given, scores))
            close(found, expected, "and so are derivatives of the others")


@every([row for row in COUNTED if row.name in ("chain", "alignment", "span-tree", "spanning-tree", "dag")])
def test_third_derivatives(row):
    x, *others = row.scores(SMALL.get(row.name))
    best, mu = functions(pm.Marginals(row.structure), others)
    w = torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape)

    def along(y):
        return (mu(y) * w).sum()

    truth = torch.autograd.functional.hessian(along, x)
    close(jacrev(grad(along))(x), truth, "jacrev of grad is the second derivative of argmax")
    for fn in (jacfwd(jacfwd(best)), jacfwd(jacrev(mu))):
        with pytest.raises(NotImplementedError, match="take jacrev"):
            fn(x)


def test_losses_have_hessians():
    scores, heads = torch.randn(2, 4, 4, dtype=torch.float64), torch.tensor([[0, 1, 1], [2, 0, 1]])

    def loss(x):
        return pm.crf_loss(pm.SpanningTree(), x, heads)

    truth = torch.autograd.functional.hessian(loss, scores)
    close(jacrev(grad(loss))(scores), truth, "jacrev of grad of a loss")
    close(hessian(loss)(scores), truth, "hessian of a loss")


def test_shared_transitions_have_jacobians():
    unary, transition = torch.randn(4, 3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)

    def total(t):
        return pm.Marginals(pm.Chain(torch.tensor([3, 2, 1, 0]))).max(unary, t).square()

    close(jacrev(total)(transition), jacobian(total, transition), "jacrev in what instances share")
    close(jacfwd(total)(transition), jacobian(total, transition), "jacfwd in what instances share")
    second = torch.autograd.functional.hessian(lambda t: total(t).sum(), transition)
    close(hessian(lambda t: total(t).sum())(transition), second, "hessian in what instances share")


@every(TABLE)
def test_the_best_structure(row):
    x, *others = row.scores(SMALL.get(row.name))
    best, y = functions(pm.HardMax(row.structure), others)
    close(vmap(y)(torch.stack([x, -x])), torch.stack([y(x), y(-x)]), "vmap of map is a loop")
    close(grad(best)(x), y(x), "the gradient of the best score is the structure")


@every(TABLE)
def test_sparsemap(row):
    x, *others = row.scores(SMALL.get(row.name))
    best, mu = functions(pm.SparseMap(row.structure), others)
    close(jacrev(mu)(x), jacobian(mu, x), "jacrev is the Jacobian")
    close(grad(best)(x), mu(x), "the gradient of max is argmax")
    if row.structure.projection(x, *others) is None:
        with pytest.raises(ValueError, match="give them as a batch"):
            vmap(mu)(torch.stack([x, x]))
        with pytest.raises(NotImplementedError, match="jvp"):
            jacfwd(mu)(x)


@every([row for row in SETS if row.name in ("chain", "dag")])
def test_distributions(row):
    x, *others = row.scores(SMALL.get(row.name))
    for op in (pm.Marginals(row.structure), pm.LocalMax(row.structure, pm.Gini())):
        laws = {
            "the probabilities of the best": lambda y, op=op: op.distribution(y, *others).topk(2)[1],
            "the entropy": lambda y, op=op: op.distribution(y, *others).entropy(),
        }
        for name, fn in laws.items():
            close(jacrev(fn)(x), jacobian(fn, x), f"jacrev of {name}")
            close(jacfwd(fn)(x), jacobian(fn, x), f"jacfwd of {name}")


def calls():
    """Operators on two instances, apart from the passes of dynamic programs."""
    from polymax.kernels.arborescence import arborescence
    from polymax.kernels.assignment import assignment
    from polymax.kernels.hypergraph import hypergraph_count, hypergraph_kbest, hypergraph_sample, hypergraph_visits
    from polymax.kernels.response import mixture, response
    from polymax.kernels.spanning_tree import spanning_tree_kbest, spanning_tree_sample

    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sizes, seeds = torch.tensor([3, 2]), torch.arange(6).reshape(2, 3) * 12345
    arcs = randn(2, 4, 4)
    tree = pm.SpanTree(labelled=False).derivations(randn(2, 3, 3))
    p = randn(2, tree.graph.edges).exp()
    first, tails, part = tree.graph.arrays
    places = torch.tensor([[[0, 1], [1, 2], [0, -1]], [[2, 0], [1, -1], [-1, -1]]])
    overlaps = torch.tensor([[[2, 1, 1], [1, 2, 0], [1, 0, 1]], [[2, 0, 0], [0, 1, 0], [0, 0, 0]]])
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]], dtype=torch.float64)
    return {
        "arborescence": (arborescence, (arcs, sizes, True)),
        "assignment": (assignment, (arcs, sizes, sizes + 1)),
        "spanning_tree_kbest": (spanning_tree_kbest, (arcs, sizes, 2, True)),
        "spanning_tree_sample": (spanning_tree_sample, (arcs, sizes, seeds, True)),
        "hypergraph_count": (hypergraph_count, (p, first, tails, tree.roots)),
        "hypergraph_visits": (hypergraph_visits, (p, first, tails, tree.roots)),
        "hypergraph_kbest": (hypergraph_kbest, (p.log(), first, tails, part, tree.roots, 2, 9)),
        "hypergraph_sample": (hypergraph_sample, (p, first, tails, part, tree.roots, seeds, 9)),
        "mixture": (mixture, (places, probs, 3, torch.float64)),
        "response": (response, (places, overlaps.double(), probs, randn(2, 3), randn(2, 3), 3)),
    }


@pytest.mark.parametrize("name", calls())
def test_vmap_of_operators(name, device):
    op, arguments = calls()[name]
    arguments = [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
    own = [k for k, a in enumerate(arguments) if isinstance(a, torch.Tensor) and len(a) == 2]
    for mapped in ([own[0]], [own[-1]], own):
        both = [torch.stack([a, a.flip(0)]) if k in mapped else a for k, a in enumerate(arguments)]
        found = vmap(op, in_dims=tuple(0 if k in mapped else None for k in range(len(both))))(*both)
        loop = [op(*(a[j] if k in mapped else a for k, a in enumerate(both))) for j in range(2)]
        for k, out in enumerate(found if isinstance(found, tuple) else (found,)):
            each = torch.stack([x[k] if isinstance(x, tuple) else x for x in loop])
            close(out.double(), each.double(), f"vmap of {name} is a loop")


def test_draws_under_vmap():
    """Seeds differ, instances keep their own scores."""
    sure = 100 * torch.eye(3, dtype=torch.float64)

    def drawn(x):
        return pm.Marginals(pm.Simplex()).distribution(x).sample((4,))

    y = vmap(drawn, randomness="different")(sure)
    close(y, sure[:, None].expand(3, 4, 3) / 100, "each instance is drawn from its own scores")


def test_learned_entropies():
    scores = torch.randn(3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    alpha = torch.tensor(1.4, dtype=torch.float64)
    best, mu = (
        lambda a: pm.LocalMax(pm.Chain(), pm.Tsallis(a)).max(*scores),
        lambda a: pm.LocalMax(pm.Chain(), pm.Tsallis(a))(*scores).unary,
    )
    for fn in (best, mu):
        truth = jacobian(fn, alpha)
        close(jacrev(fn)(alpha), truth, "jacrev in alpha")
        close(jacfwd(fn)(alpha), truth, "jacfwd in alpha")


@pytest.mark.parametrize("through", [None, pm.Marginals(pm.SpanningTree())])
def test_estimators(through):
    arcs = torch.randn(4, 4, dtype=torch.float64)
    estimator = pm.StraightThrough(pm.SpanningTree(), through=through)
    close(jacrev(estimator)(arcs), jacobian(estimator, arcs), "jacrev of an estimator")
    with pytest.raises(NotImplementedError, match="jvp"):
        jacfwd(estimator)(arcs)


@pytest.mark.parametrize("structure", [pm.SpanTree(labelled=False), pm.ProjectiveTree(labelled=True), pm.Subset(3)])
def test_tables_made_under_a_transform_serve_other_calls(structure):
    # shapes that no other test has, so that nothing is known of them
    shape = {pm.SpanTree: (4, 4), pm.ProjectiveTree: (4, 4, 3), pm.Subset: (9,)}[type(structure)]
    x = torch.randn(shape, dtype=torch.float64)

    def probs(y):
        return pm.LocalMax(structure, pm.Gini()).distribution(y).topk(2)[1]

    # third derivatives take the recursion to pieces, below several transforms
    jacrev(grad(lambda y: pm.Marginals(structure)(y).square().sum()))(x)
    close(jacrev(probs)(x), jacobian(probs, x), "another transform, and none")
    close(jacrev(pm.StraightThrough(structure))(x), jacobian(pm.StraightThrough(structure), x), "an estimator")


@every(
    [
        row
        for row in COUNTED
        if row.name in ("chain", "budget-chain", "segments", "alignment", "gapped", "spanning-tree")
    ]
)
def test_an_exported_program_takes_any_batch(row):
    class Module(torch.nn.Module):
        def forward(self, *scores):
            return tensors(pm.Marginals(row.structure)(*scores))[0], tensors(pm.SparseMap(row.structure)(*scores))[0]

    def scores(batch):
        first, *others = row.events(row.shape)
        return torch.randn(batch, *first), *map(torch.randn, others)

    example = scores(2)
    any_batch = {0: torch.export.Dim("batch", min=1, max=64)}
    dynamic = ((any_batch, *[None] * (len(example) - 1)),)
    program = torch.export.export(Module(), example, dynamic_shapes=dynamic).module()
    for batch in (1, 5):
        x = scores(batch)
        for found, expected in zip(program(*x), Module()(*x), strict=True):
            close(found, expected, "an exported program is the call")
