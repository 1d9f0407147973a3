"""What all processes run together: each function compares a call on DTensors with the call on whole tensors.

A function returns what differs, as a list of sentences: an empty list is a good result. Errors are collected, so that
no process leaves the others waiting.
"""

import math
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from cases import CASES
from estimators_table import ESTIMATORS
from sets import BY_NAME
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import polymax as pm
from polymax.sharding.collectives import counting
from polymax.structures.base import tensors

EXACT = 1e-12
_MESHES = {}


def mesh_of(*shape):
    """A mesh of this shape, made once in each process; two processes have (2,) and (1, 2) in place of 4 and 2 x 2."""
    if shape not in _MESHES:
        size = dist.get_world_size()
        found = shape if math.prod(shape) == size else (1,) * (len(shape) - 1) + (size,)
        _MESHES[shape] = init_device_mesh(torch.get_default_device().type, found)
    return _MESHES[shape]


def values_are_checked():
    """True where the values of a target are read before they are used: on the CPU."""
    return torch.get_default_device().type == "cpu"


def placed(t, mesh, places, derived=False):
    # a broadcast writes into its tensor
    return distribute_tensor(t.detach().clone(), mesh, places).requires_grad_(derived)


def differences(name, found, expected):
    """A sentence for each DTensor that is not the whole tensor."""
    said = []
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        whole = a.full_tensor().detach()
        b = b.detach()
        if whole.shape != b.shape:
            said.append(f"{name}: result {k} is {tuple(whole.shape)}, not {tuple(b.shape)}")
        elif not torch.allclose(whole, b, rtol=EXACT, atol=EXACT, equal_nan=True):
            said.append(f"{name}: result {k} differs by {float((whole - b).abs().max()):.1e}")
    return said


def _derived(name, function, x, sharded):
    """The result of a function of x, its gradient, and the derivative of the gradient in the cotangent."""
    mesh = mesh_of(4)
    leaf, part = x.clone().requires_grad_(), placed(x, mesh, [Shard(sharded)], True)
    try:
        y, z = function(leaf), function(part)
        v, u = torch.randn_like(y), torch.randn_like(x)
        said = differences(name, [z], [y])
        if not y.requires_grad:
            return said
        at, of_y = v.clone().requires_grad_(), placed(v, mesh, z.placements, True)
        (slope,) = torch.autograd.grad(y, leaf, at, create_graph=True)
        (found,) = torch.autograd.grad(z, part, of_y, create_graph=True)
        said += differences(f"gradient of {name}", [found], [slope])
        if not slope.requires_grad:
            return said
        again = torch.autograd.grad(slope, at, u, allow_unused=True, materialize_grads=True)
        twice = torch.autograd.grad(
            found, of_y, placed(u, mesh, found.placements), allow_unused=True, materialize_grads=True
        )
        return said + differences(f"second derivative of {name}", twice, again)
    except Exception as error:
        return [f"{name}: {type(error).__name__}: {str(error)[:300]}"]


def mappings():
    """A mapping of each kind and its maximum: sharded by batch and along the row, with two derivatives."""
    said, kinds = [], set()
    for case in CASES:
        kind = type(case.regularizer()).__name__
        if kind in kinds and kind != "Tsallis":
            continue
        kinds.add(kind)
        for sharded in (0, 1):
            if case.total != 1 and case.least > 1:
                continue
            rule = case.regularizer()
            x = torch.randn(5, 9, dtype=torch.float64)
            said += _derived(f"{case.name} along {sharded}", lambda t, rule=rule: rule.argmax(t), x, sharded)
            said += _derived(f"max of {case.name} along {sharded}", lambda t, rule=rule: rule.max(t), x, sharded)
    return said


