"""Train one linear classifier with three losses and see how many classes each gives
a probability.

Run: python examples/01_sparse_classifier.py
"""

import torch

import polymax as pm

CLASSES, FEATURES, STEPS = 20, 10, 300

generator = torch.Generator().manual_seed(0)
centres = torch.randn(CLASSES, FEATURES, generator=generator)
target = torch.randint(CLASSES, (2000,), generator=generator)
inputs = centres[target] + 0.5 * torch.randn(2000, FEATURES, generator=generator)
train, test = slice(0, 1500), slice(1500, None)

OMEGAS = {
    "cross-entropy": pm.Shannon(),
    "entmax 1.5": pm.Tsallis(1.5),
    "sparsemax": pm.Gini(),
}

print(f"{'loss':15s} accuracy  classes with a probability above 0")
for name, omega in OMEGAS.items():
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        loss = pm.fenchel_young(omega, model(inputs[train]), target[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        probabilities = omega.argmax(model(inputs[test]))
    accuracy = (probabilities.argmax(-1) == target[test]).float().mean().item()
    support = (probabilities > 0).float().sum(-1).mean().item()
    print(f"{name:15s} {accuracy:8.3f}  {support:.2f} of {CLASSES}")
