"""Exports to ONNX, run by onnxruntime at sizes that the export never saw, against torch."""

import io
import itertools
import math
import sys

import pytest
import torch

import polymax as pm

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnx = pytest.importorskip("polymax.integrations.onnx")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
ANY = torch.export.Dim.AUTO
ROWS = {0: ANY, 1: ANY}


class Model(torch.nn.Module):
    """A function, and the modules that it calls."""

    def __init__(self, fn, *modules):
        super().__init__()
        self.fn, self.inner = fn, torch.nn.ModuleList(modules)

    def forward(self, *args):
        return self.fn(*args)


def exported(fn, args, shapes, *modules):
    """A function that runs the exported graph."""
    program = torch.onnx.export(
        Model(fn, *modules).eval(),
        args,
        dynamo=True,
        dynamic_shapes=(tuple(shapes),),
        custom_translation_table=onnx.translation_table(),
        verbose=False,
    )
    file = io.BytesIO()
    program.save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])

    def run(*given):
        feed = {known.name: t.detach().numpy() for known, t in zip(session.get_inputs(), given, strict=True)}
        return [torch.from_numpy(out) for out in session.run(None, feed)]

    return run


def agree(fn, run, cases):
    for given in cases:
        with torch.no_grad():
            expected = fn(*given)
        for found, right in zip(run(*given), expected, strict=True):
            torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5, equal_nan=True)
            # what is forbidden has no weight at all, in both
            if right.is_floating_point():
                assert torch.equal(found == 0, right == 0)


