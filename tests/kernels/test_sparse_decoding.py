"""A few queries over a cache: the kernel against its reference, caches against the attention of all they hold."""

from importlib.util import find_spec

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax import nn
from polymax.kernels.sparse_decoding import reference, sparse_decoding
from polymax.kernels.sparse_decoding.options import Cached

GPU = torch.cuda.is_available()
pytestmark = pytest.mark.device
DEVICE = "cuda" if GPU else "cpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

# shapes (B, H, G, L, S), then what is not as usual
CALLS = {
    "one": ((1, 1, 1, 1, 1), {}),
    "plain": ((2, 2, 2, 1, 200), {}),
    "grouped": ((1, 4, 2, 1, 300), {"alpha": 2.0}),
    "some queries": ((1, 2, 1, 3, 130), {"right": 0, "offset": 127}),
    "window": ((1, 2, 2, 1, 200), {"left": 70, "right": 0, "offset": 199}),
    "sinks": ((1, 2, 2, 1, 200), {"sinks": torch.tensor([0.5, -1.0]), "softcap": 2.0}),
    "alphas": ((1, 2, 1, 1, 200), {"alphas": torch.tensor([1.3, 1.7])}),
    "mask": ((2, 2, 2, 1, 200), {"mask": (torch.arange(200) % 3 == 0).expand(2, 1, 1, 200)}),
    "hidden": ((1, 2, 2, 1, 200), {"mask": torch.zeros(1, 1, 1, 200, dtype=torch.bool)}),
    "bias": ((1, 2, 2, 1, 200), {"mask": torch.linspace(-3, 3, 200).expand(1, 2, 1, 200)}),
    "bias of heads": ((1, 4, 4, 2, 200), {"mask": torch.linspace(-3, 3, 1600).view(1, 4, 2, 200)}),
    "mask of heads": ((1, 4, 2, 1, 200), {"mask": (torch.arange(800) % 3 == 0).view(1, 4, 1, 200)}),
    "all equal": ((1, 1, 1, 1, 200), {"spread": 0.0}),
    "far": ((1, 1, 1, 1, 200), {"shift": -50.0}),
    "paged": ((2, 4, 2, 1, 96), {"lengths": torch.tensor([90, 37]), "right": 0}),
    "paged queries": ((2, 2, 2, 2, 96), {"lengths": torch.tensor([96, 1]), "right": 0, "left": 40}),
}


def arguments(name, dtype=torch.float32, page=16):
    (B, H, G, L, S), given = CALLS[name]
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(shape, generator=generator) for shape in ((B, H, L, 16), (B, G, S, 16), (B, G, S, 24)))
    q, k = q * given.get("spread", 3.0), k + given.get("shift", 0.0)
    usual = Cached(None, None, None, 1.5, None, None, None, 0.25, 0.0, -1, -1, 0)
    cached = usual._replace(**{n: x for n, x in given.items() if n not in ("spread", "shift")})
    if "lengths" in given:
        table = torch.randperm(B * S // page, generator=generator).view(B, -1)
        k, v = (_in_pool(t, table, page) for t in (k, v))
        cached = cached._replace(table=table.int(), lengths=cached.lengths.int())
        boxes = torch.stack([k.amin(2), k.amax(2)], 2)
    else:
        boxes = nn.key_boxes(k)
    return [t.to(dtype) for t in (q, k, v)], cached, boxes.to(dtype)


def _in_pool(t, table, page):
    pages = t.unflatten(2, (-1, page)).transpose(1, 2)
    pool = torch.empty(table.numel(), *pages.shape[2:])
    pool[table] = pages
    return pool


def on(device, values):
    return [t.to(device) if isinstance(t, torch.Tensor) else t for t in values]


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_kernel_is_the_reference(name, boxed):
    from polymax.kernels.sparse_decoding import cuda

    tensors, cached, boxes = arguments(name)
    true = reference.sparse_decoding(*(t.double() for t in tensors), *cached)
    cached = cached._replace(boxes=boxes if boxed else None)
    found = cuda.sparse_decoding(*on(DEVICE, tensors), *on(DEVICE, cached))
    assert torch.equal(found[2].cpu(), true[2]), "the support is the reference's"
    for a, b in zip(found[:2], true[:2], strict=True):
        size = 4 * max(1.0, b[b.isfinite()].abs().max().item()) if b.isfinite().any() else 1.0
        close(a.cpu() / size, b.float() / size, "cuda.py == reference.py")


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pages_that_cannot_matter_are_not_read():
    """Each of four parts reads its best page; keys and values of others may be anything, NaN too."""
    from polymax.kernels.sparse_decoding import cuda

    q, k, v = (torch.randn(1, 1, n, 16) for n in (1, 512, 512))
    far = torch.arange(512) // 64 % 2 == 1
    k[:, :, far] -= 40 * q.sign()
    cached = Cached(nn.key_boxes(k), None, None, 1.5, None, None, None, 1.0, 0.0, -1, -1, 0)
    expected = reference.sparse_decoding(q, k, v, *cached)[0]
    if not GPU:
        k[:, :, far] = torch.nan
    v[:, :, far] = torch.nan
    found = cuda.sparse_decoding(*on(DEVICE, (q, k, v)), *on(DEVICE, cached))[0]
    close(found.cpu(), expected, "far pages are not read")


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_stays_in_its_row():
    from polymax.kernels.sparse_decoding import cuda

    (q, k, v), cached, boxes = arguments("plain")
    q[0, 1] = torch.nan
    for b in (None, boxes):
        out = cuda.sparse_decoding(*on(DEVICE, (q, k, v)), *on(DEVICE, cached._replace(boxes=b)))[0]
        assert out[0, 1].isnan().all()
        assert out.isnan().sum() == 24


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_cache_that_grows_is_of_one_kind():
    from polymax.kernels.sparse_decoding import cuda

    cache, keys, values = filled([150], DEVICE, channels=16)
    q = torch.randn(2, 4, 1, 16, device=DEVICE)
    kinds = set()
    for _ in range(3):
        cache.append(keys[:, :, :20], values[:, :, :20])
        told = Cached(cache.boxes, None, None, 1.5, None, None, None, 0.25, 0.0, -1, 0, cache.length - 1)
        kinds.add(cuda._call_of(q, cache.keys, cache.values, told))
        found = cuda.sparse_decoding(q, cache.keys, cache.values, *told)[0]
        close(found, reference.sparse_decoding(q, cache.keys, cache.values, *told)[0], "cuda.py == reference.py")
    assert len(kinds) == 1, "kernels are compiled and prepared once"


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1e10, 1e30])
def test_huge_keys(size):
    """A huge key takes all weight of the queries that like it, and none of others."""
    from polymax.kernels.sparse_decoding import cuda

    (q, k, v), cached, _ = arguments("plain")
    k[:, :, 20] *= size
    for b in (None, nn.key_boxes(k)):
        told = on(DEVICE, cached._replace(boxes=b))
        found = cuda.sparse_decoding(*on(DEVICE, (q, k, v)), *told)
        true = reference.sparse_decoding(*(t.double() for t in (q, k, v)), *cached)
        equal(found[2].cpu(), true[2], "the support is the reference's")
        close(found[0].cpu(), true[0], "cuda.py == reference.py")


