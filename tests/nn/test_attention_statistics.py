"""Statistics of attention: what a loop over all weights counts, however the rows are cut into blocks."""

from functools import partial
from importlib import import_module

import pytest
import torch
from matplotlib.axes import Axes
from tolerances import close

import polymax as pm
from polymax.nn import AttentionStatistics, attention_statistics
from polymax.nn.attention_statistics import MEASURES

L, S, H = 11, 13, 2


def qk(*batch, queries=L, keys=S):
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.randn(*batch, n, 4, generator=generator) for n in (queries, keys))


def counted(weights, allowed, tile):
    """The measures of one head, (batch, L, S), by loops."""
    supports = [int((row != 0).sum()) for row, kept in zip(weights.flatten(0, 1), allowed.flatten(0, 1)) if kept.any()]
    empty = possible = 0
    for one, kept in zip(weights, allowed):
        for i in range(0, one.shape[0], tile):
            for j in range(0, one.shape[1], tile):
                block = slice(i, i + tile), slice(j, j + tile)
                possible += bool(kept[block].any())
                empty += bool(kept[block].any()) and not one[block].any()
    return {
        "zeros": int(((weights == 0) & allowed).sum()) / int(allowed.sum()),
        "empty_tiles": empty / possible,
        "mean_support": sum(supports) / len(supports),
        "median_support": sorted(supports)[(len(supports) - 1) // 2],
        "max_support": max(supports),
    }


PADDING = (torch.arange(S) < torch.tensor([[S], [6], [9]])).view(3, 1, 1, S)
MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "padding": {"attn_mask": PADDING},
    "padding and causal": {"attn_mask": PADDING, "is_causal": True},
    "keys": {"attn_mask": PADDING[1, 0, 0]},
    "queries": {"attn_mask": (torch.arange(L) > 2).unsqueeze(1)},
    "bias": {
        "attn_mask": torch.where(PADDING, -0.3 * (torch.arange(S) - torch.arange(L).unsqueeze(1)).abs(), -torch.inf)
    },
}


@pytest.mark.parametrize("at_once", [1, 3 * S * H * 3, 2**24])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_statistics_are_those_of_all_weights(masks, at_once, monkeypatch):
    monkeypatch.setattr(import_module("polymax.nn.attention_statistics"), "AT_ONCE", at_once)
    query, key = qk(3, H)
    weights = pm.nn.attention_weights(query, key, **masks, mapping=pm.sparsemax)
    mask = masks.get("attn_mask", torch.ones(1, dtype=torch.bool))
    allowed = (mask if mask.dtype == torch.bool else mask > -torch.inf).expand_as(weights)
    if masks.get("is_causal"):
        allowed = allowed & torch.ones(L, S, dtype=torch.bool).tril()
    for found in (
        attention_statistics(query, key, **masks, mapping=pm.sparsemax, tile=4),
        AttentionStatistics.of_weights(weights, **masks, tile=4),
    ):
        for head in range(H):
            wanted = counted(weights[:, head], allowed[:, head], 4)
            for name in MEASURES:
                assert getattr(found, name).shape == (H,)
                assert float(getattr(found, name)[head]) == pytest.approx(wanted[name], abs=1e-6)


def test_masks_of_rows_that_attend_to_nothing_are_left_out():
    query, key = qk()
    nothing = attention_statistics(query, key, (torch.arange(L) < 1).unsqueeze(1))
    assert (float(nothing.zeros), float(nothing.mean_support), float(nothing.median_support)) == (0, S, S)


def test_heads_may_share_keys_and_have_an_alpha_each():
    query, key = (*qk(3, 4, keys=L),)
    mapping = pm.nn.AdaptiveEntmax(4)
    with torch.no_grad():
        mapping.logits.copy_(torch.tensor([-9.0, 0.0, 1.0, 9.0]))
    shared = attention_statistics(query, key[:, :2], enable_gqa=True, mapping=mapping)
    repeated = attention_statistics(query, key[:, :2].repeat_interleave(2, 1), mapping=mapping)
    for name in MEASURES:
        close(getattr(shared, name), getattr(repeated, name), name)
    assert shared.zeros[0] < shared.zeros[3]
    assert not shared.zeros.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_makes_no_zeros(dtype):
    # weights as small as e^-20, which float16 rounds to 0
    query, key = torch.ones(3, 1, dtype=dtype), torch.linspace(0, 20, 40, dtype=dtype).unsqueeze(1)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention_statistics(query, key)
    assert float(found.zeros) == 0
    assert float(found.max_support) == 40


