"""Tree-LSTMs, level by level over a batch, against a loop over nodes with the same weights, in turns.

    python -m benchmarks.composition --device cuda

Trees are random; the plan of levels is made anew in every run. The loop is how one writes a tree in plain PyTorch.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from polymax import nn
from polymax_recipes.demo import speed


def main() -> int:
    """Measure, check that both agree, print a table, and write a file if one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.composition", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--hidden", type=int, action="append", help="by default 50 and 100")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        speed.available(options.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    print(f"{'tree':<11}{'hidden':>7}{'timed':>18}{'loop':>10}{'levels':>10}{'faster':>8}{'tokens/s':>12}")
    for hidden in options.hidden or (50, 100):
        for kind in CASES:
            for backward in (False, True):
                row = compared(kind, hidden, backward, options)
                rows.append(row)
                print(
                    f"{kind:<11}{hidden:>7}{row['timed']:>18}{row['loop_ms']:>7.1f} ms{row['levels_ms']:>7.2f} ms"
                    f"{row['faster']:>7.1f}x{row['tokens_per_second']:>12,.0f}",
                    flush=True,
                )
    if options.out is not None:
        settings = {name: getattr(options, name) for name in ("batch", "tokens", "rounds")}
        kept = {**machine.provenance(), "machine": machine.describe(options.device), **settings, "rows": rows}
        options.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return 0


def compared(kind: str, hidden: int, backward: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of both, in turns, once they agree to 1e-5."""
    torch.manual_seed(0)
    module, loop, draw = CASES[kind]
    lstm = module(hidden, hidden).to(options.device)
    tokens = torch.randn(options.batch, options.tokens, hidden, device=options.device)
    trees = draw(options.batch, options.tokens)
    ways = {"levels": lambda: lstm(tokens, trees.to(options.device)).root, "loop": lambda: loop(lstm, tokens, trees)}
    roots = [way() for way in ways.values()]
    if not torch.allclose(roots[0], roots[1], atol=1e-5):
        raise AssertionError(f"{kind} trees: the ways differ by {float((roots[0] - roots[1]).abs().max()):.1e}")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name, way in ways.items():
            taken = _timed(way, lstm, backward, options.device)
            # the first is warm-up
            seconds[name] += [taken] if turn else []
    loop_time, levels = median(seconds["loop"]), median(seconds["levels"])
    return {
        "tree": kind,
        "hidden": hidden,
        "timed": "forward+backward" if backward else "forward",
        "loop_ms": 1e3 * loop_time,
        "levels_ms": 1e3 * levels,
        "faster": median(a / b for a, b in zip(seconds["loop"], seconds["levels"])),
        "tokens_per_second": options.batch * options.tokens / levels,
    }


def _timed(way: Callable[[], Tensor], lstm: torch.nn.Module, backward: bool, device: str) -> float:
    start = perf_counter()
    with torch.set_grad_enabled(backward):
        root = way()
        if backward:
            torch.autograd.grad(root.sum(), list(lstm.parameters()))
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - start


def _random_transitions(batch: int, n: int) -> Tensor:
    choices = torch.rand(batch, n - 1) * torch.arange(n - 1, 0, -1)
    return nn.transitions_of_merges(choices.long(), torch.full((batch,), n))


def _random_heads(batch: int, n: int) -> Tensor:
    heads = torch.zeros(batch, n, dtype=torch.long)
    for row in heads:
        order = torch.randperm(n) + 1
        for k in range(1, n):
            row[order[k] - 1] = order[int(torch.randint(k, ()))]
    return heads


def _binary_loop(lstm: nn.BinaryTreeLSTM, tokens: Tensor, transitions: Tensor) -> Tensor:
    d = lstm.cell.hidden_dim
    roots = []
    for row, steps in zip(tokens, transitions.tolist()):
        stack: list[Tensor] = []
        waiting = iter(row)
        for step in steps:
            if step == 0:
                stack.append(lstm.leaf(next(waiting)))
                continue
            right, left = stack.pop(), stack.pop()
            gates = lstm.cell.gates(torch.cat([left[:d], right[:d]]))
            f_l, f_r, i, o, g = gates.chunk(5)
            c = f_l.sigmoid() * left[d:] + f_r.sigmoid() * right[d:] + i.sigmoid() * g.tanh()
            stack.append(torch.cat([o.sigmoid() * c.tanh(), c]))
        roots.append(stack[0][:d])
    return torch.stack(roots)


def _child_sum_loop(lstm: nn.ChildSumTreeLSTM, tokens: Tensor, heads: Tensor) -> Tensor:
    d = lstm.hidden_dim

    def state(row: Tensor, children: list[list[int]], j: int) -> tuple[Tensor, Tensor]:
        x = lstm.input(row[j])
        below = [state(row, children, m) for m in children[j + 1]]
        summed = torch.stack([h for h, _ in below]).sum(0) if below else x.new_zeros(d)
        i, o, u = (x[: 3 * d] + lstm.gates(summed)).chunk(3)
        c = i.sigmoid() * u.tanh()
        for h, kept in below:
            c = c + (x[3 * d :] + lstm.forget(h)).sigmoid() * kept
        return o.sigmoid() * c.tanh(), c

    roots = []
    for row, above in zip(tokens, heads.tolist()):
        children: list[list[int]] = [[] for _ in range(len(above) + 1)]
        for m, head in enumerate(above):
            children[head].append(m)
        roots.append(state(row, children, children[0][0])[0])
    return torch.stack(roots)


CASES: dict[str, tuple[Any, Any, Any]] = {
    "binary": (nn.BinaryTreeLSTM, _binary_loop, _random_transitions),
    "child-sum": (nn.ChildSumTreeLSTM, _child_sum_loop, _random_heads),
}

if __name__ == "__main__":
    sys.exit(main())
