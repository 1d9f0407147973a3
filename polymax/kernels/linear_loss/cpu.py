"""Linear loss on the CPU: products of matrices by torch, blocks that stay in the caches, and lists by Numba."""

import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.widen import wide
from polymax.kernels.linear_loss.flat import (
    crowded_in_torch,
    pick_in_torch,
    scores_in_torch,
    slopes_in_torch,
    solve_in_torch,
)
from polymax.kernels.linear_loss.gradients import gradients, list_entries
from polymax.kernels.linear_loss.kept import value_and_gradients
from polymax.kernels.linear_loss.numba_exponentials import add_exponentials
from polymax.kernels.linear_loss.numba_flat import POWERS, solve_rows
from polymax.kernels.linear_loss.numba_lists import add_columns, add_rows, scan_rows
from polymax.kernels.linear_loss.passes import finish_in_torch, value_and_lists
from polymax.kernels.linear_loss.reference import first_moment
from polymax.kernels.linear_loss.steps import Cap, Exponentials, FlatRows, Lists, RowKeeping, Steps, pieces
from polymax.kernels.threshold import TSALLIS, threshold

# rows whose words are gathered at once
GATHERED = 16
# words whose gradients are widened at once, if they are in half precision
WORDS = 2048


def linear_loss(hidden: Tensor, *args) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", enabled=False):
        return value_and_lists(STEPS, hidden, *args)


def linear_loss_backward(grad_value: Tensor, *args) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast("cpu", enabled=False):
        return gradients(STEPS, grad_value, *args)


def linear_loss_slopes(grad_value: Tensor, *args) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", enabled=False):
        return value_and_gradients(STEPS, grad_value, *args)


def linear_loss_scale(x: Tensor, factor: Tensor) -> None:
    if float(factor) != 1:
        x.mul_(factor)


def product(a: Tensor, b: Tensor) -> Tensor:
    return wide(a) @ wide(b).mT


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    total.addmm_(a, b)


def scan(x: Tensor, bias: Tensor | None, first: int, lists: Lists, alpha: float, softcap: float) -> None:
    nothing = x.new_zeros(0)
    parallel(
        scan_rows, x.shape, 1, memory(x), memory(nothing if bias is None else bias.to(x.dtype)), first,
        tuple(memory(t) for t in lists), alpha, softcap,
    )  # fmt: skip


def accumulate(x: Tensor, bias: Tensor | None, sums: Exponentials, cap: Cap) -> None:
    x = scores_in_torch(x, bias, cap)
    # an exponential costs as much as some passes over an element
    parallel(add_exponentials, x.shape, 4, memory(x), tuple(memory(t) for t in sums))


def keep(x: Tensor, bias: Tensor | None, reference: Tensor | None, _: Tensor | None, cap: Cap) -> Tensor:
    x = scores_in_torch(x, bias, cap)
    return x if reference is None else x.sub_(reference.unsqueeze(1))


def solve_kept(x: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights of rows, in the place of their scores if possible, and top, value and tau."""
    power = round(1 / (alpha - 1)) if alpha > 1 else 0
    if power in POWERS and alpha == 1 + 1 / power:
        top, value, tau = x.new_empty(3, len(x)).unbind(0)
        parallel(solve_rows, x.shape, 8, memory(x), power, tuple(memory(t) for t in (top, value, tau)))
        return x, top, value, tau
    most = x.amax(1)
    dead = torch.isneginf(most)
    top = torch.where(most.isfinite(), most, 0)
    if alpha == 1:
        p = torch.ops.aten._softmax.out(x, 1, False, out=x)
        value = tau = -torch.log(p.amax(1))
    else:
        a, z = alpha - 1, x.sub_(top.unsqueeze(1))
        p = threshold(z, alpha, TSALLIS)
        tau = -(p.amax(1) ** a)
        mean = torch.bmm(p.unsqueeze(1), z.unsqueeze(2)).flatten()
        if not bool(mean.isfinite().all()):
            # a word of -inf has no weight
            mean = first_moment(z, p)
        value = a * mean / alpha + (tau + 1) / (alpha * a)
    if bool(dead.any()):
        p[dead] = 0
    return p, top, torch.where(dead, -torch.inf, value), tau


def kept_slopes(p: Tensor, spread: Tensor | None, rows: FlatRows, cap: Cap, out: Tensor) -> None:
    torch.mul(p, rows.grad_value.unsqueeze(1), out=out)
    if spread is not None:
        out.addcmul_(rows.grad_mean.unsqueeze(1), spread.to(out.dtype))
    if cap.scale != 1:
        out.mul_(cap.scale)


def row_sums(words: Tensor, coefs: Tensor, sizes: Tensor, weight: Tensor) -> Tensor:
    if weight.dtype == coefs.dtype:
        out = torch.empty(len(words), weight.shape[1], dtype=weight.dtype, device="cpu")
        lists = memory(words.to(torch.int32).contiguous()), memory(coefs.contiguous()), memory(sizes)
        parallel(add_rows, out.shape, max(words.shape[1] // 4, 1), *lists, memory(weight.contiguous()), memory(out))
        return out
    out = torch.zeros(len(words), weight.shape[1], dtype=weight.dtype, device="cpu")
    inside = torch.arange(words.shape[1], device="cpu") < sizes.unsqueeze(1)
    words, coefs = torch.where(inside, words, 0), torch.where(inside, coefs, 0)
    for rows in pieces(len(words), GATHERED):
        longest = int(sizes[rows].amax())
        if longest:
            gathered = wide(weight[words[rows, :longest].long()])
            out[rows] = (coefs[rows, None, :longest] @ gathered).squeeze(1).to(out.dtype)
    return out


def column_sums(
    starts: Tensor, order: Tensor, coefs: Tensor, longest: int, hidden: Tensor, dw: Tensor, db: Tensor, added: bool
) -> None:
    rows, coefs = (order // max(longest, 1)).to(torch.int32), coefs[:, :longest].flatten()[order]
    if not added:
        dw.zero_()
    arrays = memory(rows), memory(coefs), memory(wide(hidden).contiguous())
    if dw.dtype == coefs.dtype:
        parallel(add_columns, dw.shape, 1, memory(starts), *arrays, memory(dw), memory(db))
        return
    for words in pieces(len(dw), WORDS):
        part = dw[words].to(coefs.dtype)
        some = memory(starts[words.start : words.stop + 1])
        parallel(add_columns, part.shape, 1, some, *arrays, memory(part), memory(db[words]))
        dw[words] = part.to(dw.dtype)


STEPS = Steps(
    rows=1024,
    entries=2**20,
    flat=2**19,
    half=False,
    ahead=False,
    keeping=RowKeeping(entries=2**24, near=2**19, solve=solve_kept, slopes=kept_slopes),
    product=product,
    add_product=add_product,
    pick=pick_in_torch,
    scan=scan,
    finish=finish_in_torch,
    accumulate=accumulate,
    tiled=None,
    solve=solve_in_torch,
    slopes=slopes_in_torch,
    keep=keep,
    crowded=crowded_in_torch,
    listed=list_entries,
    row_sums=row_sums,
    column_sums=column_sums,
)
