"""Likelihoods: ctc_loss against torch's, hidden Markov models against the forward algorithm and enumeration."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import ctc_loss

import polymax as pm

T, N, S, C = 9, 6, 4, 5
INPUTS = torch.tensor([9, 7, 4, 9, 1, 0])
TARGETS = torch.tensor([4, 3, 1, 0, 1, 0])
ARGUMENTS = {
    "rows": lambda targets: (targets, INPUTS, TARGETS),
    "joined": lambda targets: (torch.cat([t[:n] for t, n in zip(targets, TARGETS)]), INPUTS, TARGETS),
    "lists": lambda targets: (targets.int(), INPUTS.tolist(), tuple(TARGETS.tolist())),
    "padding": lambda targets: (targets.masked_fill(torch.arange(S) >= TARGETS[:, None], 99), INPUTS, TARGETS),
}


def data(blank=0):
    x = torch.randn(T, N, C, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, C - 1, (N, S))
    targets = targets + (targets >= blank)
    # repeated labels need a blank between them
    targets[0, 1] = targets[0, 0]
    targets[1, :3] = targets[1, 0]
    return x, targets


def collapsed(labels, blank):
    return [label for label, _ in itertools.groupby(labels) if label != blank]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("blank", [0, 2, C - 1])
@pytest.mark.parametrize("form", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_ctc_loss_is_torch_s(form, blank, reduction):
    x, targets = data(blank)
    arguments = form(targets)
    ours = pm.ctc_loss(x.log_softmax(-1), *arguments, blank, reduction)
    theirs = ctc_loss(x.log_softmax(-1), *ARGUMENTS["rows"](targets), blank, reduction)
    torch.testing.assert_close(ours, theirs)
    g, h = (torch.autograd.grad(loss.sum(), x)[0] for loss in (ours, theirs))
    torch.testing.assert_close(g, h)


def test_ctc_loss_is_the_sum_over_labellings():
    x = torch.randn(4, 1, 3, dtype=torch.float64)
    for target in ([], [1], [1, 1], [2, 1], [1, 2, 1]):
        labellings = [y for y in itertools.product(range(3), repeat=4) if collapsed(y, 0) == target]
        scores = torch.stack([sum(x[t, 0, label] for t, label in enumerate(y)) for y in labellings])
        arguments = (torch.tensor([target], dtype=torch.long), [4], [len(target)])
        torch.testing.assert_close(pm.ctc_loss(x, *arguments, reduction="sum"), -scores.logsumexp(0))
        best = pm.ctc_alignment(x, *arguments)
        assert tuple(best[0].tolist()) == labellings[int(scores.argmax())]


def test_ctc_loss_of_what_does_not_fit():
    x, targets = data()
    counts = torch.tensor([4, 4, 4, 4, 2, 1])
    x = x.log_softmax(-1)
    targets[2] = 1
    losses = pm.ctc_loss(x, targets, INPUTS, counts, reduction="none")
    torch.testing.assert_close(losses, ctc_loss(x, targets, INPUTS, counts, reduction="none"))
    assert losses.isinf().tolist() == [False, False, True, False, True, True]
    (g,) = torch.autograd.grad(losses.sum(), x)
    assert g.isfinite().all()
    assert (g[:, losses.isinf()] == 0).all()
    assert (pm.ctc_alignment(x, targets, INPUTS, counts)[losses.isinf()] == -1).all()
    for reduction in ("mean", "sum", "none"):
        arguments = (x, targets, INPUTS, counts, 0, reduction, True)
        ours, theirs = pm.ctc_loss(*arguments), ctc_loss(*arguments)
        torch.testing.assert_close(ours, theirs)
        assert torch.autograd.grad(ours.sum(), x)[0].isfinite().all()


def test_ctc_loss_of_one_sequence():
    x, targets = data()
    arguments = (x[:, 0].log_softmax(-1), targets[0], torch.tensor(T), torch.tensor(S))
    for reduction in ("mean", "sum", "none"):
        ours = pm.ctc_loss(*arguments, reduction=reduction)
        torch.testing.assert_close(ours, ctc_loss(*arguments, reduction=reduction))
        assert ours.shape == ()
    assert collapsed(pm.ctc_alignment(*arguments).tolist(), 0) == targets[0].tolist()


def test_ctc_loss_of_no_targets_at_all():
    x, _ = data()
    x = x.log_softmax(-1)
    none = torch.zeros(N, dtype=torch.long)
    for targets in (torch.zeros(N, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)):
        losses = pm.ctc_loss(x, targets, [T] * N, none, reduction="none")
        torch.testing.assert_close(losses, -x[..., 0].sum(0))


def test_ctc_gradients_are_those_of_the_formula():
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    arguments = (torch.tensor([[1, 1], [2, 0]]), torch.tensor([5, 3]), torch.tensor([2, 1]))
    assert gradcheck(lambda x: pm.ctc_loss(x, *arguments, reduction="none"), (x,))
    assert gradgradcheck(lambda x: pm.ctc_loss(x, *arguments, reduction="none"), (x,))


def test_ctc_of_certain_and_of_impossible_labels():
    x = torch.full((3, 1, 3), -torch.inf, dtype=torch.float64)
    x[0, 0, 1] = x[1, 0, 0] = x[2, 0, 1] = 0
    x.requires_grad_()
    loss = pm.ctc_loss(x, torch.tensor([[1, 1]]), [3], [2], reduction="sum")
    assert loss == 0
    (g,) = torch.autograd.grad(loss, x)
    assert torch.equal(g, -(x == 0).double())
    assert pm.ctc_loss(x, torch.tensor([[1, 2]]), [3], [2], reduction="sum") == torch.inf


def test_ctc_half_precision():
    x, targets = data()
    x = x.detach().log_softmax(-1)
    half = pm.ctc_loss(x.bfloat16(), targets, INPUTS, TARGETS)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), pm.ctc_loss(x, targets, INPUTS, TARGETS), rtol=2e-2, atol=0)


def test_ctc_alignments_read_as_the_targets():
    x, targets = data()
    best = pm.ctc_alignment(x, targets, INPUTS, TARGETS)
    assert best.shape == (N, T)
    for b in range(N):
        assert collapsed(best[b, : INPUTS[b]].tolist(), 0) == targets[b, : TARGETS[b]].tolist()
        assert (best[b, INPUTS[b] :] == -1).all()


def test_ctc_errors():
    x, targets = data()
    with pytest.raises(ValueError, match=r"reduction must be"):
        pm.ctc_loss(x, targets, INPUTS, TARGETS, reduction="median")
    with pytest.raises(ValueError, match=r"log_probs must be \(T, N, C\) or \(T, C\)"):
        pm.ctc_loss(x[0, 0], targets, INPUTS, TARGETS)
    with pytest.raises(ValueError, match=r"blank must be one of 5 classes; got 5"):
        pm.ctc_loss(x, targets, INPUTS, TARGETS, blank=5)
    with pytest.raises(ValueError, match=r"input_lengths must be in \[0, 9\]"):
        pm.ctc_loss(x, targets, INPUTS + 1, TARGETS)
    with pytest.raises(ValueError, match=r"target_lengths must be \(6,\)"):
        pm.ctc_loss(x, targets, INPUTS, TARGETS[:3])
    with pytest.raises(ValueError, match=r"target_lengths must sum to 4, the targets given; got 9"):
        pm.ctc_loss(x, targets[0], INPUTS, TARGETS)
    with pytest.raises(ValueError, match=r"targets must be in \[0, 5\)"):
        pm.ctc_loss(x, targets + 4, INPUTS, TARGETS)
    with pytest.raises(TypeError, match=r"targets must be a tensor of integers; got torch.float32"):
        pm.ctc_loss(x, targets.float(), INPUTS, TARGETS)
    with pytest.raises(ValueError, match=r"targets must be \(6, S\), or all targets in one dim"):
        pm.ctc_loss(x, targets[:2], INPUTS, TARGETS)


def model(*batch, n=5, s=3):
    initial = torch.randn(*batch, s, dtype=torch.float64).log_softmax(-1)
    transition = torch.randn(s, s, dtype=torch.float64).log_softmax(-1)
    emission = torch.randn(*batch, n, s, dtype=torch.float64) - 1
    return initial, transition, emission


def forward_algorithm(initial, transition, emission):
    alpha = initial + emission[0]
    for step in emission[1:]:
        alpha = (alpha[:, None] + transition).logsumexp(0) + step
    return alpha.logsumexp(0)


def test_hmm_likelihood_is_the_forward_algorithm():
    initial, transition, emission = model(2, 3)
    lengths = torch.tensor([[5, 1, 2], [0, 4, 5]])
    value = pm.hmm_log_likelihood(initial, transition, emission, lengths)
    for b in itertools.product(range(2), range(3)):
        n = int(lengths[b])
        expected = forward_algorithm(initial[b], transition, emission[b][:n]) if n else torch.zeros(()).double()
        torch.testing.assert_close(value[b], expected)
    shared = pm.hmm_log_likelihood(initial[0, 0], transition, emission)
    torch.testing.assert_close(shared[1, 2], forward_algorithm(initial[0, 0], transition, emission[1, 2]))


def test_hmm_by_enumeration():
    initial, transition, emission = model(n=4)
    states = torch.tensor(list(itertools.product(range(3), repeat=4)))
    joint = initial[states[:, 0]] + emission[torch.arange(4), states].sum(1)
    joint = joint + transition[states[:, :-1], states[:, 1:]].sum(1)
    torch.testing.assert_close(pm.hmm_log_likelihood(initial, transition, emission), joint.logsumexp(0))
    p = joint.softmax(0)
    y = pm.Chain().encode(states, 3)
    posterior = pm.hmm_posterior(initial, transition, emission)
    torch.testing.assert_close(posterior.unary, torch.einsum("k,kts->ts", p, y.unary.double()))
    torch.testing.assert_close(posterior.transition, torch.einsum("k,ktij->tij", p, y.transition.double()))
    assert torch.equal(pm.hmm_viterbi(initial, transition, emission), states[p.argmax()])


def test_hmm_padding_and_forbidden_starts():
    initial, transition, emission = model(2)
    initial = initial.masked_fill(torch.tensor([False, True, False]), -torch.inf)
    lengths = torch.tensor([5, 2])
    posterior = pm.hmm_posterior(initial, transition, emission, lengths)
    assert (posterior.unary[:, 0, 1] == 0).all()
    assert (posterior.unary[1, 2:] == 0).all()
    assert (pm.hmm_viterbi(initial, transition, emission, lengths)[1, 2:] == -1).all()


def test_hmm_gradients():
    inputs = tuple(t.requires_grad_() for t in model(2, n=3))
    assert gradcheck(pm.hmm_log_likelihood, inputs)
    assert gradgradcheck(pm.hmm_log_likelihood, inputs)


def test_hmm_errors():
    initial, transition, emission = model(2)
    with pytest.raises(ValueError, match=r"initial must be \(3,\) or \(2, 3\); got \(2, 2\)"):
        pm.hmm_log_likelihood(initial[:, :2], transition, emission)
    with pytest.raises(ValueError, match=r"emission must be \(\*batch, n, s\); got \(3,\)"):
        pm.hmm_viterbi(initial[0], transition, emission[0, 0])
    with pytest.raises(ValueError, match=r"transition must be \(3, 3\)"):
        pm.hmm_posterior(initial, transition[:2], emission)


def pasted_viterbi_decode(score, transition_params):
    """The function that people paste: TensorFlow's, for one sequence."""
    trellis, back = [score[0]], []
    for now in score[1:]:
        ways = trellis[-1][:, None] + transition_params
        trellis.append(now + ways.amax(0))
        back.append(ways.argmax(0))
    tags = [int(trellis[-1].argmax())]
    for step in reversed(back):
        tags.append(int(step[tags[-1]]))
    return tags[::-1], trellis[-1].max()


def test_viterbi_decode():
    score, transition = torch.randn(3, 5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    lengths = torch.tensor([5, 3, 1])
    tags, best = pm.viterbi_decode(score, transition, lengths)
    for b, n in enumerate(lengths.tolist()):
        alone, value = pasted_viterbi_decode(score[b, :n].detach(), transition.detach())
        assert tags[b].tolist() == alone + [-1] * (5 - n)
        torch.testing.assert_close(best[b], value)
        torch.testing.assert_close(pm.viterbi_decode(score[b, :n], transition)[1], value)
    slope, counts = torch.autograd.grad(best.sum(), (score, transition))
    assert torch.equal(slope.sum(-1), (tags >= 0).float())
    assert torch.equal(slope.argmax(-1)[tags >= 0], tags[tags >= 0])
    assert counts.sum() == (lengths - 1).sum()
    forbidden = pm.viterbi_decode(torch.full((2, 3), -torch.inf), torch.zeros(3, 3))
    assert forbidden[0].tolist() == [-1, -1]
    assert forbidden[1] == -torch.inf
