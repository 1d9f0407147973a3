"""Alignments of speech and of sequences: lengths, errors, ties, and parity with what people use."""

import itertools
import random
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from tolerances import close, equal
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm
from polymax.kernels.ctc import ctc_search
from polymax.kernels.ctc.reference import ctc_search as labelling
from polymax.kernels.monotonic import monotonic_cells, monotonic_search
from polymax.kernels.monotonic.reference import monotonic_cells as reference_cells
from polymax.kernels.monotonic.reference import monotonic_search as reference

# where Triton's file runs: compiled, or in the interpreter
GPU = "cuda" if torch.cuda.is_available() else "cpu"
SEARCHES, CELLS, LABELLINGS = [(monotonic_search, "cpu")], [(monotonic_cells, "cpu")], [(ctc_search, "cpu")]
if find_spec("triton"):
    CELLS.append((import_module("polymax.kernels.monotonic.cuda").monotonic_cells, GPU))
    LABELLINGS.append((import_module("polymax.kernels.ctc.cuda").ctc_search, GPU))
    SEARCHES.append((import_module("polymax.kernels.monotonic.cuda").monotonic_search, GPU))
FRAMES, TOKENS = torch.tensor([7, 5, 5, 3, 1, 0]), torch.tensor([3, 5, 1, 2, 1, 0])


def monotonic_align(scores, frames, tokens):
    """The path by the rule of the usual code: move on only where it is better, or there is no other way."""
    value, path = scores.tolist(), torch.zeros_like(scores)
    for t in range(frames):
        for j in range(max(0, tokens - frames + t), min(t + 1, tokens)):
            stay = value[t - 1][j] if j < t else -1e9
            move = value[t - 1][j - 1] if j else (0.0 if t == 0 else -1e9)
            value[t][j] += max(stay, move)
    j = tokens - 1
    for t in range(frames - 1, -1, -1):
        path[t, j] = 1
        if j and (j == t or value[t - 1][j] < value[t - 1][j - 1]):
            j -= 1
    return path


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_monotonic_alignment_search(dtype):
    # small integers: many ties
    scores = torch.randint(-2, 3, (6, 7, 5)).to(dtype)
    path = pm.monotonic_alignment_search(scores, (FRAMES, TOKENS))
    for b, (n, m) in enumerate(zip(FRAMES.tolist(), TOKENS.tolist())):
        equal(path[b], monotonic_align(scores[b], n, m), "the path is that of monotonic_align, ties too")
    equal(pm.monotonic_alignment_search(scores, (FRAMES, TOKENS), "durations"), path.sum(-2).long(), "durations")
    tokens, _ = monotonic_search(scores, FRAMES, TOKENS)
    equal(pm.monotonic_alignment_search(scores, (FRAMES, TOKENS), "tokens"), tokens, "tokens of frames")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 7, 5), (4, 47, 40), (2, 0, 0), (0, 3, 2)])
@pytest.mark.device
def test_searches_are_their_reference(dtype, shape):
    """To the bits, with ties and without, on the CPU and by Triton."""
    frames = torch.randint(0, shape[1] + 1, shape[:1])
    tokens = (torch.rand(shape[0]) * (frames.clamp(max=shape[2]) + 1)).long().clamp(max=shape[2])
    if shape[1] > 9:
        # vectors of sixteen tokens, blocks of eight frames, and ways that are narrow
        frames[:3], tokens[:3] = torch.tensor([47, 40, 35]), torch.tensor([40, 40, 32])
    for given in (torch.randint(-2, 3, shape).to(dtype), torch.randn(shape).to(dtype)):
        path, value = reference(given, frames, tokens)
        # the interpreter is slow
        for search, device in SEARCHES if shape[1] < 9 or GPU == "cuda" else SEARCHES[:1]:
            ours = search(*(t.to(device) for t in (given, frames, tokens)))
            equal(ours[0].cpu(), path, "the kernel is its reference")
            equal(ours[1].cpu(), value, "the kernel is its reference")


@pytest.mark.device
def test_monotonic_search_of_what_is_forbidden_or_undefined():
    scores = torch.randn(6, 7, 5)
    scores[0, 3] = -torch.inf
    scores[1, 2, 2] = torch.nan
    scores[2, 0, 3] = torch.nan  # no path comes there
    for search, device in (*SEARCHES, (reference, "cpu")):
        tokens, value = (t.cpu() for t in search(scores.to(device), FRAMES.to(device), TOKENS.to(device)))
        assert value[0] == -torch.inf
        assert value[1].isnan()
        assert value[2:].isfinite().all()
        assert (tokens[:2] == -1).all()
        assert (tokens[2, :5] == 0).all()
    with pytest.raises(ValueError, match=r"got 2 tokens for 1 frames of instance \(1,\)"):
        pm.monotonic_alignment_search(torch.zeros(2, 3, 2), (torch.tensor([3, 1]), torch.tensor([2, 2])))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.device