@pytest.mark.parametrize("mapping", [partial(pm.entmax, alpha=1.3), pm.Gini(), pm.SparseMap(pm.Subset(3)), pm.hardmax])
def test_every_kind_of_mapping(mapping):
    query, key = qk(H)
    weights = pm.nn.attention_weights(query, key, mapping=mapping)
    found = attention_statistics(query, key, mapping=mapping)
    close(found.mean_support, (weights != 0).sum(-1).float().mean(-1), "mean support")


def test_a_long_length_needs_little_memory():
    # all weights would be 16 GB
    query, key = torch.randn(2**16, 1), torch.randn(2**16, 1)
    seen = []

    def first(scores, dim):
        seen.append(scores.numel())
        # a column of ones costs nothing beside the scores
        return torch.zeros_like(scores).index_fill_(-1, torch.tensor([0]), 1.0)

    found = attention_statistics(query[:512], key, mapping=first)
    assert max(seen) <= 2**24
    assert float(found.max_support) == 1
    assert float(found.empty_tiles) == pytest.approx(1 - 64 / 2**16)


def test_statistics_read_as_a_table():
    text = str(attention_statistics(*qk(H), mapping=pm.sparsemax, tile=8))
    head, *rows = text.splitlines()
    assert head.split() == ["head", "zeros", "empty", "8", "x", "8", "tiles", "mean", "support", "median", "max"]
    assert [row.split()[0] for row in rows] == ["0", "1", "all"]
    assert len({len(row) for row in (head, *rows)}) == 1
    assert len(str(attention_statistics(*qk())).splitlines()) == 3


@pytest.mark.parametrize("measure", MEASURES)
def test_a_picture_has_a_cell_for_each_head(measure, tmp_path):
    layers = [attention_statistics(*qk(3), mapping=mapping) for mapping in (pm.softmax, pm.sparsemax)]
    ax = pm.plot.attention_supports(layers, measure=measure)
    assert isinstance(ax, Axes)
    assert len(ax.texts) == 6
    (mesh,) = ax.collections
    low, high = mesh.get_clim()
    assert low == 0
    # shares are drawn on one scale, whatever they are
    assert high == (1 if measure in ("zeros", "empty_tiles") else mesh.get_array().max())
    ax.figure.savefig(tmp_path / "picture.png")
    own = ax.figure.add_subplot()
    assert pm.plot.attention_supports(layers[0], measure=measure, ax=own) is own


ONE = AttentionStatistics.of_weights(torch.eye(2))
TWO = AttentionStatistics.of_weights(torch.eye(2).expand(2, 2, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_statistics(torch.zeros(3), torch.zeros(3, 2)), r"query and key must be \(\*batch, L, E\)"),
        (lambda: attention_statistics(torch.zeros(0, 2), torch.zeros(3, 2)), "none of these 0; got"),
        (lambda: attention_statistics(*qk(), tile=0), "tile must be a positive integer; got 0"),
        (lambda: attention_statistics(*qk(), torch.ones(5, 3).bool()), "attn_mask must broadcast to the scores"),
        (lambda: attention_statistics([1], torch.zeros(2, 2)), "query must be a tensor; got list"),
        (lambda: AttentionStatistics.of_weights(torch.zeros(3)), r"weights must be \(\*batch, heads, L, S\)"),
        (lambda: AttentionStatistics.of_weights(torch.eye(3), torch.ones(2).bool()), "attn_mask must broadcast"),
        (lambda: AttentionStatistics.of_weights(torch.eye(3).long()), "weights must be float64"),
        (lambda: pm.plot.attention_supports(ONE, measure="luck"), "measure must be one of zeros, empty_tiles"),
        (lambda: pm.plot.attention_supports([]), "statistics must be those of at least one layer"),
        (lambda: pm.plot.attention_supports([ONE, TWO]), "one number of heads in all layers; got 1, 2"),
        (lambda: pm.plot.attention_supports([torch.eye(2)]), "statistics must be those of attention_statistics"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
