"""Linear loss on CUDA: products of matrices by cuBLAS, in blocks that a kernel reads once; lists by Triton."""

import torch
import triton
from torch import Tensor

from polymax.backend.triton_math import ceil_power, on_device
from polymax.backend.widen import wide
from polymax.kernels.linear_loss.cuda_flat import flat_slopes, solve_rows
from polymax.kernels.linear_loss.cuda_kept import name_columns, pick_columns, slope_columns, solve_columns
from polymax.kernels.linear_loss.cuda_lists import add_columns, add_rows, finish_lists, write_entries
from polymax.kernels.linear_loss.cuda_power import power_of
from polymax.kernels.linear_loss.cuda_sample import guess_rows, refer_rows
from polymax.kernels.linear_loss.cuda_scale import scale_numbers
from polymax.kernels.linear_loss.cuda_scan import add_exponentials, keep_rows, pick_words, scan_rows, settle_rows
from polymax.kernels.linear_loss.cuda_tiles import tiled_sums
from polymax.kernels.linear_loss.flat import (
    accumulate_in_torch,
    crowded_in_torch,
    name_columns_in_torch,
    pick_columns_in_torch,
    pick_in_torch,
    refer_in_torch,
    scores_in_torch,
    slope_columns_in_torch,
    slopes_in_torch,
    solve_columns_in_torch,
    solve_in_torch,
)
from polymax.kernels.linear_loss.gradients import gradients, list_entries
from polymax.kernels.linear_loss.kept import value_and_gradients
from polymax.kernels.linear_loss.passes import finish_in_torch, value_and_lists
from polymax.kernels.linear_loss.problem import Grads, LossProblem, Saved
from polymax.kernels.linear_loss.steps import (
    Cap,
    ColumnKeeping,
    Exponentials,
    FlatRows,
    KeptLogits,
    Listed,
    Lists,
    Named,
    Steps,
)

# from 2.8 on torch multiplies half precision into float32; before, wider copies of a block are multiplied
MIXED = hasattr(torch.ops.aten.mm, "dtype")
# WIDTH: logits of a row that are scanned at once
# WARPS: warps that scan them
WIDTH, WARPS = 512, 1
# PART: entries of a row whose words are gathered at once
# MANY: entries of a word whose rows are gathered at once, if there are so many
# CHANNELS: channels of a program
PART, MANY, CHANNELS = 4, 8, 1024
# logits of a step over whole rows
CHUNK = 8192
# logits of a step over a row in blocks
BLOCK = 1024
# COLUMNS: columns of kept logits that a program solves, the fewest whose words fill a sector of memory twice
# SOLVED, STAGES: words of a step, and steps that are loaded ahead
COLUMNS, SOLVED, STAGES = 32, 256, 3
# SCALED: numbers that a program scales at once
# PROGRAMS: programs that scale a tensor
SCALED, PROGRAMS = 8192, 1024
# REFERRED: words at even distances, one of which gives a row its reference
# SAMPLE: words at even distances that stand for all at first
REFERRED, SAMPLE = 1024, 4096
# how far from 1 the sum of weights may be before the last step, in float32 and in half precision: weights with kinks at
# the threshold; steps whose error is squared; steps of Halley's method, whose error is cubed
NEAR = (2e-6, 1e-4), (3e-4, 4e-3), (3e-3, 2e-2)
# words and columns of kept logits of a program that computes gradients
SLOPES = 16, 256


def linear_loss(hidden: Tensor, *args) -> tuple[Tensor, ...]:
    with torch.autocast("cuda", enabled=False), on_device(hidden):
        return value_and_lists(STEPS, hidden, *args)


def linear_loss_backward(grad_value: Tensor, *args) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast("cuda", enabled=False), on_device(grad_value):
        return gradients(STEPS, grad_value, *args)


def linear_loss_slopes(grad_value: Tensor, *args) -> tuple[Tensor, ...]:
    with torch.autocast("cuda", enabled=False), on_device(grad_value):
        return value_and_gradients(STEPS, grad_value, *args)


def linear_loss_scale(x: Tensor, factor: Tensor) -> None:
    n = x.numel()
    if n and x.is_contiguous():
        with on_device(x):
            scale_numbers[(min(triton.cdiv(n, SCALED), PROGRAMS),)](x, factor, n, BN=SCALED, num_warps=8)
    else:
        x.mul_(factor)


def product(a: Tensor, b: Tensor) -> Tensor:
    if MIXED and a.dtype in (torch.float16, torch.bfloat16) and a.is_cuda:
        return torch.mm(a, b.mT, out_dtype=torch.float32)
    return wide(a) @ wide(b).mT


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif MIXED and a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += product(a, b.mT)


