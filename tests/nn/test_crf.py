"""The conditional random field: against enumeration, and where it meets other people's habits."""

import copy
import itertools
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import polymax as pm

S = 3
LENGTHS = torch.tensor([5, 3, 1, 4])


def data(n=5):
    emissions = torch.randn(len(LENGTHS), n, S, dtype=torch.float64)
    tags = torch.randint(0, S, (len(LENGTHS), n))
    return emissions, tags, torch.arange(n) < LENGTHS[:, None]


def make(**options):
    crf = pm.nn.CRF(S, **options).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return crf


def enumerated(crf, emissions, constraints=None):
    """All tag sequences for one instance (n, s), and their scores."""
    sequences = list(itertools.product(range(S), repeat=len(emissions)))
    start, end, transitions = crf.start_transitions, crf.end_transitions, crf.transitions
    if constraints is not None:
        transitions, start, end = (
            t.masked_fill(~allowed, -torch.inf) for t, allowed in zip((transitions, start, end), constraints)
        )
    scores = [
        start[y[0]]
        + sum(emissions[t, tag] for t, tag in enumerate(y))
        + sum(transitions[a, b] for a, b in itertools.pairwise(y))
        + end[y[-1]]
        for y in sequences
    ]
    return torch.tensor(sequences), torch.stack(scores)


CONSTRAINTS = {"free": None, "bio": pm.nn.bio_constraints(["O", "B-X", "I-X"])}
constrained = pytest.mark.parametrize("constraints", CONSTRAINTS.values(), ids=CONSTRAINTS.keys())


@constrained
def test_results_equal_enumeration(constraints):
    crf = make(constraints=constraints)
    emissions, tags, mask = data()
    if constraints is not None:
        # tags that keep them
        tags = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(y) for y in crf.decode(torch.randn_like(emissions))], batch_first=True
        )
    losses = crf(emissions, tags, mask, reduction="none")
    marginals, best = crf.marginals(emissions, mask), crf.decode(emissions, mask)
    top, probabilities = crf.topk(emissions, 4, mask)
    entropy = crf.distribution(emissions, mask).entropy()
    for b, n in enumerate(LENGTHS.tolist()):
        sequences, scores = enumerated(crf, emissions[b, :n], constraints)
        p = scores.softmax(0)
        gold = (sequences == tags[b, :n]).all(1)
        torch.testing.assert_close(losses[b], -p[gold][0].log())
        expected = torch.einsum("k,kts->ts", p, torch.nn.functional.one_hot(sequences, S).double())
        torch.testing.assert_close(marginals[b, :n], expected)
        assert best[b] == sequences[p.argmax()].tolist()
        order = p.argsort(descending=True)[:4]
        order = order[p[order] > 0]
        assert torch.equal(top[b, : len(order), :n], sequences[order])
        torch.testing.assert_close(probabilities[b, : len(order)], p[order])
        assert (probabilities[b, len(order) :] == 0).all()
        torch.testing.assert_close(entropy[b], torch.special.entr(p).sum())
    assert (marginals[~mask] == 0).all()
    assert (top.movedim(1, 2)[~mask] == -1).all()


def test_unknown_tags_are_summed_over():
    crf = make()
    emissions, tags, mask = data()
    tags[0, 1], tags[0, 4], tags[1, 0], tags[2, 0] = -1, -1, -1, -1
    allowed = torch.nn.functional.one_hot(tags.clamp(min=0), S).bool() | (tags < 0)[..., None]
    losses = crf(emissions, tags, mask, reduction="none")
    torch.testing.assert_close(crf(emissions, allowed, mask, reduction="none"), losses)
    for b, n in enumerate(LENGTHS.tolist()):
        sequences, scores = enumerated(crf, emissions[b, :n])
        agree = ((sequences == tags[b, :n]) | (tags[b, :n] < 0)).all(1)
        torch.testing.assert_close(losses[b], scores.logsumexp(0) - scores[agree].logsumexp(0))
    assert losses[2] == 0


