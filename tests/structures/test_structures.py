"""Every structure against its enumeration: the best one, its score, counts, compact forms, shorter problems."""

import pytest
import torch
from sets import ABILITIES, BY_NAME, COUNTED, RAGGED, TABLE, every, shapes
from tolerances import close, equal

import polymax as pm
from polymax.structures.base import tensors


@every(TABLE)
def test_the_table_says_what_a_set_can(row):
    for ability, kind in ABILITIES.items():
        assert isinstance(row.structure, kind) == row.able(ability), f"{row.name}: {ability}"
    assert (row.recursion is not None) == row.able("local"), "a dynamic program has a recursion to compare with"


@shapes(TABLE)
def test_counts(row, shape):
    vertices = row.vertices(shape)
    assert vertices[0].shape[0] == row.count(shape), f"{row.name} has {row.count(shape)} structures"
    flat = torch.cat([v.flatten(1) for v in vertices], 1)
    assert len({tuple(y) for y in flat.tolist()}) == flat.shape[0], "structures are listed once"
    close(row.structure.log_count(shape).exp(), float(row.count(shape)), "log_count counts structures")
    if row.able("count"):
        zeros = tuple(torch.zeros(1, *s, dtype=torch.float64) for s in row.events(shape))
        zeros = (zeros[0], *(z[0] for z in zeros[1:]))
        close(row.structure.logsumexp(*zeros).exp(), [float(row.count(shape))], "exp(logsumexp(0)) counts structures")


@shapes(TABLE)
def test_map_is_the_best(row, shape, device):
    scores = row.scores(shape, (3,), device=device)
    vertices, values = row.enumerated(scores, shape)
    y = tensors(row.structure.map(*scores))
    best = values.argmax(0)
    for part, stack in zip(y, vertices, strict=True):
        equal(part.cpu(), stack[best], "map is the structure of the highest score")
    close(row.structure.score(row.structure.map(*scores), *scores).cpu(), values.amax(0), "score(map) is the maximum")
    close(pm.HardMax(row.structure).max(*scores).cpu(), values.amax(0), "HardMax is the score of map")


@every(TABLE)
def test_ties_are_broken_the_same_way(row, device):
    scores = tuple(torch.zeros_like(x) for x in row.scores(batch=(4,), device=device))
    first, again = (tensors(row.structure.map(*scores)) for _ in range(2))
    vertices = row.vertices()
    for part, same in zip(first, again, strict=True):
        equal(part, same, "the same call gives the same structure")
        equal(part, part[:1].expand_as(part), "equal scores give equal structures")
    joined = torch.cat([p[0].flatten() for p in first]).cpu()
    listed = torch.cat([v.flatten(1) for v in vertices], 1)
    assert bool((listed == joined).all(1).any()), "a tie is broken to a structure"


@every(TABLE)
def test_batch_is_a_loop(row, device):
    scores = row.scores(batch=(2, 3), device=device)
    op = row.smoothing()
    value, mu = op.max(*scores), tensors(op(*scores))
    assert value.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = tuple(x[i, j] if x.dim() > len(e) else x for x, e in zip(scores, row.events(row.shape), strict=True))
            close(op.max(*one), value[i, j], "a batch is a loop: max")
            for a, b in zip(tensors(op(*one)), mu, strict=True):
                close(a, b[i, j], "a batch is a loop: argmax")


@every(TABLE)
def test_empty_batch(row, device):
    scores = row.scores(batch=(0,), device=device)
    assert row.smoothing().max(*scores).shape == (0,)
    assert tensors(row.structure.map(*scores))[0].shape[0] == 0
    leaves = [x.requires_grad_() for x in scores]
    expected = tensors(pm.SparseMap(row.structure)(*leaves))
    gradients = torch.autograd.grad([t.sum() for t in expected], leaves, allow_unused=True, materialize_grads=True)
    assert [g.shape for g in gradients] == [x.shape for x in leaves]


