"""torch.compile with fullgraph=True: SparseMAP of every structure, its losses and estimators, CTC, and Custom."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sets import BY_NAME, TABLE, every
from tolerances import close, equal

import polymax as pm
from polymax.solvers.packed import pack, unpack
from polymax.solvers.traced import sparsemap, sparsemap_response
from polymax.structures.base import tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]


def compiled_is_eager(fn, *inputs, dynamic=False):
    """A value and its gradients, by both."""
    torch._dynamo.reset()
    results = []
    for call in (torch.compile(fn, fullgraph=True, backend="aot_eager", dynamic=dynamic), fn):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        value = call(*leaves)
        results.append([value.detach(), *torch.autograd.grad(value, leaves, materialize_grads=True)])
    for a, b in zip(*results, strict=True):
        close(a, b, "compiled is eager")


def weighed(parts):
    return sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).reshape(t.shape)).sum() for t in tensors(parts))


# one row of each class, with labels and without: what is traced does not depend on other options
KINDS = {(type(row.structure), getattr(row.structure, "labelled", None)): row for row in reversed(TABLE)}


# rooms of all kinds: fields, lengths, loops in torch, hypergraphs
FEW = ["chain", "segments", "spanning-tree", "assignment", "hypergraph"]


@every(list(KINDS.values()))
def test_sparsemap(row):
    op = pm.SparseMap(row.structure, gamma=1.5)
    compiled_is_eager(lambda *scores: weighed(op(*scores)), *row.scores(batch=(2,)))


@pytest.mark.parametrize("name", FEW)
def test_maximum_and_spigot(name):
    """They hand a structure to the same operators as SparseMAP does."""
    row = BY_NAME[name]
    op, spigot = pm.SparseMap(row.structure, gamma=1.5), pm.Spigot(row.structure)
    compiled_is_eager(lambda *scores: op.max(*scores).sum() + weighed(spigot(*scores)), *row.scores(batch=(2,)))


@pytest.mark.parametrize("name", FEW)
def test_losses(name):
    row = BY_NAME[name]
    y = row.structure.decode(row.structure.map(*row.scores(batch=(2,), seed=9)))
    compiled_is_eager(lambda *x: pm.sparsemap_loss(row.structure, x, y), *row.scores(batch=(2,)))


def test_lengths_and_sizes_that_change():
    torch._dynamo.reset()

    def loss(unary, transition, lengths):
        return weighed(pm.SparseMap(pm.Chain(lengths))(unary, transition))

    fn = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for n, batch in ((4, 2), (5, 2), (6, 3)):
        unary, transition = BY_NAME["chain"].scores((n, 3), (batch,), seed=n)
        lengths = torch.arange(batch) + 2
        close(fn(unary, transition, lengths), loss(unary, transition, lengths), "compiled is eager")


def test_nan_and_dead_instances():
    unary, transition = BY_NAME["chain"].scores((4, 3), (3,))
    unary[0, 1, 1] = torch.nan
    unary[1, 2] = -torch.inf
    op = pm.SparseMap(pm.Chain())
    lengths = pm.SparseMap(pm.Chain(torch.tensor([3, 4, 4])))
    torch._dynamo.reset()
    for one in (op, lengths):
        fn = torch.compile(lambda u, t, one=one: (one.max(u, t), one(u, t).unary), fullgraph=True, backend="aot_eager")
        results = []
        for call in (fn, lambda u, t, one=one: (one.max(u, t), one(u, t).unary)):
            u = unary.clone().requires_grad_()
            value, mu = call(u, transition)
            results.append((value.detach(), mu.detach(), *torch.autograd.grad(weighed(mu), u)))
            (slope,) = results[-1][2:]
            # the first instance is NaN, the second has no structure, the third is as it is alone
            assert value[0].isnan()
            assert mu[0].isnan().any()
            assert value[1] == -torch.inf
            assert not mu[1].any()
            assert not slope[1].any()
            alone = unary[2:].clone().requires_grad_()
            expected = pm.SparseMap(pm.Chain())(alone, transition).unary
            equal(mu[2:].detach(), expected.detach(), "others are what they are alone")
        for a, b in zip(*results, strict=True):
            equal(a, b, "compiled is eager")


def test_segmentations_and_ctc():
    segments = pm.Marginals(pm.SemiMarkov(2))
    x = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    transition = torch.randn(3, 3, dtype=torch.float64)
    compiled_is_eager(lambda s, t: segments.max(s, t).sum() + weighed(segments(s, t)), x, transition)
    targets, frames, counts = torch.tensor([[1, 2], [3, 3]]), torch.tensor([6, 5]), torch.tensor([2, 1])
    logits = torch.randn(6, 2, 4, dtype=torch.float64)
    compiled_is_eager(lambda x: pm.ctc_loss(x.log_softmax(-1), targets, frames, counts), logits, dynamic=None)


class Weighted(torch.nn.Module):
    """An Omega with a parameter."""

    def __init__(self):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

    def forward(self, p):
        return (self.strength * p.square()).sum(-1) / 2


def test_custom():
    omega = Weighted()
    op = pm.Custom(omega, gamma=0.7)
    x = torch.randn(4, 3, dtype=torch.float64)
    compiled_is_eager(lambda x: weighed(op.argmax(x)) + op.max(x).sum(), x)
    torch._dynamo.reset()
    fn = torch.compile(lambda x: weighed(op.argmax(x)), fullgraph=True, backend="aot_eager")
    (slope,) = torch.autograd.grad(fn(x), omega.strength)
    (expected,) = torch.autograd.grad(weighed(op.argmax(x)), omega.strength)
    close(slope, expected, "the parameter of fn gets its gradient")
    with torch.no_grad():
        omega.strength.mul_(3)
        close(fn(x), weighed(op.argmax(x)), "what fn closes over is read at each call")


def test_custom_of_another_function():
    fn = torch.compile(lambda op, x: op.argmax(x), fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 3, dtype=torch.float64)
    for size in (1.0, 2.0):
        strength = torch.tensor(size, dtype=torch.float64)
        op = pm.Custom(lambda p, strength=strength: strength * p.square().sum(-1) / 2)
        close(fn(op, x), op.argmax(x), "a graph is good for its own function alone")


def test_custom_with_tolerance_0():
    """Nothing is within it: compiled code takes all steps and says so, as other code does, and not the default."""
    op = pm.Custom(lambda p: (p**4).sum(-1), max_iter=3, tol=0.0)
    x = torch.tensor([[1.0, 0.2, -0.4]], dtype=torch.float64)
    found = []
    for fn in (op.argmax, torch.compile(op.argmax, fullgraph=True, backend="aot_eager")):
        with pytest.warns(UserWarning, match="above its tol of 0"):
            found.append(fn(x))
    close(found[1], found[0], "compiled == eager")


def test_operators_pass_opcheck():
    row = BY_NAME["chain"]
    scores = row.scores(batch=(2,))
    d = sum(x[0].numel() for x in row.structure.full(*scores))
    parts = pack((pm.ActiveSet(), pm.Chain(torch.tensor([5, 3]))))
    args = (list(scores), parts.tensors, parts.code, parts.reals, 2, d, True)
    torch.library.opcheck(sparsemap, args)
    _, mu, state = sparsemap(*args)
    torch.library.opcheck(sparsemap_response, (state, torch.randn(len(mu), dtype=torch.float64), torch.randn_like(mu)))


@every(TABLE)
def test_packing(row):
    again = unpack(*(list(part) for part in pack(row.structure)))
    scores = row.scores(batch=(2,))
    for a, b in zip(tensors(again.map(*scores)), tensors(row.structure.map(*scores)), strict=True):
        equal(a, b, "a structure is put together as it was")


def test_what_cannot_be_packed():
    class Local(pm.Simplex):
        pass

    with pytest.raises(TypeError, match="top of a module"):
        pack(Local())


FIRST = """
import torch, polymax as pm
chain = pm.SparseMap(pm.Chain())
u, t = torch.randn(2, 4, 3, requires_grad=True), torch.randn(3, 3)
fn = torch.compile(lambda u: chain(u, t).unary.square().sum() + chain.max(u, t).sum(), fullgraph=True)
fn(u).backward()
found, u.grad = u.grad, None
(chain(u, t).unary.square().sum() + chain.max(u, t).sum()).backward()
assert torch.allclose(found, u.grad, atol=1e-5)
mu = torch.compile(lambda u: chain(u, t).unary, fullgraph=True)(u)
before = mu.detach().clone()
mu.square().sum().backward()
assert torch.equal(mu, before), "the backward pass wrote over the result"
x = torch.randn(4, 8, requires_grad=True)
mapped = lambda x: (pm.sparsemax(x) * x).sum()
values = [call(x) for call in (torch.compile(mapped, fullgraph=True), mapped)]
torch.testing.assert_close(*values)
torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in values))
x = torch.randn(3, 3)
custom = pm.Custom(lambda p: p.square().sum(-1) / 2)
for first in (pm.SparseMap(pm.Dag([(0, 1), (0, 2), (1, 2)])), pm.HardMax(pm.Subset(2)), custom.argmax):
    call = torch.compile(lambda x: first(x).sum(), fullgraph=True, backend="aot_eager")
    call(x)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="the default backend needs a C compiler")
def test_first_call_of_a_process():
    """By the default backend: of structures, which are the first call, and of a mapping."""
    place = {**os.environ, "PYTHONPATH": str(Path(pm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, env=place, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
