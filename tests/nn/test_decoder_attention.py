"""Attention of decoders: learned scores, and fertilities that are used up."""

import pytest
import torch
from tolerances import close
from torch.autograd import gradcheck

import polymax as pm
from polymax import nn

N, L, S = 2, 4, 5
KEEP = torch.tensor([[True] * 5, [True, True, True, False, False]])
few = pytest.mark.parametrize("mapping", [pm.softmax, pm.sparsemax], ids=["softmax", "sparsemax"])


def slopes(out, inputs):
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return torch.autograd.grad((weight * out).sum(), inputs)


SCORERS = {
    "dot": lambda: nn.DotScorer(0.7),
    "bilinear": lambda: nn.BilinearScorer(4, 4),
    "additive": lambda: nn.AdditiveScorer(4, 4, 6),
}
scored = pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS.keys())


def decoder(batch=(N,), steps=L):
    query = torch.randn(*batch, steps, 4, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(*batch, S, 4, dtype=torch.float64, requires_grad=True)
    values = torch.randn(*batch, S, 3, dtype=torch.float64, requires_grad=True)
    return query, keys, values


@scored
def test_scores(scorer):
    scorer = scorer().double()
    query, keys, _ = decoder()
    scores = scorer(query, keys)
    for t in range(L):
        for s in range(S):
            q, k = query[0, t], keys[0, s]
            if isinstance(scorer, nn.DotScorer):
                expected = 0.7 * q @ k
            elif isinstance(scorer, nn.BilinearScorer):
                expected = q @ scorer.key.weight @ k
            else:
                expected = scorer.energy.weight[0] @ torch.tanh(scorer.query(q) + scorer.key.weight @ k)
            close(scores[0, t, s], expected, "the score of a pair")


@scored
@few
def test_attention_of_a_decoder(scorer, mapping):
    attention = nn.Attention(scorer().double(), mapping)
    query, keys, values = decoder()
    context, weights = attention(query, keys, values, KEEP)
    close(weights, mapping(attention.scorer(query, keys), mask=KEEP[:, None]), "weights are the mapping of scores")
    close(context, weights @ values, "the context is the mean of values")
    for t in range(L):
        step, step_weights = attention(query[:, t], keys, values, KEEP)
        close(step, context[:, t], "one query is one of many")
        close(step_weights, weights[:, t], "one query is one of many")
    short, _ = attention(query[1:], keys[1:, :3], values[1:, :3])
    close(context[1:], short, "masked is truncated")
    close(attention(query, keys)[0], attention(query, keys, keys)[0], "values are the keys")
    inputs = (query, keys, values)
    assert gradcheck(lambda *inputs: attention(*inputs, KEEP)[0], inputs)
    assert gradcheck(lambda *inputs: attention(*inputs, torch.zeros_like(KEEP))[0], inputs)


BOUNDED = pytest.mark.parametrize("mapping", [pm.csparsemax, pm.csoftmax], ids=["csparsemax", "csoftmax"])


@BOUNDED
def test_no_word_gets_more_than_its_fertility(mapping):
    attention = nn.FertilityAttention(nn.DotScorer(), mapping)
    query, keys, values = decoder(steps=6)
    fertility = torch.tensor([[1.5, 0.3, 2.0, 1.0, 1.9], [2.0, 1.4, 0.0, 2.1, 2.0]], dtype=torch.float64)
    context, weights, left = attention(query, keys, fertility, values)
    close(weights.sum(-1), torch.ones(N, 6), "each step has weights that sum to 1")
    close(left, fertility - weights.sum(1), "what is left is what was not given")
    assert (left >= 0).all()
    close(context, weights @ values, "the context is the mean of values")
    at = fertility
    for t in range(6):
        step = attention(query[:, t], keys, at, values)
        close(step.weights, weights[:, t], "step by step is all at once")
        scores = (query[:, t : t + 1] @ keys.transpose(1, 2))[:, 0]
        close(step.weights, mapping(scores, upper=at), "the bound is what is left")
        at = step.left
    close(at, left, "step by step is all at once")


@BOUNDED
def test_a_step_takes_at_most_the_rest(mapping):
    attention = nn.FertilityAttention(nn.DotScorer(), mapping)
    query, keys, values = decoder(steps=4)
    fertility = torch.full((N, S), 0.5, dtype=torch.float64)
    _, weights, left = attention(query, keys, fertility, values)
    close(weights.sum(-1), torch.tensor([1, 1, 0.5, 0]).expand(N, 4), "in all there are 2.5")
    close(left, torch.zeros(N, S), "nothing is left")
    close(weights[:, 3], torch.zeros(N, S), "nothing is left to take")
    inputs = [x.detach().requires_grad_() for x in (query, keys, values)]
    slope = slopes(attention(inputs[0], inputs[1], fertility, inputs[2]).context, inputs)
    assert all(g.isfinite().all() for g in slope)


@BOUNDED
def test_a_sink_takes_the_rest(mapping):
    attention = nn.FertilityAttention(nn.DotScorer(), mapping)
    query, keys, _ = decoder(steps=4)
    fertility = torch.full((N, S), 0.5, dtype=torch.float64)
    fertility[:, -1] = torch.inf
    weights, left = attention(query, keys, fertility)[1:]
    close(weights.sum(-1), torch.ones(N, 4), "a word of infinite fertility is always there")
    assert (weights[..., :-1].sum(1) <= 0.5 + 1e-12).all()
    assert (left[:, -1] == torch.inf).all()


def test_exhaustion_prefers_remaining_fertility():
    query, keys = torch.zeros(1, 1), torch.zeros(3, 1)
    fertility = torch.tensor([0.5, 1.0, torch.inf])
    plain = nn.FertilityAttention(nn.DotScorer())(query, keys, fertility).weights
    eager = nn.FertilityAttention(nn.DotScorer(), exhaustion=0.2)(query, keys, fertility).weights
    close(plain, torch.full((1, 3), 1 / 3), "without it, words of equal scores are equal")
    close(eager, pm.csparsemax(torch.tensor([[0.1, 0.2, 0.0]]), upper=1.0), "scores move by what is left")


@BOUNDED
def test_masked_words_have_no_fertility(mapping):
    attention = nn.FertilityAttention(nn.DotScorer(), mapping)
    query, keys, values = decoder(steps=3)
    fertility = torch.rand(N, S, dtype=torch.float64) + 0.2
    context, weights, _ = attention(query, keys, fertility, values, KEEP)
    short = attention(query[1:], keys[1:, :3], fertility[1:, :3], values[1:, :3])
    close(context[1:], short.context, "masked is truncated")
    close(weights[1:, :, :3], short.weights, "masked is truncated")
    assert (weights[1, :, 3:] == 0).all()


@BOUNDED
def test_gradients_through_remaining_fertility(mapping):
    attention = nn.FertilityAttention(nn.DotScorer(), mapping, exhaustion=0.3)
    query, keys, values = decoder(steps=3)
    fertility = (torch.rand(N, S, dtype=torch.float64) + 0.3).requires_grad_()
    assert gradcheck(lambda q, k, f, v: attention(q, k, f, v, KEEP).context, (query, keys, fertility, values))


def test_fertility_in_half_precision():
    attention = nn.FertilityAttention(nn.DotScorer())
    query, keys, _ = (x.bfloat16() for x in decoder(steps=3))
    context, weights, left = attention(query, keys, torch.ones(N, S, dtype=torch.bfloat16))
    assert (context.dtype, weights.dtype, left.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    close(left.sum(-1), torch.full((N,), 2.0), "what is left is counted in float32")


def test_decoder_errors():
    query, keys, _ = decoder()
    attention, fertile = nn.Attention(nn.DotScorer()), nn.FertilityAttention(nn.DotScorer())
    with pytest.raises(TypeError, match=r"mapping must be a function.*; got int"):
        nn.Attention(nn.DotScorer(), 2)
    with pytest.raises(ValueError, match=r"query must be \(\*batch, Q\) or \(\*batch, T, Q\).*got \(4,\)"):
        attention(query[0, 0], keys)
    with pytest.raises(ValueError, match=r"mask must be \(2, 5\); got \(2, 4\)"):
        attention(query, keys, mask=KEEP[:, 1:])
    with pytest.raises(TypeError, match=r"mask must be a bool tensor \(True = keep\); got torch.float32"):
        attention(query, keys, mask=KEEP.float())
    with pytest.raises(ValueError, match=r"fertility must be \(2, 5\); got \(5,\)"):
        fertile(query, keys, torch.ones(5))
    with pytest.raises(ValueError, match=r"fertility must be at least 0; got -1"):
        fertile(query, keys, -torch.ones(N, S))


COMPILED = {
    "additive": nn.Attention(nn.AdditiveScorer(4, 4, 6).double(), pm.fusedmax),
    "bilinear": nn.Attention(nn.BilinearScorer(4, 4).double(), pm.entmax),
    "fertility": lambda q, k, v: nn.FertilityAttention(nn.DotScorer())(q, k, k[..., 0].abs() + 0.3, v),
}


# torch's own code warns about itself when it traces
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("attend", COMPILED.values(), ids=COMPILED.keys())
def test_compile(attend):
    torch._dynamo.reset()
    inputs = decoder()
    results = []
    for fn in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=False)):
        out = fn(*inputs)
        out = out if torch.is_tensor(out) else out[0]
        results.append((out.detach(), *slopes(out, inputs)))
    for a, b in zip(*results, strict=True):
        close(b, a, "compiled attention is attention")
