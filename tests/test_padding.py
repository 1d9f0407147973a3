"""Padding may hold anything, NaN and infinities too: neither values nor gradients of what counts are moved by it."""

import pytest
import torch
from sets import RAGGED, every

import polymax as pm
from polymax.structures.base import tensors

JUNK = (torch.nan, torch.inf, -torch.inf)


def check(function, given, inside):
    """A function of tensors gives the same bits, and gradients of 0 at padding, whatever is in the padding."""
    found = []
    for junk in (0.0, *JUNK):
        x = [torch.where(m, t, junk).requires_grad_() for t, m in zip(given, inside, strict=True)]
        outputs = [t for t in tensors(function(*x)) if t.is_floating_point()]
        derived = [t for t in outputs if t.requires_grad]
        grads, second = [], []
        if derived:
            slopes = [torch.linspace(1, 2, t.numel()).to(t).reshape(t.shape) for t in derived]
            grads = torch.autograd.grad(derived, x, slopes, materialize_grads=True, create_graph=True)
            curved = [g.square().sum() for g in grads if g.requires_grad]
            second = torch.autograd.grad(sum(curved), x, materialize_grads=True) if curved else []
        found.append((junk, [t.detach() for t in (*outputs, *grads, *second)]))
        for g, m in zip((*grads, *second), (*inside, *inside), strict=False):
            assert not g[~m].any(), f"the gradient at padding of {junk} is 0"
    for junk, later in found[1:]:
        for bits, expected in zip(later, found[0][1], strict=True):
            assert torch.equal(bits, expected), f"padding of {junk} moves {expected} to {bits}"


@every(RAGGED)
def test_sets(row):
    full, short = row.size(), max(row.size() - 1, row.least)
    if full == short:
        pytest.skip("all instances are as long as each other")
    scores = row.scores(batch=(2,))
    inside = [torch.ones_like(t, dtype=torch.bool) for t in scores]
    for t, kept in zip(inside, row.cut(inside, short), strict=True):
        if t.dim() > 2:
            own = torch.zeros_like(t[1])
            own[tuple(slice(k) for k in kept.shape[1:])] = True
            t[1] = own
    structure = row.with_lengths(torch.tensor([full, short]))
    smoothings = [pm.HardMax(structure), pm.SparseMap(structure)]
    smoothings += [pm.Marginals(structure)] if row.able("count") else []
    smoothings += [pm.LocalMax(structure, pm.Gini())] if row.able("local") else []
    for smoothing in smoothings:
        check(smoothing, scores, inside)
        check(lambda *x, s=smoothing: (s.max(*x),), scores, inside)


FRAMES, TOKENS, LABELS = torch.tensor([4, 2]), torch.tensor([2, 1]), torch.tensor([[1, 2], [3, 1]])


def within(lengths, size):
    return torch.arange(size) < lengths[:, None]


FUNCTIONS = {
    "ctc_loss": (
        lambda x: pm.ctc_loss(x.transpose(0, 1), LABELS, FRAMES, TOKENS), [within(FRAMES, 4)[..., None].expand(2, 4, 5)]
    ),
    "rnnt_loss": (
        lambda x: pm.rnnt_loss(x, LABELS, FRAMES, TOKENS, blank=0),
        [(within(FRAMES, 4)[..., None] & within(TOKENS + 1, 3)[:, None])[..., None].expand(2, 4, 3, 5)],
    ),
    "rnnt_loss of log-probabilities": (
        lambda x: pm.rnnt_loss(x, LABELS, FRAMES, TOKENS, blank=0, fused_log_softmax=False),
        [(within(FRAMES, 4)[..., None] & within(TOKENS + 1, 3)[:, None])[..., None].expand(2, 4, 3, 5)],
    ),
    "additive_rnnt_loss": (
        lambda e, p: pm.additive_rnnt_loss(e, p, LABELS, FRAMES, TOKENS, blank=0),
        [within(FRAMES, 4)[..., None].expand(2, 4, 5), within(TOKENS + 1, 3)[..., None].expand(2, 3, 5)],
    ),
    "tdt_loss": (
        lambda x, y: pm.tdt_loss(x, y, LABELS, FRAMES, TOKENS, 0, [0, 1, 2]),
        [
            (within(FRAMES, 4)[..., None] & within(TOKENS + 1, 3)[:, None])[..., None].expand(2, 4, 3, 5),
            (within(FRAMES, 4)[..., None] & within(TOKENS + 1, 3)[:, None])[..., None].expand(2, 4, 3, 3),
        ],
    ),
    "joint_rnnt_loss": (
        lambda e, p, w: pm.joint_rnnt_loss(e, p, w, LABELS, FRAMES, TOKENS, blank=0),
        [
            within(FRAMES, 4)[..., None].expand(2, 4, 3),
            within(TOKENS + 1, 3)[..., None].expand(2, 3, 3),
            torch.ones(5, 3, dtype=torch.bool),
        ],
    ),
    "hmm_log_likelihood": (
        lambda x: pm.hmm_log_likelihood(torch.zeros(3).double(), torch.zeros(3, 3).double(), x, FRAMES),
        [within(FRAMES, 4)[..., None].expand(2, 4, 3)],
    ),
    "soft_dtw": (
        lambda x: pm.soft_dtw(x, lengths=(FRAMES, TOKENS)), [within(FRAMES, 4)[..., None] & within(TOKENS, 2)[:, None]]
    ),
    "dtw": (lambda x: pm.dtw(x, lengths=(FRAMES, TOKENS)), [within(FRAMES, 4)[..., None] & within(TOKENS, 2)[:, None]]),
    "monotonic_alignment_search": (
        lambda x: pm.monotonic_alignment_search(x, (FRAMES, TOKENS)).double(),
        [within(FRAMES, 4)[..., None] & within(TOKENS, 2)[:, None]],
    ),
    "forced_align": (
        lambda x: pm.forced_align(x, LABELS, FRAMES, TOKENS)[1], [within(FRAMES, 4)[..., None].expand(2, 4, 5)]
    ),
    "entmax_loss": (
        lambda x: pm.entmax_loss(x, torch.tensor([1, -100, 2])),
        [torch.tensor([[True], [False], [True]]).expand(3, 5)]
    ),
    "sparsemax_loss": (
        lambda x: pm.sparsemax_loss(x, torch.tensor([1, -100, 2])),
        [torch.tensor([[True], [False], [True]]).expand(3, 5)]
    ),
    "linear_entmax_loss": (
        lambda h, w: pm.linear_entmax_loss(h, w, torch.tensor([1, -100, 2])),
        [torch.tensor([[True], [False], [True]]).expand(3, 4), torch.ones(5, 4, dtype=torch.bool)],
    ),
    "linear loss of alpha 1": (
        lambda h, w: pm.linear_entmax_loss(h, w, torch.tensor([1, -100, 2]), alpha=1.0),
        [torch.tensor([[True], [False], [True]]).expand(3, 4), torch.ones(5, 4, dtype=torch.bool)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function, inside = FUNCTIONS[name]
    check(function, [torch.randn(m.shape, dtype=torch.float64) for m in inside], inside)
