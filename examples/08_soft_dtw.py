"""Align two series that show the same shape at different speeds, and average three
of them.

Prints distances and how many cells each smoothing expects, and draws the expected
alignments if `--picture` names a file.
"""

import argparse

import torch

import polymax as pm

GAMMA = 0.2


def gesture(n: int, start: float, speed: float) -> torch.Tensor:
    """A peak and a dip, of n points; float64 holds weights that float32 would round
    to 0.
    """
    t = (torch.linspace(0, 1, n, dtype=torch.float64) - start) * speed
    return torch.exp(-((t - 1) ** 2) * 4) - 0.6 * torch.exp(-((t - 2.2) ** 2) * 6)


x, y = gesture(40, 0.0, 4.0), gesture(50, 0.2, 5.0)
cost = pm.squared_euclidean(x[:, None], y[:, None]).requires_grad_()

DISTANCES = {
    "dtw": lambda: pm.dtw(cost),
    "smoothed_dtw, Gini": lambda: pm.smoothed_dtw(cost, pm.Gini(GAMMA)),
    "soft_dtw": lambda: pm.soft_dtw(cost, GAMMA),
    "soft_dtw, band of 8": lambda: pm.soft_dtw(cost, GAMMA, band=8),
}
expected = {}
print(f"{'':20s}    value  cells above 0, of {cost.numel()}")
for name, distance in DISTANCES.items():
    value = distance()
    # the gradient of each distance is its expected alignment
    (expected[name],) = torch.autograd.grad(value, cost)
    print(f"{name:20s} {value.item():8.3f}  {int((expected[name] > 0).sum())}")
print(
    "divergence of x and y, and of x and x:",
    f"{pm.soft_dtw_divergence(x[:, None], y[:, None], GAMMA).item():.3f}",
    end="",
)
print(f", {pm.soft_dtw_divergence(x[:, None], x[:, None], GAMMA).item():.3f}")

# an average point by point flattens what comes at different times; one under soft-
# DTW does not
series = torch.stack([gesture(40, start, 5.0) for start in (0.0, 0.15, 0.3)])
barycenter = pm.soft_dtw_barycenter(series[..., None], gamma=0.05)[:, 0]
print(
    f"peak of each series {series.amax(1).mean():.2f},",
    f"of their mean {series.mean(0).max():.2f}",
    end="",
)
print(f", of their barycenter {barycenter.max():.2f}")

options = argparse.ArgumentParser()
options.add_argument(
    "--picture", help="a file for the smoothed paths of two smoothings"
)
picture = options.parse_args().picture
if picture:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for ax, name in zip(axes, ("smoothed_dtw, Gini", "soft_dtw")):
        pm.plot.alignment(expected[name], x, y, path=expected["dtw"], ax=ax)
        ax.set_title(f"{name}, gamma {GAMMA}")
    figure.savefig(picture, dpi=90)
    print(f"wrote {picture}")