def long_rows():
    """Sharded rows with more entries above the bound than a process may hand over, masks, -inf, NaN, half precision."""
    said = []
    for alpha in (1.0, 1.2, 1.5, 2.0):
        rule = pm.Tsallis(alpha)
        for scale in (5.0, 1e-3):
            x = torch.randn(3, 700, dtype=torch.float64) * scale
            x[1, 100:] = -torch.inf
            said += _derived(f"alpha {alpha}, {scale} long", lambda t, rule=rule: rule.argmax(t), x, 1)
        lost = torch.randn(4, 30, dtype=torch.float64)
        lost[0], lost[1, 3], lost[2, 4] = -torch.inf, torch.nan, 1e300
        mesh = mesh_of(4)
        found = rule.argmax(placed(lost, mesh, [Shard(1)]))
        said += differences(f"alpha {alpha}, lost rows", [found], [rule.argmax(lost)])
        mask = torch.rand(3, 700) > 0.3
        y = rule.argmax(x, mask=mask)
        said += differences(
            "mask", [rule.argmax(placed(x, mesh, [Shard(1)]), mask=placed(mask, mesh, [Replicate()]))], [y]
        )
        half = torch.randn(3, 50).to(torch.bfloat16)
        found = rule.argmax(placed(half, mesh, [Shard(1)])).full_tensor()
        if found.dtype != torch.bfloat16 or not torch.allclose(found.float(), rule.argmax(half).float(), atol=8e-3):
            said.append(f"alpha {alpha} in bfloat16")
    return said


def parameters():
    """Learned alpha and gamma, a tensor for each row or one for all, get the gradient of all processes."""
    said = []
    mesh = mesh_of(4)
    x = torch.randn(6, 9, dtype=torch.float64)
    for shape, places in (((), [Replicate()]), ((6, 1), [Shard(0)])):
        for make in (
            lambda g: pm.Shannon(g),
            lambda g: pm.Gini(g),
            lambda g: pm.Tsallis(1.5, g),
            lambda g: pm.Tsallis(g),
        ):
            for sharded in (0, 1):
                g = (torch.rand(shape, dtype=torch.float64) + 1.1).requires_grad_()
                v = torch.randn_like(x)
                given = places if sharded == 0 else [Replicate()]
                rule, split = make(g), make(placed(g, mesh, given, True))
                parameter = next(iter(split._tensors().values()))
                y, z = rule.argmax(x), split.argmax(placed(x, mesh, [Shard(sharded)]))
                (slope,) = torch.autograd.grad(y, g, v)
                (found,) = torch.autograd.grad(z, parameter, placed(v, mesh, [Shard(sharded)]))
                said += differences(f"parameter {shape} {sharded}", [z, found], [y, slope])
    return said


# lengths and targets in fields, shared scores, kernels of all rooms, and loops in torch
SETS = ["chain", "segments", "alignment", "ctc", "gapped", "span-tree", "projective-tree", "spanning-tree"]
SETS += ["simplex", "subset", "explicit", "hypergraph", "assignment", "ranking"]


def structures():
    """Sets of all kinds: the best structure, smoothings and losses, with batch dimensions sharded."""
    said = []
    for name in SETS:
        said += _set(BY_NAME[name])
    return said


def _set(row):
    said = []
    mesh = mesh_of(4)
    shape = row.shape
    # two instances on one process, one on the others; what is shared has no batch
    scores = [torch.randn(5, *s, dtype=torch.float64) for s in row.events(shape)]
    shared = [len(s) < dims for s, dims in zip(row.events(shape), row.structure.event_dims(*scores))]
    scores = [x[0] if alone else x for x, alone in zip(scores, shared)]
    places = [[Replicate()] if alone else [Shard(0)] for alone in shared]
    smooth = row.smoothing()
    operators = [smooth, pm.HardMax(row.structure)] if not isinstance(row.structure, pm.FactorGraph) else [smooth]
    for op in operators:
        name = f"{type(op).__name__} of {row.name}"
        try:
            leaves = [x.clone().requires_grad_() for x in scores]
            parts = [placed(x, mesh, p, True) for x, p in zip(scores, places)]
            said += differences(name, tensors(op(*parts)), tensors(op(*leaves)))
            value, whole = op.max(*leaves), op.max(*parts)
            g = torch.randn_like(value)
            slopes = torch.autograd.grad(value, leaves, g, allow_unused=True, materialize_grads=True)
            found = torch.autograd.grad(
                whole, parts, placed(g, mesh, [Shard(0)]), allow_unused=True, materialize_grads=True
            )
            said += differences(f"max of {name}", [whole, *found], [value, *slopes])
            y = row.structure.map(*scores)
            gold = row.structure.decode(y) if row.indicators else None
            for reduction in ("mean", "none") if gold is not None else ():
                loss = pm.fenchel_young(op, tuple(leaves), gold, reduction=reduction)
                split = pm.fenchel_young(op, tuple(parts), placed(gold, mesh, [Shard(0)]), reduction=reduction)
                said += differences(f"loss of {name}", [split], [loss])
        except Exception as error:
            raise AssertionError(name) from error
    return said


