"""Sparse attention in blocks of rows: matrix products for scores, and the support alone for everything after.

The scores of a block of queries are one matrix product; they are mapped, and forgotten. Contexts and gradients are sums
over weights that are not zero, gathered by row; where too many are not zero, they are matrix products as well.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import kernel, row_dot
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.cpu import threshold
from polymax.kernels.widen import wide

# scores of a block, some megabytes
BLOCK = 1 << 19
# a share of weights above which a matrix product is faster than sums over the others
DENSE = 0.1


@torch.autocast("cpu", enabled=False)
def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float,
    alphas: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    wide_type = torch.promote_types(q.dtype, torch.float32)
    out, mean = (torch.zeros(*q.shape[:3], v.shape[-1], dtype=wide_type) for _ in range(2))
    tau = torch.full(q.shape[:3], torch.inf, dtype=wide_type)
    support = torch.zeros(q.shape[:3], dtype=torch.int32)
    options = mask, sinks, scale, softcap, left, right, offset
    for block in _blocks(q, k, v, starts_q, starts_k, left, right, offset):
        x, _ = block.scores(*options)
        a = block.exponents(alpha, alphas, x)
        if alphas is None:
            p = threshold(x, alpha, TSALLIS)
        else:
            p = threshold(x, 0.0, TSALLIS, a.expand(x.shape[:-1]))
        keys = x.shape[-1] - (sinks is not None)
        found = torch.empty(*x.shape[:-1], 4, dtype=torch.float64)
        sums = [torch.empty(*x.shape[:-1], v.shape[-1], dtype=wide_type) for _ in range(2)]
        every = a.expand(x.shape[:-1]).reshape(-1).double().numpy()
        parallel(
            _contexts,
            x.shape,
            2,
            _rows(x),
            _rows(p),
            keys,
            block.v.numpy(),
            *(_rows(t) for t in sums),
            _rows(found),
            every,
        )
        if found[..., 3].any():
            # some rows have too many weights to be summed one by one
            s = torch.where(p > 0, p ** (2 - a[..., None]), 0)
            sums = [p[..., :keys] @ block.v, s[..., :keys] @ block.v]
        tau[block.rows], support[block.rows] = found[..., 0].to(wide_type), found[..., 1].to(torch.int32)
        out[block.rows], mean[block.rows] = sums
        mass = found[..., 2].to(wide_type)
        mean[block.rows] /= torch.where(mass > 0, mass, 1)[..., None]
    notes = torch.empty(0, dtype=torch.int32)
    return out.to(q.dtype), mean.to(q.dtype), tau, support, notes, notes.to(torch.int16)


@torch.autocast("cpu", enabled=False)
def sparse_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mean: Tensor,
    tau: Tensor,
    plan: Tensor,
    lists: Tensor,
    alpha: float,
    alphas: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
    mask_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    wide_type = tau.dtype
    dq, dk, dv = (torch.zeros(t.shape, dtype=wide_type) for t in (q, k, v))
    dalpha, dsink = torch.zeros_like(tau), torch.zeros_like(tau)
    bias = mask is not None and mask_gradient
    dmask = torch.zeros(mask.shape if bias and mask is not None else 0, dtype=wide_type)
    g = wide(grad).contiguous()
    common = (g * wide(mean)).sum(-1)
    options = mask, sinks, scale, softcap, left, right, offset
    for block in _blocks(q, k, v, starts_q, starts_k, left, right, offset):
        x, slope = block.scores(*options)
        a = block.exponents(alpha, alphas, x)
        keys = x.shape[-1] - (sinks is not None)
        # weights take the place of scores, and their slopes a place beside them
        s, found = torch.empty_like(x), torch.empty(*x.shape[:-1], 3, dtype=torch.float64)
        here, shared = g[block.rows].contiguous(), common[block.rows].contiguous()
        every = [t.expand(x.shape[:-1]).reshape(-1).double().numpy() for t in (a, tau[block.rows], shared)]
        parallel(
            _slopes,
            x.shape,
            2,
            *(_rows(t) for t in (x, s, here)),
            block.v.numpy(),
            keys,
            _rows(found),
            alphas is not None,
            *every,
        )
        if alphas is not None:
            dalpha[block.rows] = found[..., 1].to(wide_type)
        dsink[block.rows] = found[..., 2].to(wide_type)
        p, dx = x[..., :keys], s[..., :keys]
        if bias:
            block.add_mask_slopes(dmask, dx)
        if slope is not None:
            dx = dx * slope
            s[..., :keys] = dx
        queries, at = block.q, (block.batch, block.group, block.keys)
        if found[..., 0].sum() > DENSE * x.numel():
            dq[block.rows] = scale * (dx @ block.k)
            dk[at] += (dx.mT @ queries).sum(0)
            dv[at] += (p.mT @ here).sum(0)
            continue
        slopes = torch.zeros(queries.shape, dtype=wide_type)
        parallel(_gather, x.shape, 2, _rows(s), keys, block.k.numpy(), _rows(slopes))
        dq[block.rows] = scale * slopes
        # each range of keys belongs to one thread, which takes rows in order
        span = torch.Size((keys, s.shape[0] * s.shape[1]))
        parallel(_scatter, span, 2, _rows(x), _rows(s), _rows(queries), _rows(here), dk[at].numpy(), dv[at].numpy())
    dq[tau.isnan()] = torch.nan
    return dq.to(q.dtype), dk.mul_(scale).to(k.dtype), dv.to(v.dtype), dalpha, dsink, dmask


class _Block:
    """Queries of the heads that share a key, against the keys that they see."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: int,
        group: int,
        first_q: int,
        rows: range,
        first_k: int,
        keys: range,
    ) -> None:
        share = q.shape[1] // k.shape[1]
        self.batch, self.group, self.share = batch, group, share
        # positions in the sequence, and places in the tensors
        self.at_q, self.at_k = rows, keys
        self.heads = slice(group * share, (group + 1) * share)
        places = slice(first_q + rows.start, first_q + rows.stop)
        self.rows = (batch, self.heads, places)
        self.keys = slice(first_k + keys.start, first_k + keys.stop)
        self.q = wide(q[self.rows]).contiguous()
        self.k, self.v = k[batch, group, self.keys], v[batch, group, self.keys]

    def exponents(self, alpha: float, alphas: Tensor | None, x: Tensor) -> Tensor:
        """alpha for (heads, rows)."""
        if alphas is None:
            return torch.full((1, 1), alpha, dtype=x.dtype)
        return alphas[self.heads].to(x.dtype)[:, None]

    def scores(
        self,
        mask: Tensor | None,
        sinks: Tensor | None,
        scale: float,
        softcap: float,
        left: int,
        right: int,
        offset: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Scores (heads, rows, keys), the sink as a last key, and their slope where there is a softcap."""
        x = (self.q * scale) @ self.k.mT
        slope = None
        if softcap > 0:
            bent = torch.tanh_(x / softcap)
            x, slope = softcap * bent, 1 - bent.square()
        if mask is not None:
            part = mask[self._of_mask(mask)]
            x = x.masked_fill_(~part, -torch.inf) if mask.dtype == torch.bool else x.add_(part)
        # only keys near the ends are hidden from some rows
        shift = offset + self.at_q.start - self.at_k.start
        if right >= 0:
            begin = min(max(shift + right + 1, 0), x.shape[-1])
            self._hide(x[..., begin:], -1, right, shift - begin)
        if left >= 0:
            end = min(max(shift + len(self.at_q) - 1 - left, 0), x.shape[-1])
            self._hide(x[..., :end], left, -1, shift)
        if sinks is not None:
            column = sinks[self.heads].to(x.dtype)[:, None, None]
            x = torch.cat([x, column.expand(*x.shape[:-1], 1)], -1)
        return x, slope

    def _hide(self, x: Tensor, left: int, right: int, offset: int) -> None:
        if x.numel():
            sees = allowed(x.shape[-2], x.shape[-1], None, None, left, right, offset, x.device)
            x.masked_fill_(~sees, -torch.inf)

    def add_mask_slopes(self, dmask: Tensor, dx: Tensor) -> None:
        part = dmask[self._of_mask(dmask)]
        part += dx.sum_to_size(part.shape)

    def _of_mask(self, mask: Tensor) -> tuple[int | slice, ...]:
        every = slice(None)
        return (
            self.batch if mask.shape[0] > 1 else 0,
            self.heads if mask.shape[1] > 1 else every,
            slice(self.at_q.start, self.at_q.stop) if mask.shape[2] > 1 else every,
            slice(self.at_k.start, self.at_k.stop) if mask.shape[3] > 1 else every,
        )


def _blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    left: int,
    right: int,
    offset: int,
) -> Iterator[_Block]:
    """All blocks, one after the other, each with the keys that its first or last row can see and those between."""
    k, v = wide(k).contiguous(), wide(v).contiguous()
    if starts_q is None or starts_k is None:
        sequences = [(batch, 0, q.shape[2], 0, k.shape[2]) for batch in range(q.shape[0])]
    else:
        of_q, of_k = starts_q.tolist(), starts_k.tolist()
        sequences = [(0, a, b - a, c, d - c) for a, b, c, d in zip(of_q, of_q[1:], of_k, of_k[1:], strict=False)]
    for batch, first_q, queries, first_k, keys in sequences:
        size = max(1, BLOCK // max(1, keys * (q.shape[1] // k.shape[1])))
        for group in range(k.shape[1]):
            for start in range(0, queries, size):
                rows = range(start, min(start + size, queries))
                low = max(0, rows.start + offset - left) if left >= 0 else 0
                high = min(keys, rows.stop + offset + right) if right >= 0 else keys
                seen = range(min(low, keys), max(min(low, keys), high))
                yield _Block(q, k, v, batch, group, first_q, rows, first_k, seen)


def _rows(x: Tensor) -> np.ndarray:
    return x.detach().numpy().reshape(x.shape[:-1].numel(), x.shape[-1])


@kernel
def _contexts(start, stop, x, p, keys, v, out, mean, found, alphas):
    """Sums of values under p and s = p^(2 - alpha); tau, the size of the support, the sum of s, 1 if too large."""
    n = x.shape[1]
    channels = v.shape[1]
    real = x.dtype.type
    index = np.empty(n + 1, np.int32)
    for i in range(start, stop):
        a = alphas[i]
        count = 0
        for j in range(n):
            index[count] = j
            count += p[i, j] > 0
        # NaN fills the weights of its row
        fill = real(np.nan) if n > 0 and p[i, 0] != p[i, 0] else real(0)
        for c in range(channels):
            out[i, c] = fill
            mean[i, c] = fill
        many = count > 64 and count > DENSE * n
        top = real(0)
        at = -1
        mass = 0.0
        for e in range(count):
            j = index[e]
            w = p[i, j]
            s = real(1) if a == 2 else np.sqrt(w) if a == 1.5 else real(w ** (2 - a))
            mass += s
            if w > top:
                top = w
                at = j
            if j < keys and not many:
                for c in range(channels):
                    out[i, c] += w * v[j, c]
                    mean[i, c] += s * v[j, c]
        tau = np.inf if at < 0 else (a - 1) * x[i, at] - top ** (a - 1)
        found[i, 0] = tau if fill == 0 else np.nan
        found[i, 1] = count
        found[i, 2] = mass
        found[i, 3] = many


@kernel
def _slopes(start, stop, x, s, g, v, keys, found, learned, alphas, taus, commons):
    """Weights in the place of scores x, and dx in s; the size of the support, and dalpha and dsink of the row."""
    n = x.shape[1]
    real = x.dtype.type
    index = np.empty(n + 1, np.int32)
    excess = np.empty(n + 1)
    for i in range(start, stop):
        a = alphas[i]
        tau = taus[i]
        r = 1 / (a - 1)
        size = 0
        for j in range(n):
            index[size] = j
            size += (a - 1) * x[i, j] > tau
        for j in range(n):
            s[i, j] = 0
        dalpha = 0.0
        dsink = 0.0
        for e in range(size):
            j = index[e]
            excess[e] = (a - 1) * x[i, j] - tau
        for j in range(n):
            x[i, j] = 0
        for e in range(size):
            j = index[e]
            w = excess[e]
            dp = real(0)
            if j < keys:
                dp = row_dot(g[i], v[j])
            slope = 1.0 if a == 2 else w if a == 1.5 else w ** (r - 1)
            dx = slope * (dp - commons[i])
            if j >= keys:
                dsink = dx
            if learned:
                dalpha -= dx * w * (np.log(w) - 1) / (a - 1) ** 2
            x[i, j] = slope * w
            s[i, j] = dx
        found[i, 0] = size
        found[i, 1] = dalpha
        found[i, 2] = dsink


@kernel
def _gather(start, stop, dx, keys, k, dq):
    channels = k.shape[1]
    for i in range(start, stop):
        for j in range(keys):
            d = dx[i, j]
            if d != 0:
                for c in range(channels):
                    dq[i, c] += d * k[j, c]


@kernel
def _scatter(start, stop, p, dx, q, g, dk, dv):
    """Of the keys start .. stop: dk += dx q and dv += p g, rows in order."""
    for i in range(p.shape[0]):
        for j in range(start, stop):
            w = p[i, j]
            if w != 0:
                d = dx[i, j]
                for c in range(q.shape[1]):
                    dk[j, c] += d * q[i, c]
                for c in range(g.shape[1]):
                    dv[j, c] += w * g[i, c]