def pick(x: Tensor, bias: Tensor | None, named: Tensor, first: int, chosen: Tensor, cap: Cap) -> None:
    k = named.shape[1]
    if x.dtype == torch.float64:
        # numbers that kernels are given have single precision
        pick_in_torch(x, bias, named, first, chosen, cap)
    elif k:
        pick_words[(len(x),)](
            x, x if bias is None else bias, named.contiguous(), chosen, first, x.shape[1], *cap, k,
            BIAS=bias is not None, CAP=cap.softcap > 0, BK=ceil_power(k), num_warps=1,
        )  # fmt: skip


def scan(x: Tensor, bias: Tensor | None, first: int, lists: Lists, alpha: float, softcap: float) -> None:
    rows, words = x.shape
    size = lists.values.shape[1]
    width = min(WIDTH, ceil_power(words))
    given = x if bias is None else bias
    flags = {"BIAS": bias is not None, "CAP": softcap > 0, "BN": width}
    scan_rows[(rows,)](
        x, given, lists.count, lists.ids, lists.values, lists.bound, first, words, alpha - 1, softcap, size, **flags,
        num_warps=WARPS,
    )  # fmt: skip
    settle_rows[(rows,)](
        x, given, *lists, first, words, alpha - 1, softcap, size, R=power_of(alpha), BK=ceil_power(size), **flags,
        num_warps=1,
    )  # fmt: skip


def finish(lists: Lists, counted: Tensor, problem: LossProblem) -> Listed:
    count, _, values, top, _ = lists
    if problem.sloped or values.dtype == torch.float64:
        return finish_in_torch(lists, counted, problem)
    rows, size = values.shape
    value, tau, slope = torch.empty_like(top), torch.empty_like(top), torch.zeros_like(top)
    probs, extent = torch.empty_like(values), torch.zeros(2, dtype=torch.int32, device=top.device)
    finish_lists[(rows,)](
        count, values, top, counted, value, tau, probs, extent, size, problem.alpha, R=power_of(problem.alpha),
        BK=ceil_power(size), num_warps=1,
    )  # fmt: skip
    return Listed(value, top, tau, slope, probs, count, extent)


def accumulate(x: Tensor, bias: Tensor | None, sums: Exponentials, cap: Cap) -> None:
    if x.dtype == torch.float64:
        # the block is kept afterwards
        accumulate_in_torch(x.clone(), bias, sums, cap)
        return
    rows, words = x.shape
    width = min(CHUNK, ceil_power(words))
    add_exponentials[(rows,)](
        x, x if bias is None else bias, *sums, words, *cap, BIAS=bias is not None, CAP=cap.softcap > 0, BN=width,
        num_warps=8 if width > BLOCK else 4,
    )  # fmt: skip


def keep(x: Tensor, bias: Tensor | None, reference: Tensor | None, memory: Tensor | None, cap: Cap) -> Tensor:
    rows, words = x.shape
    if x.dtype == torch.float64:
        x = scores_in_torch(x, bias, cap)
        return x if reference is None else x - reference.unsqueeze(1)
    out = torch.empty_like(x) if memory is None else memory
    width = min(2048, ceil_power(words))
    keep_rows[(rows, triton.cdiv(words, width))](
        x, x if bias is None else bias, x if reference is None else reference, out, words, *cap,
        BIAS=bias is not None, CAP=cap.softcap > 0, REFERENCE=reference is not None, BN=width,
    )  # fmt: skip
    return out