def chains():
    """Chains with shared transitions and lengths: their gradient is the sum of all processes, and is replicated."""
    said = []
    lengths = torch.tensor([6, 3, 1, 5, 2, 0])
    u, t = torch.randn(6, 6, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    tags = torch.randint(4, (6, 6)).masked_fill(torch.arange(6) >= lengths[:, None], -1)
    chain = pm.Chain(lengths)
    layouts = (
        (mesh_of(4), [Shard(0)], [Replicate()]),
        (mesh_of(2, 2), [Shard(0), Shard(0)], [Replicate(), Replicate()]),
        (mesh_of(2, 2), [Replicate(), Shard(0)], [Replicate(), Replicate()]),
    )
    for k, (mesh, places, shared) in enumerate(layouts):
        losses = {
            "crf": pm.crf_loss,
            "perceptron": pm.perceptron_loss,
            "svm": pm.svm_loss,
            "sparsemap": pm.sparsemap_loss,
            "margin": pm.margin_sparsemap_loss,
            "dp": lambda s, x, y, reduction: pm.smoothed_dp_loss(s, pm.Gini(), x, y, reduction),
        }
        for j, (name, loss) in enumerate(losses.items()):
            # in turn: each loss has all three, and so has each mesh
            reduction = ("mean", "sum", "none")[(j + k) % 3]
            leaves = [u.clone().requires_grad_(), t.clone().requires_grad_()]
            parts = [placed(u, mesh, places, True), placed(t, mesh, shared, True)]
            value = loss(chain, tuple(leaves), tags, reduction=reduction)
            found = loss(chain, tuple(parts), placed(tags, mesh, places), reduction=reduction)
            g = torch.rand_like(value)
            given = placed(g, mesh, found.placements)
            slopes, split = torch.autograd.grad(value, leaves, g), torch.autograd.grad(found, parts, given)
            said += differences(f"{name} {reduction}", [found, *split], [value, *slopes])
            if split[1].placements != parts[1].placements:
                said.append(f"{name}: the gradient of shared scores is {split[1].placements}")
        found = pm.SparseMap(chain)(*parts)
        said += differences("SparseMap", found, pm.SparseMap(chain)(u, t))
    return said


def estimators():
    """Estimators that return a vertex: the structure and its chosen gradient."""
    said = []
    mesh = mesh_of(4)
    for row in ESTIMATORS:
        if row.draws:
            continue
        estimator = row.make(pm.Chain())
        u, t = torch.randn(5, 4, 3, dtype=torch.float64), torch.randn(5, 3, 3, 3, dtype=torch.float64)
        leaves = [u.clone().requires_grad_(), t.clone().requires_grad_()]
        parts = [placed(x, mesh, [Shard(0)], True) for x in (u, t)]
        y, z = estimator(*leaves), estimator(*parts)
        g = [torch.randn_like(p) for p in y]
        slopes = torch.autograd.grad(list(y), leaves, g)
        found = torch.autograd.grad(list(z), parts, [placed(p, mesh, [Shard(0)]) for p in g])
        said += differences(row.name, [*z, *found], [*y, *slopes])
    return said


def class_losses():
    """Losses of one class among n, with cross_entropy's options, batches sharded or classes sharded."""
    said = []
    x = torch.randn(5, 7, 6, dtype=torch.float64)
    y = torch.randint(6, (5, 7))
    y[0, 1], y[3] = -100, -100
    q = torch.rand(5, 7, 6, dtype=torch.float64).softmax(-1)
    w = torch.rand(6, dtype=torch.float64) + 0.1
    mesh = mesh_of(4)
    for k, (alpha, dense, sharded) in enumerate(product((1.0, 1.5, 2.0, 3.0), (False, True), (0, 2))):
        # in turn: all pairs of options are met
        reduction = ("mean", "sum", "none")[k % 3]
        weight, smoothing = (w, 0.1) if k // 4 % 2 == dense else (None, 0.0)
        target = q if dense else y
        leaf, part = x.clone().requires_grad_(), placed(x, mesh, [Shard(sharded)], True)
        options = {"alpha": alpha, "reduction": reduction, "label_smoothing": smoothing}
        places = [Shard(0)] if sharded == 0 else [Replicate()]
        value = pm.entmax_loss(leaf, target, weight=weight, **options)
        given = None if weight is None else placed(weight, mesh, [Replicate()])
        found = pm.entmax_loss(part, placed(target, mesh, places), weight=given, **options)
        g = torch.rand_like(value)
        (slope,) = torch.autograd.grad(value, leaf, g)
        (split,) = torch.autograd.grad(found, part, placed(g, mesh, found.placements))
        said += differences(f"{options} {dense} {sharded}", [found, split], [value, slope])
    return said


def loss_dtypes():
    """Losses of half precision have the dtype of their scores, or the one that is asked for."""
    mesh = mesh_of(4)
    x, w, y = torch.randn(8, 6).bfloat16(), torch.randn(9, 6).bfloat16(), torch.randint(6, (8,))
    rows, words, target = placed(x, mesh, [Shard(0)]), placed(w, mesh, [Shard(0)]), placed(y, mesh, [Shard(0)])
    said = []
    for dtype in (None, torch.float32, torch.float64):
        for name, value, found in (
            ("classes", pm.entmax_loss(x, y, dtype=dtype), pm.entmax_loss(rows, target, dtype=dtype)),
            (
                "words",
                pm.linear_entmax_loss(x, w, y, dtype=dtype),
                pm.linear_entmax_loss(rows, words, target, dtype=dtype),
            ),
        ):
            near = torch.allclose(found.full_tensor(), value.to(found.dtype), rtol=8e-3 if dtype is None else 1e-5)
            if found.dtype != value.dtype or not near:
                said.append(f"{name} {dtype}: {found} for {value}")
    return said


# mesh, placements of the rows, placements of the words
LAYOUTS = [
    ((4,), [Replicate()], [Shard(0)]),
    ((4,), [Shard(0)], [Shard(0)]),
    ((4,), [Shard(0)], [Replicate()]),
    ((2, 2), [Shard(0), Replicate()], [Replicate(), Shard(0)]),
    ((2, 2), [Replicate(), Replicate()], [Shard(0), Shard(0)]),
    ((2, 2), [Shard(0), Shard(0)], [Replicate(), Shard(0)]),
]
WORD_OPTIONS = [
    {},
    {"softcap": 2.0, "label_smoothing": 0.1},
    {"label_smoothing": 0.2, "class_weights": True},
    {"reduction": "none"},
    {"reduction": "sum", "class_weights": True},
]


def word_losses():
    """Losses of a linear layer: uneven and empty shards, flat rows, ignored rows, a process without a target."""
    said = []
    for k, (shape, of_rows, of_words) in enumerate(LAYOUTS):
        mesh = mesh_of(*shape)
        for j, alpha in enumerate((1.5, 1.0, 2.0, 1.2, "learned")):
            # in turn: all pairs of options, rows, layouts and alphas are met
            scale, words = ((1.0, 401), (0.01, 401), (1.0, 3))[(k - j) % 3]
            options = dict(WORD_OPTIONS[(j + k) % len(WORD_OPTIONS)])
            said += _word_loss(mesh, of_rows, of_words, alpha, scale, words, options)
    return said


def _word_log_prob(name, mesh, of_rows, leaves, parts, y, softcap):
    """Log-probabilities and entropies of DTensors are those of one process, and so are their gradients."""
    options = {"temperature": 0.7, "softcap": softcap, "entropy": True}
    truth = pm.linear_log_prob(*leaves[:2], y, leaves[2], **options)
    found = pm.linear_log_prob(*parts[:2], placed(y, mesh, of_rows), parts[2], **options)
    g = torch.rand_like(truth[0])
    slopes = torch.autograd.grad(truth[0] + 2 * truth[1], leaves, g)
    given = torch.autograd.grad(found[0] + 2 * found[1], parts, placed(g, mesh, found[0].placements))
    return differences(f"log-probabilities {name}", [*found, *given], [*truth, *slopes])


def _word_loss(mesh, of_rows, of_words, alpha, scale, words, options):
    h = torch.randn(3, 4, 6, dtype=torch.float64) * scale
    w, b = torch.randn(words, 6, dtype=torch.float64), torch.randn(words, dtype=torch.float64) * scale
    y = torch.randint(words, (3, 4))
    y[0, 1], y[2] = -100, -100
    a = torch.tensor(1.4, dtype=torch.float64)
    classes = torch.rand(words, dtype=torch.float64) + 0.1 if options.pop("class_weights", False) else None
    learned = alpha == "learned"
    leaves = [t.clone().requires_grad_() for t in (h, w, b, *([a] if learned else []))]
    places = [of_rows, of_words, of_words, [Replicate()] * mesh.ndim]
    parts = [placed(t, mesh, p, True) for t, p in zip(leaves, places)]
    value = pm.linear_entmax_loss(
        *leaves[:2], y, leaves[2], alpha=leaves[3] if learned else alpha, class_weights=classes, **options
    )
    split = None if classes is None else placed(classes, mesh, of_words)
    target = placed(y, mesh, of_rows)
    found = pm.linear_entmax_loss(
        *parts[:2], target, parts[2], alpha=parts[3] if learned else alpha, class_weights=split, **options
    )
    g = torch.rand_like(value)
    slopes = torch.autograd.grad(value, leaves, g)
    given = torch.autograd.grad(found, parts, placed(g, mesh, found.placements))
    name = f"{of_rows} {of_words} alpha {alpha} scale {scale} words {words} {options}"
    said = differences(name, [found, *given], [value, *slopes])
    said += [
        f"{name}: gradient {k} is {t.placements}" for k, t in enumerate(given) if t.placements != parts[k].placements
    ]
    if alpha == 1:
        said += _word_log_prob(name, mesh, of_rows, leaves, parts, y.clamp(min=0), options.get("softcap"))
    if learned or not all(p.is_shard() for p in of_words if not p.is_replicate()):
        return said
    words_found = pm.linear_entmax(*(p.detach() for p in parts[:2]), parts[2].detach(), alpha=alpha)
    words_whole = pm.linear_entmax(h, w, b, alpha=alpha)
    dense, whole = words_found.dense(), words_whole.dense()
    return said + differences(f"words: {name}", [dense], [whole])


def word_collectives():
    """The number of collectives of a vocabulary-parallel loss, and of its backward pass, by kind."""
    mesh = mesh_of(4)
    h, w = torch.randn(32, 16, dtype=torch.float64) * 3, torch.randn(900, 16, dtype=torch.float64)
    y = placed(torch.randint(900, (32,)), mesh, [Replicate()])
    with counting() as counted:
        pm.linear_entmax_loss(placed(h, mesh, [Replicate()]), placed(w, mesh, [Shard(0)]), y)
    return dict(counted)


def row_collectives():
    """The number of collectives of entmax of rows that are sharded, by kind."""
    mesh = mesh_of(4)
    x = placed(torch.randn(10, 1000, dtype=torch.float64) * 3, mesh, [Shard(1)])
    with counting() as counted:
        pm.entmax(x)
    return dict(counted)


def same_bits():
    """The bits of a row that is sharded, and of a loss sharded by words, on each process."""
    mesh = mesh_of(4)
    h, w = torch.randn(32, 16) * 3, torch.randn(900, 16)
    y = placed(torch.randint(900, (32,)), mesh, [Replicate()])
    loss = pm.linear_entmax_loss(placed(h, mesh, [Replicate()]), placed(w, mesh, [Shard(0)]), y, reduction="none")
    return loss.to_local().cpu().numpy().tobytes()


def attention():
    """Sequence-parallel attention: parts of unequal length, an empty part, windows, sinks, balanced parts."""
    size, rank, said = dist.get_world_size(), dist.get_rank(), []
    mappings = [pm.entmax, pm.softmax, pm.sparsemax, partial(pm.entmax, alpha=1.3), pm.fusedmax]
    calls = [
        (True, None, False, False),
        (True, None, True, True),
        (False, (3, 2), False, False),
        (True, (4, 0), True, False),
    ]
    for n, cuts in ((13, None), (64 * size, None), (5, [0, 5] + [5] * size)):
        for mapping in mappings if n < 64 else mappings[:2]:
            for is_causal, window, balanced, gqa in calls:
                if cuts and balanced:
                    continue
                heads, sinks = 2 if gqa else 4, None
                q = torch.randn(2, 4, n, 8, dtype=torch.float64).requires_grad_()
                k, v = (torch.randn(2, heads, n, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
                if mapping is pm.entmax:
                    sinks = torch.randn(4, dtype=torch.float64)
                options = {"is_causal": is_causal, "window": window, "mapping": mapping}
                options |= {"enable_gqa": gqa, "sinks": sinks}
                out = pm.nn.scaled_dot_product_attention(q, k, v, **options)
                g = torch.randn_like(out)
                slopes = torch.autograd.grad(out, (q, k, v), g)
                part = _part(n, cuts, balanced, size, rank)
                mine = [part(t).clone().requires_grad_() for t in (q, k, v)]
                found = pm.distributed.sequence_parallel_attention(*mine, balanced=balanced, **options)
                given = torch.autograd.grad(found, mine, part(g))
                for a, b in zip((found, *given), (out, *slopes), strict=True):
                    if not torch.allclose(a, part(b), rtol=EXACT, atol=EXACT):
                        said.append(f"{n} {mapping} {options} balanced {balanced}")
                exact = n == 64 * size and not balanced and not found.is_cuda
                if exact and not torch.equal(found, part(out)):
                    said.append(f"other bits: {mapping} {options}")
    return said


def _part(n, cuts, balanced, size, rank):
    def part(t):
        if balanced:
            return pm.distributed.balanced_part(t.detach())
        at = cuts or [round(i * n / size) for i in range(size + 1)]
        return t.detach()[..., at[rank] : at[rank + 1], :]

    return part


def decoding():
    """Attention over keys that are sharded, with masks and an empty part."""
    size, rank, said = dist.get_world_size(), dist.get_rank(), []
    for mapping in (pm.entmax, pm.softmax, pm.sparsemax):
        for n in (17, 3, 900):
            q = torch.randn(2, 3, 2, 8, dtype=torch.float64).requires_grad_()
            k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
            mask = torch.rand(2, 3, 2, n) > 0.2
            out = pm.nn.scaled_dot_product_attention(q, k, v, mask, mapping=mapping)
            g = torch.randn_like(out)
            slopes = torch.autograd.grad(out, (q, k, v), g)
            at = [min(round(i * (n + 3) / size), n) for i in range(size + 1)]
            at[0], at[-1] = 0, n
            keys = slice(at[rank], at[rank + 1])
            leaves = [q.detach().clone(), *(t.detach()[..., keys, :].clone() for t in (k, v))]
            leaves = [t.requires_grad_() for t in leaves]
            found = pm.distributed.sharded_keys_attention(*leaves, mask=mask[..., keys], mapping=mapping)
            given = torch.autograd.grad(found, leaves, g)
            expected = [out, slopes[0], *(s[..., keys, :] for s in slopes[1:])]
            for a, b in zip((found, *given), expected, strict=True):
                if not torch.allclose(a, b, rtol=EXACT, atol=EXACT):
                    said.append(f"{mapping.__name__} {n}: {float((a - b).abs().max()):.1e}")
    return said


def errors():
    """The sentences of errors: mixed tensors, sharded events, meshes, alpha out of range, wrong targets."""
    mesh = mesh_of(4)
    u, t = torch.randn(4, 5, 3), torch.randn(3, 3)
    split, whole = placed(u, mesh, [Shard(0)]), placed(t, mesh, [Replicate()])
    h, w = torch.randn(4, 6), torch.randn(9, 6)
    rows, words = placed(h, mesh, [Replicate()]), placed(w, mesh, [Shard(0)])
    y = placed(torch.tensor([0, 1, 2, 8]), mesh, [Replicate()])
    lengths = placed(torch.full((4,), 5), mesh, [Replicate()])
    calls = {
        "plain transition": lambda: pm.Marginals(pm.Chain())(split, t),
        "plain unary": lambda: pm.SparseMap(pm.Chain())(u, whole),
        "sharded event": lambda: pm.Marginals(pm.Chain())(placed(u, mesh, [Shard(1)]), whole),
        "plain mask": lambda: pm.entmax(split, mask=u > 0),
        "distribution": lambda: pm.SparseMap(pm.Chain()).distribution(split, whole),
        "plain hidden": lambda: pm.linear_entmax_loss(h, words, y),
        "plain target": lambda: pm.linear_entmax_loss(rows, words, torch.tensor([0, 1, 2, 8])),
        "sharded columns": lambda: pm.linear_entmax_loss(rows, placed(w, mesh, [Shard(1)]), y),
        "alpha": lambda: pm.linear_entmax_loss(rows, words, y, alpha=3.0),
        "target": lambda: pm.linear_entmax_loss(rows, words, placed(torch.tensor([0, 1, 2, 9]), mesh, [Replicate()])),
        "two meshes": lambda: pm.Marginals(pm.Chain())(split, placed(t, mesh_of(2, 2), [Replicate(), Replicate()])),
        "z loss": lambda: pm.linear_entmax_loss(rows, words, y, alpha=1, z_loss=0.1),
        "target of classes": lambda: pm.entmax_loss(split, torch.zeros(4, 5, dtype=torch.long)),
        # a DTensor in a later place: a kernel that took its memory for a plain tensor's ended the process
        "alpha beside plain scores": lambda: pm.entmax(u, alpha=placed(torch.full((4, 1, 1), 1.5), mesh, [Shard(0)])),
        "gamma beside plain scores": lambda: pm.Gini(placed(torch.ones(()), mesh, [Replicate()])).max(u),
        "strength beside plain scores": lambda: pm.fusedmax(u, strength=placed(torch.ones(()), mesh, [Replicate()])),
        "mask beside plain scores": lambda: pm.sparsemax(u, mask=split > 0),
        "lengths beside plain scores": lambda: pm.Marginals(pm.Chain(lengths=lengths))(u, t),
        "pair of lengths": lambda: pm.dtw(u, lengths=(lengths, torch.full((4,), 3))),
        "target beside plain scores": lambda: pm.entmax_loss(h, y),
        "weight beside plain scores": lambda: pm.entmax_loss(h, torch.zeros(4, dtype=torch.long), weight=rows[0]),
    }
    if not values_are_checked():
        del calls["target"]
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "no error"
        except (TypeError, ValueError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def lonely_errors():
    """What each process says if one alone has a wrong value, or other arguments than the others."""
    mesh, rank, size = mesh_of(4), dist.get_rank(), dist.get_world_size()
    x, h, w = torch.randn(8, 6), torch.randn(8, 5), torch.randn(9, 5)
    u, t = torch.randn(8, 5, 3), torch.randn(3, 3)
    wrong = torch.zeros(8, dtype=torch.long)
    wrong[-1] = 70
    tags = torch.zeros(8, 5, dtype=torch.long)
    tags[-1, 2] = 70
    rows, whole = [Shard(0)], [Replicate()]
    q = torch.randn(1, 2 if rank == size - 1 else 4, 3, 8)
    flat = q if rank else torch.randn(8)
    sequence = pm.distributed.sequence_parallel_attention
    calls = {
        "classes": lambda: pm.entmax_loss(placed(x, mesh, rows), placed(wrong, mesh, rows)),
        "words": lambda: pm.linear_entmax_loss(placed(h, mesh, rows), placed(w, mesh, rows), placed(wrong, mesh, rows)),
        "tags": lambda: pm.crf_loss(
            pm.Chain(), (placed(u, mesh, rows), placed(t, mesh, whole)), placed(tags, mesh, rows), reduction="sum"
        ),
        "heads": lambda: sequence(q, q, q),
        "dims": lambda: sequence(flat, flat, flat),
    }
    said = {}
    for name in calls if values_are_checked() else ("heads", "dims"):
        call = calls[name]
        try:
            call()
            said[name] = "no error"
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def partial_sums():
    """A partial DTensor is added up before anything else."""
    from torch.distributed.tensor import DTensor, Partial

    mesh = mesh_of(4)
    x = torch.randn(3, 6, dtype=torch.float64)
    part = DTensor.from_local(x / dist.get_world_size(), mesh, [Partial()])
    return differences("partial", [pm.entmax(part), pm.HardMax(pm.Simplex())(part)], [pm.entmax(x), pm.hardmax(x)])
