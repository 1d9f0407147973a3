"""Attention that learns how sparse to be: one alpha per head, between softmax (1)
and sparsemax (2).

Head 0 must copy one key, head 1 must average all of them. Run: python
examples/02_learn_alpha.py
"""

import torch

import polymax as pm

KEYS, WIDTH, STEPS = 12, 16, 300

torch.manual_seed(0)
raw = torch.nn.Parameter(torch.zeros(2, 1, 1))
scale = torch.nn.Parameter(torch.ones(2, 1, 1))
optimizer = torch.optim.Adam([raw, scale], lr=0.05)

for _ in range(STEPS):
    scores = torch.randn(2, 64, KEYS)
    values = torch.randn(64, KEYS, WIDTH)
    alpha = 1 + torch.sigmoid(raw)
    weights = pm.entmax(scale * scores, alpha=alpha)
    read = torch.einsum("hbk,bkw->hbw", weights, values)
    one = values[torch.arange(64), scores[0].argmax(-1)]
    loss = (read[0] - one).square().mean() + (
        read[1] - values.mean(1)
    ).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"final loss {loss.item():.3f}")
for head, task in enumerate(("copy the best key", "average all keys")):
    zeros = (weights[head] == 0).float().mean().item()
    print(
        f"head {head} ({task}): alpha {alpha[head].item():.2f},",
        f"{zeros:.0%} of the weights are exactly 0",
    )