def test_some_of_the_tags_may_be_allowed():
    crf = make()
    emissions, _, mask = data()
    allowed = torch.rand(*mask.shape, S) < 0.6
    allowed[..., 0] |= ~allowed.any(-1)
    losses = crf(emissions, allowed, mask, reduction="none")
    for b, n in enumerate(LENGTHS.tolist()):
        sequences, scores = enumerated(crf, emissions[b, :n])
        agree = allowed[b, :n].gather(1, sequences.T).all(0)
        torch.testing.assert_close(losses[b], scores.logsumexp(0) - scores[agree].logsumexp(0))


def test_complete_tags_are_a_special_case_of_allowed_ones():
    crf = make()
    emissions, tags, mask = data()
    one_hot = torch.nn.functional.one_hot(tags, S).bool()
    inputs = (*crf.parameters(), emissions.requires_grad_())
    a, b = crf(emissions, tags, mask), crf(emissions, one_hot, mask)
    torch.testing.assert_close(a, b)
    for g, h in zip(torch.autograd.grad(a, inputs), torch.autograd.grad(b, inputs)):
        torch.testing.assert_close(g, h)


def test_reductions():
    crf = make()
    emissions, tags, mask = data()
    losses = crf(emissions, tags, mask, reduction="none")
    torch.testing.assert_close(crf(emissions, tags, mask), losses.mean())
    torch.testing.assert_close(crf(emissions, tags, mask, reduction="sum"), losses.sum())
    torch.testing.assert_close(crf(emissions, tags, mask, reduction="token_mean"), losses.sum() / LENGTHS.sum())


def test_batch_second():
    first, second = make(), pm.nn.CRF(S, batch_first=False).double()
    second.load_state_dict(first.state_dict())
    emissions, tags, mask = data()
    turned = emissions.transpose(0, 1), tags.T, mask.T
    torch.testing.assert_close(second(*turned), first(emissions, tags, mask))
    allowed = torch.nn.functional.one_hot(tags, S).bool()
    torch.testing.assert_close(second(turned[0], allowed.transpose(0, 1), mask.T), first(emissions, tags, mask))
    assert second.decode(turned[0], mask.T) == first.decode(emissions, mask)
    torch.testing.assert_close(second.marginals(turned[0], mask.T), first.marginals(emissions, mask).transpose(0, 1))
    assert torch.equal(second.topk(turned[0], 2, mask.T)[0], first.topk(emissions, 2, mask)[0])


def test_padding_is_not_looked_at():
    crf = make()
    emissions, tags, mask = data()
    dirty = emissions.masked_fill(~mask[..., None], torch.nan).requires_grad_()
    losses = crf(dirty, tags.masked_fill(~mask, 99), mask.byte(), reduction="none")
    torch.testing.assert_close(losses, crf(emissions, tags, mask, reduction="none"))
    (g,) = torch.autograd.grad(losses.sum(), dirty)
    assert (g[~mask] == 0).all()
    assert g.isfinite().all()


def test_empty_sequences():
    crf = make(constraints=CONSTRAINTS["bio"])
    emissions, tags, mask = data()
    tags = torch.zeros_like(tags)
    mask[1] = False
    losses = crf(emissions.requires_grad_(), tags, mask, reduction="none")
    assert losses[1] == 0
    assert (torch.autograd.grad(losses.sum(), emissions)[0][1] == 0).all()
    assert crf.decode(emissions, mask)[1] == []
    assert (crf.marginals(emissions, mask)[1] == 0).all()
    top, probabilities = crf.topk(emissions, 2, mask)
    assert (top[1] == -1).all()
    assert probabilities[1].tolist() == [1, 0]
    assert crf(emissions[:, :0], tags[:, :0], reduction="none").tolist() == [0] * 4
    assert crf.decode(emissions[:0], mask[:0]) == []


@constrained
def test_gradients(constraints):
    crf = make(constraints=constraints)
    emissions, _, mask = data()
    tags = torch.zeros(mask.shape, dtype=torch.long)
    names = [name for name, _ in crf.named_parameters()]

    def loss(x, *parameters):
        return functional_call(crf, dict(zip(names, parameters)), (x, tags, mask), {"reduction": "none"})

    inputs = (emissions.requires_grad_(), *crf.parameters())
    assert gradcheck(loss, inputs)
    assert gradgradcheck(loss, inputs)