def test_operator_passes_opcheck():
    for name in ("sinks", "paged"):
        tensors, cached, boxes = arguments(name)
        torch.library.opcheck(sparse_decoding.op, (*tensors, *cached._replace(boxes=boxes)))


def filled(lengths, device, channels=8):
    """A cache, filled in steps, and the same keys and values in one tensor."""
    cache = nn.KeyValueCache()
    keys, values = (torch.randn(2, 2, sum(lengths), channels, device=device) for _ in range(2))
    for key, value in zip(keys.split(lengths, 2), values.split(lengths, 2), strict=True):
        cache.append(key, value)
    return cache, keys, values


MAPPINGS = {"entmax": pm.entmax, "adaptive": nn.AdaptiveEntmax(4), "softmax": pm.softmax, "normmax": pm.normmax}


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS.keys())
def test_a_cache_is_attended_to_like_what_it_holds(mapping, device):
    mapping = mapping.to(device) if isinstance(mapping, torch.nn.Module) else mapping
    cache, keys, values = filled([100, 1, 1, 26, 1, 70], device)
    for kept in (199, 130, 128):
        cache.crop(kept)
        equal(cache.keys, keys[:, :, :kept], "keys are in order")
        equal(cache.boxes, nn.key_boxes(keys[:, :, :kept]), "boxes are those of the keys")
        query = torch.randn(2, 4, 2, 8, device=device)
        options = {"mapping": mapping, "window": (90, 0), "enable_gqa": True}
        with torch.no_grad():
            found = nn.cache_attention(query, cache, mapping=mapping, window=(90, 0))
        expected = nn.scaled_dot_product_attention(
            query, keys[:, :, :kept], values[:, :, :kept], is_causal=True, causal_offset=kept - 2, **options
        )
        close(found, expected, "a cache is its keys and values")
    cache.select(torch.tensor([1, 1, 0], device=device))
    equal(cache.keys, keys[[1, 1, 0], :, :128], "sequences are chosen")
    equal(cache.boxes, nn.key_boxes(cache.keys), "boxes go with their keys")


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS.keys())
def test_pages_are_attended_to_like_what_they_hold(mapping, device):
    mapping = mapping.to(device) if isinstance(mapping, torch.nn.Module) else mapping
    pool, table = torch.randn(2, 12, 2, 16, 8, device=device), torch.randperm(12, device=device).view(2, 6)
    # what nobody wrote may be anything
    pool[:, table[1, 1:]] = torch.nan
    pages = nn.KeyValuePages(*pool, table, torch.tensor([90, 14], device=device)).boxed()
    key, value = torch.randn(2, 2, 2, 3, 8, device=device)
    pages.append(key, value)
    assert pages.lengths.tolist() == [93, 17]
    query, options = torch.randn(2, 4, 2, 8, device=device), {"mapping": mapping, "softcap": 5.0}
    with torch.no_grad():
        found = nn.cache_attention(query, pages, **options)
    for b, n in enumerate((93, 17)):
        keys, values = (t[table[b]].transpose(0, 1).flatten(1, 2)[None, :, :n] for t in (pages.keys, pages.values))
        equal(keys[0, :, -3:], key[b], "what is appended comes last")
        expected = nn.scaled_dot_product_attention(
            query[b : b + 1],
            keys,
            values,
            is_causal=True,
            causal_offset=n - 2,
            enable_gqa=True,
            **options,
        )
        close(found[b : b + 1], expected, "pages are keys and values in order")