@pytest.mark.parametrize(
    ("row", "alone"),
    [pytest.param(row, op, id=f"{row.name}-{type(op).__name__}") for row in RAGGED for op in row.smoothings()],
)
def test_padding_is_a_shorter_problem(row, alone, device):
    size = row.size()
    lengths = row.lengths(size, max(size - 1, 0), 2, 1, 0, device=device)
    scores = row.scores(batch=(5,), device=device)
    # what lies outside a problem does not matter, whatever it is
    filled = tuple(x.clone() for x in scores)
    for b in range(5):
        for x, clean in zip(filled, row.cut(tuple(x[b] if x.dim() > 2 or len(scores) == 1 else x for x in scores),
                                            int(lengths[b])), strict=True):  # fmt: skip
            if x.dim() > clean.dim():
                inside = torch.zeros_like(x[b], dtype=torch.bool)
                inside[tuple(slice(0, k) for k in clean.shape)] = True
                x[b][~inside] = torch.nan
    inputs = tuple(x.requires_grad_() for x in filled)
    op = alone.with_lengths((lengths, lengths) if row.paired else lengths)
    value, mu = op.max(*inputs), tensors(op(*inputs))
    slopes = torch.autograd.grad(value.sum(), inputs, create_graph=not isinstance(op, pm.HardMax))
    probe = [torch.randn_like(s) for s in slopes]
    for b, length in enumerate(lengths.tolist()):
        own = tuple(x[b] if x.dim() > len(e) else x for x, e in zip(scores, row.events(row.shape), strict=True))
        short = tuple(x.detach().requires_grad_() for x in row.cut(own, length))
        if length == 0:
            assert value[b] == 0, "an empty problem has the value 0"
            assert all(bool((m[b] == 0).all()) for m in mu)
            continue
        close(value[b], alone.max(*short), "padding is a shorter problem: max")
        for part, cut, small in zip(mu, row.cut(tuple(m[b] for m in mu), length), tensors(alone(*short)), strict=True):
            close(cut, small, "padding is a shorter problem: argmax")
            assert part[b].count_nonzero() == cut.count_nonzero(), "padding is exactly 0"
    if isinstance(op, pm.HardMax):
        return
    second = torch.autograd.grad(sum((s * v).sum() for s, v in zip(slopes, probe, strict=True)), inputs)
    for s, x in zip(second, scores, strict=True):
        assert bool(torch.isfinite(s).all()), "padding has no second derivative"
        assert s.shape == x.shape


@every([row for row in TABLE if row.indicators])
def test_forbidden_parts(row, device):
    """-inf leaves fewer structures, one, or none."""
    scores = row.scores(batch=(3,), device=device)
    vertices, _ = row.enumerated(scores)
    only = [v[0] for v in vertices]
    full = [x.clone() for x in row.structure.full(*scores)]
    for x, y in zip(full, only, strict=True):
        # instance 0: one structure is left; 1: some are; 2: none
        x[0][y.to(device) == 0] = -torch.inf
        x[2] = -torch.inf
    full[0][1].flatten()[0] = -torch.inf
    inputs = tuple(x.requires_grad_() for x in full)
    _, values = row.enumerated(tuple(x.detach() for x in inputs))
    for op in row.smoothings():
        value, mu = op.max(*inputs), tensors(op(*inputs))
        slopes = torch.autograd.grad(value[:2].sum() + value[2], inputs, create_graph=True, allow_unused=True)
        assert value[2] == row.nothing, "no structure is left: the value is -inf"
        close(value[0].cpu(), values[:, 0].max(), "one structure is left: its score")
        for m, s, y in zip(mu, slopes, only, strict=True):
            close(m[0].cpu(), y, "one structure is left: it is the answer")
            assert bool((m[2] == 0).all()), "no structure is left: zeros"
            close(s, m, "the gradient of max is argmax")
        if isinstance(op, pm.Marginals):
            close(value.cpu(), values.logsumexp(0), "forbidden parts leave the sum over the others")
        if slopes[0].requires_grad:
            total = sum((s * torch.randn_like(s)).sum() for s in slopes)
            for second in torch.autograd.grad(total, inputs):
                assert bool(torch.isfinite(second).all()), "-inf has a finite second derivative, 0"


@every(TABLE)
def test_nan_stays_in_its_instance(row, device):
    scores = tuple(x.clone() for x in row.structure.full(*row.scores(batch=(3,), device=device)))
    clean, best = row.smoothing().max(*scores), tensors(row.structure.map(*scores))
    scores[0][1] = torch.nan
    value, still = row.smoothing().max(*scores), tensors(row.structure.map(*scores))
    assert bool(torch.isnan(value[1]))
    equal(value[::2], clean[::2], "NaN stays in its instance")
    for a, b in zip(still, best, strict=True):
        equal(a[::2], b[::2], "NaN stays in its instance")