def scores(n, m):
    """Rows with a half of -inf, all -inf, and NaN, and scores that are far apart."""
    x = 2 * torch.randn(n, m)
    x[0, : m // 2] = -torch.inf
    if n > 3:
        x[1], x[2, 0], x[3] = -torch.inf, torch.nan, 1e4 * x[3]
    return x


def test_mappings():
    learned = pm.nn.AdaptiveEntmax(2)

    def mappings(x, keep):
        bound = torch.full_like(x, 0.6)
        return (
            pm.softmax(x, gamma=0.5),
            pm.sparsemax(x),
            pm.sparsemax(x, dim=0),
            pm.entmax(x),
            pm.entmax(x, 1.3, mask=keep),
            pm.entmax(x, 1.9, gamma=2.0),
            pm.sparsemax(x.half()).float(),
            pm.csparsemax(x, bound + 1),
            pm.csoftmax(x, bound + 1),
            pm.csoftmax(x.nan_to_num(0, 1, -1), bound, torch.full_like(x, 1e-3)),
            pm.csparsemax(x.nan_to_num(0, 1, -1), bound),
            pm.budgetmax(x, 1.0),
            learned(x[None, None].expand(1, 2, -1, -1).nan_to_num(0)),
        )

    x = torch.randn(3, 5)
    run = exported(mappings, (x, x < 1), (ROWS, ROWS), learned)
    sizes = [(3, 5), (6, 9), (1, 2), (5, 700)]
    agree(mappings, run, [(x := scores(n, m), torch.rand(n, m) < 0.8) for n, m in sizes])


def test_the_bound_of_the_docstring_holds():
    alphas = (1.01, 1.25, 1.75, 1.99)

    def weights(x):
        return tuple(pm.entmax(x, alpha) for alpha in alphas)

    run = exported(weights, (torch.randn(2, 3).double(),), (ROWS,))
    for n, spread in itertools.product((2, 50, 5000), (1e-3, 1.0, 30.0)):
        x = spread * torch.randn(4, n, dtype=torch.float64)
        for alpha, found in zip(alphas, run(x), strict=True):
            bound = 2 * math.expm1(2**-40 * n ** (alpha - 1) / (alpha - 1))
            assert float((found - exact(x, alpha)).abs().sum(-1).max()) <= bound + 1e-12
            assert bound < 4e-7


def exact(x, alpha):
    """Entmax by 200 halvings in float64."""
    w = 1 + (alpha - 1) * (x - x.amax(-1, keepdim=True))
    low, high = torch.zeros_like(w[:, :1]), torch.ones_like(w[:, :1])
    for _ in range(200):
        u = (low + high) / 2
        above = ((w - u).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, u, low), torch.where(above, high, u)
    y = (w - low).clamp(min=0) ** (1 / (alpha - 1))
    return y / y.sum(-1, keepdim=True)


def sequences(batch, n, states=4):
    """Scores of a chain with -inf and NaN, transitions for each step, and lengths."""
    unary = 2 * torch.randn(batch, n, states)
    lengths = torch.randint(0, n + 1, (batch,))
    lengths[0] = n
    unary[0, :, 1] = -torch.inf
    if batch > 2:
        unary[1], unary[2, 0, 0], lengths[2] = -torch.inf, torch.nan, max(1, int(lengths[2]))
        unary[0, -1, 1] = torch.nan if int(lengths[0]) < n else unary[0, -1, 1]
    return unary, torch.randn(states, states), torch.randn(batch, n - 1, states, states), lengths


def test_chains():
    def both(unary, shared, each, lengths):
        chain = pm.Chain(lengths)
        best, expected = pm.HardMax(chain), pm.Marginals(chain, gamma=0.7)
        tags = chain.decode(best(unary, shared).unary.nan_to_num(0))
        found = best(unary, shared), best(unary, each), expected(unary, shared), expected(unary, each)
        values = best.max(unary, each), expected.max(unary, shared)
        return (tags, *itertools.chain.from_iterable(found), *values)

    shapes = ROWS, {}, ROWS, {0: ANY}
    run = exported(both, sequences(3, 6), shapes)
    agree(both, run, [sequences(*size) for size in ((3, 6), (5, 13), (1, 2), (4, 60))])


def test_a_conditional_random_field():
    crf = pm.nn.CRF(["O", "B-X", "I-X", "B-Y"])
    torch.nn.init.normal_(crf.transitions)

    def tags(emissions, mask):
        return crf.best_tags(emissions, mask), crf.marginals(emissions, mask)

    def given(batch, n):
        return torch.randn(batch, n, 4), torch.rand(batch, n) < 0.7

    run = exported(tags, given(3, 6), (ROWS, ROWS), crf)
    cases = [given(*size) for size in ((3, 6), (1, 1), (5, 40))]
    agree(tags, run, cases)
    for emissions, mask in cases:
        rows = run(emissions, mask)[0]
        assert [row[row >= 0].tolist() for row in rows] == crf.decode(emissions, mask)


def test_a_tagger_of_transformers():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from polymax.integrations.transformers import CRFConfig, CRFForTokenClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    encoder = transformers.BertConfig(vocab_size=20, **sizes)
    names = dict(enumerate(["O", "B-X", "I-X"]))
    model = CRFForTokenClassification(CRFConfig(encoder=encoder, id2label=names)).eval()
    model.token_kinds[5:9] = 1

    def logits(ids, mask):
        return (model(ids, mask).logits,)

    def given(batch, n):
        mask = torch.ones(batch, n, dtype=torch.long)
        mask[-1, n // 2 + 1 :] = 0
        return torch.randint(1, 20, (batch, n)), mask

    run = exported(logits, given(3, 6), (ROWS, ROWS), model)
    agree(logits, run, [given(5, 19), given(1, 2)])


def speech(batch, frames, size, hostile=False):
    log_probs = torch.randn(batch, frames, 6).log_softmax(-1)
    # few labels, so that equal ones are neighbours
    targets = torch.randint(1, 4, (batch, size))
    counts = torch.randint(0, size + 1, (batch,))
    lengths = torch.randint(2 * size + 1, frames + 1, (batch,))
    counts[0] = size
    if hostile:
        log_probs[1], log_probs[2, 0] = -torch.inf, torch.nan
        log_probs[3, :, 0] = -torch.inf
    return log_probs, targets, lengths, counts


def test_forced_alignment():
    def aligned(log_probs, targets, lengths, counts):
        return pm.forced_align(log_probs, targets, lengths, counts)

    run = exported(aligned, speech(3, 12, 3), (ROWS, ROWS, {0: ANY}, {0: ANY}))
    agree(aligned, run, [speech(3, 12, 3), speech(5, 40, 7, hostile=True), speech(1, 3, 1)])


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (pm.normmax, "neither normmax nor sq_pnorm_max"),
        (lambda x: pm.entmax(x, 2.5), "alpha must be in"),
        (lambda x: pm.LocalMax(pm.Chain(), pm.Gini())(x[None], x[:3, :3]).unary, "Marginals and HardMax"),
    ],
)
def test_what_has_no_translation_is_refused(fn, message):
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        exported(lambda x: (fn(x),), (torch.randn(4, 3),), ({},))
    causes = [caught.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert any(message in str(cause) for cause in causes)


@pytest.mark.parametrize("dynamo", [True, False])
def test_a_plain_export_says_where_to_look(dynamo, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "polymax.integrations.onnx")
    model = Model(pm.sparsemax)
    with pytest.raises(RuntimeError, match=r"custom_translation_table=polymax.integrations.onnx.translation_table\(\)"):
        torch.onnx.export(model, (torch.randn(2, 3),), tmp_path / "model.onnx", dynamo=dynamo, verbose=False)
