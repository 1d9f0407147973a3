"""Trials of attention and of losses over a vocabulary, against the formula on all scores in float64."""

import math

import torch
from torch import Tensor

import polymax as pm
from tests.campaign import hostile
from tests.campaign.hostile import Draw

# mappings are judged by their own trials; here they are parts of the formula
ALPHAS = (1.0, 1.25, 1.5, 2.0)


def _near(found: Tensor, expected: Tensor, room: Tensor | float) -> bool:
    """True if numbers agree within the room, and NaN and infinities are in the same places."""
    same = (found == expected) | (found.isnan() & expected.isnan())
    return bool((same | ((found - expected).abs() <= room)).all())


def _drawn(draw: Draw, kind: torch.dtype, *shape: int) -> Tensor:
    x = hostile.numbers(draw, math.prod(shape[:-1]), shape[-1], kind, wild=False).reshape(shape)
    # products of two stay far from the limits of a dtype
    return x.clamp(-1e4, 1e4)


def attention(draw: Draw) -> tuple[int, list[str]]:
    """Outputs are weights of all scores times values; values and keys that no query may see have no influence."""
    kind = draw.choice([torch.float64, torch.float32])
    heads, groups, batch = draw.choice([1, 2, 4]), draw.choice([1, 2]), draw.choice([1, 2])
    queries, keys = draw.choice([1, 3, 17, 70]), draw.choice([1, 5, 64, 65, 130, 300, 1023, 1024, 1025])
    size, wide = draw.choice([1, 4, 8]), draw.choice([1, 3, 8])
    groups = 1 if heads == 1 else groups
    alpha = draw.choice(ALPHAS)
    shapes = ((batch, heads, queries, size), (batch, heads // groups, keys, size), (batch, heads // groups, keys, wide))
    q, k, v = (_drawn(draw, kind, *shape) for shape in shapes)
    causal, window = draw.chance(0.3), draw.choice([None, None, (3, 0), (9, 3), (150, 40)])
    softcap, scale = draw.choice([None, None, 5.0]), draw.choice([None, 1.0, 0.05])
    masked = draw.choice(["", "", "keys", "all"])
    draw.note(f"{str(kind)[6:]} {shapes} alpha {alpha} causal {causal} window {window} softcap {softcap} {masked}")
    mask = None
    if masked:
        mask = torch.rand(batch, 1, queries if masked == "all" else 1, keys, generator=draw.generator) < 0.7
    if masked == "keys" and alpha > 1:
        # what a padded key holds is anything; softmax is torch's kernel, which multiplies it by 0
        hidden = ~mask[:, 0, 0]
        junk = draw.choice([math.nan, math.inf, 1e30])
        k = k.masked_fill(hidden[:, None, :, None], junk)
        v = v.masked_fill(hidden[:, None, :, None], junk)
    given = [t.to(draw.device).requires_grad_() for t in (q, k, v)]
    options = {"is_causal": causal, "window": window, "softcap": softcap, "scale": scale, "enable_gqa": groups > 1}
    out = pm.nn.scaled_dot_product_attention(
        *given, attn_mask=None if mask is None else mask.to(draw.device), mapping=_mapping(alpha), **options
    )
    there = torch.ones(batch, 1, queries, keys, dtype=torch.bool) if mask is None else mask.expand(-1, -1, queries, -1)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    if causal:
        there = there & (j <= i)
    if window is not None:
        there = there & (i - j <= window[0]) & (j - i <= window[1])
    seen = there.any(-2)[:, 0, :, None]
    whole = [q.double(), *(torch.where(seen[:, None], t.double(), 0).repeat_interleave(groups, 1) for t in (k, v))]
    wanted = [t.requires_grad_() for t in whole]
    scores = wanted[0] @ wanted[1].mT * (scale if scale is not None else 1 / math.sqrt(size))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    expected = pm.Tsallis(alpha).argmax(scores, mask=there) @ wanted[2]
    eps = max(torch.finfo(kind).eps, 1e-15)
    reach = float(wanted[0].abs().amax() * wanted[1].abs().amax()) * size * (scale or 1.0)
    # sums of products are rounded; weights follow scores, and values are as large as they are
    room = 64 * eps * (1 + reach) * (1 + float(wanted[2].abs().amax())) * math.sqrt(keys)
    faults = [] if _near(out.double().cpu(), expected, room) else [f"the output is not that of all scores: {room:.3g}"]
    slope = draw.normal(*out.shape)
    (ours,) = torch.autograd.grad(out, given[2], slope.to(given[2]))
    (theirs,) = torch.autograd.grad(expected, wanted[2], slope)
    theirs = theirs.unflatten(1, (heads // groups, groups)).sum(2)
    room = 64 * eps * (1 + reach) * queries * groups * float(slope.abs().max())
    if not _near(ours.double().cpu(), theirs, room):
        faults.append("the gradient of the values is not the weights")
    return batch * heads * queries, faults


def _mapping(alpha: float):
    return {1.0: pm.softmax, 2.0: pm.sparsemax, 1.5: pm.entmax}.get(alpha, pm.Tsallis(alpha))


def linear_loss(draw: Draw) -> tuple[int, list[str]]:
    """Losses and gradients are those of all logits; rows that are left out have none."""
    kind = draw.choice([torch.float64, torch.float64, torch.float32, torch.bfloat16])
    rows, words, size = draw.choice([0, 1, 5, 33]), draw.choice([1, 2, 65, 300, 1100]), draw.choice([1, 4, 9])
    alpha, biased = draw.choice(ALPHAS), draw.chance(0.5)
    h, w = _drawn(draw, kind, rows, size), _drawn(draw, kind, words, size)
    b = _drawn(draw, kind, 1, words)[0] if biased else None
    y = draw.integers(0, words, rows)
    if rows and draw.chance(0.4):
        y[draw.random.randrange(rows)] = -100
        h[y == -100] = draw.choice([math.nan, math.inf, 1.0])
    draw.note(f"{str(kind)[6:]} {rows} rows {words} words {size} alpha {alpha} bias {biased}")
    given = [t.to(draw.device).requires_grad_() for t in (h, w, *([b] if biased else []))]
    wide = torch.float32 if kind == torch.bfloat16 else None
    loss = pm.linear_entmax_loss(
        given[0], given[1], y.to(draw.device), *given[2:], alpha=alpha, reduction="none", dtype=wide
    )
    kept = y != -100
    exact = [torch.where(kept[:, None], h, 0).double(), *(t.double() for t in (w, *([b] if biased else [])))]
    exact = [t.requires_grad_() for t in exact]
    logits = exact[0] @ exact[1].mT + (exact[2] if biased else 0)
    at = y.clamp(min=0)[:, None]
    expected = pm.Tsallis(alpha).max(logits) - logits.gather(-1, at)[:, 0]
    expected = torch.where(kept, expected, 0)
    # logits of narrow dtypes are sums in float32
    eps = 2.2e-16 if kind == torch.float64 else 1.2e-7
    size_of = [float(t.detach().abs().amax()) if t.numel() else 0.0 for t in exact]
    reach = 1 + size_of[0] * size_of[1] * size + (size_of[2] if biased else 0)
    faults = []
    if not _near(loss.double().cpu(), expected, 64 * eps * reach):
        faults.append(f"losses {loss[:8].tolist()} are not {expected[:8].tolist()}")
    if bool((loss[(~kept).to(loss.device)] != 0).any()):
        faults.append("a row that is left out has a loss")
    slope = draw.normal(rows)
    ours = torch.autograd.grad(loss, given, slope.to(loss))
    theirs = torch.autograd.grad(expected, exact, slope)
    for name, a, e, other in zip(("states", "words", "bias"), ours, theirs, (size_of[1], size_of[0], 1.0)):
        room = 256 * eps * reach * (1 + other) * max(rows, 4) * (1 + float(slope.abs().max()) if rows else 1)
        room += 2 * torch.finfo(kind).eps * e.abs() if kind == torch.bfloat16 else 0
        if not _near(a.double().cpu(), e, room):
            faults.append(f"the gradient of the {name} is off by {float((a.double().cpu() - e).abs().max()):.3g}")
    return max(rows, 1), faults


TRIALS = {"attention": attention, "linear-loss": linear_loss}
