"""Modules with parameters, each as a function of a batch, and how they train on several processes.

`MODULES` has, by name, a function that makes the module and one that computes a loss for each instance of a batch.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

import polymax as pm
from tests.distributed.checks import EXACT, mesh_of

N, D = 6, 8


def _tokens(seed=0):
    """Tokens of a batch of eight instances of N tokens, with lengths."""
    draw = torch.Generator(torch.get_default_device()).manual_seed(seed)
    x = torch.randn(8, N, D, dtype=torch.float64, generator=draw)
    return x, torch.randint(2, N + 1, (8,), generator=draw)


def _squares(x):
    return x.square().flatten(1).sum(1)


def _attention(model, x, lengths):
    padding = torch.arange(N) >= lengths[:, None]
    out, weights = model(x, x, x, key_padding_mask=padding)
    fast, _ = model(x, x, x, is_causal=True, need_weights=False)
    return _squares(out) + _squares(weights) + _squares(fast)


def _heads(model, x, lengths):
    q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (x, x.flip(1), x.cos()))
    if isinstance(model, pm.nn.BlockRoutedAttention):
        return _squares(model(q, k, v, is_causal=True))
    return _squares(model(q @ k.mT))


def _crf(model, x, lengths):
    tags = (x[..., 0] > 0).long()
    return model(x[..., :3], tags, torch.arange(N) < lengths[:, None], reduction="none")


def _latent(model, x, lengths):
    return model.loss(x, lengths, lambda encoding, rows: encoding.square().sum(-1)).loss


def _convolved(model, x, lengths):
    mu = pm.Marginals(pm.SpanningTree(lengths=lengths))(x.new_zeros(len(x), N + 1, N + 1))
    return _squares(model(x, mu, lengths))


def _segments(model, x, lengths):
    unary, transition = model(x[:, 0], x)
    return pm.SparseMap(pm.Chain(lengths=lengths)).max(unary, transition)


def _relations(model, x, lengths):
    return _squares(model(x, torch.zeros(len(x), N - 1, dtype=torch.long)))


def _tree(model, x, lengths):
    at = torch.arange(len(x))
    if isinstance(model, pm.nn.BinaryTreeLSTM):
        trees = torch.stack([pm.nn.left_branching(torch.tensor([N]))[0]] * len(x))
        return _squares(model(x, trees, at).root)
    return _squares(model(x, torch.arange(N).expand(len(x), N), at).root)


def _words(model, x, lengths):
    target = (x[..., 1] > 0).long().masked_fill(torch.arange(N) >= lengths[:, None], -100)
    return model(x, target).sum(1)


nn_ = pm.nn
MODULES = {
    "multihead": (partial(nn_.MultiheadAttention, D, 2, batch_first=True, mapping=pm.entmax), _attention),
    "multihead of a learned alpha": (
        lambda: nn_.MultiheadAttention(D, 2, batch_first=True, mapping=nn_.AdaptiveEntmax(2)), _attention,
    ),
    "multihead of learned scaling": (
        lambda: nn_.MultiheadAttention(D, 2, batch_first=True, mapping=nn_.LengthScaling(2)), _attention,
    ),
    "adaptive entmax": (partial(nn_.AdaptiveEntmax, 2), _heads),
    "length scaling": (partial(nn_.LengthScaling, 2), _heads),
    "block routing": (partial(nn_.BlockRoutedAttention, 2, block=2, head_dim=D // 2), _heads),
    "attention": (
        lambda: nn_.Attention(nn_.AdditiveScorer(D, D, 4), pm.entmax), lambda m, x, n: _squares(m(x[:, 0], x)[0]),
    ),
    "fertility": (
        lambda: nn_.FertilityAttention(nn_.BilinearScorer(D, D)),
        lambda m, x, n: _squares(m(x[:, :2], x, x.new_ones(len(x), N)).context),
    ),
    "crf": (partial(nn_.CRF, 3), _crf),
    "arcs": (partial(nn_.ArcScorer, D, 4), lambda m, x, n: pm.Marginals(pm.SpanningTree(lengths=n)).max(m(x))),
    "relations": (partial(nn_.RelationScorer, D, 4, 3), _relations),
    "segments": (lambda: nn_.SegmentScorer(nn_.BilinearScorer(D, D)), _segments),
    "convolution": (partial(nn_.GraphConvolution, D, 4, 2), _convolved),
    "gumbel tree": (
        partial(nn_.GumbelTreeLSTM, D, 4), lambda m, x, n: _squares(m(x, n, pm.HardMax(pm.Simplex())).root),
    ),
    "spinn": (partial(nn_.SPINN, D, 4, 3), lambda m, x, n: _squares(m(x, n).root)),
    "beam": (lambda: nn_.BeamSPINN(nn_.SPINN(D, 4, 3), 3), lambda m, x, n: _squares(m(x, n).roots)),
    "tree cell": (partial(nn_.TreeLSTMCell, D), lambda m, x, n: _squares(m(x[:, :2], x[:, 2:4])[0])),
    "binary tree": (partial(nn_.BinaryTreeLSTM, D, 4), _tree),
    "child sums": (partial(nn_.ChildSumTreeLSTM, D, 4), _tree),
    "latent dependency": (partial(nn_.LatentDependency, D, 4, "sparse-expectation"), _latent),
    "words": (partial(nn_.LinearEntmaxLoss, D, 11, reduction="none"), _words),
    "structured": (
        lambda: _Scored(nn_.StructuredAttention(pm.SparseMap(pm.SpanningTree()))),
        lambda m, x, n: _squares(m(x)),
    ),
}  # fmt: skip


class _Scored(nn.Module):
    """Structured attention over arcs that a scorer of its own scores."""

    def __init__(self, attention):
        super().__init__()
        self.scorer, self.attention = nn_.ArcScorer(D, 4), attention

    def forward(self, x):
        return self.attention(self.scorer(x), x)[0]


class _Loss(nn.Module):
    """The losses of a module, in a forward pass, as wrappers of modules need it."""

    def __init__(self, module, losses):
        super().__init__()
        self.module, self.losses = module, losses

    def forward(self, x, lengths):
        return self.losses(self.module, x, lengths)


def _made(name):
    torch.manual_seed(3)
    make, losses = MODULES[name]
    return _Loss(make().double(), losses)


def _slopes(model):
    found = {name.replace("module.module.", "module."): p.grad for name, p in model.named_parameters()}
    return {k: g.full_tensor() if hasattr(g, "full_tensor") else g for k, g in found.items() if g is not None}


def gradients():
    """Gradients of each module under DDP and FSDP2, of parts of a batch, and of one process."""
    size, rank, said = dist.get_world_size(), dist.get_rank(), []
    x, lengths = _tokens()
    part = slice(rank * len(x) // size, (rank + 1) * len(x) // size)
    for name in MODULES:
        whole = _made(name)
        loss = whole(x, lengths).mean()
        loss.backward()
        expected = _slopes(whole)
        for kind, wrap in (("ddp", _ddp), ("fsdp", _fsdp), ("fsdp inside", _fsdp_inside)):
            model = wrap(_made(name), size)
            try:
                found = model(x[part], lengths[part]).mean()
                found.backward()
            except Exception as error:
                said.append(f"{name} under {kind}: {type(error).__name__}: {str(error)[:300]}")
                continue
            mean = found.detach() / size
            dist.all_reduce(mean)
            if not torch.allclose(mean, loss.detach(), rtol=EXACT, atol=EXACT):
                said.append(f"{name} under {kind}: the loss is {float(mean)}, not {float(loss)}")
            slopes = _slopes(model)
            if slopes.keys() != expected.keys():
                said.append(f"{name} under {kind}: other parameters have gradients: {sorted(slopes)}")
                continue
            for key, g in expected.items():
                if not torch.allclose(slopes[key], g, rtol=EXACT, atol=EXACT):
                    said.append(f"{name} under {kind}: {key} differs by {float((slopes[key] - g).abs().max()):.1e}")
    return said


def _ddp(model, size):
    # an action layer has no gradient where the policy is fixed
    return DistributedDataParallel(model, find_unused_parameters=True)


def _fsdp(model, size):
    return fully_shard(model, mesh=mesh_of(size))


def _fsdp_inside(model, size):
    """Each module of polymax is a unit of its own; a method other than forward is registered as torch asks for it."""
    if isinstance(model.module, nn_.LatentDependency):
        fully_shard(model.module, mesh=mesh_of(size))
        register_fsdp_forward_method(model.module, "loss")
    else:
        fully_shard(model.module, mesh=mesh_of(size))
    return fully_shard(model, mesh=mesh_of(size))