def test_the_gradient_is_marginals_minus_tags():
    crf = make()
    emissions, tags, mask = data()
    (g,) = torch.autograd.grad(crf(emissions.requires_grad_(), tags, mask, reduction="sum"), emissions)
    y = torch.nn.functional.one_hot(tags, S) * mask[..., None]
    torch.testing.assert_close(g, crf.marginals(emissions, mask).detach() - y)


def test_what_constraints_forbid_is_refused_and_moves_nothing():
    crf = make(constraints=CONSTRAINTS["bio"])
    emissions = torch.randn(2, 3, S, dtype=torch.float64)
    crf(emissions[1:], torch.tensor([[1, 2, 0]])).backward()
    assert crf.transitions.grad[0, 2] == 0
    assert all(p.grad.isfinite().all() for p in crf.parameters())
    assert crf.marginals(emissions)[:, 0, 2].tolist() == [0, 0]
    # emissions that forbid the tags are no fault of the tags
    emissions[1, 0, 1] = -torch.inf
    assert crf(emissions[1:], torch.tensor([[1, 2, 0]])) == torch.inf


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([[1, 2, 0], [0, 2, 2]], r"tags of instance 1 break .*: tag I-X at position 1 follows O; constraints=None"),
        ([[2, 2, 0], [0, 0, 0]], r"tags of instance 0 break the constraints: the first token has tag I-X"),
        ([[0, -100, 2], [0, 0, 0]], r"tags of instance 0 break .*: tag I-X at position 2 follows O"),
        ([[-1, -1, 0], [0, 2, -1]], r"no tags of instance 1 that agree with `tags` keep the constraints"),
    ],
)
def test_tags_that_break_constraints_are_refused(tags, message):
    crf = pm.nn.CRF(["O", "B-X", "I-X"])
    with pytest.raises(ValueError, match=message):
        crf(torch.randn(2, 3, S), torch.tensor(tags))
    crf = pm.nn.CRF(["O", "B-X", "I-X"], constraints=None)
    assert crf(torch.randn(2, 3, S), torch.tensor(tags)).isfinite()


def test_last_tags_that_break_constraints_are_refused():
    crf = pm.nn.CRF(["O", "B-X", "I-X", "E-X", "S-X"])
    with pytest.raises(ValueError, match="the last token has tag B-X"):
        crf(torch.randn(1, 2, 5), torch.tensor([[0, 1]]))


def test_names_of_tags_bring_their_constraints():
    names = ["O", "B-X", "I-X"]
    for constraints in ("labels", "BIO", "iob2"):
        crf = pm.nn.CRF(names, constraints=constraints)
        assert torch.equal(crf.allowed_transitions, CONSTRAINTS["bio"].transitions)
        assert torch.equal(crf.allowed_start, CONSTRAINTS["bio"].start)
    assert crf.num_tags == 3
    assert crf.labels == tuple(names)
    assert repr(crf) == "CRF(num_tags=['O', 'B-X', 'I-X'], batch_first=True)"
    assert pm.nn.CRF(names, constraints=None).allowed_transitions is None
    assert pm.nn.CRF(["NOUN", "VERB"]).allowed_transitions is None
    closed = ["O", "B-X", "I-X", "L-X", "U-X"]
    for constraints in ("labels", "BIOES", "IOBES", "BILOU"):
        crf = pm.nn.CRF(closed, constraints=constraints)
        assert torch.equal(crf.allowed_transitions, pm.nn.bioes_constraints(closed).transitions)
    with pytest.raises(ValueError, match=r"constraints 'BIO' need the names of the tags.*not CRF\(3, ...\)"):
        pm.nn.CRF(3, constraints="BIO")
    with pytest.raises(ValueError, match=r"constraints must be one of BIO, IOB2, .*; got 'IOB1'"):
        pm.nn.CRF(names, constraints="IOB1")
    with pytest.raises(TypeError, match=r"num_tags must be a positive integer, or a list of the names"):
        pm.nn.CRF("BIO")
    with pytest.raises(ValueError, match=r"the names of tags must differ; got 'O' twice"):
        pm.nn.CRF(["O", "O"])
    with pytest.raises(TypeError, match=r"constraints on transitions must be a bool tensor \(3, 3\); got list"):
        pm.nn.CRF(3, constraints=[[True]])


