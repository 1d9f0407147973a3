"""Predict the second half of a series from the first, by squared error and by
soft-DTW.

The first half tells what will come, but not when: squared error answers with the
mean of all shifted copies, which has the shape of none; soft-DTW leaves the time
open, and keeps the shape. Prints both errors of both networks, and draws three
predictions into PICTURE. Run: python examples/09_series_prediction.py
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import polymax as pm

HALF, TRAIN, TEST, STEPS, BATCH = 40, 300, 200, 400, 50
GAMMA = 0.05
PICTURE = Path(tempfile.gettempdir()) / "polymax_series_prediction.png"


def made(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return waves of some height, each followed by a step or a peak of it.

    Shapes: first and second halves (count, HALF)
    """
    time = torch.linspace(0, 1, HALF)
    height = 0.5 + torch.rand(count, 1, generator=generator)
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    peaked = torch.rand(count, 1, generator=generator) < 0.5
    # slow waves come before peaks, fast ones before steps
    first = height * torch.sin(phase + torch.where(peaked, 6.0, 12.0) * time)
    moved = time - 0.3 - 0.4 * torch.rand(count, 1, generator=generator)
    second = height * torch.where(
        peaked, torch.exp(-((12 * moved) ** 2)), torch.sigmoid(60 * moved)
    )
    noise = 0.03 * torch.randn(2, count, HALF, generator=generator)
    return first + noise[0], second + noise[1]


def squared_error(found: Tensor, wanted: Tensor) -> Tensor:
    """Summed over time, a mean over series."""
    return (found - wanted).square().sum(1).mean()


def costs(found: Tensor, wanted: Tensor) -> Tensor:
    """Between all points of each two series, (count, HALF, HALF)."""
    return pm.squared_euclidean(found.unsqueeze(2), wanted.unsqueeze(2))


def warped_error(found: Tensor, wanted: Tensor) -> Tensor:
    """Soft-DTW, a mean over series; its bias is the same for all predictions."""
    return pm.soft_dtw(costs(found, wanted), GAMMA).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared error": squared_error,
    "soft-DTW": warped_error,
}


def trained(
    losses: list[Callable[[Tensor, Tensor], Tensor]], first: Tensor, second: Tensor
) -> nn.Module:
    """A network of two layers that minimises the losses, one after the other."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(HALF, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, HALF),
    )
    for loss in losses:
        optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
        for step in range(STEPS):
            rows = (torch.arange(BATCH) + step * BATCH) % len(first)
            optimizer.zero_grad()
            loss(network(first[rows]), second[rows]).backward()
            optimizer.step()
    return network


generator = torch.Generator().manual_seed(0)
train, test = made(TRAIN, generator), made(TEST, generator)
predicted = {}
print(f"{'trained by':16s} squared error    DTW")
for name, loss in LOSSES.items():
    # a path of least cost is of use where the prediction has roughly the right
    # form: soft-DTW begins at squared error's
    order = [squared_error] if loss is squared_error else [squared_error, loss]
    predicted[name] = trained(order, *train)(test[0]).detach()
    errors = (
        squared_error(predicted[name], test[1]),
        pm.dtw(costs(predicted[name], test[1])).mean(),
    )
    print(f"{name:16s} {errors[0].item():13.3f} {errors[1].item():6.3f}")
warped, plain = (
    pm.dtw(costs(predicted[name], test[1]))
    for name in ("soft-DTW", "squared error")
)
print(
    "soft-DTW has the shape better in",
    f"{(warped < plain).float().mean():.0%} of the test series",
)

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError:
    print("no picture without matplotlib: pip install polymax[plot]")
else:
    figure = Figure(figsize=(12, 3), layout="constrained")
    FigureCanvasAgg(figure)
    for k, ax in enumerate(figure.subplots(1, 3)):
        ax.plot(torch.cat([test[0][k], test[1][k]]), color="0.6", label="series")
        for name, found in predicted.items():
            ax.plot(range(HALF, 2 * HALF), found[k], label=name)
        ax.axvline(HALF - 0.5, color="0.8", linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    figure.savefig(PICTURE, dpi=120)
    print(f"wrote {PICTURE}")
