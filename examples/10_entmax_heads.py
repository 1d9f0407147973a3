"""Give a Hugging Face model entmax attention, train it, and look at its heads.

A small Llama learns to copy: texts are random letters, a separator, and the same
letters again. To copy, a head must look at one place. With softmax attention it
gives every earlier letter some weight; with entmax it gives weight 0 to all but one
or a few. Weights are random at first: nothing is downloaded.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import polymax as pm
from polymax.integrations.transformers import register

LETTERS, LENGTH, STEPS = 12, 10, 150


def texts(count: int) -> torch.Tensor:
    """Return texts (count, 2 LENGTH + 1): letters, the separator 0, the letters
    again.
    """
    letters = torch.randint(1, LETTERS + 1, (count, LENGTH))
    return torch.cat([letters, torch.zeros(count, 1, dtype=torch.long), letters], 1)


def trained(attention: str) -> LlamaForCausalLM:
    """Return a model that has learned to copy."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=LETTERS + 1,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        attn_implementation=attention,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        batch = texts(64)
        labels = batch.masked_fill(torch.arange(2 * LENGTH + 1) <= LENGTH, -100)
        loss = model(batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


options = argparse.ArgumentParser(description=__doc__)
options.add_argument(
    "--picture", help="a file for the weights of a head of each model"
)
picture = options.parse_args().picture
register()
example = texts(1)
heads = {}
for name in ("softmax", "entmax"):
    model = trained(f"polymax_{name}")
    with torch.no_grad():
        shown = model(example, output_attentions=True)
        logits = model(batch := texts(200)).logits
    right = (
        (logits[:, LENGTH:-1].argmax(-1) == batch[:, LENGTH + 1 :]).float().mean()
    )
    copying = torch.stack(shown.attentions)[:, 0, :, LENGTH:-1]  # rows that copy
    earlier = torch.ones(2 * LENGTH + 1, 2 * LENGTH + 1).tril().bool()[LENGTH:-1]
    zeros = (copying[..., earlier] == 0).float().mean()
    print(
        f"{name:8s} {right:.0%} of the letters copied,",
        f"{zeros:.0%} of the weights are 0",
    )
    # the head whose weights are the most on one key
    best = int(copying.amax(-1).mean(-1).argmax())
    heads[name] = shown.attentions[best // 4][0, best % 4, LENGTH:-1]
    support = (heads[name] > 0).sum(-1).float().mean()
    print(f"  head {best % 4} of layer {best // 4}: {support:.1f} keys have weight")
if picture:
    import matplotlib.pyplot as plt

    names = [
        "|" if token == 0 else chr(96 + token) for token in example[0].tolist()
    ]
    figure, axes = plt.subplots(1, 2, figsize=(12, 4))
    for axis, (name, weights) in zip(axes, heads.items()):
        pm.plot.attention(weights, names[LENGTH:-1], names, ax=axis)
        axis.set_title(name)
    figure.savefig(picture, dpi=90, bbox_inches="tight")
    print(f"wrote {picture}")