# positions that are no tokens: inside, first, last, all of a sequence
HOLES = torch.tensor([[1, 0, 1, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]]).bool()


@pytest.mark.parametrize("batch_first", [True, False])
@constrained
def test_positions_that_are_left_out_are_a_shorter_sentence(constraints, batch_first):
    crf = make(constraints=constraints, batch_first=batch_first)
    emissions, _, _ = data()
    shorter = [x[kept] for x, kept in zip(emissions, HOLES)]
    tags = torch.full(HOLES.shape, -100)
    gold = [torch.tensor(y, dtype=torch.long) for y in crf.decode([torch.randn_like(x) for x in shorter])]
    for row, kept, y in zip(tags, HOLES, gold):
        row[kept] = y
    order = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    x, y, mask = (order(t) for t in (emissions.requires_grad_(), tags, HOLES))
    expected = crf(shorter, gold, reduction="none")
    for given in (None, mask, torch.ones_like(mask)):
        losses = crf(x, y, given, reduction="none")
        torch.testing.assert_close(losses, expected)
    # what the mask leaves out may have any tag
    torch.testing.assert_close(crf(x, y.clamp(min=0), mask, reduction="none"), expected)
    torch.testing.assert_close(crf(x, y, reduction="token_mean"), crf(shorter, gold, reduction="sum") / HOLES.sum())
    (g,) = torch.autograd.grad(losses.sum(), emissions)
    assert (g[~HOLES] == 0).all()
    assert crf.decode(x, mask) == crf.decode(shorter)
    marginals = order(crf.marginals(x, mask))
    assert (marginals[~HOLES] == 0).all()
    top, probabilities = crf.topk(x, 2, mask)
    for b, t in enumerate(shorter):
        torch.testing.assert_close(marginals[b][HOLES[b]], crf.marginals([t])[0])
        if len(t):
            best, p = crf.topk([t], 2)
            assert torch.equal(top[b][:, HOLES[b]], best[0])
            assert (top[b][:, ~HOLES[b]] == -1).all()
            torch.testing.assert_close(probabilities[b], p[0])


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_left_out_positions_compile_and_map():
    crf = make()
    emissions, tags, mask = data()
    tags = torch.where(HOLES & mask, tags, -100)
    expected = crf(emissions, tags, reduction="none")
    compiled = torch.compile(lambda x, y: crf(x, y, reduction="none"), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(emissions, tags), expected)
    mapped = torch.vmap(lambda x, y: crf(x[None], y[None], reduction="none")[0])
    torch.testing.assert_close(mapped(emissions, tags), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int32])
def test_masks_of_integers(dtype):
    crf = make()
    emissions, tags, mask = data()
    torch.testing.assert_close(crf(emissions, tags, mask.to(dtype)), crf(emissions, tags, mask))
    with pytest.raises(ValueError, match=r"mask of integers must be 0 or 1 \(1 = token\); got 2"):
        crf.decode(emissions, 2 * mask.to(dtype))


def test_errors_name_masks_in_the_other_order():
    crf = make()
    emissions, tags, mask = data()
    with pytest.raises(
        ValueError, match=r"mask must be \(B, n\), \(4, 5\); got \(5, 4\): the other order; give mask.T"
    ):
        crf(emissions, tags, mask.T)
    with pytest.raises(ValueError, match=r"mask is \(n, B\), it seems: its columns"):
        crf(emissions[:, :4], tags[:, :4], (torch.arange(4) < torch.tensor([4, 3, 1, 2])[:, None]).T)
    late = make(batch_first=False)
    with pytest.raises(ValueError, match=r"mask must be \(n, B\), \(5, 4\); got \(4, 5\): the other order"):
        late(emissions.transpose(0, 1), tags.T, mask)


def test_moves_alone_may_be_constrained():
    crf = make(constraints=torch.eye(S, dtype=torch.bool))
    assert all(len(set(tags)) == 1 for tags in crf.decode(torch.randn(6, 4, S).double()))
    top, probabilities = crf.topk(torch.randn(2, 4, S).double(), S + 2)
    assert (top[:, S:] == -1).all()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2).double())