@every(TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(row, dtype, device):
    scores = row.scores(batch=(2,), dtype=dtype, device=device)
    exact = tuple(x.double() for x in scores)
    assert row.structure.map(*scores)[0].dtype == dtype
    for op in row.smoothings()[1:] or [row.smoothing()]:
        value, mu = op.max(*scores), tensors(op(*scores))
        assert value.dtype == dtype
        close(value, op.max(*exact).to(dtype), "the value in every dtype")
        for a, b in zip(mu, tensors(op(*exact)), strict=True):
            assert a.dtype == dtype
            close(a, b.to(dtype), "the expectation in every dtype")


@every(COUNTED)
@pytest.mark.parametrize("scale", [1e4, 1e-4])
def test_scale_and_shift(row, scale, device):
    for dtype in (torch.float64, torch.float32):
        scores = row.scores(batch=(3,), dtype=dtype, device=device, scale=scale)
        _, values = row.enumerated(tuple(x.double() for x in scores))
        op = pm.Marginals(row.structure)
        expected = values.logsumexp(0)
        error = (op.max(*scores).cpu().double() - expected).abs() / expected.abs().clamp(min=1)
        assert float(error.max()) < (1e-5 if dtype == torch.float32 else 1e-12)
        truth = tensors(op(*(x.double() for x in scores)))
        for a, b in zip(tensors(op(*scores)), truth, strict=True):
            assert bool(torch.isfinite(a).all())
            # scores of 1e4 are known to 1e-3 in float32
            assert float((a.double() - b).abs().max()) < (2e-2 if scale > 1 and dtype == torch.float32 else 1e-5)


@every(TABLE)
def test_compact_form(row, device):
    y = row.structure.map(*row.scores(batch=(3,), device=device))
    index = row.structure.decode(y)
    assert not index.is_floating_point()
    back = row.structure.encode(index, *row.sizes(row.shape))
    for a, b in zip(tensors(back), tensors(y), strict=True):
        equal(a.to(b.dtype), b, "encode undoes decode")


@every(TABLE)
def test_wrong_scores_are_refused(row):
    scores = row.scores(batch=(2,))
    with pytest.raises(TypeError, match="float"):
        row.structure.map(*(x.long() for x in scores))
    with pytest.raises(ValueError, match="must be"):
        row.structure.map(scores[0].flatten()[:1].squeeze(), *scores[1:])
    if len(scores) == 2:
        with pytest.raises(TypeError, match="one dtype"):
            row.structure.map(scores[0], scores[1].float())
    if row.cut is not None:
        with pytest.raises(ValueError, match=r"in \[0"):
            row.with_lengths(torch.tensor([99, 1])).map(*scores)
        with pytest.raises(ValueError, match="batch"):
            row.with_lengths(torch.tensor([1])).map(*scores)
        with pytest.raises(TypeError, match="integers"):
            row.with_lengths(torch.tensor([1.0, 1.0])).map(*scores)
    elif "lengths" not in vars(row.structure):
        with pytest.raises(TypeError, match="has no lengths"):
            row.structure.with_lengths(torch.tensor([1, 1]))


def test_wrong_structures_are_refused():
    with pytest.raises(ValueError, match="below their head"):
        pm.Hypergraph([1], [(1,)])
    with pytest.raises(ValueError, match="equally many"):
        pm.Hypergraph([1, 2], [(0,)])
    with pytest.raises(ValueError, match="no path"):
        pm.Dag([(0, 1), (2, 3)])
    with pytest.raises(ValueError, match="lower to higher"):
        pm.Dag([(1, 0)])
    with pytest.raises(ValueError, match="one of"):
        pm.Dag([(0, 1)], sink=7)
    with pytest.raises(ValueError, match="max_width"):
        pm.SemiMarkov(0)
    with pytest.raises(ValueError, match=r"got 3 tokens for 2 frames of instance \(1,\)"):
        pm.Monotonic((torch.tensor([4, 2]), torch.tensor([3, 3]))).map(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match=r"got 3 tokens for 2 frames$"):
        pm.Marginals(pm.Monotonic()).max(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="say which"):
        pm.SpanTree().map(torch.zeros(3, 3, 3))
    with pytest.raises(ValueError, match="tags must be"):
        pm.Chain().encode(torch.tensor([0, 5]), 3)
    with pytest.raises(ValueError, match="heads must be"):
        pm.ProjectiveTree().encode(torch.tensor([0, 5]))


def test_span_trees_know_their_labels():
    assert pm.SpanTree().map(torch.randn(4, 4)).shape == (4, 4)
    assert pm.SpanTree().map(torch.randn(5, 4, 4)).shape == (5, 4, 4)
    assert pm.SpanTree().logsumexp(torch.randn(4, 4, 2)).shape == ()
    assert pm.SpanTree(lengths=torch.tensor([4, 3, 2, 1])).logsumexp(torch.randn(4, 4, 4)).shape == (4,)
    assert pm.SpanTree(labelled=True).logsumexp(torch.randn(4, 4, 4)).shape == ()


def test_a_node_used_twice_is_derived_twice():
    pair = pm.Hypergraph([1, 1, 2], [(0,), (), (1, 1)])
    assert pair.vertices().tolist() == [[2, 0, 1], [1, 1, 1], [1, 1, 1], [0, 2, 1]]
    scores = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    expected = torch.logsumexp(pair.vertices().double() @ scores, 0)
    close(pair.logsumexp(scores), expected, "a node used twice is derived twice")


def test_paths_that_do_not_start_at_the_source():
    detour = pm.Dag([(0, 2), (1, 2), (2, 3), (1, 3)], source=0)
    close(detour.logsumexp(torch.zeros(4)).exp(), 1.0, "nodes that the source does not reach have no paths")


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3), (4, 3, 3), (5, 4, 3, 3), (2, 1, 1, 3, 3), (2, 5, 1, 3, 3)])
def test_transitions_broadcast(shape, device):
    unary = torch.randn(2, 5, 5, 3, dtype=torch.float64, device=device)
    transition = torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
    each = transition.detach().expand(2, 5, 4, 3, 3).clone().requires_grad_()
    op = pm.Marginals(pm.Chain())
    close(op.max(unary, transition), op.max(unary, each), "shared transitions broadcast")
    (shared,) = torch.autograd.grad(op.max(unary, transition).sum(), transition)
    (full,) = torch.autograd.grad(op.max(unary, each).sum(), each)
    close(shared, full.sum_to_size(shape), "the gradient of shared transitions is the sum")
    assert op(unary, transition).transition.shape == (2, 5, 4, 3, 3), "results do not broadcast"


