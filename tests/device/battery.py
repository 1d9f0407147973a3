"""All operators that have kernels for CUDA, forward and backward, each twice with other shapes in between.

    python -m tests.device.battery [--device cuda|cpu] [NAME ...]

`make sanitize-gpu` runs it under compute-sanitizer. Results are looked at for NaN alone: the tests compare them.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

HOME = Path(__file__).resolve().parents[2]
# tables are plain modules beside the tests
sys.path.insert(0, str(HOME / "tests"))

import cases  # noqa: E402
import graphs  # noqa: E402
import sets  # noqa: E402

import polymax as pm  # noqa: E402
from polymax.structures.base import tensors  # noqa: E402

# a call for a device and a size: what it gives, and what it is derived by
Results = tuple[list[torch.Tensor], list[torch.Tensor]]
Call = Callable[[str, int], Results]


def battery() -> dict[str, Call]:
    """The calls by name; a size of 0 is a small one, others are larger."""
    found: dict[str, Call] = {}
    for row in cases.ROWS:
        found[f"mapping {row.name}"] = mapping(row)
    for row in sets.TABLE:
        for smooth in (*row.smoothings(), pm.SparseMap(row.structure, pm.ActiveSet(max_iter=50))):
            found[f"{type(smooth).__name__} {row.name}"] = structure(row, smooth)
    for row in graphs.GRAPHS:
        found[f"graph {row.name}"] = graph(row)
    for alpha in (1.5, 1.3, 2.0):
        found[f"vocabulary {alpha}"] = vocabulary(alpha)
    for alpha in (1.0, 1.25, 1.5, 2.0):
        found[f"vocabulary in half precision {alpha}"] = half_vocabulary(alpha)
    found["log-probabilities"] = log_probabilities
    found["tags"] = tags
    for name in ("causal", "window", "bias", "mask", "sinks", "half"):
        found[f"attention {name}"] = attention(name)
    found["attention of dense heads"] = dense_heads
    found["attention routed"] = routed
    found["learned alphas"] = learned_alphas
    found["decoding"] = decoding
    found["transducer"] = transducer
    found["transducer of durations"] = transducer_of_durations
    found["transducer of terms"] = transducer_of_terms
    found["CTC"] = ctc
    found["alignments"] = alignments
    found["ranks"] = ranks
    return found


def randn(device: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()


def mapping(row: cases.Case) -> Call:
    def call(device: str, size: int) -> Results:
        # least weights of many entries would be more than all there is
        lengths = (6, 8, 9) if row.parameters.get("lower") else (6, 70, 1500)
        x = randn(device, 3, lengths[size])
        omega = row.regularizer()
        return [omega.argmax(x), omega.max(x)], [x]

    return call


def structure(row: sets.Set, smooth: pm.Smoothing) -> Call:
    def call(device: str, size: int) -> Results:
        scores = row.scores((row.shapes[0], row.shape, row.shapes[len(row.shapes) // 2])[size], (3,), device=device)
        scores = tuple(x.requires_grad_() for x in scores)
        found = [*tensors(smooth(*scores)), smooth.max(*scores)]
        return found, list(scores)

    return call


def graph(row: graphs.Row) -> Call:
    def call(device: str, size: int) -> Results:
        scores = tuple(x.detach().to(device).requires_grad_() for x in row.scores((size + 1,)))
        return [pm.SparseMap(row.graph)(*scores).variables], list(scores)

    return call


def vocabulary(alpha: float) -> Call:
    def call(device: str, size: int) -> Results:
        words = (64, 300, 1000)[size]
        hidden, weight = randn(device, 5 + size, 32), randn(device, words, 32, seed=1)
        target = torch.arange(5 + size, device=device) * 7 % words
        return [pm.linear_entmax_loss(hidden, weight, target, alpha=alpha)], [hidden, weight]

    return call


def half_vocabulary(alpha: float) -> Call:
    """Rows of flat logits and of others."""

    def call(device: str, size: int) -> Results:
        words, rows = (320, 1000, 5000)[size], (8, 70, 130)[size]
        hidden = randn(device, rows, 64, dtype=torch.bfloat16)
        weight = randn(device, words, 64, dtype=torch.bfloat16, seed=1)
        target = torch.arange(rows, device=device) * 7 % words
        found = [pm.linear_entmax_loss(scale * hidden, weight, target, alpha=alpha) for scale in (0.01, 0.3)]
        return found, [hidden, weight]

    return call


def log_probabilities(device: str, size: int) -> Results:
    words, rows = (320, 1000, 5000)[size], (8, 70, 130)[size]
    hidden = randn(device, rows, 64, dtype=torch.bfloat16)
    weight = randn(device, words, 64, dtype=torch.bfloat16, seed=1)
    ids = torch.arange(rows, device=device) * 7 % words
    found = pm.linear_log_prob(hidden, weight, ids, entropy=True, temperature=0.7)
    with torch.no_grad():
        alone = pm.linear_log_prob(hidden, weight, ids, entropy=True)
    return [*found, *alone, pm.linear_cross_entropy(hidden, weight, ids)], [hidden, weight]


def tags(device: str, size: int) -> Results:
    length, states = (5, 20, 70)[size], (3, 9, 40)[size]
    unary, transition = randn(device, 3, length, states), randn(device, states, states, seed=1)
    known = (torch.arange(3 * length, device=device) % states).view(3, length)
    torch.manual_seed(0)
    crf = pm.nn.CRF(states).to(device)
    mask = torch.arange(length, device=device) < torch.tensor([[length], [2], [1]], device=device)
    ragged = pm.Chain(lengths=torch.tensor([length, 2, 1], device=device))
    found = [
        pm.crf_loss(pm.Chain(), (unary, transition), known, reduction="none"),
        pm.crf_loss(ragged, (unary, transition), known.where(mask, -1), reduction="none"),
        pm.perceptron_loss(pm.Chain(), (unary, transition), known),
        crf(unary, known, mask),
    ]
    return found, [unary, transition, *crf.parameters()]


def dense_heads(device: str, size: int) -> Results:
    # Triton's interpreter is slow: there a long sequence is a short one
    n = (100, 8192, 8256)[size] if device == "cuda" else (100, 120, 140)[size]
    q, k, v = (randn(device, 1, 2, n, 64, dtype=torch.bfloat16, seed=s) for s in range(3))
    found = [
        pm.nn.scaled_dot_product_attention(0.1 * q, k, v, is_causal=True, mapping=one)
        for one in (pm.entmax, pm.sparsemax)
    ]
    return found, [q, k, v]


def routed(device: str, size: int) -> Results:
    n = (64, 200, 700)[size]
    torch.manual_seed(0)
    module = pm.nn.BlockRoutedAttention(2, block=32, mapping=pm.entmax).to(device)
    q, k, v = (randn(device, 2, 2, n, 32, seed=s) for s in range(3))
    return [module(q, k, v, is_causal=True)], [q, k, v, *module.parameters()]


def attention(name: str) -> Call:
    def call(device: str, size: int) -> Results:
        n, dtype = (64, 200, 700)[size], torch.bfloat16 if name == "half" else torch.float32
        q, k, v = (randn(device, 2, 2, n, 32, dtype=dtype, seed=s) for s in range(3))
        more, given = {}, [q, k, v]
        if name == "bias":
            given.append(randn(device, n, n, seed=3))
            more["attn_mask"] = given[-1]
        elif name == "mask":
            more["attn_mask"] = torch.ones(n, n, dtype=torch.bool, device=device).tril(n // 4)
        elif name == "sinks":
            given.append(randn(device, 2, seed=3))
            more["sinks"] = given[-1]
        elif name == "window":
            more["window"] = (n // 3, 2)
        causal = name in ("causal", "half", "sinks")
        out = pm.nn.scaled_dot_product_attention(q, k, v, is_causal=causal, mapping=pm.entmax, **more)
        return [out], given

    return call


def learned_alphas(device: str, size: int) -> Results:
    x, alpha = randn(device, 3, (6, 70, 1500)[size]), torch.tensor([[1.2], [1.5], [1.9]], device=device)
    return [pm.entmax(x, alpha=alpha.requires_grad_())], [x, alpha]


def decoding(device: str, size: int) -> Results:
    keys, values = (randn(device, 2, 2, (40, 300, 1100)[size], 32, seed=s).detach() for s in range(2))
    with torch.no_grad():
        query = randn(device, 2, 4, 1, 32, seed=2)
        out = pm.nn.scaled_dot_product_attention(query, keys, values, enable_gqa=True, mapping=pm.entmax)
        # a mask of its own for each head, which rows of padding must not read beyond
        bias = randn(device, 4, 1, keys.shape[2], seed=3)
        biased = pm.nn.scaled_dot_product_attention(query, keys, values, bias, enable_gqa=True, mapping=pm.entmax)
    return [out, biased], []


def transducer(device: str, size: int) -> Results:
    frames, tokens = (4, 3), (3, 2)
    logits = randn(device, 2, 4 + size, 4, 5 + 30 * size)
    lengths = (torch.tensor(n, device=device) for n in (frames, tokens))
    targets = torch.tensor([[1, 2, 3], [2, 1, 0]], device=device)
    return [pm.rnnt_loss(logits, targets, *lengths)], [logits]


def transducer_of_durations(device: str, size: int) -> Results:
    states, classes = 4 + 20 * size, 5 + 30 * size
    logits = randn(device, 2, 9 + 30 * size, states, classes + 3)
    lengths = (torch.tensor(n, device=device) for n in ((9, 8), (3, 2)))
    targets = torch.nn.functional.pad(torch.tensor([[1, 2, 3], [2, 1, 0]], device=device), (0, states - 4))
    given = logits[..., :classes], logits[..., classes:], targets, *lengths
    return [pm.tdt_loss(*given, 0, [0, 1, 2], fastemit_lambda=0.1)], [logits]


def transducer_of_terms(device: str, size: int) -> Results:
    states, width = 4 + 20 * size, 5 + 60 * size
    e, p = randn(device, 2, 9 + 30 * size, width), randn(device, 2, states, width, seed=1)
    weight = randn(device, 7 + 50 * size, width, seed=2)
    lengths = tuple(torch.tensor(n, device=device) for n in ((9, 8), (3, 2)))
    targets = torch.nn.functional.pad(torch.tensor([[1, 2, 3], [2, 1, 0]], device=device), (0, states - 4))
    losses = [pm.additive_rnnt_loss(e, p, targets, *lengths), pm.joint_rnnt_loss(e, p, weight, targets, *lengths)]
    return losses, [e, p, weight]


def ctc(device: str, size: int) -> Results:
    scores = randn(device, 2, 6 + 5 * size, 4)
    targets = torch.tensor([[1, 2], [3, 0]], device=device)
    structure = pm.CTC(targets, torch.tensor([2, 1], device=device))
    path, best = pm.forced_align(scores.detach().log_softmax(-1), targets, None, torch.tensor([2, 1], device=device))
    return [pm.Marginals(structure).max(scores), path.float(), best], [scores]


def alignments(device: str, size: int) -> Results:
    scores = randn(device, 2, 6 + 20 * size, 4)
    cost = randn(device, 2, 5 + 10 * size, 5 + 10 * size)
    path = pm.monotonic_alignment_search(scores.detach())
    return [pm.soft_dtw(cost), path], [cost]


def ranks(device: str, size: int) -> Results:
    x = randn(device, 3, (6, 70, 1500)[size])
    return [pm.soft_rank(x), pm.soft_sort(x)], [x]


def run(call: Call, device: str) -> None:
    """Twice a small problem, with two larger ones in between, and the derivative of each; the same bits at the end."""
    first: list[torch.Tensor] = []
    for size in (0, 1, 2, 0):
        results, leaves = call(device, size)
        derived = [y for y in results if y.requires_grad]
        total = sum(
            (y.double() * torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)).sum() for y in derived
        )
        slopes = torch.autograd.grad(total, leaves, allow_unused=True) if derived else ()
        found = [t.detach().cpu() for t in (*results, *slopes) if t is not None]
        assert not any(t.isnan().any() for t in found), "a result is NaN"
        if size == 0 and first:
            assert all(map(torch.equal, first, found)), "the same call has other bits"
        first = first or found


def missed() -> list[str]:
    """Folders of kernels with a file for CUDA that no call has imported."""
    folders = sorted(path.parent.name for path in HOME.glob("polymax/kernels/*/cuda.py"))
    return [name for name in folders if f"polymax.kernels.{name}.cuda" not in sys.modules]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.device.battery", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--list", action="store_true", help="print the names, and call nothing")
    parser.add_argument("--claims", type=Path, help="a folder in which processes note the calls that they take")
    parser.add_argument("--until", type=float, default=float("inf"), help="the time after which no call begins")
    parser.add_argument("names", nargs="*", help="parts of names of calls; all of them")
    given = parser.parse_args(arguments)
    chosen = {k: c for k, c in battery().items() if not given.names or any(part in k for part in given.names)}
    if given.list:
        for name in chosen:
            print(name)
        return 0
    if given.device == "cuda" and (not torch.cuda.is_available() or find_spec("triton") is None):
        print("there is no CUDA device, or no Triton")
        return 2
    failed = called = 0
    for number, (name, call) in enumerate(chosen.items()):
        if time.time() >= given.until:
            break
        if given.claims is not None and not claimed(given.claims / f"{number:03}.begun"):
            continue
        print(name, flush=True)
        begun, wrong = time.time(), ""
        try:
            run(call, given.device)
        except Exception as error:
            failed += 1
            wrong = f"{type(error).__name__}: {error}"
            print(f"FAILED {name}: {wrong}", flush=True)
        called += 1
        if given.claims is not None:
            ended = {"name": name, "seconds": round(time.time() - begun, 2), "failed": wrong}
            (given.claims / f"{number:03}.ended").write_text(json.dumps(ended))
    print(f"{called} calls, {failed} failed")
    left = missed() if given.device == "cuda" and not given.names else []
    if given.claims is not None:
        # the kernels that no process has reached are known when all have ended
        (given.claims / f"{os.getpid()}.process").write_text(json.dumps({"missed": left}))
        return 1 if failed else 0
    if left:
        print(f"no call reaches the kernels of {', '.join(left)}")
    return 1 if failed or left or not chosen else 0


def claimed(path: Path) -> bool:
    """Return True for the first process that asks for a path."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