def test_state_dict_is_pytorch_crf_s():
    shapes = {name: tuple(t.shape) for name, t in pm.nn.CRF(S, constraints=CONSTRAINTS["bio"]).state_dict().items()}
    assert shapes == {"start_transitions": (S,), "end_transitions": (S,), "transitions": (S, S)}
    crf = pm.nn.CRF(50)
    assert all(0.05 < float(p.detach().abs().max()) <= 0.1 for p in crf.parameters())
    assert repr(crf) == "CRF(num_tags=50, batch_first=True)"


def test_copies():
    crf = make(constraints=CONSTRAINTS["bio"])
    emissions, _, mask = data()
    for other in (copy.deepcopy(crf), pickle.loads(pickle.dumps(crf))):
        assert other.decode(emissions, mask) == crf.decode(emissions, mask)


def test_half_precision_emissions_meet_float32_parameters():
    crf = make().float()
    emissions, tags, mask = data()
    half = emissions.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = crf(half, tags, mask)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, crf(half.float(), tags, mask))
    loss.backward()
    assert half.grad.dtype == torch.bfloat16
    assert crf.half()(emissions.half(), tags, mask).dtype == torch.float16
    assert crf.marginals(emissions.half(), mask).dtype == torch.float16


def test_it_learns():
    crf = pm.nn.CRF(2)
    tags = torch.tensor([[0, 1, 0, 1, 0, 1]])
    optimizer = torch.optim.SGD(crf.parameters(), 0.5)
    for _ in range(50):
        optimizer.zero_grad()
        crf(torch.zeros(1, 6, 2), tags).backward()
        optimizer.step()
    assert crf.decode(torch.zeros(1, 6, 2)) == tags.tolist()


def test_schemes():
    moves, start, end = pm.nn.bio_constraints(["O", "B-A", "I-A", "B-B", "I-B"])
    assert moves.int().tolist() == [
        [1, 1, 0, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ]
    assert start.tolist() == [True, True, False, True, False]
    assert end.all()
    moves, start, end = pm.nn.bioes_constraints(["O", "B-A", "I-A", "E-A", "S-A", "E-B"])
    assert moves.int().tolist() == [
        [1, 1, 0, 0, 1, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 0],
    ]
    assert start.tolist() == [True, True, False, False, True, False]
    assert end.tolist() == [True, False, False, True, True, True]
    other = pm.nn.bioes_constraints(["O", "B-A", "I-A", "L-A", "U-A", "L-B"])
    assert all(torch.equal(a, b) for a, b in zip(other, (moves, start, end)))


def test_errors():
    crf = make()
    emissions, tags, mask = data()
    with pytest.raises(ValueError, match=r"num_tags must be a positive integer, or .*; got 0"):
        pm.nn.CRF(0)
    with pytest.raises(ValueError, match=r"emissions must be \(B, n, 3\); got \(4, 5, 2\)"):
        crf(emissions[..., :2], tags)
    with pytest.raises(ValueError, match=r"tags must be \(4, 5\); got \(4, 4\)"):
        crf(emissions, tags[:, :4])
    with pytest.raises(ValueError, match=r"tags must be in \[0, 3\), -1 if unknown, or -100 at .*; got 7"):
        crf(emissions, tags.masked_fill(mask, 7))
    with pytest.raises(TypeError, match=r"tags must be a tensor of integers.*torch.float32"):
        crf(emissions, tags.float())
    with pytest.raises(ValueError, match=r"mask must be \(B, n\), \(4, 5\); got \(4, 4\)"):
        crf(emissions, tags, mask[:, :4])
    with pytest.raises(TypeError, match=r"mask must be a bool tensor"):
        crf(emissions, tags, mask.float())
    with pytest.raises(ValueError, match=r"reduction must be"):
        crf(emissions, tags, reduction="median")
    with pytest.raises(ValueError, match=r"constraints on start must be bool \(3,\)"):
        pm.nn.CRF(S, constraints=(None, torch.ones(2, dtype=torch.bool), None))
    with pytest.raises(ValueError, match=r"tags must be O, or one of O, B, I with a type.*'X-PER'"):
        pm.nn.bio_constraints(["O", "X-PER"])