def test_errors():
    cache = nn.KeyValueCache()
    cache.append(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 4))
    with pytest.raises(ValueError, match=r"key must be \(1, 2, tokens, 8\), as the cache holds; got \(1, 3, 1, 8\)"):
        cache.append(torch.randn(1, 3, 1, 8), torch.randn(1, 3, 1, 4))
    with pytest.raises(ValueError, match=r"key and value must be \(batch, heads, tokens, channels\)"):
        cache.append(torch.randn(2, 1, 8), torch.randn(2, 1, 4))
    with pytest.raises(ValueError, match="do not track gradients"):
        cache.append(torch.randn(1, 2, 1, 8, requires_grad=True), torch.randn(1, 2, 1, 4))
    with pytest.raises(ValueError, match="length must be an integer from 0 to 3; got 4"):
        cache.crop(4)
    with pytest.raises(ValueError, match=r"query must be \(batch, heads, tokens, 8\), with heads that the 2"):
        nn.cache_attention(torch.randn(1, 3, 1, 8), cache)
    with pytest.raises(ValueError, match=r"value must be \(1, 2, tokens, 4\), as the cache holds; got \(1, 2, 1, 5\)"):
        cache.append(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 5))
    with pytest.raises(TypeError, match=r"key must be torch.float32 on cpu, as the cache holds; got torch.float64"):
        cache.append(torch.randn(1, 2, 1, 8).double(), torch.randn(1, 2, 1, 4).double())
    with pytest.raises(ValueError, match="cache must hold keys and values: append those of the first tokens"):
        nn.cache_attention(torch.randn(1, 2, 1, 8), nn.KeyValueCache())
    with pytest.raises(TypeError, match="query must be a tensor; got list"):
        nn.cache_attention([1.0], cache)
    with pytest.raises(TypeError, match="cache must be a KeyValueCache or KeyValuePages; got Tensor"):
        nn.cache_attention(torch.randn(1, 3, 1, 8), torch.randn(3))
    pool, table = torch.randn(4, 2, 16, 8), torch.zeros(2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="keys must have pages of 16, 32, 64, 128 or 256 tokens"):
        nn.KeyValuePages(pool[:, :, :9], pool[:, :, :9], table, table[:, 0])
    with pytest.raises(ValueError, match=r"lengths must be \(batch,\) integers; got torch.int64 \(2, 2\)"):
        nn.KeyValuePages(pool, pool, table, table)
    with pytest.raises(TypeError, match="table must be a tensor; got list"):
        nn.KeyValuePages(pool, pool, [[0, 1]], table[:, 0])
    with pytest.raises(ValueError, match=r"lengths must be from 0 to 32, for 2 pages of 16 tokens; got \[33, 0\]"):
        nn.KeyValuePages(pool, pool, table, torch.tensor([33, 0]))
    with pytest.raises(ValueError, match="table must have numbers of the 4 blocks of the pool, from 0 on"):
        nn.KeyValuePages(pool, pool, table - 1, torch.tensor([3, 0]))
    with pytest.raises(ValueError, match=r"boxes must be torch\.float32"):
        nn.KeyValuePages(pool, pool, table, table[:, 0], torch.zeros(4, 2, 2, 8).double())
    # numbers behind the end of a sequence are not looked at
    full = nn.KeyValuePages(pool, pool, torch.tensor([[0, 1], [3, 999]]), torch.tensor([32, 16]))
    assert nn.cache_attention(torch.randn(2, 2, 1, 8), full, mapping=pm.entmax).isfinite().all()
    with pytest.raises(ValueError, match=r"lengths must be from 0 to 32, for 2 pages of 16 tokens; got \[33, 17\]"):
        full.append(torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8))
    with pytest.raises(ValueError, match=r"key must be \(2, 2, tokens, 8\), as the cache holds; got \(1, 2, 1, 8\)"):
        full.append(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
    with pytest.raises(ValueError, match=r"query must be of the 2 sequences of the cache; got \(1, 2, 1, 8\)"):
        nn.cache_attention(torch.randn(1, 2, 1, 8), full)
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(ValueError, match=r"key_boxes must be torch.float32 \(1, 2, 1, 2, 8\)"):
        nn.scaled_dot_product_attention(q, q, q, mapping=pm.entmax, key_boxes=torch.zeros(3))