def test_rows_by_name():
    assert len(BY_NAME) == len(TABLE)


@pytest.mark.parametrize("structure", [pm.Chain(), pm.SemiMarkov(3)])
@pytest.mark.parametrize("shape", [(3, 3), (2,), (7, 2, 2), (3, 4, 2, 2), (9, 2, 4, 2, 2), (2, 3, 2)])
def test_wrong_transitions_are_named(structure, shape):
    first = torch.zeros(2, 5, 2) if isinstance(structure, pm.Chain) else torch.zeros(2, 5, 3, 2)
    for call in (structure.map, pm.Marginals(structure).max, structure.score):
        scores = (structure.map(first, torch.zeros(2, 2)),) * (call == structure.score)
        with pytest.raises(ValueError, match=r"transition must be \(2, 2\) or broadcast to \(2, 4, 2, 2\); got"):
            call(*scores, first, torch.zeros(shape))


class Rook(pm.Structure):
    """One cell of a board: `map` and `event_dims` are enough."""

    def map(self, *scores):
        flat = scores[0].flatten(-2)
        return torch.nn.functional.one_hot(flat.argmax(-1), flat.shape[-1]).to(flat).view_as(scores[0])

    def event_dims(self, *scores):
        return (2,)


def test_a_structure_needs_no_enumeration():
    board = torch.tensor([[[1.0, 0.75], [0.0, 0.25]]], dtype=torch.float64, requires_grad=True)
    close(pm.SparseMap(Rook())(board), [[[0.625, 0.375], [0.0, 0.0]]], "SparseMap needs map alone")
    close(pm.svm_loss(Rook(), board, torch.tensor([[[0, 1]]])), 1.25, "so do losses")
    assert torch.autograd.grad(pm.StraightThrough(Rook())(board)[0, 0, 0], board)[0].sum() == 1
    with pytest.raises(AssertionError, match=r"Rook does not list its structures.*Rook.vertices\(event_shape\)"):
        pm.testing.check_structure(Rook(), (2, 2))
    with pytest.raises(TypeError, match="Rook has no lengths"):
        pm.HardMax(Rook()).with_lengths(torch.tensor([1]))