def solve(
    x: Tensor, bias: Tensor | None, alpha: float, cap: Cap, sloped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if sloped or not 1 < alpha <= 2 or x.dtype == torch.float64 or cap.scale != 1:
        return solve_in_torch(x, bias, alpha, cap, sloped)
    rows, words = x.shape
    top, value, tau = (torch.empty(rows, dtype=x.dtype, device=x.device) for _ in range(3))
    part = min(CHUNK, ceil_power(words))
    solve_rows[(rows,)](
        x, top if bias is None else bias, top, value, tau, words, alpha, cap.softcap, R=power_of(alpha),
        BIAS=bias is not None, CAP=cap.softcap > 0, BN=part, num_warps=16 if part > BLOCK else 8,
    )  # fmt: skip
    return top, value, tau, torch.zeros_like(value)


def refer(hidden: Tensor, weight: Tensor, bias: Tensor | None, named: Tensor | None) -> tuple[Tensor, Tensor]:
    every = max(len(weight) // REFERRED, 1)
    # a count of words that fills the tiles of a product
    x = product(hidden, weight[::every][:REFERRED])
    if x.dtype == torch.float64:
        return refer_in_torch(x, every, hidden, weight, bias, named)
    n, count = x.shape
    reference, less = torch.empty_like(x[:, 0]), hidden.new_empty(n)
    hidden, weight = (t if t.stride(-1) == 1 else t.contiguous() for t in (hidden, weight))
    some = x if bias is None else bias[::every][:count].contiguous()
    k = 0 if named is None else named.shape[1]
    refer_rows[(n,)](
        x, some, x if bias is None else bias, hidden, weight, x if named is None else named.contiguous(), reference,
        less, count, hidden.shape[1], hidden.stride(0), weight.stride(0), k,
        BIAS=bias is not None, NAMED=k > 0, BK=ceil_power(count), BD=1024, num_warps=4,
    )  # fmt: skip
    return reference, less


def solve_kept(kept: KeptLogits, alpha: float, cap: Cap) -> tuple[Tensor, Tensor, Tensor]:
    x, reference, bias = kept
    if not 1 <= alpha <= 2 or x.dtype == torch.float64:
        return solve_columns_in_torch(kept, alpha, cap)
    words, n = x.shape
    top, value, tau = (torch.empty_like(reference) for _ in range(3))
    power = power_of(alpha)
    exact, half = NEAR[2 if power >= 2 else int(alpha <= 1.5)]
    near = half if x.dtype in (torch.float16, torch.bfloat16) else exact
    solve_columns[(triton.cdiv(n, COLUMNS),)](
        x, reference, reference if bias is None else bias, top, value, tau, words, n, x.stride(0), SAMPLE, near,
        alpha, *cap,
        R=power, BIAS=bias is not None, CAP=cap.softcap > 0, BW=min(SOLVED, ceil_power(words)), BN=COLUMNS,
        STAGES=STAGES, num_warps=16,
    )  # fmt: skip
    return top, value, tau


def kept_slopes(kept: KeptLogits, spread: Tensor | None, rows: FlatRows, alpha: float, cap: Cap) -> None:
    x, reference, bias = kept
    if not 1 <= alpha <= 2 or x.dtype == torch.float64:
        slope_columns_in_torch(kept, spread, rows, alpha, cap)
        return
    words, n = x.shape
    if spread is not None and spread.stride(-1) != 1:
        spread = spread.contiguous()
    slope_columns[(triton.cdiv(words, SLOPES[0]), triton.cdiv(n, SLOPES[1]))](
        x, reference, reference if bias is None else bias, x if spread is None else spread, *rows[:4], words, n,
        x.stride(0), 0 if spread is None or spread.dim() == 1 else spread.stride(0), alpha - 1, *cap,
        R=power_of(alpha), BIAS=bias is not None, SPREAD=spread is not None, CAP=cap.softcap > 0, BW=SLOPES[0],
        BN=SLOPES[1], num_warps=4,
    )  # fmt: skip


def pick_kept(kept: KeptLogits, named: Tensor, cap: Cap) -> Tensor:
    x, reference, bias = kept
    if x.dtype == torch.float64:
        return pick_columns_in_torch(kept, named, cap)
    n, k = named.shape
    chosen = reference.new_empty(n, k)
    pick_columns[(n,)](
        x, reference, reference if bias is None else bias, named.contiguous(), chosen, x.stride(0), k, *cap,
        BIAS=bias is not None, CAP=cap.softcap > 0, BK=ceil_power(k), num_warps=1,
    )  # fmt: skip
    return chosen


def name_kept(kept: KeptLogits, spread: Tensor | None, rows: FlatRows, named: Named, alpha: float, cap: Cap) -> None:
    x = kept.x
    if not 1 <= alpha <= 2 or x.dtype == torch.float64:
        name_columns_in_torch(kept, spread, rows, named, alpha, cap)
        return
    n, k = named.words.shape
    if spread is not None and spread.stride(-1) != 1:
        spread = spread.contiguous()
    name_columns[(n,)](
        x, x if spread is None else spread, named.words.contiguous(), named.scores, *rows[:4],
        named.slope.contiguous(), x.stride(0), 0 if spread is None or spread.dim() == 1 else spread.stride(0), k,
        alpha - 1, *cap,
        R=power_of(alpha), SPREAD=spread is not None, CAP=cap.softcap > 0, BK=ceil_power(k), num_warps=1,
    )  # fmt: skip


def slopes(
    x: Tensor, bias: Tensor | None, spread: Tensor | None, rows: FlatRows, alpha: float, cap: Cap, dtype: torch.dtype
) -> Tensor:
    if not 1 <= alpha <= 2 or x.dtype == torch.float64:
        return slopes_in_torch(x, bias, spread, rows, alpha, cap, dtype)
    n, words = x.shape
    out = torch.empty((n, words), dtype=dtype, device=x.device)
    width = min(2048, ceil_power(words))
    top, tau, of_value, of_mean, of_moment = rows
    if spread is not None and spread.stride(-1) != 1:
        spread = spread.contiguous()
    flat_slopes[(n, triton.cdiv(words, width))](
        x, top if bias is None else bias, x if spread is None else spread, top, tau, of_value, of_mean,
        of_value if of_moment is None else of_moment, out,
        words, 0 if spread is None or spread.dim() == 1 else spread.stride(0), alpha - 1, *cap,
        R=power_of(alpha), BIAS=bias is not None, SPREAD=spread is not None, CAP=cap.softcap > 0,
        MOMENT=of_moment is not None, BN=width,
    )  # fmt: skip
    return out


def row_sums(words: Tensor, coefs: Tensor, sizes: Tensor, weight: Tensor) -> Tensor:
    n, d = len(words), weight.shape[1]
    out = torch.empty((n, d), dtype=weight.dtype, device=weight.device)
    weight = weight if weight.stride(-1) == 1 else weight.contiguous()
    if n and d:
        width = min(CHANNELS, ceil_power(d))
        add_rows[(n, triton.cdiv(d, width))](
            words.contiguous(), coefs.contiguous(), sizes, weight, out, words.shape[1], weight.stride(0), d,
            BR=PART, BD=width,
        )  # fmt: skip
    return out


def crowded(x: Tensor, problem: LossProblem, size: int) -> Tensor:
    hidden, weight, bias, named, _, alpha = problem[:6]
    if x.dtype == torch.float64:
        return crowded_in_torch(x, problem, size)
    n, count = x.shape
    found = torch.empty((2, n), dtype=torch.int32, device=x.device)
    some = x if bias is None else bias[:: max(len(weight) // count, 1)][:count].contiguous()
    hidden, weight = (t if t.stride(-1) == 1 else t.contiguous() for t in (hidden, weight))
    k = 0 if named is None else named.shape[1]
    guess_rows[(n,)](
        x, some, x if bias is None else bias, hidden, weight, x if named is None else named, found[0], found[1],
        count, len(weight) / count, hidden.shape[1], hidden.stride(0), weight.stride(0),
        0 if named is None else named.stride(0), k, alpha - 1, problem.softcap, problem.scale, size, R=power_of(alpha),
        BIAS=bias is not None, CAP=problem.softcap > 0, NAMED=named is not None, BK=ceil_power(count),
        BA=ceil_power(max(k, 1)), BD=1024, num_warps=4,
    )  # fmt: skip
    return found


def listed_entries(
    grads: Grads, problem: LossProblem, saved: Saved, longest: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    named, chosen, probs = problem.named, grads.chosen, saved.probs
    if problem.softcap or problem.scale != 1 or probs.dtype == torch.float64:
        return list_entries(grads, problem, saved, longest)
    n, k = len(probs), 0 if named is None else named.shape[1]
    shape = n, k + longest
    words, keys = (torch.empty(shape, dtype=torch.int32, device=probs.device) for _ in range(2))
    coefs, sizes = torch.empty(shape, dtype=probs.dtype, device=probs.device), torch.empty_like(saved.count)
    if n and k + longest:
        write_entries[(n,)](
            saved.ids if named is None else named.contiguous(), chosen.contiguous(), saved.ids, probs, grads.value,
            saved.count, words, coefs, keys, sizes, k, probs.shape[1], longest, len(problem.weight),
            BK=ceil_power(k + longest), num_warps=4,
        )  # fmt: skip
    return words, coefs, sizes, keys


def column_sums(
    starts: Tensor, order: Tensor, coefs: Tensor, longest: int, hidden: Tensor, dw: Tensor, db: Tensor, added: bool
) -> None:
    words, d = dw.shape
    hidden = hidden if hidden.stride(-1) == 1 else hidden.contiguous()
    if words and d:
        width = min(CHANNELS, ceil_power(d))
        add_columns[(words, triton.cdiv(d, width))](
            starts, order, coefs.contiguous(), hidden, dw, db, max(longest, 1), coefs.shape[1], hidden.stride(0), d,
            ADDED=added, BR=MANY, BD=width,
        )  # fmt: skip


STEPS = Steps(
    rows=4096,
    entries=2**25,
    flat=2**24,
    half=True,
    ahead=True,
    keeping=ColumnKeeping(
        words=4096, refer=refer, solve=solve_kept, pick=pick_kept, slopes=kept_slopes, name=name_kept
    ),
    product=product,
    add_product=add_product,
    pick=pick,
    scan=scan,
    finish=finish,
    accumulate=accumulate,
    tiled=tiled_sums,
    solve=solve,
    slopes=slopes,
    keep=keep,
    crowded=crowded,
    listed=listed_entries,
    row_sums=row_sums,
    column_sums=column_sums,
)
