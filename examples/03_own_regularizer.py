"""A regularizer of one's own, in a line: attention that pays for looking far away.

Run: python examples/03_own_regularizer.py
"""

import torch

import polymax as pm

distance = torch.arange(8.0)
price = torch.nn.Parameter(torch.tensor(0.05))

# strictly convex, differentiable, (*batch, n) -> (*batch,); tensors inside get
# gradients
near = pm.Custom(lambda p: p.square().sum(-1) / 2 + (price * distance * p).sum(-1))

scores = torch.tensor([0.1, 0.3, 0.0, 0.2, 0.4, 0.1, 0.5, 0.6])
weights = near.argmax(scores)
print("sparsemax", [f"{w:.2f}" for w in pm.sparsemax(scores).tolist()])
print("near     ", [f"{w:.2f}" for w in weights.tolist()])

(weights * distance).sum().backward()
print(f"mean distance falls by {-price.grad.item():.2f} per unit of price")