class CountedRook(Rook, pm.Counted):
    """A board whose sum is known, and nothing else."""

    def logsumexp(self, *scores):
        return scores[0].flatten(-2).logsumexp(-1)


def test_what_a_set_does_not_say_has_a_general_answer():
    board = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    softmax = board.flatten(-2).softmax(-1).view_as(board)
    close(pm.Marginals(CountedRook())(board), softmax, "marginals are the gradient of the sum")
    close(pm.Marginals(CountedRook()).omega(Rook().map(board)), torch.zeros(3), "Omega is known at structures")
    with pytest.raises(ValueError, match="known at the structures of CountedRook alone"):
        pm.Marginals(CountedRook()).omega(softmax)
    with pytest.raises(TypeError, match="CountedRook cannot be sampled"):
        pm.Marginals(CountedRook()).distribution(board)
    for set_ in (Rook(), CountedRook()):
        mu = pm.Perturbed(set_, samples=4)(board, generator=torch.Generator().manual_seed(0))
        assert bool(torch.isfinite(torch.autograd.grad(mu[:, 0, 0].sum(), board)[0]).all())
        assert torch.equal(set_.decode(set_.encode(torch.tensor([[1, 0]]), 2, 2)), torch.tensor([[1, 0]]))


@every(RAGGED)
def test_log_count_of_lengths(row):
    lengths = torch.arange(row.least, row.size() + 1)
    counts = row.with_lengths(lengths).log_count(row.shape)
    assert counts.shape == lengths.shape
    longest = tuple(row.cut(row.scores(), row.size())[0].shape)
    close(counts[-1], row.structure.log_count(longest), "the longest is the problem of that size")
    close(counts[0], 0.0, "the shortest problem is one structure")


def test_what_is_too_large_to_count():
    close(pm.Subset(3).log_count((7,)).exp(), 35.0, "7 choose 3")
    close(pm.Ranking().log_count((4,)).exp(), 24.0, "4!")
    assert pm.SpanTree().log_count((4, 4, 4)).shape == ()
    with pytest.raises(TypeError, match="Rook does not count its structures"):
        Rook().log_count((2, 2))


@every([row for row in TABLE if row.able("sample")])
def test_all_optimal_structures(row):
    """Integer scores, of which many tie: the list has each best structure once."""
    scores = [x.round() for x in row.scores(batch=(3,))]
    found, counts = row.structure.optimal(*scores)
    vertices, totals = row.enumerated(scores)
    flat = torch.cat([v.flatten(1) for v in vertices], 1)
    listed = [t.flatten(2) for t in tensors(found)]
    for b in range(3):
        expected = {tuple(y.tolist()) for y in flat[totals[:, b] == totals[:, b].amax()]}
        ours = [tuple(torch.cat([t[b, k] for t in listed]).tolist()) for k in range(listed[0].shape[1])]
        assert len(expected) == counts[b]
        assert set(ours[: counts[b]]) == expected
        assert not any(map(any, ours[counts[b] :])), "zeros follow"
    few, count = row.structure.optimal(*scores, limit=1)
    assert tensors(few)[0].shape[1] == 1
    assert (count == 1).all()


def test_optimal_structures_of_no_instances():
    paths, count = pm.Alignment().optimal(torch.zeros(0, 2, 2))
    assert paths.shape == (0, 0, 2, 2)
    assert count.shape == (0,)
    paths, count = pm.Alignment().optimal(torch.full((2, 2), -torch.inf))
    assert paths.shape == (0, 2, 2)
    assert count == 0
    with pytest.raises(ValueError, match="limit must be at least 1"):
        pm.Alignment().optimal(torch.zeros(2, 2), limit=0)