def test_cells_of_monotonic_searches(dtype):
    scores = torch.randn(6, 7, 5).to(dtype)
    scores[1, 2, 2] = torch.nan
    found = reference(scores, FRAMES, TOKENS)
    given = scores, *found, FRAMES, TOKENS
    expected = reference_cells(*given)
    equal(expected[1].isnan(), pm.Monotonic((FRAMES, TOKENS)).usable(scores)[0][1], "NaN is on all ways")
    for cells, device in CELLS:
        equal(cells(*(t.to(device) for t in given)).cpu(), expected, "the kernel is its reference")


def test_ctc_of_lengths():
    targets = torch.tensor([[1, 2, 2], [2, 1, 0], [1, 1, 0], [0, 0, 0]])
    counts, frames = torch.tensor([3, 2, 2, 0]), torch.tensor([5, 4, 3, 2])
    x = torch.randn(4, 5, 3, dtype=torch.float64).log_softmax(-1)
    ctc = pm.CTC(targets, counts, frames)
    losses = torch.nn.functional.ctc_loss(x.movedim(0, 1), targets, frames, counts, reduction="none")
    close(-pm.Marginals(ctc).max(x), losses, "the sum over labellings is torch's ctc_loss")
    mu, y = pm.Marginals(ctc)(x), ctc.map(x)
    for b in range(4):
        alone = pm.CTC(targets[b, : counts[b]])
        close(mu[b, : frames[b]], pm.Marginals(alone)(x[b, : frames[b]]), "padding is a shorter problem")
        equal(y[b, : frames[b]], alone.map(x[b, : frames[b]]), "padding is a shorter problem")
        assert (mu[b, frames[b] :] == 0).all()
    equal(ctc.encode(ctc.decode(y), 3), y.float(), "labels are indicators")
    drawn = pm.Marginals(ctc).distribution(x).sample((50,))
    assert pm.Marginals(ctc).distribution(x).log_prob(drawn).isfinite().all()
    inputs = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(pm.Marginals(ctc), inputs, fast_mode=True)
    assert gradgradcheck(pm.Marginals(ctc).max, inputs, fast_mode=True)


