"""A model of Hugging Face over packed documents, and over padded batches of the same: losses, and tokens a second.

    python -m benchmarks.packed --device cuda

Half of a padded batch is padding: each document has a partner, and both together are as long as the longest may be. The
model is a Llama with random weights; a step is its loss and the gradient. Tokens a second leave padding out. Losses are
compared in float64. Needs transformers.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine

# steps that are not timed: kernels are compiled in them
WARM = 3

Batch = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Measure both kinds of batches, print a table, and write a file if one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packed", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--attention", default="polymax_entmax", help="name of an implementation")
    parser.add_argument("--documents", type=int, default=32, help="of a batch, an even number")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of two documents")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each kind")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.documents < 2 or options.documents % 2:
        print(f"error: --documents must be an even number from 2 on; got {options.documents}", file=sys.stderr)
        return 1
    found = measured(options)
    print(f"padded {found['padded_per_second']:,.0f} tokens/s, packed {found['packed_per_second']:,.0f} tokens/s")
    print(f"packed is {found['ratio']:.2f} times as fast; losses differ by {found['loss_difference']:.1e}")
    if options.out is not None:
        facts = {**machine.provenance(), "machine": machine.describe(options.device)}
        settings = {name: value for name, value in vars(options).items() if name != "out"}
        options.out.write_text(json.dumps({**facts, **settings, **found}, indent=2) + "\n", encoding="utf-8")
    return 0


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Return tokens a second of packed and of padded batches, their ratio, and by how much losses differ."""
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    from polymax.integrations.transformers import register

    register()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=options.size,
        intermediate_size=4 * options.size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=options.longest,
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation=options.attention).to(options.device)
    rows = documents(options.documents, options.longest)
    batches = {"padded": padded(rows, options.longest), "packed": packed(rows)}
    batches = {name: {k: _moved(v, options.device) for k, v in batch.items()} for name, batch in batches.items()}
    tokens = sum(map(len, rows))
    times: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(WARM + options.steps):
        for name, batch in batches.items():
            times[name].append(_seconds(model, batch))
    found = {f"{name}_per_second": tokens / median(some[WARM:]) for name, some in times.items()}
    model.double()
    with torch.no_grad():
        losses = [model(**batch, use_cache=False).loss.item() for batch in batches.values()]
    ratio = found["packed_per_second"] / found["padded_per_second"]
    return {**found, "ratio": ratio, "loss_difference": abs(losses[0] - losses[1])}


def documents(count: int, longest: int) -> list[Tensor]:
    """Return documents of random words in pairs, which are together `longest` words long."""
    rows = []
    for n in torch.randint(2, longest - 1, (count // 2,)).tolist():
        rows += [torch.randint(3, 1000, (m,)) for m in (n, longest - n)]
    return rows


def padded(rows: list[Tensor], longest: int) -> Batch:
    """Return a batch of documents, each with padding behind it."""
    ids, mask = torch.zeros(len(rows), longest).long(), torch.zeros(len(rows), longest).long()
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def packed(rows: list[Tensor]) -> Batch:
    """Return documents one after the other in a single row, and where they begin."""
    from transformers import DataCollatorWithFlattening

    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    return dict(collate([{"input_ids": row.tolist(), "labels": row.tolist()} for row in rows]))


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _seconds(model: Any, batch: Batch) -> float:
    """Return how long a loss and its gradient take."""
    device = batch["input_ids"].device.type
    began = perf_counter()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss = model(**batch, use_cache=False).loss
    loss.backward()
    model.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
