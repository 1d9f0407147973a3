"""SparseMAP of long chains starts from windows: as exact as from the best sequence, and with little left to do."""

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.kernels.active_set.cuda_start import prepare
from polymax.kernels.active_set.problem import UsedParts
from polymax.solvers.loops import cpu, windows
from polymax.solvers.loops import cuda as gpu

pytestmark = pytest.mark.device
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def started(structure, scores, solve=cpu.solve):
    """Where the search of chains starts, and the solution from there."""
    search = structure.search(*scores)

    def loop(search, whole):
        return solve(pm.ActiveSet(), structure, search.tensors[:2], search, None, whole, False)[0]

    start = windows.start(search, loop, True)
    return start, solve(pm.ActiveSet(), structure, scores, search, start, True, False)[0]


def mean(solution):
    return (solution.vertices * solution.probs[..., None, None]).sum(-3)


CHAINS = {
    "one matrix": ([(3, 200, 5), (5, 5)], None),
    "a matrix for each chain": ([(2, 100, 4), (2, 1, 4, 4)], None),
    "a matrix for each step": ([(1, 99, 3), (98, 3, 3)], None),
    "a matrix for each chain and step": ([(2, 3, 70, 3), (2, 3, 69, 3, 3)], None),
    "lengths": ([(8, 120, 4), (4, 4)], [120, 0, 1, 24, 25, 26, 49, 77]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_start_is_all_but_a_solution(name):
    shapes, lengths = CHAINS[name]
    structure = pm.Chain(lengths=None if lengths is None else torch.tensor(lengths))
    scores = tuple(randn(*shape, seed=i) for i, shape in enumerate(shapes))
    start, found = started(structure, scores)
    expected = pm.ActiveSet().solve(structure, scores, whole=True)
    close(mean(found), mean(expected), "mu does not depend on the start")
    close(found.value, expected.value, "nor does the value")
    equal((found.overlaps != 0).any(-1).sum(-1), (expected.overlaps != 0).any(-1).sum(-1), "nor does the face")
    assert float((mean(start) - mean(expected)).abs().max()) < 1e-2
    assert int(found.iterations.max()) < int(expected.iterations.max()) / 4
    full = torch.full(found.value.shape, scores[0].shape[-2]) if lengths is None else torch.tensor(lengths)
    used = start.probs > 0
    sizes = (start.found.places >= 0).sum(-1)
    equal(sizes[used], (2 * full - 1).unsqueeze(-1).expand(used.shape)[used], "sequences are whole, with their steps")


def test_forbidden_parts():
    unary, transition = randn(3, 120, 4), randn(4, 4, seed=1)
    transition[0, 1] = transition[3, 3] = -torch.inf
    unary[0, 30:50, 1] = -torch.inf
    unary[1, 60] = -torch.inf
    start, found = started(pm.Chain(), (unary, transition))
    expected = pm.ActiveSet().solve(pm.Chain(), (unary, transition), whole=True)
    close(mean(found), mean(expected), "what is forbidden is not used")
    equal(found.value[1], torch.tensor(-torch.inf, dtype=torch.float64), "a chain without a sequence stays without one")
    assert not bool((start.probs[1] > 0).any())
    assert int(found.iterations.max()) < int(expected.iterations.max()) / 4


def test_coupled_strands_keep_the_weights_of_both_sides():
    weights = torch.tensor([[0.3, 0.25, 0.25, 0.2, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0]], dtype=torch.float64)
    states = torch.tensor([[2, 0, 2, 1, 0], [1, 1, 0, 0, 0]])
    other_weights = torch.tensor([[0.2, 0.15, 0.25, 0.4, 0.0], [0.0] * 5], dtype=torch.float64)
    other_states = torch.tensor([[1, 2, 0, 2, 1], [0] * 5])
    numbers = torch.arange(5).expand(2, 5).unsqueeze(-1)
    left = windows._Strands(states, states, weights, numbers)
    right = windows._Strands(other_states, other_states, other_weights, numbers)
    both = windows._couple(left, right, 3).with_weight()
    picks = both.picks[0]
    for side, expected in enumerate((weights[0], other_weights[0])):
        found = torch.stack([both.weights[0][picks[:, side] == i].sum() for i in range(len(expected))])
        close(found, expected, "weights of either side add up to what they were")
    equal(states[0][picks[:, 0]], other_states[0][picks[:, 1]], "only those that share a state are coupled")
    assert picks.shape == (4 + 4 - 3, 2), "k and l sequences of a state are k + l - 1"
    close(both.weights[1, :2], weights[1, :2], "a chain that has ended stays as it is")


@pytest.mark.parametrize("seeds", [5, 40])
def test_structures_to_start_from_have_their_inverse(seeds):
    count, room, slots = 2, 64, 35
    tags = torch.randint(3, (count, room, slots), generator=torch.Generator().manual_seed(seeds))
    # one comes twice, and one place is free
    tags[:, 3] = tags[:, 1]
    places = (tags + 3 * torch.arange(slots)).int()
    system = torch.zeros(count, room + 3, room, dtype=torch.float64)
    system[:, -2] = -1
    system[:, -2, :seeds] = 0.5
    system[:, -2, 2] = -1
    gram = torch.zeros(count, room, room)
    held = tuple(t.to(DEVICE) for t in (places, gram, system))
    prepare(held, seeds)
    kept = torch.tensor([i for i in range(seeds) if i not in (2, 3)])
    overlaps = (tags[:, kept].unsqueeze(2) == tags[:, kept].unsqueeze(1)).sum(-1).double()
    equal(held[1].cpu()[:, kept][:, :, kept].double(), overlaps, "overlaps are those of the structures")
    inverse = held[2].cpu()[:, :room]
    close(inverse[:, kept][:, :, kept], torch.linalg.inv(overlaps + 1), "the inverse is that of overlaps + 1")
    inverse[:, kept.unsqueeze(-1), kept] = 0
    equal(inverse, torch.zeros_like(inverse), "free places, and what depends on others, take no part")
    equal((held[2].cpu()[:, -2] >= 0).sum(-1), torch.tensor([len(kept)] * count), "what depends on others is dropped")


def test_windows_on_the_device(monkeypatch):
    monkeypatch.setattr(windows, "CORE", 3)
    monkeypatch.setattr(windows, "HALO", 3)
    lengths, scores = torch.tensor([10, 6]), (randn(2, 10, 2), randn(2, 2, seed=1))
    there, given = pm.Chain(lengths=lengths.to(DEVICE)), tuple(x.to(DEVICE) for x in scores)
    _, found = started(there, given, gpu.solve)
    assert isinstance(found.found, UsedParts)
    expected = pm.ActiveSet().solve(pm.Chain(lengths=lengths), scores, whole=True)
    close(mean(found).cpu(), mean(expected), "mu depends neither on the device nor on the start")


@pytest.mark.skipif(DEVICE == "cpu", reason="long chains take long in the interpreter")
def test_long_chains():
    unary, transition = randn(3, 512, 16), randn(16, 16, seed=1)
    results = []
    for device in ("cpu", DEVICE, DEVICE):
        scores = [t.clone().to(device).requires_grad_() for t in (unary, transition)]
        lengths = torch.tensor([512, 300, 40], device=device)
        mu = pm.SparseMap(pm.Chain(lengths=lengths))(*scores).unary
        (mu * unary.flip(-1).to(device)).sum().backward()
        results.append([t.detach().cpu() for t in (mu, scores[0].grad, scores[1].grad)])
    for here, one, two in zip(*results, strict=True):
        close(one, here, "neither mu nor its gradient depends on the device")
        equal(one, two, "the same call gives the same bits")