@pytest.mark.parametrize("forbidden", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.device
def test_best_labellings(ties, forbidden):
    """The search of labellings is the best derivation of the lattice, ties too, on the CPU and by Triton."""
    targets = torch.tensor([[1, 2, 2, 0], [2, 2, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [2, 1, 2, 1], [1, 1, 1, 0]])
    counts, frames = torch.tensor([3, 3, 1, 0, 4, 3]), torch.tensor([11, 4, 1, 3, 7, 9])
    x = torch.randint(-1, 2, (6, 11, 3)).double() if ties else torch.randn(6, 11, 3, dtype=torch.float64)
    if forbidden:
        x[torch.rand(x.shape) < 0.2] = -torch.inf
    ctc = pm.CTC(targets, counts, frames)
    found, value = labelling(x, targets, counts, frames, 0)
    best = super(pm.CTC, ctc).map(x)
    equal(found, ctc.decode(best), "the search finds the best derivation")
    equal(value, ctc.best_score(x), "the search finds the best derivation")
    equal(ctc.map(x), best, "the search finds the best derivation")
    # what cannot be: undefined scores, more targets than fit, targets that are no labels
    hostile = torch.where(torch.rand(x.shape) < 0.1, torch.nan, x)
    fewer, unknown = frames.clamp(max=4), targets.clone()
    unknown[0, 1] = 7
    for given in ((x, targets, counts, frames), (hostile, targets, counts, frames), (x, unknown, counts, fewer)):
        expected = labelling(*given, 0)
        for search, device in LABELLINGS:
            for ours, theirs in zip(search(*(t.to(device) for t in given), 0), expected):
                equal(ours.cpu(), theirs, "the kernel is its reference")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pm.CTC([1, 2]), TypeError, "targets must be a tensor of integers; got list"),
        (lambda: pm.CTC(torch.tensor([3])).map(torch.zeros(2, 3)), ValueError, r"targets must be in \[0, 3\)"),
        (
            lambda: pm.CTC(torch.tensor([1]), blank=3).map(torch.zeros(2, 3)),
            ValueError,
            "blank must be one of 3 labels",
        ),
        (
            lambda: pm.CTC(torch.tensor([[1, 2], [1, 1]])).map(torch.zeros(2, 2, 3)),
            ValueError,
            r"2 targets need 3 frames; got 2 of instance \(1,\)",
        ),
        (
            lambda: pm.CTC(torch.tensor([1, 2])).encode(torch.tensor([1, 0, 1]), 3),
            ValueError,
            r"read as \[1, 1\], not as \[1, 2\]",
        ),
        (lambda: pm.GappedAlignment("glocal"), ValueError, "mode must be one of"),
        (lambda: pm.GappedAlignment().map(torch.zeros(2, 2)), TypeError, "pairs, open, extend; got 1"),
        (
            lambda: pm.GappedAlignment().map(torch.zeros(2, 2), torch.zeros(3), 0.0),
            ValueError,
            r"open must broadcast to the pairs \(2, 2\); got \(3,\)",
        ),
        (
            lambda: pm.GappedAlignment().encode(torch.tensor([[0, 1], [1, 1]]), 2, 2),
            ValueError,
            r"pair \(1, 1\) does not come after pair \(0, 1\)",
        ),
        (
            lambda: pm.Transducer((torch.tensor(0), torch.tensor(1))).map(torch.zeros(2, 3), torch.zeros(2, 2)),
            ValueError,
            "tokens need a frame",
        ),
        (lambda: pm.Transducer().encode(torch.tensor([2, 1]), 3), ValueError, "frame 1 has number 1, after 2"),
        (
            lambda: pm.rnnt_loss(torch.zeros(1, 2, 2, 3), torch.tensor([[3]]), [2], [1]),
            ValueError,
            r"targets must be in \[0, 3\)",
        ),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_labels_of_forced_align_have_the_dtype_of_the_targets(dtype):
    log_probs, targets = torch.randn(6, 4).log_softmax(-1), torch.tensor([1, 2, 2])
    labels, _ = pm.forced_align(log_probs, targets.to(dtype))
    # -1 is no number of uint8
    assert labels.dtype == (dtype if dtype.is_signed else torch.int64)
    assert torch.equal(labels.long(), pm.forced_align(log_probs, targets)[0])


def test_forced_align():
    log_probs = torch.randn(2, 6, 4).log_softmax(-1)
    targets, counts, frames = torch.tensor([[1, 2, 2], [3, 0, 0]]), torch.tensor([3, 1]), torch.tensor([6, 4])
    labels, scores = pm.forced_align(log_probs, targets, frames, counts)
    together = pm.ctc_alignment(log_probs.movedim(0, 1), targets, frames, counts)
    equal(labels, together, "forced_align is ctc_alignment, batch first")
    assert (labels[1, 4:] == -1).all()
    assert (scores[1, 4:] == 0).all()
    close(scores[0], log_probs[0].gather(-1, labels[0].unsqueeze(-1)).squeeze(-1), "scores are those of the labels")
    spans = pm.merge_tokens(labels[0], scores[0].exp())
    assert [s.token for s in spans] == [1, 2, 2]
    assert all(a.end <= b.start for a, b in itertools.pairwise(spans))
    # a wildcard: one more label, as good as the best one in every frame
    star = torch.cat([log_probs, log_probs.amax(-1, keepdim=True)], -1)
    labels, _ = pm.forced_align(star[0], torch.tensor([4, 2]))
    assert sorted(set(labels.tolist()) - {0}) == [2, 4]


def torchaudio_functional():
    """Torchaudio's functions; one that does not fit torch fails to load, in its own ways."""
    return pytest.importorskip("torchaudio", exc_type=Exception).functional


def test_tokens_are_merged_of_one_utterance():
    labels, scores = torch.tensor([1, 1, 0]), torch.tensor([0.5, 1.0, 0.5])
    assert len(pm.merge_tokens(labels, scores)) == 1
    for wrong in ((labels[None], scores[None]), (labels, scores[:2]), (labels[None], scores)):
        with pytest.raises(ValueError, match=r"labels and scores must be \(frames,\), of one utterance"):
            pm.merge_tokens(*wrong)


def test_forced_align_is_torchaudio_s():
    audio = torchaudio_functional()
    log_probs = torch.randn(3, 30, 8).log_softmax(-1)
    targets, counts, frames = torch.tensor([[1, 3, 3, 2, 5], [7, 7, 7, 0, 0], [4, 0, 0, 0, 0]]), [5, 3, 1], [30, 12, 1]
    ours, ours_scores = pm.forced_align(log_probs, targets, torch.tensor(frames), torch.tensor(counts))
    for b, (n, m) in enumerate(zip(frames, counts)):
        labels, scores = audio.forced_align(log_probs[b : b + 1, :n], targets[b : b + 1, :m], blank=0)
        equal(ours[b, :n], labels[0].long(), "the path is torchaudio's")
        close(ours_scores[b, :n], scores[0], "the scores are torchaudio's")
        spans = pm.merge_tokens(ours[b], ours_scores[b].exp())
        theirs = audio.merge_tokens(labels[0], scores[0].exp())
        assert [(s.token, s.start, s.end, len(s)) for s in spans] == [(s.token, s.start, s.end, len(s)) for s in theirs]
        close(torch.tensor([s.score for s in spans]), torch.tensor([float(s.score) for s in theirs]), "scores of spans")


@pytest.mark.parametrize("blank", [-1, 0])
@pytest.mark.parametrize("clamp", [-1.0, 0.05])
def test_rnnt_loss_is_torchaudio_s(blank, clamp):
    audio = torchaudio_functional()
    logits = torch.randn(3, 6, 4, 5, requires_grad=True)
    first = 1 if blank == 0 else 0
    targets = torch.randint(first, 4 + first, (3, 3), dtype=torch.int32)
    lengths = torch.tensor([6, 4, 1], dtype=torch.int32), torch.tensor([3, 2, 0], dtype=torch.int32)
    found = []
    for loss in (pm.rnnt_loss, audio.rnnt_loss):
        losses = loss(logits, targets, *lengths, blank, clamp, "none")
        found.append((losses.detach(), *torch.autograd.grad(losses.sum(), logits)))
    close(found[0][0], found[1][0], "losses are torchaudio's")
    close(found[0][1], found[1][1], "gradients are torchaudio's")


def matched(first, second, match=2.0, mismatch=-1.0):
    return torch.tensor([[match if a == b else mismatch for b in second] for a in first], dtype=torch.float64)


@pytest.mark.parametrize("mode", ["global", "local", "semi-global"])
@pytest.mark.parametrize(("opened", "extended"), [(-2.0, -0.5), (-1.5, -1.5)])
def test_gapped_alignment_is_biopython_s(mode, opened, extended):
    align = pytest.importorskip("Bio.Align")
    peer = align.PairwiseAligner(mode=mode.removeprefix("semi-"), match_score=2.0, mismatch_score=-1.0)
    peer.open_gap_score, peer.extend_gap_score = opened, extended
    if mode == "semi-global":
        peer.end_gap_score = 0.0
    letters = random.Random(0)
    for n, m in ((1, 1), (5, 9), (12, 7), (9, 9)):
        first, second = ("".join(letters.choices("ACGT", k=k)) for k in (n, m))
        pairs = matched(first, second)
        gapped = pm.GappedAlignment(mode)
        best = {pairs_of(found) for found in itertools.islice(peer.align(first, second), 2000)}
        alike = [(gapped, (opened, extended))]
        if opened == extended:
            alike.append((pm.GappedAlignment(mode, "linear"), (opened,)))
        for ours, gaps in alike:
            close(ours.best_score(pairs, *gaps), peer.score(first, second), "the score is Biopython's")
            path = ours.decode(ours.map(pairs, *gaps)).tolist()
            assert tuple(tuple(p) for p in path if p[0] >= 0) in best, "the path is one of Biopython's"


def test_all_optimal_alignments_are_biopython_s():
    align = pytest.importorskip("Bio.Align")
    peer = align.PairwiseAligner(match_score=2.0, mismatch_score=-1.0, open_gap_score=-1.0, extend_gap_score=-1.0)
    letters = random.Random(1)
    gapped = pm.GappedAlignment("global", "linear")
    for n, m in ((5, 7), (8, 6), (7, 7)):
        first, second = ("".join(letters.choices("ACGT", k=k)) for k in (n, m))
        best = {pairs_of(found) for found in peer.align(first, second)}
        found, count = gapped.optimal(matched(first, second), -1.0)
        ours = {tuple(map(tuple, y.nonzero().tolist())) for y in found.pairs}
        assert ours == best
        assert len(ours) == count


@pytest.mark.parametrize("free", [False, True], ids=["", "free ends"])
def test_scores_of_insertions_deletions_and_ends_are_biopython_s(free):
    align = pytest.importorskip("Bio.Align")
    peer = align.PairwiseAligner(match_score=2.0, mismatch_score=-1.0)
    # a gap in Biopython's query deletes a row
    peer.open_internal_deletion_score, peer.extend_internal_deletion_score = -2.0, -0.5
    peer.open_internal_insertion_score, peer.extend_internal_insertion_score = -3.0, -0.25
    inner, ends = (-2.0, -0.5, -3.0, -0.25), (0.0, 0.0, 0.0, 0.0) if free else (-1.0, -0.125, -1.5, -0.5)
    peer.open_end_deletion_score, peer.extend_end_deletion_score = ends[:2]
    peer.open_end_insertion_score, peer.extend_end_insertion_score = ends[2:]
    edits, letters = pm.EditPath("affine"), random.Random(2)
    for n, m in ((1, 1), (4, 9), (12, 7), (9, 9), (3, 14)):
        first, second = ("".join(letters.choices("ACGT", k=k)) for k in (n, m))
        scores = edits.steps(matched(first, second), *inner, ends=ends)
        close(edits.best_score(scores), peer.score(first, second), "the score is Biopython's")
        linear = pm.EditPath().steps(matched(first, second), -2.0, -3.0)
        same = pm.EditPath("affine").steps(matched(first, second), -2.0, -2.0, -3.0, -3.0)
        close(pm.EditPath().best_score(linear), edits.best_score(same), "one score for all of a gap is linear")


def test_steps_of_edit_paths_are_checked():
    pairs, edits = torch.zeros(2, 3), pm.EditPath()
    with pytest.raises(TypeError, match="gap scores of linear gaps are deletion, insertion; got 1"):
        edits.steps(pairs, -1.0)
    with pytest.raises(TypeError, match="ends of linear gaps"):
        edits.steps(pairs, -1.0, -1.0, ends=(0.0,))
    with pytest.raises(ValueError, match=r"deletion must broadcast to \(3, 4\); got \(2, 3\)"):
        edits.steps(pairs, torch.zeros(2, 3), -1.0)
    with pytest.raises(ValueError, match=r"scores must be \(\*batch, n \+ 1, m \+ 1, 3\); got \(2, 3\)"):
        edits.map(pairs)
    with pytest.raises(ValueError, match="gap must be one of"):
        pm.EditPath("free")
    each = edits.steps(pairs, torch.arange(3.0)[:, None], torch.arange(4.0))
    assert each[2, 1].tolist() == [0.0, 2.0, 1.0], "a score for each row, and for each column"


def pairs_of(alignment):
    """The pairs of one of Biopython's alignments."""
    blocks = zip(*alignment.aligned, strict=True)
    return tuple((int(a) + k, int(b) + k) for (a, end), (b, _) in blocks for k in range(end - a))


@pytest.mark.parametrize("mode", ["global", "local", "semi-global"])
@pytest.mark.parametrize("gap", ["affine", "linear"])
def test_gapped_alignments_of_lengths(mode, gap):
    gaps = 2 if gap == "affine" else 1
    scores = tuple(torch.randn(4, 4, 4, dtype=torch.float64) for _ in range(gaps + 1))
    sizes = [(4, 4), (2, 3), (3, 1), (1, 4)]
    rows, columns = (torch.tensor(t) for t in zip(*sizes))
    set_of_all = pm.GappedAlignment(mode, gap, (rows, columns))
    for smooth in (pm.HardMax, pm.Marginals, pm.SparseMap):
        mu = smooth(set_of_all)(*scores)
        for b, (n, m) in enumerate(sizes):
            alone = smooth(pm.GappedAlignment(mode, gap))(*(x[b, :n, :m] for x in scores))
            for whole, part in zip(mu, alone, strict=True):
                close(whole[b, :n, :m], part, "padding is a shorter problem")
    found = pm.SparseMap(set_of_all).distribution(*scores)
    means = [(found.probs[..., None, None] * t).sum(1) for t in found.vertices]
    for mean, m in zip(means, pm.SparseMap(set_of_all)(*scores), strict=True):
        close(mean, m, "the structures that make up mu are whole")


@pytest.mark.parametrize("gap", ["affine", "linear"])
def test_free_ends(gap):
    """Semi-global alignments against their enumeration: the longer end is free, the shorter one a gap."""
    gapped = pm.GappedAlignment("semi-global", gap)
    for n, m in ((1, 3), (3, 2), (3, 4)):
        scores = [
            torch.randn(n, m, dtype=torch.float64, requires_grad=True) for _ in range(3 if gap == "affine" else 2)
        ]
        y = gapped.named(*(t.double() for t in gapped.vertices((n, m))))
        totals = gapped.score(y, *scores)
        smooth = pm.Marginals(gapped)
        close(smooth.max(*scores), totals.logsumexp(0), "the sum over alignments")
        for mu, best, t in zip(smooth(*scores), gapped.map(*scores), y, strict=True):
            close(mu, torch.einsum("k,kij->ij", totals.softmax(0), t), "marginals")
            equal(best, t[totals.argmax()], "the best alignment")
        close(smooth.distribution(*scores).log_prob(y), totals.log_softmax(0), "each alignment has its probability")
        for part, used in zip(gapped.usable(*scores), y, strict=True):
            equal(part, (used != 0).any(0), "parts that some alignment uses")
        assert gradcheck(smooth.max, scores, fast_mode=True)
        assert gradgradcheck(pm.LocalMax(gapped, pm.Gini()).max, scores, fast_mode=True)
    y = gapped.with_lengths(None).encode(torch.tensor([[1, 2], [2, 4]]), 4, 6)
    assert pm.cigar(y, "ACGT", "TTCAGT") == "1D2I1M1I1M1D1I"
    assert float(y.extend.sum() + (y.open.sum() if gap == "affine" else 0)) == 3, (
        "one position at each end, and one gap"
    )


def test_gapped_alignment_takes_numbers_and_learns_them():
    pairs = matched("ACGTT", "AGT").requires_grad_()
    gapped = pm.GappedAlignment()
    numbers = pm.Marginals(gapped).max(pairs, -2.0, -0.5)
    opened, extended = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (-2.0, -0.5))
    close(pm.Marginals(gapped).max(pairs, opened, extended), numbers, "numbers are tensors")
    smooth = pm.Marginals(gapped)
    assert gradcheck(smooth.max, (pairs, opened, extended), fast_mode=True)
    assert gradgradcheck(smooth.max, (pairs, opened, extended), fast_mode=True)
    by_row = torch.linspace(-3, -1, 5, dtype=torch.float64)[:, None]
    assert smooth(pairs, by_row, extended).open.shape == pairs.shape
    y = gapped.map(pairs.detach(), -2.0, -0.5)
    assert pm.aligned_strings(y, "ACGTT", "AGT") == ("ACGTT", "A-G-T")
    assert pm.cigar(y, "ACGTT", "AGT") == "1M1D1M1D1M"
    drawn = pm.plot.alignment(smooth(pairs, -2.0, -0.5).pairs, path=y.pairs)
    assert drawn.lines[0].get_xydata().tolist() == [[0, 0], [1, 2], [2, 4]]
    loss = pm.crf_loss(gapped, (pairs, opened, extended), torch.tensor([[0, 0], [2, 1], [3, 2]]))
    assert loss > 0


