"""What a call on a GPU computes does not depend on the calls before it, of whatever other kinds they are.

Launches are kept by shapes and dtypes, so that a key which leaves something out takes one kind of call for another. All
pairs of kinds are called one after the other, in both orders, and give the bits of the call made alone.
"""

import sys

import pytest
import torch
from tolerances import equal

import polymax as pm

pytest.importorskip("triton")

from polymax.kernels.chain import cuda as chain
from polymax.kernels.chain import cuda_slopes
from polymax.solvers.loops import cuda as loops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def lengths(*numbers):
    return torch.tensor(numbers, device=DEVICE)


def strided(x):
    """The same values, every other number of a larger tensor."""
    return x.repeat_interleave(2, -1)[..., ::2]


def aliased():
    unary = randn(1, 2, 2, seed=1)
    return unary, unary[0]


def chains(n=2, batch=1, s=2):
    """Scores of chains by what is different about them, and the lengths, if there are some."""
    wide = {"dtype": torch.float64}
    return {
        "shared transitions": (None, (randn(batch, n, s), randn(s, s, seed=2))),
        "by step, batch dims, float64": (None, (randn(1, batch, n, s, **wide), randn(n - 1, s, s, seed=2, **wide))),
        "strided and aliased, lengths": (lengths(*[n - 1] * batch), (strided(aliased()[0]), aliased()[1].mT)),
        "one position": (None, (randn(batch, 1, s), randn(0, s, s))),
    }


def trees():
    return {
        "one": (None, (randn(1, 3, 3),)),
        "lengths, batch dims": (lengths(1).reshape(1, 1), (randn(1, 1, 3, 3),)),
        "strided, float64": (None, (randn(1, 3, 3, dtype=torch.float64).mT,)),
    }


def assignments():
    both = lengths(2)
    return {
        "one tensor of lengths": ((both, both), (randn(1, 2, 2),)),
        "two of them": ((lengths(2), lengths(1)), (randn(1, 2, 2),)),
        "more columns, float64": (None, (strided(randn(1, 2, 3, dtype=torch.float64)),)),
    }


def of_structure(make):
    def call(given, scores):
        structure = make(lengths=given)
        search = structure.search(*scores)
        found, converged = loops.solve(pm.ActiveSet(), structure, scores, search, None, False, True)
        assert converged is None
        return found.probs, found.value, found.overlaps, found.found.places, found.mean

    return call


def marginals(given, scores):
    tensors = pm.Chain(lengths=given).problem(*scores).tensors
    value, chart = chain.chain_inside(*tensors, 1.0)
    mu = chain.chain_outside(*tensors, chart, torch.ones_like(value), 1.0)
    if tensors[1].dim() == 2 and tensors[0].numel():
        _, again = cuda_slopes.mean(*tensors, False, 1.0)
        for one, other in zip(mu, again, strict=True):
            equal(one, other, "the ways to expectations")
    return value, *mu


def more_chains():
    """Kinds for kernels that take nothing, too, and are quick enough for more of them."""
    n, s = 3, 2
    known = chains(n, 2, s)
    known.pop("strided and aliased, lengths")
    return {
        **known,
        "of each instance": (None, (randn(2, n, s), randn(2, n - 1, s, s, seed=2))),
        "lengths": (lengths(3, 1), (randn(2, n, s), randn(s, s, seed=2))),
        "strided": (None, (strided(randn(2, n, s)), randn(s, s, seed=2).mT)),
        "one instance": (None, (randn(1, n, s), randn(s, s, seed=2))),
        "no instances": (None, (randn(0, n, s), randn(s, s, seed=2))),
    }


CALLS = {
    "SparseMap of chains": (of_structure(pm.Chain), chains),
    "SparseMap of trees": (of_structure(pm.SpanningTree), trees),
    "SparseMap of assignments": (of_structure(pm.Assignment), assignments),
    "Marginals of chains": (marginals, more_chains),
}


def walk(names):
    """Names in an order in which each follows each, itself too."""
    for i, name in enumerate(names):
        yield from (name, name)
        for other in names[i + 1 :]:
            yield from (other, name)


def forget():
    """Forget what calls have left for later ones: launches, plans and tables."""
    for name, module in list(sys.modules.items()):
        if name.startswith("polymax.") and ("cuda" in name or name.endswith("full_lengths")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
                elif type(value) is dict and any(isinstance(key, tuple) for key in value):
                    value.clear()


def test_a_walk_has_all_pairs():
    names = list("abcd")
    order = list(walk(names))
    assert {(a, b) for a in names for b in names} <= set(zip(order, order[1:], strict=False))


@pytest.mark.parametrize("name", CALLS)
def test_all_pairs_of_kinds(name):
    call, kinds = CALLS[name]
    given, alone = kinds(), {}
    for kind, args in given.items():
        forget()
        alone[kind] = call(*args)
    before = None
    for kind in walk(list(given)):
        # other tensors with the same numbers
        for one, other in zip(call(*kinds()[kind]), alone[kind], strict=True):
            equal(one, other, f"{kind} after {before}")
        before = kind