def test_fasta(tmp_path):
    pm.write_fasta(tmp_path / "pair.fa", ("ACGT", "A--T"), ("first", "second"), width=3)
    assert (tmp_path / "pair.fa").read_text() == ">first\nACG\nT\n>second\nA--\nT\n"


def test_stockholm(tmp_path):
    pm.write_stockholm(tmp_path / "pair.sto", ("ACGT", "A--T"), ("first one", "b"))
    assert (tmp_path / "pair.sto").read_text() == "# STOCKHOLM 1.0\nfirst_one ACGT\nb         A--T\n//\n"
    for rows, names, message in (
        (("A", "AC"), ("a", "b"), "rows must have one length, as in an alignment; got 1, 2"),
        (("A", "C"), ("a", "a"), "names must differ, and none may be empty; got 'a', 'a'"),
        (("A", "C"), ("a",), "names must be as many as rows, 2; got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            pm.write_stockholm(tmp_path / "pair.sto", rows, names)


def transduced(log_probs, target, blank):
    """- log of the sum over all paths, one by one."""
    n, states, _ = log_probs.shape
    scores = []
    for counts in itertools.combinations_with_replacement(range(states), n - 1):
        total, u = log_probs.new_zeros(()), 0
        for t, end in enumerate((*counts, states - 1)):
            while u < end:
                total, u = total + log_probs[t, u, target[u]], u + 1
            total = total + log_probs[t, u, blank]
        scores.append(total)
    return -torch.stack(scores).logsumexp(0)


@pytest.mark.parametrize("blank", [-1, 0])
def test_rnnt_loss(blank):
    logits = torch.randn(3, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    targets, frames, counts = torch.randint(1, 4, (3, 2)), torch.tensor([4, 2, 1]), torch.tensor([2, 1, 0])
    losses = pm.rnnt_loss(logits, targets, frames, counts, blank, reduction="none")
    log_probs = logits.log_softmax(-1)
    for b in range(3):
        alone = transduced(log_probs[b, : frames[b], : counts[b] + 1], targets[b], blank)
        close(losses[b], alone, "the loss is the sum over all paths")
    arguments = targets, frames, counts, blank
    close(pm.rnnt_loss(log_probs, *arguments, fused_log_softmax=False), losses.mean(), "log-probabilities, and mean")
    assert gradcheck(lambda x: pm.rnnt_loss(x, *arguments), logits, fast_mode=True)
    assert gradgradcheck(lambda x: pm.rnnt_loss(x, *arguments), logits, fast_mode=True)
    (g,) = torch.autograd.grad(losses.sum(), logits)
    (clamped,) = torch.autograd.grad(pm.rnnt_loss(logits, *arguments, 0.05, "sum"), logits)
    close(clamped, g.clamp(-0.05, 0.05), "clamp bounds the gradient")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_additive_loss_is_compiled_and_mapped():
    terms = torch.randn(2, 3, 3, requires_grad=True), torch.randn(2, 2, 3, requires_grad=True)
    given = torch.randint(0, 2, (2, 1)), torch.tensor([3, 1]), torch.tensor([1, 0])

    def loss(*terms):
        return pm.additive_rnnt_loss(*terms, *given)

    plain = loss(*terms)
    slopes = torch.autograd.grad(plain, terms)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(*terms)
    close(compiled, plain, "compiled")
    for a, b in zip(torch.autograd.grad(compiled, terms), slopes, strict=True):
        close(a, b, "the gradient of compiled code")
    others = [torch.randn_like(t) for t in terms]
    mapped = torch.vmap(loss)(*(torch.stack(pair) for pair in zip(terms, others, strict=True)))
    close(mapped, torch.stack([plain, loss(*others)]), "mapped")
    assert mapped[0] != mapped[1]
    for a, b in zip(torch.func.jacrev(loss, (0, 1))(*terms), slopes, strict=True):
        close(a, b, "the gradient of torch.func")


# the cases in the tests of warp-transducer and warp-rnnt: T = 2 or 3, U = 2, V = 5, labels 1 and 2, blank 0
FRAME = [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.6, 0.1, 0.1], [0.1, 0.1, 0.2, 0.8, 0.1]]
OTHER = [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.1, 0.1], [0.7, 0.1, 0.2, 0.1, 0.1]]
PUBLISHED = torch.tensor([[FRAME, OTHER, [[0.0] * 5] * 3], [FRAME, OTHER, FRAME]])
SLOPES = [
    [-0.13116688, -0.3999269, 0.17703125, 0.17703125, 0.17703125],
    [-0.18572757, 0.12247056, -0.18168412, 0.12247056, 0.12247056],
    [-0.32091254, 0.06269141, 0.06928472, 0.12624499, 0.06269141],
    [0.05456069, -0.21824276, 0.05456069, 0.05456069, 0.05456069],
    [0.12073959, 0.12073959, -0.48295835, 0.12073959, 0.12073959],
    [-0.6925882, 0.16871116, 0.18645467, 0.16871116, 0.16871116],
]


def packed(logits, targets, frames, counts):
    rows = [x[:n, : m + 1].flatten(0, 1) for x, n, m in zip(logits, frames.tolist(), counts.tolist())]
    return torch.cat(rows), torch.cat([y[:m] for y, m in zip(targets, counts.tolist())])


def test_rnnt_loss_of_published_cases():
    targets, frames, counts = torch.tensor([[1, 2], [1, 2]]), torch.tensor([2, 3]), torch.tensor([2, 2])
    logits = PUBLISHED.clone().requires_grad_()
    losses = pm.rnnt_loss(logits, targets, frames, counts, 0, reduction="none")
    close(losses, torch.tensor([4.495666773770733, 5.7367250428101615]), "the published losses")
    (g,) = torch.autograd.grad(losses.sum(), logits)
    close(g[0, :2].flatten(0, 1), torch.tensor(SLOPES), "the published gradient")
    assert not g[0, 2].any()
    log_probs = PUBLISHED.log_softmax(-1).requires_grad_()
    loss = pm.rnnt_loss(log_probs, targets, frames, counts, 0, reduction="sum", fused_log_softmax=False)
    (g,) = torch.autograd.grad(loss, log_probs)
    close(g[1, 0, :2, :2], torch.tensor([[-0.45920877, -0.54079123], [-0.32392462, 0.0]]), "in log-probabilities")
    one = pm.rnnt_loss(PUBLISHED[:1, :1], targets[:1], [1], [2], 0)
    close(one, torch.tensor(4.274244594423859), "one frame, many tokens")
    none = pm.rnnt_loss(PUBLISHED[:1, :1, :1], targets[:1, :0], [1], [0], 0)
    close(none, torch.tensor(1.7314291957733714), "one frame, no token")


@pytest.mark.parametrize("fused", [True, False])
def test_packed_logits(fused):
    logits = torch.randn(4, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    targets, frames, counts = torch.randint(0, 4, (4, 2)), torch.tensor([4, 2, 1, 0]), torch.tensor([2, 1, 0, 0])
    rows, tokens = packed(logits, targets, frames, counts)
    expected = pm.rnnt_loss(logits, targets, frames, counts, reduction="none", fused_log_softmax=fused)
    for given in (tokens, targets):
        losses = pm.rnnt_loss(rows, given, frames, counts, reduction="none", fused_log_softmax=fused)
        equal(losses, expected, "packed logits have the loss of padded ones")
    (whole,), (part,) = (torch.autograd.grad(x.sum(), logits, retain_graph=True) for x in (expected, losses))
    equal(whole, part, "and their gradient")
    leaf = rows.detach().requires_grad_()
    assert gradcheck(lambda x: pm.rnnt_loss(x, tokens, frames, counts, clamp=0.0), leaf, fast_mode=True)
    assert gradgradcheck(lambda x: pm.rnnt_loss(x, tokens, frames, counts), leaf, fast_mode=True)


@pytest.mark.parametrize("scale", [1.0, 200.0, 1e4])
def test_additive_rnnt_loss(scale):
    """Also where factors underflow: terms of a frame and of a token that have their largest entries apart."""
    encoder = (scale * torch.randn(3, 4, 6, dtype=torch.float64)).requires_grad_()
    predictor = (scale * torch.randn(3, 3, 6, dtype=torch.float64)).requires_grad_()
    targets, frames, counts = torch.randint(0, 5, (3, 2)), torch.tensor([4, 2, 1]), torch.tensor([2, 1, 0])

    def additive(e, p):
        return pm.additive_rnnt_loss(e, p, targets, frames, counts)

    def whole(e, p):
        return pm.rnnt_loss(e.unsqueeze(2) + p.unsqueeze(1), targets, frames, counts)

    close(additive(encoder, predictor), whole(encoder, predictor), "the loss of the sum")
    for ours, theirs in zip(
        *(torch.autograd.grad(f(encoder, predictor), (encoder, predictor)) for f in (additive, whole))
    ):
        close(ours, theirs, "the gradients of the sum")
    if scale == 200.0:
        terms = (200 * torch.eye(6)[:4].expand(3, 4, 6)).clone(), (200 * torch.eye(6)[3:].expand(3, 3, 6)).clone()
        assert (torch.bmm((terms[0] - 200).exp(), (terms[1] - 200).exp().mT) == 0).any(), "float32 has no such product"
        close(additive(*terms), whole(*terms), "terms that underflow are added up in the logarithm")
    if scale < 1e4:
        assert gradcheck(additive, (encoder, predictor), fast_mode=True)
        assert gradgradcheck(additive, (encoder, predictor), fast_mode=True)
    half = additive(encoder.detach().bfloat16(), predictor.detach().bfloat16())
    assert half.dtype == torch.bfloat16
    assert half.isfinite()


def test_additive_logits_are_never_formed():
    """No tensor of the loss and of its gradient is as large as all logits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            for t in found if isinstance(found, tuple | list) else [found]:
                if isinstance(t, torch.Tensor):
                    self.most = max(self.most, t.untyped_storage().nbytes() // max(1, t.element_size()))
            return found

    encoder, predictor = torch.randn(2, 20, 64, requires_grad=True), torch.randn(2, 11, 64, requires_grad=True)
    with Largest() as seen:
        pm.additive_rnnt_loss(encoder, predictor, torch.randint(0, 63, (2, 10)), [20, 15], [10, 7]).backward()
    assert seen.most < 2 * 20 * 11 * 64 / 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pm.rnnt_loss(torch.zeros(5, 3), torch.tensor([1]), [2], [1]), "packed logits must have 4 rows"),
        (
            lambda: pm.rnnt_loss(torch.zeros(4, 3), torch.tensor([1, 1]), [2], [1]),
            "targets must be 1, one after the other",
        ),
        (
            lambda: pm.rnnt_loss(torch.zeros(4, 3), torch.ones(2, 1).long(), [2], [1]),
            r"targets must be \(1,\), or \(1, U\)",
        ),
        (
            lambda: pm.rnnt_loss(torch.zeros(4, 3), torch.tensor([1]), [2], [1], 7),
            "blank must be one of 3 classes; got 7",
        ),
        (lambda: pm.rnnt_loss(torch.zeros(2, 4, 3), torch.tensor([1]), [2], [1]), r"or packed \(rows, V\)"),
        (
            lambda: pm.additive_rnnt_loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), torch.tensor([[1]]), [2], [1]),
            r"predictor must be \(1, U \+ 1, 3\) torch.float32 on cpu, as the encoder; got \(1, 2, 4\)",
        ),
    ],
)
def test_what_transducers_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()
